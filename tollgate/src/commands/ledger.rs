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
use serde_json::json;
use sys::clock;

use super::{Context, print, print_json};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Check every file, make every sum again from the flows, and follow the journal's chain. Works while
    /// `serve` runs. Exit code 1 if anything is wrong.
    Verify(Verify),
    /// Copy the database to a directory, as of one moment, also while `serve` runs.
    Backup(Backup),
    /// Tell what is wrong with the journal, and with --yes go on without what is lost.
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
    /// Copy the journal as it is, and give up the entries that are lost.
    #[arg(long)]
    yes: bool,
}

pub(crate) fn run(context: &Context, command: &Command) -> anyhow::Result<ExitCode> {
    let config = context.load()?;
    match command {
        Command::Verify(options) => verify(&config.ledger, options),
        Command::Backup(options) => backup(&config.ledger, options),
        Command::Repair(options) => mend(&config, options),
    }
}

fn verify(settings: &Settings, options: &Verify) -> anyhow::Result<ExitCode> {
    let report = ledger::verify::verify(&settings.directory)?;
    let journal = inspect(&settings.directory)?;
    let mut problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
    problems.extend(journal.damage.as_ref().map(ToString::to_string));
    if journal.breaks > 0 {
        problems.push(format!("the journal's chain is broken in {} places", journal.breaks));
    }
    if options.json {
        print_json(&json!({
            "files": report.files, "rows": report.rows, "flows": report.flows, "sums": report.sums,
            "journal_entries": journal.entries, "problems": problems,
            "more_problems": report.more_problems, "notes": report.notes,
        }))?;
    } else {
        let ledger::verify::VerifyReport { files, rows, flows, sums, more_problems, notes, .. } = &report;
        let entries = journal.entries;
        let mut text = problems.iter().map(|problem| format!("wrong: {problem}\n")).collect::<String>();
        if *more_problems > 0 {
            text += &format!("wrong: and {more_problems} more\n");
        }
        text.extend(notes.iter().chain(&journal.torn).map(|note| format!("note: {note}\n")));
        let outcome = if problems.is_empty() { "whole" } else { "NOT whole" };
        text += &format!(
            "{outcome}: {files} files, {rows} rows, {flows} flows, {sums} sums made again, \
             {entries} journal entries that the database has not got yet\n"
        );
        print(&text)?;
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn backup(settings: &Settings, options: &Backup) -> anyhow::Result<ExitCode> {
    let report = ledger::backup::backup(&settings.directory, &options.target)?;
    print(&format!("{} files, {} bytes in {}\n", report.files, report.bytes, options.target.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn mend(config: &Config, options: &Repair) -> anyhow::Result<ExitCode> {
    let open = OpenSettings { journal_bytes_max: u64::MAX, slots: 1, ..ledger_settings(config, 1) };
    let Inspection { entries, damage, torn, .. } = examine(&open)?;
    let Some(damage) = damage else {
        let torn = torn.map_or(String::new(), |torn| format!("{torn}; nothing in it had been promised\n"));
        print(&format!("{torn}nothing is to be repaired: `tollgate serve` goes on from here\n"))?;
        return Ok(ExitCode::SUCCESS);
    };
    print(&format!(
        "Segment {} of the journal is damaged at byte {}.\n\
         Lost: {} entries, numbers {}. Each was a flow's end, or what it had come to meanwhile.\n\
         Whole: {entries} entries before and {} behind, which the database has not got yet.\n\
         A flow that is lost with its end is billed as its last entry before says, or not at all.\n\
         If a copy of the segment exists (a backup of {}), put it back instead.\n",
        damage.segment,
        damage.at,
        damage.lost,
        damage.ranges,
        damage.salvaged,
        config.ledger.directory.join("journal").display(),
    ))?;
    if !options.yes {
        print("\nNothing was changed. To go on without what is lost: tollgate ledger repair --yes\n")?;
        return Ok(ExitCode::FAILURE);
    }
    let (copy, recovery) = repair(&open, clock::wall())?;
    print(&format!(
        "\nRepaired. The journal as it was is in {}.\n{} flows of the live table were brought in.\n",
        copy.display(),
        recovery.killed + recovery.closed
    ))?;
    Ok(ExitCode::SUCCESS)
}
