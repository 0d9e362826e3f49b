//! Names: a user requests names whose lookups never end, so that other users' names are not looked up.
//!
//! Before, lookups preceded the user's own limit and were bounded globally: 256 names in flight, each for up
//! to `[dns] timeout`, and 503 for all other users. An attacker spent 52 requests a second, at the default of
//! 5 seconds, for names of a zone whose servers are silent. Now a user has at most as many names in flight as
//! are free, and then gets 429.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, TcpStream};

use super::footprint::Footprint;
use super::valid_user::ValidUser;
use crate::harness::{Gateway, eventually};
use crate::name_server::NameServer;
use crate::origin::{Origin, ok, read_head};
use crate::peers::{Destination, connect_from, connect_request};

const GREEDY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Names that the attacker requests.
const SLOW_NAMES: usize = 300;

/// The global bound of lookups at a time (`NAMES_IN_FLIGHT_MAX`).
const NAMES_MAX: usize = 256;

/// A gateway whose name server resolves `*.quick.test` and is silent about other names.
fn slow() -> (Gateway, NameServer) {
    let server = NameServer::start(|name| name.ends_with(".quick.test").then(|| vec![LOCALHOST]));
    let user = |name: &str, address: &str| {
        format!("[[user]]\nname = \"{name}\"\nfrom = [\"{address}/32\"]\nallow = [\"@names\"]\n")
    };
    let gateway = Gateway::start(&format!(
        "[dns]\nservers = [\"{}\"]\ntimeout = \"1m\"\n{}{}\
         [destinations.names]\nto = [\"*.quick.test\", \"*.slow.test\"]\nclass = \"internal\"\n",
        server.address,
        user("me", "127.0.0.1"),
        user("greedy", "127.0.0.2"),
    ));
    (gateway, server)
}

fn request_name(gateway: &Gateway, name: &str) -> TcpStream {
    let mut stream = connect_from(GREEDY, gateway.listeners[0]);
    stream.write_all(connect_request(&format!("{name}:80")).as_bytes()).unwrap();
    stream
}

#[test]
fn slow_lookups_of_one_user_leave_capacity_to_others() {
    let (origin, echo) = (Origin::responding(ok("hello")), Destination::echo());
    let (gateway, server) = slow();
    let mut valid_user =
        ValidUser::new(&gateway, &origin, &echo).with_hosts(|number| format!("n{number}.quick.test"));
    valid_user.check_served(6);
    gateway.await_metric("tollgate_ledger_records_total", 6.0);
    let before = Footprint::measure(&gateway);

    let mut pending: Vec<_> =
        (0..SLOW_NAMES).map(|number| request_name(&gateway, &format!("n{number}.slow.test"))).collect();
    let are_refused = |count: usize| gateway.metric("tollgate_denied_total") >= Some(count as f64);
    eventually("the attack holds all lookups", || are_refused(SLOW_NAMES - NAMES_MAX));
    valid_user.check_served(100);
    eventually("the attacker has half", || are_refused(SLOW_NAMES - NAMES_MAX / 2));
    // Joining the lookups of others does not evade the limit.
    pending.extend(
        (0..SLOW_NAMES).map(|number| request_name(&gateway, &format!("n{}.slow.test", number % NAMES_MAX))),
    );
    valid_user.check_served(100);
    let line = gateway.await_log_line("a refusal", |line| line["reason"] == "lookup_share");
    assert_eq!(line["user"], "greedy");
    let head = read_head(&mut request_name(&gateway, "one-more.slow.test")).unwrap();
    assert!(head.starts_with("HTTP/1.1 429 ") && head.contains("\r\nRetry-After: 1\r\n"), "{head}");
    assert!(head.contains("error=connection_limit_reached"), "{head}");

    server.speak();
    drop(pending);
    before.await_return(&gateway);
    assert_eq!(gateway.metric("tollgate_task_panics_total"), Some(0.0));
}
