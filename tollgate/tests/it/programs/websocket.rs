//! WebSocket in the clear: a client of Python's websockets asks in absolute form, as a proxy is asked, and
//! a server of the same library echoes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::gateway_to;
use super::services::run;
use super::site::testdata;
use super::tap::Tap;

/// A server that echoes every message; killed when dropped.
struct EchoServer {
    child: Child,
    port: String,
}

impl EchoServer {
    fn start() -> EchoServer {
        let mut command = Command::new("/usr/bin/python3");
        let mut child = command.arg(testdata("echo_server.py")).stdout(Stdio::piped()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
        EchoServer { child, port: port.trim().to_owned() }
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        // It may have failed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "needs python3-websockets: cargo xtask services"]
fn messages_of_every_size_come_back() {
    let server = EchoServer::start();
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
    let told = (&line["protocol"], &line["method"], &line["status"]);
    assert_eq!((closed.len(), told), (1, (&"http".into(), &"GET".into(), &101.into())));
    assert_eq!((&line["client_rx"], &line["client_tx"]), (&sent.into(), &received.into()));
    let up = line["upstream_tx"].as_u64().unwrap();
    assert_eq!(gateway.usage_of("ci"), (1, up, received));
    // The heads differ; everything behind them is passed on as it is.
    assert!(up < sent && sent - up < 500 && line["upstream_rx"].as_u64().unwrap() < received, "{line:#}");
}
