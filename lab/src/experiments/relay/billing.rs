//! Whether Tollgate billed what the load moved: its own `usage` beside the clients' count.
//!
//! Guarantees: `usage` runs before the first and after the last round, so it disturbs no run.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::kit::child;
use crate::kit::load_process::number_in;
use crate::kit::measurements::{Row, Run, Skipped};
use crate::kit::relays::running::{RunningRelay, Workload};
use crate::kit::relays::target::Target;
use crate::kit::rounds::Outcome;

/// The bill of a part of the experiment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bill {
    /// The name of the bill, which is a part of its own.
    pub(super) part: &'static str,
    /// The part that is billed, and the name of its failures.
    pub(super) of: &'static str,
    pub(super) failed: &'static str,
    /// Flows, bytes up and bytes down for each success: the name, and the right value where there is one.
    pub(super) numbers: [(&'static str, Option<f64>); 3],
}

/// The totals in the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct BilledTotals {
    flows: f64,
    up_bytes: f64,
    down_bytes: f64,
}

/// The billed totals so far, once they stay the same for a while: a flow is billed some time after it has
/// ended. `None` where no relay bills.
///
/// # Errors
/// `usage` failed.
pub(super) fn settled_totals<W: Workload>(relays: &[RunningRelay<W>]) -> Result<Option<BilledTotals>> {
    let mut last = billed(relays)?;
    for _ in 0..POLLS_MAX {
        child::pause(POLL)?;
        let next = billed(relays)?;
        if next == last {
            break;
        }
        last = next;
    }
    Ok(last)
}

/// Between two polls of the bill: several of the gateway's pauses between two transactions.
const POLL: Duration = Duration::from_millis(500);

/// Polls of a bill that keeps changing, which the figures then show.
const POLLS_MAX: usize = 20;

fn billed<W: Workload>(relays: &[RunningRelay<W>]) -> Result<Option<BilledTotals>> {
    let Some((program, configuration)) = relays.iter().find_map(RunningRelay::ledger) else {
        return Ok(None);
    };
    let mut usage = Command::new(program);
    usage.args(["usage", "--json", "--config"]).arg(configuration);
    let output = usage.output().context("running `tollgate usage`")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the usage cannot be read: {}", complaint.trim());
    let report: Value = serde_json::from_slice(&output.stdout).context("the usage is JSON")?;
    parse(&report).map(Some)
}

fn parse(report: &Value) -> Result<BilledTotals> {
    let total = &report["total"];
    Ok(BilledTotals {
        flows: number_in(total, "flows")?,
        up_bytes: number_in(total, "up")?,
        down_bytes: number_in(total, "down")?,
    })
}

impl Bill {
    /// Adds the bill for the rounds of a part, each with `count` connections or requests; `before` is the
    /// bill before the first.
    pub(super) fn add<W: Workload>(
        &self,
        outcome: &mut Outcome,
        before: Result<Option<BilledTotals>>,
        relays: &[RunningRelay<W>],
        count: u32,
    ) {
        match (before, settled_totals(relays)) {
            (Ok(Some(before)), Ok(Some(after))) => {
                let row = self.row(before, after, &outcome.rows, count);
                outcome.rows.extend(row);
            }
            (Err(error), _) | (_, Err(error)) => {
                let reason = format!("{error:#}");
                outcome.failed.push(Skipped { name: self.part.to_owned(), reason });
            }
            _ => {}
        }
    }

    /// The bill for each success between two totals, over all rounds.
    fn row(&self, before: BilledTotals, after: BilledTotals, rows: &[Row], count: u32) -> Option<Row> {
        let billed_row = self.billed_row(rows)?;
        let failures = billed_row.series(self.failed);
        let completed: f64 = failures.iter().map(|failed| f64::from(count) - failed).sum();
        let billed = [
            after.flows - before.flows,
            after.up_bytes - before.up_bytes,
            after.down_bytes - before.down_bytes,
        ];
        let number = |((name, _), billed): ((&'static str, Option<f64>), f64)| (name, billed / completed);
        let numbers = self.numbers.into_iter().zip(billed).map(number).collect();
        let run = Run { round: 0, marks: Vec::new(), numbers };
        Some(Row { part: self.part, target: billed_row.target.clone(), runs: vec![run] })
    }

    /// The runs that were billed.
    fn billed_row<'a>(&self, rows: &'a [Row]) -> Option<&'a Row> {
        rows.iter().find(|row| row.part == self.of && row.target == Target::Tollgate.name())
    }

    /// The error of the bill, if every attempt succeeded and the bill is still not exact.
    fn warning(&self, rows: &[Row]) -> Option<String> {
        let bill = rows.iter().find(|row| row.part == self.part)?;
        if self.billed_row(rows)?.series(self.failed).iter().any(|&failed| failed > 0.0) {
            return None;
        }
        let wrong = |(name, right): (&'static str, Option<f64>)| {
            let (billed, right) = (bill.median(name)?, right?);
            (billed != right).then(|| format!("{} has {name} of {billed}, not {right}", bill.target))
        };
        self.numbers.into_iter().find_map(wrong)
    }
}

/// The error of the first bill that has one.
pub(super) fn warning(bills: &[Bill], rows: &[Row]) -> Option<String> {
    bills.iter().find_map(|bill| bill.warning(rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const CONNECTIONS: Bill = Bill {
        part: "billing",
        of: "short",
        failed: "failed_connections",
        numbers: [
            ("billed_flows_per_connection", Some(1.0)),
            ("billed_up_bytes_per_connection", Some(100.0)),
            ("billed_down_bytes_per_connection", Some(200.0)),
        ],
    };

    const REQUESTS: Bill = Bill {
        part: "billing-close",
        of: "requests-close",
        failed: "failed_requests",
        numbers: [
            ("billed_flows_per_request", Some(1.0)),
            ("billed_up_bytes_per_request", None),
            ("billed_down_bytes_per_request", None),
        ],
    };

    fn completed(failed: &[f64]) -> Row {
        let run = |(round, &failed): (usize, &f64)| Run {
            round,
            marks: Vec::new(),
            numbers: vec![("failed_connections", failed)],
        };
        let runs = failed.iter().enumerate().map(run).collect();
        Row { part: CONNECTIONS.of, target: "tollgate".to_owned(), runs }
    }

    fn billed(flows: f64, up_bytes: f64, down_bytes: f64) -> BilledTotals {
        BilledTotals { flows, up_bytes, down_bytes }
    }

    #[test]
    fn usage_totals_are_parsed() {
        let report = json!({ "by": "user", "rows": [], "total": { "flows": 3, "up": 300, "down": 600 } });
        assert_eq!(parse(&report).expect("it has totals"), billed(3.0, 300.0, 600.0));
        assert!(parse(&json!({ "rows": [] })).is_err());
    }

    #[test]
    fn inexact_bill_is_a_warning() {
        let before = billed(1.0, 1.0, 1.0);
        let check = |after, failed: &[f64], expected: Option<&str>| {
            let mut rows = vec![completed(failed)];
            rows.extend(CONNECTIONS.row(before, after, &rows, 10));
            assert_eq!(warning(&[CONNECTIONS, REQUESTS], &rows).as_deref(), expected);
        };
        check(billed(21.0, 2_001.0, 4_001.0), &[0.0, 0.0], None);
        let lost = "tollgate has billed_flows_per_connection of 0.95, not 1";
        check(billed(20.0, 2_001.0, 4_001.0), &[0.0, 0.0], Some(lost));
        let more = "tollgate has billed_up_bytes_per_connection of 101, not 100";
        check(billed(21.0, 2_021.0, 4_001.0), &[0.0, 0.0], Some(more));
        check(billed(20.0, 2_001.0, 4_001.0), &[1.0, 0.0], None);
    }

    #[test]
    fn request_bill_checks_flows_alone() {
        let check = |after, expected: Option<&str>| {
            let bill = REQUESTS;
            let numbers = vec![(bill.failed, 0.0)];
            let run = Run { round: 0, marks: Vec::new(), numbers };
            let mut rows = vec![Row { part: bill.of, target: "tollgate".to_owned(), runs: vec![run] }];
            rows.extend(bill.row(billed(0.0, 0.0, 0.0), after, &rows, 10));
            assert_eq!(warning(&[CONNECTIONS, REQUESTS], &rows).as_deref(), expected);
        };
        check(billed(10.0, 1_230.0, 11_110.0), None);
        let twice = "tollgate has billed_flows_per_request of 2, not 1";
        check(billed(20.0, 1_230.0, 11_110.0), Some(twice));
    }
}
