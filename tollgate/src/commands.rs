//! What all commands share: locating the configuration, and printing.

use std::io::{self, Write};
use std::path::PathBuf;

use gateway::config::{Config, LoadOptions};
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

pub(crate) mod check;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod ledger;
pub(crate) mod quota;
pub(crate) mod reload;
pub(crate) mod serve;
pub(crate) mod top;
pub(crate) mod usage;
pub(crate) mod user;

/// The exit code for a wrong configuration: EX_CONFIG of sysexits.h.
pub(crate) const EXIT_CONFIGURATION: u8 = 78;

/// Options that precede the command.
pub(crate) struct Context {
    /// `--config`.
    pub(crate) config: Option<PathBuf>,
}

impl Context {
    /// The inputs of a configuration load: `--config`, local addresses and `RUNTIME_DIRECTORY`.
    pub(crate) fn load_options(&self) -> io::Result<LoadOptions> {
        let local_addresses = sys::socket::local_addresses()?;
        // systemd separates several directories by colons; Tollgate takes the first.
        let runtime = std::env::var("RUNTIME_DIRECTORY").unwrap_or_default();
        let runtime = runtime.split(':').next().filter(|path| !path.is_empty());
        let runtime_directory = runtime.map(PathBuf::from);
        Ok(LoadOptions {
            path: self.config.clone(),
            local_addresses,
            runtime_directory,
            ..LoadOptions::default()
        })
    }

    /// Loads and validates the configuration.
    pub(crate) fn load(&self) -> anyhow::Result<Config> {
        Ok(Config::load(&self.load_options()?)?)
    }
}

/// Prints to standard output. Unlike `println!` it returns an error on a closed pipe, which `main` ignores.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints a JSON document for programs.
pub(crate) fn print_json(value: &Value) -> io::Result<()> {
    print(&format!("{value:#}\n"))
}

/// A count with its noun, which gets an `s`, or `es` behind an `s`, unless the count is 1.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    let plural = if noun.ends_with('s') { "es" } else { "s" };
    format!("{count} {noun}{}", if count == 1 { "" } else { plural })
}

/// Renders a table without lines; the columns in `numbers` are aligned to the right.
///
/// A hundred thousand rows are printed in the time of the question that they answer, which a library for
/// tables doubled.
pub(crate) fn table(header: &[&str], rows: Vec<Vec<String>>, numbers: &[usize]) -> String {
    let header: Vec<String> = header.iter().map(|name| (*name).to_owned()).collect();
    let lines = || [&header].into_iter().filter(|header| !header.is_empty()).chain(&rows);
    let mut widths = Vec::new();
    for line in lines() {
        widths.resize(widths.len().max(line.len()), 0);
        widths.iter_mut().zip(line).for_each(|(width, cell)| *width = cell.width().max(*width));
    }
    let mut text = String::new();
    for line in lines() {
        let begin = text.len();
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            text.push_str(if column > 0 { "  " } else { "" });
            let fill = std::iter::repeat_n(' ', width - cell.width());
            if numbers.contains(&column) {
                text.extend(fill);
                text.push_str(cell);
            } else {
                text.push_str(cell);
                text.extend(fill);
            }
        }
        text.truncate(begin + text[begin..].trim_end().len());
        text.push('\n');
    }
    text
}
