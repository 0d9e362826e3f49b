//! The addresses of the servers that `cargo xtask services` has started, and the environment in which
//! programs use them.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

/// The value of `key` in `target/services.env`.
pub(crate) fn service(key: &str) -> String {
    let path = environment_file();
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run `cargo xtask services`", path.display()));
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("{} has no {key}", path.display())).to_owned()
}

fn environment_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target/services.env")
}

/// The output and exit code of a program.
pub(crate) struct ProgramOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
}

impl ProgramOutput {
    /// The standard output of a program that succeeded.
    #[track_caller]
    pub(crate) fn success(self) -> Vec<u8> {
        assert_eq!(self.code, Some(0), "{}{}", String::from_utf8_lossy(&self.out), self.err);
        self.out
    }

    /// The standard output as text, without white space at its ends.
    #[track_caller]
    pub(crate) fn text(self) -> String {
        String::from_utf8(self.success()).expect("the output is UTF-8").trim().to_owned()
    }
}

/// Runs `program` without input.
pub(crate) fn run<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> ProgramOutput {
    run_with(program, arguments, b"")
}

/// Variables that set another proxy, exclude hosts from it, or name trusted certificates; also in upper case.
const UNSET: [&str; 8] = [
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "git_ssl_cainfo",
    "requests_ca_bundle",
    "curl_ca_bundle",
    "ssl_cert_file",
];

/// Runs `program`, which reads `input`. The environment has no other proxy settings, and no configuration of
/// the user applies.
pub(crate) fn run_with<S: AsRef<OsStr>>(program: &str, arguments: &[S], input: &[u8]) -> ProgramOutput {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in UNSET {
        command.env_remove(name).env_remove(name.to_ascii_uppercase());
    }
    for (name, value) in [
        ("LC_ALL", "C.UTF-8"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("PSQLRC", "/dev/null"),
        ("REDISCLI_RCFILE", "/dev/null"),
    ] {
        command.env(name, value);
    }
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{program}: {error}"));
    let mut stdin = child.stdin.take().expect("standard input is piped");
    let output = thread::scope(|scope| {
        // In parallel with reading, since both sides may be larger than a pipe. The program may not read all.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().unwrap()
    });
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    ProgramOutput { code: output.status.code(), out: output.stdout, err }
}
