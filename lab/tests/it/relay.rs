//! The built `lab` from the outside: a small run ends, reports in all its forms, and leaves nothing behind.
//! No test asserts figures.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const SMALL_REQUESTS: &[&str] = &["--only", "requests", "--rounds", "1", "--requests", "500"];
const SMALL_TUNNELS: &[&str] = &["--only", "connect", "--rounds", "1", "--connections", "50"];
const SMALL: &[&str] = &["--only", "short", "--rounds", "1", "--connections", "50"];

const RELAYS: &str =
    "tollgate,tollgate-limited,haproxy,nginx,squid,tinyproxy,3proxy,dante,microsocks,g3proxy";

/// A run that needs no relay at all.
fn lab(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["relay", "--without", RELAYS])
        .args(arguments)
        .env("TMPDIR", directory)
        .current_dir(directory)
        .output()
        .expect("the lab was built with this test")
}

#[test]
fn run_reports_in_all_forms() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let files = ["--json", "r.json", "--html", "r.html", "--svg", "r.svg"];
    let output = lab(directory.path(), &[SMALL, &files].concat());
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
    let some = ["short-cpu", "short-rate", "bulk-cpu", "bulk-rate", "idle-memory", "pingpong-p99", "growth"];
    for name in some.into_iter().chain([
        "requests-cpu",
        "requests-close-rate",
        "connect-short-cpu",
        "socks5-bulk-rate",
    ]) {
        assert!(left_out.iter().any(|left_out| left_out == name), "{name} is not among {left_out:?}");
    }

    let html = std::fs::read_to_string(directory.path().join("r.html")).expect("--html writes a file");
    // One round has one value of each number, for which no strips are drawn.
    assert!(html.starts_with("<!doctype html>") && html.contains("<table") && html.contains("direct"));
    let svg = std::fs::read_to_string(directory.path().join("r.svg")).expect("--svg writes a file");
    assert!(svg.starts_with("<svg xmlns=") && html.contains("<svg") && svg.contains("direct"), "{svg}");

    let plot = plot(directory.path(), &["r.json", "--html", "again.html", "--svg", "again.svg"]);
    assert!(plot.status.success(), "{}", String::from_utf8_lossy(&plot.stderr));
    let again =
        |file: &str| std::fs::read_to_string(directory.path().join(file)).expect("the file was drawn");
    assert_eq!((again("again.html"), again("again.svg")), (html, svg), "a stored run draws the same");
}

fn plot(directory: &Path, arguments: &[&str]) -> Output {
    let mut lab = Command::new(env!("CARGO_BIN_EXE_lab"));
    lab.arg("plot").args(arguments).current_dir(directory).output().expect("the lab was built with this test")
}

#[test]
fn plot_without_a_file_or_a_report_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    std::fs::write(directory.path().join("r.json"), "{\"experiment\": \"other\"}")
        .expect("the child can be awaited");
    let check = |arguments: &[&str], expected: &str| {
        let output = plot(directory.path(), arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), text.trim()), (Some(1), expected));
    };
    check(&["r.json"], "lab: name a file to draw by `--svg` or `--html`");
    check(&["r.json", "--svg", "f"], "lab: reading r.json: it names no experiment of the lab");
    check(&["none", "--svg", "f"], "lab: reading none: No such file or directory (os error 2)");
}

#[test]
fn svg_without_its_part_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let output = lab(directory.path(), &["--only", "idle", "--svg", "f"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(text.trim(), "lab: `--svg` draws short, which `--only` leaves out");
}

#[test]
fn requests_use_kept_or_new_connections() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let output = lab(directory.path(), &[SMALL_REQUESTS, &["--json", "r.json"]].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("skipped squid") && !text.contains("skipped haproxy"), "{text}");
    let json = std::fs::read_to_string(directory.path().join("r.json")).expect("--json writes a file");
    let report: Value = serde_json::from_str(&json).expect("the file is JSON");
    let check = |row: &Value, case, connections| {
        assert_eq!(row["case"], case);
        assert_eq!(row["failed_requests"]["max"], 0.0, "{row}");
        for end in ["client_connections_per_request", "origin_connections_per_request"] {
            assert_eq!(row[end]["median"], connections, "{end} of {row}");
        }
    };
    check(&report["rows"][0], "requests-keep-alive/direct", 0.2);
    check(&report["rows"][1], "requests-close/direct", 1.0);
}

#[test]
fn tunnels_carry_short_connections_and_streams() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let output = lab(directory.path(), &[SMALL_TUNNELS, &["--json", "r.json"]].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("skipped 3proxy") && !text.contains("skipped dante"), "{text}");
    let json = std::fs::read_to_string(directory.path().join("r.json")).expect("--json writes a file");
    let report: Value = serde_json::from_str(&json).expect("the file is JSON");
    let cases: Vec<&Value> = (0..3).map(|row| &report["rows"][row]["case"]).collect();
    assert_eq!(cases, ["connect-short/direct", "connect-bulk-down/direct", "connect-bulk-up/direct"]);
    assert_eq!(report["rows"][0]["failed_connections"]["max"], 0.0, "{report}");
}

#[test]
fn run_leaves_nothing_behind() {
    for work in [SMALL, SMALL_REQUESTS] {
        let directory = tempfile::tempdir().expect("a temporary directory can be created");
        let output = lab(directory.path(), work);
        assert!(output.status.success());
        let left: Vec<_> = std::fs::read_dir(directory.path()).expect("the directory still exists").collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let wrong =
        [["--only", "everything"], ["--rounds", "0"], ["--connections", "2000000000"], ["--requests", "0"]];
    for arguments in wrong {
        let output = lab(directory.path(), &arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
