//! One simulation: its programs run in a chosen order, and time passes when none can go on.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ledger::record::CloseReason;
use ledger::simulation::Random;
use sys::simulation::{Entered, KillMoment, Simulation};

use super::bill::{self, Facts};
use super::client::Client;
use super::destination::{Destination, DestinationPlan};
use super::origin::Origin;
use super::plan::{Act, Change, GATEWAY, Plan, client_address, session_address};
use super::process::{Process, load};
use super::session::{Session, SessionPlan};
use crate::observe::log::LoggedFlow;

/// The time that a pass of the gateway and an act of each peer take together.
const STEP: Duration = Duration::from_micros(1);

/// Passes of a simulation: more of them are a loop.
const STEPS_MAX: u32 = 2_000_000;

/// How long a simulation lasts: far more than the longest deadlines after the last act of a peer.
const TIME_MAX: Duration = Duration::from_secs(3_600);

/// What happened in simulations.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Events {
    pub(super) flows: u64,
    /// Flows by the reason of their end.
    pub(super) ended: [u64; CloseReason::ALL.len()],
    pub(super) denied: u64,
    pub(super) kills: u64,
    /// Flows with an uncertain call.
    pub(super) uncertain: u64,
    pub(super) reloads: u64,
    pub(super) bytes: u64,
}

/// A simulation that runs.
pub(super) struct World {
    random: Random,
    plan: Plan,
    simulation: Entered,
    /// `None` once it has ended.
    process: Option<Process>,
    clients: Vec<Client>,
    destinations: Vec<Destination>,
    sessions: Vec<Session>,
    origins: Vec<Origin>,
    /// The live table's words at the kill.
    killed_with: Rc<RefCell<Option<Vec<u64>>>>,
    /// The operator's acts so far.
    done: Vec<Act>,
    logged: Vec<LoggedFlow>,
    is_ending: bool,
}

impl World {
    /// The simulation of a seed.
    pub(super) fn from_seed(seed: u64) -> World {
        let mut random = Random::from_seed(seed);
        let plan = Plan::from_random(&mut random);
        World::new(plan, random)
    }

    /// The simulation of a plan.
    pub(super) fn new(plan: Plan, mut random: Random) -> World {
        let mut choices = Random::from_seed(random.next());
        let simulation = Simulation::enter(GATEWAY, move |bound| choices.below(bound));
        simulation.set_latency_max(plan.latency_max);
        let process = Process::start(load(&plan.settings.text(Change::Nothing)));
        simulation.set_fault_rate(plan.fault_rate);
        let killed_with = Rc::new(RefCell::new(None));
        if let Some((call, has_effect)) = plan.kill {
            let (table, words) = (process.table(), Rc::clone(&killed_with));
            let moment = if has_effect { KillMoment::AfterCall } else { KillMoment::BeforeCall };
            simulation.kill_at(call, moment, move || *words.borrow_mut() = Some(table.words()));
        }
        for (address, route) in &plan.routes {
            simulation.set_route(*address, *route);
        }
        let listen =
            |plan: &DestinationPlan| simulation.as_peer(plan.address.ip(), || Destination::listen(*plan));
        let destinations = plan.destinations.iter().map(listen).collect();
        let listen = |(_, plan): &(Duration, SessionPlan)| {
            let listen = || Origin::listen(plan.target, plan.requests.clone(), plan.pace);
            simulation.as_peer(plan.target.ip(), listen)
        };
        let origins = plan.sessions.iter().map(listen).collect();
        World {
            random,
            plan,
            simulation,
            process: Some(process),
            clients: Vec::new(),
            destinations,
            sessions: Vec::new(),
            origins,
            killed_with,
            done: Vec::new(),
            logged: Vec::new(),
            is_ending: false,
        }
    }

    /// Runs until the gateway has ended, and checks the bill.
    ///
    /// # Errors
    /// What the gateway or its bill violates.
    pub(super) fn run(self) -> Result<Events, String> {
        let plan = format!("{:#?}", self.plan);
        self.run_to_end().map_err(|fault| format!("{fault}\n{plan}"))
    }

    fn run_to_end(mut self) -> Result<Events, String> {
        let mut steps = 0;
        // A kill is an error of the pass.
        while self.process().pass().unwrap_or(false) && !self.simulation.is_killed() {
            let is_active = self.run_operator()
                | self.run_tunnels()?
                | self.run_sessions()?
                | self.simulation.has_events();
            if self.random.chance(5) {
                self.process().run_ledger()?;
            }
            let logged = self.process().logged();
            self.logged.extend(logged);
            self.pass_time(is_active)?;
            steps += 1;
            if steps > STEPS_MAX {
                return Err(format!("the gateway loops at {:?}", self.simulation.elapsed()));
            }
        }
        self.end()
    }

    /// Moves the clock on: a little if a program can go on, else to the next point at which one can.
    fn pass_time(&mut self, is_active: bool) -> Result<(), String> {
        let now = self.simulation.elapsed();
        let wakes = self.simulation.sleeps_until();
        if is_active || wakes.is_some_and(|wakes| wakes <= now) {
            self.simulation.advance(now + STEP);
            return Ok(());
        }
        let acts = self.next_act(now);
        let Some(next) = acts.into_iter().chain(self.simulation.next_event()).chain(wakes).min() else {
            return self.begin_end("sleeps for ever");
        };
        if next > TIME_MAX {
            return Err(self.fault("is still busy after an hour"));
        }
        if acts.is_none() && !self.is_ending && self.are_peers_over() {
            // Only the gateway's own deadlines are left, and connections that end by themselves.
            return self.begin_end("has nothing to do");
        }
        self.simulation.advance(next.max(now + STEP));
        Ok(())
    }

    /// Has the gateway end, once; the second time it should have ended by itself.
    fn begin_end(&mut self, state: &str) -> Result<(), String> {
        if std::mem::replace(&mut self.is_ending, true) {
            return Err(self.fault(state));
        }
        self.process().drain();
        Ok(())
    }

    /// The message about a gateway that does not end.
    fn fault(&mut self, state: &str) -> String {
        let clients: String = self.clients.iter().map(|client| format!("\n{client}")).collect();
        let destinations = self.destinations.iter().flat_map(|destination| &destination.peers);
        let peers: String = destinations.map(|peer| format!("\n{}", peer.state())).collect();
        let streams = self.simulation.open_streams().join("\n");
        let (sources, now) = (self.process().sources(), self.simulation.elapsed());
        format!("the gateway {state}, with {sources} sources at {now:?}{clients}{peers}\n{streams}")
    }

    /// When the operator or a peer acts next.
    fn next_act(&self, now: Duration) -> Option<Duration> {
        let operator =
            self.plan.acts.get(self.done.len()).filter(|_| self.process.is_some()).map(|(at, _)| *at);
        let begins = self.plan.clients.get(self.clients.len()).map(|(at, _)| *at);
        let clients = self.clients.iter().filter_map(|client| client.peer.next_act(now));
        let peers = self.destinations.iter().flat_map(|destination| &destination.peers);
        let tunnels = clients.chain(peers.filter_map(|peer| peer.next_act(now)));
        let begins = begins.into_iter().chain(self.plan.sessions.get(self.sessions.len()).map(|(at, _)| *at));
        let sessions = self.sessions.iter().filter_map(|session| session.next_act(now));
        let origins = self.origins.iter().filter_map(|origin| origin.next_act(now));
        tunnels.chain(sessions).chain(origins).chain(operator).chain(begins).min()
    }

    fn run_operator(&mut self) -> bool {
        let now = self.simulation.elapsed();
        let due = self.plan.acts.get(self.done.len()).filter(|(at, _)| *at <= now).copied();
        let Some((_, act)) = due else { return false };
        let text = |change| self.plan.settings.text(change);
        match act {
            Act::Reload(change) => {
                let config = load(&text(change));
                self.process().reload(config);
            }
            Act::Drain => self.process().drain(),
            Act::Stop => self.process().stop(),
        }
        self.done.push(act);
        true
    }

    /// Has each side of each tunnel act once. Returns whether one did anything.
    fn run_tunnels(&mut self) -> Result<bool, String> {
        let World { simulation, random, plan, clients, destinations, .. } = self;
        let now = simulation.elapsed();
        let mut is_active = false;
        if let Some((_, client)) = plan.clients.get(clients.len()).filter(|(at, _)| *at <= now) {
            let connect = || Client::connect(*client);
            clients.push(simulation.as_peer(client_address(clients.len()), connect));
            is_active = true;
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let act = || {
                let did = client.peer.act(now, random)?;
                client.read_reply().map(|()| did)
            };
            is_active |= simulation.as_peer(client_address(number), act)?;
        }
        for destination in destinations {
            let address = destination.plan.address.ip();
            let act = || {
                let mut did = destination.accept();
                for peer in &mut destination.peers {
                    did |= peer.act(now, random)?;
                }
                Ok::<bool, String>(did)
            };
            is_active |= simulation.as_peer(address, act)?;
        }
        Ok(is_active)
    }

    /// Has each session and each origin act once. Returns whether one did anything.
    fn run_sessions(&mut self) -> Result<bool, String> {
        let World { simulation, random, plan, sessions, origins, .. } = self;
        let now = simulation.elapsed();
        let mut is_active = false;
        if let Some((_, session)) = plan.sessions.get(sessions.len()).filter(|(at, _)| *at <= now) {
            let connect = || Session::connect(session.clone());
            sessions.push(simulation.as_peer(session_address(sessions.len()), connect));
            is_active = true;
        }
        for (number, session) in sessions.iter_mut().enumerate() {
            is_active |= simulation.as_peer(session_address(number), || session.act(now, random))?;
        }
        for origin in origins {
            is_active |= simulation.as_peer(origin.address.ip(), || origin.act(now, random))?;
        }
        Ok(is_active)
    }

    /// Whether every peer has done all that it will do.
    fn are_peers_over(&self) -> bool {
        self.clients.len() == self.plan.clients.len()
            && self.sessions.len() == self.plan.sessions.len()
            && self.clients.iter().all(|client| client.peer.is_over())
            && self.sessions.iter().all(Session::is_over)
    }

    fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("it has not ended")
    }

    fn end(mut self) -> Result<Events, String> {
        let mut process = self.process.take().expect("it ends once");
        let killed_with = self.killed_with.borrow_mut().take();
        let was_killed = killed_with.is_some();
        if !was_killed && process.sources() > 0 {
            return Err(format!("{} sources are left", process.sources()));
        }
        self.logged.extend(process.logged());
        let remains = process.end(killed_with)?;
        self.simulation.end_process();
        if self.simulation.open_descriptors() > 0 {
            return Err(format!("{} descriptors are left", self.simulation.open_descriptors()));
        }
        if !was_killed && remains.permits > 0 {
            return Err(format!("{} permits of users are left", remains.permits));
        }
        self.settle_peers()?;
        let facts = Facts {
            plan: &self.plan,
            was_killed,
            done: &self.done,
            clients: &self.clients,
            destinations: &self.destinations,
            sessions: &self.sessions,
            origins: &self.origins,
            sent: &self.simulation.sent_streams(),
            logged: &self.logged,
        };
        bill::check(&facts, &remains.bill)
    }
}

impl World {
    /// Delivers what the gateway's kernel still has for the peers.
    fn settle_peers(&mut self) -> Result<(), String> {
        loop {
            let is_active = self.run_tunnels()? | self.run_sessions()?;
            let now = self.simulation.elapsed();
            let event = self.simulation.next_event();
            let next =
                if is_active { Some(now + STEP) } else { event.into_iter().chain(self.next_act(now)).min() };
            match next {
                Some(next) => self.simulation.advance(next.max(now + STEP)),
                None => return Ok(()),
            }
        }
    }
}

impl Events {
    /// Adds those of another simulation.
    pub(super) fn add(&mut self, other: &Events) {
        self.flows += other.flows;
        self.ended.iter_mut().zip(other.ended).for_each(|(sum, count)| *sum += count);
        self.denied += other.denied;
        self.kills += other.kills;
        self.uncertain += other.uncertain;
        self.reloads += other.reloads;
        self.bytes += other.bytes;
    }

    /// Asserts that simulations reached each kind of event: what never happens is not tested.
    pub(super) fn assert_each_happened(&self) {
        use CloseReason::{
            ClientClosed, ClientReset, Completed, Drained, HalfClosedTimeout, IdleTimeout, Killed,
            LifetimeTimeout, PolicyChanged, UpstreamClosed, UpstreamReset,
        };
        let reasons = [
            Completed,
            ClientClosed,
            UpstreamClosed,
            ClientReset,
            UpstreamReset,
            IdleTimeout,
            HalfClosedTimeout,
            LifetimeTimeout,
            PolicyChanged,
            Drained,
            Killed,
        ];
        for reason in reasons {
            assert!(self.ended[reason as usize - 1] > 0, "no flow ended as {reason:?}: {self:?}");
        }
        let counts = [self.denied, self.kills, self.uncertain, self.reloads];
        assert!(counts.iter().all(|count| *count > 0), "{self:?}");
    }
}
