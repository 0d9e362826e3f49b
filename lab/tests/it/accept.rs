//! The built `lab accept` from the outside: every strategy serves all clients, every verdict is reported. No
//! test asserts figures.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const STRATEGIES: [&str; 5] = ["shared", "mutex", "exclusive", "reuse_port", "handoff"];

fn lab(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["accept", "--quick"])
        .args(arguments)
        .args(["--json", "r.json", "--html", "r.html"])
        .env("TMPDIR", directory)
        .current_dir(directory)
        .output()
        .expect("the lab was built with this test")
}

/// Runs the experiment, and checks what every report has: all verdicts, and no lost connection.
fn report(arguments: &[&str]) -> (Value, String) {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let output = lab(directory.path(), arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let read =
        |file: &str| std::fs::read_to_string(directory.path().join(file)).expect("the file was requested");
    let report: Value = serde_json::from_str(&read("r.json")).expect("the file is JSON");
    assert_eq!(report["experiment"], "accept");
    let lists = ["verdicts", "left_out"].map(|list| report[list].as_array().expect("a report has both"));
    assert_eq!(lists[0].len() + lists[1].len(), 6, "{report:#}");
    let lost = lists[0].iter().find(|verdict| verdict["name"] == "lost").expect("connections were counted");
    assert_eq!(lost["value"], 0.0, "{lost}");
    let left: Vec<_> =
        std::fs::read_dir(directory.path()).expect("the directory still exists").flatten().collect();
    assert_eq!(left.len(), 2, "the two files and nothing else: {left:?}");
    (report, read("r.html"))
}

/// Checks the rows of a part: all strategies, without a lost connection.
fn check_part(report: &Value, part: &str, numbers: &[&str]) {
    for strategy in STRATEGIES {
        let rows = report["rows"].as_array().expect("a report has rows");
        let row = rows.iter().find(|row| row["part"] == part && row["subject"] == strategy);
        let row = row.unwrap_or_else(|| panic!("{strategy} in {part}: {}", report["skipped"]));
        assert_eq!(row["failed_connections"]["max"], 0.0, "{row}");
        for number in numbers {
            assert!(row[number]["median"].is_number(), "{number} of {row}");
        }
    }
}

#[test]
fn every_strategy_serves_beside_a_busy_thread() {
    // That part needs no gateway.
    let (report, page) = report(&["--only", "busy", "--tollgate", "/nonexistent/tollgate"]);
    check_part(&report, "busy-8", &["wakes_per_accept", "hand_overs_per_accept", "first_byte_p99.9_ms"]);
    assert!(page.contains("<svg"), "the page has plots");
}

#[test]
#[ignore = "needs the gateway beside the lab, as a build of the whole workspace leaves it"]
fn every_strategy_serves_through_the_gateway() {
    let (report, page) = report(&["--workers", "1,3"]);
    let cost = ["process_cpu_us_per_connection", "data_plane_cpu_us_per_connection", "listen_overflows"];
    for part in ["crowd-1", "crowd-3", "light-8"] {
        check_part(&report, part, &cost);
    }
    check_part(&report, "reload-8", &["reloads", "first_byte_p99_ms"]);
    check_part(&report, "long-lived-8", &["most_to_mean_clients", "hand_overs_per_accept"]);
    check_part(&report, "busy-8", &["first_byte_p50_ms"]);
    let rows = report["rows"].as_array().expect("a report has rows");
    let calls: Vec<_> = rows.iter().filter(|row| row["part"] == "system-calls").collect();
    // Where strace is not installed, `skipped` names it.
    assert!(calls.len() == 2 || report["skipped"].to_string().contains("strace"), "{}", report["skipped"]);
    let heading = "<code>crowd</code> over gateway threads";
    assert!(page.contains(heading), "the crowd is drawn over its threads");
}

#[test]
fn wrong_arguments_are_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let wrong =
        [["--only", "everything"], ["--strategies", "herd"], ["--workers", "0"], ["--connections", "0"]];
    for arguments in wrong {
        let output = lab(directory.path(), &arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
