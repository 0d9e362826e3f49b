//! An account: what `tollgate usage` reports of each destination and in total, and how two accounts differ.
//!
//! Guarantees: every flow of the harness has a destination of its own, so a line is a flow. Remarks besides
//! the numbers are kept too. `verdict` judges a difference.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::workspace::{CommandOutput, Workspace};

/// The bill of one destination, or of all.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Line {
    pub(crate) flows: u64,
    pub(crate) live: u64,
    pub(crate) up: u64,
    pub(crate) down: u64,
    pub(crate) uncertain_up: u64,
    pub(crate) uncertain_down: u64,
}

/// The reports of `tollgate usage`, by host and in total.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Account {
    pub(crate) hosts: BTreeMap<String, Line>,
    pub(crate) total: Line,
    /// Non-empty fields of the report besides the numbers.
    pub(crate) remarks: Vec<String>,
}

/// The differences from the expected account.
#[derive(Clone, Debug, Default)]
pub(crate) struct Differences {
    /// Lines with more bytes or flows than were moved.
    pub(crate) over: Vec<String>,
    /// All other differences.
    pub(crate) other: Vec<String>,
}

impl Account {
    /// Runs `tollgate usage`; returns the account with the output of its commands.
    pub(crate) fn query(workspace: &Workspace) -> (Option<Account>, [CommandOutput; 2]) {
        let total = workspace.run(&["usage", "--json"]);
        let hosts = workspace.run(&["usage", "--by", "host", "--json"]);
        let account = Account::read(&total, &hosts);
        (account, [total, hosts])
    }

    /// A report that declares itself wrong is an account too.
    fn read(total: &CommandOutput, hosts: &CommandOutput) -> Option<Account> {
        let by_user: Value = serde_json::from_str(&total.out).ok()?;
        let by_host: Value = serde_json::from_str(&hosts.out).ok()?;
        let mut account = Account { total: Line::from_json(&by_user["total"])?, ..Account::default() };
        for row in by_host["rows"].as_array()? {
            let line = account.hosts.entry(row["host"].as_str()?.to_owned()).or_default();
            line.add(Line::from_json(row)?);
        }
        for (key, value) in [&by_user, &by_host].into_iter().filter_map(Value::as_object).flatten() {
            let is_empty = value.as_array().is_some_and(Vec::is_empty) || value.is_null();
            if !["by", "rows", "total"].contains(&key.as_str()) && !is_empty {
                account.remarks.push(format!("usage: {key}: {value}"));
            }
        }
        Some(account)
    }

    /// The differences from `expected`, each of whose lines may have moved its uncertain bytes too.
    pub(crate) fn compare_with(&self, expected: &Account) -> Differences {
        let mut found = Differences::default();
        let mut sum = Line::default();
        for (host, line) in &self.hosts {
            sum.add(*line);
            let Some(expected_line) = expected.hosts.get(host) else {
                found.other.push(format!("{host}: not a flow of this ledger: {line:?}"));
                continue;
            };
            if line.is_over(*expected_line) {
                found.over.push(format!("{host}: {line:?}, expected {expected_line:?}"));
            } else if line != expected_line {
                found.other.push(format!("{host}: {line:?}, expected {expected_line:?}"));
            }
        }
        let absent = expected.hosts.iter().filter(|(host, _)| !self.hosts.contains_key(*host));
        found
            .other
            .extend(absent.map(|(host, expected_line)| format!("{host}: not billed: {expected_line:?}")));
        if sum != self.total {
            found.other.push(format!("the sums are {:?}, and the flows add up to {sum:?}", self.total));
        }
        found
    }

    /// The account plus these lines, as expected after new flows.
    pub(crate) fn with(&self, new_flows: &[(String, Line)]) -> Account {
        let mut account = self.clone();
        for (host, line) in new_flows {
            account.hosts.entry(host.clone()).or_default().add(*line);
            account.total.add(*line);
        }
        account
    }
}

impl Differences {
    pub(crate) fn is_empty(&self) -> bool {
        self.over.is_empty() && self.other.is_empty()
    }

    /// The first few differences.
    pub(crate) fn text(&self) -> String {
        let shown: Vec<&str> = self.over.iter().chain(&self.other).take(4).map(String::as_str).collect();
        format!("{} over, {} otherwise: {}", self.over.len(), self.other.len(), shown.join("; "))
    }
}

impl Line {
    fn from_json(value: &Value) -> Option<Line> {
        let count = |key: &str| value[key].as_u64();
        Some(Line {
            flows: count("flows")?,
            live: count("live")?,
            up: count("up")?,
            down: count("down")?,
            uncertain_up: count("uncertain_up")?,
            uncertain_down: count("uncertain_down")?,
        })
    }

    /// Whether it has more than was moved, which is `expected_line`.
    fn is_over(&self, expected_line: Line) -> bool {
        self.up > expected_line.up + expected_line.uncertain_up
            || self.down > expected_line.down + expected_line.uncertain_down
            || self.flows + self.live > expected_line.flows + expected_line.live
    }

    fn add(&mut self, other: Line) {
        self.flows = self.flows.saturating_add(other.flows);
        self.live = self.live.saturating_add(other.live);
        self.up = self.up.saturating_add(other.up);
        self.down = self.down.saturating_add(other.down);
        self.uncertain_up = self.uncertain_up.saturating_add(other.uncertain_up);
        self.uncertain_down = self.uncertain_down.saturating_add(other.uncertain_down);
    }
}
