//! Observes what a gateway reports or shows to be durable, again and again while it runs.
//!
//! Guarantees: [`Observed`] has only what follows from the observations, however long a disk or a thread
//! takes. So the gateway can safely be held to it. `oracle` judges what must hold of it after a power
//! failure.
//!
//! An **observation** reads four things, in this order: the bytes that each flow has moved by the send audit;
//! the flows that hold a slot of the live table; A, the last written entry by the metrics; and metrics, again
//! and again, until they report more than A as durable. Then:
//!
//! - A flow that had moved bytes and held no slot any more is durable. Its slot was free, so a pass of the
//!   committer had written its final. If that pass had updated the metric before A was read, the final is not
//!   behind A. If not, then more than A was reported by that pass or a later one, and what is durable ends
//!   where a pass's frame does.
//! - A flow that had moved 8 MiB since its last interim had requested another. The first pass that begins
//!   after the observation and has space for it writes what it had moved by then, and a pass has space for a
//!   hundred entries. Three further observations have seen as many whole passes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use sys::send_audit::{self, Role};

use crate::flow::{number_of_client, number_of_destination};
use crate::table;

const APPENDED: &str = "tollgate_ledger_appended_lsn ";
const DURABLE: &str = "tollgate_ledger_durable_lsn ";

/// Between two queries of the metrics: each costs the gateway some of its time.
const PAUSE: Duration = Duration::from_millis(3);

/// Observations after which a requested interim is certainly durable.
const OBSERVATIONS_BEHIND: usize = 3;

/// What a gateway is held to.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// The highest LSN up to which the metrics reported all entries as durable.
    pub(crate) durable: u64,
    /// Flows whose finals are durable.
    pub(crate) finals: HashSet<u32>,
    /// The bytes that each flow had moved, both directions, so long ago that interims then due are durable.
    pub(crate) moved: HashMap<u32, u64>,
}

/// Observes a gateway on a thread of its own.
pub(crate) struct DurabilityObserver {
    thread: Option<JoinHandle<Observed>>,
    is_over: Arc<AtomicBool>,
}

/// Where the observations are read from.
pub(crate) struct Sources {
    pub(crate) admin: SocketAddr,
    pub(crate) audit_path: PathBuf,
    pub(crate) tables: PathBuf,
}

impl DurabilityObserver {
    /// Starts to observe.
    pub(crate) fn start(sources: Sources) -> DurabilityObserver {
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_over);
        // Relaxed: the flag publishes no other data.
        let thread = thread::spawn(move || observe(&sources, &|| flag.load(Ordering::Relaxed)));
        DurabilityObserver { thread: Some(thread), is_over }
    }

    /// Returns the observations. Called once the gateway is dead.
    pub(crate) fn finish(mut self) -> Observed {
        self.is_over.store(true, Ordering::Relaxed);
        let thread =
            self.thread.take().expect("the thread is joined once, by the method that consumes the observer");
        thread.join().expect("the observer thread does not panic")
    }
}

impl Drop for DurabilityObserver {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn observe(sources: &Sources, is_over: &dyn Fn() -> bool) -> Observed {
    let mut observed = Observed::default();
    let mut earlier: VecDeque<HashMap<u32, u64>> = VecDeque::new();
    while !is_over() {
        let moved = moved(&sources.audit_path);
        let Ok(holders) = table::holders(&sources.tables) else { continue };
        let Some((appended, _)) = read_lsns(sources.admin) else { continue };
        let mut is_done = false;
        while !is_done && !is_over() {
            thread::sleep(PAUSE);
            let durable = read_lsns(sources.admin).map_or(0, |(_, durable)| durable);
            observed.durable = observed.durable.max(durable);
            is_done = durable > appended;
        }
        if !is_done {
            break;
        }
        observed.finals.extend(moved.keys().filter(|number| !holders.contains(number)));
        earlier.push_back(moved);
        if earlier.len() > OBSERVATIONS_BEHIND {
            observed.moved = earlier.pop_front().unwrap_or_default();
        }
    }
    observed
}

/// The bytes that each flow has moved, without flows that have moved none.
pub(crate) fn moved(audit_path: &Path) -> HashMap<u32, u64> {
    let mut moved = HashMap::new();
    let mut toward_destinations = HashSet::new();
    for entry in send_audit::read(audit_path).unwrap_or_default() {
        let ip = entry.peer.ip();
        let number = match entry.role {
            Role::Accepted => number_of_client(ip),
            Role::Connected => number_of_destination(ip),
        };
        let Some(number) = number.filter(|_| entry.sent > 0) else { continue };
        *moved.entry(number).or_default() += entry.sent;
        if entry.role == Role::Connected {
            toward_destinations.insert(number);
        }
    }
    // Toward a client there may be the response alone, which belongs to no flow yet.
    moved.retain(|number, _| toward_destinations.contains(number));
    moved
}

/// The LSNs that the gateway reports as written and as durable; `None` if it does not respond.
fn read_lsns(admin: SocketAddr) -> Option<(u64, u64)> {
    let mut stream = TcpStream::connect_timeout(&admin, Duration::from_secs(1)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut page = String::new();
    stream.read_to_string(&mut page).ok()?;
    let number = |name| page.lines().find_map(|line: &str| line.strip_prefix(name))?.trim().parse().ok();
    Some((number(APPENDED)?, number(DURABLE)?))
}
