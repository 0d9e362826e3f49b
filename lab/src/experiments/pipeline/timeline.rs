//! The activity of each strategy's threads over time, as one HTML page.
//!
//! Guarantees: it needs nothing but itself, in light and in dark; its size is bounded by rows and bins,
//! however many threads there were. The page's own script draws it (`timeline.js`).

use std::fmt::Write;

use serde_json::{Value, json};

use super::binned_timeline::{BINS, BinnedTimeline, Row, Times};
use crate::kit::markup::escape;
use crate::kit::measurements::Skipped;

const STYLE: &str = include_str!("timeline.css");
const SCRIPT: &str = include_str!("timeline.js");
const INTRODUCTION: &str = include_str!("timeline.html");

/// Below this share of the CPUs, a bin counts as one in which they stood still.
const STILL_SHARE_MAX: f64 = 0.05;

/// A share is one of this many letters, beside that for nothing.
const LEVELS: f64 = 51.0;

/// One strategy's part of the page.
pub(super) struct Section {
    pub(super) timeline: BinnedTimeline,
    /// CPU time of the whole process during the trial, including what no thread recorded.
    pub(super) process_cpu_ns: f64,
}

/// The whole page.
pub(super) fn page(sections: &[Section], skipped: &[Skipped], cpus: usize) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>lab pipeline: timeline</title><style>{STYLE}</style></head><body>\
         <h1>lab pipeline: what the threads did</h1>{INTRODUCTION}"
    );
    page.push_str(&summary(sections, cpus));
    for skipped in skipped {
        let _ = write!(page, "<p>Skipped {}: {}.</p>", escape(&skipped.name), escape(&skipped.reason));
    }
    sections.iter().for_each(|section| page.push_str(&section_html(&section.timeline, cpus)));
    let _ = writeln!(page, "<script>{SCRIPT}</script></body></html>");
    page
}

/// All strategies beside one another.
fn summary(sections: &[Section], cpus: usize) -> String {
    let mut text = format!(
        "<table><tr><th>on {cpus} CPUs</th><th>requests</th><th>threads</th><th>time</th><th>CPUs busy</th>\
         <th>CPUs still</th><th>running</th><th>ready</th><th>waiting</th><th>idle</th>\
         <th>CPU time unseen</th></tr>"
    );
    for Section { timeline, process_cpu_ns } in sections {
        let capacity = timeline.length_ns as f64 * cpus as f64;
        let unseen = (process_cpu_ns - timeline.sum().running).max(0.0);
        let _ = write!(
            text,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{:.0} ms</td><td>{}</td><td>{}</td>{}<td>{}</td></tr>",
            escape(&timeline.name),
            timeline.requests,
            timeline.threads,
            timeline.length_ns as f64 / 1e6,
            percent(*process_cpu_ns, capacity),
            percent(still_bins(timeline, cpus) as f64, BINS as f64),
            shares(&timeline.sum()),
            percent(unseen, *process_cpu_ns),
        );
    }
    text + "</table><p>Busy: CPU time of the whole process. Still: time in which the threads used less than \
            5 % of the CPUs. Running to idle: shares of the threads' lives. Unseen: CPU time that no thread \
            recorded, most of it the creation and end of threads.</p>"
}

/// A strategy's timeline, its data beside it, and the figures of its rows.
fn section_html(timeline: &BinnedTimeline, cpus: usize) -> String {
    let mut text = format!("<h2>{}</h2>", escape(&timeline.name));
    if timeline.events_lost > 0 {
        let _ = write!(
            text,
            "<p>{} events were beyond the bound and are missing here.</p>",
            timeline.events_lost
        );
    }
    if timeline.rows.is_empty() {
        return text + "<p>No thread recorded anything.</p>";
    }
    // In JSON a `<` occurs in strings alone, where its escape is the same and cannot end the script.
    let data = data(timeline, cpus).to_string().replace('<', "\\u003c");
    let _ = write!(
        text,
        "<figure><canvas></canvas><output></output><script type=\"application/json\">{data}</script></figure>\
         <details><summary>Each row in figures</summary><table><tr><th>row</th><th>threads at a time</th>\
         <th>lived</th><th>running</th><th>ready</th><th>waiting</th><th>idle</th></tr>"
    );
    for row in &timeline.rows {
        let lifetime_percent = percent(row.sum.total(), timeline.length_ns as f64 * row.slots as f64);
        let (name, shares) = (escape(&row.name), shares(&row.sum));
        let _ =
            write!(text, "<tr><td>{name}</td><td>{}</td><td>{lifetime_percent}</td>{shares}</tr>", row.slots);
    }
    text + "</table></details>"
}

/// What the script draws.
fn data(timeline: &BinnedTimeline, cpus: usize) -> Value {
    let bin_ns = timeline.length_ns as f64 / BINS as f64;
    let rows = timeline.rows.iter().map(|row| json!({ "name": row.name, "bins": encode(row, bin_ns) }));
    let busy = busy_ns(timeline).into_iter().map(|ns| (ns / (bin_ns * cpus as f64) * 1000.0).round() as u64);
    json!({
        "bins": BINS,
        "length_ms": timeline.length_ns as f64 / 1e6,
        "rows": rows.collect::<Vec<_>>(),
        "busy": busy.collect::<Vec<_>>(),
    })
}

/// CPU time of all rows in each bin.
fn busy_ns(timeline: &BinnedTimeline) -> Vec<f64> {
    (0..BINS).map(|bin| timeline.rows.iter().map(|row| row.bins[bin].running).sum()).collect()
}

fn still_bins(timeline: &BinnedTimeline, cpus: usize) -> usize {
    let bin_ns = timeline.length_ns as f64 / BINS as f64;
    let still_ns_max = STILL_SHARE_MAX * bin_ns * cpus as f64;
    busy_ns(timeline).into_iter().filter(|&ns| ns < still_ns_max).count()
}

/// A row as runs of equal bins: their count, unless it is one, and a letter for each state.
fn encode(row: &Row, bin_ns: f64) -> String {
    let capacity = bin_ns * row.slots as f64;
    let letters = |times: &Times| {
        [times.running, times.ready, times.waiting, times.idle].map(|ns| letter(ns / capacity))
    };
    let bins: Vec<[char; 4]> = row.bins.iter().map(letters).collect();
    let mut text = String::new();
    for run in bins.chunk_by(|one, other| one == other) {
        if run.len() > 1 {
            let _ = write!(text, "{}", run.len());
        }
        text.extend(run[0]);
    }
    text
}

/// A share from `A` for nothing to `z` for all; anything above nothing is at least a `B`.
fn letter(share: f64) -> char {
    let level = (share.min(1.0) * LEVELS).round() as u8;
    let level = if share > 0.0 { level.max(1) } else { 0 };
    char::from(if level < 26 { b'A' + level } else { b'a' + level - 26 })
}

fn shares(times: &Times) -> String {
    let cell = |part: f64| format!("<td>{}</td>", percent(part, times.total()));
    [times.running, times.ready, times.waiting, times.idle].map(cell).concat()
}

fn percent(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.1} %", 100.0 * part / whole) } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::super::activity::tests::{recording, waiting_thread};
    use super::super::recording::{Thread, ThreadPlacement};
    use super::*;

    fn section(name: &str, threads: Vec<Thread>) -> Section {
        Section { timeline: BinnedTimeline::new(name, &recording(threads)), process_cpu_ns: 5e6 }
    }

    #[test]
    fn page_holds_everything_and_loads_nothing() {
        let threads =
            vec![waiting_thread(ThreadPlacement::Main, 0), waiting_thread(ThreadPlacement::Slot(0), 0)];
        let skipped = Skipped { name: "swarm".to_owned(), reason: "it is <odd>".to_owned() };
        let page = page(&[section("batches-100", threads), section("none", Vec::new())], &[skipped], 2);
        for expected in [
            "<h2>batches-100</h2>",
            "<td>batches-100</td><td>1</td><td>2</td><td>20 ms</td><td>12.5 %</td>",
            "Skipped swarm: it is &lt;odd&gt;.",
            "<td>thread 1</td><td>1</td><td>90.0 %</td><td>22.2 %</td><td>11.1 %</td><td>55.6 %</td>",
            "No thread recorded anything",
            "\"length_ms\":20.0",
            "prefers-color-scheme",
        ] {
            assert!(page.contains(expected), "{expected:?} is missing");
        }
        for foreign in ["http:", "https:", "src=", "@import", "url(", "import(", "fetch("] {
            assert!(!page.contains(foreign), "{foreign:?} would need something from elsewhere");
        }
    }

    #[test]
    fn names_cannot_close_the_script_element() {
        let mut section = section("odd", vec![waiting_thread(ThreadPlacement::Slot(0), 0)]);
        section.timeline.rows[0].name = "</script><b>".to_owned();
        let section = section_html(&section.timeline, 2);
        assert_eq!(section.matches("</script>").count(), 1);
        assert!(section.contains("\\u003c/script>") && section.contains("&lt;/script&gt;"));
    }

    #[test]
    fn lost_events_are_reported() {
        let mut section = section("full", vec![waiting_thread(ThreadPlacement::Slot(0), 0)]);
        assert!(!section_html(&section.timeline, 2).contains("beyond the bound"));
        section.timeline.events_lost = 12;
        assert!(section_html(&section.timeline, 2).contains("12 events were beyond the bound"));
    }

    #[test]
    fn rows_are_encoded_as_runs() {
        let timeline =
            BinnedTimeline::new("one", &recording(vec![waiting_thread(ThreadPlacement::Slot(0), 0)]));
        let text = encode(&timeline.rows[0], 20e6 / BINS as f64);
        assert_eq!(text, "150AAAz300zAAA1500AAzA150AzAA450iRAA150AAAz300AAAA");
    }

    #[test]
    fn share_above_zero_has_a_letter() {
        let check = |share, expected| assert_eq!(letter(share), expected, "{share}");
        check(0.0, 'A');
        check(1e-6, 'B');
        check(0.5, 'a');
        check(1.0, 'z');
        check(7.0, 'z');
    }

    #[test]
    fn bins_without_cpu_use_are_counted() {
        let timeline =
            BinnedTimeline::new("one", &recording(vec![waiting_thread(ThreadPlacement::Slot(0), 0)]));
        // Running for 2 of 20 ms whole and for 3 ms in part.
        assert_eq!(still_bins(&timeline, 2), BINS * 15 / 20);
    }
}
