//! The claim, the main plot and the plain words of `lab timers`.

use crate::kit::measurements::Row;
use crate::kit::plot::{Figure, Scale, Style};
use crate::kit::presentation::{NumberTable, PartWords, Presentation, TargetWords, family, part, target};

pub(crate) static PRESENTATION: Presentation = Presentation {
    experiment: "timers",
    claim: "From 1 to 50 threads the engine's timer wheel arms and cancels a deadline several times faster \
            than brpc's bucketed design, and cancelled timers hold no memory that grows.",
    figure,
    figure_parts: &["pairs"],
    verdicts: VERDICTS,
    parts: PARTS,
    targets: TARGETS,
    numbers: NUMBERS,
    terminal_tables: TERMINAL_TABLES,
};

fn figure(rows: &[Row]) -> Option<Figure> {
    let title = "Timers armed and cancelled per second: more is better";
    let scales = [Scale::Logarithmic; 2];
    let panel = PRESENTATION.line_panel(rows, "owner-w64", "pairs_per_s", title, scales)?;
    let notes = vec![
        "Each thread arms deadlines of 500 ms and cancels them itself, with 64 outstanding, as a client of \
         remote calls does. nothing is the same loop without timers."
            .to_owned(),
    ];
    let title = "Deadlines that are nearly always cancelled".to_owned();
    Some(Figure { title, panels: vec![panel], notes })
}

/// What the terminal shows; the rest is in JSON and on the page.
const TERMINAL_TABLES: &[NumberTable] = &[
    NumberTable { family: "owner-w1", number: "pairs_per_s" },
    NumberTable { family: "owner-w64", number: "pairs_per_s" },
    NumberTable { family: "owner-w64", number: "cpu_ns_per_pair" },
    NumberTable { family: "other-w1", number: "pairs_per_s" },
    NumberTable { family: "other-w64", number: "pairs_per_s" },
    NumberTable { family: "other-w64", number: "cpu_ns_per_pair" },
    NumberTable { family: "echo", number: "calls_per_s" },
    NumberTable { family: "echo", number: "cpu_ns_per_call" },
    NumberTable { family: "echo", number: "instructions_per_call" },
];

const VERDICTS: &[(&str, &str)] = &[
    (
        "owner-cancel-1-thread",
        "With 1 thread the own wheel arms and cancels at least 3 times as fast as bucketed",
    ),
    ("owner-cancel-8", "With 8 threads the own wheel arms and cancels at least 3 times as fast as bucketed"),
    (
        "owner-cancel-50",
        "With 50 threads the own wheel arms and cancels at least 2.5 times as fast as bucketed",
    ),
    ("cross-cancel-8", "Where another of 8 threads cancels, bucketed takes at least 1.5 times the CPU time"),
    ("cancelled-memory-bounded", "Cancelled timers hold at most 0.25 MB, however many there were"),
    ("dead-wakes", "At most 1 % of a timer thread's wake-ups find only cancelled timers"),
    (
        "echo-instructions-per-call-on/off",
        "Deadlines add at most 5 % to the instructions of a call over loopback",
    ),
    ("never-early", "No timer fires before its deadline"),
];

const THREADS: &str = "threads";

const PARTS: &[PartWords] = &[
    family("owner-w1-{}", "{} threads arm and cancel their own timers, 1 outstanding each", THREADS),
    family("owner-w64-{}", "{} threads arm and cancel their own timers, 64 outstanding each", THREADS),
    family("other-w1-{}", "{} threads arm timers that another thread cancels, 1 outstanding each", THREADS),
    family("other-w64-{}", "{} threads arm timers that another thread cancels, 64 outstanding each", THREADS),
    part(
        "other-w64-8-in-turn",
        "three implementations interleaved: 8 threads, another thread cancels, 64 outstanding",
    ),
    part("calls", "20,000 calls per second of 5 ms with deadlines of 500 ms"),
    part("held", "the memory of cancelled timers"),
    family("echo-{}", "request and response over loopback, {} calls in flight", "calls in flight"),
];

const TARGETS: &[TargetWords] = &[
    target("tollgate-shared", Style::Variant(2), "the engine's timer thread: any thread arms and cancels"),
    target("tollgate-local", Style::Variant(1), "a wheel in the arming thread's loop: any thread cancels"),
    target("tollgate-own-wheel", Style::Ours, "a wheel in the thread's own loop: only that thread cancels"),
    target("heap", Style::Rival(4), "one mutex around one heap, and a thread"),
    target(
        "bucketed",
        Style::Rival(1),
        "the design of brpc up to 1.17.0: 13 buckets, and one thread with a heap",
    ),
    target("timerfd", Style::Rival(5), "a timerfd for each deadline"),
    target("threads", Style::Rival(8), "a timer thread for each caller"),
    target("tick", Style::Rival(3), "a wheel that a thread turns every millisecond"),
    target("tokio", Style::Rival(2), "tokio's timer"),
    target("brpc", Style::Rival(7), "the timer thread of a built brpc"),
    target("nothing", Style::Reference, "no timers: what the experiment itself takes"),
    target("off", Style::Reference, "calls without deadlines"),
    target("lazy", Style::Ours, "one timer per connection, postponed by a store"),
    target("each", Style::Variant(1), "a timer for each call"),
];

const NUMBERS: &[(&str, &str)] = &[
    ("pairs_per_s", "timers armed and cancelled per second"),
    ("cpu_ns_per_pair", "CPU time to arm and cancel a timer, ns"),
    ("calls", "calls"),
    ("fired", "timers that fired"),
    ("wakes_per_s", "wake-ups per second"),
    ("wakes_per_s_at_the_end", "wake-ups per second in the last quarter of the run"),
    ("dead_wakes_percent", "wake-ups that found only cancelled timers, percent"),
    ("late_p50_us", "median time after the deadline, µs"),
    ("late_p99.9_us", "99.9th percentile after the deadline, µs"),
    ("late_min_us", "earliest timer, µs after its deadline"),
    ("gained_mb", "memory gained by the process, MB"),
    ("cancelled", "cancelled timers"),
    ("held_mb", "memory gained, MB"),
    ("held_bytes_per_timer", "memory gained per cancelled timer, bytes"),
    ("calls_per_s", "calls per second"),
    ("cpu_ns_per_call", "CPU time per call, ns"),
    ("instructions_per_call", "instructions per call"),
    ("deadlines_fired", "deadlines that passed"),
];

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::super::echo::DeadlineMode;
    use super::super::target::BuiltIn;
    use super::*;

    #[test]
    fn every_target_has_a_label() {
        for target in BuiltIn::value_variants() {
            let name = target.name();
            assert!(PRESENTATION.target_label(name).is_some(), "{name}");
        }
        for mode in DeadlineMode::value_variants() {
            assert!(PRESENTATION.target_label(mode.as_str()).is_some(), "{}", mode.as_str());
        }
    }
}
