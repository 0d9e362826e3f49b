//! Connections of the admin side: how many, how long, and how large a head they may send.
//!
//! Promises: whatever a client sends, or does not, it holds one of [`Bounds::connections_max`] places for a
//! bounded time; when all are taken, new connections wait in the kernel's queue. Leaves to others: what is
//! answered (`api.rs`), and parsing (hyper).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// What a client may take.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// Connections at the same time: a few scrapers, probes, and people.
    pub(crate) connections_max: usize,
    /// For a request's head, counted from the moment at which one may begin: it ends idle connections too.
    pub(crate) head_span_max: Duration,
    /// For a connection, whatever goes on: a client that does not read its answers goes with it.
    pub(crate) life_span_max: Duration,
    /// For the answer that is under way when a connection has to end.
    pub(crate) farewell_span_max: Duration,
}

/// The bounds that hold in earnest; tests have shorter ones.
pub(crate) const BOUNDS: Bounds = Bounds {
    connections_max: 64,
    head_span_max: Duration::from_secs(5),
    life_span_max: Duration::from_secs(60),
    farewell_span_max: Duration::from_secs(1),
};

/// Bytes of a request's head, and of the buffers per connection.
pub(crate) const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Fields in a request's head.
pub(crate) const HEAD_FIELDS_MAX: usize = 64;
/// The pause after a failed accept: descriptors are short, and trying at once would only burn CPU.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

// hyper takes no smaller buffer.
const _: () = assert!(HEAD_BYTES_MAX >= 8192);

/// Answers connections until the sender of `stopped` is dropped.
pub(crate) async fn serve(
    listener: TcpListener,
    routes: Router,
    bounds: Bounds,
    stopped: watch::Receiver<()>,
) {
    let places = Arc::new(Semaphore::new(bounds.connections_max));
    let mut connections = JoinSet::new();
    let mut stop = stopped.clone();
    loop {
        let arrival = async {
            let place = Arc::clone(&places).acquire_owned().await.expect("nobody closes the semaphore");
            (place, listener.accept().await)
        };
        tokio::select! {
            _ = stop.changed() => break,
            // Takes finished tasks away, so that the set does not grow.
            Some(_) = connections.join_next() => {}
            (place, accepted) = arrival => match accepted {
                Ok((stream, _)) => {
                    let (routes, stopped) = (routes.clone(), stopped.clone());
                    connections.spawn(async move {
                        connection(stream, routes, bounds, stopped).await;
                        drop(place);
                    });
                }
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(stream: TcpStream, routes: Router, bounds: Bounds, mut stopped: watch::Receiver<()>) {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head_span_max)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEAD_FIELDS_MAX);
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)));
    tokio::select! {
        // Errors are the client's: it went away, or sent what is not HTTP and was told so.
        _ = served.as_mut() => return,
        _ = stopped.changed() => {}
        () = sleep(bounds.life_span_max) => {}
    }
    served.as_mut().graceful_shutdown();
    let _ = timeout(bounds.farewell_span_max, served).await;
}
