//! The load: many flows through one gateway, with both ends of each in this process, until the gateway is
//! dead.
//!
//! Guarantees: one thread, non-blocking sockets, no code of the engine. After the gateway's death all bytes
//! that its kernel still delivers are received.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::flow::{
    FLOWS_MAX, Flow, RECEIVE_BUFFER_BYTES, SMALL_SEGMENTS_PERCENT, number_of_destination, set_small_segments,
};
use crate::rng::Rng;
use crate::traffic::{Traffic, WRITE_BYTES_MAX};

/// Flows at a time.
const LIVE: std::ops::Range<u64> = 64..513;

/// Connections opened in a pass, so that open ones are served in between.
const OPENS_PER_PASS_MAX: usize = 8;

/// The share of flows that may stay open, so that there is capacity for short ones.
const LASTING_PERCENT_MAX: usize = 70;

/// How long the kernel may take to deliver what a dead gateway has sent.
const DELIVERY_MAX: Duration = Duration::from_secs(3);

const POLL_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The flows of one gateway, and the origin's listener.
pub(crate) struct Load {
    listener: TcpListener,
    port: u16,
    first: u32,
    /// Every flow of this load; a flow's index is its number less `first`.
    flows: Vec<Flow>,
    /// The indices of those that are not over.
    live: VecDeque<usize>,
    live_max: usize,
    scratch: Vec<u8>,
    payload: Vec<u8>,
}

impl Load {
    /// A load of some hundreds of flows at a time, numbered from `first` on.
    pub(crate) fn new(first: u32, rng: &mut Rng) -> Load {
        let live_max = usize::try_from(rng.log_range(LIVE)).expect("the range of live flows fits");
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_BYTES).unwrap();
        if rng.random_percent(SMALL_SEGMENTS_PERCENT) {
            set_small_segments(&socket).unwrap();
        }
        rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
        rustix::net::listen(&socket, 4096).unwrap();
        let listener = TcpListener::from(socket);
        let port = listener.local_addr().unwrap().port();
        Load {
            listener,
            port,
            first,
            flows: Vec::new(),
            live: VecDeque::new(),
            live_max,
            scratch: vec![0; WRITE_BYTES_MAX],
            payload: vec![0x5a; WRITE_BYTES_MAX],
        }
    }

    /// Runs flows through `gateway` until `is_dead`. After `settle_after` no flow is opened any more; once
    /// all open ones have their response, `settled` is called, once.
    pub(crate) fn run(
        &mut self,
        gateway: SocketAddr,
        rng: &mut Rng,
        is_dead: impl Fn() -> bool,
        settle_after: Option<Duration>,
        settled: impl FnOnce(),
    ) {
        let settle_at = settle_after.map(|after| Instant::now() + after);
        let mut settled = Some(settled);
        while !is_dead() {
            let opens = settle_at.is_none_or(|at| Instant::now() < at);
            if opens {
                self.open_some(gateway, rng);
            } else if self.live.iter().all(|&at| self.flows[at].client.is_answered()) {
                settled.take().into_iter().for_each(|settled| settled());
            }
            self.pass();
        }
        self.receive_remaining();
    }

    /// Returns all flows.
    pub(crate) fn into_flows(self) -> Vec<Flow> {
        self.flows
    }

    fn open_some(&mut self, gateway: SocketAddr, rng: &mut Rng) {
        let lasting = self.live.iter().filter(|&&index| self.flows[index].traffic.lasts).count();
        let mut may_last = (self.live_max * LASTING_PERCENT_MAX / 100).saturating_sub(lasting);
        for _ in 0..OPENS_PER_PASS_MAX.min(self.live_max.saturating_sub(self.live.len())) {
            let number = self.first + u32::try_from(self.flows.len()).unwrap();
            assert!(number < FLOWS_MAX, "the run has more flows than addresses");
            let traffic = Traffic::random(rng, may_last > 0);
            may_last -= usize::from(traffic.lasts);
            // The gateway died a moment ago.
            let Ok(flow) = Flow::open(number, gateway, self.port, traffic, rng) else { return };
            self.live.push_back(self.flows.len());
            self.flows.push(flow);
        }
    }

    /// Waits a moment for ready sockets, and serves them.
    fn pass(&mut self) {
        let now = Instant::now();
        let mut sources = vec![PollFd::new(&self.listener, PollFlags::IN)];
        let mut owners = Vec::new();
        for &index in &self.live {
            for (end_at, end) in self.flows[index].ends().enumerate() {
                let (reads, writes) = end.wants(now);
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, reads);
                flags.set(PollFlags::OUT, writes);
                if let (Some(stream), false) = (end.stream(), flags.is_empty()) {
                    sources.push(PollFd::from_borrowed_fd(stream.as_fd(), flags));
                    owners.push((index, end_at));
                }
            }
        }
        poll(&mut sources, Some(&POLL_TIMEOUT)).expect("poll(2) accepts all open sockets");
        let ready: Vec<PollFlags> = sources.iter().map(PollFd::revents).collect();
        drop(sources);
        for ((index, end_at), ready) in owners.into_iter().zip(&ready[1..]) {
            let end = self.flows[index].ends_mut().nth(end_at).expect("a polled end exists");
            let is_broken = ready.intersects(PollFlags::ERR | PollFlags::HUP);
            let (reads, writes) = end.wants(now);
            if reads && (is_broken || ready.contains(PollFlags::IN)) {
                end.read(&mut self.scratch, false);
            }
            if writes && (is_broken || ready.contains(PollFlags::OUT)) {
                end.write(&self.payload);
            }
        }
        if !ready[0].is_empty() {
            self.accept();
        }
        let flows = &self.flows;
        self.live.retain(|&index| !flows[index].is_over());
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            stream.set_nonblocking(true).unwrap();
            let local: IpAddr = stream.local_addr().unwrap().ip();
            let number = number_of_destination(local).expect("only flows of this load connect to the origin");
            let index = number.checked_sub(self.first).expect("no flow of an earlier load connects") as usize;
            self.flows[index].attach_origin(stream);
        }
    }

    /// Receives the remaining bytes in flight from a dead gateway.
    fn receive_remaining(&mut self) {
        let deadline = Instant::now() + DELIVERY_MAX;
        loop {
            self.accept();
            let mut is_done = true;
            for &index in &self.live {
                for end in self.flows[index].ends_mut() {
                    end.read(&mut self.scratch, true);
                    is_done &= !end.reads();
                }
            }
            if is_done || Instant::now() > deadline {
                return;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}
