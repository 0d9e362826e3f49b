//! Connections that stay open across a reload: no later request may be judged by the old configuration.
//!
//! The attack: a plain HTTP connection with a request in flight, or with the first bytes of one, during a
//! reload kept the old configuration for as long as it was kept alive: revoked credentials and addresses
//! still worked. **Cost**: five bytes sent before the reload, and a request each `[timeouts] keep_alive`.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use crate::harness::{Gateway, LOCAL_USER, TestDir};
use crate::origin::{Origin, exchange, ok, read_head, read_response_to, request_to};
use crate::peers::{basic, check_ended, connect_from, read_exactly, read_reply, socks_request};

/// An address that belongs to a user until the reload.
const TRUSTED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

/// The local user, and a user `net` with the address `source`.
fn user(source: &str) -> String {
    let user = "[[user]]\nname = \"net\"\nallow = [\"127.0.0.0/8\"]\n";
    format!("{LOCAL_USER}{user}from = [\"{source}/32\"]\n")
}

fn connect(gateway: &Gateway) -> TcpStream {
    connect_from(TRUSTED, gateway.listeners[0])
}

/// An address that is no longer in `from` has no user, on each kind of open connection.
#[test]
fn connections_open_across_a_reload_are_judged_anew() {
    let origin = Origin::responding(ok("hello"));
    let slow = TcpListener::bind("127.0.0.1:0").unwrap();
    let gateway = Gateway::start(&user("127.0.0.3"));
    let get = origin.get("/");

    let mut in_flight = connect(&gateway);
    in_flight.write_all(request_to(slow.local_addr().unwrap(), "GET", "/", "").as_bytes()).unwrap();
    let (mut held, _) = slow.accept().unwrap();
    read_head(&mut held).expect("the request arrives");
    let mut begun: Vec<TcpStream> = (0..8).map(|_| connect(&gateway)).collect();
    for stream in &mut begun {
        stream.write_all(&get.as_bytes()[..5]).unwrap();
    }
    let mut idle = connect(&gateway);
    assert_eq!(exchange(&mut idle, &get).status, 200);
    let mut begun_again = connect(&gateway);
    assert_eq!(exchange(&mut begun_again, &get).status, 200);
    begun_again.write_all(&get.as_bytes()[..5]).unwrap();
    gateway.await_metric("tollgate_handshakes_active", 8.0);

    gateway.reload(&user("127.0.0.9"));

    for stream in &mut begun {
        assert_eq!(exchange(stream, &get.as_bytes()[5..]).status, 407, "begun before the reload");
    }
    assert_eq!(exchange(&mut idle, &get).status, 407, "idle during the reload");
    assert_eq!(
        exchange(&mut begun_again, &get.as_bytes()[5..]).status,
        407,
        "the next request begun before it"
    );
    held.write_all(&ok("late")).unwrap();
    assert_eq!(read_response_to("GET", &mut in_flight).status, 200, "a request in flight ends as it began");
    for _ in 0..2 {
        assert_eq!(exchange(&mut in_flight, &get).status, 407, "the next request of the same connection");
    }
    assert_eq!(exchange(&mut gateway.connect(), &get).status, 200, "other users are served");
}

/// A removed user keeps no connection.
#[test]
fn connections_of_a_removed_user_end() {
    let origin = Origin::responding(ok("hello"));
    let with_timeouts = "[timeouts]\nkeep_alive = \"1h\"\n";
    let gateway = Gateway::start(&format!("{}{with_timeouts}", user("127.0.0.3")));
    let mut idle: Vec<TcpStream> = (0..8).map(|_| connect(&gateway)).collect();
    for stream in &mut idle {
        assert_eq!(exchange(stream, origin.get("/")).status, 200);
    }
    gateway.await_metric("tollgate_sessions_resting", 8.0);
    gateway.reload(&format!("{LOCAL_USER}{with_timeouts}"));
    for stream in &mut idle {
        check_ended(stream, false);
    }
    gateway.await_metric("tollgate_sessions_resting", 0.0);
    assert_eq!(exchange(&mut gateway.connect(), origin.get("/")).status, 200);
}

/// A SOCKS5 client whose method or password was accepted before a reload, and that had sent no request yet,
/// was judged by the old configuration, up to `[timeouts] greeting` later. **Cost**: a connection.
#[test]
fn socks5_request_uses_the_configuration_of_its_time() {
    let origin = Origin::responding(ok("hello"));
    let port = origin.address.port();
    let dir = TestDir::new(&user("127.0.0.3"));
    let names = ["stays", "denied", "changed", "gone"];
    names.iter().for_each(|name| dir.add_user(name, "open sesame", "--allow 127.0.0.0/8"));
    let gateway = Gateway::start_in(dir);
    let mut logged_in = names.map(|name| {
        let mut stream = gateway.connect();
        let name = [&[1, u8::try_from(name.len()).unwrap()], name.as_bytes()].concat();
        stream.write_all(&[&[5, 1, 2], &name[..], &[11], b"open sesame"].concat()).unwrap();
        assert_eq!(read_exactly(&mut stream, 4), [5, 2, 1, 0]);
        stream
    });
    let mut trusted = [(); 2].map(|()| connect(&gateway));
    trusted[0].write_all(&[5, 1, 0]).unwrap();
    assert_eq!(read_exactly(&mut trusted[0], 2), [5, 0]);
    // Java's client without credentials.
    trusted[1].write_all(&[&[5, 1, 2, 1, 4][..], b"duke", &[0]].concat()).unwrap();
    assert_eq!(read_exactly(&mut trusted[1], 4), [5, 2, 1, 0]);

    let denied = gateway.path("users.d/denied.toml");
    let text = std::fs::read_to_string(&denied).unwrap();
    std::fs::write(denied, format!("{text}deny = [\"127.0.0.1:{port}\"]\n")).unwrap();
    gateway.run("user passwd changed --password-stdin", b"correct horse\n");
    std::fs::remove_file(gateway.path("users.d/gone.toml")).unwrap();
    gateway.reload(&user("127.0.0.9"));

    let mut ask = |stream: &mut TcpStream| {
        stream.write_all(&socks_request("127.0.0.1", port)).unwrap();
        read_reply(stream)
    };
    assert_eq!(logged_in.each_mut().map(&mut ask), [0, 2, 2, 2], "{names:?}");
    assert_eq!(trusted.each_mut().map(&mut ask), [2, 2], "their address has no user");
}

/// A connection with revoked or without credentials was refused for each request and kept for ever; for
/// unknown clients the third consecutive refusal is the last. **Cost**: a request each `[timeouts]
/// keep_alive` for one of the user's connections.
#[test]
fn third_consecutive_refusal_ends_the_connection() {
    let origin = Origin::responding(ok("hello"));
    let gateway = Gateway::start(&user("127.0.0.3"));
    let get = origin.get("/");
    let wrong = origin.ask("GET", "/", &format!("Proxy-Authorization: {}\r\n", basic("x", "y")));
    let mut kept = connect(&gateway);
    for _ in 0..3 {
        assert_eq!(exchange(&mut kept, &get).status, 200);
        (0..2).for_each(|_| assert_eq!(exchange(&mut kept, &wrong).status, 407, "not consecutive"));
    }
    gateway.reload(&user("127.0.0.9"));
    let response = exchange(&mut kept, &get);
    assert_eq!((response.status, response.header("Connection")), (407, Some("close")));
    check_ended(&mut kept, false);
    gateway.await_metric("tollgate_sessions_resting", 0.0);
    let mut others = gateway.connect();
    (0..5).for_each(|_| assert_eq!(exchange(&mut others, &get).status, 200));
}
