//! `tollgate top`: the current flows, from the live table of the running gateway.
//!
//! Guarantees: the gateway gets no request and is not disturbed. Bytes are exact at the moment of a sample;
//! rates are those between two samples.

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gateway::config::settings::duration;
use gateway::server::ledger_settings;
use ledger::live_table::snapshot::{TableSnapshot, snapshot};
use ledger::record::{Flow, Record};
use serde_json::{Value, json};
use sys::clock::{self, Nanos, WallNanos};

use super::usage::bytes;
use super::{Context, counted, print, print_json, table};

#[derive(Args)]
pub(crate) struct Options {
    /// The key of a row.
    #[arg(long, value_enum, default_value_t = By::Flow)]
    by: By,
    /// The order of rows, largest first.
    #[arg(long, value_enum, default_value_t = Order::Rate)]
    sort: Order,
    /// The number of rows.
    #[arg(long, short = 'n', default_value_t = 25)]
    rows: usize,
    /// The interval between samples: 500ms, 2s.
    #[arg(long, default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// Take two samples, print once, and exit.
    #[arg(long)]
    once: bool,
    /// Print JSON with exact bytes; all rows, once.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    Flow,
    User,
    Host,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Order {
    /// Bytes per second, both directions.
    Rate,
    /// Bytes so far, both directions.
    Bytes,
    /// The oldest first.
    Age,
}

fn interval(text: &str) -> Result<Duration, String> {
    let bounds = Duration::from_millis(100)..=Duration::from_secs(3600);
    let interval = duration(text).filter(|interval| bounds.contains(interval));
    interval.ok_or_else(|| "expected a duration from 100ms to 1h".into())
}

pub(crate) fn run(context: &Context, options: &Options) -> anyhow::Result<ExitCode> {
    let settings = ledger_settings(&context.load()?, 1);
    let sample = || snapshot(&settings);
    let mut before = Sample::new(sample()?);
    loop {
        thread::sleep(options.interval);
        let now = Sample::new(sample()?);
        let mut rows = rows(options.by, &before, &now);
        rows.sort_by(|a, b| {
            options.sort.sort_key(b).cmp(&options.sort.sort_key(a)).then_with(|| a.key.cmp(&b.key))
        });
        if options.json {
            print_json(&as_json(options.by, &now, &rows))?;
            return Ok(ExitCode::SUCCESS);
        }
        let page = as_page(options, &now, &rows);
        if options.once || !io::stdout().is_terminal() {
            print(&page)?;
            return Ok(ExitCode::SUCCESS);
        }
        // Home, the page, and an erase of the rest: it flickers less than an empty screen in between.
        print(&format!("\x1b[H{}\x1b[J", page.replace('\n', "\x1b[K\n")))?;
        before = now;
    }
}

/// The contents of the live table, and their time.
struct Sample {
    table: TableSnapshot,
    at: Nanos,
    wall: WallNanos,
}

impl Sample {
    fn new(table: TableSnapshot) -> Sample {
        Sample { table, at: clock::monotonic(), wall: clock::wall() }
    }
}

/// One row: a flow, or all flows with the same key.
#[derive(Clone, Debug, Default, PartialEq)]
struct Row {
    key: String,
    user: String,
    host: String,
    client: String,
    flows: u64,
    up: u64,
    down: u64,
    /// Bytes per second.
    up_rate: u64,
    down_rate: u64,
    /// The age of the oldest flow.
    age: Duration,
}

impl Order {
    fn sort_key(self, row: &Row) -> u128 {
        match self {
            Order::Rate => u128::from(row.up_rate) + u128::from(row.down_rate),
            Order::Bytes => u128::from(row.up) + u128::from(row.down),
            Order::Age => row.age.as_nanos(),
        }
    }
}

fn rows(by: By, before: &Sample, now: &Sample) -> Vec<Row> {
    let sent = |record: &Record| {
        let flow = record.flow();
        (flow.id, (flow.legs.upstream_tx, flow.legs.client_tx))
    };
    let earlier: HashMap<u128, (u64, u64)> = before.table.flows.iter().map(sent).collect();
    let passed = now.at.since(before.at).as_secs_f64().max(0.001);
    let rate = |bytes: u64| (bytes as f64 / passed) as u64;
    let mut rows: HashMap<String, Row> = HashMap::new();
    for record in &now.table.flows {
        let flow = record.flow();
        let (up, down) = (flow.legs.upstream_tx, flow.legs.client_tx);
        // A new flow has sent all its bytes since the first sample.
        let (up_before, down_before) = earlier.get(&flow.id).copied().unwrap_or((0, 0));
        let row = rows.entry(by.key(&flow)).or_insert_with(|| by.row(&flow));
        row.flows += 1;
        row.up += up;
        row.down += down;
        row.up_rate += rate(up.saturating_sub(up_before));
        row.down_rate += rate(down.saturating_sub(down_before));
        row.age = row.age.max(Duration::from_nanos(now.wall.0.saturating_sub(flow.opened.0)));
    }
    rows.into_values().collect()
}

impl By {
    fn key(self, flow: &Flow<'_>) -> String {
        match self {
            By::Flow => format!("{:032x}", flow.id),
            By::User => flow.user.to_owned(),
            By::Host => flow.host.to_owned(),
        }
    }

    fn row(self, flow: &Flow<'_>) -> Row {
        let key = self.key(flow);
        match self {
            By::Flow => Row {
                key,
                user: flow.user.to_owned(),
                host: format!("{}:{}", flow.host, flow.port),
                client: flow.client.to_string(),
                ..Row::default()
            },
            By::User | By::Host => Row { key, ..Row::default() },
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            By::Flow => "flow",
            By::User => "user",
            By::Host => "host",
        }
    }
}

fn as_page(options: &Options, now: &Sample, rows: &[Row]) -> String {
    let TableSnapshot { process, is_running, flows, closing, .. } = &now.table;
    let open = counted(flows.len() as u64, "open flow");
    let mut page = match (is_running, closing) {
        (true, 0) => format!("process {process}: {open}\n\n"),
        (true, _) => format!("process {process}: {open}; {closing} ended and wait for the journal\n\n"),
        (false, _) => format!("process {process} was killed with {open}: the next start bills them\n\n"),
    };
    let shown = &rows[..rows.len().min(options.rows)];
    let per_second = |rate: u64| format!("{}/s", bytes(rate));
    let numbers = |row: &Row| {
        [bytes(row.up), bytes(row.down), per_second(row.up_rate), per_second(row.down_rate), age(row.age)]
    };
    page += &match options.by {
        By::Flow => {
            let cells = |row: &Row| [row.user.clone(), row.host.clone(), row.client.clone()];
            let cells = |row: &Row| cells(row).into_iter().chain(numbers(row)).collect();
            let header = ["user", "host", "client", "up", "down", "up/s", "down/s", "age"];
            table(&header, shown.iter().map(cells).collect(), &[3, 4, 5, 6, 7])
        }
        By::User | By::Host => {
            let cells = |row: &Row| [row.key.clone(), row.flows.to_string()];
            let cells = |row: &Row| cells(row).into_iter().chain(numbers(row)).collect();
            let header = [options.by.as_str(), "flows", "up", "down", "up/s", "down/s", "age"];
            table(&header, shown.iter().map(cells).collect(), &[1, 2, 3, 4, 5, 6])
        }
    };
    if rows.len() > shown.len() {
        page += &format!("and {} more (`--rows` shows them)\n", rows.len() - shown.len());
    }
    page
}

fn as_json(by: By, now: &Sample, rows: &[Row]) -> Value {
    let TableSnapshot { process, is_running, flows, closing, damaged, .. } = &now.table;
    let row = |row: &Row| {
        let mut value = json!({
            by.as_str(): row.key, "flows": row.flows, "up": row.up, "down": row.down,
            "up_per_second": row.up_rate, "down_per_second": row.down_rate, "age_s": row.age.as_secs(),
        });
        if by == By::Flow {
            value["user"] = json!(row.user);
            value["host"] = json!(row.host);
            value["client"] = json!(row.client);
        }
        value
    };
    json!({
        "process": process, "running": is_running, "flows": flows.len(), "closing": closing,
        "damaged": damaged, "by": by.as_str(), "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}

/// An age in its two largest units: `3d 4h`, `12m 5s`.
fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, seconds) => format!("{seconds}s"),
        (0, 0, minutes, seconds) => format!("{minutes}m {seconds}s"),
        (0, hours, minutes, _) => format!("{hours}h {minutes}m"),
        (days, hours, _, _) => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units() {
        let cases = [(0, "0s"), (59, "59s"), (60, "1m 0s"), (3_599, "59m 59s"), (3_600, "1h 0m")];
        for (seconds, text) in cases.into_iter().chain([(86_399, "23h 59m"), (90_000, "1d 1h")]) {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }
}
