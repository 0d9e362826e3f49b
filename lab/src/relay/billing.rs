//! Whether Tollgate billed what the load moved: its own `usage` beside the clients' count.
//! Promises: asked before the first and after the last round, so that no run is disturbed by the question.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::rivals::{Kind, Running, Work};
use super::short::{PART as SHORT, figure};
use crate::child;
use crate::load::{REPLY_BYTES, REQUEST_BYTES};
use crate::report::{Row, Run};

pub(super) const PART: &str = "billing";

/// What the ledger holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Billed {
    flows: f64,
    up_bytes: f64,
    down_bytes: f64,
}

/// What has been billed so far, as soon as that stays the same for a while: a flow is seen some time after it
/// has ended. `None` where no relay bills anybody.
///
/// # Errors
/// The relay could not be asked.
pub(super) fn settled<W: Work>(relays: &[Running<W>]) -> Result<Option<Billed>> {
    let mut last = billed(relays)?;
    for _ in 0..LOOKS_MAX {
        child::pause(LOOK)?;
        let next = billed(relays)?;
        if next == last {
            break;
        }
        last = next;
    }
    Ok(last)
}

/// Between two looks at the bill: several of the gateway's pauses between two transactions.
const LOOK: Duration = Duration::from_millis(500);

/// Looks at a bill that does not come to rest, which then shows.
const LOOKS_MAX: usize = 20;

fn billed<W: Work>(relays: &[Running<W>]) -> Result<Option<Billed>> {
    let Some((program, configuration)) = relays.iter().find_map(Running::ledger) else { return Ok(None) };
    let mut usage = Command::new(program);
    usage.args(["usage", "--json", "--config"]).arg(configuration);
    let output = usage.output().context("asking for the usage")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "the usage cannot be read: {}", complaint.trim());
    let report: Value = serde_json::from_slice(&output.stdout).context("the usage is JSON")?;
    parse(&report).map(Some)
}

fn parse(report: &Value) -> Result<Billed> {
    let total = &report["total"];
    Ok(Billed {
        flows: figure(total, "flows")?,
        up_bytes: figure(total, "up")?,
        down_bytes: figure(total, "down")?,
    })
}

/// What was billed for each connection between two answers, over all rounds of short connections.
pub(super) fn row(before: Billed, after: Billed, rows: &[Row], connections: u32) -> Option<Row> {
    let short = short_row(rows)?;
    let runs = short.series("failed_connections");
    let completed: f64 = runs.iter().map(|failed| f64::from(connections) - failed).sum();
    let numbers = vec![
        ("billed_flows_per_connection", (after.flows - before.flows) / completed),
        ("billed_up_bytes_per_connection", (after.up_bytes - before.up_bytes) / completed),
        ("billed_down_bytes_per_connection", (after.down_bytes - before.down_bytes) / completed),
    ];
    let run = Run { round: 0, marks: Vec::new(), numbers };
    Some(Row { part: PART, subject: short.subject.clone(), runs: vec![run] })
}

/// The runs that were billed.
fn short_row(rows: &[Row]) -> Option<&Row> {
    rows.iter().find(|row| row.part == SHORT && row.subject == Kind::Tollgate.name())
}

/// Says what is wrong with the bill, if every connection succeeded and yet it is not exact.
pub(super) fn warning(rows: &[Row]) -> Option<String> {
    let bill = rows.iter().find(|row| row.part == PART)?;
    if short_row(rows)?.series("failed_connections").iter().any(|&failed| failed > 0.0) {
        return None;
    }
    let expected = [1.0, REQUEST_BYTES as f64, REPLY_BYTES as f64];
    let wrong = |(name, expected): (&'static str, f64)| {
        let billed = bill.median(name)?;
        (billed != expected).then(|| format!("{} has {name} of {billed}, not {expected}", bill.subject))
    };
    bill.names().into_iter().zip(expected).find_map(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn short(failed: &[f64]) -> Row {
        let run = |(round, &failed): (usize, &f64)| Run {
            round,
            marks: Vec::new(),
            numbers: vec![("failed_connections", failed)],
        };
        let runs = failed.iter().enumerate().map(run).collect();
        Row { part: SHORT, subject: "tollgate".to_owned(), runs }
    }

    fn billed(flows: f64, up_bytes: f64, down_bytes: f64) -> Billed {
        Billed { flows, up_bytes, down_bytes }
    }

    #[test]
    fn the_usage_is_read() {
        let report = json!({ "by": "user", "rows": [], "total": { "flows": 3, "up": 300, "down": 600 } });
        assert_eq!(parse(&report).expect("it has totals"), billed(3.0, 300.0, 600.0));
        assert!(parse(&json!({ "rows": [] })).is_err());
    }

    #[test]
    fn only_an_exact_bill_passes() {
        let before = billed(1.0, 1.0, 1.0);
        let check = |after, failed: &[f64], expected: Option<&str>| {
            let mut rows = vec![short(failed)];
            rows.extend(row(before, after, &rows, 10));
            assert_eq!(warning(&rows).as_deref(), expected);
        };
        check(billed(21.0, 2_001.0, 4_001.0), &[0.0, 0.0], None);
        let lost = "tollgate has billed_flows_per_connection of 0.95, not 1";
        check(billed(20.0, 2_001.0, 4_001.0), &[0.0, 0.0], Some(lost));
        let more = "tollgate has billed_up_bytes_per_connection of 101, not 100";
        check(billed(21.0, 2_021.0, 4_001.0), &[0.0, 0.0], Some(more));
        check(billed(20.0, 2_001.0, 4_001.0), &[1.0, 0.0], None);
    }
}
