//! The verdicts of `lab relay`. Their names are fixed; one that this run cannot reach is left out with the
//! reason.

use super::forward::{self, ForwardTunnels, ProtocolCases};
use super::{accounting, bulk, idle_scaling, limits, pingpong, requests, short};
use crate::kit::measurements::{Row, Sample, Skipped};
use crate::kit::relays::target::Target;
use crate::kit::report::Report;
use crate::kit::verdict::{Threshold, Verdict, best_rival, paired_ratios};

/// The share of bytes that a rival must have spliced to be the rival of the claim.
const SPLICED_SHARE_MIN: f64 = 0.9;

/// The rivals in short connections and small messages.
const STATIC_RELAYS: [Target; 2] = [Target::Haproxy, Target::Nginx];

/// The rivals in plain requests.
const FORWARD_PROXIES: [Target; 2] = [Target::Nginx, Target::Squid];

/// The verdict, or its name and why it is left out.
type Judged = Result<Verdict, (&'static str, String)>;

/// Reaches all verdicts, or records why not.
pub(super) fn judge(report: &mut Report) {
    let judges = [
        short_cpu,
        short_rate,
        short_floor,
        bulk_cpu,
        bulk_rate,
        bulk_floor,
        idle_memory,
        pingpong_p99,
        pingpong_stream_p99,
        idle_scaling,
        limits_bulk,
        limits_pingpong,
        accounting,
        requests_cpu,
        requests_rate,
        requests_close_cpu,
        requests_close_rate,
    ];
    let of_tunnels =
        [forward::CONNECT, forward::SOCKS5].map(|protocol_cases| tunnels(report, &protocol_cases));
    let verdicts: Vec<Judged> =
        judges.map(|judge| judge(report)).into_iter().chain(of_tunnels.into_iter().flatten()).collect();
    for verdict in verdicts {
        match verdict {
            Ok(verdict) => report.verdicts.push(verdict),
            Err((name, reason)) => report.left_out.push(Skipped { name: name.to_owned(), reason }),
        }
    }
}

fn short_cpu(report: &Report) -> Judged {
    against_better("short-cpu", report, short::PART, short::CPU, Threshold::AtMost(0.9), &STATIC_RELAYS)
}

fn short_rate(report: &Report) -> Judged {
    against_better("short-rate", report, short::PART, short::RATE, Threshold::AtLeast(1.05), &STATIC_RELAYS)
}

/// Short connections beside the bare relay. It is the relaying threads' time: the floor has no ledger and no
/// log.
fn short_floor(report: &Report) -> Judged {
    let threshold = Threshold::AtMost(1.05);
    beside_floor("short-floor", report, (short::PART, short::THREADS_CPU), threshold, Target::BareRelay)
}

fn bulk_cpu(report: &Report) -> Judged {
    against_splicing("bulk-cpu", report, STREAM_CPU, Threshold::AtMost(0.9))
}

fn bulk_rate(report: &Report) -> Judged {
    against_splicing("bulk-rate", report, STREAM_RATE, Threshold::AtLeast(1.0))
}

/// One stream beside the bare splice, in the direction that is worse for us. It is the relaying threads'
/// time: the floor has no ledger and no log.
fn bulk_floor(report: &Report) -> Judged {
    let threshold = Threshold::AtMost(1.15);
    let judge = |case: bulk::Case| {
        let numbers = (case.part, STREAM_THREADS_CPU);
        beside_floor("bulk-floor", report, numbers, threshold, Target::BareSplice)
    };
    worst(threshold, bulk::SINGLE.map(judge))
}

/// Our number in a part of the work as a share of the floor's.
fn beside_floor(
    name: &'static str,
    report: &Report,
    (part, number): (&'static str, &str),
    threshold: Threshold,
    floor: Target,
) -> Judged {
    let ours = report.row(part, Target::Tollgate.name()).ok_or_else(|| not_measured(name))?;
    let beside = report.row(part, floor.name());
    let beside = beside.ok_or_else(|| (name, format!("{} was not measured", floor.name())))?;
    let about = format!("{part}: {number} as a share of {}'s", floor.name());
    let ratios = paired_ratios(ours, beside, number);
    Verdict::on_median(name, threshold, &ratios, &about).ok_or_else(|| never_paired(name))
}

fn idle_memory(report: &Report) -> Judged {
    let name = "idle-memory";
    let values = ours(name, report, "idle-9000", "pss_bytes_per_tunnel")?;
    let about = "bytes of PSS for each of 9,000 idle tunnels";
    Verdict::on_worst(name, Threshold::AtMost(1_024.0), &values, about).ok_or_else(|| not_measured(name))
}

fn pingpong_p99(report: &Report) -> Judged {
    let (name, threshold) = ("pingpong-p99", Threshold::AtMost(1.0));
    let judged = pingpong::CASES
        .map(|case| against_better(name, report, case.part, pingpong::P99, threshold, &STATIC_RELAYS));
    worst(threshold, judged)
}

/// The verdict that is worst for us; all of them must be present.
fn worst<const COUNT: usize>(threshold: Threshold, judged: [Judged; COUNT]) -> Judged {
    let verdicts: Result<Vec<Verdict>, _> = judged.into_iter().collect();
    let worst = verdicts?.into_iter().reduce(|one, other| threshold.worse(one, other));
    Ok(worst.expect("there are at least two verdicts to compare"))
}

fn pingpong_stream_p99(report: &Report) -> Judged {
    let name = "pingpong-stream-p99";
    let lost = ours(name, report, pingpong::BESIDE_STREAM, "lost_messages")?;
    let values = ours(name, report, pingpong::BESIDE_STREAM, pingpong::P99)?;
    let about = "ms beside a saturating stream on the same thread";
    let verdict =
        Verdict::on_median(name, Threshold::AtMost(5.0), &values, about).ok_or_else(|| not_measured(name))?;
    if lost.iter().any(|lost| lost.value > 0.0) {
        return Ok(verdict.undecided_because("messages were lost"));
    }
    Ok(verdict)
}

fn accounting(report: &Report) -> Judged {
    let (name, number) = ("accounting", accounting::NS_PER_IO);
    let values = ours(name, report, accounting::PART, number)?;
    let about = "ns of accounting for a relayed read and its write, in a loop of these calls alone";
    Verdict::on_median(name, Threshold::AtMost(20.0), &values, about).ok_or_else(|| not_measured(name))
}

fn idle_scaling(report: &Report) -> Judged {
    let name = "growth";
    let row = |part| report.row(part, Target::Tollgate.name()).ok_or_else(|| not_measured(name));
    let (few, many) = (row(idle_scaling::FEW.part)?, row(idle_scaling::MANY.part)?);
    let number = short::CPU;
    let about = format!("ratio of {number} beside 9,000 open tunnels to that beside 100");
    let ratios = paired_ratios(many, few, number);
    let verdict = Verdict::on_median(name, Threshold::AtMost(1.15), &ratios, &about)
        .ok_or_else(|| never_paired(name))?;
    let has_failed = [few, many].into_iter().any(has_failed);
    Ok(if has_failed { verdict.undecided_because("some connections failed") } else { verdict })
}

/// A gigabyte with limits beside one without, in the direction that is worse for us.
fn limits_bulk(report: &Report) -> Judged {
    let threshold = Threshold::AtMost(1.02);
    let judge = |case: bulk::Case| limited("limits-bulk-cpu", report, case.part, STREAM_CPU, threshold);
    worst(threshold, limits::BULK.map(judge))
}

fn limits_pingpong(report: &Report) -> Judged {
    let (name, threshold) = ("limits-pingpong-cpu", Threshold::AtMost(1.08));
    let verdict = limited(name, report, limits::PINGPONG, limits::MESSAGE_CPU, threshold)?;
    let rows = limits::TARGETS.iter().filter_map(|target| report.row(limits::PINGPONG, target.name()));
    let has_lost = rows.flat_map(|row| row.series("lost_messages")).any(|lost| lost > 0.0);
    Ok(if has_lost { verdict.undecided_because("messages were lost") } else { verdict })
}

/// The number with limits as a share of that without.
fn limited(
    name: &'static str,
    report: &Report,
    part: &'static str,
    number: &str,
    threshold: Threshold,
) -> Judged {
    let row = |target: Target| report.row(part, target.name()).ok_or_else(|| not_measured(name));
    let (with, without) = (row(Target::TollgateLimited)?, row(Target::Tollgate)?);
    let about = format!("{part}: {number} with limits as a share of that without");
    let ratios = paired_ratios(with, without, number);
    Verdict::on_median(name, threshold, &ratios, &about).ok_or_else(|| never_paired(name))
}

fn requests_cpu(report: &Report) -> Judged {
    let part = requests::KEPT.part;
    against_better("requests-cpu", report, part, REQUEST_CPU, Threshold::AtMost(1.0), &FORWARD_PROXIES)
}

fn requests_rate(report: &Report) -> Judged {
    let part = requests::KEPT.part;
    against_better("requests-rate", report, part, REQUEST_RATE, Threshold::AtLeast(1.0), &FORWARD_PROXIES)
}

fn requests_close_cpu(report: &Report) -> Judged {
    let part = requests::CLOSED.part;
    against_better("requests-close-cpu", report, part, REQUEST_CPU, Threshold::AtMost(1.0), &FORWARD_PROXIES)
}

fn requests_close_rate(report: &Report) -> Judged {
    let part = requests::CLOSED.part;
    against_better(
        "requests-close-rate",
        report,
        part,
        REQUEST_RATE,
        Threshold::AtLeast(1.0),
        &FORWARD_PROXIES,
    )
}

/// Four verdicts on the tunnels that are opened by one protocol, beside all proxies that open them.
fn tunnels(report: &Report, protocol_cases: &ProtocolCases) -> [Judged; 4] {
    let rivals: Vec<Target> = ForwardTunnels::targets(protocol_cases.protocol)
        .iter()
        .copied()
        .filter(|target| !matches!(target, Target::Direct | Target::Tollgate))
        .collect();
    let (at_most, at_least) = (Threshold::AtMost(1.0), Threshold::AtLeast(1.0));
    let short = |name, number, threshold| {
        against_better(name, report, protocol_cases.short, number, threshold, &rivals)
    };
    let bulk = |name, number, threshold: Threshold| -> Judged {
        worst(
            threshold,
            protocol_cases
                .bulk
                .map(|case| against_better(name, report, case.part, number, threshold, &rivals)),
        )
    };
    let [short_cpu, short_rate, bulk_cpu, bulk_rate] = protocol_cases.verdicts;
    [
        short(short_cpu, short::CPU, at_most),
        short(short_rate, short::RATE, at_least),
        bulk(bulk_cpu, STREAM_CPU, at_most),
        bulk(bulk_rate, STREAM_RATE, at_least),
    ]
}

const STREAM_CPU: &str = "process_cpu_s_per_gb";
const STREAM_THREADS_CPU: &str = "data_plane_cpu_s_per_gb";
const STREAM_RATE: &str = "gbit_per_s";
const REQUEST_CPU: &str = "process_cpu_us_per_request";
const REQUEST_RATE: &str = "requests_per_s";

/// Our values of a number.
fn ours(
    name: &'static str,
    report: &Report,
    part: &str,
    number: &str,
) -> Result<Vec<Sample>, (&'static str, String)> {
    let row = report.row(part, Target::Tollgate.name()).ok_or_else(|| not_measured(name))?;
    Ok(row.samples(number).into_iter().map(|sample| sample.1).collect())
}

/// Our number as a share of the best rival's.
fn against_better(
    name: &'static str,
    report: &Report,
    part: &'static str,
    number: &str,
    threshold: Threshold,
    rivals: &[Target],
) -> Judged {
    let ours = report.row(part, Target::Tollgate.name()).ok_or_else(|| not_measured(name))?;
    let rivals: Vec<&str> = rivals.iter().map(|rival| rival.name()).collect();
    let no_rival =
        || (name, format!("neither {} was measured in this part of the work", rivals.join(" nor ")));
    let best = best_rival(&report.rows, part, number, threshold, &rivals).ok_or_else(no_rival)?;
    let about = format!("{part}: {number} as a share of {}'s", best.target);
    let ratios = paired_ratios(ours, best, number);
    let verdict = Verdict::on_median(name, threshold, &ratios, &about).ok_or_else(|| never_paired(name))?;
    Ok(match [ours, best].into_iter().find(|row| has_failed(row)) {
        Some(row) => verdict.undecided_because(&format!("some connections of {} failed", row.target)),
        None => verdict,
    })
}

/// Whether connections or requests failed: failures make ours cheap, and a rival's expensive.
fn has_failed(row: &Row) -> bool {
    let failures = [short::FAILED, requests::FAILED].map(|name| row.series(name));
    failures.iter().flatten().any(|count| *count > 0.0)
}

/// Our number as a share of HAProxy's, in the case that is worst for us; undecided where HAProxy did not
/// splice.
fn against_splicing(name: &'static str, report: &Report, number: &str, threshold: Threshold) -> Judged {
    worst(threshold, bulk::CASES.map(|case| beside_splicing(name, report, case.part, number, threshold)))
}

fn beside_splicing(
    name: &'static str,
    report: &Report,
    part: &str,
    number: &str,
    threshold: Threshold,
) -> Judged {
    let ours = report.row(part, Target::Tollgate.name()).ok_or_else(|| not_measured(name))?;
    let rival =
        report.row(part, Target::Haproxy.name()).ok_or((name, "haproxy was not measured".to_owned()))?;
    let about = format!("{part}: {number} as a share of haproxy's, splicing");
    let verdict = Verdict::on_median(name, threshold, &paired_ratios(ours, rival, number), &about)
        .ok_or_else(|| never_paired(name))?;
    let spliced = rival.median("own_count_spliced_share").unwrap_or(0.0);
    if spliced < SPLICED_SHARE_MIN {
        return Ok(verdict.undecided_because(&format!("haproxy spliced only {:.0} %", spliced * 100.0)));
    }
    Ok(verdict)
}

fn not_measured(name: &'static str) -> (&'static str, String) {
    (name, "tollgate was not measured in this part of the work".to_owned())
}

fn never_paired(name: &'static str) -> (&'static str, String) {
    (name, "no round has both targets".to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::PRESENTATION;
    use super::*;
    use crate::kit::load::Direction;
    use crate::kit::measurements::{Numbers, Run};
    use crate::kit::report::tests::assert_labels_are_complete;
    use crate::kit::verdict::Outcome;

    fn row(part: &'static str, target: &str, values: [&[f64]; 5], names: &[&'static str]) -> Row {
        let numbers =
            |values: &[f64]| -> Numbers { names.iter().copied().zip(values.iter().copied()).collect() };
        let runs = values.into_iter().enumerate().map(|(round, values)| Run {
            round,
            marks: Vec::new(),
            numbers: numbers(values),
        });
        Row { part, target: target.to_owned(), runs: runs.collect() }
    }

    fn judged(rows: Vec<Row>) -> Report {
        let mut report = Report { rows, ..Report::new(&PRESENTATION, serde_json::Map::new()) };
        judge(&mut report);
        report
    }

    fn short_row(target: &str, cpu_us: f64, rate: f64) -> Row {
        let names = ["process_cpu_us_per_connection", "connections_per_s"];
        row("short", target, [&[cpu_us, rate]; 5], &names)
    }

    fn bulk_rows(target: &str, down_s: f64, up_s: f64, spliced: f64) -> [Row; 4] {
        let names = ["process_cpu_s_per_gb", "gbit_per_s", "own_count_spliced_share"];
        bulk::CASES.map(|case| {
            let cpu_s = if case.direction == Direction::Down { down_s } else { up_s };
            row(case.part, target, [&[cpu_s, 10.0, spliced]; 5], &names)
        })
    }

    fn outcome(report: &Report, name: &str) -> Option<(f64, Outcome)> {
        let verdict = report.verdicts.iter().find(|verdict| verdict.name == name)?;
        Some((verdict.value, verdict.outcome))
    }

    #[test]
    fn every_verdict_is_reached_or_left_out() {
        let names = |report: &Report| {
            let judged = report.verdicts.iter().map(|verdict| verdict.name.to_owned());
            let mut names: Vec<String> =
                judged.chain(report.left_out.iter().map(|left_out| left_out.name.clone())).collect();
            names.sort();
            names
        };
        let expected = [
            "accounting",
            "bulk-cpu",
            "bulk-floor",
            "bulk-rate",
            "connect-bulk-cpu",
            "connect-bulk-rate",
            "connect-short-cpu",
            "connect-short-rate",
            "growth",
            "idle-memory",
            "limits-bulk-cpu",
            "limits-pingpong-cpu",
            "pingpong-p99",
            "pingpong-stream-p99",
            "requests-close-cpu",
            "requests-close-rate",
            "requests-cpu",
            "requests-rate",
            "short-cpu",
            "short-floor",
            "short-rate",
            "socks5-bulk-cpu",
            "socks5-bulk-rate",
            "socks5-short-cpu",
            "socks5-short-rate",
        ];
        let report = judged(Vec::new());
        assert_labels_are_complete(&report);
        assert_eq!(names(&report), expected);
        assert_eq!(
            names(&judged(vec![short_row("tollgate", 1.0, 1.0), short_row("nginx", 1.0, 1.0)])),
            expected
        );
    }

    #[test]
    fn short_verdicts_compare_the_better_rival() {
        let rows = vec![
            short_row("direct", 0.0, 20_000.0),
            short_row("tollgate", 60.0, 12_000.0),
            short_row("haproxy", 80.0, 10_000.0),
            short_row("nginx", 75.0, 16_000.0),
        ];
        let report = judged(rows);
        assert_eq!(outcome(&report, "short-cpu"), Some((0.8, Outcome::Holds)));
        assert_eq!(outcome(&report, "short-rate"), Some((0.75, Outcome::Fails)));
    }

    #[test]
    fn request_verdicts_compare_proxies_and_need_success() {
        let names = ["process_cpu_us_per_request", "requests_per_s", "failed_requests"];
        let request_row = |target: &str, cpu_us: f64, rate: f64, failed: f64| {
            row("requests-keep-alive", target, [&[cpu_us, rate, failed]; 5], &names)
        };
        let check = |failed: [f64; 3], expected| {
            let report = judged(vec![
                request_row("tollgate", 30.0, 30_000.0, failed[0]),
                request_row("nginx", 40.0, 20_000.0, failed[1]),
                request_row("squid", 120.0, 8_000.0, failed[2]),
            ]);
            assert_eq!(outcome(&report, "requests-cpu"), Some((0.75, expected)));
            assert_eq!(outcome(&report, "requests-rate"), Some((1.5, expected)));
            assert_eq!(outcome(&report, "requests-close-cpu"), None);
        };
        check([0.0; 3], Outcome::Holds);
        check([1.0, 0.0, 0.0], Outcome::Undecided);
        check([0.0, 1.0, 0.0], Outcome::Undecided);
        // Where nginx is the better rival, Squid's figures are not used.
        check([0.0, 0.0, 1.0], Outcome::Holds);
        let alone = judged(vec![request_row("tollgate", 30.0, 30_000.0, 0.0)]);
        let left_out = alone.left_out.iter().find(|left_out| left_out.name == "requests-cpu");
        let reason = "neither nginx nor squid was measured in this part of the work";
        assert_eq!(left_out.map(|left_out| left_out.reason.as_str()), Some(reason));
    }

    #[test]
    fn tunnel_verdicts_compare_proxies_of_the_protocol() {
        let row = |part, target: &str, numbers: [f64; 5]| {
            let names = [short::CPU, short::RATE, STREAM_CPU, STREAM_RATE, short::FAILED];
            row(part, target, [&numbers; 5], &names)
        };
        let report = judged(vec![
            row("socks5-short", "tollgate", [60.0, 8_000.0, 0.0, 0.0, 0.0]),
            row("socks5-short", "3proxy", [120.0, 4_000.0, 0.0, 0.0, 0.0]),
            row("socks5-short", "dante", [400.0, 10_000.0, 0.0, 0.0, 0.0]),
            // Squid speaks no SOCKS5, so its row is not used here.
            row("socks5-short", "squid", [1.0, 99_000.0, 0.0, 0.0, 0.0]),
            row("socks5-bulk-down", "tollgate", [0.0, 0.0, 0.2, 30.0, 0.0]),
            row("socks5-bulk-up", "tollgate", [0.0, 0.0, 0.4, 30.0, 0.0]),
            row("socks5-bulk-down", "g3proxy", [0.0, 0.0, 0.8, 15.0, 0.0]),
            row("socks5-bulk-up", "g3proxy", [0.0, 0.0, 0.8, 20.0, 0.0]),
        ]);
        assert_eq!(outcome(&report, "socks5-short-cpu"), Some((0.5, Outcome::Holds)));
        assert_eq!(outcome(&report, "socks5-short-rate"), Some((0.8, Outcome::Fails)));
        assert_eq!(outcome(&report, "socks5-bulk-cpu"), Some((0.5, Outcome::Holds)));
        assert_eq!(outcome(&report, "socks5-bulk-rate"), Some((1.5, Outcome::Holds)));
        assert_eq!(outcome(&report, "connect-short-cpu"), None);
    }

    #[test]
    fn accounting_verdict_judges_the_time() {
        let check = |ns: f64, expected| {
            let row = row(accounting::PART, "tollgate", [&[ns]; 5], &[accounting::NS_PER_IO]);
            assert_eq!(outcome(&judged(vec![row]), "accounting"), Some((ns, expected)));
        };
        check(20.0, Outcome::Holds);
        check(20.5, Outcome::Fails);
    }

    #[test]
    fn limits_are_judged_beside_none() {
        let check = |part: &'static str, number, (name, with), lost: f64, expected| {
            let names = [number, "lost_messages"];
            let rows = [("tollgate", 0.5), ("tollgate-limited", with)];
            let rows = rows.map(|(target, value)| row(part, target, [&[value, lost]; 5], &names));
            let others = limits::BULK.into_iter().filter(|case| case.part != part);
            let same = others.flat_map(|case| {
                ["tollgate", "tollgate-limited"].map(|target| row(case.part, target, [&[0.5]; 5], &[number]))
            });
            let report = judged(rows.into_iter().chain(same).collect());
            assert_eq!(outcome(&report, name), Some(expected), "{part}");
        };
        for case in limits::BULK {
            let name = "limits-bulk-cpu";
            check(case.part, STREAM_CPU, (name, 0.51), 0.0, (1.02, Outcome::Holds));
            check(case.part, STREAM_CPU, (name, 0.52), 0.0, (1.04, Outcome::Fails));
        }
        let name = "limits-pingpong-cpu";
        check(limits::PINGPONG, limits::MESSAGE_CPU, (name, 0.54), 0.0, (1.08, Outcome::Holds));
        check(limits::PINGPONG, limits::MESSAGE_CPU, (name, 0.55), 0.0, (1.1, Outcome::Fails));
        check(limits::PINGPONG, limits::MESSAGE_CPU, (name, 0.54), 1.0, (1.08, Outcome::Undecided));
    }

    #[test]
    fn growth_verdict_pairs_rounds_and_needs_success() {
        let row = |case: idle_scaling::Case, values: [f64; 5], failed: f64| {
            let values = values.map(|cpu_us| [cpu_us, failed]);
            let values = [&values[0][..], &values[1], &values[2], &values[3], &values[4]];
            row(case.part, "tollgate", values, &[short::CPU, short::FAILED])
        };
        let few = || row(idle_scaling::FEW, [50.0, 100.0, 50.0, 100.0, 50.0], 0.0);
        let check = |many, expected| assert_eq!(outcome(&judged(vec![few(), many]), "growth"), expected);
        let doubled = [100.0, 200.0, 100.0, 200.0, 100.0];
        check(row(idle_scaling::MANY, [55.0, 110.0, 55.0, 110.0, 55.0], 0.0), Some((1.1, Outcome::Holds)));
        check(row(idle_scaling::MANY, doubled, 0.0), Some((2.0, Outcome::Fails)));
        check(row(idle_scaling::MANY, doubled, 1.0), Some((2.0, Outcome::Undecided)));
    }

    #[test]
    fn bulk_verdicts_judge_the_worse_direction() {
        let rows =
            bulk_rows("tollgate", 0.1, 0.3, 0.0).into_iter().chain(bulk_rows("haproxy", 0.2, 0.2, 1.0));
        let report = judged(rows.collect());
        assert_eq!(outcome(&report, "bulk-cpu").map(|it| it.1), Some(Outcome::Fails));
        let verdict = report
            .verdicts
            .iter()
            .find(|verdict| verdict.name == "bulk-cpu")
            .expect("the verdict was reached");
        assert!(verdict.note.starts_with("bulk-up"), "{}", verdict.note);
    }

    #[test]
    fn short_floor_is_the_bare_relay() {
        let row = |target: &str, cpu_us: f64| row(short::PART, target, [&[cpu_us]; 5], &[short::THREADS_CPU]);
        let check = |ours, expected| {
            let report = judged(vec![row("tollgate", ours), row("bare-relay", 40.0)]);
            assert_eq!(outcome(&report, "short-floor"), Some(expected));
        };
        check(42.0, (1.05, Outcome::Holds));
        check(50.0, (1.25, Outcome::Fails));
    }

    #[test]
    fn bulk_floor_is_the_bare_splice() {
        let row = |target: &str, cpu_s: f64| {
            bulk::SINGLE.map(|case| row(case.part, target, [&[cpu_s]; 5], &[STREAM_THREADS_CPU]))
        };
        let check = |ours, expected| {
            let report = judged(row("tollgate", ours).into_iter().chain(row("bare-splice", 0.5)).collect());
            assert_eq!(outcome(&report, "bulk-floor"), Some(expected));
        };
        check(0.5, (1.0, Outcome::Holds));
        check(0.75, (1.5, Outcome::Fails));
        assert_eq!(outcome(&judged(row("tollgate", 0.5).into_iter().collect()), "bulk-floor"), None);
    }

    #[test]
    fn copying_rival_undecides_the_verdict() {
        let rows =
            bulk_rows("tollgate", 0.1, 0.1, 0.0).into_iter().chain(bulk_rows("haproxy", 0.8, 0.8, 0.1));
        let report = judged(rows.collect());
        assert_eq!(outcome(&report, "bulk-cpu").map(|it| it.1), Some(Outcome::Undecided));
    }

    #[test]
    fn idle_memory_verdict_judges_the_worst_run() {
        let names = ["pss_bytes_per_tunnel"];
        let check = |worst: f64, expected| {
            let rows = vec![row(
                "idle-9000",
                "tollgate",
                [&[700.0], &[700.0], &[worst], &[700.0], &[700.0]],
                &names,
            )];
            assert_eq!(outcome(&judged(rows), "idle-memory").map(|it| it.1), Some(expected));
        };
        check(1_000.0, Outcome::Holds);
        check(1_100.0, Outcome::Undecided);
    }
}
