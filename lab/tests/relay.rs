//! The built `lab` from the outside: a small run ends, tells its report in all three forms, and leaves
//! nothing behind. Leaves to others: the figures, about which no test says anything.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const SMALL: &[&str] = &["--only", "short", "--rounds", "1", "--connections", "50"];

/// A run that needs no relay at all.
fn lab(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["relay", "--without", "tollgate,haproxy,nginx"])
        .args(arguments)
        .env("TMPDIR", directory)
        .current_dir(directory)
        .output()
        .expect("the lab was built with this test")
}

#[test]
fn a_run_tells_its_report_in_three_forms() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let output = lab(directory.path(), &[SMALL, &["--json", "r.json", "--html", "r.html"]].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let progress = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}{progress}");
    assert!(text.contains("short: median [min-max]") && text.contains("skipped tollgate"), "{text}");
    assert!(progress.contains("short connections, direct, round 1"), "{progress}");

    let json = std::fs::read_to_string(directory.path().join("r.json")).expect("--json writes a file");
    let report: Value = serde_json::from_str(&json).expect("the file is JSON");
    assert_eq!(report["experiment"], "relay");
    assert!(report["machine"]["kernel"].is_string());
    assert_eq!(report["verdicts"], serde_json::json!([]));
    let direct = &report["rows"][0];
    assert_eq!(direct["case"], "short/direct");
    assert_eq!(direct["failed_connections"]["max"], 0.0, "{direct}");
    assert!(direct["connections_per_s"]["median"].as_f64() > Some(0.0), "{direct}");
    let names = |list: &Value| -> Vec<String> {
        let list = list.as_array().cloned().unwrap_or_default();
        list.iter().filter_map(|entry| entry["name"].as_str().map(str::to_owned)).collect()
    };
    let left_out = names(&report["left_out"]);
    for name in ["short-cpu", "short-rate", "bulk-cpu", "bulk-rate", "idle-memory", "pingpong-p99", "growth"]
    {
        assert!(left_out.iter().any(|left_out| left_out == name), "{name} is not among {left_out:?}");
    }

    let html = std::fs::read_to_string(directory.path().join("r.html")).expect("--html writes a file");
    assert!(html.starts_with("<!doctype html>") && html.contains("<svg"));
}

#[test]
fn nothing_is_left_behind() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let output = lab(directory.path(), SMALL);
    assert!(output.status.success());
    let left: Vec<_> = std::fs::read_dir(directory.path()).expect("it is still there").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn wrong_arguments_are_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    for arguments in [["--only", "everything"], ["--rounds", "0"], ["--connections", "2000000000"]] {
        let output = lab(directory.path(), &arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
