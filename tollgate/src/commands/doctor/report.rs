//! The report: a table and sentences for people, a JSON document for programs, and a line for `serve`.
//!
//! Guarantees: no line but a command's is wider than [`WIDTH`]; the document has all that the text has.

use serde_json::{Value, json};
use sys::limits::{Footprint, Limit, ThreadBudget};

use super::cpus::Cpus;
use super::finding::{Capacity, Finding, State, first};
use super::load::Load;
use super::ports::ListeningPorts;
use super::remedy;
use super::space::LiveTableSpace;
use crate::commands::table;

/// Characters of a line.
pub(super) const WIDTH: usize = 110;

/// Amounts from here on mean "without limit".
const UNLIMITED_MIN: u64 = 1 << 62;

/// Everything that the report shows.
pub(super) struct MachineReport {
    pub(super) load: Load,
    pub(super) findings: Vec<Finding>,
    pub(super) footprint: Footprint,
    pub(super) budget: ThreadBudget,
    pub(super) space: LiveTableSpace,
    pub(super) ports: ListeningPorts,
    pub(super) cpus: Cpus,
}

impl MachineReport {
    pub(super) fn is_carried(&self) -> bool {
        self.findings.iter().all(|finding| finding.state != State::Fails) && self.space.is_enough()
    }

    pub(super) fn json(&self) -> Value {
        let first = first(&self.load, &self.findings);
        json!({
            "carried": self.is_carried(),
            "load": {
                "connections": self.load.connections,
                "reactors": self.load.reactors,
                "threads": self.load.threads(),
                "listeners": self.load.listeners,
                "backlog": self.load.backlog,
                "live_table_bytes": self.load.table_bytes,
            },
            "first": first.first().map(|finding| self.finding_json(finding)),
            "first_together_with": first.iter().skip(1).map(|tie| tie.limit().name()).collect::<Vec<_>>(),
            "limits": Value::from_iter(self.findings.iter().map(|finding| self.finding_json(finding))),
            "threads": {
                "budget": bounded(self.budget.threads),
                "budget_limit": self.budget.limit,
                "mappings_each": self.footprint.maps,
                "address_space_bytes_each": self.footprint.address_bytes,
            },
            "live_table": self.space.json(),
            "listening_ports": self.ports.json(),
            "cpu": self.cpus.json(),
        })
    }

    fn finding_json(&self, finding: &Finding) -> Value {
        let (connections, threads) = match finding.capacity {
            Some(Capacity::Connections(count)) => (Some(count), None),
            Some(Capacity::Threads(count)) => (None, Some(count)),
            None => (None, None),
        };
        json!({
            "what": finding.limit().name(),
            "setting": finding.limit().setting(),
            "state": finding.state.as_str(),
            "needed": finding.needed,
            "in_use": finding.in_use,
            "bound": finding.reading.bound.and_then(bounded),
            "available": finding.available.and_then(bounded),
            "permits_connections": connections,
            "permits_threads": threads,
            "carried_share": finding.share(&self.load),
            "error": remedy::error(finding.limit()),
            "command": remedy::command(finding),
            "place": finding.reading.file.as_ref().map(|path| path.display().to_string()),
            "exempt": finding.reading.exempt,
            "trouble": finding.reading.error,
        })
    }

    pub(super) fn text(&self) -> String {
        let Load { connections, reactors, .. } = self.load;
        let mut text = format!(
            "{} connections are configured, on {} reactor threads of {} in all.\n\n",
            grouped(connections),
            reactors,
            self.load.threads()
        );
        text += &self.table();
        text.push('\n');
        let first = first(&self.load, &self.findings);
        text += &self.first(&first);
        let other = |finding: &&Finding| {
            finding.state != State::Fine && !first.iter().any(|met| met.limit() == finding.limit())
        };
        self.findings.iter().filter(other).for_each(|finding| text += &finding_lines(finding));
        if let Some((finding, command)) = self.ports.finding() {
            text += &wrapped(&finding, 0);
            text += &format!("  to reserve: {command}\n");
        }
        let (space, command) = self.space.finding();
        text += &wrapped(&space, 0);
        text.extend(command.map(|command| format!("  to enlarge: {command}\n")));
        for finding in self.findings.iter().filter(|finding| finding.state != State::Unknown) {
            if let Some(error) = &finding.reading.error {
                text += &wrapped(&format!("{}: not all could be read: {error}", finding.limit().name()), 0);
            }
        }
        text.push('\n');
        text += &wrapped(&self.threads(), 0);
        self.cpus.sentences().iter().for_each(|sentence| text += &wrapped(sentence, 0));
        text
    }

    fn table(&self) -> String {
        let row = |finding: &Finding| {
            let amount = |amount| amount_of(finding.limit(), amount);
            let available = match (finding.available, finding.state, finding.reading.exempt) {
                (Some(available), ..) => amount(available),
                (None, State::Unknown, _) => "?".to_owned(),
                (None, _, Some(_)) => "exempt".to_owned(),
                (None, _, None) => "no limit".to_owned(),
            };
            vec![
                finding.limit().name().to_owned(),
                finding.limit().setting().to_owned(),
                finding.state.as_str().to_owned(),
                amount(finding.needed),
                amount(finding.in_use),
                available,
                capacity(finding.capacity),
            ]
        };
        let rows = self.findings.iter().map(row).collect();
        table(&["what", "limit", "state", "needed", "in use", "available", "permits"], rows, &[3, 4, 5, 6])
    }

    /// The limit that is met first, and those that are met with it.
    fn first(&self, first: &[&Finding]) -> String {
        let Some((finding, ties)) = first.split_first() else {
            return "The load meets no limit of the kernel.\n".to_owned();
        };
        let mut text = wrapped(&format!("First: {}.", met(&self.load, finding)), 0);
        if !ties.is_empty() {
            let names: Vec<_> = ties.iter().map(|tie| title(tie)).collect();
            let text_of_ties =
                format!("At the same point: {}. It has to be raised as well.", names.join(", "));
            text += &wrapped(&text_of_ties, 2);
        }
        text + &remedy_lines(finding) + &ties.iter().map(|tie| remedy_lines(tie)).collect::<String>()
    }

    fn threads(&self) -> String {
        let Footprint { maps, .. } = self.footprint;
        let mappings = self.findings.iter().find(|finding| finding.limit() == Limit::Mappings);
        let mappings = mappings.and_then(|finding| finding.available).map_or(String::new(), |available| {
            let threads = grouped((available as f64 / maps) as u64);
            format!(
                ", so {} mappings suffice for {threads} threads. Where 3 to 6 mappings are left, starting a \
                 thread does not fail but aborts the process",
                grouped(available)
            )
        });
        let budget = match bounded(self.budget.threads) {
            Some(threads) => format!(
                "{} more threads may be started now before {} is reached, with a fifth of it kept free",
                grouped(threads),
                self.budget.limit
            ),
            None => "No limit that can be read bounds the number of threads".to_owned(),
        };
        format!("{budget}. A thread takes {maps:.1} mappings here (measured){mappings}.")
    }
}

/// The line that `serve` prints at its start: the limit that is met first.
pub(super) fn first_limit_line(load: &Load, findings: &[Finding]) -> String {
    let first = first(load, findings);
    match first.first() {
        None => "the load meets no limit of the kernel".to_owned(),
        Some(finding) if finding.state == State::Fine => format!("first limit: {}", met(load, finding)),
        Some(finding) => {
            let command = remedy::command(finding).unwrap_or_default();
            format!("warning: {}: {command}", met(load, finding))
        }
    }
}

/// A limit, and the number of connections at which it is met, or the lacking amount.
fn met(load: &Load, finding: &Finding) -> String {
    let configured = grouped(load.connections);
    match (finding.capacity, finding.state) {
        (Some(Capacity::Connections(count)), State::Fine) => {
            format!("{} at {} connections", title(finding), grouped(count))
        }
        (Some(Capacity::Connections(count)), _) => {
            format!("{} at {} connections of the {configured} configured", title(finding), grouped(count))
        }
        _ => {
            let amount = |amount| amount_of(finding.limit(), amount);
            let available = amount(finding.available.unwrap_or(0));
            format!("{}: {available} of the {} needed", title(finding), amount(finding.needed))
        }
    }
}

fn title(finding: &Finding) -> String {
    let bound = finding.reading.bound.map_or(String::new(), |bound| format!(" {bound}"));
    format!("{} ({}{bound})", finding.limit().name(), finding.limit().setting())
}

fn finding_lines(finding: &Finding) -> String {
    let state = finding.state.as_str();
    if let (State::Unknown, Some(error)) = (finding.state, &finding.reading.error) {
        return wrapped(&format!("{state}: {}: {error}", finding.limit().name()), 0);
    }
    let amount = |amount| amount_of(finding.limit(), amount);
    let available = amount(finding.available.unwrap_or(0));
    let text = format!("{state}: {}: {available} of the {} needed.", title(finding), amount(finding.needed));
    wrapped(&text, 0) + &remedy_lines(finding)
}

/// The error that shows the limit, and the command that raises it. A command stays on one line, to be pasted.
fn remedy_lines(finding: &Finding) -> String {
    let command =
        remedy::command(finding).map_or(String::new(), |command| format!("  to raise: {command}\n"));
    wrapped(&format!("shows as: {}", remedy::error(finding.limit())), 2) + &command
}

fn capacity(capacity: Option<Capacity>) -> String {
    match capacity {
        Some(Capacity::Connections(count)) => format!("{} conn.", shortened(count)),
        Some(Capacity::Threads(count)) => format!("{} threads", shortened(count)),
        None => String::new(),
    }
}

fn bounded(amount: u64) -> Option<u64> {
    (amount < UNLIMITED_MIN).then_some(amount)
}

fn amount_of(limit: Limit, amount: u64) -> String {
    match limit {
        _ if amount >= UNLIMITED_MIN => "no limit".to_owned(),
        Limit::AddressSpace
        | Limit::Data
        | Limit::Stack
        | Limit::Commit
        | Limit::Memory
        | Limit::GroupMemory
        | Limit::LockedMemory
        | Limit::TcpMemory => bytes(amount),
        _ => shortened(amount),
    }
}

/// In the largest unit with at least one digit before the point.
fn bytes(bytes: u64) -> String {
    if bytes == 0 {
        return "0".to_owned();
    }
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut scaled = bytes as f64 / 1024.0;
    let mut unit_index = 0;
    while scaled >= 1024.0 && unit_index + 1 < units.len() {
        scaled /= 1024.0;
        unit_index += 1;
    }
    if scaled < 10.0 {
        format!("{scaled:.1} {}", units[unit_index])
    } else {
        format!("{scaled:.0} {}", units[unit_index])
    }
}

/// A count that fits into a column.
fn shortened(count: u64) -> String {
    match count {
        0..10_000_000 => grouped(count),
        10_000_000..10_000_000_000 => format!("{} M", grouped(count / 1_000_000)),
        UNLIMITED_MIN.. => "no limit".to_owned(),
        _ => format!("{} G", shortened(count / 1_000_000_000)),
    }
}

/// Digits in groups of three.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Lines of at most [`WIDTH`] characters: the first is indented by `indent`, the others by two more.
fn wrapped(text: &str, indent: usize) -> String {
    let mut lines = " ".repeat(indent);
    let mut width = indent;
    for (index, word) in text.split_whitespace().enumerate() {
        let length = word.chars().count();
        if index > 0 && width + 1 + length > WIDTH {
            lines.push('\n');
            lines.push_str(&" ".repeat(indent + 2));
            width = indent + 2;
        } else if index > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += length;
    }
    lines.push('\n');
    lines
}
