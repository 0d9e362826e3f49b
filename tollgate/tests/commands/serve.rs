//! `tollgate serve`, where the start fails or warns.

use std::fs;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use super::TestDir;

/// A directory whose gateway would listen at these addresses.
fn test_dir(listener: SocketAddr, admin: SocketAddr) -> TestDir {
    let ledger = "[ledger]\nlive_table = \".\"\nsegment = \"1MiB\"\n";
    let text = format!("[[listener]]\naddress = \"{listener}\"\n[admin]\naddress = \"{admin}\"\n{ledger}");
    TestDir::new(&[("tollgate.toml", &text)])
}

/// A port without a listener that a connection in TIME_WAIT holds.
fn port_in_time_wait() -> SocketAddr {
    let destination = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(destination.local_addr().unwrap()).unwrap();
    let (mut accepted, peer) = destination.accept().unwrap();
    // The end that closes first enters TIME_WAIT.
    drop(client);
    assert_eq!(accepted.read(&mut [0]).unwrap(), 0);
    drop(accepted);
    let line = format!(" 0100007F:{:04X} ", peer.port());
    let deadline = Instant::now() + Duration::from_secs(60);
    let waits = || {
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        table.lines().any(|socket| socket.contains(&line) && socket.contains(" 06 "))
    };
    while !waits() {
        assert!(Instant::now() < deadline, "{peer} is not in TIME_WAIT");
        thread::sleep(Duration::from_millis(5));
    }
    peer
}

#[test]
fn port_in_use_is_reported_with_its_cause() {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let taken = TcpListener::bind(any).unwrap();
    let taken = taken.local_addr().unwrap();
    let waits = port_in_time_wait();
    for (listener, admin, at) in [
        (taken, any, format!("cannot listen on {taken}: ")),
        (any, taken, format!("the admin address {taken}: ")),
    ] {
        let run = test_dir(listener, admin).run("serve");
        assert_eq!(run.code, 1, "{}", run.err);
        assert!(run.err.contains(&at) && run.err.contains("a process listens on this port"), "{}", run.err);
        assert!(run.err.contains(&format!("`ss -ltnp 'sport = :{}'`", taken.port())), "{}", run.err);
    }
    let run = test_dir(waits, any).run("serve");
    assert_eq!(run.code, 1, "{}", run.err);
    assert!(run.err.contains("no process listens on this port"), "{}", run.err);
    // The kernel chose the port, so it is in the range of local ports.
    let command = "to keep it for listeners: sysctl -w net.ipv4.ip_local_reserved_ports=";
    assert!(run.err.contains(command) && run.err.contains(&waits.port().to_string()), "{}", run.err);
}

#[test]
fn warnings_are_printed_by_check_and_at_the_start() {
    let dir = test_dir("127.0.0.1:0".parse().unwrap(), "127.0.0.1:0".parse().unwrap());
    let warning = "warning: there are no users: every request is refused\n";
    assert!(dir.run("check").err.starts_with(warning));
    let errors = dir.path("stderr.txt");
    let mut serve = dir.command("serve");
    let mut serve = serve.stdout(Stdio::null()).stderr(fs::File::create(&errors).unwrap()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !fs::read_to_string(&errors).unwrap().starts_with(warning) {
        assert!(Instant::now() < deadline, "{}", fs::read_to_string(&errors).unwrap());
        thread::sleep(Duration::from_millis(5));
    }
    serve.kill().unwrap();
    serve.wait().unwrap();
}

#[test]
fn error_cause_is_printed_once() {
    let dir = TestDir::new(&[]);
    // No directory can be created below a dangling link.
    std::os::unix::fs::symlink("nowhere/deeper", dir.path("tollgate-data")).unwrap();
    let run = dir.run("serve");
    assert_eq!((run.code, run.err.matches("os error").count()), (1, 1), "{}", run.err);
}
