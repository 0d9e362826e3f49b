//! What a seed decides before a simulation begins.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ledger::simulation::Random;
use sys::simulation::Route;

use super::client::{ClientPlan, Request};
use super::connection::Pace;
use super::destination::DestinationPlan;
use super::message::Framing;
use super::peer::{Ending, Script};
use super::session::{RequestPlan, SessionPlan};

/// The gateway's own address.
pub(super) const GATEWAY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

/// The listener of HTTP and SOCKS5.
pub(super) const MIXED: SocketAddr = SocketAddr::new(GATEWAY, 3128);

/// The listener that leads to the destination of the client number [`FORWARD_CLIENT`].
pub(super) const FORWARD: SocketAddr = SocketAddr::new(GATEWAY, 15_432);

/// The client that may use the fixed destination.
const FORWARD_CLIENT: u8 = 0;

/// The user of all clients.
pub(super) const USER: &str = "ci";

const CLIENTS_MAX: u64 = 4;

const SESSIONS_MAX: u64 = 2;

const REQUESTS_MAX: u64 = 4;

/// The longest pause of a peer that does not stall: several of them in a row are shorter than a deadline.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Calls that a side of a tunnel needs at most for a stream, about: more would only take time.
const CALLS_MAX: u64 = 200;

/// A simulation, before it begins.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) settings: Settings,
    pub(super) latency_max: Duration,
    /// Failing calls in a thousand.
    pub(super) fault_rate: u64,
    /// The call of the gateway in which it is killed, and whether the call has its effect.
    pub(super) kill: Option<(u64, bool)>,
    /// Clients and when they begin.
    pub(super) clients: Vec<(Duration, ClientPlan)>,
    pub(super) destinations: Vec<DestinationPlan>,
    /// Sessions and when they begin.
    pub(super) sessions: Vec<(Duration, SessionPlan)>,
    pub(super) routes: Vec<(SocketAddr, Route)>,
    /// What the operator does, and when.
    pub(super) acts: Vec<(Duration, Act)>,
}

/// What an operator does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Act {
    /// Reloads with the settings changed so.
    Reload(Change),
    /// Waits for open connections, and ends.
    Drain,
    /// Ends at once.
    Stop,
}

/// What differs in a reloaded configuration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Change {
    Nothing,
    /// The user is gone.
    UserRemoved,
    /// Its destinations are denied.
    AllDenied,
    /// The listener of HTTP and SOCKS5 is on another port.
    ListenerMoved,
    /// All deadlines are shorter.
    DeadlinesShortened,
}

/// The configuration, as far as a seed decides it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    strategy: &'static str,
    greeting_s: u64,
    connect_s: u64,
    idle_s: u64,
    half_closed_s: u64,
    lifetime_s: Option<u64>,
    connections_per_user: u64,
    handshakes: u64,
}

impl Plan {
    /// The plan of a seed.
    pub(super) fn from_random(random: &mut Random) -> Plan {
        let mut plan = Plan {
            settings: Settings::from_random(random),
            latency_max: Duration::from_micros([100, 1_000, 20_000, 300_000][random.below(4) as usize]),
            fault_rate: if random.chance(15) { 1 + random.below(30) } else { 0 },
            kill: random.chance(30).then(|| (1 + random.below(800), random.chance(50))),
            clients: Vec::new(),
            destinations: Vec::new(),
            sessions: Vec::new(),
            routes: Vec::new(),
            acts: Vec::new(),
        };
        for number in 0..1 + random.below(CLIENTS_MAX) as u8 {
            plan.add_client(number, random);
        }
        plan.clients.sort_by_key(|(begins, _)| *begins);
        for number in 0..random.below(1 + SESSIONS_MAX) as u8 {
            let begins = Duration::from_micros(random.below(200_000));
            plan.sessions.push((begins, session(number, random)));
        }
        plan.sessions.sort_by_key(|(begins, _)| *begins);
        if random.chance(40) {
            plan.add_acts(random);
        }
        plan
    }

    fn add_client(&mut self, number: u8, random: &mut Random) {
        let target = target(number);
        let request = match random.below(20) {
            0 => Request::Unfinished,
            1..4 if number == FORWARD_CLIENT => Request::Forward,
            1..11 => Request::Connect,
            _ => Request::Socks5,
        };
        let gateway = if request == Request::Forward { FORWARD } else { MIXED };
        let (mut up, mut down) = (script(random), script(random));
        let least = up.bytes.max(down.bytes) / CALLS_MAX;
        up.bytes_per_call_max = up.bytes_per_call_max.max(least);
        down.bytes_per_call_max = down.bytes_per_call_max.max(least);
        let client = ClientPlan {
            gateway,
            target,
            request,
            is_eager: random.chance(30),
            script: up,
            expects: down.key,
        };
        let begins = Duration::from_micros(random.below(200_000));
        self.clients.push((begins, client));
        if random.chance(90) {
            self.destinations.push(DestinationPlan { address: target, script: down, expects: up.key });
        } else {
            let route = [Route::Refused, Route::Silent, Route::Unreachable][random.below(3) as usize];
            self.routes.push((target, route));
        }
    }

    fn add_acts(&mut self, random: &mut Random) {
        let within = if random.chance(50) { 500_000 } else { 30_000_000 };
        for _ in 0..1 + random.below(3) {
            let act = match random.below(10) {
                0 | 1 => Act::Reload(Change::Nothing),
                2 | 3 => Act::Reload(Change::UserRemoved),
                4 => Act::Reload(Change::AllDenied),
                5 => Act::Reload(Change::ListenerMoved),
                6 => Act::Reload(Change::DeadlinesShortened),
                7 => Act::Drain,
                _ => Act::Stop,
            };
            self.acts.push((Duration::from_micros(random.below(within)), act));
        }
        self.acts.sort_by_key(|(at, _)| *at);
    }
}

impl Settings {
    fn from_random(random: &mut Random) -> Settings {
        Settings {
            strategy: ["reuse_port", "mutex", "handoff"][random.below(3) as usize],
            greeting_s: 5 + random.below(10),
            connect_s: 2 + random.below(10),
            idle_s: 10 + random.below(60),
            half_closed_s: 10 + random.below(30),
            lifetime_s: random.chance(20).then(|| 2 + random.below(60)),
            connections_per_user: if random.chance(20) { 1 } else { 100 },
            handshakes: if random.chance(10) { 1 } else { 100 },
        }
    }

    /// Whether a flow may reach the longest lifetime after `change`.
    pub(super) fn has_lifetime(&self, change: Option<Change>) -> bool {
        self.lifetime_s.is_some() || change == Some(Change::DeadlinesShortened)
    }

    /// The text of the configuration.
    pub(super) fn text(&self, change: Change) -> String {
        let Settings { strategy, greeting_s, connections_per_user, handshakes, .. } = self;
        let is_short = change == Change::DeadlinesShortened;
        let seconds = |usual: u64| if is_short { usual.min(10) } else { usual };
        let (connect_s, idle_s) = (seconds(self.connect_s), seconds(self.idle_s));
        let half_closed_s = seconds(self.half_closed_s);
        let lifetime = match self.lifetime_s {
            _ if is_short => "\"15s\"".to_owned(),
            Some(lifetime_s) => format!("\"{lifetime_s}s\""),
            None => "\"none\"".to_owned(),
        };
        let port = if change == Change::ListenerMoved { MIXED.port() + 1 } else { MIXED.port() };
        let user = match change {
            Change::UserRemoved => String::new(),
            Change::AllDenied => user("\n        deny = [\"93.184.216.0/24\"]"),
            Change::Nothing | Change::ListenerMoved | Change::DeadlinesShortened => user(""),
        };
        let forward = match change {
            Change::UserRemoved => String::new(),
            _ => format!(
                "[[listener]]\naddress = \"{FORWARD}\"\nkind = \"forward\"\nto = \"{}\"\nuser = \"{USER}\"\n",
                target(FORWARD_CLIENT)
            ),
        };
        format!(
            r#"
            [[listener]]
            address = "{GATEWAY}:{port}"
            {forward}
            [accept]
            strategy = "{strategy}"
            [limits]
            handshakes = {handshakes}
            connections_per_user = {connections_per_user}
            [timeouts]
            greeting = "{greeting_s}s"
            connect = "{connect_s}s"
            idle = "{idle_s}s"
            half_closed = "{half_closed_s}s"
            lifetime = {lifetime}
            {user}
            "#
        )
    }
}

fn user(more: &str) -> String {
    format!(
        r#"
        [[user]]
        name = "{USER}"
        from = ["10.1.0.0/16"]
        allow = ["93.184.216.0/24:443"]{more}
        "#
    )
}

/// The address of a client.
pub(super) fn client_address(number: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 1, 0, 1 + u8::try_from(number).expect("clients are few")))
}

/// The address of the client of a session.
pub(super) fn session_address(number: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 1, 1, 1 + u8::try_from(number).expect("sessions are few")))
}

fn session(number: u8, random: &mut Random) -> SessionPlan {
    let requests = (0..1 + random.below(REQUESTS_MAX)).map(|_| request(random)).collect();
    SessionPlan {
        gateway: MIXED,
        target: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(93, 184, 216, 101 + number)), 443),
        requests,
        is_pipelined: random.chance(30),
        pace: pace(random),
        resets_after: random.chance(15).then(|| 1 + random.below(30) as u32),
    }
}

fn request(random: &mut Random) -> RequestPlan {
    let bytes = |random: &mut Random| {
        let most = if random.chance(10) { 60_000 } else { 3_000 };
        random.below(most) as usize
    };
    let response_bytes = bytes(random);
    RequestPlan {
        method: ["GET", "GET", "POST", "POST", "HEAD"][random.below(5) as usize],
        key: random.next() >> 1,
        body_bytes: bytes(random),
        framing: [Framing::Length, Framing::Chunked][random.below(2) as usize],
        response_bytes,
        response_framing: [Framing::Length, Framing::Chunked, Framing::Close][random.below(3) as usize],
        cut_at: random.chance(10).then(|| random.below(response_bytes as u64 + 60) as usize),
        closes: random.chance(15),
    }
}

fn pace(random: &mut Random) -> Pace {
    let bytes_per_call_max = [20, 300, 5_000, 100_000][random.below(4) as usize];
    Pace { bytes_per_call_max, pause_max: pause_max(random) }
}

fn pause_max(random: &mut Random) -> Duration {
    if random.chance(30) { PAUSE_MAX } else { Duration::from_millis(random.below(20)) }
}

fn target(number: u8) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(93, 184, 216, 1 + number)), 443)
}

fn script(random: &mut Random) -> Script {
    let bytes = match random.below(40) {
        0 | 1 => 0,
        // Enough for a pipe: two reads that fill the buffer come first.
        2 => random.below(600_000),
        3..10 => random.below(40_000),
        _ => random.below(3_000),
    };
    let after = 1 + random.below(30) as u32;
    let ending = match random.below(20) {
        0 | 1 => Ending::Reset { after },
        2 => Ending::Close { after },
        3 => Ending::Stall { after },
        _ => Ending::InOrder,
    };
    let bytes_per_call_max = [1, 100, 5_000, 100_000][random.below(4) as usize];
    Script { key: random.next(), bytes, bytes_per_call_max, pause_max: pause_max(random), ending }
}
