//! `tollgate ledger`: is it whole, a copy of it, and going on after damage.
//!
//! Promises: nothing is given up without `--yes`; a problem is an exit code of 1. Leaves to others:
//! everything that is found (`ledger::verify`, `ledger::repair`).

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use gateway::config::Config;
use gateway::server::ledger_settings;
use gateway::settings::Ledger as Settings;
use ledger::OpenSettings;
use ledger::repair::{Inspection, examine, inspect, repair};
use ledger::verify::VerifyReport;
use serde_json::json;
use sys::clock;

use super::{Context, print, print_json};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Check every file, make every sum again from the flows, follow the journal's chain, and tell what is
    /// missing. Works while `serve` runs, and on a read-only file system. Exit code 1 unless the ledger is
    /// whole; what was accepted by `repair` is told.
    Verify(Verify),
    /// Copy the database to a directory, as of one moment, also while `serve` runs.
    Backup(Backup),
    /// Tell what is lost, and with --yes go on without it.
    Repair(Repair),
}

#[derive(Args)]
pub(crate) struct Verify {
    /// Print for a program.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Backup {
    /// The copy: a directory that is made, or is empty.
    #[arg(value_name = "DIRECTORY")]
    target: PathBuf,
}

#[derive(Args)]
pub(crate) struct Repair {
    /// Copy the journal as it is, and go on without what is lost. The ledger keeps who accepted that.
    #[arg(long)]
    yes: bool,
    /// Who accepts it, if that is not the account that runs the command.
    #[arg(long, value_name = "NAME", requires = "yes")]
    author: Option<String>,
}

pub(crate) fn run(context: &Context, command: &Command) -> anyhow::Result<ExitCode> {
    let config = context.load()?;
    match command {
        Command::Verify(options) => verify(&config, options),
        Command::Backup(options) => backup(&config.ledger, options),
        Command::Repair(options) => run_repair(&config, options),
    }
}

fn verify(config: &Config, options: &Verify) -> anyhow::Result<ExitCode> {
    let Inspection { entries, breaks, losses, notes } = inspect(&read_settings(config))?;
    let report = match ledger::verify::verify(&config.ledger.directory) {
        // What is wrong with it is among the losses.
        Err(_) if !losses.0.is_empty() => VerifyReport::default(),
        report => report?,
    };
    let mut problems: Vec<String> = losses.0.iter().map(ToString::to_string).collect();
    problems.extend(report.problems.iter().map(ToString::to_string));
    if breaks > 0 {
        problems.push(format!("the journal's chain is broken in {breaks} places"));
    }
    if options.json {
        let all_notes = [report.notes.clone(), notes].concat();
        print_json(&json!({
            "whole": problems.is_empty(),
            "files": report.files, "rows": report.rows, "flows": report.flows, "sums": report.sums,
            "journal_entries": entries, "problems": problems, "more_problems": report.more_problems,
            "accepted": report.accepted, "notes": all_notes,
        }))?;
    } else {
        print(&render(&report, &problems, &notes, entries))?;
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What was found, a line for each problem and note, and what that comes to.
fn render(report: &VerifyReport, problems: &[String], notes: &[String], entries: u64) -> String {
    let VerifyReport { files, rows, flows, sums, more_problems, accepted, .. } = report;
    let mut text = problems.iter().map(|problem| format!("wrong: {problem}\n")).collect::<String>();
    if *more_problems > 0 {
        text += &format!("wrong: and {more_problems} more\n");
    }
    text.extend(accepted.iter().map(|loss| format!("accepted: {loss}\n")));
    text.extend(report.notes.iter().chain(notes).map(|note| format!("note: {note}\n")));
    let outcome = match (problems.is_empty(), accepted.len()) {
        (false, _) => "NOT whole".to_owned(),
        (true, 0) => "whole".to_owned(),
        (true, 1) => "whole but for what was accepted once".to_owned(),
        (true, times) => format!("whole but for what was accepted {times} times"),
    };
    text + &format!(
        "{outcome}: {files} files, {rows} rows, {flows} flows, {sums} sums made again, {entries} journal \
         entries that the database has not got yet\n"
    )
}

/// The ledger's settings for a command that serves nothing.
pub(super) fn read_settings(config: &Config) -> OpenSettings {
    OpenSettings { journal_bytes_max: u64::MAX, slots: 1, ..ledger_settings(config, 1) }
}

fn backup(settings: &Settings, options: &Backup) -> anyhow::Result<ExitCode> {
    let report = ledger::backup::backup(&settings.directory, &options.target)?;
    print(&format!("{} files, {} bytes in {}\n", report.files, report.bytes, options.target.display()))?;
    match report.left_out {
        Some(0) => {}
        Some(entries) => print(&format!(
            "{entries} entries are in the journal alone, and not in this backup: they wait for the database\n"
        ))?,
        None => {
            print("the journal cannot be read: what it has and the database has not is not in this backup\n")?
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run_repair(config: &Config, options: &Repair) -> anyhow::Result<ExitCode> {
    let open = read_settings(config);
    let Inspection { losses, notes, .. } = examine(&open)?;
    print(&notes.iter().map(|note| format!("{note}\n")).collect::<String>())?;
    if losses.0.is_empty() {
        print("nothing is to be repaired: `tollgate serve` goes on from here\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&losses.0.iter().map(|loss| format!("lost: {loss}\n")).collect::<String>())?;
    print(
        "Each lost entry was a flow's end, or what it had come to meanwhile: its flow is billed as the entry \
         before says, or not at all. What months and journal have is in the sums again.\n\
         If a copy of the files exists, put it back instead.\n",
    )?;
    if !options.yes {
        print("\nNothing was changed. To go on without what is lost: tollgate ledger repair --yes\n")?;
        return Ok(ExitCode::FAILURE);
    }
    let author = options.author.clone().unwrap_or_else(account);
    let (copy, recovery) = repair(&open, &author, clock::wall())?;
    print(&format!(
        "\nRepaired. The ledger notes that {author} accepted this. The journal as it was is in {}.\n\
         {} flows of the live table were brought in.\n",
        copy.display(),
        recovery.killed + recovery.closed
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The account that runs the command, behind `sudo` too.
fn account() -> String {
    let named = ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    named.unwrap_or_else(|| format!("uid {}", sys::limits::user()))
}
