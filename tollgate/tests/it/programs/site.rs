//! The plain web server of `cargo xtask services`, reached through a gateway between two who count: a tap
//! before it, and the server's log behind it.
//! Promises: `finish` holds every byte of the bill against both.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::gateway_to;
use super::services::service;
use super::tap::Tap;
use crate::harness::{Gateway, eventually};

/// See the file's header.
pub(crate) struct Site {
    pub(crate) gateway: Gateway,
    pub(crate) tap: Tap,
    user: &'static str,
}

/// A request as the server's log has it.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The number of the connection over which it came.
    pub(crate) connection: u64,
    pub(crate) status: u16,
    /// Bytes of head and body, as they were framed.
    received: u64,
    /// The same of its answers, interim ones included.
    sent: u64,
    pub(crate) method: String,
    pub(crate) path: String,
}

impl Site {
    /// Through a gateway that lets `ci`, by the password `right-one`, go there.
    pub(crate) fn start() -> Site {
        Site::through(gateway_to(format!("localhost:{}", service("PLAIN_PORT"))), "ci")
    }

    /// Through the last listener of a gateway on which `user` is the one who goes there.
    pub(crate) fn through(gateway: Gateway, user: &'static str) -> Site {
        let tap = Tap::before(*gateway.listeners.last().unwrap());
        Site { gateway, tap, user }
    }

    /// What programs are told to take for a proxy, credentials included.
    pub(crate) fn proxy(&self) -> String {
        format!("http://ci:right-one@{}", self.tap.address())
    }

    /// The URL of what has this path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://localhost:{}/{path}", service("PLAIN_PORT"))
    }

    /// A name for a file that a test puts there.
    pub(crate) fn new_file(&self, name: &str) -> String {
        format!("files/{name}-{}", self.gateway.pid())
    }

    /// What the server has at this path.
    pub(crate) fn file(&self, path: &str) -> Vec<u8> {
        fs::read(Path::new(&service("PLAIN_SITE")).join(path)).unwrap()
    }

    /// The names of what the server has in this folder, in order.
    pub(crate) fn names(&self, path: &str) -> BTreeSet<String> {
        names(&Path::new(&service("PLAIN_SITE")).join(path))
    }

    /// Ends the gateway and compares: each request that the server saw is a flow, and billed is what the
    /// server counted on the way up, and on the way down what arrived at the tap, refusals apart.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Vec<Entry> {
        self.gateway.stop();
        let closed = self.gateway.events("close");
        let flows = closed.len() as u64;
        let sum = |key: &str| closed.iter().map(|line| line[key].as_u64().unwrap()).sum::<u64>();
        let entries = self.entries(&closed[0]["id"], closed.len());
        let seen = |count: fn(&Entry) -> u64| entries.iter().map(count).sum::<u64>();
        let up = sum("upstream_tx");
        assert_eq!(seen(|entry| entry.received), up, "up, as the server counted, and as it is logged");
        assert_eq!(seen(|entry| entry.sent), sum("upstream_rx"), "down, as the server counted");
        let (_, billed_up, down) = self.gateway.usage();
        assert_eq!(self.gateway.usage_of(self.user), (flows, up, down), "nobody else is billed");
        assert_eq!((billed_up, down), (up, sum("client_tx")));
        let (from_client, to_client) = self.tap.totals();
        if self.gateway.events("decision").iter().all(|line| line["decision"] == "allow") {
            assert_eq!((from_client, to_client), (sum("client_rx"), down), "as the tap counted");
        } else {
            assert!(from_client > sum("client_rx") && to_client > down, "{from_client} {to_client} {down}");
        }
        entries
    }

    /// What the server's log has of this gateway, whose flows' ids are like `id`.
    fn entries(&self, id: &serde_json::Value, count: usize) -> Vec<Entry> {
        // It names itself in `Via` by the part of its ids that is its own.
        let via = format!("tollgate-{}", &id.as_str().unwrap()[12..20]);
        let mut entries = Vec::new();
        eventually("the server's log has all requests", || {
            let log = fs::read_to_string(service("PLAIN_LOG")).unwrap();
            entries = log.lines().filter(|line| line.contains(&via)).map(entry).collect();
            entries.len() >= count
        });
        assert_eq!(entries.len(), count, "flows are requests");
        entries
    }
}

/// The connections over which requests came.
pub(crate) fn connections(entries: &[Entry]) -> usize {
    entries.iter().map(|entry| entry.connection).collect::<BTreeSet<_>>().len()
}

/// The names in a folder, in order.
pub(crate) fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    entries.map(|name| name.into_string().unwrap()).collect()
}

/// A program's script, or another file that comes with the tests.
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
