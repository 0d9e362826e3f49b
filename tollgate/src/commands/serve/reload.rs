//! A reload in `serve`: loads and applies the configuration; reports to the log, to standard error and to the
//! client.
//!
//! Guarantees: a new configuration is in place, or everything is as it was.

use std::net::SocketAddr;
use std::path::Path;

use gateway::config::{Config, LoadOptions, Severity};
use gateway::observe::log::{Level, Value};
use gateway::server::Gateway;
use gateway::server::reload::Changes;

use crate::console::Console;
use crate::control::Outcome;

/// Names in one line of an outcome.
const SHOWN_MAX: usize = 10;

/// Loads the configuration that `load_options` select, and applies it.
pub(super) fn reload(gateway: &mut Gateway, load_options: &mut LoadOptions, console: &Console) -> Outcome {
    if let Ok(addresses) = sys::socket::local_addresses() {
        load_options.local_addresses = addresses;
    }
    load_options.running = gateway.config().file().map(Path::to_path_buf);
    let loaded = Config::load(load_options).map_err(|errors| errors.to_string());
    let outcome = loaded.and_then(|config| {
        let warnings = config.warnings.render(Severity::Warning, false);
        let changes = gateway.reload(config).map_err(|error| error.to_string())?;
        Ok((changes, warnings))
    });
    match outcome {
        Ok((changes, warnings)) => {
            report_changes(gateway, &changes, console);
            Outcome { is_done: true, text: outcome_text(&changes, &warnings) }
        }
        Err(error) => {
            report_refusal(gateway, &error, console);
            Outcome { is_done: false, text: error }
        }
    }
}

fn report_changes(gateway: &Gateway, changes: &Changes, console: &Console) {
    let list = |addresses: &[SocketAddr]| joined(addresses, " ");
    let restart = changes.needs_restart.join(" ");
    let fields = [
        ("listeners_added", Value::Text(&list(&changes.added))),
        ("listeners_removed", Value::Text(&list(&changes.removed))),
        ("needs_restart", Value::Text(&restart)),
    ];
    gateway.log().write_message(Level::Info, "configuration reloaded", &fields);
    if !restart.is_empty() {
        console.print_line(format!("reloaded; these take effect with the next start: {restart}"));
    }
}

fn report_refusal(gateway: &Gateway, error: &str, console: &Console) {
    gateway.stats().reloads.failed();
    let fields = [("error", Value::Text(error))];
    gateway.log().write_message(Level::Error, "reload refused, the old configuration stays", &fields);
    console.print_line(format!("reload refused, the old configuration stays:\n{error}"));
}

/// A line for each kind of change, and the warnings.
fn outcome_text(changes: &Changes, warnings: &str) -> String {
    let kinds = [
        ("users added", shown(&changes.users_added)),
        ("users removed", shown(&changes.users_removed)),
        ("users changed", shown(&changes.users_changed)),
        ("listeners added", shown(&changes.added)),
        ("listeners removed", shown(&changes.removed)),
        ("take effect with the next start", shown(&changes.needs_restart)),
    ];
    let lines = kinds.iter().filter(|(_, names)| !names.is_empty());
    let mut text = String::from("reloaded\n");
    text.extend(lines.map(|(kind, names)| format!("  {kind}: {names}\n")));
    if !warnings.is_empty() {
        text.push_str(&format!("\n{warnings}\n"));
    }
    text
}

/// The first names of a list, and the number of the others.
fn shown(names: &[impl ToString]) -> String {
    match names.len().checked_sub(SHOWN_MAX) {
        Some(rest @ 1..) => format!("{} and {rest} more", joined(&names[..SHOWN_MAX], ", ")),
        _ => joined(names, ", "),
    }
}

fn joined(names: &[impl ToString], separator: &str) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator)
}
