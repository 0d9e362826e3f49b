//! The accept counters of the threads of a gateway, or of the lab's own server.
//!
//! Guarantees: figures for each accepted connection come from two readings of one process.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::kit::measurements::Numbers;

/// How long the gateway's admin thread may take to respond.
const RESPONSE_MAX: Duration = Duration::from_secs(5);

/// One reading, each number by thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counts {
    pub(super) accepts: Vec<f64>,
    wakes: Vec<f64>,
    empty: Vec<f64>,
    handed_over: Vec<f64>,
    /// Connections that the thread serves now.
    clients: Vec<f64>,
    reloads: f64,
    failed_reloads: f64,
}

/// Each number of a thread: its name on the page of metrics and in the server's line.
const NAMES: [&str; 5] = [
    "tollgate_accepted_total",
    "tollgate_accept_wakes_total",
    "tollgate_accept_empty_total",
    "tollgate_handed_over_total",
    "tollgate_worker_clients",
];

impl Counts {
    /// Reads a gateway's page of metrics.
    ///
    /// # Errors
    /// The gateway does not respond, or its page lacks the numbers.
    pub(super) fn of_gateway(admin: SocketAddr) -> Result<Self> {
        Self::from_page(&fetch_metrics(admin).context("reading the gateway's metrics")?)
    }

    fn from_page(page: &str) -> Result<Self> {
        let of_threads = |name: &str| {
            let of_thread = |line: &str| {
                let (labels, value) = line.strip_prefix(name)?.strip_prefix('{')?.split_once("} ")?;
                let thread = labels.strip_prefix("worker=\"")?.strip_suffix('"')?;
                Some((thread.parse::<usize>().ok()?, value.trim().parse().ok()?))
            };
            let mut values: Vec<(usize, f64)> = page.lines().filter_map(of_thread).collect();
            values.sort_by_key(|value| value.0);
            values.into_iter().map(|value| value.1).collect()
        };
        let reloads = |outcome: &str| {
            let name = format!("tollgate_config_reloads_total{{outcome=\"{outcome}\"}} ");
            page.lines().find_map(|line| line.strip_prefix(&name)?.trim().parse().ok()).unwrap_or(0.0)
        };
        let counts = Self::from_columns(NAMES.map(of_threads))?;
        Ok(Self { reloads: reloads("success"), failed_reloads: reloads("failure"), ..counts })
    }

    /// The line of the lab's own server.
    pub(super) fn to_json(columns: [Vec<u64>; 5]) -> Value {
        json!(columns)
    }

    /// Reads the line of the lab's own server.
    ///
    /// # Errors
    /// The line is something else.
    pub(super) fn from_json(text: &str) -> Result<Self> {
        let columns: [Vec<f64>; 5] = serde_json::from_str::<Value>(text)
            .ok()
            .as_ref()
            .and_then(Value::as_array)
            .map(|columns| columns.iter().map(numbers).collect::<Vec<_>>())
            .and_then(|columns| columns.try_into().ok())
            .with_context(|| format!("a server's counts have five columns: {text}"))?;
        Self::from_columns(columns)
    }

    fn from_columns(columns: [Vec<f64>; 5]) -> Result<Self> {
        let threads = columns[0].len();
        ensure!(threads > 0 && columns.iter().all(|column| column.len() == threads), "counts lack a thread");
        let [accepts, wakes, empty, handed_over, clients] = columns;
        Ok(Self { accepts, wakes, empty, handed_over, clients, ..Self::default() })
    }

    /// The counts since an earlier reading; `clients` are those of now.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let minus = |now: &[f64], then: &[f64]| now.iter().zip(then).map(|(now, then)| now - then).collect();
        Self {
            accepts: minus(&self.accepts, &earlier.accepts),
            wakes: minus(&self.wakes, &earlier.wakes),
            empty: minus(&self.empty, &earlier.empty),
            handed_over: minus(&self.handed_over, &earlier.handed_over),
            clients: self.clients.clone(),
            reloads: self.reloads - earlier.reloads,
            failed_reloads: self.failed_reloads - earlier.failed_reloads,
        }
    }

    /// The numbers for each accepted connection.
    pub(super) fn per_accept(&self) -> Numbers {
        let accepts = self.accepts.iter().sum::<f64>();
        let each = |counts: &[f64]| counts.iter().sum::<f64>() / accepts.max(1.0);
        vec![
            (WAKES, each(&self.wakes)),
            ("empty_accepts_per_accept", each(&self.empty)),
            ("hand_overs_per_accept", each(&self.handed_over)),
        ]
    }

    /// Connections that all threads serve now.
    pub(super) fn clients(&self) -> f64 {
        self.clients.iter().sum()
    }

    /// The connections of the fullest thread as a multiple of the mean; 1 where they are even.
    pub(super) fn balance(&self) -> Option<f64> {
        most_to_mean(&self.clients)
    }

    /// The same of the accepts of each thread, whichever thread served them.
    pub(super) fn balance_of_accepts(&self) -> Option<f64> {
        most_to_mean(&self.accepts)
    }

    /// Reloads that succeeded, and those that failed.
    pub(super) fn reloads(&self) -> (f64, f64) {
        (self.reloads, self.failed_reloads)
    }
}

/// The number by which a strategy is judged first.
pub(super) const WAKES: &str = "wakes_per_accept";

fn most_to_mean(values: &[f64]) -> Option<f64> {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (mean > 0.0).then(|| values.iter().copied().fold(0.0, f64::max) / mean)
}

fn numbers(column: &Value) -> Vec<f64> {
    column.as_array().map(|numbers| numbers.iter().filter_map(Value::as_f64).collect()).unwrap_or_default()
}

fn fetch_metrics(admin: SocketAddr) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&admin, RESPONSE_MAX)?;
    stream.set_read_timeout(Some(RESPONSE_MAX))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    ensure!(
        text.starts_with("HTTP/1.1 200 "),
        "the gateway responds {:?}",
        text.lines().next().unwrap_or_default()
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_page_is_read_by_thread() {
        let line = |(index, name): (usize, &str)| {
            let of = |thread: usize| format!("{name}{{worker=\"{thread}\"}} {}\n", 10 * index + thread);
            // Twelve threads, since 10 stands before 2 in a page that is sorted by text.
            (0..12).rev().map(of).collect::<String>()
        };
        let mut page: String = NAMES.into_iter().enumerate().map(line).collect();
        page += "tollgate_accept_errors_total{worker=\"0\",reason=\"buffers\"} 7\n";
        page += "tollgate_config_reloads_total{outcome=\"success\"} 3\n";
        let counts = Counts::from_page(&page).expect("the page has all numbers");
        assert_eq!(counts.accepts, (0..12).map(f64::from).collect::<Vec<_>>());
        assert_eq!(counts.wakes[11], 21.0);
        assert_eq!(counts.clients[2], 42.0);
        assert_eq!(counts.reloads(), (3.0, 0.0));
        assert!(Counts::from_page("").is_err());
        assert!(Counts::from_page("tollgate_accepted_total{worker=\"0\"} 1\n").is_err());
    }

    #[test]
    fn server_counts_survive_json() {
        let text = |accepts: u64| {
            Counts::to_json([vec![accepts, 2], vec![accepts, 9], vec![0, 1], vec![4, 0], vec![30, 10]])
        };
        let [before, after] = [1, 7].map(|accepts| {
            Counts::from_json(&text(accepts).to_string()).expect("the text that `to_json` wrote")
        });
        let since = after.since(&before);
        assert_eq!(
            since.per_accept(),
            [(WAKES, 1.0), ("empty_accepts_per_accept", 0.0), ("hand_overs_per_accept", 0.0)]
        );
        assert_eq!(
            (since.clients(), since.balance(), since.balance_of_accepts()),
            (40.0, Some(1.5), Some(2.0))
        );
        assert_eq!(before.since(&before).balance_of_accepts(), None);
        for wrong in ["", "[]", "[[1],[1],[1],[1]]", "[[1],[1],[1],[1],[]]", "[[],[],[],[],[]]"] {
            assert!(Counts::from_json(wrong).is_err(), "{wrong:?}");
        }
    }
}
