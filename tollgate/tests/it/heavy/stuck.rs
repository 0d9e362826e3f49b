//! A ledger that takes nothing, because somebody else holds its database: the gateway goes on for as long as
//! there is room, ends when it is told to, and says how many records are lost.

use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Gateway, eventually};
use crate::peers::{Destination, read_all};

#[test]
#[ignore = "opens 34,000 connections: cargo xtask services"]
fn a_ledger_that_takes_nothing_does_not_keep_it_from_ending() {
    /// What the ledger thread and the two rings hold, and some that find no room.
    const FLOWS: usize = 8_192 + 2 * 4_096 + 600;
    const THREADS: usize = 4;
    let destination = Destination::start(drop);
    let mut gateway = Gateway::forwarding(destination.address, "");
    let database = rusqlite::Connection::open(gateway.path("tollgate-data/ledger.db")).unwrap();
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    let address = gateway.listeners[1];
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(move || {
                for _ in 0..FLOWS / THREADS {
                    assert_eq!(read_all(&mut TcpStream::connect(address).unwrap()), b"");
                }
            });
        }
    });
    gateway.await_metric("tollgate_closed_total", FLOWS as f64);
    gateway.signal(Signal::TERM);
    eventually("it drains", || TcpStream::connect(gateway.listeners[0]).is_err());
    // The second one ends the patience with what is open, the third that with the ledger.
    for patience in ["connections", "ledger"] {
        thread::sleep(Duration::from_millis(200));
        assert!(TcpStream::connect(gateway.admin).is_ok(), "patience with its {patience} is not over yet");
        gateway.signal(Signal::TERM);
    }
    assert_eq!(gateway.wait(), 1);
    let errors = gateway.errors();
    assert!(errors.contains(&format!("{FLOWS} records could not be written")), "{errors}");
}
