//! What a gateway says and shows to be durable, looked at again and again as it runs.
//!
//! Promises: tells only what follows from what was seen, however long a disk or a thread takes, so that it is
//! safe to hold the gateway to it. Leaves to others: what must hold of it after a power failure (`oracle`).
//!
//! A **look** takes four things, in this order: what the witness has seen each flow move; which flows hold a
//! slot of the live table; A, the last entry that the metrics say is written; and metrics, again and again,
//! until they say that more than A is durable. Then:
//!
//! - A flow that had moved something and held no slot any more is durable. Its slot was free, so its final
//!   had been written by a turn of the committer. If that turn had told of itself before A was read, the
//!   final is not behind A. If not, then whoever told of more than A is that turn or a later one, and what is
//!   durable ends where a turn's frame does.
//! - A flow that had moved 8 MiB since it last asked for an interim had asked for one: what it had moved then
//!   is written by the first turn that begins behind the look and has room for it, and turns have room for a
//!   hundred entries. Three further looks have seen as many whole turns.

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

/// Between two questions: each costs the gateway some of its time.
const PAUSE: Duration = Duration::from_millis(3);

/// Looks after which an interim that had been asked for is surely durable.
const OBSERVATIONS_BEHIND: usize = 3;

/// What a gateway is held to.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// The highest number up to which all was said to be durable.
    pub(crate) durable: u64,
    /// Flows whose finals are durable.
    pub(crate) finals: HashSet<u32>,
    /// What flows had moved, both ways, for so long that interims of it are durable where they were due.
    pub(crate) moved: HashMap<u32, u64>,
}

/// Who looks, on a thread of its own.
pub(crate) struct DurabilityObserver {
    thread: Option<JoinHandle<Observed>>,
    is_over: Arc<AtomicBool>,
}

/// Where one looks.
pub(crate) struct Sources {
    pub(crate) admin: SocketAddr,
    pub(crate) audit_path: PathBuf,
    pub(crate) tables: PathBuf,
}

impl DurabilityObserver {
    /// Begins to look.
    pub(crate) fn start(sources: Sources) -> DurabilityObserver {
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_over);
        // Relaxed: nothing else is told by it.
        let thread = thread::spawn(move || observe(&sources, &|| flag.load(Ordering::Relaxed)));
        DurabilityObserver { thread: Some(thread), is_over }
    }

    /// What the looks came to. For when the gateway is dead.
    pub(crate) fn finish(mut self) -> Observed {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("only this takes it, and it is the last");
        thread.join().expect("looking does not panic")
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

/// What each flow that has moved anything has moved.
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
    // Toward a client there may be an answer alone, which is of no flow yet.
    moved.retain(|number, _| toward_destinations.contains(number));
    moved
}

/// What the gateway says now is written, and durable; `None` if it does not, or not any more.
fn read_lsns(admin: SocketAddr) -> Option<(u64, u64)> {
    let mut stream = TcpStream::connect_timeout(&admin, Duration::from_secs(1)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut page = String::new();
    stream.read_to_string(&mut page).ok()?;
    let number = |name| page.lines().find_map(|line: &str| line.strip_prefix(name))?.trim().parse().ok();
    Some((number(APPENDED)?, number(DURABLE)?))
}
