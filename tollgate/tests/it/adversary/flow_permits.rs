//! Flow permits: a user with one connection keeps hundreds of client connections open, so that others get no
//! permit.
//!
//! Before, a plain HTTP connection took a global permit with its first authenticated request, ahead of the
//! policy and of the user's own limit, and kept it through 403, 429 and its idle times. As many refused
//! requests as there were permits denied the gateway to all users, for as long as the connections existed. An
//! attacker spent a TCP connection and a refused request a minute for each permit. Now a permit is acquired
//! with the dial and returned with the flow, so that a user has as many as their `connections`. A connection
//! without a flow belongs to the user's own limit, and can be evicted.

use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};

use super::footprint::Footprint;
use super::valid_user::ValidUser;
use crate::harness::{Gateway, LOCAL_USER, eventually};
use crate::origin::{Origin, exchange, ok, request_to};
use crate::peers::{Destination, connect_from, connect_request, read_response};

const GREEDY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Connections that the attacker opens in each way.
const CONNECTIONS_EACH: usize = 100;

/// A gateway with few permits for the local user and another one, with address [`GREEDY`] and one connection.
fn small_gateway() -> Gateway {
    Gateway::start(&format!(
        "{LOCAL_USER}[limits]\nconnections = 20\n\
         [[user]]\nname = \"greedy\"\nfrom = [\"{GREEDY}/32\"]\nallow = [\"127.0.0.0/8\"]\nconnections = 1\n"
    ))
}

/// A connection of the attacker, after the response to `request`, which has to be `status`.
fn kept(gateway: &Gateway, request: &str, status: u16) -> TcpStream {
    loop {
        let mut stream = connect_from(GREEDY, gateway.listeners[0]);
        match exchange(&mut stream, request).status {
            found if found == status => return stream,
            // The response of the previous flow was sent, and the flow has not ended yet.
            found => assert_eq!((found, status), (429, 200)),
        }
    }
}

#[test]
fn user_with_one_connection_cannot_hold_all_permits() {
    let (origin, echo) = (Origin::responding(ok("hello")), Destination::echo());
    let gateway = small_gateway();
    let mut valid_user = ValidUser::new(&gateway, &origin, &echo);
    valid_user.check_served(6);
    // The ledger opens its file of the month with the first record.
    let has_recorded = || gateway.metric("tollgate_ledger_records_total") >= Some(1.0);
    eventually("the ledger has its first record", has_recorded);
    let before = Footprint::measure(&gateway);

    let idle: Vec<_> = (0..CONNECTIONS_EACH).map(|_| kept(&gateway, &origin.get("/"), 200)).collect();
    valid_user.check_served(100);
    let denied = request_to("192.0.2.1", "GET", "/", "");
    let forbidden: Vec<_> = (0..CONNECTIONS_EACH).map(|_| kept(&gateway, &denied, 403)).collect();
    valid_user.check_served(100);

    // From here on the attacker has the one flow, and all else is 429.
    let mut tunnel = connect_from(GREEDY, gateway.listeners[0]);
    tunnel.write_all(connect_request(&echo.address.to_string()).as_bytes()).unwrap();
    assert_eq!(read_response(&mut tunnel).status, 200);
    let refused: Vec<_> = (0..CONNECTIONS_EACH).map(|_| kept(&gateway, &origin.get("/"), 429)).collect();
    valid_user.check_served(100);

    // The first byte of a next request: such a connection is not evicted.
    let mut dribbling: Vec<_> = (0..CONNECTIONS_EACH).map(|_| kept(&gateway, &denied, 403)).collect();
    for stream in &mut dribbling {
        // Those that were not kept have ended.
        let _ = stream.write_all(b"G");
    }
    valid_user.check_served(100);

    drop((idle, forbidden, tunnel, refused, dribbling));
    before.await_return(&gateway);
    assert_eq!(gateway.metric("tollgate_task_panics_total"), Some(0.0));
}

#[test]
fn idle_connections_of_a_user_are_bounded() {
    const CONNECTIONS: usize = 40;
    let origin = Origin::responding(ok("hello"));
    let gateway = Gateway::local("[limits]\nconnections_per_user = 1\n");
    let closes = |stream: &mut TcpStream| {
        loop {
            let response = exchange(stream, origin.get("/"));
            let closes = response.header("Connection") == Some("close");
            match response.status {
                200 => return closes,
                // The response of the previous flow was sent, and the flow has not ended yet.
                429 if !closes => {}
                429 => return true,
                _ => panic!("{response:?}"),
            }
        }
    };
    let mut streams: Vec<_> = (0..CONNECTIONS).map(|_| gateway.connect()).collect();
    let ended = streams.iter_mut().map(closes).filter(|closes| *closes).count();
    assert_eq!(ended, CONNECTIONS - 33, "one for each of the user's `connections`, and 32");
    assert_eq!(gateway.metric("tollgate_sessions_unkept_total"), Some(ended as f64));
    gateway.await_metric("tollgate_sessions_resting", 33.0);
    drop(streams);
    gateway.await_metric("tollgate_sessions_resting", 0.0);
    let mut again = gateway.connect();
    assert!(!closes(&mut again) && !closes(&mut again), "their permits are returned");
}
