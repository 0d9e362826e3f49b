//! Kinds of traffic, and their shares: what each side of a flow sends, how fast, and how it ends.
//!
//! Guarantees: one table describes both sides of a flow.

use std::ops::Range;
use std::time::Duration;

use crate::rng::Rng;

/// The behavior of one side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    /// Payload to send: in all, and by one call.
    pub(crate) bytes: u64,
    pub(crate) write_bytes: usize,
    /// Between two calls.
    pub(crate) write_pause: Duration,
    /// Requested by one call.
    pub(crate) read_bytes: usize,
    pub(crate) read_pause: Duration,
    pub(crate) finish: Finish,
    /// Whether it sends payload right behind the request, before the response has arrived.
    pub(crate) is_eager: bool,
}

/// What a side does when all is sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Finish {
    /// It half-closes the connection and reads on.
    HalfClose,
    /// Nothing: the flow idles.
    Stay,
    /// It resets the connection.
    Reset,
}

/// What a flow carries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    pub(crate) name: &'static str,
    /// Whether it usually lasts as long as its gateway.
    pub(crate) lasts: bool,
    pub(crate) client: Side,
    pub(crate) origin: Side,
}

/// A row of the table: ranges to draw from.
struct Kind {
    name: &'static str,
    /// The percentage of opened flows.
    share: usize,
    up: Range<u64>,
    down: Range<u64>,
    write_bytes: Range<u64>,
    write_pause_us: Range<u64>,
    /// The side that reads slowly.
    slow: Slow,
    finish: &'static [Finish],
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Slow {
    Neither,
    Client,
    Origin,
}

/// Bytes that a fast reader requests.
const READ_BYTES: usize = 256 * 1024;
/// Bytes that a slow reader requests, and its pause afterwards.
const SLOW_READ_BYTES: usize = 8_000;
const SLOW_READ_PAUSE: Duration = Duration::from_millis(3);

const KINDS: [Kind; 7] = [
    Kind {
        name: "short",
        share: 31,
        up: 1..4_000,
        down: 1..20_000,
        write_bytes: 20_000..20_001,
        write_pause_us: 0..1,
        slow: Slow::Neither,
        finish: &[Finish::HalfClose, Finish::HalfClose, Finish::HalfClose, Finish::Reset],
    },
    Kind {
        name: "chat",
        share: 32,
        up: 100_000..400_000,
        down: 100_000..400_000,
        write_bytes: 1..1_500,
        write_pause_us: 500..20_000,
        slow: Slow::Neither,
        finish: &[Finish::HalfClose],
    },
    Kind {
        name: "upload",
        share: 4,
        up: 200_000..30_000_000,
        down: 1..1_000,
        write_bytes: 16_000..262_144,
        write_pause_us: 0..1,
        slow: Slow::Neither,
        finish: &[Finish::HalfClose, Finish::HalfClose, Finish::Stay, Finish::Reset],
    },
    Kind {
        name: "download",
        share: 4,
        up: 1..1_000,
        down: 200_000..30_000_000,
        write_bytes: 16_000..262_144,
        write_pause_us: 0..1,
        slow: Slow::Neither,
        finish: &[Finish::HalfClose, Finish::HalfClose, Finish::Stay],
    },
    Kind {
        name: "slow client",
        share: 7,
        up: 1..1_000,
        down: 1_000_000..20_000_000,
        write_bytes: 16_000..65_536,
        write_pause_us: 0..1,
        slow: Slow::Client,
        finish: &[Finish::HalfClose],
    },
    Kind {
        name: "slow origin",
        share: 7,
        up: 1_000_000..20_000_000,
        down: 1..1_000,
        write_bytes: 16_000..65_536,
        write_pause_us: 0..1,
        slow: Slow::Origin,
        finish: &[Finish::HalfClose],
    },
    Kind {
        name: "idle",
        share: 15,
        up: 0..100,
        down: 0..100,
        write_bytes: 1..100,
        write_pause_us: 0..1_000,
        slow: Slow::Neither,
        finish: &[Finish::Stay],
    },
];

/// The most that one call writes.
pub(crate) const WRITE_BYTES_MAX: usize = 262_144;

impl Traffic {
    /// The traffic of one flow.
    pub(crate) fn random(rng: &mut Rng, may_last: bool) -> Traffic {
        loop {
            let traffic = Traffic::random_any(rng);
            if may_last || !traffic.lasts {
                return traffic;
            }
        }
    }

    fn random_any(rng: &mut Rng) -> Traffic {
        let tickets: Vec<&Kind> =
            KINDS.iter().flat_map(|kind| std::iter::repeat_n(kind, kind.share)).collect();
        let kind = *rng.choose(&tickets);
        let finish = *rng.choose(kind.finish);
        let is_eager = rng.random_percent(30);
        let mut side = |bytes: &Range<u64>, is_slow: bool| Side {
            bytes: rng.random_range(bytes.clone()),
            write_bytes: usize::try_from(rng.random_range(kind.write_bytes.clone())).unwrap(),
            write_pause: Duration::from_micros(rng.random_range(kind.write_pause_us.clone())),
            read_bytes: if is_slow { SLOW_READ_BYTES } else { READ_BYTES },
            read_pause: if is_slow { SLOW_READ_PAUSE } else { Duration::ZERO },
            finish: Finish::HalfClose,
            is_eager,
        };
        let client = Side { finish, ..side(&kind.up, kind.slow == Slow::Client) };
        let origin = side(&kind.down, kind.slow == Slow::Origin);
        // Where the client stays, the origin does too: else an idle flow would be half closed.
        let stays = if finish == Finish::Stay { Finish::Stay } else { Finish::HalfClose };
        let lasts = stays == Finish::Stay || kind.slow != Slow::Neither || kind.name == "chat";
        Traffic { name: kind.name, lasts, client, origin: Side { finish: stays, ..origin } }
    }
}
