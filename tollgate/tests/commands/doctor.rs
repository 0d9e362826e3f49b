//! `tollgate doctor`.

use super::Room;

#[test]
fn every_limit_is_told() {
    let room = Room::new(&[("tollgate.toml", "[limits]\nconnections = 10\n")]);
    let (_, findings) = room.json("doctor --json");
    let findings = findings.as_array().unwrap();
    let names: Vec<&str> = findings.iter().map(|finding| finding["what"].as_str().unwrap()).collect();
    let expected = [
        "descriptors",
        "threads",
        "thread ids",
        "mappings",
        "ports to one destination",
        "accept backlog",
        "pipe pages",
    ];
    assert_eq!(names, expected);
    let table = room.run("doctor").out;
    for name in names {
        assert!(table.contains(name), "{table}");
    }
}

#[test]
fn a_load_that_is_not_carried_is_code_1() {
    let room = Room::new(&[("tollgate.toml", "[limits]\nconnections = 1_000_000\n")]);
    // The limit is lowered for the child, whatever the machine permits.
    let program = env!("CARGO_BIN_EXE_tollgate");
    let script = format!("ulimit -n 1000 && exec {program} doctor");
    let mut command = std::process::Command::new("sh");
    let output = command.args(["-c", &script]).current_dir(room.path("")).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{table}");
    let line = table.lines().find(|line| line.trim_start().starts_with("descriptors")).unwrap();
    assert!(
        line.contains("fails") && line.contains("1000") && line.contains("raise the hard limit"),
        "{line}"
    );
}
