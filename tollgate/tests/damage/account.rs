//! An account: what `tollgate usage` says of each destination and of all, and how two accounts differ.
//!
//! Promises: every flow of the harness has a destination of its own, so a line is a flow; what is said
//! besides the numbers is told too. Leaves to others: what a difference means (`verdict`).

use std::collections::BTreeMap;

use serde_json::Value;

use crate::workspace::{CommandOutput, Workspace};

/// What is billed to one destination, or to all.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Line {
    pub(crate) flows: u64,
    pub(crate) live: u64,
    pub(crate) up: u64,
    pub(crate) down: u64,
    pub(crate) uncertain_up: u64,
    pub(crate) uncertain_down: u64,
}

/// See the file's header.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Account {
    pub(crate) hosts: BTreeMap<String, Line>,
    pub(crate) total: Line,
    /// What is said besides the numbers.
    pub(crate) remarks: Vec<String>,
}

/// What an account has against the one that is expected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Differences {
    /// More is billed than was moved, or a flow twice.
    pub(crate) over: Vec<String>,
    /// Anything else.
    pub(crate) other: Vec<String>,
}

impl Account {
    /// Asks for it; together with what the commands said.
    pub(crate) fn query(workspace: &Workspace) -> (Option<Account>, [CommandOutput; 2]) {
        let total = workspace.run(&["usage", "--json"]);
        let hosts = workspace.run(&["usage", "--by", "host", "--json"]);
        let account = Account::read(&total, &hosts);
        (account, [total, hosts])
    }

    /// An answer that says that it is not right is an account too.
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

    /// What this account has against `expected`, each of whose lines may have moved what is uncertain too.
    pub(crate) fn compare_with(&self, expected: &Account) -> Differences {
        let mut found = Differences::default();
        let mut sum = Line::default();
        for (host, line) in &self.hosts {
            sum.add(*line);
            let Some(expected_line) = expected.hosts.get(host) else {
                found.other.push(format!("{host}: nobody's flow: {line:?}"));
                continue;
            };
            if line.is_over(*expected_line) {
                found.over.push(format!("{host}: {line:?}, and it was {expected_line:?}"));
            } else if line != expected_line {
                found.other.push(format!("{host}: {line:?}, and it was {expected_line:?}"));
            }
        }
        let absent = expected.hosts.iter().filter(|(host, _)| !self.hosts.contains_key(*host));
        found
            .other
            .extend(absent.map(|(host, expected_line)| format!("{host}: not billed: {expected_line:?}")));
        if sum != self.total {
            found.other.push(format!("the sums are {:?}, and the flows come to {sum:?}", self.total));
        }
        found
    }

    /// The lines put together, as what is expected after new flows.
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

    /// The first few.
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

    /// Whether it has more than was moved, where that is `due`.
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
