//! Samples of pressure: how long threads waited for a CPU, and what slowed the whole machine.
//!
//! Guarantees: a sample costs microseconds for each of its files and involves no other thread. The files stay
//! open, so that a sample works even without a free descriptor.
//!
//! Not handled here: thresholds (`gateway::pressure`, the lab).
//!
//! ```text
//!   stall.rs         work that waited for CPU, disk or memory (PSI)
//!   ticks.rs         CPU time that the hypervisor took
//!   throttling.rs    CPU time that a control group's quota took
//!   listen_drops.rs  connections dropped at listening sockets
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

mod listen_drops;
mod stall;
mod throttling;
mod ticks;

pub use listen_drops::ListenDrops;
pub use stall::{Resource, Stall, StallLine};
pub use throttling::Throttling;
pub use ticks::CpuTicks;

use crate::clock::Nanos;
use crate::limits::ProcRoot;
use crate::thread::RunTime;

/// Bytes read from the beginning of each file. The longest needed parts are the first line of `/proc/stat`, a
/// `cpu.stat`, and the first two lines of `/proc/net/netstat` (3 KB on Linux 6.18).
const FILE_BYTES_MAX: usize = 8 * 1024;

/// Samples the pressure on some threads and on the machine.
#[derive(Debug)]
pub struct Sampler {
    threads: Vec<ProcFile>,
    stalls: [ProcFile; Resource::ALL.len()],
    ticks: ProcFile,
    listen_drops: ProcFile,
    /// One for each of our control groups at the sampler's creation; it does not follow the process into
    /// another group.
    throttling: Vec<ProcFile>,
    last: Option<(Nanos, Totals)>,
}

impl Sampler {
    /// A sampler for the threads `ids` of this process, and for the machine at `root`.
    pub fn new(root: &ProcRoot, ids: &[i32]) -> Sampler {
        let thread = |id: &i32| ProcFile::open(root, format!("/proc/self/task/{id}/schedstat"));
        Sampler {
            threads: ids.iter().map(thread).collect(),
            stalls: Resource::ALL.map(|resource| ProcFile::open(root, Stall::path(resource))),
            ticks: ProcFile::open(root, CpuTicks::PATH),
            listen_drops: ProcFile::open(root, ListenDrops::PATH),
            throttling: throttling::paths(root).iter().map(|path| ProcFile::open(root, path)).collect(),
            last: None,
        }
    }

    /// The pressure at `now`, and since the last sample; the first sample has zero deltas.
    pub fn sample(&mut self, now: Nanos) -> Pressure {
        let totals = Totals {
            threads: self.threads.iter().map(|file| RunTime::parse(&file.read()?)).collect(),
            stalls: self.stalls.each_ref().map(|file| Stall::parse(&file.read()?)),
            ticks: self.ticks.read().and_then(|text| CpuTicks::parse(&text)),
            drops: self.listen_drops.read().and_then(|text| ListenDrops::parse(&text)),
            throttling: Throttling::sum(self.throttling.iter().filter_map(ProcFile::read)),
        };
        let (earlier, before) = self.last.take().unwrap_or_else(|| (now, totals.clone()));
        let pressure = Pressure {
            span: now.since(earlier),
            threads: totals
                .threads
                .iter()
                .zip(&before.threads)
                .map(|(now, earlier)| delta(*now, *earlier, RunTime::since))
                .collect(),
            stalls: totals.stalls,
            ticks: delta(totals.ticks, before.ticks, CpuTicks::since),
            drops: delta(totals.drops, before.drops, ListenDrops::since),
            throttling: delta(totals.throttling, before.throttling, Throttling::since),
        };
        self.last = Some((now, totals));
        pressure
    }
}

#[derive(Clone, Debug)]
struct Totals {
    threads: Vec<Option<RunTime>>,
    stalls: [Option<Stall>; Resource::ALL.len()],
    ticks: Option<CpuTicks>,
    drops: Option<ListenDrops>,
    throttling: Option<Throttling>,
}

/// The value and the growth of a counter.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Delta<T> {
    /// Since the counter's start.
    pub total: T,
    /// Since the last sample.
    pub added: T,
}

/// A sample; values that the machine does not report are `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pressure {
    /// The time since the last sample.
    pub span: Duration,
    /// One for each thread, in the order of the ids; `None` for an ended thread.
    pub threads: Vec<Option<Delta<RunTime>>>,
    /// One for each of [`Resource::ALL`].
    pub stalls: [Option<Stall>; Resource::ALL.len()],
    /// CPU time of the machine, and the part that the hypervisor withheld.
    pub ticks: Option<Delta<CpuTicks>>,
    /// Connections dropped at the listening sockets of all programs in this network namespace.
    pub drops: Option<Delta<ListenDrops>>,
    /// Throttling of our control groups by their quotas.
    pub throttling: Option<Delta<Throttling>>,
}

impl Pressure {
    /// The greatest share of the span for which one of the threads was ready and had no CPU, 0 to 1.
    pub fn delay_share_max(&self) -> f64 {
        let delays = self.threads.iter().flatten().map(|run| run.added.delay);
        let longest = delays.max().unwrap_or_default();
        if self.span.is_zero() { 0.0 } else { (longest.as_secs_f64() / self.span.as_secs_f64()).min(1.0) }
    }
}

/// A counter that is read for the first time has a delta of zero.
fn delta<T: Copy>(now: Option<T>, earlier: Option<T>, since: fn(T, T) -> T) -> Option<Delta<T>> {
    let total = now?;
    Some(Delta { total, added: since(total, earlier.unwrap_or(total)) })
}

/// A kernel file that stays open: each read from its beginning makes the kernel generate the text again.
/// That costs a quarter of opening it again (0.5 us instead of 2 for `schedstat`).
#[derive(Debug)]
struct ProcFile(Option<File>);

impl ProcFile {
    fn open(root: &ProcRoot, path: impl AsRef<Path>) -> ProcFile {
        ProcFile(File::open(root.path(path)).ok())
    }

    /// `None` for a missing file, or one of an ended thread.
    fn read(&self) -> Option<String> {
        let mut buffer = [0; FILE_BYTES_MAX];
        let count = self.0.as_ref()?.read_at(&mut buffer, 0).ok()?;
        Some(String::from_utf8_lossy(&buffer[..count]).into_owned())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::limits::fixture::ample;
    use crate::thread::thread_id;
    use std::hint::black_box;

    const MS: u64 = 1_000_000;

    #[test]
    fn sample_reports_totals_and_deltas() {
        let machine = ample();
        machine.write("proc/self/task/7/schedstat", "1000000 2000000 5\n");
        machine.write("proc/stat", "cpu  10 0 0 80 0 0 0 10 0 0\n");
        machine.write("proc/net/netstat", "TcpExt: ListenOverflows ListenDrops\nTcpExt: 3 4\n");
        machine.write("proc/pressure/io", "some avg10=1.50 avg60=0 avg300=0 total=70\n");
        let mut sampler = Sampler::new(&machine.root(), &[7, 8]);
        let first = sampler.sample(Nanos(100 * MS));
        assert_eq!((first.span, first.delay_share_max()), (Duration::ZERO, 0.0));
        assert_eq!(first.threads[0].unwrap().added, RunTime::default());
        machine.write("proc/self/task/7/schedstat", "3000000 7000000 6\n");
        machine.write("proc/stat", "cpu  16 0 0 82 0 0 0 12 0 0\n");
        machine.write("proc/net/netstat", "TcpExt: ListenOverflows ListenDrops\nTcpExt: 8 10\n");
        machine.write("sys/fs/cgroup/own/cpu.stat", "nr_periods 10\nnr_throttled 3\nthrottled_usec 40\n");
        let second = sampler.sample(Nanos(110 * MS));
        assert_eq!(second.span, Duration::from_millis(10));
        let ms = Duration::from_millis;
        let run = second.threads[0].unwrap();
        assert_eq!(run.added, RunTime { on_cpu: ms(2), delay: ms(5) });
        assert_eq!(run.total, RunTime { on_cpu: ms(3), delay: ms(7) });
        assert_eq!(second.threads[1], None, "there is no such thread");
        assert_eq!(second.delay_share_max(), 0.5);
        assert_eq!(second.ticks.unwrap().added.steal_share(), 0.2);
        assert_eq!(second.drops.unwrap().added, ListenDrops { overflows: 5, drops: 6 });
        assert_eq!(second.stalls.map(|stall| stall.is_some()), [false, true, false]);
        assert_eq!(second.stalls[1].unwrap().some.last_10_s_percent, 1.5);
        assert_eq!(second.throttling.unwrap().added.throttled_periods, 3);
        assert_eq!(sampler.sample(Nanos(120 * MS)).throttling.unwrap().added, Throttling::default());
    }

    #[test]
    fn broken_files_are_none_decreases_add_zero() {
        let machine = ample();
        machine.write("proc/self/task/7/schedstat", "5 5 5\n");
        let mut sampler = Sampler::new(&machine.root(), &[7]);
        let _ = sampler.sample(Nanos(1));
        machine.write("proc/self/task/7/schedstat", "3 3 5\n");
        assert_eq!(sampler.sample(Nanos(2)).threads[0].unwrap().added, RunTime::default());
        machine.write("proc/self/task/7/schedstat", "");
        machine.write("sys/fs/cgroup/own/cpu.stat", "?");
        let broken = sampler.sample(Nanos(2));
        assert_eq!((broken.threads[0], broken.throttling), (None, None));
        assert_eq!(broken.delay_share_max(), 0.0);
    }

    #[test]
    fn own_thread_cpu_time_is_sampled() {
        let mut sampler = Sampler::new(&ProcRoot::machine(), &[thread_id()]);
        let _ = sampler.sample(Nanos(0));
        let mut iterations = 0u64;
        while sampler.sample(Nanos(1)).threads[0].unwrap().added.on_cpu.is_zero() {
            iterations = black_box(iterations + 1);
        }
    }
}
