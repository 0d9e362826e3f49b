//! The claim, the main plot and the plain words of `lab accept`.

use super::short::{self, CPU};
use super::{BUSY, CROWD, LIGHT, LONG_LIVED, RELOAD, counts, long_lived};
use crate::kit::measurements::Row;
use crate::kit::plot::{Figure, Scale, Style};
use crate::kit::presentation::{NumberTable, PartWords, Presentation, TargetWords, family, part, target};

pub(crate) static PRESENTATION: Presentation = Presentation {
    experiment: "accept",
    claim: "With a thread per CPU the gateway's default, an accept mutex, takes at most 3 % more CPU time \
            per connection than the cheapest of five strategies, and no strategy loses a connection.",
    figure,
    figure_parts: &["crowd"],
    verdicts: VERDICTS,
    parts: PARTS,
    targets: TARGETS,
    numbers: NUMBERS,
    terminal_tables: TERMINAL_TABLES,
};

fn figure(rows: &[Row]) -> Option<Figure> {
    let title = "CPU time of the gateway for each connection, µs: less is better";
    let scales = [Scale::Logarithmic, Scale::Linear];
    let panel = PRESENTATION.line_panel(rows, CROWD, CPU, title, scales)?;
    let notes = vec![
        "500 clients open a new connection for each small request. mutex is the default; shared is the \
         thundering herd, in which every connection wakes every idle thread."
            .to_owned(),
    ];
    let title = "Five ways to distribute new connections among threads".to_owned();
    Some(Figure { title, panels: vec![panel], notes })
}

/// What the terminal shows; the rest is in JSON and on the page.
const TERMINAL_TABLES: &[NumberTable] = &[
    NumberTable { family: CROWD, number: "time_s" },
    NumberTable { family: CROWD, number: short::CPU },
    NumberTable { family: CROWD, number: short::FIRST_BYTE_P99 },
    NumberTable { family: CROWD, number: counts::WAKES },
    NumberTable { family: CROWD, number: "most_to_mean_clients" },
    NumberTable { family: CROWD, number: "listen_overflows" },
    NumberTable { family: LIGHT, number: counts::WAKES },
    NumberTable { family: LIGHT, number: short::CPU },
    NumberTable { family: LIGHT, number: "most_to_mean_accepts" },
    NumberTable { family: LONG_LIVED, number: long_lived::BALANCE },
    NumberTable { family: RELOAD, number: short::FAILED },
    NumberTable { family: BUSY, number: "first_byte_p50_ms" },
    NumberTable { family: BUSY, number: short::FIRST_BYTE_P99 },
];

const VERDICTS: &[(&str, &str)] = &[
    ("herd-reproduced", "At light load the shared socket causes at least 1.5 wake-ups per connection"),
    ("best-wakes-per-accept", "At light load the best strategy causes at most 1.05 wake-ups per connection"),
    ("lost", "No connection fails in any run of any part"),
    (
        "long-lived-balance-handoff",
        "With handoff the fullest thread has at most 1.05 times the mean of long-lived connections",
    ),
    (
        "busy-worker-p99-handoff",
        "Beside a busy thread, handoff has at most half the 99th percentile of reuse_port",
    ),
    ("default-cpu", "The default takes at most 1.03 times the CPU time of the cheapest other strategy"),
];

const THREADS: &str = "gateway threads";

const PARTS: &[PartWords] = &[
    family("crowd-{}", "500 clients, a new connection for each request, {} gateway threads", THREADS),
    family("light-{}", "200 connections per second, {} gateway threads", THREADS),
    family("long-lived-{}", "2,000 connections that stay, {} gateway threads", THREADS),
    family("reload-{}", "new connections while listeners are added and removed, {} gateway threads", THREADS),
    family("busy-{}", "one of {} server threads busy for 500 µs with each event", "server threads"),
    part("system-calls", "system calls of the gateway, counted by strace"),
    part("cpu-shares", "where the CPU time goes, by samples of perf"),
];

const TARGETS: &[TargetWords] = &[
    target(
        "shared",
        Style::Rival(4),
        "one listening socket in every thread's epoll: a connection wakes all idle threads",
    ),
    target(
        "mutex",
        Style::Ours,
        "one listening socket, watched only by the thread that holds a mutex; the default",
    ),
    target(
        "exclusive",
        Style::Rival(2),
        "one listening socket with EPOLLEXCLUSIVE: a connection wakes one idle thread",
    ),
    target(
        "reuse_port",
        Style::Rival(1),
        "a listening socket per thread with SO_REUSEPORT: the kernel picks one by a hash",
    ),
    target(
        "handoff",
        Style::Rival(3),
        "one listening socket; the accepting thread gives the connection to the least loaded of three",
    ),
];

const NUMBERS: &[(&str, &str)] = &[
    ("time_s", "time of the whole load, s"),
    ("connections_per_s", "connections per second"),
    ("failed_connections", "failed connections"),
    ("connections_slower_than_1_s", "connections that took more than a second"),
    ("first_byte_p50_ms", "median time from connect to first byte, ms"),
    ("first_byte_p99_ms", "99th percentile from connect to first byte, ms"),
    ("first_byte_p99.9_ms", "99.9th percentile from connect to first byte, ms"),
    ("process_cpu_us_per_connection", "CPU time of the gateway per connection, µs"),
    ("data_plane_cpu_us_per_connection", "CPU time of the relaying threads per connection, µs"),
    ("log_lines_per_connection", "log lines per connection"),
    ("wakes_per_accept", "wake-ups per accepted connection"),
    ("empty_accepts_per_accept", "accepts that found no connection, per accepted connection"),
    ("hand_overs_per_accept", "connections given to another thread, per accepted connection"),
    ("most_to_mean_clients", "connections of the fullest thread, as a multiple of the mean"),
    ("most_to_mean_accepts", "accepts of the busiest thread, as a multiple of the mean"),
    ("listen_overflows", "connections that the kernel dropped from a full queue"),
    ("reloads", "reloads of the configuration"),
    ("accepting_percent", "accepting connections, percent"),
    ("sleeping_and_waking_percent", "sleeping and waking, percent"),
    ("waiting_for_locks_percent", "waiting for locks, percent"),
    ("serving_percent", "serving connections, percent"),
];

#[cfg(test)]
mod tests {
    use super::super::strategy::Strategy;
    use super::*;

    #[test]
    fn every_target_has_a_label() {
        for target in Strategy::ALL {
            let name = target.name();
            assert!(PRESENTATION.target_label(name).is_some(), "{name}");
        }
    }
}
