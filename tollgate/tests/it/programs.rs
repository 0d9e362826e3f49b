//! Real programs, each configured for the gateway as its manual specifies.
//!
//! Guarantees: the bill is compared with what the programs transferred. The gateway has the default number of
//! threads. `cargo xtask services` starts the servers.

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

/// A gateway that forwards `me` to the server at `port`, and the listener's host and port as command line
/// arguments.
fn forwarding(port: &str) -> (Gateway, [String; 2]) {
    let gateway = Gateway::forwarding(format!("127.0.0.1:{port}"), EVERY_CPU);
    let address = gateway.listeners[1];
    (gateway, [address.ip().to_string(), address.port().to_string()])
}

/// A directory with a configuration whose set `@local` has `destinations`.
fn test_dir(destinations: &[String]) -> TestDir {
    // TOML has the same syntax for strings, and arrays of them, as Rust.
    TestDir::new(&format!("{EVERY_CPU}[destinations.local]\nto = {destinations:?}\nclass = \"internal\"\n"))
}

/// A gateway that allows `destination` for `ci`, with the password `right-one`.
fn gateway_to(destination: String) -> Gateway {
    let dir = test_dir(&[destination]);
    dir.add_user("ci", "right-one", "--allow @local");
    Gateway::start_in(dir)
}
