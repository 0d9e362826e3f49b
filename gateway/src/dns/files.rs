//! The two files that name resolution reads: hosts and resolv.conf.
//!
//! Guarantees: an edit is seen at the next check. A file that is missing or unreadable counts as empty; an
//! invalid line is ignored.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;

use hickory_resolver::Hosts;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};

use super::Answer;

/// The hosts file has no TTLs. This is as long as an edit may go unnoticed by the caches of the reactor
/// threads.
const HOSTS_TTL: Duration = Duration::from_secs(5);
/// Servers that are read from resolv.conf at most (the C library's `MAXNS`).
const SERVERS_MAX: usize = 3;
/// The port of DNS servers.
const DNS_PORT: u16 = 53;

/// A file that is read again when it changes.
pub(super) struct WatchedFile {
    path: PathBuf,
    /// As of the last check; `None` before the first one.
    last_stamp: Option<Stamp>,
}

/// Identifies a version of a file: device, inode, length, modification time; `None` for no file.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

impl WatchedFile {
    /// A file that was not checked yet.
    pub(super) fn new(path: PathBuf) -> WatchedFile {
        WatchedFile { path, last_stamp: None }
    }

    /// The file's text if it has changed since the last check. The first check always returns it.
    pub(super) fn read_if_changed(&mut self) -> Option<String> {
        let stamp = fs::metadata(&self.path)
            .map(|data| (data.dev(), data.ino(), data.len(), data.mtime(), data.mtime_nsec()))
            .ok();
        if self.last_stamp.replace(stamp) == Some(stamp) {
            return None;
        }
        let bytes = fs::read(&self.path).unwrap_or_default();
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The names of a hosts file.
pub(super) fn parse_hosts(text: &str) -> Hosts {
    let mut hosts = Hosts::default();
    hosts.read_hosts_conf(text.as_bytes()).expect("reading UTF-8 text from memory cannot fail");
    hosts
}

/// The addresses of `name` in the hosts file. If it has addresses of one family only, these are all, as with
/// the C library: no server is queried.
pub(super) fn hosts_answer(hosts: &Hosts, name: &Name) -> Option<Answer> {
    let addresses = |family| -> Vec<IpAddr> {
        let lookup = hosts.lookup_static_host(&Query::query(name.clone(), family));
        lookup.iter().flat_map(|lookup| lookup.answers()).filter_map(|record| record.data.ip_addr()).collect()
    };
    Answer::from_families(&addresses(RecordType::AAAA), &addresses(RecordType::A), HOSTS_TTL)
}

/// The servers of a resolv.conf; if it names none, the one on this machine (resolv.conf(5)). Link-local
/// servers with a zone (`fe80::1%eth0`) are ignored: the DNS client cannot select the interface.
pub(super) fn parse_servers(text: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let address: IpAddr =
            words.next().filter(|word| *word == "nameserver").and(words.next())?.parse().ok()?;
        Some(SocketAddr::new(address, DNS_PORT))
    };
    let servers: Vec<_> = text.lines().filter_map(server).take(SERVERS_MAX).collect();
    if servers.is_empty() { vec![([127, 0, 0, 1], DNS_PORT).into()] } else { servers }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_servers(text: &str, expected: &str) {
        let servers: Vec<_> = parse_servers(text).iter().map(ToString::to_string).collect();
        assert_eq!(servers.join(" "), expected, "{text:?}");
    }

    #[test]
    fn resolv_conf_servers_are_parsed() {
        check_servers("", "127.0.0.1:53");
        check_servers("# none\nsearch corp\n", "127.0.0.1:53");
        check_servers(
            "nameserver 10.0.0.2\nnameserver\t2001:db8::2 # office\n",
            "10.0.0.2:53 [2001:db8::2]:53",
        );
        check_servers("search --\nnameserver 10.0.0.2\noptions ndots:5\n", "10.0.0.2:53");
        check_servers("#nameserver 10.0.0.2\n;nameserver 10.0.0.3\n nameserver 10.0.0.4\n", "10.0.0.4:53");
        check_servers(
            "nameserver\nnameserver no\nnameserver fe80::1%eth0\nnameserver 10.0.0.2",
            "10.0.0.2:53",
        );
        check_servers(
            "nameserver 10.0.0.1\nnameserver 10.0.0.2\nnameserver 10.0.0.3\nnameserver 10.0.0.4",
            "10.0.0.1:53 10.0.0.2:53 10.0.0.3:53",
        );
    }

    #[track_caller]
    fn check_hosts(text: &str, name: &str, expected: &str) {
        let name = Name::from_ascii(format!("{name}.")).unwrap();
        let answer = hosts_answer(&parse_hosts(text), &name);
        let addresses: Vec<_> = answer.iter().flat_map(|a| a.addresses()).map(ToString::to_string).collect();
        assert_eq!(addresses.join(" "), expected, "{text:?}");
    }

    #[test]
    fn hosts_file_names_are_found() {
        check_hosts("", "db", "");
        check_hosts("10.0.0.5 db db.corp # the database\n", "db", "10.0.0.5");
        check_hosts("10.0.0.5 db db.corp\n", "db.corp", "10.0.0.5");
        check_hosts("10.0.0.5 DB\n", "db", "10.0.0.5");
        check_hosts("10.0.0.5 db\n10.0.0.6 db\nfd00::5 db\n", "db", "fd00::5 10.0.0.5 10.0.0.6");
        check_hosts("10.0.0.5 db\n", "b", "");
        check_hosts("#10.0.0.5 db\nnonsense db\n10.0.0.6\n10.0.0.7 db", "db", "10.0.0.7");
    }

    #[test]
    fn edit_is_seen_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hosts");
        let mut file = WatchedFile::new(path.clone());
        assert_eq!(file.read_if_changed().as_deref(), Some(""), "a missing file counts as empty");
        assert_eq!(file.read_if_changed(), None);
        fs::write(&path, b"10.0.0.5 \xff db").unwrap();
        assert_eq!(file.read_if_changed().as_deref(), Some("10.0.0.5 \u{fffd} db"));
        assert_eq!(file.read_if_changed(), None);
        // Replaced by a file of the same length, as editors do.
        fs::write(directory.path().join("new"), b"10.0.0.6 \xff db").unwrap();
        fs::rename(directory.path().join("new"), &path).unwrap();
        assert_eq!(file.read_if_changed().as_deref(), Some("10.0.0.6 \u{fffd} db"));
        fs::remove_file(&path).unwrap();
        assert_eq!(file.read_if_changed().as_deref(), Some(""));
    }
}
