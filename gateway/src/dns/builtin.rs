//! The built-in client: the hosts file first, then both address families from the DNS servers.
//!
//! Guarantees: names are absolute. Addresses of one family wait only briefly for the other's; a late family
//! still reaches the cache. Edits of hosts and resolv.conf take effect within [`FILES_CHECK_INTERVAL`].

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hickory_resolver::Hosts;
use hickory_resolver::proto::rr::{Name, RecordType};
use sys::clock::{Nanos, monotonic};
use tokio::time::timeout;

use super::files::{WatchedFile, hosts_answer, parse_hosts, parse_servers};
use super::in_flight::{Backend, Completed};
use super::servers::{LookupError, LookupResult, Servers};
use super::{Answer, NAMES_IN_FLIGHT_MAX, Reply, ResolveError, ResolveSettings};

/// How often the files are checked for edits, at most.
const FILES_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How long an answer is cached that lacks a family because its servers failed.
const PARTIAL_TTL: Duration = Duration::from_secs(5);

/// The files, the servers and their caches.
pub(super) struct Builtin {
    settings: ResolveSettings,
    hosts_file: WatchedFile,
    resolv_conf: WatchedFile,
    /// When the files were last checked.
    files_checked_at: Nanos,
    hosts: Arc<Hosts>,
    servers: Arc<Servers>,
}

impl Builtin {
    /// Reads the files. A missing file counts as empty.
    pub(super) fn new(settings: ResolveSettings) -> Builtin {
        let mut hosts_file = WatchedFile::new(settings.hosts.clone());
        let mut resolv_conf = WatchedFile::new(settings.resolv_conf.clone());
        let from_file = parse_servers(&resolv_conf.read_if_changed().unwrap_or_default());
        let servers = if settings.servers.is_empty() { &from_file } else { &settings.servers };
        Builtin {
            hosts: Arc::new(parse_hosts(&hosts_file.read_if_changed().unwrap_or_default())),
            servers: Arc::new(Servers::new(servers, &settings)),
            hosts_file,
            resolv_conf,
            files_checked_at: monotonic(),
            settings,
        }
    }

    /// Checks the files for edits, if the last check is long enough ago.
    fn refresh_files(&mut self, now: Nanos) {
        if now.since(self.files_checked_at) < FILES_CHECK_INTERVAL {
            return;
        }
        self.files_checked_at = now;
        if let Some(text) = self.hosts_file.read_if_changed() {
            self.hosts = Arc::new(parse_hosts(&text));
        }
        if let Some(text) = self.resolv_conf.read_if_changed()
            && self.settings.servers.is_empty()
        {
            let servers = parse_servers(&text);
            // Unchanged servers keep their caches.
            if !self.servers.have_addresses(&servers) {
                self.servers = Arc::new(Servers::new(&servers, &self.settings));
            }
        }
    }
}

impl Backend for Builtin {
    fn concurrency_max(&self) -> usize {
        NAMES_IN_FLIGHT_MAX
    }

    fn lookup(&mut self, name: Arc<str>) -> impl Future<Output = Completed> + Send + 'static {
        self.refresh_files(monotonic());
        let (hosts, servers) = (Arc::clone(&self.hosts), Arc::clone(&self.servers));
        let family_wait = self.settings.family_wait;
        async move {
            let Some(name) = absolute(&name) else {
                let error = ResolveError::Failed("not a name of the DNS".into());
                return Completed { reply: Reply::failed(error), background: None };
            };
            match hosts_answer(&hosts, &name) {
                Some(answer) => Completed { reply: Reply::found(answer), background: None },
                None => both_families(name, servers, family_wait).await,
            }
        }
    }
}

/// The name with the root label appended.
fn absolute(name: &str) -> Option<Name> {
    let mut name = Name::from_ascii(name).ok()?;
    name.set_fqdn(true);
    Some(name)
}

type Family = Result<LookupResult, LookupError>;

async fn both_families(name: Name, servers: Arc<Servers>, family_wait: Duration) -> Completed {
    let mut v6 = Box::pin(Arc::clone(&servers).query(name.clone(), RecordType::AAAA));
    let mut v4 = Box::pin(servers.query(name, RecordType::A));
    let first = poll_fn(|context| match v6.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(First::V6(result)),
        Poll::Pending => v4.as_mut().poll(context).map(First::V4),
    });
    match first.await {
        First::V6(v6) => {
            let (v4, background) = second_family(&v6, v4, family_wait).await;
            Completed { reply: combine(v6, v4), background }
        }
        First::V4(v4) => {
            let (v6, background) = second_family(&v4, v6, family_wait).await;
            Completed { reply: combine(v6, v4), background }
        }
    }
}

enum First {
    V6(Family),
    V4(Family),
}

/// The result of the other family, or the rest of its lookup. If the first family has nothing, the second is
/// awaited in full. This includes names that do not exist, because some servers deny a name when queried for
/// its IPv6 addresses (RFC 4074 section 4.2).
async fn second_family<F>(
    first: &Family,
    mut second: Pin<Box<F>>,
    wait: Duration,
) -> (Family, Option<super::in_flight::BackgroundWork>)
where
    F: Future<Output = Family> + Send + 'static,
{
    if first.is_err() {
        return (second.await, None);
    }
    match timeout(wait, &mut second).await {
        Ok(result) => (result, None),
        // It continues, so that its answer is in the cache for the next lookup.
        Err(_elapsed) => (Err(LookupError::Timeout), Some(Box::pin(async { drop(second.await) }))),
    }
}

fn combine(v6: Family, v4: Family) -> Reply {
    match (v6, v4) {
        (Ok(v6), Ok(v4)) => answer(&v6, &v4, v6.ttl.min(v4.ttl)),
        (Ok(v6), Err(missing)) => answer(&v6, &LookupResult::NONE, one_family_ttl(&v6, &missing)),
        (Err(missing), Ok(v4)) => answer(&LookupResult::NONE, &v4, one_family_ttl(&v4, &missing)),
        (Err(LookupError::NoRecords(v6)), Err(LookupError::NoRecords(v4))) => Reply::not_found(v6.min(v4)),
        (Err(LookupError::Failed(text)), Err(_)) | (Err(_), Err(LookupError::Failed(text))) => {
            Reply::failed(ResolveError::Failed(text))
        }
        (Err(_), Err(_)) => Reply::failed(ResolveError::Timeout),
    }
}

fn one_family_ttl(found: &LookupResult, missing: &LookupError) -> Duration {
    match missing {
        LookupError::NoRecords(_) => found.ttl,
        LookupError::Timeout | LookupError::Failed(_) => found.ttl.min(PARTIAL_TTL),
    }
}

fn answer(v6: &LookupResult, v4: &LookupResult, ttl: Duration) -> Reply {
    Reply::found(
        Answer::from_families(&v6.addresses, &v4.addresses, ttl).expect("a found family has an address"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// The addresses that the hosts file gives `name`, after a check of the files at `now`.
    fn looked_up(builtin: &mut Builtin, name: &str, now: Nanos) -> String {
        builtin.refresh_files(now);
        let answer = hosts_answer(&builtin.hosts, &absolute(name).unwrap());
        answer.iter().flat_map(|a| a.addresses()).map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn file_edits_are_seen_after_the_interval() {
        let directory = tempfile::tempdir().unwrap();
        let [hosts, resolv_conf] = ["hosts", "resolv.conf"].map(|name| directory.path().join(name));
        fs::write(&hosts, "10.0.0.5 db\n").unwrap();
        fs::write(&resolv_conf, "nameserver 10.0.0.2\n").unwrap();
        let settings =
            ResolveSettings { hosts: hosts.clone(), resolv_conf: resolv_conf.clone(), ..Default::default() };
        let mut builtin = Builtin::new(settings);
        let start = builtin.files_checked_at;
        assert_eq!(looked_up(&mut builtin, "db", start), "10.0.0.5");
        let servers = Arc::clone(&builtin.servers);

        fs::write(&hosts, "10.0.0.55 db\n").unwrap();
        assert_eq!(looked_up(&mut builtin, "db", start), "10.0.0.5", "not checked again within the interval");
        assert_eq!(looked_up(&mut builtin, "db", start + FILES_CHECK_INTERVAL), "10.0.0.55");
        assert!(Arc::ptr_eq(&servers, &builtin.servers), "unchanged servers keep their caches");

        fs::write(&resolv_conf, "# by hand\nnameserver 10.0.0.2\n").unwrap();
        builtin.refresh_files(start + FILES_CHECK_INTERVAL * 2);
        assert!(Arc::ptr_eq(&servers, &builtin.servers), "unchanged servers keep their caches");
        fs::write(&resolv_conf, "nameserver 10.0.0.33\n").unwrap();
        builtin.refresh_files(start + FILES_CHECK_INTERVAL * 3);
        assert!(builtin.servers.have_addresses(&["10.0.0.33:53".parse().unwrap()]));
    }

    #[test]
    fn configured_servers_override_resolv_conf() {
        let servers = vec!["192.0.2.53:5353".parse().unwrap()];
        let settings = ResolveSettings { servers: servers.clone(), ..Default::default() };
        assert!(Builtin::new(settings).servers.have_addresses(&servers));
    }
}
