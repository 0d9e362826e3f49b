//! A database that another process has locked: the gateway continues, stops on a signal, and the next start
//! applies every flow.

use std::net::TcpStream;
use std::thread;

use rustix::process::Signal;

use crate::harness::Gateway;
use crate::peers::{Destination, read_all};

#[test]
#[ignore = "opens 17,000 connections: cargo xtask services"]
fn locked_database_delays_no_stop_and_loses_no_flow() {
    /// More than one transaction takes.
    const FLOWS: usize = 8_192 + 600;
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
    assert_eq!(gateway.wait(), 1);
    let errors = gateway.errors();
    assert!(errors.contains("are durable in the journal: the next start applies them"), "{errors}");
    drop(database);
    let mut gateway = gateway.restart();
    gateway.stop();
    assert_eq!(gateway.usage().0, FLOWS as u64);
}
