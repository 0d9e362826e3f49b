//! The oracle: the rules for a bill, given what the send audit and both ends counted of every flow.
//!
//! Guarantees: each rule is one line that names its finding. A flow is judged by itself, a killed gateway by
//! all its flows.
//!
//! ```text
//!   truth      what the kernel took:  audited <= truth <= attempted
//!   bill       billed <= truth <= billed + uncertain, and uncertain is 0 but for the one call of each
//!              reactor that the kill interrupted
//!   receiver   arrived <= truth, and arrived = truth where the stream ended in order
//! ```
//!
//! After a power failure the bill of a flow may lack bytes, or be missing. How many depends on the disk's
//! timing, which no rule bounds. Instead the rules require what a gateway had shown or reported before the
//! power failed: [`changed`], [`less_than_shown`], [`entries_lost`].

use std::collections::HashMap;
use std::net::SocketAddr;

use crate::bill::{Live, Progress, Row};
use crate::flow::{destination_address, number_of_client, number_of_destination};

/// The most that one call may leave uncertain.
const CALL_BYTES_MAX: u64 = 256 * 1024;

/// The most that a flow moves after its last durable interim before another is due: 8 MiB, and what two
/// passes move of one flow, 256 KiB each way and a pipe's content, before the gateway checks its counts.
const UNRECORDED_MAX: u64 = (8 << 20) + (2 << 20);

/// The close reason of a flow that ended with its killed gateway.
const KILLED: &str = "killed";

/// The close reason of a flow that only the journal has: its last interim is billed.
const LOST: &str = "lost";

/// The end of a gateway and its flows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fate {
    /// Stopped in order: all is exact.
    Stopped,
    /// Killed alone, and another one has recovered: exact, but for one call of each reactor.
    Killed,
    /// The power failed under it: billed as journaled.
    Failed,
    /// Killed, and the power failed before another one is known to have recovered: either.
    KilledThenFailed,
}

/// The counts of one direction of a flow, in bytes of payload.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Direction {
    /// Sent by the sender's calls.
    pub(crate) offered: u64,
    /// Returned by the gateway's calls, by the send audit.
    pub(crate) audited: u64,
    /// The same, plus all bytes of the call in progress.
    pub(crate) attempted: u64,
    /// Received by the receiver's calls.
    pub(crate) arrived: u64,
    /// The receiver read until an orderly end: `arrived` is complete.
    pub(crate) is_whole: bool,
}

/// The facts of a flow, besides its row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) number: u32,
    pub(crate) client: SocketAddr,
    /// The kill of its history that ended its gateway.
    pub(crate) generation: usize,
    pub(crate) fate: Fate,
    /// Its final was durable before the power failed.
    pub(crate) is_final: bool,
    /// Bytes that it had moved, both directions, so long before the power failed that interims then due are
    /// durable.
    pub(crate) recorded: u64,
    /// Printed with a finding.
    #[expect(dead_code, reason = "read by Debug alone")]
    pub(crate) traffic: &'static str,
    pub(crate) up: Direction,
    pub(crate) down: Direction,
}

impl Facts {
    /// Whether an interim of it must exist, if not its final.
    pub(crate) fn is_due(&self) -> bool {
        self.recorded > UNRECORDED_MAX
    }
}

/// The bill of one direction.
#[derive(Clone, Copy, Debug)]
struct Billed {
    bytes: u64,
    uncertain: u64,
}

/// The findings about the `rows` of all these flows.
pub(crate) fn judge(facts: &[Facts], rows: &[Row], reactors: usize) -> Vec<String> {
    let mut findings = Vec::new();
    let mut of_flow: HashMap<u32, Vec<&Row>> = HashMap::new();
    let mut ids: HashMap<&[u8], usize> = HashMap::new();
    for row in rows {
        *ids.entry(&row.id).or_default() += 1;
        match number_of_destination(row.address) {
            Some(number) if number_of_client(row.client.ip()) == Some(number) => {
                of_flow.entry(number).or_default().push(row);
            }
            _ => findings.push(format!("a row without a flow: {row:?}")),
        }
    }
    let twice = ids.into_iter().filter(|(_, count)| *count > 1);
    findings.extend(twice.map(|(id, count)| format!("the id {id:02x?} has {count} final rows")));
    let mut cut: HashMap<usize, usize> = HashMap::new();
    for fact in facts {
        let rows = of_flow.remove(&fact.number).unwrap_or_default();
        let wrong = judge_flow(fact, &rows);
        findings.extend(wrong.into_iter().map(|wrong| format!("{wrong}: {fact:?}, {rows:?}")));
        let uncertain = rows.iter().flat_map(|row| [row.uncertain_up, row.uncertain_down]);
        *cut.entry(fact.generation).or_default() += uncertain.filter(|bytes| *bytes > 0).count();
    }
    let unknown = of_flow.into_values().flatten();
    findings.extend(unknown.map(|row| format!("a row of a flow that never was: {row:?}")));
    let too_many = cut.into_iter().filter(|(_, calls)| *calls > reactors);
    findings.extend(too_many.map(|(generation, calls)| {
        format!("{calls} calls are uncertain in generation {generation}, of {reactors} reactors")
    }));
    findings
}

/// Rows of an earlier bill that are missing or different in the later one: a final row never changes.
pub(crate) fn changed(earlier: &[Row], later: &[Row]) -> Vec<String> {
    let by_id: HashMap<&[u8], &Row> = later.iter().map(|row| (row.id.as_slice(), row)).collect();
    let mut findings = Vec::new();
    for row in earlier {
        match by_id.get(row.id.as_slice()) {
            None => findings.push(format!("a row is gone: {row:?}")),
            Some(other) if *other != row => findings.push(format!("a row was {row:?} and is {other:?}")),
            Some(_) => {}
        }
    }
    findings
}

/// A difference between the totals that `usage` reports (flows, up, down) and the rows.
pub(crate) fn usage_mismatch(rows: &[Row], reported: (u64, u64, u64)) -> Option<String> {
    let sum = |bytes: fn(&Row) -> u64| rows.iter().map(bytes).sum::<u64>();
    let summed = (rows.len() as u64, sum(|row| row.up), sum(|row| row.down));
    (reported != summed)
        .then(|| format!("usage reports {reported:?} (flows, up, down), and the rows have {summed:?}"))
}

/// Flows that were open when the power failed, and are billed with less than the database had shown. It has
/// durable entries only, so a flow's last durable interim has at least what was shown.
pub(crate) fn less_than_shown(shown: &[Live], rows: &[Row]) -> Vec<String> {
    let by_id: HashMap<&[u8], &Row> = rows.iter().map(|row| (row.id.as_slice(), row)).collect();
    let mut findings = Vec::new();
    for live in shown {
        match by_id.get(live.id.as_slice()) {
            None => findings.push(format!("a flow that was shown as open has no row: {live:?}")),
            Some(row) if row.up < live.up || row.down < live.down => {
                findings.push(format!("a flow was shown as {live:?} and is billed as {row:?}"));
            }
            Some(_) => {}
        }
    }
    findings
}

/// Entries up to `durable`, which the gateway had reported as durable, that are missing in a database with
/// everything that was found after the power failure.
pub(crate) fn entries_lost(durable: u64, progress: &Progress) -> Vec<String> {
    let mut findings = Vec::new();
    if progress.applied < durable {
        findings
            .push(format!("all up to entry {durable} was durable, and the last one is {}", progress.applied));
    }
    // A gap with a lower LSN was known, and reported as durable itself, before.
    let gaps = progress.gaps.iter().filter(|(lsn, first)| *lsn > durable && *first <= durable);
    findings
        .extend(gaps.map(|gap| format!("all up to entry {durable} was durable, and there is a gap {gap:?}")));
    findings
}

fn judge_flow(fact: &Facts, rows: &[&Row]) -> Vec<&'static str> {
    let mut wrong = Vec::new();
    let mut rule = |holds: bool, text: &'static str| {
        if !holds {
            wrong.push(text);
        }
    };
    for direction in [fact.up, fact.down] {
        let Direction { offered, audited, attempted, arrived, is_whole } = direction;
        rule(audited <= attempted && arrived <= attempted, "more arrived than was attempted");
        rule(!is_whole || audited <= arrived, "the audit has more than an orderly end delivered");
        rule(audited <= offered, "the audit has more than the sender sent");
    }
    let billed = rows.iter().map(|row| row.up + row.down).sum::<u64>();
    rule(billed + UNRECORDED_MAX >= fact.recorded, "an interim was due and durable, and is not billed");
    rule(!fact.is_final || !rows.is_empty(), "its final was durable and it has no row");
    let row = match rows {
        [row] => row,
        [] => {
            let moved = [fact.up, fact.down].iter().any(|it| it.audited > 0 || it.arrived > 0);
            // A flow without a durable entry is forgotten.
            let may_be_missing = matches!(fact.fate, Fate::Failed | Fate::KilledThenFailed);
            rule(!moved || may_be_missing, "bytes moved and no row bills them");
            return wrong;
        }
        _ => {
            rule(false, "billed more than once");
            return wrong;
        }
    };
    rule(row.client == fact.client, "the row is of another client");
    rule(
        fact.fate != Fate::Stopped || row.reason != KILLED,
        "killed, though its gateway was stopped in order",
    );
    // Only the live table records a kill, and it is of another boot.
    rule(fact.fate != Fate::Failed || row.reason != KILLED, "killed, though its machine failed");
    let may_lack = matches!(fact.fate, Fate::Failed | Fate::KilledThenFailed);
    rule(may_lack || row.reason != LOST, "lost, though its machine has not failed");
    rule(!fact.is_final || row.reason != LOST, "its final was durable and is lost");
    let exactness = match row.reason.as_str() {
        KILLED => Exactness::ButForCalls,
        LOST => Exactness::AtMost,
        _ => Exactness::Whole,
    };
    let up = Billed { bytes: row.up, uncertain: row.uncertain_up };
    let down = Billed { bytes: row.down, uncertain: row.uncertain_down };
    for (direction, billed) in [(fact.up, up), (fact.down, down)] {
        judge_direction(direction, billed, exactness, &mut rule);
    }
    wrong
}

/// The rules for a row.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Exactness {
    /// All that moved: the gateway saw the flow's end.
    Whole,
    /// The same, with the uncertain bytes of an interrupted call.
    ButForCalls,
    /// Nothing that did not move.
    AtMost,
}

fn judge_direction(
    direction: Direction,
    billed: Billed,
    exactness: Exactness,
    rule: &mut impl FnMut(bool, &'static str),
) {
    let Direction { offered, audited, arrived, is_whole, .. } = direction;
    let Billed { bytes, uncertain } = billed;
    rule(uncertain <= CALL_BYTES_MAX, "more is uncertain than one call moves");
    let may_lack = exactness == Exactness::AtMost;
    let is_cut = exactness == Exactness::ButForCalls;
    rule(is_cut || uncertain == 0, "an end that the gateway saw leaves nothing uncertain");
    rule(bytes <= audited, "billed more than the audit has");
    rule(may_lack || audited <= bytes + uncertain, "the audit has more than is billed or uncertain");
    rule(may_lack || arrived <= bytes + uncertain, "more arrived than is billed or uncertain");
    rule(!is_whole || bytes <= arrived, "billed more than arrived");
    rule(bytes <= offered, "billed more than was sent");
}

/// The bill of a ledger without a fault, to find a fault of the harness.
pub(crate) fn rehearsed(facts: &[Facts]) -> Vec<Row> {
    let rows = facts.iter().filter(|fact| fact.up.attempted + fact.down.attempted > 0).map(|fact| Row {
        id: fact.number.to_le_bytes().to_vec(),
        address: destination_address(fact.number).into(),
        client: fact.client,
        reason: rehearsed_reason(fact),
        up: fact.up.audited,
        down: fact.down.audited,
        uncertain_up: if fact.fate == Fate::Failed { 0 } else { fact.up.attempted - fact.up.audited },
        uncertain_down: if fact.fate == Fate::Failed { 0 } else { fact.down.attempted - fact.down.audited },
    });
    rows.collect()
}

fn rehearsed_reason(fact: &Facts) -> String {
    let reason = match fact.fate {
        Fate::Stopped => "",
        Fate::Killed | Fate::KilledThenFailed => KILLED,
        Fate::Failed => LOST,
    };
    reason.to_owned()
}

/// The oracle's own test, run before it judges a bill: each wrong bill is found, and the right one is not.
pub(crate) fn run_self_test() {
    let moved = |bytes| Direction {
        offered: bytes + 5,
        audited: bytes,
        attempted: bytes,
        arrived: bytes,
        is_whole: true,
    };
    let killed = Facts {
        number: 7,
        client: "127.128.0.8:9".parse().unwrap(),
        generation: 1,
        fate: Fate::Killed,
        is_final: false,
        recorded: 0,
        traffic: "",
        up: moved(100),
        down: moved(1_000),
    };
    // The kernel took 40 bytes of the call that the kill interrupted before it returned.
    let cut = Facts { up: Direction { attempted: 150, arrived: 140, ..moved(100) }, ..killed };
    let idle = Facts { up: moved(0), down: moved(0), ..killed };
    let ordered = Facts { fate: Fate::Stopped, ..killed };
    let row = Row {
        id: vec![1],
        address: "127.1.0.7".parse().unwrap(),
        client: "127.128.0.8:9".parse().unwrap(),
        reason: KILLED.to_owned(),
        up: 100,
        down: 1_000,
        uncertain_up: 0,
        uncertain_down: 0,
    };
    let with = |change: fn(&mut Row)| {
        let mut row = row.clone();
        change(&mut row);
        row
    };
    let other_id = with(|row| row.id = vec![2]);
    let check = |fact: &Facts, rows: &[Row], expected: &str| {
        let findings = judge(std::slice::from_ref(fact), rows, 1).join("\n");
        let is_right = if expected.is_empty() { findings.is_empty() } else { findings.contains(expected) };
        assert!(is_right, "expected the finding {expected:?}, got: {findings}");
    };
    check(&killed, std::slice::from_ref(&row), "");
    check(&cut, &[with(|row| row.uncertain_up = 50)], "");
    check(&idle, &[], "");
    check(&killed, &[], "bytes moved and no row");
    check(&killed, &[row.clone(), other_id], "billed more than once");
    check(&killed, &[row.clone(), row.clone()], "has 2 final rows");
    check(&killed, &[with(|row| row.up = 99)], "the audit has more than is billed");
    check(&killed, &[with(|row| row.up = 101)], "billed more than the audit has");
    check(&killed, &[with(|row| row.down = 1_006)], "billed more than was sent");
    check(&killed, &[with(|row| (row.up, row.uncertain_up) = (40, 300_000))], "than one call moves");
    check(&killed, &[with(|row| (row.uncertain_up, row.uncertain_down) = (1, 1))], "2 calls are uncertain");
    check(&cut, std::slice::from_ref(&row), "more arrived than is billed or uncertain");
    check(&ordered, std::slice::from_ref(&row), "killed, though");
    check(&ordered, &[with(|row| "client_closed".clone_into(&mut row.reason))], "");
    let seen = with(|row| (row.reason, row.uncertain_up) = ("client_closed".to_owned(), 3));
    check(&killed, &[seen], "an end that the gateway saw");
    check(&killed, &[with(|row| row.client.set_port(10))], "of another client");
    check(&killed, &[row.clone(), with(|row| row.address = "127.1.0.8".parse().unwrap())], "without a flow");
    check(&Facts { number: 8, ..idle }, std::slice::from_ref(&row), "a flow that never was");
    check(&killed, &[with(|row| LOST.clone_into(&mut row.reason))], "lost, though");
    run_power_failure_self_test(&killed, &row, check);
}

fn run_power_failure_self_test(killed: &Facts, row: &Row, check: impl Fn(&Facts, &[Row], &str)) {
    let failed = Facts { fate: Fate::Failed, ..*killed };
    let either = Facts { fate: Fate::KilledThenFailed, ..*killed };
    let with = |reason: &str, up: u64| Row { reason: reason.to_owned(), up, ..row.clone() };
    check(&failed, &[], "");
    check(&failed, &[with(LOST, 3)], "");
    check(&failed, &[with(LOST, 101)], "billed more than the audit has");
    check(&failed, &[with(LOST, 3), Row { id: vec![2], ..with(LOST, 3) }], "billed more than once");
    check(&failed, &[Row { uncertain_up: 1, ..with(LOST, 3) }], "leaves nothing uncertain");
    check(&failed, &[with(KILLED, 100)], "killed, though");
    check(&failed, &[with("client_closed", 100)], "");
    let ended = Facts { is_final: true, ..failed };
    check(&ended, &[], "its final was durable and it has no row");
    check(&ended, &[with(LOST, 100)], "its final was durable and is lost");
    check(&ended, &[with("client_closed", 100)], "");
    let due = Facts { recorded: UNRECORDED_MAX + 1_101, ..failed };
    check(&due, &[with(LOST, 100)], "an interim was due");
    check(&Facts { recorded: due.recorded - 1, ..due }, &[with(LOST, 100)], "");
    check(&failed, &[with("client_closed", 99)], "the audit has more");
    check(&either, &[], "");
    check(&either, &[with(LOST, 3)], "");
    check(&either, &[with(KILLED, 100)], "");
    check(&either, &[with(KILLED, 99)], "the audit has more");
    let live = |up| [Live { id: row.id.clone(), up, down: 0 }];
    assert!(less_than_shown(&live(100), &[with(LOST, 100)]).is_empty());
    assert_eq!(less_than_shown(&live(101), &[with(LOST, 100)]).len(), 1);
    assert_eq!(less_than_shown(&live(0), &[]).len(), 1);
    let lost =
        |applied, gaps: &[(u64, u64)]| entries_lost(10, &Progress { applied, gaps: gaps.to_vec() }).len();
    assert_eq!((lost(10, &[]), lost(9, &[])), (0, 1));
    assert_eq!((lost(20, &[(11, 11), (5, 5)]), lost(20, &[(11, 10)])), (0, 1));
}
