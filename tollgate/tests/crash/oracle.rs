//! The oracle: what must hold of a bill, given what the witness and both ends know of every flow.
//!
//! Promises: each rule is one line that names what it found; a flow is judged by itself, a killed gateway by
//! all its flows. Leaves to others: where the facts come from (`history`).
//!
//! ```text
//!   truth      what the kernel took:  witnessed <= truth <= attempted
//!   bill       billed <= truth <= billed + uncertain, and uncertain is 0 but for the one call of each
//!              reactor that the kill cut
//!   receiver   arrived <= truth, and arrived = truth where the stream ended in order
//! ```

use std::collections::HashMap;
use std::net::SocketAddr;

use crate::bill::Row;
use crate::flow::{destination_address, number_of_client, number_of_destination};

/// The most that one call may leave uncertain.
const CALL_BYTES_MAX: u64 = 256 * 1024;

/// The reason of a flow that its gateway's death ended.
const KILLED: &str = "killed";

/// What is known of one direction of a flow, in bytes of payload.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Direction {
    /// Sent by the sender's calls.
    pub(crate) offered: u64,
    /// Returned by the gateway's calls.
    pub(crate) witnessed: u64,
    /// The same, if the call that was under way took all.
    pub(crate) attempted: u64,
    /// Received by the receiver's calls.
    pub(crate) arrived: u64,
    /// The receiver read to an end in order: nothing is missing in `arrived`.
    pub(crate) is_whole: bool,
}

/// What is known of a flow besides its row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) number: u32,
    pub(crate) client: SocketAddr,
    /// The kill of its history that ended its gateway.
    pub(crate) generation: usize,
    /// Its gateway was stopped and not killed.
    pub(crate) in_order: bool,
    /// Told where something is wrong.
    #[expect(dead_code, reason = "read by Debug alone")]
    pub(crate) traffic: &'static str,
    pub(crate) up: Direction,
    pub(crate) down: Direction,
}

/// What a bill says of one direction.
#[derive(Clone, Copy, Debug)]
struct Billed {
    bytes: u64,
    uncertain: u64,
}

/// What the rules found wrong with the `rows` of these flows, which are all that there are.
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
            _ => findings.push(format!("a row of nobody's flow: {row:?}")),
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

/// Rows of an earlier bill that the later one has not, or has otherwise: a final row never changes.
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

/// What the totals that a user is told (flows, up, down) have against the rows.
pub(crate) fn disagreement(rows: &[Row], told: (u64, u64, u64)) -> Option<String> {
    let sum = |bytes: fn(&Row) -> u64| rows.iter().map(bytes).sum::<u64>();
    let summed = (rows.len() as u64, sum(|row| row.up), sum(|row| row.down));
    (told != summed).then(|| format!("usage tells {told:?} (flows, up, down), and the rows are {summed:?}"))
}

fn judge_flow(fact: &Facts, rows: &[&Row]) -> Vec<&'static str> {
    let mut wrong = Vec::new();
    let mut rule = |holds: bool, text: &'static str| {
        if !holds {
            wrong.push(text);
        }
    };
    for direction in [fact.up, fact.down] {
        let Direction { offered, witnessed, attempted, arrived, is_whole } = direction;
        rule(witnessed <= attempted && arrived <= attempted, "more arrived than was attempted");
        rule(!is_whole || witnessed <= arrived, "the witness saw more than an orderly end delivered");
        rule(witnessed <= offered, "the witness saw more than the sender sent");
    }
    let row = match rows {
        [row] => row,
        [] => {
            let moved = [fact.up, fact.down].iter().any(|it| it.witnessed > 0 || it.arrived > 0);
            rule(!moved, "bytes moved and no row bills them");
            return wrong;
        }
        _ => {
            rule(false, "billed more than once");
            return wrong;
        }
    };
    rule(row.client == fact.client, "the row is of another client");
    rule(!fact.in_order || row.reason != KILLED, "killed, though its gateway was stopped in order");
    let is_exact = fact.in_order || row.reason != KILLED;
    let up = Billed { bytes: row.up, uncertain: row.uncertain_up };
    let down = Billed { bytes: row.down, uncertain: row.uncertain_down };
    for (direction, billed) in [(fact.up, up), (fact.down, down)] {
        judge_direction(direction, billed, is_exact, &mut rule);
    }
    wrong
}

fn judge_direction(
    direction: Direction,
    billed: Billed,
    is_exact: bool,
    rule: &mut impl FnMut(bool, &'static str),
) {
    let Direction { offered, witnessed, arrived, is_whole, .. } = direction;
    let Billed { bytes, uncertain } = billed;
    rule(uncertain <= CALL_BYTES_MAX, "more is uncertain than one call moves");
    rule(!is_exact || uncertain == 0, "an end that was seen leaves nothing uncertain");
    rule(bytes <= witnessed, "billed more than the witness saw");
    rule(witnessed <= bytes + uncertain, "the witness saw more than is billed or uncertain");
    rule(arrived <= bytes + uncertain, "more arrived than is billed or uncertain");
    rule(!is_whole || bytes <= arrived, "billed more than arrived");
    rule(bytes <= offered, "billed more than was sent");
}

/// The bill that a ledger without a fault would present, to learn whether the harness has one.
pub(crate) fn rehearsed(facts: &[Facts]) -> Vec<Row> {
    let rows = facts.iter().filter(|fact| fact.up.attempted + fact.down.attempted > 0).map(|fact| Row {
        id: fact.number.to_le_bytes().to_vec(),
        address: destination_address(fact.number).into(),
        client: fact.client,
        reason: if fact.in_order { String::new() } else { KILLED.to_owned() },
        up: fact.up.witnessed,
        down: fact.down.witnessed,
        uncertain_up: fact.up.attempted - fact.up.witnessed,
        uncertain_down: fact.down.attempted - fact.down.witnessed,
    });
    rows.collect()
}

/// The oracle's own test, run before it judges anybody: each lie is found, and the truth is not.
pub(crate) fn prove() {
    let moved = |bytes| Direction {
        offered: bytes + 5,
        witnessed: bytes,
        attempted: bytes,
        arrived: bytes,
        is_whole: true,
    };
    let killed = Facts {
        number: 7,
        client: "127.128.0.8:9".parse().unwrap(),
        generation: 1,
        in_order: false,
        traffic: "",
        up: moved(100),
        down: moved(1_000),
    };
    // The kernel took 40 bytes of the call that the kill cut, and nobody saw it return.
    let cut = Facts { up: Direction { attempted: 150, arrived: 140, ..moved(100) }, ..killed };
    let idle = Facts { up: moved(0), down: moved(0), ..killed };
    let ordered = Facts { in_order: true, ..killed };
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
        assert!(is_right, "the oracle is to say {expected:?} and says: {findings}");
    };
    check(&killed, std::slice::from_ref(&row), "");
    check(&cut, &[with(|row| row.uncertain_up = 50)], "");
    check(&idle, &[], "");
    check(&killed, &[], "bytes moved and no row");
    check(&killed, &[row.clone(), other_id], "billed more than once");
    check(&killed, &[row.clone(), row.clone()], "has 2 final rows");
    check(&killed, &[with(|row| row.up = 99)], "the witness saw more than is billed");
    check(&killed, &[with(|row| row.up = 101)], "billed more than the witness saw");
    check(&killed, &[with(|row| row.down = 1_006)], "billed more than was sent");
    check(&killed, &[with(|row| (row.up, row.uncertain_up) = (40, 300_000))], "than one call moves");
    check(&killed, &[with(|row| (row.uncertain_up, row.uncertain_down) = (1, 1))], "2 calls are uncertain");
    check(&cut, std::slice::from_ref(&row), "more arrived than is billed or uncertain");
    check(&ordered, std::slice::from_ref(&row), "killed, though");
    check(&ordered, &[with(|row| "client_closed".clone_into(&mut row.reason))], "");
    let seen = with(|row| (row.reason, row.uncertain_up) = ("client_closed".to_owned(), 3));
    check(&killed, &[seen], "an end that was seen");
    check(&killed, &[with(|row| row.client.set_port(10))], "of another client");
    check(&killed, &[row.clone(), with(|row| row.address = "127.1.0.8".parse().unwrap())], "nobody's flow");
    check(&Facts { number: 8, ..idle }, &[row], "a flow that never was");
}
