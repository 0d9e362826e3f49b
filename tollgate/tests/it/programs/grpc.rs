//! gRPC: a bidirectional stream through a tunnel, with a proxy from the environment.

use super::bill;
use super::gateway_to;
use super::python_server::PythonServer;
use super::services::{ProgramOutput, run, service};
use super::site::testdata;
use crate::harness::{EVERY_CPU, Gateway};

/// The total of the client's messages: one of each size in `grpc_client.py`.
const MESSAGES_BYTES: u64 = 1371 * (200 * 199 / 2) + 65_535 + 65_536 + 5_000_011;

fn client(gateway: &Gateway, credentials: &str, server: &PythonServer) -> ProgramOutput {
    let libraries = format!("PYTHONPATH={}", service("PYTHON_LIBRARIES"));
    let proxy = format!("http_proxy=http://{credentials}{}", gateway.listeners[0]);
    let (script, target) = (testdata("grpc_client.py"), format!("localhost:{}", server.port));
    run("env", &[&libraries, &proxy, "/usr/bin/python3", &script, &target])
}

#[test]
#[ignore = "needs grpcio: cargo xtask services"]
fn stream_through_connect_succeeds() {
    let server = PythonServer::start("grpc_server.py", &[]);
    let by_password = gateway_to(format!("localhost:{}", server.port));
    let by_address = Gateway::local(EVERY_CPU);
    for (mut gateway, user, credentials) in [(by_password, "ci", "ci:right-one@"), (by_address, "me", "")] {
        assert_eq!(client(&gateway, credentials, &server).text(), "203 messages came back");
        let flow = (user, "http_connect", "localhost", server.port);
        let (flows, up, down) = bill::total(&mut gateway, flow);
        assert!(flows == 1 && up > MESSAGES_BYTES && down > MESSAGES_BYTES, "{flows} {up} {down}");
    }
}

#[test]
#[ignore = "needs grpcio: cargo xtask services"]
fn call_without_credentials_is_unavailable() {
    let server = PythonServer::start("grpc_server.py", &[]);
    let mut gateway = gateway_to(format!("localhost:{}", server.port));
    let output = client(&gateway, "", &server);
    assert_eq!(output.code, Some(1), "{}", output.err);
    for part in ["UNAVAILABLE: ", "HTTP proxy returned response code 407"] {
        assert!(output.err.contains(part), "{}", output.err);
    }
    bill::check_refused(&mut gateway);
}
