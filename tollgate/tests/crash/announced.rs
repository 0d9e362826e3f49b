//! What a gateway says it has made durable, asked for again and again as it runs.
//!
//! Promises: tells only what was said, so that it is safe to hold the gateway to it. Leaves to others: what
//! must hold of it after a power failure (`oracle`).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const METRIC: &str = "tollgate_ledger_durable_lsn ";

/// Between two questions: each costs the gateway some of its time.
const PAUSE: Duration = Duration::from_millis(3);

/// Who asks, on a thread of its own.
pub(crate) struct Announced {
    asks: Option<JoinHandle<u64>>,
    is_over: Arc<AtomicBool>,
}

impl Announced {
    /// Begins to ask the gateway whose metrics are at `admin`.
    pub(crate) fn ask(admin: SocketAddr) -> Announced {
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let asks = thread::spawn(move || {
            let mut highest = 0;
            // Relaxed: nothing else is told by it.
            while !told.load(Ordering::Relaxed) {
                highest = durable_lsn(admin).unwrap_or(0).max(highest);
                thread::sleep(PAUSE);
            }
            highest
        });
        Announced { asks: Some(asks), is_over }
    }

    /// The highest number up to which all was said to be durable. For when the gateway is dead.
    pub(crate) fn highest(mut self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        let asks = self.asks.take().expect("only this takes it, and it is the last");
        asks.join().expect("asking does not panic")
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// What the gateway says now; `None` if it does not, or not any more.
fn durable_lsn(admin: SocketAddr) -> Option<u64> {
    let mut stream = TcpStream::connect_timeout(&admin, Duration::from_secs(1)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut page = String::new();
    stream.read_to_string(&mut page).ok()?;
    page.lines().find_map(|line| line.strip_prefix(METRIC))?.trim().parse().ok()
}
