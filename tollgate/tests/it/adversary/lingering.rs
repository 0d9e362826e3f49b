//! Lingering refused connections: the refusals of one user may not use up descriptors that others need.
//!
//! The attack: after the response to a refused request the connection is read for 2 s more, so that a client
//! which still sends can read the response. The user's own limit did not count it: one user with five
//! connections held 11,000 descriptors. **Cost**: 150 refused requests a second for each 300 descriptors.

use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};

use super::footprint::Footprint;
use crate::harness::{Gateway, LOCAL_USER};
use crate::origin::{Origin, ask_once, ok};
use crate::peers::{connect_from, connect_request, read_response};

const REFUSED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);

/// More than may linger for one user on all threads of a small machine (64 on each).
const CONNECTIONS: usize = 1_200;

#[test]
fn refused_connections_linger_within_a_user_share() {
    let origin = Origin::responding(ok("hello"));
    let user =
        "[[user]]\nname = \"bad\"\nfrom = [\"127.0.0.4/32\"]\nallow = [\"192.0.2.1\"]\nconnections = 5\n";
    let gateway = Gateway::start(&format!("{LOCAL_USER}{user}[threads]\nreactors = 2\n"));
    assert_eq!(ask_once(&gateway, origin.get("/")).status, 200);
    gateway.await_metric("tollgate_ledger_records_total", 1.0);
    let before = Footprint::measure(&gateway);
    let mut most = 0;
    let mut refused: Vec<TcpStream> = Vec::new();
    for number in 0..CONNECTIONS {
        let mut stream = connect_from(REFUSED, gateway.listeners[0]);
        stream.write_all(connect_request("127.0.0.1:9").as_bytes()).unwrap();
        assert_eq!(read_response(&mut stream).status, 403);
        refused.push(stream);
        if number % 100 == 0 {
            most = most.max(gateway.descriptors());
            assert_eq!(ask_once(&gateway, origin.get("/")).status, 200);
        }
    }
    // 64 on each of two threads, and some that are about to linger.
    assert!(most < before.descriptors + 200, "{most} descriptors, {} before", before.descriptors);
    drop(refused);
    before.await_return(&gateway);
}
