//! A round: its flows, further ones until the quotas are spent, and the judgement.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::bill::{self, Bill};
use crate::flow::{Flow, Response};
use crate::gateway::Gateway;
use crate::load::Load;
use crate::plan::{Plan, Quota};

/// How long the ledger, and flows that have ended, may take to reach the final state. Only a failure waits so
/// long.
const SETTLE_MAX: Duration = Duration::from_secs(30);

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// The sums of a run.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    rounds: u64,
    killed_rounds: u64,
    kills: u64,
    /// Rounds in which a day began: quotas of a day renewed meanwhile.
    undecided: u64,
    flows: u64,
    denied: u64,
    bytes: u64,
    uncertain: u64,
    /// Directions that were spliced, as far as the gateway lived to report it.
    pub(crate) spliced: u64,
}

/// Runs a round and judges it.
///
/// # Errors
/// What does not hold, with the numbers.
pub(crate) fn run(
    plan: &Plan,
    gateway: &mut Gateway,
    load: &mut Load,
    totals: &mut Totals,
) -> Result<(), String> {
    load.forget();
    let day = day();
    let mut kills = 0;
    for wave in 0..=plan.kills.len() {
        let kill_after = plan.kills.get(wave).copied();
        let spliced = gateway.spliced();
        let (was_killed, _) = load.run(plan, &plan.flows, gateway, kill_after)?;
        if was_killed {
            totals.spliced += spliced;
            kills += 1;
            gateway.restart()?;
        }
    }
    let bills = spend_rest(plan, gateway, load, kills > 0);
    totals.rounds += 1;
    if self::day() != day {
        totals.undecided += 1;
        return Ok(());
    }
    totals.add(&bills?, load.flows(), kills);
    Ok(())
}

/// Opens tunnels until all are denied, and until what was received and billed is what it must be.
fn spend_rest(
    plan: &Plan,
    gateway: &mut Gateway,
    load: &mut Load,
    was_killed: bool,
) -> Result<Vec<Bill>, String> {
    let begin = Instant::now();
    loop {
        let (_, wave) = load.run(plan, &plan.rest(), gateway, None)?;
        let all_denied = wave.iter().all(|flow| flow.response() == Response::Denied);
        let received = received(plan, load.flows());
        check_limits(plan, "received", &received)?;
        if !all_denied && begin.elapsed() <= SETTLE_MAX {
            continue;
        }
        let bills = bill::read(gateway, plan)?;
        let verdict = judge(plan, &bills, &received, load.flows(), was_killed);
        match verdict {
            Ok(()) if all_denied => return Ok(bills),
            // Bytes that an ended flow did not send come back, and its final row is written, in a moment.
            _ if begin.elapsed() <= SETTLE_MAX => thread::sleep(PAUSE),
            Ok(()) => return Err("the quotas are spent, and tunnels are not denied".to_owned()),
            Err(fault) => return Err(format!("{fault}\nreceived {received:?}\n{bills:?}")),
        }
    }
}

/// What the receivers of each user's flows have got, up and down.
fn received(plan: &Plan, flows: &[Flow]) -> Vec<(u64, u64)> {
    let mut received = vec![(0, 0); plan.users.len()];
    for flow in flows {
        let ((up, down), sums) = (flow.counted(), &mut received[flow.plan.user]);
        *sums = (sums.0 + up, sums.1 + down);
    }
    received
}

/// Checks that no quota has less than these bytes of the users.
fn check_limits(plan: &Plan, what: &str, bytes: &[(u64, u64)]) -> Result<(), String> {
    for user in 0..plan.users.len() {
        for (quota, of) in quotas_of(plan, user, bytes) {
            if quota.counted(of) > quota.limit() {
                return Err(format!("{what} {bytes:?} is more than {quota:?} of user {user} has"));
            }
        }
    }
    Ok(())
}

/// The quotas of a user and of its team, each with the bytes of those that it covers.
fn quotas_of<'p>(
    plan: &'p Plan,
    user: usize,
    bytes: &'p [(u64, u64)],
) -> impl Iterator<Item = (&'p Quota, (u64, u64))> {
    let own = plan.users[user].quotas.iter().map(move |quota| (quota, bytes[user]));
    let all = bytes.iter().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    own.chain(plan.team_quotas.iter().map(move |quota| (quota, all)))
}

/// Judges the final state of a round.
fn judge(
    plan: &Plan,
    bills: &[Bill],
    received: &[(u64, u64)],
    flows: &[Flow],
    was_killed: bool,
) -> Result<(), String> {
    let used: Vec<(u64, u64)> = bills.iter().map(Bill::used).collect();
    check_limits(plan, "used", &used)?;
    for (user, (bill, received)) in bills.iter().zip(received).enumerate() {
        if bill.live > 0 {
            return Err(format!("user {user} has open flows"));
        }
        let is_right = match was_killed {
            false => bill.billed == *received && bill.uncertain == (0, 0),
            true => received.0 <= bill.used().0 && received.1 <= bill.used().1,
        };
        if !is_right {
            return Err(format!("the bill of user {user} is not what was received"));
        }
        if !quotas_of(plan, user, &used).any(|(quota, of)| quota.counted(of) == quota.limit()) {
            return Err(format!("no quota of user {user} is spent to the last byte"));
        }
    }
    let strange = |flow: &&Flow| match flow.response() {
        Response::None => !was_killed,
        Response::Other => true,
        Response::Open(_) | Response::Denied => false,
    };
    match flows.iter().find(strange) {
        Some(flow) => {
            let text = String::from_utf8_lossy(&flow.client.first).into_owned();
            Err(format!("{:?} had this response: {text:?}", flow.plan))
        }
        None => Ok(()),
    }
}

/// The day of UTC.
fn day() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("the clock is after 1970");
    now.as_secs() / 86_400
}

impl Totals {
    fn add(&mut self, bills: &[Bill], flows: &[Flow], kills: u64) {
        self.killed_rounds += u64::from(kills > 0);
        self.kills += kills;
        self.flows += flows.len() as u64;
        self.denied += flows.iter().filter(|flow| flow.response() == Response::Denied).count() as u64;
        for bill in bills {
            self.bytes += bill.billed.0 + bill.billed.1;
            self.uncertain += bill.uncertain.0 + bill.uncertain.1;
        }
    }

    /// Checks that the run had what it is for.
    pub(crate) fn check(&self, is_long: bool) {
        assert!(!is_long || self.spliced > 0, "no flow was spliced");
        assert!(!is_long || self.kills > 0, "no gateway was killed under load");
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { rounds, killed_rounds, kills, undecided, flows, denied, bytes, uncertain, spliced } =
            self;
        write!(
            out,
            "quota race: {rounds} rounds ({killed_rounds} with {kills} kills, {undecided} undecided), \
             {flows} flows, {denied} denied, {spliced} spliced, {bytes} bytes billed, {uncertain} uncertain: \
             no byte beyond a quota, none short of it"
        )
    }
}
