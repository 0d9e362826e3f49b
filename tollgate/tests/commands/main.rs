//! Runs each command of the built executable as a user does, in a directory of its own. `tests/it` tests
//! `serve`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

mod check;
mod doctor;
mod explain;
mod serve;
mod usage;
mod user;

/// A directory to run in.
struct TestDir(TempDir);

/// The outcome of a run.
struct Run {
    code: i32,
    out: String,
    err: String,
}

impl TestDir {
    fn new(files: &[(&str, &str)]) -> TestDir {
        let dir = TestDir(tempfile::tempdir().unwrap());
        for (name, text) in files {
            dir.write(name, text);
        }
        dir
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(line.split_whitespace()).current_dir(self.0.path()).env_remove("NO_COLOR");
        command
    }

    /// Runs `tollgate` with the words of `line`. The output has file names relative to the directory.
    fn run(&self, line: &str) -> Run {
        self.run_with(line, b"")
    }

    fn run_with(&self, line: &str, input: &[u8]) -> Run {
        let mut command = self.command(line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // The program may end without reading all of its input.
        let _ = child.stdin.take().unwrap().write_all(input);
        let output = child.wait_with_output().unwrap();
        let directory = format!("{}/", self.0.path().display());
        let printed = |bytes| String::from_utf8(bytes).unwrap().replace(&directory, "");
        Run {
            code: output.status.code().expect("the program exits, and no signal ends it"),
            out: printed(output.stdout),
            err: printed(output.stderr),
        }
    }

    fn json(&self, line: &str) -> (i32, serde_json::Value) {
        let Run { code, out, err } = self.run(line);
        let value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{line}: {error}\n{out}{err}"));
        (code, value)
    }
}

/// Runs each line; compares the exit code and a part of the output, on either stream.
#[track_caller]
fn check_runs(dir: &TestDir, cases: &[(&str, i32, &str)]) {
    for (line, code, part) in cases {
        let run = dir.run(line);
        let printed = format!("{}{}", run.out, run.err);
        assert_eq!(run.code, *code, "tollgate {line}\n{printed}");
        assert!(printed.contains(part), "tollgate {line}\n--- said\n{printed}--- expected\n{part}");
    }
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn wrong_usage_is_code_2() {
    let dir = TestDir::new(&[]);
    check_runs(
        &dir,
        &[
            ("", 2, "Usage: tollgate"),
            ("sreve", 2, "unrecognized subcommand 'sreve'"),
            ("check --colour", 2, "unexpected argument '--colour'"),
            ("check --json --settings", 2, "cannot be used with"),
            ("usage --by week", 2, "invalid value 'week' for '--by <BY>'"),
            ("usage --json --csv", 2, "cannot be used with"),
            ("usage --since yesterday", 2, "expected a day such as 2026-01-31"),
            ("usage --user Ci", 2, "a user name consists of"),
            ("explain --user ci", 2, "--to <HOST:PORT>"),
            ("explain --user ci --to db.corp", 2, "the port is missing"),
            ("explain --user ci --to db.corp:0", 2, "the port must be a number from 1 to 65535"),
            ("explain --user ci --to 0177.0.0.1:80", 2, "unusual spelling"),
            ("explain --user ci --to a:1 --address localhost", 2, "invalid IP address syntax"),
            ("user add Ci", 2, "a user name consists of"),
            ("user add ../ci", 2, "a user name consists of"),
            ("user add ci --allow https://a.example", 2, "leave out https://"),
            ("user add ci --from 10.1.2.3/16", 2, "10.1.0.0/16"),
            ("user add ci --token --password-stdin", 2, "cannot be used with"),
            ("user add ci --connections many", 2, "invalid digit"),
            ("user", 2, "Usage: tollgate user"),
        ],
    );
}

#[test]
fn help_and_version_are_code_0() {
    let dir = TestDir::new(&[]);
    check_runs(
        &dir,
        &[
            ("--version", 0, concat!("tollgate ", env!("CARGO_PKG_VERSION"))),
            ("--help", 0, "Exit codes: 0 fine, 1 failed, 2 wrong usage, 78 wrong configuration."),
            ("user --help", 0, "disable"),
            ("user --help", 0, "enable"),
            ("user remove --help", 0, "--yes"),
            ("help explain", 0, "--to <HOST:PORT>"),
        ],
    );
}

#[test]
fn closed_standard_output_is_no_error() {
    let dir = TestDir::new(&[]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = dir.command("check --settings").stdout(writer).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn full_disk_is_an_error() {
    let dir = TestDir::new(&[]);
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = dir.command("check --settings").stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("No space left on device"));
}
