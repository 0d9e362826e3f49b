//! A listener in a process without a free descriptor. The test lowers the limit of its own process.

use std::fs::File;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sys::socket::{AcceptError, ListenOptions, Listener, ResourceExhausted};

/// Runs `work` while no descriptor is free.
fn without_descriptors<T>(work: impl FnOnce() -> T) -> T {
    let original = getrlimit(Resource::Nofile);
    // It has the lowest free number, so all numbers below are in use.
    let last = File::open("/dev/null").unwrap();
    let exhausted = Rlimit { current: Some(last.as_raw_fd() as u64 + 1), ..original };
    setrlimit(Resource::Nofile, exhausted).unwrap();
    assert!(File::open("/dev/null").is_err());
    let outcome = work();
    setrlimit(Resource::Nofile, original).unwrap();
    outcome
}

/// The kernel fails an accept with EMFILE even when no connection is pending.
#[test]
fn accept_reports_emfile_only_with_a_pending_client() {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), ListenOptions::plain(8)).unwrap();
    let without_client = without_descriptors(|| listener.accept());
    assert!(matches!(without_client, Err(AcceptError::Empty)), "{without_client:?}");
    let _client = TcpStream::connect(listener.local().unwrap()).unwrap();
    let with_client = without_descriptors(|| listener.accept());
    assert!(
        matches!(with_client, Err(AcceptError::Exhausted(ResourceExhausted::Descriptors))),
        "{with_client:?}"
    );
    assert!(listener.accept().is_ok());
}
