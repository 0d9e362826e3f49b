//! Connections of the admin side: how many, how long, and how large a head they may send.
//!
//! Guarantees: there are [`HttpLimits::connections_max`] connections at most, each for a bounded time; when
//! there are as many, one that arrives replaces the oldest of the source that has most. So connections that
//! ask slowly, or never, cost others no wait, and those of other sources cost them no connection. Leaves out:
//! what is answered (`api.rs`), and parsing (hyper).

use std::collections::VecDeque;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use gateway::identity::throttle::network;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use sys::socket::ResourceExhausted;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use crate::spare_descriptor::SpareDescriptor;

/// What a client may take.
#[derive(Clone, Copy)]
pub(crate) struct HttpLimits {
    /// Connections at the same time: a few scrapers, probes, and people.
    pub(crate) connections_max: usize,
    /// For a request's head, counted from the moment at which one may begin: it ends idle connections too.
    pub(crate) head_span_max: Duration,
    /// For a connection, whatever goes on: a client that does not read its answers goes with it.
    pub(crate) lifetime_max: Duration,
    /// For the answer that is under way when a connection has to end.
    pub(crate) shutdown_grace_max: Duration,
}

/// The bounds that hold in earnest; tests have shorter ones.
pub(crate) const DEFAULT_LIMITS: HttpLimits = HttpLimits {
    connections_max: 64,
    head_span_max: Duration::from_secs(5),
    lifetime_max: Duration::from_secs(60),
    shutdown_grace_max: Duration::from_secs(1),
};

/// Bytes of a request's head, and of the buffers per connection.
pub(crate) const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Fields in a request's head.
pub(crate) const HEADERS_MAX: usize = 64;
/// The pause after a failed accept: descriptors are short, and trying at once would only burn CPU.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

// hyper takes no smaller buffer.
const _: () = assert!(HEAD_BYTES_MAX >= 8192);

/// Answers connections until the sender of `stopped` is dropped.
pub(crate) async fn serve(
    listener: TcpListener,
    routes: Router,
    limits: HttpLimits,
    stopped: watch::Receiver<()>,
) {
    let mut connections = JoinSet::new();
    let mut open = OpenConnections { by_age: VecDeque::new(), connections_max: limits.connections_max };
    let (mut stop, mut spare) = (stopped.clone(), SpareDescriptor::new());
    loop {
        tokio::select! {
            _ = stop.changed() => break,
            // Takes finished tasks away, so that the set does not grow.
            Some(_) = connections.join_next() => spare.reserve(),
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    open.evict_to_fit();
                    let task = serve_connection(stream, routes.clone(), limits, stopped.clone());
                    open.add(network(peer.ip()), connections.spawn(task));
                    // What has asked already is answered before others that wait can replace it.
                    yield_now().await;
                    spare.reserve();
                }
                Err(error) if ResourceExhausted::of(&error).is_some() && spare.release() => {}
                Err(_) => {
                    sleep(ACCEPT_PAUSE).await;
                    spare.reserve();
                }
            },
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// The connections that are open, and how each is closed.
struct OpenConnections {
    /// With the network that counts as one source, the oldest first.
    by_age: VecDeque<(IpAddr, AbortHandle)>,
    connections_max: usize,
}

impl OpenConnections {
    /// Closes connections until there is room for one.
    fn evict_to_fit(&mut self) {
        self.by_age.retain(|(_, task)| !task.is_finished());
        while self.by_age.len() >= self.connections_max {
            let Some((_, task)) = self.by_age.remove(self.eviction_index()) else { return };
            task.abort();
        }
    }

    /// The oldest connection of the source that has most; of equal ones, that of the oldest connection.
    fn eviction_index(&self) -> usize {
        let share = |source: IpAddr| self.by_age.iter().filter(|(other, _)| *other == source).count();
        let shares = self.by_age.iter().map(|(source, _)| share(*source));
        let most = shares.clone().max();
        shares.into_iter().position(|share| Some(share) == most).unwrap_or_default()
    }

    fn add(&mut self, source: IpAddr, task: AbortHandle) {
        self.by_age.push_back((source, task));
    }
}

async fn serve_connection(
    stream: TcpStream,
    routes: Router,
    limits: HttpLimits,
    mut stopped: watch::Receiver<()>,
) {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_span_max)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX);
    let mut connection =
        pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)));
    tokio::select! {
        // Errors are the client's: it went away, or sent what is not HTTP and was told so.
        _ = connection.as_mut() => return,
        _ = stopped.changed() => {}
        () = sleep(limits.lifetime_max) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(limits.shutdown_grace_max, connection).await;
}
