//! The claim, the main plot and the plain words of `lab relay`.

use super::short;
use crate::kit::measurements::Row;
use crate::kit::plot::{Figure, Style};
use crate::kit::presentation::{PartWords, Presentation, TargetWords, family, part, target};
use crate::kit::relays::target::Target;

pub(crate) static PRESENTATION: Presentation = Presentation {
    experiment: "relay",
    claim: "Tollgate decides, meters and logs every connection, and still relays short connections for less \
            CPU time, and faster, than HAProxy and nginx.",
    figure,
    figure_parts: &["short"],
    verdicts: VERDICTS,
    parts: PARTS,
    targets: TARGETS,
    numbers: NUMBERS,
    terminal_tables: &[],
};

fn figure(rows: &[Row]) -> Option<Figure> {
    let mut cpu = PRESENTATION.bars(rows, short::PART, short::CPU);
    cpu.retain(|bar| bar.label != Target::Direct.name());
    let rate = PRESENTATION.bars(rows, short::PART, short::RATE);
    let panels = [
        ("CPU time of the relay for each connection, µs: less is better", cpu),
        ("Connections per second: more is better", rate),
    ];
    let panels: Vec<_> =
        panels.into_iter().filter_map(|(title, bars)| PRESENTATION.bar_panel(title, bars)).collect();
    let notes = vec![
        "Up to 500 clients at a time open a new connection for each small request. Tollgate applies its \
         policy, meters and writes a log line; HAProxy logs too; bare-relay does nothing but relay, and \
         direct is the same load without a relay."
            .to_owned(),
    ];
    let title = "Short connections through Tollgate and through other relays".to_owned();
    (!panels.is_empty()).then_some(Figure { title, panels, notes })
}

const VERDICTS: &[(&str, &str)] = &[
    (
        "short-cpu",
        "A short connection takes at most 0.90 times the CPU time of the better of HAProxy and nginx",
    ),
    (
        "short-rate",
        "Short connections are at least 1.05 times as fast as through the better of HAProxy and nginx",
    ),
    (
        "short-floor",
        "A short connection takes the relaying threads at most 1.05 times the CPU time of a bare relay",
    ),
    ("bulk-cpu", "A gigabyte takes at most 0.90 times the CPU time of a HAProxy that splices"),
    ("bulk-rate", "A stream is at least as fast as through a HAProxy that splices"),
    ("bulk-floor", "One stream takes the relaying threads at most 1.15 times the CPU time of a bare splice"),
    ("idle-memory", "An idle tunnel holds at most 1 KiB of memory"),
    (
        "pingpong-p99",
        "The 99th percentile of small messages' latency is at most that of HAProxy and of nginx",
    ),
    ("pingpong-stream-p99", "Beside a saturating stream that percentile is at most 5 ms"),
    (
        "growth",
        "Beside 9,000 open tunnels a short connection takes at most 1.15 times the CPU time as beside 100",
    ),
    (
        "limits-bulk-cpu",
        "With quotas and a rate that are never reached a gigabyte takes at most 1.02 times the CPU time",
    ),
    ("limits-pingpong-cpu", "With them a small message takes at most 1.08 times the CPU time"),
    ("accounting", "Accounting takes at most 20 ns for a read and its write"),
    (
        "requests-cpu",
        "A request on a kept connection takes at most the CPU time of the better of nginx and Squid",
    ),
    (
        "requests-rate",
        "Requests on kept connections are at least as fast as through the better of nginx and Squid",
    ),
    (
        "requests-close-cpu",
        "A request on a new connection takes at most the CPU time of the better of nginx and Squid",
    ),
    (
        "requests-close-rate",
        "Requests on new connections are at least as fast as through the better of nginx and Squid",
    ),
    (
        "connect-short-cpu",
        "A short connection by CONNECT takes at most the CPU time of the best forward proxy",
    ),
    (
        "connect-short-rate",
        "Short connections by CONNECT are at least as fast as through the best forward proxy",
    ),
    ("connect-bulk-cpu", "A gigabyte by CONNECT takes at most the CPU time of the best forward proxy"),
    ("connect-bulk-rate", "A stream by CONNECT is at least as fast as through the best forward proxy"),
    ("socks5-short-cpu", "A short connection by SOCKS5 takes at most the CPU time of the best forward proxy"),
    (
        "socks5-short-rate",
        "Short connections by SOCKS5 are at least as fast as through the best forward proxy",
    ),
    ("socks5-bulk-cpu", "A gigabyte by SOCKS5 takes at most the CPU time of the best forward proxy"),
    ("socks5-bulk-rate", "A stream by SOCKS5 is at least as fast as through the best forward proxy"),
];

const PARTS: &[PartWords] = &[
    part("short", "short connections"),
    family("bulk-down-{}", "streams from server to client, {} at a time", "streams"),
    family("bulk-up-{}", "streams from client to server, {} at a time", "streams"),
    part("splice-down", "a traced stream from server to client"),
    part("splice-up", "a traced stream from client to server"),
    family("idle-{}", "{} idle tunnels", "idle tunnels"),
    part("pingpong-beside-stream", "small messages beside a saturating stream"),
    family("pingpong-{}", "small messages on {} connections", "connections"),
    family("open-{}", "short connections beside {} open tunnels", "open tunnels"),
    part("connect-short", "short connections by CONNECT"),
    part("connect-bulk-down", "a stream from server to client, by CONNECT"),
    part("connect-bulk-up", "a stream from client to server, by CONNECT"),
    part("socks5-short", "short connections by SOCKS5"),
    part("socks5-bulk-down", "a stream from server to client, by SOCKS5"),
    part("socks5-bulk-up", "a stream from client to server, by SOCKS5"),
    part("requests-keep-alive", "plain requests on 100 kept connections"),
    part("requests-close", "plain requests, each on a new connection"),
    part("billing", "the bill for the short connections"),
    part("billing-connect", "the bill for the short connections by CONNECT"),
    part("billing-socks5", "the bill for the short connections by SOCKS5"),
    part("billing-keep-alive", "the bill for the requests on kept connections"),
    part("billing-close", "the bill for the requests on new connections"),
    part("limits-short", "short connections, of a user with and without limits"),
    part("limits-bulk-down", "a stream from server to client, of a user with and without limits"),
    part("limits-bulk-up", "a stream from client to server, of a user with and without limits"),
    part("limits-pingpong", "small messages, of a user with and without limits"),
    part("limits-requests", "plain requests on kept connections, of a user with and without limits"),
    part("accounting", "the time of accounting"),
    part("instructions", "the instructions of accounting"),
];

const TARGETS: &[TargetWords] = &[
    target("direct", Style::Reference, "no relay: what the machine and the load reach alone"),
    target("bare-relay", Style::Reference, "threads that relay, and do nothing else: the floor"),
    target("bare-splice", Style::Reference, "two threads that splice, and do nothing else: the floor"),
    target("tollgate", Style::Ours, "Tollgate, with policy, metering and its connection log"),
    target("tollgate-limited", Style::Variant(1), "Tollgate, with limits of its user that are never reached"),
    target("haproxy", Style::Rival(1), "HAProxy in TCP mode, with its connection log"),
    target("nginx", Style::Rival(2), "nginx: the stream module for tunnels, the http module for requests"),
    target("squid", Style::Rival(3), "Squid, without a cache"),
    target("tinyproxy", Style::Rival(4), "tinyproxy"),
    target("3proxy", Style::Rival(9), "3proxy"),
    target("dante", Style::Rival(5), "the server of Dante"),
    target("microsocks", Style::Rival(6), "microsocks"),
    target("g3proxy", Style::Rival(7), "g3proxy"),
];

const NUMBERS: &[(&str, &str)] = &[
    ("connections_per_s", "connections per second"),
    ("requests_per_s", "requests per second"),
    ("gbit_per_s", "gigabits per second"),
    ("passes_half_close", "forwards the end of one direction alone (1) or not (0)"),
    ("process_cpu_s_per_gb", "CPU time of the relay per gigabyte, s"),
    ("data_plane_cpu_s_per_gb", "CPU time of the relaying threads per gigabyte, s"),
    ("own_count_spliced_share", "share of spliced bytes, by the relay's own count"),
    ("traced_spliced_share", "share of spliced bytes, by the traced system calls"),
    ("latency_p50_ms", "median latency, ms"),
    ("latency_p99_ms", "99th percentile of the latency, ms"),
    ("latency_p999_ms", "99.9th percentile of the latency, ms"),
    ("added_p50_ms", "median latency beyond that of direct, ms"),
    ("added_p99_ms", "99th percentile beyond that of direct, ms"),
    ("added_p999_ms", "99.9th percentile beyond that of direct, ms"),
    ("lost_messages", "messages without an answer"),
    ("stream_gbit_per_s", "gigabits per second of the stream beside them"),
    ("failed_connections", "failed connections"),
    ("failed_requests", "failed requests"),
    ("connections_slower_than_1_s", "connections that took more than a second"),
    ("client_connections_per_request", "connections from clients per request"),
    ("origin_connections_per_request", "connections to the origin per request"),
    ("process_cpu_us_per_connection", "CPU time of the relay per connection, µs"),
    ("data_plane_cpu_us_per_connection", "CPU time of the relaying threads per connection, µs"),
    ("log_lines_per_connection", "log lines per connection"),
    ("process_cpu_us_per_request", "CPU time of the relay per request, µs"),
    ("data_plane_cpu_us_per_request", "CPU time of the relaying threads per request, µs"),
    ("log_lines_per_request", "log lines per request"),
    ("process_cpu_us_per_message", "CPU time of the relay per message and its echo, µs"),
    ("data_plane_cpu_us_per_message", "CPU time of the relaying threads per message and its echo, µs"),
    ("pss_bytes_per_tunnel", "memory per idle tunnel, bytes of PSS"),
    ("pss_bytes_per_further_tunnel", "memory per tunnel beyond the last count, bytes of PSS"),
    ("pss_mb_without_tunnels", "memory without tunnels, MB of PSS"),
    ("billed_flows_per_connection", "billed flows per connection"),
    ("billed_up_bytes_per_connection", "billed bytes to the server per connection"),
    ("billed_down_bytes_per_connection", "billed bytes to the client per connection"),
    ("billed_flows_per_request", "billed flows per request"),
    ("billed_up_bytes_per_request", "billed bytes to the server per request"),
    ("billed_down_bytes_per_request", "billed bytes to the client per request"),
    ("accounting_ns_per_read_and_write", "accounting for a read and its write, ns"),
    ("instructions_per_connection", "instructions of the gateway per connection"),
    ("of_these_accounting", "of these, accounting"),
    ("without_accounting", "of these, everything else"),
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
