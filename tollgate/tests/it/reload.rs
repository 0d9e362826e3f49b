//! Reloads: changes apply to new connections, an invalid configuration changes nothing, and only affected
//! users lose connections.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::panic::{self, AssertUnwindSafe};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Gateway, LOCAL_USER, STRATEGIES, eventually, kernel_sockets, with_timeouts};
use crate::peers::{
    Destination, ask, check_echo, check_ended, connect_from, connect_request, read_response,
    silent_destination, tunnel,
};

const FIRST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A user with one known address that may reach this machine.
fn user(name: &str, from: Ipv4Addr) -> String {
    format!("[[user]]\nname = \"{name}\"\nfrom = [\"{from}/32\"]\nallow = [\"127.0.0.0/8\"]\n")
}

fn status(gateway: &Gateway, source: Ipv4Addr, target: SocketAddr) -> u16 {
    let mut stream = connect_from(source, gateway.listeners[0]);
    stream.write_all(connect_request(&target.to_string()).as_bytes()).unwrap();
    read_response(&mut stream).status
}

/// Opens a tunnel of the user at `source`.
fn tunnel_from(gateway: &Gateway, source: Ipv4Addr, target: SocketAddr) -> TcpStream {
    let mut stream = connect_from(source, gateway.listeners[0]);
    stream.write_all(connect_request(&target.to_string()).as_bytes()).unwrap();
    assert_eq!(read_response(&mut stream).status, 200);
    stream
}

/// An address of this machine with a free port.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.4:0").unwrap().local_addr().unwrap()
}

fn listener(address: SocketAddr) -> String {
    format!("[[listener]]\naddress = \"{address}\"\n")
}

#[test]
fn users_and_rules_change_for_new_connections() {
    let destination = Destination::echo();
    let (first, second) = (user("first", FIRST), user("second", SECOND));
    let gateway = Gateway::start(&first);
    assert_eq!(status(&gateway, SECOND, destination.address), 407, "unknown so far");
    let mut old = tunnel_from(&gateway, FIRST, destination.address);

    gateway.reload(&format!("{first}{second}"));
    eventually("the new user is admitted", || status(&gateway, SECOND, destination.address) == 200);

    let denied = first.replace("allow", "deny = [\"127.0.0.1\"]\nallow");
    gateway.reload(&format!("{denied}{second}"));
    eventually("the new rule denies", || status(&gateway, FIRST, destination.address) == 403);
    check_echo(&mut old, b"rules apply to new connections");

    gateway.reload(&format!("{first}connections = 1\n"));
    eventually("the new cap holds", || status(&gateway, FIRST, destination.address) == 429);
    eventually("the second user is unknown", || status(&gateway, SECOND, destination.address) == 407);
    check_echo(&mut old, b"still here");
}

/// The rows of `tollgate usage`: user, set, flows.
fn usage(gateway: &Gateway, filter: &str) -> Vec<(String, String, u64)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["usage", "--json", "--by", "user,set"]).args(filter.split_whitespace());
    let output = command.arg("--config").arg(gateway.path("tollgate.toml")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let row = |row: &Value| (text(&row["user"]), text(&row["set"]), row["flows"].as_u64().unwrap());
    let mut rows: Vec<_> = value["rows"].as_array().unwrap().iter().map(row).collect();
    rows.sort();
    rows
}

#[test]
fn usage_follows_renamed_users_and_names_sets() {
    let destination = Destination::echo();
    let corp = "[destinations.corp]\nclass = \"internal\"\nto = [\"127.0.0.0/8\"]\n";
    let with = |name: &str, settings: &str| {
        format!("{}{settings}{corp}", user(name, FIRST).replace("127.0.0.0/8", "@corp"))
    };
    let second = user("second", SECOND);
    let mut gateway = Gateway::start(&format!("{second}{}", with("robert", "")));
    let connect = |gateway: &Gateway, source| assert_eq!(status(gateway, source, destination.address), 200);
    connect(&gateway, FIRST);
    connect(&gateway, SECOND);
    gateway.reload(&format!("{second}{}", with("bob", "former_names = [\"robert\"]\n")));
    eventually("the renamed user is admitted", || status(&gateway, FIRST, destination.address) == 200);
    gateway.stop();
    let row = |user: &str, set: &str, flows| (user.to_owned(), set.to_owned(), flows);
    assert_eq!(usage(&gateway, ""), [row("bob", "corp", 2), row("second", "", 1)]);
    assert_eq!(usage(&gateway, "--user robert"), [row("bob", "corp", 2)]);
    assert_eq!(usage(&gateway, "--set corp"), [row("bob", "corp", 2)]);

    let mut gateway = gateway.restart();
    connect(&gateway, FIRST);
    // The earlier name is another user's from now on.
    gateway.reload(&format!("{}{}", user("robert", SECOND), with("bob", "")));
    eventually("the new user is admitted", || status(&gateway, SECOND, destination.address) == 200);
    gateway.stop();
    let new = [row("bob", "corp", 3), row("robert", "", 1), row("second", "", 1)];
    assert_eq!(usage(&gateway, ""), new);
}

#[test]
fn removed_user_loses_tunnels_and_no_others() {
    let destination = Destination::echo();
    let (first, second) = (user("first", FIRST), user("second", SECOND));
    for without_first in [second.clone(), format!("{first}disabled = true\n{second}")] {
        let gateway = Gateway::start(&format!("{first}{second}"));
        let mut removed = tunnel_from(&gateway, FIRST, destination.address);
        let mut kept = tunnel_from(&gateway, SECOND, destination.address);
        check_echo(&mut removed, b"both");
        check_echo(&mut kept, b"live");
        gateway.reload(&without_first);
        check_ended(&mut removed, true);
        gateway.check_closed(removed.local_addr().unwrap(), "policy_changed");
        check_echo(&mut kept, b"lives on");
    }
}

#[test]
fn request_completed_after_user_removal_is_407() {
    let destination = Destination::echo();
    let (first, second) = (user("first", FIRST), user("second", SECOND));
    let gateway = Gateway::start(&format!("{first}{second}"));
    let request = connect_request(&destination.address.to_string());
    let (head, rest) = request.split_at(20);
    let mut client = connect_from(FIRST, gateway.listeners[0]);
    client.write_all(head.as_bytes()).unwrap();
    // A thread serves connections in order: once later ones are served, it has read this one.
    for _ in 0..8 {
        assert_eq!(status(&gateway, SECOND, destination.address), 200);
    }
    gateway.reload(&second);
    eventually("the reload has taken effect", || status(&gateway, FIRST, destination.address) == 407);
    client.write_all(rest.as_bytes()).unwrap();
    assert_eq!(read_response(&mut client).status, 407);
}

#[test]
fn user_removed_during_the_dial_gets_no_tunnel() {
    let (silent, held) = silent_destination();
    let target = silent.local_addr().unwrap();
    let (first, second) = (user("first", FIRST), user("second", SECOND));
    let gateway = Gateway::start(&format!("{first}{second}"));
    let mut client = connect_from(FIRST, gateway.listeners[0]);
    client.write_all(connect_request(&target.to_string()).as_bytes()).unwrap();
    gateway.await_metric("tollgate_handshakes_active", 1.0);
    // The gateway dials as soon as it has read the request; a response to a later request on each thread
    // shows that it has.
    for _ in 0..8 {
        assert_eq!(status(&gateway, SECOND, "127.0.0.1:1".parse().unwrap()), 502);
    }
    gateway.reload(&second);
    eventually("the reload has taken effect", || status(&gateway, FIRST, target) == 407);
    // Now the listener's queue has space, at the kernel's next attempt.
    thread::spawn(move || silent.incoming().map_while(Result::ok).for_each(std::mem::forget));
    let mut head = [0; 12];
    // In any case it does not stay open.
    if let Ok(count) = client.read(&mut head) {
        assert!(!head[..count].ends_with(b" 504"), "the destination was reached after all");
        if head[..count].ends_with(b" 200") {
            let rest = client.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
            assert_eq!(rest, Err(ErrorKind::ConnectionReset));
        }
    }
    gateway.await_metric("tollgate_connections_active", 0.0);
    drop(held);
}

#[test]
fn invalid_configuration_changes_nothing() {
    let destination = Destination::echo();
    let mut gateway = Gateway::local("");
    let mut old = tunnel(&gateway, destination.address);
    let taken = destination.address;
    let wrong = [
        "[timeouts]\nidle = \"soon\"\n".to_owned(),
        "colour = \"red\"\n[[".to_owned(),
        "[[user]]\nname = \"x\"\nallow = [\"@missing\"]\n".to_owned(),
        // A listener that cannot be opened is detected later than other errors.
        format!("{LOCAL_USER}[limits]\nconnections_per_user = 1\n{}", listener(taken)),
    ];
    for (count, extra) in wrong.iter().enumerate() {
        gateway.request_reload(extra);
        let refused = |line: &&serde_json::Value| {
            line["text"] == "reload refused, the old configuration stays" && line["level"] == "error"
        };
        eventually("the log has the refusal", || gateway.log().iter().filter(refused).count() == count + 1);
        eventually("standard error has the refusal", || {
            gateway.errors().matches("reload refused").count() == count + 1
        });
        check_echo(&mut old, b"the old tunnel is open");
        check_echo(&mut tunnel(&gateway, destination.address), b"and new ones are served");
    }
    gateway.await_metric("tollgate_config_reload_success", 0.0);
    gateway.reload(LOCAL_USER);
    gateway.await_metric("tollgate_config_reload_success", 1.0);
    drop(old);
    gateway.stop();
}

/// An editor or a copy may empty or remove a file before writing it. The defaults would then close every
/// listener.
#[test]
fn empty_or_missing_configuration_changes_nothing() {
    let destination = Destination::echo();
    let gateway = Gateway::local("");
    let path = gateway.path("tollgate.toml");
    let whole = fs::read_to_string(&path).unwrap();
    let check_refused = |message| {
        gateway.signal(Signal::HUP);
        eventually("it is refused", || gateway.errors().contains(message));
        check_echo(&mut tunnel(&gateway, destination.address), b"the old configuration is served");
    };
    fs::write(&path, "\n").unwrap();
    check_refused("is empty");
    fs::remove_file(&path).unwrap();
    check_refused("cannot read");
    fs::write(&path, whole).unwrap();
    gateway.signal(Signal::HUP);
    gateway.await_metric("tollgate_config_reload_success", 1.0);
}

#[test]
fn changed_listeners_lose_no_connection() {
    let destination = Destination::echo();
    let added = free_address();
    let gateway = Gateway::local("");
    let request = connect_request(&destination.address.to_string());
    let open = || {
        let mut stream = with_timeouts(TcpStream::connect(added)?);
        stream.write_all(request.as_bytes())?;
        std::io::Result::Ok(stream)
    };
    for _ in 0..3 {
        assert!(TcpStream::connect(added).is_err(), "no listener yet");
        gateway.reload(&format!("{LOCAL_USER}{}", listener(added)));
        eventually("the listener is open", || TcpStream::connect(added).is_ok());
        let mut live = open().unwrap();
        assert_eq!(read_response(&mut live).status, 200);
        let mut handshake = with_timeouts(TcpStream::connect(added).unwrap());
        handshake.write_all(&request.as_bytes()[..10]).unwrap();

        gateway.request_reload(LOCAL_USER);
        // Every connection that the listener accepted is served, to the last one.
        let mut served = 0;
        while let Ok(mut stream) = open() {
            assert_eq!(read_response(&mut stream).status, 200, "after {served}");
            check_echo(&mut stream, b"served");
            served += 1;
        }
        check_echo(&mut live, b"the tunnel outlives its listener");
        handshake.write_all(&request.as_bytes()[10..]).unwrap();
        assert_eq!(read_response(&mut handshake).status, 200);
        check_echo(&mut handshake, b"the handshake too");
    }
}

#[test]
fn kernel_chosen_port_after_reload_is_own() {
    /// No other test uses it, so that the kernel's table shows the port.
    const OWN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);
    let gateway = Gateway::local("");
    gateway.reload(&format!("{LOCAL_USER}{}", listener((OWN, 0).into())));
    let mut port = 0;
    eventually("the listener is open", || {
        let found = kernel_sockets().into_iter().find(|(local, _)| local.ip() == OWN);
        port = found.map_or(0, |(local, _)| local.port());
        port != 0
    });
    eventually("every thread has the port as an own address", || {
        let (_, response) = ask(&gateway, connect_request(&format!("{OWN}:{port}")));
        response.status == 403 && response.head.contains("proxy_loop_detected")
    });
}

/// Regression: the timer for the last accepts of a retired listener found every handshake taken, and paused
/// the listener for good: it was never closed, and a draining gateway never ended by itself.
#[test]
fn retired_listener_closes_at_full_handshakes() {
    let few = "[limits]\nhandshakes = 2\n[timeouts]\ngreeting = \"10m\"\n[threads]\nreactors = 1\n";
    let added = free_address();
    let gateway = Gateway::local(&format!("{few}{}", listener(added)));
    let silent: Vec<_> = (0..2).map(|_| gateway.connect()).collect();
    gateway.await_metric("tollgate_handshakes_active", 2.0);
    gateway.reload(&format!("{LOCAL_USER}{few}"));
    eventually("the listener is closed", || {
        let attempt = TcpStream::connect_timeout(&added, Duration::from_millis(100));
        attempt.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
    drop(silent);
}

#[test]
fn hundred_reloads_lose_no_connection() {
    // In parallel: a reload mostly waits for handshakes that may be in progress.
    thread::scope(|scope| {
        for strategy in STRATEGIES {
            scope.spawn(|| reloads_lose_no_connection(100 / STRATEGIES.len(), strategy));
        }
    });
}

fn reloads_lose_no_connection(reloads: usize, strategy: &str) {
    let destination = Destination::echo();
    let added = free_address();
    let mut gateway = Gateway::local(strategy);
    let (address, request) = (gateway.listeners[0], connect_request(&destination.address.to_string()));
    let (done, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..4)
        .map(|_| {
            let (done, served, request) = (Arc::clone(&done), Arc::clone(&served), request.clone());
            thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let mut stream = with_timeouts(TcpStream::connect(address).unwrap());
                    stream.write_all(request.as_bytes()).unwrap();
                    assert_eq!(read_response(&mut stream).status, 200);
                    check_echo(&mut stream, b"12345678");
                    served.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for round in 0..reloads {
        let extra = if round % 2 == 0 { listener(added) } else { String::new() };
        gateway.reload(&format!("{LOCAL_USER}{strategy}{extra}"));
        let before = served.load(Ordering::Relaxed);
        eventually("connections go on", || served.load(Ordering::Relaxed) > before + 4);
    }
    done.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
    gateway.stop();
    let served = served.load(Ordering::Relaxed);
    assert_eq!(gateway.usage(), (served, 8 * served, 8 * served));
}

#[test]
fn shorter_deadlines_reach_open_tunnels() {
    let destination = Destination::echo();
    let gateway = Gateway::local("");
    for (deadlines, reason) in [("idle", "idle_timeout"), ("lifetime", "lifetime_timeout")] {
        let open = tunnel(&gateway, destination.address);
        gateway.reload(&format!("{LOCAL_USER}[timeouts]\n{deadlines} = \"1s\"\n"));
        gateway.check_closed(open.local_addr().unwrap(), reason);
        gateway.reload(LOCAL_USER);
    }
    gateway.signal(Signal::USR1);
    check_echo(&mut tunnel(&gateway, destination.address), b"the log is opened anew, and nothing else");
}

/// One handshake for all clients. A queued connection gets it before new ones, however many those are.
#[test]
fn retired_listener_queue_precedes_new_connections() {
    const CLIENTS: usize = 5;
    const OTHERS: usize = 4;
    const ONE_HANDSHAKE: &str =
        "[threads]\nreactors = 1\n[limits]\nhandshakes = 1\n[timeouts]\ngreeting = \"200ms\"\n";

    let destination = Destination::echo();
    let gateway = Gateway::forwarding(destination.address, ONE_HANDSHAKE);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..OTHERS {
            // Each sends nothing, and keeps the handshake until its deadline, or until another client needs
            // it.
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let read = gateway.connect().read_to_end(&mut Vec::new());
                    assert!(read.as_ref().map_or(true, |count| *count == 0), "{read:?}");
                }
            });
        }
        gateway.await_metric("tollgate_handshakes_active", 1.0);
        let mut clients: Vec<_> =
            (0..CLIENTS).map(|_| with_timeouts(TcpStream::connect(gateway.listeners[1]).unwrap())).collect();
        gateway.reload(&format!("{LOCAL_USER}{ONE_HANDSHAKE}"));
        let served = panic::catch_unwind(AssertUnwindSafe(|| {
            clients.iter_mut().for_each(|client| check_echo(client, b"ahead of the others"));
        }));
        is_over.store(true, Ordering::Relaxed);
        served.expect("all queued clients were served while new ones connected");
    });
}
