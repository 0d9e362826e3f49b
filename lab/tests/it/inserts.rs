//! The built `lab inserts` from the outside: a quick run ends, reports every store and every verdict or why
//! not, and leaves the machine as it was. No test asserts figures.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Pid, Signal};

use serde_json::Value;

const AUTOGROUP: &str = "/proc/sys/kernel/sched_autogroup_enabled";

/// Without the servers, which may be installed or not.
const SERVERS: &str = "postgres-async,postgres-sync,postgres-copy";

/// Held by a test that runs the experiment: one would change the scheduler under the other.
static MACHINE: Mutex<()> = Mutex::new(());

fn lab(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command.args(["inserts", "--quick", "--without", SERVERS]).args(arguments);
    command.env("TMPDIR", directory).current_dir(directory);
    command
}

fn run(directory: &Path, arguments: &[&str]) -> Output {
    lab(directory, arguments).output().expect("the lab was built with this test")
}

fn autogroup() -> Option<String> {
    std::fs::read_to_string(AUTOGROUP).ok()
}

#[track_caller]
fn assert_empty(directory: &Path) {
    let left: Vec<_> = std::fs::read_dir(directory).expect("the directory still exists").collect();
    assert!(left.is_empty(), "{left:?}");
}

fn names(list: &Value, key: &str) -> Vec<String> {
    let list = list.as_array().cloned().unwrap_or_default();
    list.iter().filter_map(|entry| entry[key].as_str().map(str::to_owned)).collect()
}

#[test]
fn quick_run_reports_every_store_and_cleans_up() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let reports = tempfile::tempdir().expect("a temporary directory can be created");
    let [json, html] = ["r.json", "r.html"].map(|name| reports.path().join(name).display().to_string());
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = autogroup();
    let output = run(directory.path(), &["--json", &json, "--html", &html]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let progress = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code().is_some_and(|code| code <= 1), "{text}{progress}");
    assert!(text.contains("inserts_per_s, by hogs: medians"), "{text}{progress}");
    assert!(progress.contains("hogs-2, ticket, round 1"), "{progress}");
    assert_eq!(autogroup(), before, "the scheduler is as it was");
    assert_empty(directory.path());

    let report = std::fs::read_to_string(json).expect("--json writes a file");
    let report: Value = serde_json::from_str(&report).expect("the file is JSON");
    assert_eq!(report["experiment"], "inserts");
    let cases = names(&report["rows"], "case");
    for store in ["ours", "latch", "ticket", "turnstile", "sqlite-normal", "sqlite-full"] {
        for hogs in [0, 2] {
            let case = format!("hogs-{hogs}/{store}");
            assert!(cases.contains(&case), "{case} is not among {cases:?}\n{text}");
        }
    }
    let mut reported = names(&report["verdicts"], "name");
    reported.extend(names(&report["left_out"], "name"));
    assert_eq!(reported.len(), 9, "{reported:?}");
    let skipped = names(&report["skipped"], "name");
    assert!(skipped.iter().any(|name| name == "postgres-async"), "{skipped:?}");

    let ours =
        report["rows"].as_array().and_then(|rows| rows.iter().find(|row| row["case"] == "hogs-2/ours"));
    let ours = ours.expect("the case was found above");
    for number in ["inserts_per_s", "kept_percent", "fair_share_percent", "insert_p99_us"] {
        assert!(ours[number]["median"].as_f64() > Some(0.0), "{number} in {ours}");
    }
    // So short a case may end before the database has its first row.
    for number in
        ["visible_per_s", "blocked_inserts", "refusals", "raw_fdatasync_p50_us", "lag_to_visible_p99_ms"]
    {
        assert!(ours[number]["median"].is_number(), "{number} in {ours}");
    }
    let html = std::fs::read_to_string(html).expect("--html writes a file");
    assert!(html.starts_with("<!doctype html>") && html.contains("<svg"));
}

#[test]
fn interrupted_run_restores_the_machine() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = autogroup();
    let arguments = ["--only", "hogs", "--rounds", "100"];
    let mut lab = lab(directory.path(), &arguments).stderr(Stdio::piped()).spawn().expect("the lab is built");
    let mut progress = BufReader::new(lab.stderr.take().expect("the output is piped")).lines();
    let is_beside_hogs = |line: &String| line.contains("hogs-2, ours");
    assert!(progress.by_ref().map_while(Result::ok).any(|line| is_beside_hogs(&line)));
    rustix::process::kill_process(Pid::from_child(&lab), Signal::INT).expect("the process runs");
    let last = progress.map_while(Result::ok).last();
    assert_eq!(lab.wait().expect("the child can be awaited").code(), Some(130), "{last:?}");
    assert_eq!(last.as_deref(), Some("lab: interrupted"));
    assert_eq!(autogroup(), before, "the scheduler is as it was");
    assert_empty(directory.path());
}

#[test]
fn wrong_arguments_are_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    for arguments in [["--only", "everything"], ["--rounds", "0"], ["--without", "postgres"]] {
        let output = run(directory.path(), &arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}
