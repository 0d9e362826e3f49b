//! The built `lab overload` from the outside: every load and every verdict is reported, and every offered job
//! has ended in one way or another. No test asserts figures.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal};
use serde_json::Value;

const LAB: &str = env!("CARGO_BIN_EXE_lab");

/// Percent of the offered jobs.
const ENDS: [&str; 5] =
    ["in_time_percent", "refused_percent", "expired_percent", "shed_percent", "late_or_never_percent"];

#[test]
fn offered_jobs_end_in_one_of_five_ways() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let json = directory.path().join("r.json");
    let output = Command::new(LAB).args(["overload", "--quick", "--json"]).arg(&json).output();
    let output = output.expect("the lab was built with this test");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));

    let report = std::fs::read_to_string(json).expect("--json writes a file");
    let report: Value = serde_json::from_str(&report).expect("the file is JSON");
    let rows = report["rows"].as_array().expect("a report has rows");
    let loads: Vec<_> = rows.iter().filter(|row| row["part"] != "capacity").collect();
    assert_eq!(loads.len(), 6 * 3, "six loads of three targets");
    for row in loads {
        let of_runs =
            |name: &str| row[name]["values"].as_array().unwrap_or_else(|| panic!("{name} in {row}"));
        for run in 0..of_runs(ENDS[0]).len() {
            let total: f64 = ENDS.iter().filter_map(|name| of_runs(name)[run].as_f64()).sum();
            assert!((total - 100.0).abs() < 0.1, "{total} in {row}");
        }
    }
    let verdicts = report["verdicts"].as_array().expect("a report has verdicts");
    assert_eq!(verdicts.len(), 3, "{verdicts:?}");
    assert!(verdicts.iter().all(|verdict| verdict["result"] == "undecided"), "{verdicts:?}");
}

#[test]
fn interrupted_run_ends_soon_with_a_message() {
    let mut lab = Command::new(LAB).arg("overload").stderr(Stdio::piped()).spawn().expect("the lab is built");
    let mut progress = BufReader::new(lab.stderr.take().expect("the output is piped")).lines();
    assert!(progress.by_ref().map_while(Result::ok).any(|line| line.contains("round 1")));
    rustix::process::kill_process(Pid::from_child(&lab), Signal::INT).expect("the process runs");
    let last = progress.map_while(Result::ok).last();
    assert_eq!(lab.wait().expect("the child can be awaited").code(), Some(130), "{last:?}");
    assert_eq!(last.as_deref(), Some("lab: interrupted"));
}
