//! Kill tests: gateways under load die by SIGKILL or by a power failure; the bill of the next one is judged.
//!
//! Guarantees: an error is printed with its seed, generation, flow and numbers, and with the command that
//! repeats the run. `cargo xtask crash` builds it with the feature `crash`.
//!
//! ```text
//!   history.rs   one data directory through many kills     oracle.rs    the rules for its bill
//!   load.rs      flows through a gateway until it is dead  bill.rs      reads the ledger
//!   flow.rs      both ends of a flow                       traffic.rs   kinds of flows
//!   gateway.rs   the process that is killed                rng.rs       random numbers by a seed
//!   disk.rs      a disk whose power fails                  observer.rs  what was reported as durable
//!   table.rs     flows that hold a slot of the live table  facts.rs     audit and counts of a flow
//!   totals.rs    the totals of a run
//! ```

#![forbid(unsafe_code)]

mod bill;
mod disk;
mod facts;
mod flow;
mod gateway;
mod history;
mod load;
mod observer;
mod oracle;
mod rng;
mod table;
mod totals;
mod traffic;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use clap::{Parser, ValueEnum};

use disk::{Broken, Disk, DiskModel};
use gateway::Workspace;
use history::{Ending, History};
use rng::Rng;
use totals::Totals;

/// The prefix of temporary directories.
const DIRECTORY_PREFIX: &str = "tollgate-crash-";

/// Kills gateways under load and compares their bills with what was sent.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask crash")]
struct Options {
    /// Kills at a random instant.
    #[arg(long, default_value_t = 70)]
    random: usize,
    /// Kills at a crash point.
    #[arg(long, default_value_t = 60)]
    aimed: usize,
    /// Kills at a random instant, each followed by one inside the recovery.
    #[arg(long, default_value_t = 20)]
    recovery: usize,
    /// Orderly stops under load, besides the one at the end of each data directory.
    #[arg(long, default_value_t = 0)]
    stops: usize,
    /// Power failures, in data directories of their own with kills and stops too. 12 by default, or none if
    /// this machine does not permit mounting.
    #[arg(long)]
    power: Option<usize>,
    /// Fail the power on a disk that ignores these syncs: a test of the harness itself, which has to fail.
    #[arg(long)]
    broken_disk: Option<Broken>,
    /// The seed of all random numbers; random if it is not given.
    #[arg(long)]
    seed: Option<u64>,
    /// Kills of one data directory.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    generations: u16,
    /// The percentage of data directories with the durability `sync`.
    #[arg(long, default_value_t = 30)]
    sync_share: u64,
    /// Run only this history.
    #[arg(long)]
    history: Option<usize>,
    /// Fail if no process died at some crash point: for runs long enough to draw each many times.
    #[arg(long)]
    all_points: bool,
    /// Judge a bill made from the send audit, in place of the ledger's: a test of the harness itself.
    #[arg(long)]
    rehearse: bool,
}

impl Options {
    /// Sets the number of power failures, and tests the disk that has them.
    ///
    /// # Errors
    /// This machine does not permit mounting, though power failures were requested.
    fn resolve_power(&mut self) -> Result<(), String> {
        if self.power == Some(0) {
            return Ok(());
        }
        match disk::run_self_test() {
            Ok(()) => self.power = Some(self.power.unwrap_or(POWER_USUAL)),
            Err(error) if self.power.is_none() => {
                println!("skipped: power failures: {MOUNT_REQUIREMENT} ({error})");
            }
            Err(error) => {
                return Err(format!("cannot simulate power failures: {MOUNT_REQUIREMENT}: {error}"));
            }
        }
        Ok(())
    }

    /// The command line that repeats these histories.
    fn command(&self, seed: u64) -> String {
        let Options { random, aimed, recovery, stops, generations, sync_share, rehearse, .. } = self;
        let rehearse = if *rehearse { " --rehearse" } else { "" };
        let broken = self.broken_disk.and_then(|broken| broken.to_possible_value());
        let broken = broken.map_or(String::new(), |broken| format!(" --broken-disk {}", broken.get_name()));
        let power = self.power.unwrap_or(0);
        format!(
            "cargo xtask crash --random {random} --aimed {aimed} --recovery {recovery} --stops {stops} \
             --power {power} --generations {generations} --sync-share {sync_share} --seed {seed}\
             {rehearse}{broken}"
        )
    }

    /// The histories: the endings of each one's gateways, and whether its disk may lose power. Those come
    /// last, so that their number changes no other.
    fn histories(&self, seed: u64) -> Vec<(Vec<Ending>, bool)> {
        let many = |counts: &[(Ending, usize)]| -> Vec<Ending> {
            counts.iter().flat_map(|(ending, count)| std::iter::repeat_n(*ending, *count)).collect()
        };
        let mut endings = many(&[
            (Ending::Random, self.random),
            (Ending::Aimed, self.aimed),
            (Ending::Recovery, self.recovery),
            (Ending::Stop, self.stops),
        ]);
        Rng::new(seed, u64::MAX).shuffle(&mut endings);
        let generations = usize::from(self.generations);
        let mut histories: Vec<_> = endings.chunks(generations).map(|part| (part.to_vec(), false)).collect();
        let mut left = self.power.unwrap_or(0);
        while left > 0 {
            let count = left.min(POWER_FAILURES_EACH);
            // A power failure is followed by other endings too.
            let mut endings = many(&[
                (Ending::Power, count),
                (Ending::Random, 1),
                (Ending::Aimed, 1),
                (Ending::Recovery, 1),
                (Ending::Stop, 1),
            ]);
            Rng::new(seed, (1 << 40) + histories.len() as u64).shuffle(&mut endings);
            histories.push((endings, true));
            left -= count;
        }
        histories
    }
}

const MOUNT_REQUIREMENT: &str = "mounting a test disk needs root and /dev/fuse";

/// Power failures of one data directory, beside four other endings.
const POWER_FAILURES_EACH: usize = 6;
const POWER_USUAL: usize = 12;

fn main() -> ExitCode {
    let mut options = Options::parse();
    oracle::run_self_test();
    if let Err(text) = options.resolve_power() {
        eprintln!("crash: {text}");
        return ExitCode::FAILURE;
    }
    let seed = options.seed.unwrap_or_else(random_seed);
    let command = options.command(seed);
    println!("{command}");
    let began = Instant::now();
    let knows_durability = knows_durability();
    if !knows_durability {
        println!("this gateway has no setting for durability: --sync-share has no effect");
    }
    let caveat = match (options.rehearse, knows_durability) {
        _ if options.broken_disk.is_some() => " (A BROKEN DISK)",
        (true, _) => " (REHEARSAL, no ledger was judged)",
        (false, false) => " (no choice of durability)",
        (false, true) => "",
    };
    let mut totals = Totals::new(history::points(), caveat);
    for (number, (endings, on_disk)) in options.histories(seed).into_iter().enumerate() {
        if options.history.is_some_and(|only| only != number) {
            continue;
        }
        let sync = Rng::new(seed, number as u64 + (1 << 32)).random_percent(options.sync_share);
        let durability = knows_durability.then_some(if sync { "sync" } else { "delayed" });
        let own_seed = Rng::new(seed, number as u64).random_range(0..u64::MAX);
        let setup = Setup { durability, rehearses: options.rehearse, on_disk, broken: options.broken_disk };
        if let Err(wrong) = run_history(own_seed, setup, &endings, &mut totals) {
            eprintln!("crash: seed {seed}, history {number}, {wrong}\nagain: {command} --history {number}");
            return ExitCode::FAILURE;
        }
    }
    println!("{totals}; {} s; seed {seed}", began.elapsed().as_secs());
    if options.all_points && !totals.unreached().is_empty() {
        eprintln!("crash: some crash points were never reached; see above");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// The properties of a history besides its endings.
struct Setup<'a> {
    durability: Option<&'a str>,
    rehearses: bool,
    /// The data lies on a disk whose power may fail.
    on_disk: bool,
    broken: Option<Broken>,
}

/// Runs one history in a directory that is kept if there is an error.
fn run_history(seed: u64, setup: Setup<'_>, endings: &[Ending], totals: &mut Totals) -> Result<(), String> {
    // With a prefix of its own, so that a kept directory is recognized among those of other tests.
    let directory = tempfile::Builder::new().prefix(DIRECTORY_PREFIX).tempdir().unwrap();
    // On a disk the audit would be written back all the time.
    let memory = Path::new("/dev/shm");
    let memory = if memory.is_dir() { memory } else { directory.path() };
    let shared = tempfile::Builder::new().prefix(DIRECTORY_PREFIX).tempdir_in(memory).unwrap();
    let audit_path = shared.path().join("witness");
    let workspace = if setup.on_disk {
        let mut rng = Rng::new(seed, 1);
        let model = DiskModel::random(&mut rng, setup.broken);
        let mount = |at: &Path| Disk::mount(at, model, rng);
        let tables = shared.path().join("tables");
        let workspace = Workspace::on_disk(directory.path(), audit_path, setup.durability, tables, mount);
        workspace.map_err(|error| format!("no disk: {error}"))?
    } else {
        Workspace::new(directory.path(), audit_path, setup.durability)
    };
    let mut history = History::new(seed, workspace, setup.rehearses, totals);
    // A panic of the harness is reported with its seed too.
    let outcome = catch_unwind(AssertUnwindSafe(|| history.run(endings)))
        .unwrap_or_else(|_| Err("the harness panicked".to_owned()));
    outcome.map_err(|wrong| {
        history.save();
        drop(history);
        format!("{wrong}\nkept: {}", directory.keep().display())
    })
}

/// Whether the gateway has the setting `durability`, which may be younger than this harness.
fn knows_durability() -> bool {
    let directory = tempfile::tempdir().unwrap();
    Workspace::new(directory.path(), directory.path().join("witness"), Some("sync")).accepts_configuration()
}

fn random_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("the clock is after 1970");
    Rng::new(now.as_nanos() as u64, 0).random_range(0..u64::from(u32::MAX))
}
