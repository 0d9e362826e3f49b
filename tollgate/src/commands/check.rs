//! `tollgate check`: validates the configuration.
//!
//! Guarantees: reports every error and warning at once, each with its file and line; changes nothing.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use gateway::config::settings;
use gateway::config::{Config, ConfigErrors, Finding, Findings, Origin, Severity};
use serde_json::{Value, json};

use super::{Context, EXIT_CONFIGURATION, counted, print, print_json};
use crate::styled;

#[derive(Args)]
pub(crate) struct Options {
    /// Print the findings for a program.
    #[arg(long)]
    json: bool,
    /// Print every setting with its type, default and bounds, and check nothing.
    #[arg(long, conflicts_with = "json")]
    settings: bool,
}

pub(crate) fn run(context: &Context, options: &Options) -> anyhow::Result<ExitCode> {
    if options.settings {
        print(&settings::markdown())?;
        return Ok(ExitCode::SUCCESS);
    }
    let loaded = Config::load(&context.load_options()?);
    if options.json {
        let (code, errors, warnings, resolvers) = match &loaded {
            Ok(config) => (0, Vec::new(), list(&config.warnings), resolvers(config)),
            Err(ConfigErrors(errors)) => (EXIT_CONFIGURATION, list(errors), Vec::new(), Vec::new()),
        };
        print_json(&json!({
            "ok": loaded.is_ok(),
            "errors": errors,
            "warnings": warnings,
            "resolve_any_name": resolvers,
        }))?;
        return Ok(ExitCode::from(code));
    }
    let config = loaded?;
    if !config.warnings.is_empty() {
        writeln!(io::stderr(), "{}\n", config.warnings.render(Severity::Warning, styled()))?;
    }
    print(&summary(&config))?;
    Ok(ExitCode::SUCCESS)
}

fn summary(config: &Config) -> String {
    let origin = match &config.origin {
        Origin::File(path) => path.display().to_string(),
        Origin::Embedded => "no configuration file, built-in defaults".to_owned(),
    };
    let listeners: Vec<String> = config.listeners.iter().map(|each| each.address.to_string()).collect();
    let users = counted(config.users.len() as u64, "user");
    let summary = format!("{origin}: fine; {users}, listening on {}\n", listeners.join(", "));
    summary + &resolver_line(&resolvers(config))
}

/// A line that lists the users with `resolve_for_networks`; empty if there are none.
fn resolver_line(users: &[&str]) -> String {
    const SHOWN_MAX: usize = 8;
    if users.is_empty() {
        return String::new();
    }
    let (shown, rest) = users.split_at(users.len().min(SHOWN_MAX));
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    format!("any name is resolved for {}{more}, by `resolve_for_networks`\n", shown.join(", "))
}

fn resolvers(config: &Config) -> Vec<&str> {
    config.resolvers_of_any_name().map(|user| &*user.name).collect()
}

fn list(findings: &Findings) -> Vec<Value> {
    let finding = |finding: Finding| {
        json!({
            "file": finding.file,
            "line": finding.line,
            "column": finding.column,
            "message": finding.message,
            "detail": finding.detail,
            "help": finding.help,
        })
    };
    findings.iter().map(finding).collect()
}
