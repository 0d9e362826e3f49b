//! A case: one store, a number of writers and of hogs, one pace, for a moment.
//!
//! Guarantees: the store is fresh, the hogs compute before the first row and until after the last, the
//! disturbance watch covers exactly that time, and nothing remains afterwards.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use tempfile::TempDir;

use super::disk::Disk;
use super::hogs::Hogs;
use super::lag::Lag;
use super::placement::{CpuAssignment, Placement};
use super::row::Rows;
use super::store::{OpenStore, Store, StoreSettings, Watermarks};
use super::target::Target;
use super::writers::{Pace, RunControl, WriterCounts, WriterResult, WriterTask};
use crate::kit::child;
use crate::kit::disturbance::{Disturbance, DisturbanceWatch};
use crate::kit::measurements::Numbers;

/// The pause between two readings of a store's watermarks.
const POLL: Duration = Duration::from_millis(1);

/// How long a store may take to catch up when the writers have ended.
const CATCH_UP_MAX: Duration = Duration::from_millis(300);

/// How long after the last row of an open loop was due a writer may still insert: it may have had no CPU, for
/// which the store is not responsible. A store that is too slow needs longer.
const GRACE: Duration = Duration::from_millis(400);

/// How long counted rows may take until all of them are visible.
const VISIBLE_MAX: Duration = Duration::from_secs(30);

/// One case; its name is `part/target`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case {
    pub(super) part: &'static str,
    pub(super) target: Target,
    pub(super) writers: usize,
    pub(super) hogs: usize,
    pub(super) placement: Placement,
    pub(super) load: Load,
    pub(super) time: Duration,
}

/// The work of all writers together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// Rows one after the other; with a bound on those that are not durable.
    Closed { in_flight_max: Option<u64> },
    /// Rows at this rate, whatever the store does.
    Open { rows_per_s: u64 },
    /// This many rows, until they are visible.
    UntilVisible { rows: u64 },
}

/// Where cases run.
#[derive(Debug)]
pub(super) struct Environment {
    pub(super) directory: PathBuf,
    pub(super) services: Option<PathBuf>,
    pub(super) disk: Disk,
}

/// The result of one run of a case.
#[derive(Debug)]
pub(super) struct CaseResult {
    pub(super) numbers: Numbers,
    /// Why the run is contaminated.
    pub(super) marks: Vec<String>,
}

impl Case {
    /// Runs the case.
    ///
    /// # Errors
    /// The store failed, or the user interrupted.
    pub(super) fn run(&self, environment: &Environment) -> Result<CaseResult> {
        let directory = TempDir::new_in(&environment.directory).context("creating the store's directory")?;
        let assign = self.placement.assign(self.writers, self.hogs).context("this CPU has no siblings")?;
        let mut opened = self.open(directory.path(), environment)?;
        let hogs = Hogs::start(&assign.hogs)?;
        let watched = self.watch(&mut opened, &assign);
        // Without hogs the store shuts down undisturbed.
        drop(hogs);
        drop(opened);
        child::fail_if_interrupted()?;
        let (observation, disturbance) = watched?;
        let mut numbers = observation.numbers(self)?;
        numbers.extend(environment.disk.time_sync()?);
        Ok(CaseResult { numbers, marks: disturbance.marks })
    }

    /// The store alone, to see whether it opens.
    pub(super) fn open(&self, directory: &Path, environment: &Environment) -> Result<OpenStore> {
        self.target.open(&StoreSettings {
            directory: directory.to_owned(),
            services: environment.services.clone(),
            writers: self.writers,
        })
    }

    fn watch(&self, opened: &mut OpenStore, assign: &CpuAssignment) -> Result<(Observation, Disturbance)> {
        let writers = std::mem::take(&mut opened.writers);
        let store: &dyn Store = &*opened.store;
        let control = RunControl::new(self.writers);
        let now_ns = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
        let now_ns = u64::try_from(now_ns.as_nanos()).context("the clock is after 2554")?;
        thread::scope(|scope| {
            let work =
                writers.into_iter().zip(&assign.writers).enumerate().map(|(number, (writer, &cpu))| {
                    let rows = Rows::of(number as u32, now_ns);
                    let (pace, is_timed_throughout) = (self.pace(), self.is_timed_throughout());
                    WriterTask {
                        writer,
                        store,
                        control: &control,
                        number,
                        rows,
                        pace,
                        cpu,
                        is_timed_throughout,
                    }
                });
            let threads: Vec<_> = work.map(|work| scope.spawn(|| work.run())).collect();
            let watch = DisturbanceWatch::including(store.processes());
            control.wait_for_start();
            let observation = self.observe(store, &control);
            control.stop();
            let join = |thread: thread::ScopedJoinHandle<'_, Result<WriterResult>>| {
                thread.join().unwrap_or_else(|_| Err(anyhow!("a writer panicked")))
            };
            // Connections end with their writers, and must outlive the watch.
            let results = threads.into_iter().map(join).collect::<Vec<_>>();
            let caught_up = observation.and_then(|observation| observation.catch_up(store, &control));
            let disturbance = watch.finish();
            let results = results.into_iter().collect::<Result<Vec<_>>>()?;
            let counts = results.iter().map(|results| results.count.clone()).collect();
            Ok((Observation { counts, ..caught_up? }, disturbance))
        })
    }

    /// Reads the watermarks until the writers are to end, or have ended.
    fn observe(&self, store: &dyn Store, control: &RunControl) -> Result<Observation> {
        let mut observation = Observation::new()?;
        let begun = Instant::now();
        let time = match self.load {
            Load::Closed { .. } => self.time,
            Load::Open { .. } => self.time + GRACE,
            Load::UntilVisible { .. } => VISIBLE_MAX,
        };
        let awaits_visible = matches!(self.load, Load::UntilVisible { .. });
        loop {
            thread::sleep(POLL);
            child::fail_if_interrupted()?;
            // Read before the watermarks, so that the last sample includes the last row.
            let is_finished = control.is_finished();
            observation.sample(store, control);
            let is_done = is_finished && (!awaits_visible || observation.visible.is_caught_up());
            if is_done || begun.elapsed() >= time {
                break;
            }
        }
        observation.reached = observation.watermarks;
        observation.time = begun.elapsed();
        Ok(observation)
    }

    /// The share of one writer.
    fn pace(&self) -> Pace {
        let writers = self.writers as u64;
        match self.load {
            Load::Closed { in_flight_max } => Pace::Closed { in_flight_max },
            Load::Open { rows_per_s } => {
                let each_ns = 1_000_000_000 * writers / rows_per_s;
                let rows = u64::try_from(self.time.as_nanos()).unwrap_or(u64::MAX) / each_ns;
                Pace::Open { rows, each_ns }
            }
            Load::UntilVisible { rows } => Pace::Count { rows: rows / writers },
        }
    }

    /// In an open loop there is time to read the clock.
    fn is_timed_throughout(&self) -> bool {
        matches!(self.load, Load::Open { .. }) || self.target.is_timed_throughout()
    }
}

/// The samples of the watermarks, and the counts of the writers.
struct Observation {
    counts: Vec<WriterCounts>,
    time: Duration,
    watermarks: Watermarks,
    /// The watermarks when the writers were stopped.
    reached: Watermarks,
    durable: Lag,
    visible: Lag,
}

impl Observation {
    fn new() -> Result<Self> {
        Ok(Self {
            counts: Vec::new(),
            time: Duration::ZERO,
            watermarks: Watermarks::default(),
            reached: Watermarks::default(),
            durable: Lag::new()?,
            visible: Lag::new()?,
        })
    }

    /// The accepted rows are read first: a stage may have passed more than that, never less.
    fn sample(&mut self, store: &dyn Store, control: &RunControl) {
        let (accepted, now) = (control.accepted(), Instant::now());
        self.watermarks = store.watermarks();
        if let Some(durable) = self.watermarks.durable {
            self.durable.observe(now, accepted, durable);
        }
        if let Some(visible) = self.watermarks.visible {
            self.visible.observe(now, accepted, visible);
        }
    }

    /// Waits a moment for the stages to pass the rows that were accepted last.
    fn catch_up(mut self, store: &dyn Store, control: &RunControl) -> Result<Self> {
        let begun = Instant::now();
        self.sample(store, control);
        let is_caught_up =
            |observation: &Self| observation.durable.is_caught_up() && observation.visible.is_caught_up();
        while !is_caught_up(&self) && begun.elapsed() < CATCH_UP_MAX {
            child::fail_if_interrupted()?;
            thread::sleep(POLL);
            self.sample(store, control);
        }
        Ok(self)
    }

    fn numbers(self, case: &Case) -> Result<Numbers> {
        let mut all = WriterCounts::new()?;
        let mut rows_per_s = 0.0;
        let begun = self.counts.iter().map(|count| count.begun).min().context("a case has a writer")?;
        for count in &self.counts {
            all.offered += count.offered;
            all.accepted += count.accepted;
            all.refused += count.refused;
            all.blocked += count.blocked;
            all.inserts_ns.add(&count.inserts_ns).context("all have the same bounds")?;
            // From the first row of all, since a late start is time without a CPU, and to the writer's own
            // end, since the last one may be without a CPU for long after the others have ended.
            rows_per_s += count.accepted as f64 / (count.ended - begun).as_secs_f64().max(1e-9);
        }
        let mut numbers = vec![("inserts_per_s", rows_per_s)];
        numbers.extend(self.staged(case, rows_per_s));
        if let Load::Open { .. } = case.load {
            numbers.push(("accepted_percent", all.accepted as f64 * 100.0 / all.offered as f64));
        }
        numbers.push(("refusals", all.refused as f64));
        numbers.push(("blocked_inserts", all.blocked as f64));
        numbers.extend(quantiles(&all));
        let now = Instant::now();
        for (names, lag) in [(DURABLE_LAG, self.durable.finish(now)), (VISIBLE_LAG, self.visible.finish(now))]
        {
            let Some(lag) = lag else { continue };
            let milliseconds = |quantile| lag.value_at_quantile(quantile) as f64 / 1_000.0;
            numbers.extend([(names[0], milliseconds(0.5)), (names[1], milliseconds(0.99))]);
        }
        Ok(numbers)
    }

    /// The rates of the stages, for a store that has stages.
    fn staged(&self, case: &Case, rows_per_s: f64) -> Numbers {
        let Some(visible) = self.reached.visible else { return Vec::new() };
        let per_s = |rows: u64| rows as f64 / self.time.as_secs_f64().max(1e-9);
        let mut numbers = vec![("visible_per_s", per_s(visible))];
        if let Load::Closed { .. } = case.load {
            // Where the store reports no watermark, its accepted rows are appended.
            numbers.insert(0, ("appended_per_s", self.reached.appended.map_or(rows_per_s, per_s)));
        }
        numbers
    }
}

const DURABLE_LAG: [&str; 2] = ["lag_to_durable_p50_ms", "lag_to_durable_p99_ms"];
const VISIBLE_LAG: [&str; 2] = ["lag_to_visible_p50_ms", "lag_to_visible_p99_ms"];

/// Quantiles of one insert; empty where none was timed.
fn quantiles(count: &WriterCounts) -> Numbers {
    if count.inserts_ns.is_empty() {
        return Vec::new();
    }
    let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1_000.0;
    let at = |quantile| microseconds(count.inserts_ns.value_at_quantile(quantile));
    vec![
        ("insert_p50_us", at(0.5)),
        ("insert_p99_us", at(0.99)),
        ("insert_p99_9_us", at(0.999)),
        ("insert_p99_99_us", at(0.9999)),
        ("insert_max_us", microseconds(count.inserts_ns.max())),
    ]
}
