//! Resolves names to addresses off the reactors: one DNS thread for all, and a cache per reactor thread.
//!
//! Guarantees: A lookup never blocks the reactor. Its result arrives by the deadline, or is
//! [`ResolveError::Timeout`]. A name in flight is queried once, however many lookups wait for it. A slow name
//! or server delays no other. Everything is bounded, and no user takes more than a share of a bound
//! (`shares`). Beyond the share the result is [`ResolveError::OverShare`], and beyond the bound
//! [`ResolveError::Overloaded`]. Names are absolute (no search domains in builtin mode). `localhost` is
//! loopback and never leaves the machine (RFC 6761 section 6.3).
//!
//! Not handled here: which addresses may be dialled (`policy`), and their order (`dial`).
//!
//! ```text
//!   reactor thread                     DNS thread (tokio, current thread)
//!   cache.rs: cached? -> answer        in_flight.rs: in flight? -> wait for that lookup
//!       | no                               | no
//!       +--- bounded channel -------->     +- builtin.rs: files.rs, cache, servers of servers.rs
//!       <--- engine::oneshot ---------     +- system.rs:  getaddrinfo on a pool of threads
//! ```

mod builtin;
mod cache;
mod files;
mod in_flight;
mod servers;
mod system;
#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use engine::oneshot;
use engine::pool::Pool;
use tokio::sync::mpsc;

pub use cache::ResolveCache;

use crate::account::AccountId;
use crate::config::settings::{Dns, DnsMode};
use crate::limits::ADDRESSES_MAX;
use crate::shares::ShareExhausted;

/// Names that are looked up at the same time.
pub const NAMES_IN_FLIGHT_MAX: usize = 256;
/// Sockets that a name may hold while servers are silent: some for each of two families.
pub const SOCKETS_PER_NAME_MAX: usize = 8;
/// Lookups that wait for a name in flight, for all names together.
pub const WAITERS_MAX: usize = 16_384;
/// Requests in the channel to the DNS thread, which receives them without waiting for anything else.
const REQUESTS_MAX: usize = 4_096;
/// How long a failure is cached, so that a client's retries do not become queries (RFC 9520 section 3.2
/// requires at least one second).
const FAILURE_TTL: Duration = Duration::from_secs(1);
/// How long `localhost` is cached; it never changes.
const LOCALHOST_TTL: Duration = Duration::from_secs(3600);

/// How far beyond its deadline a reply of the DNS thread may come.
pub(crate) const DNS_GRACE: Duration = Duration::from_secs(1);

/// What resolves names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ResolveMode {
    /// The built-in client: the hosts file, then the DNS servers.
    Builtin,
    /// The system's `getaddrinfo`, with `nsswitch.conf` and search domains.
    System,
}

/// The settings of a resolver.
#[derive(Clone, Debug)]
pub struct ResolveSettings {
    /// What resolves names.
    pub mode: ResolveMode,
    /// DNS servers in order of preference; if empty, those of `resolv_conf`. Builtin mode only.
    pub servers: Vec<SocketAddr>,
    /// A lookup ends with [`ResolveError::Timeout`] after this long.
    pub deadline: Duration,
    /// How long a lookup with addresses of one family waits for the other family. Builtin mode only.
    pub family_wait: Duration,
    /// After a server has been silent this long, the next one is queried too. Builtin mode only.
    pub server_wait: Duration,
    /// An answer is valid for at least this long, whatever its records say.
    pub ttl_min: Duration,
    /// An answer is valid for at most this long.
    pub ttl_max: Duration,
    /// How long it is cached at most that a name does not exist.
    pub negative_ttl_max: Duration,
    /// Names in the DNS thread's cache, existing or not. Builtin mode only.
    pub cache_entries_max: usize,
    /// The hosts file, usually `/etc/hosts`. Builtin mode only.
    pub hosts: PathBuf,
    /// The file that names the servers, usually `/etc/resolv.conf`. Builtin mode only.
    pub resolv_conf: PathBuf,
}

impl Default for ResolveSettings {
    fn default() -> Self {
        Self {
            mode: ResolveMode::Builtin,
            servers: Vec::new(),
            deadline: Duration::from_secs(5),
            // RFC 8305 section 3, "Resolution Delay".
            family_wait: Duration::from_millis(50),
            // Longer than most recursive lookups take, so a healthy server is rarely duplicated.
            server_wait: Duration::from_millis(400),
            ttl_min: Duration::from_secs(1),
            ttl_max: Duration::from_secs(3600),
            negative_ttl_max: Duration::from_secs(60),
            cache_entries_max: 16_384,
            hosts: "/etc/hosts".into(),
            resolv_conf: "/etc/resolv.conf".into(),
        }
    }
}

impl From<&Dns> for ResolveSettings {
    fn from(dns: &Dns) -> ResolveSettings {
        let mode = match dns.mode {
            DnsMode::Builtin => ResolveMode::Builtin,
            DnsMode::System => ResolveMode::System,
        };
        ResolveSettings {
            mode,
            servers: dns.server_addresses(),
            deadline: dns.timeout,
            ttl_min: dns.ttl_min,
            ttl_max: dns.ttl_max,
            negative_ttl_max: dns.ttl_negative_max,
            cache_entries_max: dns.cache_entries as usize,
            ..ResolveSettings::default()
        }
    }
}

/// The addresses of a name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Answer {
    addresses: [IpAddr; ADDRESSES_MAX],
    count: u8,
    /// How much longer they are valid.
    pub ttl: Duration,
}

impl Answer {
    /// At least one address, none twice: IPv6 first, each family in its server's order. An IPv4-mapped
    /// address appears as its IPv4 address.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses[..usize::from(self.count)]
    }

    /// The answer that a resolver makes of these addresses, with a TTL of zero.
    pub(crate) fn from_addresses(addresses: &[IpAddr]) -> Option<Answer> {
        let (v4, v6): (Vec<_>, Vec<_>) = addresses.iter().partition(|address| address.is_ipv4());
        Answer::from_families(&v6, &v4, Duration::ZERO)
    }

    /// If there are more than [`ADDRESSES_MAX`], each family keeps its first ones, and at least half of the
    /// maximum if it has that many. `None` if there is no address.
    fn from_families(v6: &[IpAddr], v4: &[IpAddr], ttl: Duration) -> Option<Answer> {
        let v6_max = ADDRESSES_MAX - v4.len().min(ADDRESSES_MAX / 2);
        let mut answer =
            Answer { addresses: [IpAddr::V4(Ipv4Addr::UNSPECIFIED); ADDRESSES_MAX], count: 0, ttl };
        for address in v6.iter().take(v6_max).chain(v4).map(IpAddr::to_canonical) {
            let count = answer.addresses().len();
            if count < ADDRESSES_MAX && !answer.addresses().contains(&address) {
                answer.addresses[count] = address;
                answer.count += 1;
            }
        }
        (answer.count > 0).then_some(answer)
    }
}

/// Why a lookup has no answer.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ResolveError {
    /// The name does not exist or has no address.
    #[error("the name does not exist or has no address")]
    NotFound,
    /// No server answered in time.
    #[error("no DNS answer in time")]
    Timeout,
    /// The servers returned an error, or could not be queried.
    #[error("DNS failed: {0}")]
    Failed(Box<str>),
    /// Too many names are being looked up.
    #[error("too many DNS lookups at a time")]
    Overloaded,
    /// Too many of the names that are being looked up are for the same user.
    #[error("too many DNS lookups of one user at a time")]
    OverShare,
}

/// What the DNS thread returns.
#[derive(Clone, Debug)]
struct Reply {
    result: Result<Answer, ResolveError>,
    /// How long the result may be repeated without a new lookup; may be zero.
    cache_for: Duration,
}

impl Reply {
    fn found(answer: Answer) -> Reply {
        Reply { cache_for: answer.ttl, result: Ok(answer) }
    }

    fn not_found(cache_for: Duration) -> Reply {
        Reply { result: Err(ResolveError::NotFound), cache_for }
    }

    fn failed(error: ResolveError) -> Reply {
        Reply { result: Err(error), cache_for: FAILURE_TTL }
    }

    fn overloaded() -> Reply {
        Reply { result: Err(ResolveError::Overloaded), cache_for: Duration::ZERO }
    }

    fn exhausted(exhausted: ShareExhausted) -> Reply {
        match exhausted {
            ShareExhausted::UserShare => {
                Reply { result: Err(ResolveError::OverShare), cache_for: Duration::ZERO }
            }
            ShareExhausted::Pool => Reply::overloaded(),
        }
    }
}

/// A request to the DNS thread.
struct Request {
    account: AccountId,
    name: Box<str>,
    reply: oneshot::Sender<Reply>,
}

/// A handle for lookups; clones share the DNS thread.
#[derive(Clone)]
pub struct Resolver {
    requests: mpsc::Sender<Request>,
    deadline: Duration,
}

impl Resolver {
    /// Starts the DNS thread; in system mode lookups run on `pool`. The thread ends when the returned
    /// [`DnsThread`] is dropped. Lookups in flight and later ones then fail.
    ///
    /// # Errors
    /// No thread or no descriptor is available. Unreachable servers and missing files are not errors here.
    pub fn start(settings: ResolveSettings, pool: &Pool) -> io::Result<(Resolver, DnsThread)> {
        let deadline = settings.deadline;
        match settings.mode {
            ResolveMode::Builtin => in_flight::start(builtin::Builtin::new(settings), deadline),
            ResolveMode::System => in_flight::start(system::System::new(&settings, pool.clone()), deadline),
        }
    }

    /// How long a lookup takes at most. The DNS thread also reads files, and a hung file system delays it
    /// beyond that: callers that must not hang set a later deadline of their own.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The addresses of `name`, on no user's share. The name is in lower-case A-labels without a trailing
    /// dot, as in `proto::target::Name`.
    ///
    /// # Errors
    /// See [`ResolveError`].
    pub async fn lookup(&self, name: &str) -> Result<Answer, ResolveError> {
        self.request(AccountId::PROCESS, name).await.result
    }

    async fn request(&self, account: AccountId, name: &str) -> Reply {
        if is_localhost(name) {
            return Reply::found(localhost());
        }
        let (reply, receiver) = oneshot::channel();
        // Lock-free, and it never waits: only this step runs on a reactor thread.
        match self.requests.try_send(Request { account, name: name.into(), reply }) {
            Ok(()) => receiver.await.unwrap_or_else(|oneshot::Canceled| resolver_ended()),
            Err(mpsc::error::TrySendError::Full(_)) => Reply::overloaded(),
            Err(mpsc::error::TrySendError::Closed(_)) => resolver_ended(),
        }
    }
}

/// Owns the DNS thread: dropping it ends the thread and joins it.
pub struct DnsThread {
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Drop for DnsThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened; lookups have failed since.
            let _ = thread.join();
        }
    }
}

fn resolver_ended() -> Reply {
    Reply::failed(ResolveError::Failed("the resolver has ended".into()))
}

fn is_localhost(name: &str) -> bool {
    name.strip_suffix("localhost").is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

fn localhost() -> Answer {
    Answer::from_families(&[Ipv6Addr::LOCALHOST.into()], &[Ipv4Addr::LOCALHOST.into()], LOCALHOST_TTL)
        .expect("two addresses are given")
}
