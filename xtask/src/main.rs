//! The repository's automation: `cargo xtask check | tidy | services | deny | sim | crash |
//! damage | quota-race | year`.
//!
//! Not handled here: the order of a full run, which is in `.ci/run`.

#![forbid(unsafe_code)]

mod check;
mod deny;
mod harness;
mod quota_race;
mod services;
mod sim;
mod tidy;
mod year;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

const USAGE: &str = "\
usage: cargo xtask COMMAND
  check [--base REV] [--all-dependents]
                               check a change in two minutes: format, tidy, clippy of the workspace, and the
                               tests of the crates that differ from main or REV, or are uncommitted. Their
                               direct dependents without integration tests are tested too, with
                               --all-dependents every dependent. The lab's experiments run only if they
                               changed. If a parser changed, the fuzz targets are compiled
  tidy                         check the repository's rules over every file that is, or would be, committed
  services [--rivals|--stop]   install and start the servers that the ignored tests need; --rivals installs
                               the proxies that the lab compares with, and starts none; --stop stops the
                               servers
  deny                         check licences, bans, sources and advisories of all dependencies against
                               deny.toml
  sim [flows] SEED [--count N] run the ledger's simulation with a seed, or with N seeds starting at it; with
                               `flows` that of whole flows through the gateway
  crash [OPTIONS]              kill gateways under load, some together with the power of their disk, and
                               check their bills; without options a short run of two minutes, as .ci/run
                               does; a full run has --random 1000 --aimed 800 --recovery 200 --power 200
                               --all-points; --help lists all options
  damage [OPTIONS]             damage ledgers that killed gateways left, and check that each damage is
                               detected; without options a short run of one minute; a full run has
                               --exhaustive --random 5000; --help lists all options
  quota-race [--rounds N] [--seed S] [--round R]
                               race 64 flows for the last bytes of quotas, in each of 60 rounds, and kill the
                               gateway in a third of them; a full run has --rounds 1000. A failure prints the
                               round that repeats it
  year DIRECTORY [--users N] [--flows N] [--days N] [--seed N]
                               make a ledger of synthetic flows there: without options 10,000 users and 50
                               million flows of 365 days, which take some 10 GB
  year --ask DIRECTORY         time what `tollgate usage` takes for common questions to a ledger";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["--help" | "-h" | "help"] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        ["check", ref options @ ..] => check::run(&root(), options),
        ["tidy"] => tidy::run(&root()),
        ["services"] => services::start(&root()),
        ["services", "--rivals"] => services::install_rivals(),
        ["services", "--stop"] => services::stop(&root()),
        ["deny"] => deny::run(&root()),
        ["sim", "flows", seed] => sim::run_flows(&root(), seed, "1"),
        ["sim", "flows", seed, "--count", count] => sim::run_flows(&root(), seed, count),
        ["sim", seed] => sim::run_ledger(&root(), seed, "1"),
        ["sim", seed, "--count", count] => sim::run_ledger(&root(), seed, count),
        ["quota-race", ref options @ ..] => quota_race::run(&root(), options),
        ["year", ref options @ ..] => year::run(&root(), options),
        [harness @ ("crash" | "damage"), ref options @ ..] => harness::run(&root(), harness, options),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask {}: {error:#}", arguments.join(" "));
            ExitCode::FAILURE
        }
    }
}

/// The workspace's root: the parent of this crate's folder.
fn root() -> PathBuf {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_directory.parent().expect("the crate is inside the workspace").to_owned()
}
