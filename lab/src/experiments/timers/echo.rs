//! A request/response echo over loopback TCP on the engine: a server and its clients, a reactor thread each,
//! with a deadline for every call on either side, kept in one of two ways, or without deadlines.
//!
//! Guarantees: each call is answered exactly once, or the run is an error; without deadlines nothing is armed
//! and no clock is read for one.
//!
//! ```text
//!   client.rs  begin, send --frame.rs--> read, begin  server.rs
//!              end        <---frame.rs--- write, end
//!              framed_stream.rs and deadlines.rs on both ends
//! ```
//!
//! Every connection has [`CALLS_PER_CONNECTION`] calls in flight, as RPC clients have it: a process keeps one
//! or a few connections to a server, all its threads' calls share them, and each answer finds its call by an
//! id. That is also the harder case for timers, since calls that arrive together share a read, a write and a
//! pass of the loop, and only the deadlines remain one for each.

mod client;
mod deadlines;
mod frame;
mod framed_stream;
mod server;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use engine::accept::{self, ListenerHandle};
use engine::inbox::{Inbox, Notifier, Sender};
use serde_json::json;
use sys::clock::process_cpu;
use sys::socket::ListenOptions;

use self::client::Client;
pub(super) use self::deadlines::DeadlineMode;
use self::server::{Server, Stop};

/// Calls in flight on one connection; RPC clients share connections among calls.
const CALLS_PER_CONNECTION: usize = 8;

const BACKLOG: u32 = 1_024;

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    /// Calls that were answered.
    pub(super) calls: u64,
    pub(super) calls_per_s: f64,
    /// User and system time of this process, which holds both ends of the echo.
    pub(super) cpu_ns_per_call: f64,
    /// Of either side. The client stops at its first, so any is a failure of the run.
    pub(super) deadlines_fired: u64,
}

/// Completes `calls` calls, `in_flight` at a time.
///
/// # Errors
/// A connection failed, or an answer was not that of a call.
pub(super) fn run(in_flight: usize, deadlines: DeadlineMode, calls: u64) -> Result<Figures> {
    ensure!(in_flight > 0 && calls > 0, "an echo needs at least one call");
    let listener = listen()?;
    let address = listener.local()?;
    let notifier = Arc::new(Notifier::new().context("creating an eventfd")?);
    let inbox = Inbox::new(Arc::clone(&notifier));
    thread::scope(|scope| {
        let stop = StopAtEnd(inbox.sender());
        let serve = move || Server::new(notifier, inbox, listener, deadlines)?.run();
        let server = thread::Builder::new().name("echo-server".to_owned()).spawn_scoped(scope, serve)?;
        let called = call(address, in_flight, deadlines, calls);
        drop(stop);
        let served = server.join().unwrap_or_else(|_| Err(anyhow!("the server's thread panicked")));
        // The server's error is the cause of the client's, if both have one.
        let fired = served.context("serving")?;
        let figures = called.context("calling")?;
        Ok(Figures { deadlines_fired: figures.deadlines_fired + fired, ..figures })
    })
}

/// The client's side of a run, measured from its first call to its last answer.
fn call(address: SocketAddr, in_flight: usize, deadlines: DeadlineMode, calls: u64) -> Result<Figures> {
    let mut client = Client::connect(address, in_flight, deadlines)?;
    let (began, cpu_before) = (Instant::now(), process_cpu());
    let done = client.run(calls)?;
    let (elapsed, cpu) = (began.elapsed(), process_cpu() - cpu_before);
    Ok(Figures {
        calls: done.answered,
        calls_per_s: done.answered as f64 / elapsed.as_secs_f64(),
        cpu_ns_per_call: cpu.as_nanos() as f64 / done.answered.max(1) as f64,
        deadlines_fired: done.fired,
    })
}

fn listen() -> io::Result<ListenerHandle> {
    let strategy = accept::strategy("reuse_port").expect("the engine has this strategy");
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    Ok(accept::listen(strategy, any_port, ListenOptions::plain(BACKLOG), 1, 0)?.remove(0))
}

/// Stops the server, however the client ended.
struct StopAtEnd(Sender<Stop>);

impl Drop for StopAtEnd {
    fn drop(&mut self) {
        self.0.send(Stop);
    }
}

/// The arguments of `lab echo`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Echo {
    /// Calls at a time
    #[arg(long)]
    in_flight: usize,
    /// How the calls' deadlines are kept
    #[arg(long)]
    deadlines: DeadlineMode,
    /// Calls in all
    #[arg(long)]
    calls: u64,
}

impl Echo {
    pub(super) fn new(in_flight: usize, deadlines: DeadlineMode, calls: u64) -> Self {
        Self { in_flight, deadlines, calls }
    }

    /// The arguments as the command line has them.
    pub(super) fn arguments(&self) -> Vec<String> {
        let (in_flight, calls) = (self.in_flight.to_string(), self.calls.to_string());
        let deadlines = self.deadlines.as_str();
        let words = ["echo", "--in-flight", &in_flight, "--deadlines", deadlines, "--calls", &calls];
        words.map(str::to_owned).into()
    }
}

/// The child's side: runs once and prints the figures.
///
/// # Errors
/// As `run`, or a deadline fired.
pub(crate) fn echo(echo: &Echo) -> Result<()> {
    let figures = run(echo.in_flight, echo.deadlines, echo.calls)?;
    ensure!(figures.deadlines_fired == 0, "{} deadlines fired", figures.deadlines_fired);
    let answer = json!({
        "calls": figures.calls,
        "calls_per_s": figures.calls_per_s,
        "cpu_ns_per_call": figures.cpu_ns_per_call,
    });
    println!("{answer}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    use clap::{Parser, ValueEnum};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        echo: Echo,
    }

    #[test]
    fn echo_answers_each_call_exactly_once() {
        for &deadlines in DeadlineMode::value_variants() {
            // Fewer than fit into one connection, some connections, a last one that is not full; and fewer
            // calls than may be in flight.
            for (in_flight, calls) in [(1, 300), (50, 700), (400, 900), (50, 20)] {
                let figures = run(in_flight, deadlines, calls).expect("loopback echoes");
                let case = format!("{in_flight} in flight, deadlines {deadlines:?}");
                assert_eq!((figures.calls, figures.deadlines_fired), (calls, 0), "{case}");
                assert!(figures.calls_per_s > 0.0 && figures.cpu_ns_per_call > 0.0, "{case}");
            }
        }
    }

    #[test]
    fn deadlines_fire_when_the_server_never_answers() {
        for deadlines in [DeadlineMode::Lazy, DeadlineMode::Each] {
            let listener = listen().expect("loopback listens");
            let address = listener.local().expect("a listener has an address");
            let figures = call(address, 50, deadlines, 700).expect("the kernel takes connections and bytes");
            assert_eq!(figures.calls, 0, "{deadlines:?}");
            assert!(figures.deadlines_fired > 0, "{deadlines:?}");
        }
    }

    #[test]
    fn deadlines_fire_when_the_server_stops_answering() {
        for deadlines in [DeadlineMode::Lazy, DeadlineMode::Each] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("loopback listens");
            let address = listener.local_addr().expect("a listener has an address");
            let server = thread::spawn(move || {
                let (stream, _) = listener.accept()?;
                // Frames that come back unchanged are answers, and the last one is incomplete.
                io::copy(&mut (&stream).take(5_000), &mut &stream).map(|_| stream)
            });
            let figures = call(address, CALLS_PER_CONNECTION, deadlines, 700);
            let figures = figures.expect("the server's end stays open");
            assert!((1..700).contains(&figures.calls), "{deadlines:?}");
            assert!(figures.deadlines_fired > 0, "{deadlines:?}");
            drop(server.join().expect("the server's thread does not panic").expect("the client reads"));
        }
    }

    #[test]
    fn ended_server_is_an_error() {
        let listener = listen().expect("loopback listens");
        let address = listener.local().expect("a listener has an address");
        drop(listener);
        assert!(call(address, 50, DeadlineMode::Lazy, 700).is_err());
    }

    #[test]
    fn echo_arguments_survive_the_command_line() {
        for &deadlines in DeadlineMode::value_variants() {
            let echo = Echo::new(400, deadlines, 20_000);
            let line = Line::try_parse_from(echo.arguments()).expect("the child parses its own arguments");
            let parsed = (line.echo.in_flight, line.echo.deadlines, line.echo.calls);
            assert_eq!(parsed, (echo.in_flight, echo.deadlines, echo.calls));
        }
    }
}
