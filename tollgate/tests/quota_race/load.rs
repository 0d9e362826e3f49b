//! The load: flows through the gateway, with both ends of each in this process, until all are over.
//!
//! Guarantees: one thread and non-blocking sockets. After a kill all that the kernel still delivers is
//! received.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::end::{CALL_BYTES_MAX, End};
use crate::flow::Flow;
use crate::gateway::Gateway;
use crate::plan::{FlowPlan, Plan};

/// Destinations are 127.1.0.0 and the addresses behind it.
const DESTINATIONS: u32 = 0x7f01_0000;

/// Connections opened in a pass, so that open ones are served in between.
const OPENS_PER_PASS: usize = 8;

/// How long the flows of a wave may take. Only a failure takes so long.
const WAVE_MAX: Duration = Duration::from_secs(120);

const POLL_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The flows of a round, and the listener of all destinations.
pub(crate) struct Load {
    listener: TcpListener,
    port: u16,
    /// The number of the first flow: no later round has a destination of an earlier one.
    first: u32,
    flows: Vec<Flow>,
    scratch: Vec<u8>,
    payload: Vec<u8>,
}

impl Load {
    pub(crate) fn new() -> Load {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (scratch, payload) = (vec![0; CALL_BYTES_MAX], vec![0x5a; CALL_BYTES_MAX]);
        Load { listener, port, first: 0, flows: Vec::new(), scratch, payload }
    }

    /// Forgets the flows of the round.
    pub(crate) fn forget(&mut self) {
        self.first += self.flows.len() as u32;
        self.flows.clear();
    }

    /// All flows of the round.
    pub(crate) fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// Runs the flows `wave` of `plan` until they are over, and kills the gateway after `kill_after`. Returns
    /// whether it was killed, and the flows of the wave.
    ///
    /// # Errors
    /// Flows do not end.
    pub(crate) fn run(
        &mut self,
        plan: &Plan,
        wave: &[FlowPlan],
        gateway: &mut Gateway,
        kill_after: Option<Duration>,
    ) -> Result<(bool, &[Flow]), String> {
        let (begin, before) = (Instant::now(), self.flows.len());
        let (mut unopened, mut is_killed) = (wave.iter(), false);
        loop {
            if !is_killed && kill_after.is_some_and(|after| begin.elapsed() >= after) {
                gateway.kill()?;
                (unopened, is_killed) = ([].iter(), true);
            }
            for flow in unopened.by_ref().take(OPENS_PER_PASS) {
                self.open(plan, *flow, gateway.listener)?;
            }
            self.pass();
            if unopened.len() == 0 && self.flows[before..].iter().all(Flow::is_over) {
                // A dead gateway may have connected without a byte.
                self.accept();
                if self.flows[before..].iter().all(Flow::is_over) {
                    return Ok((is_killed, &self.flows[before..]));
                }
            }
            if begin.elapsed() > WAVE_MAX {
                return Err(format!("flows do not end: {}", self.describe_open()));
            }
        }
    }

    fn open(&mut self, plan: &Plan, flow: FlowPlan, gateway: SocketAddr) -> Result<(), String> {
        let address = Ipv4Addr::from(DESTINATIONS + self.first + self.flows.len() as u32);
        let target = SocketAddr::from((address, self.port));
        let flow = Flow::open(flow, plan.users[flow.user].address, gateway, target);
        self.flows.push(flow.map_err(|error| format!("a client cannot connect to the gateway: {error}"))?);
        Ok(())
    }

    /// Waits a moment for ready sockets, and serves them.
    fn pass(&mut self) {
        let now = Instant::now();
        let mut sources = vec![PollFd::new(&self.listener, PollFlags::IN)];
        let mut owners = Vec::new();
        for (index, flow) in self.flows.iter().enumerate() {
            for (position, end) in flow.ends().enumerate() {
                let (reads, writes) = end.wants(now);
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, reads);
                flags.set(PollFlags::OUT, writes);
                if let (Some(stream), false) = (end.stream(), flags.is_empty()) {
                    sources.push(PollFd::from_borrowed_fd(stream.as_fd(), flags));
                    owners.push((index, position));
                }
            }
        }
        poll(&mut sources, Some(&POLL_TIMEOUT)).expect("poll(2) accepts all open sockets");
        let ready: Vec<PollFlags> = sources.iter().map(PollFd::revents).collect();
        drop(sources);
        for ((index, position), ready) in owners.into_iter().zip(&ready[1..]) {
            let flow = &mut self.flows[index];
            let end = flow.ends_mut().nth(position).expect("a polled end exists");
            serve(end, *ready, now, (&mut self.scratch, &self.payload));
            flow.proceed();
        }
        if !ready[0].is_empty() {
            self.accept();
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            let SocketAddr::V4(local) = stream.local_addr().unwrap() else {
                unreachable!("the listener is v4")
            };
            let index = u32::from(*local.ip()).checked_sub(DESTINATIONS + self.first);
            let index = index.expect("no flow of an earlier round connects") as usize;
            self.flows[index].attach_origin(stream);
        }
    }

    fn describe_open(&self) -> String {
        let open = self.flows.iter().enumerate().filter(|(_, flow)| !flow.is_over());
        let open = open.map(|(index, flow)| {
            let origin = flow.origin.as_ref().map(|origin| (origin.is_over(), origin.received));
            let client = (flow.client.is_over(), flow.client.received);
            format!("\n{index}: {:?} {:?} client {client:?} origin {origin:?}", flow.plan, flow.response())
        });
        open.collect()
    }
}

/// Reads and writes as `ready` permits.
fn serve(end: &mut End, ready: PollFlags, now: Instant, (scratch, payload): (&mut [u8], &[u8])) {
    let is_broken = ready.intersects(PollFlags::ERR | PollFlags::HUP);
    let (reads, writes) = end.wants(now);
    if reads && (is_broken || ready.contains(PollFlags::IN)) {
        end.read(scratch);
    }
    if writes && (is_broken || ready.contains(PollFlags::OUT)) {
        end.write(payload, now);
    }
}
