//! Compares `tollgate explain` with a gateway of the same configuration and name server, for random
//! questions.
//!
//! Guarantees: outcome, reason, rule and dialled address agree.
//!
//! Not handled here: questions for which `explain` would dial an address beyond this machine, since no packet
//! may leave it; and what only a running gateway knows: kernel-chosen ports, and limits.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, TcpListener};

use serde_json::Value;

use crate::harness::{Gateway, LOG};
use crate::name_server::NameServer;
use crate::peers::{Destination, connect_from, connect_request, echo, pattern, read_response};

const USERS: u8 = 12;
const ADDRESSES_PER_USER: usize = 6;

const NAMES: [&str; 7] =
    ["test", "a.test", "b.a.test", "c.b.a.test", "lab.test", "x.lab.test", "nowhere.a.test"];

/// Each class of address, with those of this machine more often.
const ADDRESSES: [&str; 18] = [
    "127.0.0.1",
    "127.0.0.1",
    "127.0.0.2",
    "127.0.0.2",
    "127.1.0.1",
    "127.1.0.1",
    "::1",
    "::1",
    "::1",
    "10.20.0.5",
    "100.64.0.1",
    "169.254.169.254",
    "192.0.2.1",
    "198.18.0.7",
    "93.184.216.34",
    "2606:2800:220:1::1",
    "fd12::1",
    "0.0.0.0",
];

const RULES: [&str; 18] = [
    "a.test",
    "*.a.test",
    "*.test",
    "b.a.test:PORT",
    "*.b.a.test:1-1000",
    "*.lab.test:PORT",
    "127.0.0.0/8",
    "127.0.0.1:PORT",
    "127.0.0.2",
    "[::1]",
    "::/0",
    "0.0.0.0/0:PORT",
    "10.0.0.0/8",
    "198.18.0.0/15",
    "@inside",
    "@inside",
    "@lab",
    "@lab",
];

const SETS: &str = r#"
[destinations.inside]
to = ["*.a.test", "127.0.0.0/16"]
class = "internal"
[destinations.lab]
to = ["*.lab.test", "lab.test", "b.a.test"]
class = "external"
addresses = ["127.0.0.2", "127.1.0.0/16", "::1", "198.18.0.0/15"]
"#;

/// Random numbers that are equal in all runs.
struct Rng(Vec<u8>);

impl Rng {
    fn next_below(&mut self, below: usize) -> usize {
        let [high, low] = [self.0.pop(), self.0.pop()].map(|byte| usize::from(byte.unwrap()));
        (high * 256 + low) % below
    }

    fn choose<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.next_below(list.len())]
    }

    fn choose_some<'a>(&mut self, list: &[&'a str], below: usize) -> Vec<&'a str> {
        (0..self.next_below(below)).map(|_| self.choose(list)).collect()
    }
}

fn source(user: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, user + 1)
}

/// The users with their rules, as configuration.
fn users(rng: &mut Rng, port: u16) -> String {
    let mut list = |below| {
        let rules =
            rng.choose_some(&RULES, below).into_iter().map(|rule| rule.replace("PORT", &port.to_string()));
        format!("{:?}", rules.collect::<Vec<_>>())
    };
    let user = |number: u8| {
        let (from, resolves) = (source(number), number.is_multiple_of(3));
        let (allow, deny) = (list(14), list(2));
        format!(
            "[[user]]\nname = \"user{number}\"\nfrom = [\"{from}\"]\nresolve_for_networks = {resolves}\n\
             allow = {allow}\ndeny = {deny}\n"
        )
    };
    (0..USERS).map(user).collect()
}

/// Each name, and some addresses, mostly with the port of the destination.
fn questions(rng: &mut Rng, port: u16) -> Vec<String> {
    let addresses: Vec<&str> = (0..ADDRESSES_PER_USER).map(|_| rng.choose(&ADDRESSES)).collect();
    let mut question = |host: &&str| {
        let port = if rng.next_below(8) > 0 { port } else { 443 };
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    };
    NAMES.iter().chain(&addresses).map(&mut question).collect()
}

/// The gateway's logged decision about `target` for a user; `host` is the host as the log spells it.
fn decided(gateway: &Gateway, user: u8, target: &str, host: &Value) -> Value {
    let mut stream = connect_from(source(user), gateway.listeners[0]);
    let client = stream.local_addr().unwrap().to_string();
    stream.write_all(connect_request(target).as_bytes()).unwrap();
    read_response(&mut stream);
    // The kernel may reuse a port, so the host identifies the decision too.
    let is_it = |line: &Value| line["client_addr"] == client.as_str() && line["requested_host"] == *host;
    gateway.await_log_line("the decision", |line| line["event"] == "decision" && is_it(line))
}

#[test]
fn explain_agrees_with_the_gateway() {
    // The IPv6 wildcard accepts connections of both families.
    let listener = TcpListener::bind("[::]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let _destination = Destination::on(listener, echo);
    let mut rng = Rng(pattern(14, 64 * 1024));
    let mut addresses: BTreeMap<&str, Vec<IpAddr>> = BTreeMap::new();
    for name in &NAMES[..NAMES.len() - 1] {
        let found = [&["127.0.0.1"], &*rng.choose_some(&ADDRESSES, 4)].concat();
        let skipped = rng.next_below(2);
        addresses.insert(name, found.iter().skip(skipped).map(|text| text.parse().unwrap()).collect());
    }
    let known = addresses.clone();
    let server = NameServer::start(move |name| known.get(name).cloned().unwrap_or_default());
    let log = format!("{LOG}decisions = \"all\"\n\n");
    let configuration = format!("{log}{}{SETS}{}", users(&mut rng, port), server.configuration());
    let gateway = Gateway::start(&configuration);
    let (mut allowed, mut denied) = (0, 0);
    for user in 0..USERS {
        for target in questions(&mut rng, port) {
            let explain = gateway.explain(&format!("explain --json --user user{user} --to {target}"));
            let dials = explain["dials"].as_array().unwrap();
            let is_local = |dial: &Value| {
                dial.as_str().unwrap().starts_with("127.") || dial.as_str().unwrap().starts_with("[::1]")
            };
            if !dials.iter().all(is_local) {
                continue;
            }
            let decision = &explain["decision"];
            let logged = decided(&gateway, user, &target, &explain["host"]);
            let case =
                format!("user{user} to {target}\n{explain:#}\n{logged:#}\n{configuration}{addresses:?}");
            if logged["reason"] == "connect_refused" {
                // No socket listens at 443; a failed dial is enough.
                assert_eq!(decision["allowed"], true, "{case}");
                continue;
            }
            assert_eq!(decision["code"], logged["reason"], "{case}");
            assert_eq!(
                decision["rule"].as_str().unwrap_or_default(),
                logged["rule"].as_str().unwrap_or_default(),
                "{case}"
            );
            let first = dials.first().and_then(|dial| dial.as_str()?.parse().ok());
            let dialled = first.map(|address: std::net::SocketAddr| address.ip().to_string());
            assert_eq!(dialled.as_deref(), logged["resolved_ip"].as_str(), "{case}");
            if decision["allowed"] == true { allowed += 1 } else { denied += 1 }
        }
    }
    assert!(allowed >= 10 && denied >= 40, "{allowed} allowed and {denied} denied are too few");
}
