//! The control side's ear: health, readiness, version and metrics over HTTP, on a thread of its own.
//!
//! Promises: it answers while every reactor is stuck, and nothing that its clients do reaches a reactor: it
//! reads counters and never waits for whoever writes them; connections, heads and their time are bounded.
//! Leaves to others: who may reach its address: it asks for no password and tells nothing but figures.
//!
//! ```text
//!   lib.rs   the thread: bind, start, stop        http.rs     connections and their bounds
//!   api.rs   what each path answers               metrics.rs  counters as Prometheus reads them
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

/// Listens on `address`; nobody answers yet. Whoever connects waits.
///
/// # Errors
/// The address cannot be bound; the error names it.
pub fn bind(address: SocketAddr) -> io::Result<BoundAdmin> {
    let with_address = |error: io::Error| {
        let error = sys::limits::explained(address, error);
        io::Error::new(error.kind(), format!("the admin address {address}: {error}"))
    };
    let listener = TcpListener::bind(address).map_err(with_address)?;
    listener.set_nonblocking(true)?;
    Ok(BoundAdmin { address: listener.local_addr()?, listener })
}

/// The admin side's address, taken.
#[derive(Debug)]
pub struct BoundAdmin {
    address: SocketAddr,
    listener: TcpListener,
}

impl BoundAdmin {
    /// The address: as asked for, with the port that the kernel chose if that was 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers from a new thread. `ledger_status` tells how the ledger is doing, and is called for each question
    /// about it.
    ///
    /// # Errors
    /// No thread or descriptor is left.
    pub fn start(
        self,
        stats: Arc<Stats>,
        ledger_status: Box<dyn Fn() -> Status + Send + Sync>,
    ) -> io::Result<Admin> {
        self.start_with_limits(DEFAULT_LIMITS, api::routes(stats, ledger_status))
    }

    fn start_with_limits(self, limits: HttpLimits, routes: Router) -> io::Result<Admin> {
        let BoundAdmin { address, listener } = self;
        // Made here, so that what it lacks is an error of this call and not of the thread.
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

/// The running admin side. Dropping it stops it.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    /// Dropped to stop.
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Admin {
    /// The address that it answers at: as asked for, with the port that the kernel chose if that was 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes the listener, lets answers that are under way end for a moment, and ends the thread.
    ///
    /// To move to another address, start a second one there first.
    pub fn stop(self) {}
}

impl Drop for Admin {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was told by the panic hook, and there is nothing left to stop.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
