//! `tollgate ledger`: verifies, copies and repairs the ledger.
//!
//! Guarantees: accepts no loss without `--yes`; exit code 1 if there is a problem.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use gateway::config::Config;
use gateway::config::settings::Ledger as Settings;
use gateway::server::ledger_settings;
use ledger::OpenSettings;
use ledger::repair::{Inspection, examine, inspect, repair};
use ledger::verify::VerifyReport;
use serde_json::json;
use sys::clock;

use super::{Context, counted, print, print_json};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Check every file, recompute every sum from the flows, follow the journal's chain, and report what is
    /// missing. Works while `serve` runs, and on a read-only file system. Exit code 1 unless the ledger is
    /// whole; losses that `repair` accepted are printed.
    Verify(Verify),
    /// Copy the database, as of one moment, to a directory. Works while `serve` runs.
    Backup(Backup),
    /// Report what is lost, and with --yes continue without it.
    Repair(Repair),
}

#[derive(Args)]
pub(crate) struct Verify {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct Backup {
    /// The copy: a new or empty directory.
    #[arg(value_name = "DIRECTORY")]
    target: PathBuf,
}

#[derive(Args)]
pub(crate) struct Repair {
    /// Copy the journal as it is, and continue without what is lost. The ledger records the author of this
    /// consent.
    #[arg(long)]
    yes: bool,
    /// The author of the consent, if not the account that runs the command.
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
        // The losses name what is wrong with it.
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

/// A line for each problem and note, and the outcome.
fn render(report: &VerifyReport, problems: &[String], notes: &[String], entries: u64) -> String {
    let VerifyReport { files, rows, flows, sums, more_problems, accepted, .. } = report;
    let mut text = problems.iter().map(|problem| format!("wrong: {problem}\n")).collect::<String>();
    if *more_problems > 0 {
        text += &format!("wrong: {} not listed here\n", counted(*more_problems, "further problem"));
    }
    text.extend(accepted.iter().map(|loss| format!("accepted as lost: {loss}\n")));
    text.extend(report.notes.iter().chain(notes).map(|note| format!("note: {note}\n")));
    let outcome = match (problems.is_empty(), accepted.len()) {
        (false, _) => {
            "The ledger is NOT whole: restore a backup, or see `tollgate ledger repair`.".to_owned()
        }
        (true, 0) => "The ledger is whole.".to_owned(),
        (true, losses) => {
            format!("The ledger is whole, except for {} above.", counted(losses as u64, "accepted loss"))
        }
    };
    text + &format!(
        "{outcome} Checked: {files} files, {rows} rows, {flows} flows, {sums} sums, and {entries} entries of \
         the journal that are not yet in the database.\n"
    )
}

/// The ledger's settings for a command that serves no connection.
pub(super) fn read_settings(config: &Config) -> OpenSettings {
    OpenSettings { journal_bytes_max: u64::MAX, slots: 1, ..ledger_settings(config, 1) }
}

fn backup(settings: &Settings, options: &Backup) -> anyhow::Result<ExitCode> {
    let report = ledger::backup::backup(&settings.directory, &options.target)?;
    let target = options.target.display();
    print(&format!("copied {} files, {} bytes, to {target}\n", report.files, report.bytes))?;
    match report.left_out {
        Some(0) => {}
        Some(entries) => print(&format!(
            "the backup lacks {entries} entries that are in the journal and not yet in the database: a later \
             backup will have them\n"
        ))?,
        None => print(
            "the journal cannot be read: the backup lacks the entries that are not yet in the database\n",
        )?,
    }
    Ok(ExitCode::SUCCESS)
}

fn run_repair(config: &Config, options: &Repair) -> anyhow::Result<ExitCode> {
    let open = read_settings(config);
    let Inspection { losses, notes, .. } = examine(&open)?;
    print(&notes.iter().map(|note| format!("{note}\n")).collect::<String>())?;
    if losses.0.is_empty() {
        print("nothing to repair: `tollgate serve` can continue\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    print(&losses.0.iter().map(|loss| format!("lost: {loss}\n")).collect::<String>())?;
    print(
        "An entry has the count of a flow, while it was open or at its end. A flow whose last entries are \
         lost is billed by the entry before them, or not at all if there is none.\n\
         The sums are made again from the flows that the months and the journal still have.\n\
         If a copy of the lost files exists, restore it instead.\n",
    )?;
    if !options.yes {
        print("\nNothing was changed. To continue without what is lost: tollgate ledger repair --yes\n")?;
        return Ok(ExitCode::FAILURE);
    }
    let author = options.author.clone().unwrap_or_else(account);
    let (copy, recovery) = repair(&open, &author, clock::wall())?;
    print(&format!(
        "\nRepaired. The ledger records that {author} accepted this. The former journal is in {}.\n\
         {} flows of the live table were recovered.\n",
        copy.display(),
        recovery.killed + recovery.closed
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The account that runs the command, also through `sudo`.
pub(super) fn account() -> String {
    let named = ["SUDO_USER", "USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    named.unwrap_or_else(|| format!("uid {}", sys::limits::effective_uid()))
}
