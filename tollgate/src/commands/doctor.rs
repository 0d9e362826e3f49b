//! `tollgate doctor`: does this machine carry the configured load?
//!
//! Promises: each figure with what is there, what is needed and what to do; exit code 1 if something fails.
//! Leaves to others: the figures (`sys::limits`), and measuring (`lab`).

use std::io;
use std::process::ExitCode;

use clap::Args;
use gateway::config::Config;
use gateway::limits::{PIPE_BYTES, PIPES_PER_THREAD_MAX};
use serde_json::{Value, json};
use sys::limits;

use super::{Context, print, print_json, table};

/// Client side and upstream side of a tunnel.
const DESCRIPTORS_PER_CONNECTION: u64 = 2;

/// The two ends of a pipe.
const DESCRIPTORS_PER_PIPE: u64 = 2;

/// Epoll, eventfd and the like of one reactor thread.
const DESCRIPTORS_PER_THREAD: u64 = 8;

/// Ledger, log, name servers, admin connections, what the process was started with.
const DESCRIPTORS_SPARE: u64 = 512;

/// Threads besides the reactors: main, signals, hashing, names, their pool, ledger, log, admin.
const THREADS_SPARE: u64 = 16;

/// Mappings that a thread's stack takes, with its guard and the allocator's arena.
const MAPPINGS_PER_THREAD: u64 = 4;

/// Mappings of a process without threads: executable, libraries, heap.
const MAPPINGS_SPARE: u64 = 256;

const PAGE_BYTES: u64 = 4096;

#[derive(Args)]
pub(crate) struct Options {
    /// Print for a program.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(context: &Context, options: &Options) -> anyhow::Result<ExitCode> {
    let findings = examine(&Load::of(&context.load()?), &Machine::read());
    if options.json {
        print_json(&Value::from_iter(findings.iter().map(Finding::json)))?;
    } else {
        print(&report(&findings))?;
    }
    let carried = findings.iter().all(|finding| finding.state != State::Fails);
    Ok(if carried { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the configuration asks of a machine.
struct Load {
    connections: u64,
    reactors: u64,
    listeners: u64,
    backlog: u64,
}

impl Load {
    fn of(config: &Config) -> Load {
        let reactors = match config.threads.reactors {
            0 => limits::cpus() as u64,
            count => u64::from(count),
        };
        Load {
            connections: u64::from(config.limits.connections),
            reactors,
            listeners: config.listeners.len() as u64,
            backlog: u64::from(config.accept.backlog),
        }
    }

    fn pipes(&self) -> u64 {
        self.reactors * PIPES_PER_THREAD_MAX as u64
    }

    fn descriptors(&self) -> u64 {
        let connections = self.connections * DESCRIPTORS_PER_CONNECTION;
        let reactors = self.reactors * (DESCRIPTORS_PER_THREAD + self.listeners);
        connections + self.pipes() * DESCRIPTORS_PER_PIPE + reactors + DESCRIPTORS_SPARE
    }
}

/// What the kernel permits.
struct Machine {
    descriptors_hard: u64,
    threads: io::Result<u64>,
    pids: io::Result<u64>,
    mappings: io::Result<u64>,
    ports: io::Result<u64>,
    backlog: io::Result<u64>,
    /// 0 is without limit.
    pipe_pages: io::Result<u64>,
}

impl Machine {
    fn read() -> Machine {
        Machine {
            descriptors_hard: limits::descriptors().1,
            threads: limits::threads_max(),
            pids: limits::pid_max(),
            mappings: limits::max_map_count(),
            ports: limits::local_port_range().map(|(first, last)| last.saturating_sub(first) + 1),
            backlog: limits::somaxconn(),
            pipe_pages: limits::pipe_pages_soft().map(|pages| if pages == 0 { u64::MAX } else { pages }),
        }
    }
}

/// One thing that was looked at.
struct Finding {
    what: &'static str,
    needed: u64,
    /// What there is, or why that is unknown.
    available: Result<u64, String>,
    state: State,
    advice: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Fine,
    /// It is carried, with a loss that the advice names.
    Narrow,
    /// The configured load is not carried.
    Fails,
    Unknown,
}

impl State {
    fn as_str(self) -> &'static str {
        match self {
            State::Fine => "fine",
            State::Narrow => "narrow",
            State::Fails => "fails",
            State::Unknown => "unknown",
        }
    }
}

fn examine(load: &Load, machine: &Machine) -> Vec<Finding> {
    let threads = load.reactors + THREADS_SPARE;
    let mappings = threads * MAPPINGS_PER_THREAD + MAPPINGS_SPARE;
    let pipe_pages = load.pipes() * u64::from(PIPE_BYTES) / PAGE_BYTES;
    vec![
        finding(
            "descriptors",
            load.descriptors(),
            &Ok(machine.descriptors_hard),
            State::Fails,
            "raise the hard limit (LimitNOFILE= of systemd, ulimit -Hn), or lower [limits] connections",
        ),
        finding("threads", threads, &machine.threads, State::Fails, "raise kernel.threads-max"),
        finding("thread ids", threads, &machine.pids, State::Fails, "raise kernel.pid_max"),
        finding("mappings", mappings, &machine.mappings, State::Fails, "raise vm.max_map_count"),
        finding(
            "ports to one destination",
            load.connections,
            &machine.ports,
            State::Narrow,
            "widen net.ipv4.ip_local_port_range; it matters if all connections go to one address and port",
        ),
        finding(
            "accept backlog",
            load.backlog,
            &machine.backlog,
            State::Narrow,
            "raise net.core.somaxconn; the kernel cuts the backlog to it",
        ),
        finding(
            "pipe pages",
            pipe_pages,
            &machine.pipe_pages,
            State::Narrow,
            "raise fs.pipe-user-pages-soft; beyond it an unprivileged process gets smaller pipes",
        ),
    ]
}

fn finding(
    what: &'static str,
    needed: u64,
    available: &io::Result<u64>,
    short: State,
    advice: &'static str,
) -> Finding {
    let available = available.as_ref().map_err(io::Error::to_string).copied();
    let state = match available {
        Ok(available) if available < needed => short,
        Ok(_) => State::Fine,
        Err(_) => State::Unknown,
    };
    Finding { what, needed, available, state, advice }
}

impl Finding {
    fn json(&self) -> Value {
        json!({
            "what": self.what,
            "state": self.state.as_str(),
            "needed": self.needed,
            "available": self.available.as_ref().ok().filter(|&&available| available != u64::MAX),
            "advice": self.advice(),
        })
    }

    /// What to do, where something is to be done.
    fn advice(&self) -> Option<&str> {
        match self.state {
            State::Fine => None,
            State::Narrow | State::Fails => Some(self.advice),
            State::Unknown => self.available.as_ref().err().map(String::as_str),
        }
    }
}

fn report(findings: &[Finding]) -> String {
    let row = |finding: &Finding| {
        let available = match finding.available {
            Ok(u64::MAX) => "no limit".to_owned(),
            Ok(available) => available.to_string(),
            Err(_) => "?".to_owned(),
        };
        vec![
            finding.what.to_owned(),
            finding.state.as_str().to_owned(),
            finding.needed.to_string(),
            available,
            finding.advice().unwrap_or_default().to_owned(),
        ]
    };
    let rows = findings.iter().map(row).collect();
    table(&["what", "state", "needed", "available", "advice"], rows, &[2, 3])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            descriptors_hard: 1_048_576,
            threads: Ok(100_000),
            pids: Ok(32_768),
            mappings: Ok(65_530),
            ports: Ok(28_232),
            backlog: Ok(4096),
            pipe_pages: Ok(16_384),
        }
    }

    const LOAD: Load = Load { connections: 10_000, reactors: 2, listeners: 1, backlog: 4096 };

    #[track_caller]
    fn check(load: &Load, machine: &Machine, expected: &[(&str, State)]) {
        let findings = examine(load, machine);
        let other = findings.iter().filter(|finding| finding.state != State::Fine);
        let other: Vec<_> = other.map(|finding| (finding.what, finding.state)).collect();
        assert_eq!(other, expected);
    }

    #[test]
    fn a_usual_machine_carries_the_default() {
        check(&LOAD, &machine(), &[]);
        assert!(LOAD.descriptors() > 20_000);
    }

    #[test]
    fn each_limit_is_compared() {
        let needed = LOAD.descriptors();
        check(&LOAD, &Machine { descriptors_hard: needed, ..machine() }, &[]);
        let short = Machine { descriptors_hard: needed - 1, ..machine() };
        check(&LOAD, &short, &[("descriptors", State::Fails)]);
        check(&LOAD, &Machine { mappings: Ok(100), ..machine() }, &[("mappings", State::Fails)]);
        check(&LOAD, &Machine { threads: Ok(17), ..machine() }, &[("threads", State::Fails)]);
        check(&LOAD, &Machine { pids: Ok(17), ..machine() }, &[("thread ids", State::Fails)]);
        check(&LOAD, &Machine { backlog: Ok(128), ..machine() }, &[("accept backlog", State::Narrow)]);
        let many = Load { connections: 100_000, reactors: 32, ..LOAD };
        check(
            &many,
            &machine(),
            &[("ports to one destination", State::Narrow), ("pipe pages", State::Narrow)],
        );
        check(&many, &Machine { pipe_pages: Ok(u64::MAX), ports: Ok(u64::MAX), ..machine() }, &[]);
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let unreadable = Machine { mappings: Err(io::Error::other("no /proc")), ..machine() };
        check(&LOAD, &unreadable, &[("mappings", State::Unknown)]);
        assert!(report(&examine(&LOAD, &unreadable)).contains("no /proc"));
    }
}
