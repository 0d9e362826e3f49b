//! Damage tests: ledgers whose files are deleted, cut, zeroed, flipped or replaced after a kill, and how the
//! next gateway handles them.
//!
//! Guarantees: each case is right, refused with a true message, or reported. Any other is printed with its
//! seed, its damage and the output, and with the command that repeats it. `cargo xtask damage` builds it with
//! the feature `crash`; `crash` has kills without damage.
//!
//! ```text
//!   base.rs       a ledger with a history, undamaged  damage.rs    kinds of damage
//!   part.rs       the damaged files                   case.rs      a copy, from its damage to its bill
//!   workspace.rs  runs commands on a copy             account.rs   the reports of `usage`, compared
//!   new_flow.rs   a flow of known size                messages.rs  output beyond the usual
//!   verdict.rs    the outcome of a case               table.rs     how many of each
//! ```

#![forbid(unsafe_code)]

mod account;
mod base;
#[path = "../crash/bill.rs"]
#[expect(dead_code, reason = "parts that only power failures need")]
mod bill;
mod case;
mod damage;
#[path = "../crash/facts.rs"]
mod facts;
#[path = "../crash/flow.rs"]
mod flow;
#[path = "../crash/load.rs"]
mod load;
mod messages;
mod new_flow;
#[allow(dead_code, reason = "its rules for a bill that grows are the kill tests' own")]
#[path = "../crash/oracle.rs"]
mod oracle;
mod part;
#[allow(dead_code, reason = "only the kill tests shuffle")]
#[path = "../crash/rng.rs"]
mod rng;
mod table;
#[path = "../crash/traffic.rs"]
mod traffic;
mod verdict;
mod workspace;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Instant, SystemTime};

use clap::Parser;

use base::Base;
use case::{Case, Report};
use damage::Kind;
use part::Part;
use rng::Rng;
use table::Table;

/// The prefix of temporary directories.
const DIRECTORY_PREFIX: &str = "tollgate-damage-";
/// Cases at a time.
const WORKERS: usize = 2;
/// Without `--exhaustive`, one in this many pairs of kind and part. No divisor of the number of parts, so
/// that every part occurs.
const THINNED: usize = 3;
/// Random cases with a second damage.
const SECOND_PERCENT: u64 = 20;
/// Failures whose directory is kept: each has tens of megabytes.
const KEPT_MAX: usize = 10;

/// Damages ledgers that a killed gateway left, and compares their bills with what was moved.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask damage")]
struct Options {
    /// Random cases.
    #[arg(long, default_value_t = 60)]
    random: usize,
    /// Run each kind of damage to each part of each base once, in place of a thinned choice.
    #[arg(long)]
    exhaustive: bool,
    /// The seed of all random numbers; random if it is not given.
    #[arg(long)]
    seed: Option<u64>,
    /// Run only this case.
    #[arg(long)]
    case: Option<usize>,
    /// Run only cases whose name contains this text.
    #[arg(long)]
    only: Option<String>,
    /// Print every case.
    #[arg(long)]
    all: bool,
}

impl Options {
    /// The command line that repeats these cases.
    fn command(&self, seed: u64) -> String {
        let exhaustive = if self.exhaustive { " --exhaustive" } else { "" };
        format!("cargo xtask damage --random {} --seed {seed}{exhaustive}", self.random)
    }

    fn cases(&self, seed: u64) -> Vec<Case> {
        // First copies without damage: any message about them is a false one.
        let mut cases: Vec<(usize, Vec<_>)> = (0..Base::COUNT).map(|base| (base, Vec::new())).collect();
        let pairs = Kind::ALL.iter().flat_map(|kind| Part::ALL.iter().map(|part| (*kind, *part)));
        for (at, pair) in pairs.enumerate() {
            let all = 0..Base::COUNT;
            let is_chosen = at % THINNED == (seed % THINNED as u64) as usize;
            let one = at / THINNED % Base::COUNT;
            let bases = if self.exhaustive { all } else { one..one + usize::from(is_chosen) };
            cases.extend(bases.map(|base| (base, vec![pair])));
        }
        for number in 0..self.random {
            let mut rng = Rng::new(seed, number as u64 + (1 << 50));
            let damages = if rng.random_percent(SECOND_PERCENT) { 2 } else { 1 };
            let base = usize::try_from(rng.random_range(0..Base::COUNT as u64)).unwrap();
            let damages = (0..damages).map(|_| (*rng.choose(&Kind::ALL), *rng.choose(&Part::ALL)));
            cases.push((base, damages.collect()));
        }
        let numbered = cases.into_iter().enumerate();
        numbered.map(|(number, (base, damages))| Case { number, base, damages }).collect()
    }
}

/// Shared by the workers.
struct Run<'r> {
    seed: u64,
    command: String,
    bases: &'r [Base],
    root: &'r Path,
    next: AtomicUsize,
    table: Mutex<Table>,
    prints_all: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    verdict::run_self_test();
    oracle::run_self_test();
    let seed = options.seed.unwrap_or_else(random_seed);
    let command = options.command(seed);
    println!("{command}");
    let began = Instant::now();
    // Thousands of copies of whole ledgers, which would take long on a disk.
    let memory = Path::new("/dev/shm");
    let memory = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let root = tempfile::Builder::new().prefix(DIRECTORY_PREFIX).tempdir_in(memory).unwrap();
    let bases = match make_bases(seed, root.path()) {
        Ok(bases) => bases,
        Err(wrong) => {
            eprintln!("damage: seed {seed}: {wrong}\nagain: {command}\nkept: {}", root.keep().display());
            return ExitCode::FAILURE;
        }
    };
    println!("{} bases in {} s", bases.len(), began.elapsed().as_secs());
    let mut cases = options.cases(seed);
    cases.retain(|case| {
        let is_wanted = |only: &String| case.name(&bases).contains(only);
        options.case.is_none_or(|number| number == case.number) && options.only.as_ref().is_none_or(is_wanted)
    });
    let run = Run {
        seed,
        command,
        bases: &bases,
        root: root.path(),
        next: AtomicUsize::new(0),
        table: Mutex::default(),
        prints_all: options.all,
    };
    thread::scope(|scope| {
        (0..WORKERS).for_each(|_| drop(scope.spawn(|| run.work(&cases))));
    });
    let table = run.table.into_inner().unwrap();
    println!("{table}; {} s; seed {seed}", began.elapsed().as_secs());
    if table.failures() == 0 {
        return ExitCode::SUCCESS;
    }
    eprintln!("damage: kept: {}", root.keep().display());
    ExitCode::FAILURE
}

fn make_bases(seed: u64, root: &Path) -> Result<Vec<Base>, String> {
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..Base::COUNT).map(|number| scope.spawn(move || Base::make(seed, number, root))).collect();
        threads.into_iter().map(|thread| thread.join().expect("making a base returns its errors")).collect()
    })
}

impl Run<'_> {
    fn work(&self, cases: &[Case]) {
        while let Some(case) = cases.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let directory = self.root.join(format!("case-{}", case.number));
            let run = || case.run(self.seed, self.bases, directory.clone());
            // A panic of the harness is reported with its case too, and the other cases go on.
            let report = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Some(Report::broken()));
            let is_kept = {
                let mut table = self.table.lock().unwrap();
                table.add(case, report.as_ref());
                table.failures() <= KEPT_MAX
            };
            let Some(report) = report else { continue };
            let kept_directory = (report.outcome.is_failure() && is_kept).then_some(&directory);
            self.print(case, &report, kept_directory);
            match kept_directory {
                Some(directory) => self.keep(case, &report, directory),
                // The seals of a panicked case remain.
                None => drop(fs::remove_dir_all(&directory)),
            }
        }
    }

    fn print(&self, case: &Case, report: &Report, kept_directory: Option<&PathBuf>) {
        let Report { outcome, text, damages, .. } = report;
        if !outcome.is_failure() && !self.prints_all {
            return;
        }
        let kept = kept_directory.map_or(String::new(), |path| format!("\n  kept: {}", path.display()));
        let name = case.name(self.bases);
        println!(
            "{}: case {}, {name}: {}\n  done: {damages}\n  again: {} --case {}{kept}",
            outcome.name(),
            case.number,
            text.trim_end().replace('\n', "\n  "),
            self.command,
            case.number,
        );
    }

    /// Puts the transcript and the damaged ledger, before its first start, beside its final state.
    fn keep(&self, case: &Case, report: &Report, directory: &Path) {
        if report.transcript.is_empty() {
            return;
        }
        fs::write(directory.join("story.txt"), &report.transcript).unwrap();
        if let Some((_, mut damages)) = case.prepare(self.seed, self.bases, directory.join("damaged")) {
            // A seal would hinder the removal of the directory.
            damages.iter_mut().for_each(|damage| {
                damage.unseal(&directory.join("damaged"));
            });
        }
    }
}

fn random_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("the clock is after 1970");
    Rng::new(now.as_nanos() as u64, 0).random_range(0..u64::from(u32::MAX))
}
