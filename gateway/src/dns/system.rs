//! The system's lookups: `getaddrinfo` on the job pool, for machines whose names come from elsewhere than DNS
//! (LDAP, mDNS, a container runtime).
//!
//! Guarantees: a hung call holds one thread of the pool and not more, however many lookups request its name.
//! The deadline holds for the waiting lookups, not for the call, which cannot be cancelled.
//!
//! `getaddrinfo` returns no TTL, so its results are repeated for [`SYSTEM_TTL`]. Search domains apply, as
//! everywhere else on the machine.

use std::future::Future;
use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use engine::oneshot;
use engine::pool::{Failure, Outcome, Pool, blocking};
use sys::clock::monotonic;
use tokio::time::timeout;

use super::in_flight::{Backend, Completed};
use super::{Answer, Reply, ResolveError, ResolveSettings};
use crate::jobs::{DNS_LOOKUP, DNS_LOOKUPS_MAX};

/// How long a result is repeated, within the bounds of the settings.
const SYSTEM_TTL: Duration = Duration::from_secs(30);

type GetAddressInfo = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

/// Runs `getaddrinfo` on the pool.
pub(super) struct System {
    pool: Pool,
    get_address_info: Arc<GetAddressInfo>,
    deadline: Duration,
    ttl: Duration,
    negative_ttl: Duration,
}

impl System {
    /// Looks names up on `pool`.
    pub(super) fn new(settings: &ResolveSettings, pool: Pool) -> System {
        System::with_getaddrinfo(settings, pool, |name| {
            Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
        })
    }

    /// As [`System::new`], with another function than the system's.
    pub(super) fn with_getaddrinfo(
        settings: &ResolveSettings,
        pool: Pool,
        get_address_info: impl Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync + 'static,
    ) -> System {
        System {
            pool,
            get_address_info: Arc::new(get_address_info),
            deadline: settings.deadline,
            ttl: SYSTEM_TTL.min(settings.ttl_max).max(settings.ttl_min),
            negative_ttl: SYSTEM_TTL.min(settings.negative_ttl_max),
        }
    }
}

impl Backend for System {
    fn concurrency_max(&self) -> usize {
        DNS_LOOKUPS_MAX
    }

    fn lookup(&mut self, name: Arc<str>) -> impl Future<Output = Completed> + Send + 'static {
        let (get_address_info, ttl, negative_ttl) =
            (Arc::clone(&self.get_address_info), self.ttl, self.negative_ttl);
        let (sender, mut call) = oneshot::channel();
        // A call that would begin after the deadline has no waiter any more.
        let work = move || reply(blocking(|| get_address_info(&name)), ttl, negative_ttl);
        let deliver = move |outcome: Outcome<Reply>| sender.send(outcome.unwrap_or_else(failed));
        let accepted = self.pool.run_by(DNS_LOOKUP, monotonic() + self.deadline, work, deliver);
        let deadline = self.deadline;
        async move {
            if accepted.is_err() {
                return Completed { reply: Reply::overloaded(), background: None };
            }
            match timeout(deadline, &mut call).await {
                Ok(reply) => {
                    Completed { reply: reply.unwrap_or_else(|_| failed(Failure::Panicked)), background: None }
                }
                Err(_elapsed) => {
                    let background = Box::pin(async { drop(call.await) });
                    Completed { reply: Reply::failed(ResolveError::Timeout), background: Some(background) }
                }
            }
        }
    }
}

fn failed(failure: Failure) -> Reply {
    Reply::failed(match failure {
        Failure::Expired | Failure::Shed => ResolveError::Timeout,
        Failure::Panicked => ResolveError::Failed("the lookup panicked".into()),
    })
}

fn reply(result: io::Result<Vec<IpAddr>>, ttl: Duration, negative_ttl: Duration) -> Reply {
    match result {
        Ok(addresses) => {
            let (v4, v6): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|address| address.is_ipv4());
            Answer::from_families(&v6, &v4, ttl).map_or_else(|| Reply::not_found(negative_ttl), Reply::found)
        }
        Err(error) if says_not_found(&error) => Reply::not_found(negative_ttl),
        Err(error) => Reply::failed(ResolveError::Failed(error.to_string().into())),
    }
}

/// Whether the error is `EAI_NONAME` or `EAI_NODATA`. The standard library keeps only the C library's text:
/// glibc has two, musl two. Neither is translated in a process that never calls `setlocale`.
fn says_not_found(error: &io::Error) -> bool {
    const TEXTS: [&str; 4] = [
        "Name or service not known",
        "No address associated with hostname",
        "Name does not resolve",
        "Name has no usable address",
    ];
    let text = error.to_string();
    TEXTS.iter().any(|not_found| text.contains(not_found))
}
