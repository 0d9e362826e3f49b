//! The DNS servers: which one is queried, and how its answer is interpreted.
//!
//! Guarantees: the preferred server is queried first. An error moves on to the next server at once; silence
//! does after a moment, while the first may still answer. The server that answers is preferred from then on.
//! Truncated answers are fetched again by TCP, and answers are cached within the bounds of the settings (both
//! by hickory, one client per server).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RecordType};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{FAILURE_TTL, ResolveSettings};

/// The addresses of one family.
#[derive(Debug)]
pub(super) struct LookupResult {
    pub(super) addresses: Vec<IpAddr>,
    pub(super) ttl: Duration,
}

impl LookupResult {
    /// No address; stands in for a missing family.
    pub(super) const NONE: LookupResult = LookupResult { addresses: Vec::new(), ttl: Duration::ZERO };
}

/// Why a family has no addresses.
#[derive(Debug)]
pub(super) enum LookupError {
    /// The records or the name do not exist; this is valid for so long.
    NoRecords(Duration),
    Timeout,
    Failed(Box<str>),
}

/// One client with its cache for each server, and the preferred one.
pub(super) struct Servers {
    clients: Vec<(SocketAddr, TokioResolver)>,
    /// Index into `clients`.
    preferred: AtomicUsize,
    limits: Limits,
}

#[derive(Clone, Copy)]
struct Limits {
    deadline: Duration,
    server_wait: Duration,
    ttl_min: Duration,
    ttl_max: Duration,
    negative_ttl_max: Duration,
}

impl Servers {
    /// Clients for `addresses`, of which there is at least one. Nothing is sent yet.
    pub(super) fn new(addresses: &[SocketAddr], settings: &ResolveSettings) -> Servers {
        assert!(!addresses.is_empty(), "without configured servers there is the local one");
        let limits = Limits {
            deadline: settings.deadline,
            server_wait: settings.server_wait,
            ttl_min: settings.ttl_min,
            ttl_max: settings.ttl_max.max(settings.ttl_min),
            negative_ttl_max: settings.negative_ttl_max.max(FAILURE_TTL),
        };
        let client = |address: &SocketAddr| (*address, client(*address, limits, settings.cache_entries_max));
        Servers { clients: addresses.iter().map(client).collect(), preferred: AtomicUsize::new(0), limits }
    }

    /// Whether the servers have exactly these addresses.
    pub(super) fn have_addresses(&self, addresses: &[SocketAddr]) -> bool {
        self.clients.iter().map(|(address, _)| address).eq(addresses)
    }

    /// The addresses of `name` in one family (`A` or `AAAA`), by the deadline.
    pub(super) async fn query(
        self: Arc<Self>,
        name: Name,
        family: RecordType,
    ) -> Result<LookupResult, LookupError> {
        timeout(self.limits.deadline, self.query_by_preference(name, family))
            .await
            .unwrap_or(Err(LookupError::Timeout))
    }

    async fn query_by_preference(&self, name: Name, family: RecordType) -> Result<LookupResult, LookupError> {
        let preferred = self.preferred.load(Ordering::Relaxed);
        let mut candidates = (0..self.clients.len()).map(|n| (preferred + n) % self.clients.len()).peekable();
        // Dropping the set cancels the queries without an answer.
        let mut queries = JoinSet::new();
        let mut error = LookupError::Timeout;
        loop {
            if let Some(server) = candidates.next() {
                let client = self.clients[server].1.clone();
                let name = name.clone();
                queries.spawn(async move { (server, client.lookup(name, family).await) });
            }
            let wait =
                if candidates.peek().is_some() { self.limits.server_wait } else { self.limits.deadline };
            let (server, result) = match timeout(wait, queries.join_next()).await {
                Err(_elapsed) => continue,
                Ok(None) => return Err(error),
                Ok(Some(Err(_panic))) => {
                    error = LookupError::Failed("the DNS client panicked".into());
                    continue;
                }
                Ok(Some(Ok(result))) => result,
            };
            match self.interpret(server, result) {
                Err(failure @ (LookupError::Failed(_) | LookupError::Timeout)) => error = failure,
                result => {
                    self.preferred.store(server, Ordering::Relaxed);
                    return result;
                }
            }
        }
    }

    fn interpret(
        &self,
        server: usize,
        result: Result<Lookup, NetError>,
    ) -> Result<LookupResult, LookupError> {
        let Limits { ttl_min, ttl_max, .. } = self.limits;
        let lookup = result.map_err(|error| self.interpret_error(server, error))?;
        let records = lookup.answers();
        let addresses: Vec<_> = records.iter().filter_map(|record| record.data.ip_addr()).collect();
        if addresses.is_empty() {
            return Err(LookupError::NoRecords(FAILURE_TTL));
        }
        // A chain of aliases is valid only as long as its shortest TTL.
        let ttl_s = records.iter().map(|record| record.ttl).min().unwrap_or(0);
        Ok(LookupResult { addresses, ttl: Duration::from_secs(ttl_s.into()).clamp(ttl_min, ttl_max) })
    }

    fn interpret_error(&self, server: usize, error: NetError) -> LookupError {
        let address = self.clients[server].0;
        match error {
            NetError::Timeout => LookupError::Timeout,
            NetError::Dns(DnsError::NoRecordsFound(no_records)) => match no_records.response_code {
                ResponseCode::NXDomain | ResponseCode::NoError => {
                    let ttl = Duration::from_secs(no_records.negative_ttl.unwrap_or(0).into());
                    LookupError::NoRecords(ttl.clamp(FAILURE_TTL, self.limits.negative_ttl_max))
                }
                code => LookupError::Failed(format!("{address} answered {code}").into()),
            },
            NetError::Dns(DnsError::ResponseCode(code)) => {
                LookupError::Failed(format!("{address} answered {code}").into())
            }
            error => LookupError::Failed(format!("{address}: {error}").into()),
        }
    }
}

/// A client for one server; its cache holds two answers per name, one for each family.
fn client(address: SocketAddr, limits: Limits, names_max: usize) -> TokioResolver {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = address.port();
        connection
    });
    let server = NameServerConfig::new(address.ip(), true, connections.into());
    let config = ResolverConfig::from_name_servers(vec![server]);
    let mut client = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    let options = client.options_mut();
    options.timeout = limits.deadline;
    // Hickory repeats over UDP within the deadline anyway; attempts would also repeat errors.
    options.attempts = 0;
    options.cache_size = 2 * names_max as u64;
    options.use_hosts_file = ResolveHosts::Never;
    options.positive_min_ttl = Some(limits.ttl_min);
    options.positive_max_ttl = Some(limits.ttl_max);
    options.negative_min_ttl = Some(FAILURE_TTL);
    options.negative_max_ttl = Some(limits.negative_ttl_max);
    client.build().expect("only a TLS configuration can fail to build")
}
