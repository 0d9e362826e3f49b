//! A reload as `serve` does it: read, put in place, and told to the log, to standard error and to the caller.
//!
//! Guarantees: a new configuration is in place or everything is as it was. Leaves out: what changes in a
//! running gateway (`gateway::server::reload`).

use std::net::SocketAddr;
use std::path::Path;

use gateway::config::{Config, LoadOptions, Severity};
use gateway::log::{Level, Value};
use gateway::server::Gateway;
use gateway::server::reload::Changes;

use crate::console::Console;
use crate::control::Outcome;

/// Names that one line of an outcome shows.
const SHOWN_MAX: usize = 10;

/// Reads what `given` leads to, and puts it in place.
pub(super) fn reload(gateway: &mut Gateway, given: &mut LoadOptions, voice: &Console) -> Outcome {
    if let Ok(addresses) = sys::socket::local_addresses() {
        given.local_addresses = addresses;
    }
    given.running = gateway.config().file().map(Path::to_path_buf);
    let loaded = Config::load(given).map_err(|errors| errors.to_string());
    let outcome = loaded.and_then(|config| {
        let warnings = config.warnings.render(Severity::Warning, false);
        let changes = gateway.reload(config).map_err(|error| error.to_string())?;
        Ok((changes, warnings))
    });
    match outcome {
        Ok((changes, warnings)) => {
            tell_of_changes(gateway, &changes, voice);
            Outcome { is_done: true, text: described(&changes, &warnings) }
        }
        Err(error) => {
            tell_of_refusal(gateway, &error, voice);
            Outcome { is_done: false, text: error }
        }
    }
}

fn tell_of_changes(gateway: &Gateway, changes: &Changes, voice: &Console) {
    let list = |addresses: &[SocketAddr]| joined(addresses, " ");
    let restart = changes.needs_restart.join(" ");
    let fields = [
        ("listeners_added", Value::Text(&list(&changes.added))),
        ("listeners_removed", Value::Text(&list(&changes.removed))),
        ("needs_restart", Value::Text(&restart)),
    ];
    gateway.log().say(Level::Info, "configuration reloaded", &fields);
    if !restart.is_empty() {
        voice.say(format!("reloaded; these take effect with the next start: {restart}"));
    }
}

fn tell_of_refusal(gateway: &Gateway, error: &str, voice: &Console) {
    gateway.stats().reloads.failed();
    let fields = [("error", Value::Text(error))];
    gateway.log().say(Level::Error, "reload refused, the old configuration stays", &fields);
    voice.say(format!("reload refused, the old configuration stays:\n{error}"));
}

/// What a reload changed, a line for each kind, and what it warns of.
fn described(changes: &Changes, warnings: &str) -> String {
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

/// The first names of a list, and how many more there are.
fn shown(names: &[impl ToString]) -> String {
    match names.len().checked_sub(SHOWN_MAX) {
        Some(rest @ 1..) => format!("{} and {rest} more", joined(&names[..SHOWN_MAX], ", ")),
        _ => joined(names, ", "),
    }
}

fn joined(names: &[impl ToString], separator: &str) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(separator)
}
