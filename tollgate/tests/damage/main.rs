//! Damage tests: ledgers whose files are deleted, cut, zeroed, flipped or replaced after a kill, and what the
//! next gateway makes of them.
//!
//! Promises: each case ends right, refused with a message that is true, or told; one that does not is printed
//! with its seed, its damage and what was said, and with the command that runs it again. Leaves to others:
//! building it with the feature `crash` (`cargo xtask damage`), and kills without damage (`crash`).
//!
//! ```text
//!   base.rs   a ledger with a history, undamaged     damage.rs   what is done to a copy of it
//!   part.rs   which files                            case.rs     a copy, from its damage to its bill
//!   room.rs   the product's commands in a copy       account.rs  what `usage` says, and how two differ
//!   visit.rs  a new flow                             told.rs     what is said beyond the usual
//!   verdict.rs  right, refused, told or a failure    table.rs    how many of each
//! ```

#![forbid(unsafe_code)]

mod account;
mod base;
#[path = "../crash/bill.rs"]
#[expect(dead_code, reason = "what only power failures ask of a bill")]
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
#[allow(dead_code, reason = "what it can shuffle are the kill tests' endings")]
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

/// What the names of our directories begin with.
const DIRECTORY_PREFIX: &str = "tollgate-damage-";
/// Cases at a time.
const WORKERS: usize = 2;
/// Without `--exhaustive`, one in so many pairs of kind and part. No divisor of the number of parts, so that
/// each part is met.
const THINNED: usize = 3;
/// Random cases with a second damage.
const SECOND_PERCENT: u64 = 20;
/// Failures whose directory stays: each has tens of megabytes.
const KEPT_MAX: usize = 10;

/// Damages ledgers that a killed gateway left, and holds what becomes of them against what was moved.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask damage")]
struct Options {
    /// Random cases.
    #[arg(long, default_value_t = 60)]
    random: usize,
    /// Each kind of damage to each part of each base once, in place of a thinned choice.
    #[arg(long)]
    exhaustive: bool,
    /// What all chance comes from; drawn if it is not given.
    #[arg(long)]
    seed: Option<u64>,
    /// Only this case of those that the other options make.
    #[arg(long)]
    case: Option<usize>,
    /// Only cases whose name has this in it.
    #[arg(long)]
    only: Option<String>,
    /// Print every case.
    #[arg(long)]
    all: bool,
}

impl Options {
    /// The command line that makes the same cases again.
    fn command(&self, seed: u64) -> String {
        let exhaustive = if self.exhaustive { " --exhaustive" } else { "" };
        format!("cargo xtask damage --random {} --seed {seed}{exhaustive}", self.random)
    }

    fn cases(&self, seed: u64) -> Vec<Case> {
        // First copies that are not damaged: whoever is told something of them is told too much.
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

/// What the workers share.
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
    // Copies of whole ledgers, thousands of them: not for a disk.
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
        let makers: Vec<_> =
            (0..Base::COUNT).map(|number| scope.spawn(move || Base::make(seed, number, root))).collect();
        makers.into_iter().map(|maker| maker.join().expect("a base that is wrong is told of")).collect()
    })
}

impl Run<'_> {
    fn work(&self, cases: &[Case]) {
        while let Some(case) = cases.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let directory = self.root.join(format!("case-{}", case.number));
            let run = || case.run(self.seed, self.bases, directory.clone());
            // A broken assumption of the harness is told with its case too, and the rest goes on.
            let report = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Some(Report::broken()));
            let is_kept = {
                let mut table = self.table.lock().unwrap();
                table.add(case, report.as_ref());
                table.failures() <= KEPT_MAX
            };
            let Some(report) = report else { continue };
            let kept = (report.outcome.is_failure() && is_kept).then_some(&directory);
            self.print(case, &report, kept);
            match kept {
                Some(directory) => self.keep(case, &report, directory),
                // What a broken case sealed stays.
                None => drop(fs::remove_dir_all(&directory)),
            }
        }
    }

    fn print(&self, case: &Case, report: &Report, kept: Option<&PathBuf>) {
        let Report { outcome, text, damages, .. } = report;
        if !outcome.is_failure() && !self.prints_all {
            return;
        }
        let kept = kept.map_or(String::new(), |kept| format!("\n  kept: {}", kept.display()));
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

    /// Puts what was said and the damaged ledger, as nobody had started it, beside what became of it.
    fn keep(&self, case: &Case, report: &Report, directory: &Path) {
        if report.transcript.is_empty() {
            return;
        }
        fs::write(directory.join("story.txt"), &report.transcript).unwrap();
        if let Some((_, mut damages)) = case.prepare(self.seed, self.bases, directory.join("damaged")) {
            // A seal would hinder whoever clears up.
            damages.iter_mut().for_each(|damage| {
                damage.unseal(&directory.join("damaged"));
            });
        }
    }
}

fn random_seed() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is after 1970");
    Rng::new(now.as_nanos() as u64, 0).random_range(0..u64::from(u32::MAX))
}
