//! The claim, the main plot and the plain words of `lab quota`.

use super::{overshoot, verdicts};
use crate::kit::measurements::Row;
use crate::kit::plot::{Figure, Style};
use crate::kit::presentation::{PartWords, Presentation, TargetWords, family, part, target};

pub(crate) static PRESENTATION: Presentation = Presentation {
    experiment: "quota",
    claim: "64 tunnels that use up one quota at the same time move exactly its bytes, and a rate is kept in \
            each second, from 64 kbit/s to 10 Gbit/s.",
    figure,
    figure_parts: &["overshoot"],
    verdicts: VERDICTS,
    parts: PARTS,
    targets: TARGETS,
    numbers: NUMBERS,
    terminal_tables: &[],
};

fn figure(rows: &[Row]) -> Option<Figure> {
    let [down, up] = overshoot::CASES.map(|case| PRESENTATION.bars(rows, case.part, overshoot::PERCENT));
    let panels = [
        ("From server to client: bytes beyond the quota, percent of it: less is better", down),
        ("From client to server", up),
    ];
    let panels: Vec<_> =
        panels.into_iter().filter_map(|(title, bars)| PRESENTATION.bar_panel(title, bars)).collect();
    let notes = vec![
        "64 tunnels are open before the first byte, and stream until the relay ends them; the lab ends those \
         that are open after 8 s. bare-quota is a naive relay that checks the limit when a connection begins."
            .to_owned(),
    ];
    let title = "Bytes beyond a quota of 100 MiB that 64 tunnels use up".to_owned();
    (!panels.is_empty()).then_some(Figure { title, panels, notes })
}

const VERDICTS: &[(&str, &str)] = &[
    (verdicts::OVERSHOOT, "64 tunnels at the same time move no byte beyond a quota"),
    (verdicts::UNUSED, "They leave no byte of it unused"),
    (verdicts::ENDED, "All of them end when it is spent"),
    (verdicts::LEAST, "In each second a tunnel, or 64 of them, get at least 95 % of a cap"),
    (verdicts::GREATEST, "In each second they get at most 105 % of it"),
    (verdicts::FAIR, "64 tunnels share a cap with an index of Jain of at least 0.95"),
    (
        verdicts::COST,
        "At a cap of 1 Gbit/s a gigabyte takes the relaying threads at most 1.5 times the CPU time",
    ),
];

const PARTS: &[PartWords] = &[
    part("quota-down", "a quota that 64 tunnels use up, from server to client"),
    part("quota-up", "a quota that 64 tunnels use up, from client to server"),
    family("rate-one-{}", "a cap of {} Mbit/s, on one tunnel", "Mbit/s"),
    family("rate-64-{}", "a cap of {} Mbit/s, on 64 tunnels", "Mbit/s"),
    part("rate-cpu", "a stream without a cap, and at a cap of 1 Gbit/s"),
];

const TARGETS: &[TargetWords] = &[
    target("bare-quota", Style::Reference, "a naive relay: the limit is checked when a connection begins"),
    target("tollgate", Style::Ours, "Tollgate"),
    target("tollgate-limited", Style::Variant(1), "Tollgate, at a cap of 1 Gbit/s"),
    target("3proxy", Style::Rival(9), "3proxy, with a traffic counter"),
];

const NUMBERS: &[(&str, &str)] = &[
    ("overshoot_bytes", "bytes beyond the quota"),
    ("overshoot_percent_of_limit", "bytes beyond the quota, percent of it"),
    ("unused_bytes", "bytes of the quota that were not moved"),
    ("open_tunnels", "tunnels that the relay did not end"),
    ("ended_after_ms", "time until the last byte or end, ms"),
    ("moved_bytes", "bytes that arrived"),
    ("limit_bytes", "the quota, bytes"),
    ("mean_percent_of_cap", "the rate over all seconds, percent of the cap"),
    ("least_second_percent_of_cap", "the second with the least bytes, percent of the cap"),
    ("greatest_second_percent_of_cap", "the second with the most bytes, percent of the cap"),
    ("first_100_ms_percent_of_cap", "the rate in the first 100 ms, percent of the cap"),
    ("jain_index", "Jain's index of the tunnels' bytes"),
    ("gbit_per_s", "gigabits per second"),
    ("process_cpu_s_per_gb", "CPU time of the relay per gigabyte, s"),
    ("data_plane_cpu_s_per_gb", "CPU time of the relaying threads per gigabyte, s"),
];

#[cfg(test)]
mod tests {
    use super::super::plan::Part;
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_target_has_a_label() {
        for target in Part::value_variants().iter().flat_map(|part| part.targets()) {
            let name = target.name();
            assert!(PRESENTATION.target_label(name).is_some(), "{name}");
        }
    }
}
