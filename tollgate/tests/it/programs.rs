//! Real programs, each told of the gateway in the way that its manual says.
//! Promises: what the gateway billed is compared with what the programs did; it has as many threads as a
//! user's. Leaves to others: the servers, which `cargo xtask services` starts.

use crate::harness::{EVERY_CPU, Gateway, TestDir};

mod apt;
mod bill;
mod browser;
mod command_lines;
mod curl;
mod curl_requests;
mod git;
mod golang;
mod grpc;
mod iperf;
mod libraries;
mod node;
mod pip;
mod postgres;
mod proxy_method;
mod python;
mod python_server;
mod redis;
mod services;
mod site;
mod ssh;
mod tap;
mod websocket;
mod wget;

/// A gateway that leads `me` to the server at `port`, and where it does so: host and port, as words of a
/// command line.
fn forwarding(port: &str) -> (Gateway, [String; 2]) {
    let gateway = Gateway::forwarding(format!("127.0.0.1:{port}"), EVERY_CPU);
    let address = gateway.listeners[1];
    (gateway, [address.ip().to_string(), address.port().to_string()])
}

/// A directory with a configuration whose set `@local` has `destinations`.
fn test_dir(destinations: &[String]) -> TestDir {
    // TOML writes strings, and arrays of them, as Rust does.
    TestDir::new(&format!("{EVERY_CPU}[destinations.local]\nto = {destinations:?}\nclass = \"internal\"\n"))
}

/// A gateway that lets `ci`, by the password `right-one`, go to `destination`.
fn gateway_to(destination: String) -> Gateway {
    let dir = test_dir(&[destination]);
    dir.add_user("ci", "right-one", "--allow @local");
    Gateway::start_in(dir)
}
