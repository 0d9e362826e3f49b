//! The plan of a round: the quotas of its users and their team, its flows, and when the gateway is killed.
//!
//! Guarantees: depends on the seed and the number of the round alone. Each user has a quota, or its team has.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::Duration;

use crate::rng::Rng;

/// Flows of a round at a time.
pub(crate) const FLOWS: usize = 64;

/// The least and the most that a quota has, in kB.
const LIMIT_KB: std::ops::Range<u64> = 100..60_001;

/// What a user sends and receives once the flows of the round are over, in each of a few tunnels: so the
/// last bytes of a quota need few waves.
const REST_BYTES: u64 = 4_000_000;

/// Users of one round at most, so that each of a configuration has an address.
const USERS_MAX: u64 = 2;

/// A round.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) number: u64,
    pub(crate) users: Vec<UserPlan>,
    /// Those of the team of all users; none without a team.
    pub(crate) team_quotas: Vec<Quota>,
    pub(crate) flows: Vec<FlowPlan>,
    /// When the gateway is killed, from the begin of each wave of flows on.
    pub(crate) kills: Vec<Duration>,
}

/// A user of a round.
#[derive(Debug)]
pub(crate) struct UserPlan {
    pub(crate) name: String,
    /// The address of its clients.
    pub(crate) address: Ipv4Addr,
    pub(crate) quotas: Vec<Quota>,
}

/// A quota.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    kilobytes: u64,
    per: &'static str,
    direction: Counted,
}

/// The bytes that a quota counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Counted {
    Both,
    Up,
    Down,
}

/// A flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowPlan {
    /// The position of its user.
    pub(crate) user: usize,
    pub(crate) kind: Kind,
    /// What the client sends.
    pub(crate) client: Side,
    /// What the destination sends.
    pub(crate) origin: Side,
}

/// The protocol of a flow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// A CONNECT tunnel; payload may follow the request before the response has arrived.
    Tunnel { is_eager: bool },
    /// A plain HTTP request with a body and a response with one.
    Request,
}

/// What one side does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    pub(crate) bytes: u64,
    /// By one call.
    pub(crate) write_bytes: usize,
    /// Between two calls.
    pub(crate) write_pause: Duration,
    /// How long it reads nothing at first.
    pub(crate) read_after: Duration,
    /// Whether its receive buffer is small, so that the gateway sees a slow receiver soon.
    pub(crate) has_small_buffer: bool,
}

impl Quota {
    fn random(rng: &mut Rng, direction: Counted) -> Quota {
        let kilobytes = rng.log_range(LIMIT_KB);
        Quota { kilobytes, per: rng.choose::<&str>(&["total", "day"]), direction }
    }

    /// One or two quotas that count different bytes.
    fn random_some(rng: &mut Rng) -> Vec<Quota> {
        let mut directions = [Counted::Both, Counted::Both, Counted::Up, Counted::Down];
        rng.shuffle(&mut directions);
        let count = if rng.random_percent(70) { 1 } else { 2 };
        let mut quotas: Vec<Quota> = Vec::new();
        for direction in &directions[..count] {
            if quotas.iter().all(|quota| quota.direction != *direction) {
                quotas.push(Quota::random(rng, *direction));
            }
        }
        quotas
    }

    /// Bytes in a period.
    pub(crate) fn limit(&self) -> u64 {
        self.kilobytes * 1_000
    }

    /// The bytes that it counts, of so many in each direction.
    pub(crate) fn counted(&self, (up, down): (u64, u64)) -> u64 {
        match self.direction {
            Counted::Both => up + down,
            Counted::Up => up,
            Counted::Down => down,
        }
    }

    fn setting(&self) -> String {
        let Quota { kilobytes, per, direction } = self;
        let direction = match direction {
            Counted::Both => "both",
            Counted::Up => "up",
            Counted::Down => "down",
        };
        format!("{{ limit = \"{kilobytes}kB\", per = \"{per}\", direction = \"{direction}\" }}")
    }
}

impl Plan {
    /// The round with this number.
    pub(crate) fn random(seed: u64, number: u64) -> Plan {
        let mut rng = Rng::new(seed, number);
        let has_team = rng.random_percent(40);
        let count = if rng.random_percent(40) { USERS_MAX } else { 1 };
        let user = |index: u64, rng: &mut Rng| UserPlan {
            name: format!("r{number}-{index}"),
            address: Ipv4Addr::from(0x7f80_0001 + (number * USERS_MAX + index) as u32),
            quotas: if has_team && rng.random_percent(30) { Vec::new() } else { Quota::random_some(rng) },
        };
        let users: Vec<UserPlan> = (0..count).map(|index| user(index, &mut rng)).collect();
        let team_quotas = if has_team { Quota::random_some(&mut rng) } else { Vec::new() };
        let most = users.iter().flat_map(|user| &user.quotas).chain(&team_quotas).map(Quota::limit).max();
        let most = most.expect("each user has a quota, or its team has");
        let requests = if rng.random_percent(40) { rng.random_range(1..13) as usize } else { 0 };
        let flow = |index| FlowPlan::random(index, index < requests, count, most, &mut rng);
        let mut flows: Vec<FlowPlan> = (0..FLOWS).map(flow).collect();
        rng.shuffle(&mut flows);
        // More than a third: some come behind the last flow.
        let kills = if number % 5 < 2 { rng.random_range(1..3) } else { 0 };
        let kills = (0..kills).map(|_| Duration::from_micros(rng.log_range(300..400_000))).collect();
        Plan { number, users, team_quotas, flows, kills }
    }

    /// The configuration of its users and their team.
    pub(crate) fn configuration(&self) -> String {
        let list = |quotas: &[Quota]| {
            let quotas: Vec<String> = quotas.iter().map(Quota::setting).collect();
            format!("quota = [{}]\n", quotas.join(", "))
        };
        let mut text = String::new();
        let (number, has_team) = (self.number, !self.team_quotas.is_empty());
        if has_team {
            let _ = write!(text, "[teams.t{number}]\n{}", list(&self.team_quotas));
        }
        for UserPlan { name, address, quotas } in &self.users {
            let team = if has_team { format!("team = \"t{number}\"\n") } else { String::new() };
            let _ = write!(
                text,
                "[[user]]\nname = \"{name}\"\n{team}from = [\"{address}/32\"]\nallow = [\"127.0.0.0/8\"]\n{}",
                list(quotas)
            );
        }
        text
    }

    /// Tunnels that take what is left of the quotas.
    pub(crate) fn rest(&self) -> Vec<FlowPlan> {
        let side = Side { bytes: REST_BYTES, ..Side::fast() };
        let flow =
            |user| FlowPlan { user, kind: Kind::Tunnel { is_eager: false }, client: side, origin: side };
        (0..self.users.len()).flat_map(|user| [flow(user); 3]).collect()
    }
}

impl FlowPlan {
    /// One of all flows of a round whose largest quota has `most` bytes; every second one is fast.
    fn random(index: usize, is_request: bool, users: u64, most: u64, rng: &mut Rng) -> FlowPlan {
        let is_fast = index.is_multiple_of(2);
        // A third goes up, a third down, and a third both ways.
        let way = rng.random_range(0..3);
        let mut side = |is_sender: bool| {
            let fast_bytes = rng.random_range(1..most / 6 + 200_000);
            let slow_bytes = rng.random_range(1..150_000);
            let base = if is_fast { Side::fast() } else { Side::random_slow(rng) };
            let bytes = match (is_sender, is_fast) {
                (true, true) => fast_bytes,
                (true, false) => slow_bytes,
                (false, _) => slow_bytes / 100,
            };
            let reads_late = rng.random_percent(20);
            let read_after = Duration::from_micros(if reads_late { rng.log_range(500..400_000) } else { 0 });
            Side { bytes, read_after, has_small_buffer: rng.random_percent(30), ..base }
        };
        let (client, origin) = (side(way != 1), side(way != 0));
        let kind = match is_request {
            true => Kind::Request,
            false => Kind::Tunnel { is_eager: rng.random_percent(40) },
        };
        FlowPlan { user: rng.random_range(0..users) as usize, kind, client, origin }
    }
}

impl Side {
    /// One that sends as fast as it can: the gateway splices its bytes.
    fn fast() -> Side {
        Side {
            bytes: 0,
            write_bytes: 256 * 1024,
            write_pause: Duration::ZERO,
            read_after: Duration::ZERO,
            has_small_buffer: false,
        }
    }

    fn random_slow(rng: &mut Rng) -> Side {
        let write_bytes = rng.random_range(1..3_000) as usize;
        let write_pause = Duration::from_micros(rng.random_range(0..2_000));
        Side { write_bytes, write_pause, ..Side::fast() }
    }
}
