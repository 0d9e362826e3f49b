//! A listener of a process that has no descriptor left. It has a process of its own, whose limit is lowered.

use std::fs::File;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sys::socket::{AcceptError, ListenOptions, Listener, ResourceExhausted};

/// Does `work` while no descriptor is left.
fn without_descriptors<T>(work: impl FnOnce() -> T) -> T {
    let usual = getrlimit(Resource::Nofile);
    // It has the lowest free number, so that those below are in use.
    let last = File::open("/dev/null").unwrap();
    let used_up = Rlimit { current: Some(last.as_raw_fd() as u64 + 1), ..usual };
    setrlimit(Resource::Nofile, used_up).unwrap();
    assert!(File::open("/dev/null").is_err());
    let outcome = work();
    setrlimit(Resource::Nofile, usual).unwrap();
    outcome
}

/// The kernel refuses an accept for want of a descriptor also where nobody waits.
#[test]
fn only_who_waits_makes_a_shortage() {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), ListenOptions::plain(8)).unwrap();
    let in_vain = without_descriptors(|| listener.accept());
    assert!(matches!(in_vain, Err(AcceptError::Empty)), "{in_vain:?}");
    let _client = TcpStream::connect(listener.local().unwrap()).unwrap();
    let refused = without_descriptors(|| listener.accept());
    assert!(matches!(refused, Err(AcceptError::Exhausted(ResourceExhausted::Descriptors))), "{refused:?}");
    assert!(listener.accept().is_ok());
}
