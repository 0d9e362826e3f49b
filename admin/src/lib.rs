//! The admin server: health, readiness, version and metrics over HTTP, on a thread of its own.
//!
//! Guarantees: the server responds while every reactor is stuck. It reads counters and never waits for the
//! threads that write them, so its clients cannot slow a reactor. Connections, request heads and their
//! durations are bounded.
//! Not handled here: access control. The server requires no password and shows nothing but health and
//! metrics; the operator decides which hosts reach its address.
//!
//! ```text
//!   lib.rs   the thread: bind, start, stop    http.rs              connections and their limits
//!   api.rs   the response of each path        metrics.rs           counters in OpenMetrics format
//!                                             spare_descriptor.rs  for accepts when none is left
//! ```

#![forbid(unsafe_code)]

mod api;
mod http;
mod metrics;
mod spare_descriptor;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use axum::Router;
use gateway::observe::stats::Stats;
use ledger::Status;
use tokio::runtime::Builder;
use tokio::sync::watch;

use crate::http::{DEFAULT_LIMITS, HttpLimits};

/// Listens on `address`. Connections wait in the kernel's queue until [`BoundAdmin::start`].
///
/// # Errors
/// The address cannot be bound; the message names it.
pub fn bind(address: SocketAddr) -> io::Result<BoundAdmin> {
    let with_address = |error: io::Error| {
        let error = sys::limits::explain_bind_error(address, error);
        io::Error::new(error.kind(), format!("the admin address {address}: {error}"))
    };
    let listener = TcpListener::bind(address).map_err(with_address)?;
    listener.set_nonblocking(true)?;
    Ok(BoundAdmin { address: listener.local_addr()?, listener })
}

/// A bound admin address that is not served yet.
#[derive(Debug)]
pub struct BoundAdmin {
    address: SocketAddr,
    listener: TcpListener,
}

impl BoundAdmin {
    /// The bound address; if port 0 was requested, with the port that the kernel chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves from a new thread. `ledger_status` returns the ledger's state; each request to `/readyz` or
    /// `/metrics` calls it.
    ///
    /// # Errors
    /// The process can create no further thread or descriptor.
    pub fn start(
        self,
        stats: Arc<Stats>,
        ledger_status: Box<dyn Fn() -> Status + Send + Sync>,
    ) -> io::Result<Admin> {
        self.start_with_limits(DEFAULT_LIMITS, api::routes(stats, ledger_status))
    }

    fn start_with_limits(self, limits: HttpLimits, routes: Router) -> io::Result<Admin> {
        let BoundAdmin { address, listener } = self;
        // Built on the caller's thread, so that its failure is this call's error.
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _context = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let (stop, stopped) = watch::channel(());
        let thread = thread::Builder::new()
            .name("admin".into())
            .spawn(move || runtime.block_on(http::serve(listener, routes, limits, stopped)))?;
        Ok(Admin { address, stop: Some(stop), thread: Some(thread) })
    }
}

/// The running admin server. Dropping it stops the server.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    /// Dropping the sender stops the server.
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Admin {
    /// The served address; if port 0 was requested, with the port that the kernel chose.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes the listener, gives responses under way a short grace period, and joins the thread.
    ///
    /// To move to another address without a gap, start a second server there first.
    pub fn stop(self) {}
}

impl Drop for Admin {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of the thread, and the thread has ended.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
