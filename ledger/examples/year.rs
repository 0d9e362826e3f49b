//! Makes a ledger of a synthetic year: `cargo xtask year DIRECTORY`.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, io};

use ledger::year::{YearReport, YearSettings, make};
use sys::clock::{self, Nanos};

/// The pause between two lines of progress.
const PROGRESS_PAUSE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(settings) = settings(&arguments) else {
        eprintln!("usage: year DIRECTORY SEED USERS FLOWS DAYS");
        return ExitCode::from(2);
    };
    match run(&settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn settings(arguments: &[String]) -> Option<YearSettings> {
    let [directory, seed, users, flows, days] = arguments else { return None };
    let users = users.parse().ok().filter(|users| *users > 0)?;
    let days = days.parse().ok().filter(|days| *days > 0)?;
    let (directory, seed, flows) = (PathBuf::from(directory), seed.parse().ok()?, flows.parse().ok()?);
    Some(YearSettings { directory, seed, users, flows, days })
}

fn run(settings: &YearSettings) -> Result<(), Box<dyn std::error::Error>> {
    let began = clock::monotonic();
    let mut shown = began;
    let report = make(settings, |report| {
        if clock::monotonic().since(shown) >= PROGRESS_PAUSE {
            shown = clock::monotonic();
            println!("{:>3} %  {}", report.flows * 100 / settings.flows.max(1), rate(report, began));
        }
    })?;
    println!("{}; {} up, {} down", rate(&report, began), report.up, report.down);
    println!(
        "longest transaction {:?}, longest checkpoint {:?}; closing the last months took {:?}",
        report.longest_apply, report.longest_checkpoint, report.seal
    );
    for (name, bytes) in sizes(&settings.directory)? {
        println!("{name:<20} {:>8} MB", bytes / 1_000_000);
    }
    Ok(())
}

fn rate(report: &YearReport, began: Nanos) -> String {
    let seconds = clock::monotonic().since(began).as_secs_f64();
    let each_second = report.flows as f64 / seconds;
    format!("{} flows, {} entries in {seconds:.0} s: {each_second:.0} flows/s", report.flows, report.entries)
}

/// The databases and their bytes, and the sum.
fn sizes(directory: &Path) -> io::Result<Vec<(String, u64)>> {
    let mut sizes = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        sizes.push((entry.file_name().to_string_lossy().into_owned(), entry.metadata()?.len()));
    }
    sizes.retain(|(name, _)| name.ends_with(".db"));
    sizes.sort();
    let all = sizes.iter().map(|(_, bytes)| bytes).sum();
    sizes.push(("all".to_owned(), all));
    Ok(sizes)
}
