//! The built `lab quota` from the outside: a run without Tollgate and 3proxy reports the naive check, names
//! what it left out, and leaves nothing behind. No test asserts figures.

use std::process::Command;

use serde_json::Value;

#[test]
fn naive_check_ends_no_tunnel() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["quota", "--quick", "--without", "tollgate,tollgate-limited,3proxy", "--json", "r.json"])
        .env("TMPDIR", directory.path())
        .current_dir(directory.path())
        .output()
        .expect("the lab was built with this test");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("skipped 3proxy") && text.contains("left out rate-cpu"), "{text}");

    let json = std::fs::read_to_string(directory.path().join("r.json")).expect("--json writes a file");
    let report: Value = serde_json::from_str(&json).expect("the file is JSON");
    let rows = report["rows"].as_array().expect("a report has rows");
    let cases: Vec<&Value> = rows.iter().map(|row| &row["case"]).collect();
    assert_eq!(cases, ["quota-down/bare-quota", "quota-up/bare-quota"]);
    for row in rows {
        assert_eq!(row["open_tunnels"]["median"], 64.0, "{row}");
        assert!(row["moved_bytes"]["median"].as_f64() > Some(0.0), "{row}");
    }
    std::fs::remove_file(directory.path().join("r.json")).expect("the report is there");
    let left: Vec<_> = std::fs::read_dir(directory.path()).expect("the directory still exists").collect();
    assert!(left.is_empty(), "{left:?}");
}
