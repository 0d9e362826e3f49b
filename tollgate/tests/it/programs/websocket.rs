//! WebSocket: an echo server of Python's websockets. Without TLS, clients of the same library and of aiohttp
//! request in absolute form, by `http://` and `ws://`. Through tunnels there are aiohttp, with TLS, and
//! undici, without.

use super::bill;
use super::gateway_to;
use super::python_server::PythonServer;
use super::services::{run, service};
use super::site::testdata;
use super::tap::Tap;
use crate::harness::{EVERY_CPU, Gateway};

/// The total of aiohttp's and undici's messages: one of each size in their scripts.
const MESSAGES_BYTES: u64 = 1371 * (100 * 99 / 2) + 65_535 + 65_536 + 5_000_011;

#[test]
#[ignore = "needs python3-websockets: cargo xtask services"]
fn messages_of_every_size_are_echoed() {
    let server = PythonServer::start("echo_server.py", &[]);
    let address = format!("127.0.0.1:{}", server.port);
    let mut gateway = gateway_to(address.clone());
    let tap = Tap::before(gateway.listeners[0]);
    let (script, proxy) = (testdata("echo_client.py"), tap.address());
    let words = [&script, &proxy.ip().to_string(), &proxy.port().to_string(), "ci:right-one", &address];
    assert_eq!(run("/usr/bin/python3", &words).text(), "503 messages came back");
    let (sent, received) = tap.totals();
    gateway.stop();
    let closed = gateway.events("close");
    let line = &closed[0];
    let logged = (&line["protocol"], &line["method"], &line["status"]);
    assert_eq!((closed.len(), logged), (1, (&"http".into(), &"GET".into(), &101.into())));
    assert_eq!((&line["client_rx"], &line["client_tx"]), (&sent.into(), &received.into()));
    let up = line["upstream_tx"].as_u64().unwrap();
    assert_eq!(gateway.usage_of("ci"), (1, up, received));
    // The heads differ; everything behind them is forwarded unchanged.
    assert!(up < sent && sent - up < 500 && line["upstream_rx"].as_u64().unwrap() < received, "{line:#}");
}

/// Runs the client, to which a proxy, a URL and a certificate are added, by password and by address; then
/// without either, where it must print `refusal`.
fn check_client(client: &[&str], (scheme, protocol): (&str, &str), server: &PythonServer, refusal: &str) {
    let run_client = |gateway: &Gateway, credentials: &str| {
        let proxy = format!("http://{credentials}{}", gateway.listeners[0]);
        let (url, certificate) =
            (format!("{scheme}://localhost:{}", server.port), service("WEB_CERTIFICATE"));
        run("env", &[client, &[&*proxy, &*url, &*certificate]].concat())
    };
    let by_password = gateway_to(format!("localhost:{}", server.port));
    let output = run_client(&by_password, "");
    assert!(output.code == Some(1) && output.err.contains(refusal), "{}", output.err);
    let by_address = Gateway::local(EVERY_CPU);
    for (mut gateway, user, credentials) in [(by_password, "ci", "ci:right-one@"), (by_address, "me", "")] {
        assert_eq!(run_client(&gateway, credentials).text(), "103 messages came back");
        let flow = (user, protocol, "localhost", server.port);
        let (flows, up, down) = bill::total(&mut gateway, flow);
        assert!(flows == 1 && up > MESSAGES_BYTES && down > MESSAGES_BYTES, "{flows} {up} {down}");
    }
}

#[test]
#[ignore = "needs python3-websockets, web, aiohttp: cargo xtask services"]
fn aiohttp_websocket_with_tls_uses_connect() {
    let certificate = service("WEB_CERTIFICATE");
    let server = PythonServer::start("echo_server.py", &[&certificate, &service("WEB_KEY")]);
    let libraries = format!("PYTHONPATH={}", service("PYTHON_LIBRARIES"));
    let client = [&*libraries, "/usr/bin/python3", &testdata("echo/with_aiohttp.py")];
    check_client(&client, ("wss", "http_connect"), &server, "407, message='Proxy Authentication Required'");
}

#[test]
#[ignore = "needs python3-websockets, web, aiohttp: cargo xtask services"]
fn aiohttp_websocket_without_tls_sends_a_ws_url() {
    let server = PythonServer::start("echo_server.py", &[]);
    let libraries = format!("PYTHONPATH={}", service("PYTHON_LIBRARIES"));
    let client = [&*libraries, "/usr/bin/python3", &testdata("echo/with_aiohttp.py")];
    check_client(&client, ("ws", "http"), &server, "407, message='Invalid response status'");
}

#[test]
#[ignore = "needs python3-websockets, web, nodejs, undici: cargo xtask services"]
fn undici_websocket_uses_connect() {
    let server = PythonServer::start("echo_server.py", &[]);
    let libraries = format!("NODE_PATH={}", service("NODE_LIBRARIES"));
    let client = [&*libraries, "/usr/bin/node", &testdata("echo/with_undici.js")];
    check_client(&client, ("ws", "http_connect"), &server, "network error");
}
