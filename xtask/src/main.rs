//! Automation, all of it in Rust: `cargo xtask tidy | services | deny | sim | crash | damage`.
//! Promises: each command says on one line what went wrong and what to do. Leaves the order of a full
//! run to `.ci/run`.

#![forbid(unsafe_code)]

mod deny;
mod harness;
mod services;
mod sim;
mod tidy;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

const USAGE: &str = "\
usage: cargo xtask COMMAND
  tidy                         check the house rules over every file that is, or would be, committed
  services [--rivals|--stop]   install and start what the ignored tests talk to; --rivals only installs
                               the proxies that the lab compares with; --stop ends what was started
  deny                         check licences, bans, sources and advisories of all dependencies against
                               deny.toml
  sim SEED [--count N]         run the ledger's simulated world of a seed, or of N seeds from it on
  crash [OPTIONS]              kill gateways under load, some with the power of their disk, and check their
                               bills; without options the share of a change, some two minutes; the whole is
                               --random 1000 --aimed 800 --recovery 200 --power 200 --all-points; --help
                               tells the rest
  damage [OPTIONS]             damage ledgers that killed gateways left, and check what becomes of them;
                               without options the share of a change, about a minute; the whole is
                               --exhaustive --random 5000; --help tells the rest";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["tidy"] => tidy::run(&root()),
        ["services"] => services::start(&root()),
        ["services", "--rivals"] => services::install_rivals(),
        ["services", "--stop"] => services::stop(&root()),
        ["deny"] => deny::run(&root()),
        ["sim", seed] => sim::run(&root(), seed, "1"),
        ["sim", seed, "--count", count] => sim::run(&root(), seed, count),
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

/// The workspace's root: the folder above this crate's own.
fn root() -> PathBuf {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_directory.parent().expect("xtask lies inside the workspace").to_owned()
}
