//! Tollgate: a metered egress gateway. This is its command line.
//!
//! Guarantees: exit codes 0 fine, 1 failed, 2 wrong usage, 78 wrong configuration; a closed standard output
//! is no error.

#![forbid(unsafe_code)]

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use gateway::config::{ConfigErrors, Severity};
use gateway::first_start::FirstStartError;

use commands::{
    Context, EXIT_CONFIGURATION, check, doctor, explain, ledger, quota, reload, serve, top, usage, user,
};

mod commands;
mod console;
mod control;

/// A metered egress gateway: decides which user may reach which destination, and bills every byte.
#[derive(Parser)]
#[command(name = "tollgate", version, after_help = EXIT_CODES)]
struct CommandLine {
    /// Configuration file; without it ./tollgate.toml if it exists, else built-in defaults.
    #[arg(long, short, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 fine, 1 failed, 2 wrong usage, 78 wrong configuration.";

#[derive(Subcommand)]
enum Command {
    /// Run the gateway in the foreground, until SIGTERM or Ctrl-C.
    Serve(serve::Options),
    /// Reload the configuration of a running gateway, and print what changed. Exit code 1 if it refuses.
    Reload(reload::Options),
    /// Check the configuration and report every error.
    Check(check::Options),
    /// Add, list, disable, enable or remove users, or change their passwords.
    #[command(subcommand)]
    User(user::Command),
    /// Show how many flows and bytes each user had, from the ledger.
    Usage(usage::Options),
    /// Show what is left of quotas, or grant more.
    Quota(quota::Options),
    /// Show the open flows of a running gateway with their rates, by flow, user or host.
    Top(top::Options),
    /// Verify, back up or repair the ledger.
    #[command(subcommand)]
    Ledger(ledger::Command),
    /// Explain what the gateway would decide for a user and a destination, and why. Exit code 0 for a
    /// destination that would be allowed, 1 for one that would be denied.
    Explain(explain::Options),
    /// Check whether this machine carries the configured load.
    Doctor(doctor::Options),
}

fn main() -> ExitCode {
    #[cfg(feature = "crash")]
    apply_kill_test_environment();
    let CommandLine { config, command } = CommandLine::parse();
    dispatch(config, command).unwrap_or_else(|error| report_error(&error))
}

fn dispatch(config: Option<PathBuf>, command: Command) -> anyhow::Result<ExitCode> {
    let context = Context { config };
    match command {
        Command::Serve(options) => serve::run(&context, options),
        Command::Reload(options) => reload::run(&context, options),
        Command::Check(options) => check::run(&context, &options),
        Command::User(command) => user::run(&context, &command),
        Command::Usage(options) => usage::run(&context, &options),
        Command::Quota(options) => quota::run(&context, options),
        Command::Top(options) => top::run(&context, &options),
        Command::Ledger(command) => ledger::run(&context, &command),
        Command::Explain(options) => explain::run(&context, &options),
        Command::Doctor(options) => doctor::run(&context, &options),
    }
}

/// Applies the environment of a kill test: opens the send audit, aims at a crash point, and sets another boot
/// id.
#[cfg(feature = "crash")]
fn apply_kill_test_environment() {
    if let Some(path) = std::env::var_os("TOLLGATE_SEND_AUDIT") {
        sys::send_audit::open(std::path::Path::new(&path)).expect("the send audit's file can be opened");
    }
    if let Ok(target) = std::env::var("TOLLGATE_KILL_AT") {
        sys::crash::arm(&target).expect("the target names a crash point");
    }
    if let Ok(boot) = std::env::var("TOLLGATE_BOOT_ID") {
        sys::crash::override_boot_id(boot.parse().expect("a boot id is a number"));
    }
}

/// Prints an error, and returns the exit code for it.
fn report_error(error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    let (text, code) = match config_errors(error) {
        Some(ConfigErrors(findings)) => (findings.render(Severity::Error, styled()), EXIT_CONFIGURATION),
        None => (format!("tollgate: {error:#}"), 1),
    };
    // Without standard error the text has no reader.
    let _ = writeln!(io::stderr(), "{text}");
    ExitCode::from(code)
}

fn config_errors(error: &anyhow::Error) -> Option<&ConfigErrors> {
    error.downcast_ref().or_else(|| match error.downcast_ref() {
        Some(FirstStartError::Config(errors)) => Some(errors),
        _ => None,
    })
}

/// Whether standard error shows colours (see no-color.org).
fn styled() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
