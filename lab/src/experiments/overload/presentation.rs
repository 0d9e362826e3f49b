//! The claim, the main plot and the plain words of `lab overload`.

use super::{CAPACITY, verdicts};
use crate::kit::measurements::Row;
use crate::kit::plot::{Figure, Scale, Style};
use crate::kit::presentation::{NumberTable, PartWords, Presentation, TargetWords, family, part, target};

pub(crate) static PRESENTATION: Presentation = Presentation {
    experiment: "overload",
    claim: "At three times the load that the CPUs can do, beside jobs that never return, the job pool still \
            completes 90 % of its capacity in time.",
    figure,
    figure_parts: &["load-0.5", "load-0.8", "load-1", "load-1.5", "load-2", "load-3"],
    verdicts: VERDICTS,
    parts: PARTS,
    targets: TARGETS,
    numbers: NUMBERS,
    terminal_tables: TERMINAL_TABLES,
};

fn figure(rows: &[Row]) -> Option<Figure> {
    let title = "Jobs completed within their deadline, percent of the capacity: more is better";
    let scales = [Scale::Linear; 2];
    let panel = PRESENTATION.line_panel(rows, "load", "goodput_percent_of_capacity", title, scales)?;
    let notes = vec![
        "Jobs compute for 200 µs and are of use for 50 ms. In the poisoned runs 50 further jobs per second \
         never return."
            .to_owned(),
    ];
    Some(Figure { title: "Goodput under overload".to_owned(), panels: vec![panel], notes })
}

/// What the terminal shows; the rest is in JSON and on the page.
const TERMINAL_TABLES: &[NumberTable] = &[
    NumberTable { family: "load", number: "goodput_percent_of_capacity" },
    NumberTable { family: "load", number: "answer_p99_ms" },
    NumberTable { family: "load", number: "in_time_p99_ms" },
    NumberTable { family: "load", number: "refused_percent" },
    NumberTable { family: "load", number: "expired_percent" },
    NumberTable { family: "load", number: "shed_percent" },
    NumberTable { family: "load", number: "late_or_never_percent" },
    NumberTable { family: "load", number: "poisoned_threads_max" },
];

const VERDICTS: &[(&str, &str)] = &[
    (
        verdicts::GOODPUT,
        "At three times the capacity the pool completes at least 90 % of the capacity in time",
    ),
    (verdicts::ANSWER, "There, 99 % of the accepted jobs are answered within twice their deadline"),
    (verdicts::POISONED, "Jobs that never return hold no more threads than their share"),
];

const PARTS: &[PartWords] = &[
    part(CAPACITY, "the capacity: jobs of one class, and always more of them"),
    family("load-{}", "{} times the capacity", "offered load, as a multiple of the capacity"),
];

const TARGETS: &[TargetWords] = &[
    target("ours-poisoned", Style::Ours, "the engine's job pool, beside jobs that never return"),
    target("fixed", Style::Rival(2), "a fixed pool with one unbounded queue, without such jobs"),
    target("fixed-poisoned", Style::Rival(4), "the same fixed pool, beside jobs that never return"),
];

const NUMBERS: &[(&str, &str)] = &[
    ("finished_per_s", "finished jobs per second"),
    ("goodput_per_s", "jobs completed in time per second"),
    ("goodput_percent_of_capacity", "jobs completed in time, percent of the capacity"),
    ("in_time_p99_ms", "99th percentile until a job in time was done, ms"),
    ("answer_p99_ms", "99th percentile until an accepted job was answered, ms"),
    ("in_time_percent", "completed in time, percent of the offered jobs"),
    ("refused_percent", "refused, percent of the offered jobs"),
    ("expired_percent", "expired in the queue, percent of the offered jobs"),
    ("shed_percent", "shed, percent of the offered jobs"),
    ("late_or_never_percent", "late or never done, percent of the offered jobs"),
    ("poisoned_threads_max", "most threads held by jobs that never return"),
    ("threads_max", "most threads"),
];

#[cfg(test)]
mod tests {
    use super::super::target::Target;
    use super::*;

    #[test]
    fn every_target_has_a_label() {
        for target in Target::ALL {
            let name = target.name();
            assert!(PRESENTATION.target_label(name).is_some(), "{name}");
        }
    }
}
