//! The claim, the main plot and the plain words of `lab pipeline`.

use super::article::ARTICLE;
use super::{CONTROLS, FIGURES};
use crate::kit::measurements::{self, Row};
use crate::kit::plot::{Bar, Figure, Style};
use crate::kit::presentation::{PartWords, Presentation, TargetWords, part, target};

pub(crate) static PRESENTATION: Presentation = Presentation {
    experiment: "pipeline",
    claim: "A pool that gives a waiting request's CPU to another one comes within 5 % of the rate that no \
            scheduler can exceed, without a tuned number of threads.",
    figure,
    figure_parts: &["sequential", "batches", "pool", "io-aware", "event"],
    verdicts: VERDICTS,
    parts: PARTS,
    targets: TARGETS,
    numbers: NUMBERS,
    terminal_tables: &[],
};

fn figure(rows: &[Row]) -> Option<Figure> {
    let mut bars = PRESENTATION.bars(rows, FIGURES, "requests_per_s");
    for bar in &mut bars {
        bar.mark = bound(rows, bar);
    }
    let panel = PRESENTATION.bar_panel("Requests per second: more is better", bars)?;
    let notes = vec![
        "Requests compute, and some of them wait for 10 ms to 1 s. The upright mark is the rate that \
         no scheduler can exceed with the CPU time of the same run."
            .to_owned(),
    ];
    Some(Figure { title: "Requests that compute and wait".to_owned(), panels: vec![panel], notes })
}

/// The rate at the bound of the same runs.
fn bound(rows: &[Row], bar: &Bar) -> Option<f64> {
    let share = measurements::row(rows, FIGURES, &bar.label)?.median("share_of_bound")?;
    (share > 0.0).then(|| bar.value.median / share)
}

const VERDICTS: &[(&str, &str)] = &[
    ("controls-equal", "Every strategy does the same work, by the published control values"),
    (
        "io-aware-share-of-bound",
        "The I/O-aware pool reaches at least 0.95 of the rate that no scheduler can exceed",
    ),
    ("io-aware-vs-best-pool", "It reaches at least 0.95 of the rate of the best fixed pool of any size"),
    ("event-share-of-bound", "The event loop reaches at least 0.90 of the rate that no scheduler can exceed"),
    ("event-vs-article-best", "The event loop is at least 1.25 times as fast as the published program"),
    ("ordering-as-article", "Batches are slower than one thread, and one thread is slower than a pool"),
    ("death-explained", "One kernel limit explains the death of a thread per request"),
];

const PARTS: &[PartWords] = &[
    part("work", "the computation of one request, alone"),
    part(FIGURES, "the requests, by strategy"),
    part(CONTROLS, "what the requests came to"),
    part("death", "a process that creates a thread per request, at its last thread"),
    part("system-calls", "system calls, counted by strace"),
    part("cpu-shares", "where the CPU time goes, by samples of perf"),
];

const TARGETS: &[TargetWords] = &[
    target("sequential", Style::Reference, "one thread does all requests"),
    target("thread-per-request", Style::Rival(8), "a thread for each request"),
    target("batches-{}", Style::Rival(4), "{} threads at a time, and all of them are awaited"),
    target("pool-{}", Style::Rival(1), "a fixed pool of {} threads"),
    target("io-aware", Style::Ours, "the engine's pool: a declared wait gives its permit to another request"),
    target("event-all", Style::Variant(2), "waits are timers, all requests are admitted at once"),
    target("event-{}", Style::Variant(1), "waits are timers, {} requests are admitted at a time"),
    target(ARTICLE, Style::Rival(7), "the published program"),
];

const NUMBERS: &[(&str, &str)] = &[
    ("us", "time, µs"),
    ("requests_per_s", "requests per second"),
    ("share_of_bound", "share of the rate that no scheduler can exceed"),
    ("threads_peak", "most threads at a time"),
    ("memory_peak_mb", "peak memory, MB"),
    ("cpu_us_per_request", "CPU time per request, µs"),
    ("whole_requests_per_s", "requests per second, from start to exit of the process"),
    ("requests", "requests"),
    ("sum_of_r", "sum of the computed values"),
    ("waits_ms", "waits, ms in all"),
    ("yields", "yields"),
    ("checksum", "checksum of the responses"),
    ("threads_created", "threads created"),
    ("threads_alive", "threads alive"),
    ("maps", "memory maps"),
    ("maps_per_thread", "memory maps per thread"),
    ("tasks_of_the_machine", "tasks of the whole machine"),
    ("errno", "error number of the refusal"),
    ("max_map_count", "limit vm.max_map_count"),
    ("pid_max", "limit kernel.pid_max"),
    ("threads_max", "limit kernel.threads-max"),
    ("cgroup_pids_max", "limit pids.max of the control group"),
    ("threads_predicted", "predicted threads"),
    ("work_percent", "requests' own steps, percent"),
    ("threads_percent", "creating and ending threads, percent"),
    ("locking_percent", "locking and waking, percent"),
    ("waits_percent", "yields, sleeps and timers, percent"),
    ("other_percent", "other, percent"),
    ("main_thread_percent", "main thread, percent"),
    ("main_creating_threads_percent", "creating threads by the main thread, percent"),
];

#[cfg(test)]
mod tests {
    use super::super::target::tests::TARGETS as ALL;
    use super::*;

    #[test]
    fn every_target_has_a_label() {
        for target in ALL {
            let name = target.to_string();
            assert!(PRESENTATION.target_label(&name).is_some(), "{name}");
        }
    }
}
