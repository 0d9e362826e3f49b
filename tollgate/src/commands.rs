//! What all commands share: locating the configuration, and printing.

use std::io::{self, Write};
use std::path::PathBuf;

use comfy_table::{CellAlignment, Table, presets};
use gateway::config::{Config, LoadOptions};
use serde_json::Value;

pub(crate) mod check;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod ledger;
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
pub(crate) fn table(header: &[&str], rows: Vec<Vec<String>>, numbers: &[usize]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).add_rows(rows);
    if !header.is_empty() {
        table.set_header(header.to_vec());
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        if index == 0 {
            column.set_padding((0, 1));
        }
        if numbers.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}
