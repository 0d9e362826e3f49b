//! Connections of the admin server: their number, their lifetime, and the size of a request's head.
//!
//! Guarantees: at most [`HttpLimits::connections_max`] connections are open, each for a bounded time. At that
//! number a new connection replaces the oldest connection of the source that has the most. So slow or silent
//! connections delay no other connection, and a source with many of them evicts only its own.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use gateway::source_network::source_network;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use sys::socket::ResourceExhausted;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use crate::spare_descriptor::SpareDescriptor;

/// Limits on the connections of clients.
#[derive(Clone, Copy)]
pub(crate) struct HttpLimits {
    /// Open connections: enough for a few scrapers, probes and browsers.
    pub(crate) connections_max: usize,
    /// Time for a request's head, from the moment at which the head may begin: so it also ends idle
    /// connections.
    pub(crate) head_span_max: Duration,
    /// Lifetime of a connection in any state. It ends clients that do not read their responses.
    pub(crate) lifetime_max: Duration,
    /// Grace period for the response under way when a connection must end.
    pub(crate) shutdown_grace_max: Duration,
}

/// The limits in production; tests have shorter ones.
pub(crate) const DEFAULT_LIMITS: HttpLimits = HttpLimits {
    connections_max: 64,
    head_span_max: Duration::from_secs(5),
    lifetime_max: Duration::from_secs(60),
    shutdown_grace_max: Duration::from_secs(1),
};

/// Bytes of a request's head, and of each buffer of a connection.
pub(crate) const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Header fields of a request.
pub(crate) const HEADERS_MAX: usize = 64;
/// Pause after a failed accept. Descriptors or memory are short, and an immediate retry would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

// hyper panics on a smaller buffer.
const _: () = assert!(HEAD_BYTES_MAX >= 8192);

/// Serves connections until the sender of `stopped` is dropped.
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
            // Removes finished tasks, so that the set does not grow.
            Some(_) = connections.join_next() => spare.reserve(),
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    open.evict_to_fit();
                    let task = serve_connection(stream, routes.clone(), limits, stopped.clone());
                    open.add(source_network(peer.ip()), connections.spawn(task));
                    // Requests that have arrived are served before the next accept can evict them.
                    yield_now().await;
                    spare.reserve();
                }
                Err(error) if ResourceExhausted::from_error(&error).is_some() && spare.release() => {}
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

/// The open connections and the handles that close them.
struct OpenConnections {
    /// Oldest first. The address is the network that counts as one source.
    by_age: VecDeque<(IpAddr, AbortHandle)>,
    connections_max: usize,
}

impl OpenConnections {
    /// Closes connections until one more fits.
    fn evict_to_fit(&mut self) {
        self.by_age.retain(|(_, task)| !task.is_finished());
        while self.by_age.len() >= self.connections_max {
            let Some((_, task)) = self.by_age.remove(self.eviction_index()) else { return };
            task.abort();
        }
    }

    /// The index of the oldest connection of the source that has the most. Among sources with as many, the
    /// one with the oldest connection.
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
        // Errors are the client's: it disconnected, or sent invalid HTTP and got a 400.
        _ = connection.as_mut() => return,
        _ = stopped.changed() => {}
        () = sleep(limits.lifetime_max) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(limits.shutdown_grace_max, connection).await;
}
