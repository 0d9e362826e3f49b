//! What is on its way between simulated endpoints, and its effect when it arrives.

use std::cmp::Reverse;
use std::net::SocketAddr;

use rustix::io::Errno;

use super::endpoint::{Endpoint, Fin, Phase};
use super::{Object, Route, State};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;

/// When a SYN that was dropped is sent again: Linux' first timeout (RFC 6298).
const SYN_RETRY: u64 = SECOND;

/// SYNs of one attempt; with Linux' default of six retries an attempt lasts for two minutes.
const SYNS_MAX: u32 = 7;

/// An event of the network. Of two at the same time the one that was scheduled first comes first.
pub(super) struct ScheduledEvent {
    pub(super) at: u64,
    sequence: u64,
    pub(super) event: NetworkEvent,
}

/// What happens. Numbers are those of streams and listeners.
#[derive(Clone, Copy, Debug)]
pub(super) enum NetworkEvent {
    /// The client's SYN number `number` of this attempt.
    Syn { client: usize, to: SocketAddr, number: u32 },
    /// The SYN-ACK of `server` at `client`.
    SynAck { client: usize, server: usize, listener: usize },
    /// The last ACK of the handshake.
    LastAck { server: usize, listener: usize },
    /// The failure of a connection attempt.
    Refusal { client: usize, error: Errno },
    /// Bytes of a stream's send queue, then its FIN.
    Segment { from: usize },
    /// A reset.
    Reset { to: usize },
    /// The check of a closed stream's `TCP_USER_TIMEOUT`.
    UserTimeout { stream: usize },
}

impl State {
    /// Schedules what happens after `delay`.
    pub(super) fn schedule(&mut self, delay: u64, event: NetworkEvent) {
        let at = self.now.saturating_add(delay);
        self.scheduled += 1;
        self.events.push(ScheduledEvent { at, sequence: self.scheduled, event });
    }

    /// The time that a packet takes.
    pub(super) fn latency(&mut self) -> u64 {
        let max = self.latency_max;
        1 + self.choose(max.max(1))
    }

    /// Sends the next part of a stream's queue, or its FIN, unless a part is on its way.
    pub(super) fn send_segment(&mut self, from: usize) {
        let stream = &mut self.streams[from];
        let has_work = !stream.queue.is_empty() || stream.fin == Fin::Queued;
        if has_work && !stream.is_sending && stream.phase == Phase::Established {
            stream.is_sending = true;
            let delay = self.latency();
            self.schedule(delay, NetworkEvent::Segment { from });
        }
    }

    /// Sends a reset to the other end of `from`.
    pub(super) fn send_reset(&mut self, from: usize) {
        let to = self.streams[from].other;
        self.streams[from].queue.clear();
        if let Some(to) = to {
            let delay = self.latency();
            self.schedule(delay, NetworkEvent::Reset { to });
        }
    }

    /// Carries out what has arrived.
    pub(super) fn deliver(&mut self, event: NetworkEvent) {
        match event {
            NetworkEvent::Syn { client, to, number } => self.deliver_syn(client, to, number),
            NetworkEvent::SynAck { client, server, listener } => {
                self.deliver_syn_ack(client, server, listener)
            }
            NetworkEvent::LastAck { server, listener } => self.deliver_last_ack(server, listener),
            NetworkEvent::Refusal { client, error } => self.refuse(client, error),
            NetworkEvent::Segment { from } => self.deliver_segment(from),
            NetworkEvent::Reset { to } => self.deliver_reset(to),
            NetworkEvent::UserTimeout { stream } => self.check_user_timeout(stream),
        }
    }

    fn deliver_syn(&mut self, client: usize, to: SocketAddr, number: u32) {
        if self.streams[client].is_closed || self.streams[client].phase != Phase::Connecting {
            return;
        }
        let delay = self.latency();
        let open = self.listeners.iter().position(|it| it.is_open && it.address == to);
        match (open, self.routes.get(&to)) {
            (Some(listener), _) if self.listeners[listener].accepts_syn() => {
                let server = self.new_server(client, listener);
                self.listeners[listener].handshakes += 1;
                self.schedule(delay, NetworkEvent::SynAck { client, server, listener });
            }
            (Some(_), _) | (None, Some(Route::Silent)) => self.retry_syn(client, to, number),
            (None, Some(Route::Unreachable)) => {
                self.schedule(delay, NetworkEvent::Refusal { client, error: Errno::HOSTUNREACH });
            }
            (None, Some(Route::Refused) | None) => {
                self.schedule(delay, NetworkEvent::Refusal { client, error: Errno::CONNREFUSED });
            }
        }
    }

    fn retry_syn(&mut self, client: usize, to: SocketAddr, number: u32) {
        let delay = SYN_RETRY << number;
        if number + 1 < SYNS_MAX {
            self.schedule(delay, NetworkEvent::Syn { client, to, number: number + 1 });
        } else {
            self.schedule(delay, NetworkEvent::Refusal { client, error: Errno::TIMEDOUT });
        }
    }

    fn new_server(&mut self, client: usize, listener: usize) -> usize {
        let Listening { address, is_of_process } = self.listening(listener);
        let sizes = self.queue_sizes();
        let mut server = Endpoint::new(is_of_process, address, sizes, self.now);
        (server.was_accepted, server.phase) = (true, Phase::Connecting);
        (server.peer, server.other) = (Some(self.streams[client].local), Some(client));
        self.streams.push(server);
        self.streams.len() - 1
    }

    fn deliver_syn_ack(&mut self, client: usize, server: usize, listener: usize) {
        let delay = self.latency();
        let stream = &mut self.streams[client];
        if stream.is_closed || stream.phase != Phase::Connecting {
            self.listeners[listener].handshakes -= 1;
            self.streams[server].fail(Errno::CONNRESET);
            return;
        }
        (stream.phase, stream.other, stream.acknowledged_at) = (Phase::Established, Some(server), self.now);
        self.wake(Object::Stream(client));
        self.schedule(delay, NetworkEvent::LastAck { server, listener });
    }

    fn deliver_last_ack(&mut self, server: usize, listener: usize) {
        self.listeners[listener].handshakes -= 1;
        if self.streams[server].phase != Phase::Connecting {
            return;
        }
        self.streams[server].phase = Phase::Established;
        if self.listeners[listener].is_open {
            self.listeners[listener].accept_queue.push_back(server);
            self.wake(Object::Listener(listener));
        } else {
            self.streams[server].is_closed = true;
            self.send_reset(server);
        }
        // The client's first bytes may have waited for this.
        if let Some(client) = self.streams[server].other {
            self.send_segment(client);
        }
    }

    fn refuse(&mut self, client: usize, error: Errno) {
        let stream = &mut self.streams[client];
        if stream.phase == Phase::Connecting && !stream.is_closed {
            stream.fail(error);
            self.wake(Object::Stream(client));
        }
    }

    fn deliver_segment(&mut self, from: usize) {
        self.streams[from].is_sending = false;
        let Some(to) = self.streams[from].other else { return };
        if self.streams[from].phase != Phase::Established {
            return;
        }
        let receiver = &self.streams[to];
        if receiver.phase == Phase::Connecting {
            // The last ACK, which is on its way, sends them again.
            return;
        }
        let bytes = self.streams[from].queue.len();
        if receiver.phase == Phase::Failed || (receiver.is_closed && bytes > 0) {
            // No socket is there to receive them.
            self.fail_and_wake(from, Errno::CONNRESET);
            return;
        }
        let window = receiver.received_max.saturating_sub(receiver.received.len());
        if window > 0 && bytes > 0 {
            self.move_bytes(from, to, window.min(bytes));
        }
        if self.streams[from].queue.is_empty() && self.streams[from].fin == Fin::Queued {
            self.deliver_fin(from, to);
        }
        // With a closed window the receiver's next read sends more.
        if window > 0 {
            self.send_segment(from);
        }
    }

    fn move_bytes(&mut self, from: usize, to: usize, most: usize) {
        let count = if self.choose(2) == 0 { most } else { 1 + self.choose(most as u64) as usize };
        let (now, sender) = (self.now, &mut self.streams[from]);
        let moved: Vec<u8> = sender.queue.drain(..count).collect();
        sender.acknowledged_at = now;
        let has_space = sender.lacks_space && sender.has_space();
        sender.lacks_space &= !has_space;
        self.streams[to].received.extend(moved);
        self.wake(Object::Stream(to));
        if has_space {
            self.wake(Object::Stream(from));
        }
    }

    fn deliver_fin(&mut self, from: usize, to: usize) {
        let now = self.now;
        let sender = &mut self.streams[from];
        (sender.fin, sender.acknowledged_at) = (Fin::Acknowledged, now);
        self.streams[to].fin_received = true;
        self.wake(Object::Stream(to));
        // It reports the acknowledgement where both directions have ended.
        self.wake(Object::Stream(from));
    }

    fn deliver_reset(&mut self, to: usize) {
        let stream = &self.streams[to];
        let error = match stream.phase {
            Phase::Failed => return,
            Phase::Connecting if !stream.was_accepted => Errno::CONNREFUSED,
            Phase::New | Phase::Connecting => Errno::CONNRESET,
            // As `tcp_reset` has it in the state CLOSE_WAIT.
            Phase::Established if stream.fin_received && stream.fin == Fin::No => Errno::PIPE,
            Phase::Established => Errno::CONNRESET,
        };
        self.fail_and_wake(to, error);
    }

    fn fail_and_wake(&mut self, stream: usize, error: Errno) {
        self.streams[stream].fail(error);
        self.wake(Object::Stream(stream));
    }

    fn check_user_timeout(&mut self, stream: usize) {
        let it = &self.streams[stream];
        let is_waiting = it.phase == Phase::Established && (!it.queue.is_empty() || it.fin == Fin::Queued);
        if !is_waiting {
            return;
        }
        let ends_at = it.acknowledged_at.saturating_add(it.user_timeout);
        if ends_at <= self.now {
            self.send_reset(stream);
            self.fail_and_wake(stream, Errno::TIMEDOUT);
        } else {
            self.schedule(ends_at - self.now, NetworkEvent::UserTimeout { stream });
        }
    }

    fn listening(&self, listener: usize) -> Listening {
        let it = &self.listeners[listener];
        Listening { address: it.address, is_of_process: it.is_of_process }
    }

    /// The sizes of a new stream's receive and send queues.
    pub(super) fn queue_sizes(&mut self) -> (usize, usize) {
        const SIZES: [usize; 5] = [300, 4 << 10, 32 << 10, 128 << 10, 512 << 10];
        let mut size = || SIZES[self.choose(SIZES.len() as u64) as usize];
        (size(), size())
    }
}

/// The part of a listener that its connections take over.
struct Listening {
    address: SocketAddr,
    is_of_process: bool,
}

impl Ord for ScheduledEvent {
    fn cmp(&self, other: &ScheduledEvent) -> std::cmp::Ordering {
        // The heap's greatest is the earliest.
        Reverse((self.at, self.sequence)).cmp(&Reverse((other.at, other.sequence)))
    }
}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &ScheduledEvent) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Eq for ScheduledEvent {}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &ScheduledEvent) -> bool {
        self.cmp(other).is_eq()
    }
}
