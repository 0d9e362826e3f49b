//! A server run by a Python script, on a port of its own choice; killed on drop.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::services::service;
use super::site::testdata;

/// A Python process that serves on `port`.
pub(crate) struct PythonServer {
    child: Child,
    pub(crate) port: u16,
}

impl PythonServer {
    /// Runs `script`, whose first output line is its port, with the libraries of `cargo xtask services`.
    pub(crate) fn start(script: &str, arguments: &[&str]) -> PythonServer {
        let mut command = Command::new("/usr/bin/python3");
        command.arg(testdata(script)).args(arguments).env("PYTHONPATH", service("PYTHON_LIBRARIES"));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
        PythonServer { child, port: port.trim().parse().expect("a port") }
    }
}

impl Drop for PythonServer {
    fn drop(&mut self) {
        // It may have failed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
