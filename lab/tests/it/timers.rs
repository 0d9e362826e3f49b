//! The built `lab timers` from the outside: every implementation takes part in every part, every verdict is
//! reported, and an external program does the same tasks. No test asserts figures.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;

const LAB: &str = env!("CARGO_BIN_EXE_lab");

const TARGETS: [&str; 9] = [
    "tollgate-shared",
    "tollgate-local",
    "tollgate-own-wheel",
    "heap",
    "bucketed",
    "timerfd",
    "threads",
    "tick",
    "tokio",
];

fn report(arguments: &[&str]) -> Value {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let (json, html) = (directory.path().join("r.json"), directory.path().join("r.html"));
    let output = Command::new(LAB)
        .args(["timers", "--quick"])
        .args(arguments)
        .args(["--json".as_ref(), json.as_os_str(), "--html".as_ref(), html.as_os_str()])
        .output()
        .expect("the lab was built with this test");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::read_to_string(html).expect("--html writes a file").contains("<svg"), "the page has plots");
    let report = fs::read_to_string(json).expect("--json writes a file");
    serde_json::from_str(&report).expect("the file is JSON")
}

fn has_row(report: &Value, part: &str, target: &str) -> bool {
    let rows = report["rows"].as_array().expect("a report has rows");
    rows.iter().any(|row| row["part"] == part && row["subject"] == target)
}

#[test]
fn every_implementation_takes_part() {
    let report = report(&[]);
    for target in TARGETS {
        for part in ["owner-w1-1", "owner-w64-50", "other-w1-2", "other-w64-8", "calls", "held"] {
            let is_alone = target == "tollgate-own-wheel" && part.starts_with("other");
            assert_eq!(
                has_row(&report, part, target),
                !is_alone,
                "{target} in {part}: {}",
                report["skipped"]
            );
        }
    }
    for (part, takes_part) in [("owner-w1-1", true), ("other-w64-8", true), ("calls", false), ("held", false)]
    {
        assert_eq!(has_row(&report, part, "nothing"), takes_part, "{part}");
    }
    for deadlines in ["off", "lazy", "each"] {
        assert!(has_row(&report, "echo-400", deadlines), "{}", report["skipped"]);
    }
    let reported = |list: &str| report[list].as_array().expect("a report has both lists").len();
    assert_eq!(reported("verdicts") + reported("left_out"), 8, "{report:#}");
    let verdicts = report["verdicts"].as_array().expect("a report has verdicts");
    assert!(verdicts.iter().all(|verdict| verdict["result"] == "undecided"), "{verdicts:?}");
}

#[test]
fn external_program_takes_part_or_is_skipped() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let program = directory.path().join("driver");
    // It knows one kind of work, and fails for the others.
    let script = "#!/bin/sh\n[ \"$2\" = held ] && echo '{\"held\": {\"cancelled\": 7, \"held_mb\": 0.5}}'\n";
    fs::write(&program, script).expect("the directory is ours");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    let report = report(&["--brpc", program.to_str().expect("its name is text")]);
    assert!(has_row(&report, "held", "brpc"));
    assert!(!has_row(&report, "calls", "brpc"));
    let skipped = report["skipped"].to_string();
    assert!(
        skipped.contains("brpc in calls") && skipped.contains("brpc in schedule and cancel"),
        "{skipped}"
    );
}
