//! The plain web server of `cargo xtask services`, reached through a gateway between two counters: a tap
//! before it, and the server's log behind it.
//!
//! Guarantees: `finish` compares every byte of the bill with both.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::gateway_to;
use super::services::service;
use super::tap::Tap;
use crate::harness::{Gateway, eventually};

/// A gateway between a tap and the server.
pub(crate) struct Site {
    pub(crate) gateway: Gateway,
    pub(crate) tap: Tap,
    user: &'static str,
}

/// A request in the server's log.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The number of its connection.
    pub(crate) connection: u64,
    pub(crate) status: u16,
    /// Bytes of head and body, with framing.
    received: u64,
    /// Bytes of its responses with framing, interim ones included.
    sent: u64,
    pub(crate) method: String,
    pub(crate) path: String,
}

impl Site {
    /// Through a gateway that allows it for `ci`, with the password `right-one`.
    pub(crate) fn start() -> Site {
        Site::through(gateway_to(format!("localhost:{}", service("PLAIN_PORT"))), "ci")
    }

    /// Through the last listener of a gateway where `user` may reach it.
    pub(crate) fn through(gateway: Gateway, user: &'static str) -> Site {
        let tap = Tap::before(*gateway.listeners.last().unwrap());
        Site { gateway, tap, user }
    }

    /// The proxy's URL for programs, credentials included.
    pub(crate) fn proxy(&self) -> String {
        format!("http://ci:right-one@{}", self.tap.address())
    }

    /// The URL of this path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://localhost:{}/{path}", service("PLAIN_PORT"))
    }

    /// The path of a new file for a test.
    pub(crate) fn new_file(&self, name: &str) -> String {
        format!("files/{name}-{}", self.gateway.pid())
    }

    /// The server's file at this path.
    pub(crate) fn file(&self, path: &str) -> Vec<u8> {
        fs::read(Path::new(&service("PLAIN_SITE")).join(path)).unwrap()
    }

    /// The names in this folder of the server, in order.
    pub(crate) fn names(&self, path: &str) -> BTreeSet<String> {
        names(&Path::new(&service("PLAIN_SITE")).join(path))
    }

    /// Stops the gateway and compares: each request in the server's log has a line, and the bill is what the
    /// server counted up, and down what the tap counted, except for refusals.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Vec<Entry> {
        self.gateway.stop();
        let closed = self.gateway.events("close");
        let flow = |line: &Value| line["flow_id"].as_str().or(line["id"].as_str()).unwrap().to_owned();
        let flows = closed.iter().map(flow).collect::<BTreeSet<_>>().len() as u64;
        let sum = |key: &str| closed.iter().map(|line| line[key].as_u64().unwrap()).sum::<u64>();
        let entries = self.entries(&closed[0]["id"], closed.len());
        let seen = |count: fn(&Entry) -> u64| entries.iter().map(count).sum::<u64>();
        let up = sum("upstream_tx");
        assert_eq!(seen(|entry| entry.received), up, "up, by the server's log and the gateway's");
        assert_eq!(seen(|entry| entry.sent), sum("upstream_rx"), "down, by the server's log");
        let (_, billed_up, down) = self.gateway.usage();
        assert_eq!(self.gateway.usage_of(self.user), (flows, up, down), "no other user is billed");
        assert_eq!((billed_up, down), (up, sum("client_tx")));
        let (from_client, to_client) = self.tap.totals();
        if self.gateway.events("decision").iter().all(|line| line["decision"] == "allow") {
            assert_eq!((from_client, to_client), (sum("client_rx"), down), "by the tap");
        } else {
            assert!(from_client > sum("client_rx") && to_client > down, "{from_client} {to_client} {down}");
        }
        entries
    }

    /// The server's log entries of this gateway, whose flows' ids are like `id`.
    fn entries(&self, id: &serde_json::Value, count: usize) -> Vec<Entry> {
        // The part of its ids that identifies a gateway is its name in `Via`.
        let via = format!("tollgate-{}", &id.as_str().unwrap()[12..20]);
        let mut entries = Vec::new();
        eventually("the server's log has all requests", || {
            let log = fs::read_to_string(service("PLAIN_LOG")).unwrap();
            entries = log.lines().filter(|line| line.contains(&via)).map(entry).collect();
            entries.len() >= count
        });
        assert_eq!(entries.len(), count, "each request has a line");
        entries
    }
}

/// The number of connections by which requests arrived.
pub(crate) fn connections(entries: &[Entry]) -> usize {
    entries.iter().map(|entry| entry.connection).collect::<BTreeSet<_>>().len()
}

/// The names in a folder, in order.
pub(crate) fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.into_string().unwrap()).collect()
}

/// The path of a program's script, or of another file of the tests.
pub(crate) fn testdata(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/programs/testdata");
    folder.join(name).display().to_string()
}

/// `1.1 tollgate-... <connection> <status> <received> <sent> <method> <path>`
fn entry(line: &str) -> Entry {
    let fields: Vec<&str> = line.split(' ').skip(2).collect();
    let number = |index: usize| fields[index].parse().unwrap();
    Entry {
        connection: number(0),
        status: fields[1].parse().unwrap(),
        received: number(2),
        sent: number(3),
        method: fields[4].to_owned(),
        path: fields[5].to_owned(),
    }
}
