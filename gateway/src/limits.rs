//! Bounds of the data plane, checked against each other at compile time.
//!
//! The bounds that an operator configures are in the settings.

use std::time::Duration;

use ledger::limits::INTERIM_PAUSE_MAX;

/// Bytes that a relay reads at a time. Below 16 KiB system calls dominate; above 64 KiB nothing is gained
/// (relay CPU per GB: 0.35 s at 16 KiB, 0.23 s at 64 KiB).
pub const SCRATCH_BYTES: usize = 64 * 1024;

/// Bytes that one relay moves in a direction before the next relay runs: about 0.1 ms of copying.
pub const PASS_BYTES_MAX: usize = 256 * 1024;

/// Bytes that sustained streams move in a pass, each beyond [`PASS_BYTES_MAX`] only while the thread has no
/// other work: about 0.4 ms of splicing.
pub const SUSTAINED_PASS_BYTES_MAX: usize = 960 * 1024;

/// Bytes requested of one call that sends. A kill leaves one call of each thread uncertain.
pub const SEND_BYTES_MAX: usize = 256 * 1024;

/// The size of a pipe: 64 slots of a page each.
pub const PIPE_BYTES: u32 = 256 * 1024;

/// Pipes of one thread, two descriptors each.
pub const PIPES_PER_THREAD_MAX: usize = 64;

/// The size of a grown pipe: as many slots as `fs.pipe-max-size` gives by default. A slot holds a page or
/// less of what a network card received: 1,448 bytes of each Ethernet frame.
pub const GROWN_PIPE_BYTES: u32 = 1024 * 1024;

/// Pipes of one thread that are grown. They take their bytes from those of other pipes.
pub const GROWN_PIPES_PER_THREAD_MAX: usize = 8;

/// Bytes of all pipes of one thread.
pub const PIPES_BYTES_PER_THREAD_MAX: u64 = PIPES_PER_THREAD_MAX as u64 * PIPE_BYTES as u64;

/// How long no stream may want a grown pipe until free ones shrink, one in each pass that follows. As long no
/// pipe grows after the kernel has refused it, or a stream has found no pipe.
pub const GROWN_PIPE_PAUSE: Duration = Duration::from_secs(1);

/// Empty buffers for slow sinks that a thread keeps.
pub const PENDING_CACHED_MAX: usize = 16;

/// How long a pipe may hold bytes of which the sink takes none. Then they move to a buffer, and another
/// stream can use the pipe.
pub const PIPE_STALL_MAX: Duration = Duration::from_secs(1);

/// Stalled pipes that are emptied in one pass: 50 us of copying each, or 200 us for a grown one.
pub const PIPES_EMPTIED_PER_PASS_MAX: usize = 4;

/// Bytes of one thread's buffers for slow receivers. Beyond it a thread reads at most
/// [`READ_BYTES_UNDER_PRESSURE`] at a time, and empties no pipe.
pub const PENDING_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Bytes that a stalled receiver may add in a direction, beyond [`PENDING_BYTES_MAX`].
pub const READ_BYTES_UNDER_PRESSURE: usize = 4 * 1024;

/// Handshakes of one thread. A connection beyond them has one of the oldest evicted.
pub const HANDSHAKES_PER_THREAD_MAX: usize = 4096;

/// Handshakes hold one in so many of the process's descriptors at most. Without this bound, silent clients
/// use up 1,024 descriptors before the first of 2,000 handshakes is evicted.
pub const DESCRIPTORS_PER_HANDSHAKE: u64 = 4;

/// Bytes of a client's read buffer: the longest message, and what may follow it.
pub const CLIENT_BUFFER_BYTES_MAX: usize = 16 * 1024;

/// Initial bytes of a client's read buffer. A browser's CONNECT head has 200 to 500 bytes.
pub const CLIENT_BUFFER_BYTES_FIRST: usize = 1024;

/// Free read buffers that a thread keeps.
pub const READ_BUFFERS_POOLED_MAX: usize = 64;

/// Free handshake entries that a thread keeps.
pub const HANDSHAKES_CACHED_MAX: usize = 64;

/// Handshakes that are evicted at a time for pending connections: as many as the packets that fq_codel drops.
pub const EVICTED_AT_ONCE_MAX: usize = 64;

/// The timeout of a handshake while all slots are taken. A request comes within a round trip or two of its
/// connection; a second covers one loss and retransmission (RFC 6298, section 2.1).
pub const HANDSHAKE_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// Requests in a row without proof of their user: the connection closes with the response to the last. A
/// client that sends credentials on demand needs one 407 (curl, browsers, Java, apt); one with outdated
/// credentials needs another.
pub const AUTH_FAILURES_MAX: u8 = 3;

/// Tunnels that one thread opens and plain HTTP requests that it serves, at the same time. More are pending.
pub const EXCHANGES_PER_THREAD_MAX: usize = 16 * 1024;

/// Identified clients of one thread that wait for a task.
pub const PENDING_MAX: usize = 4096;

/// Bytes of a buffer for a response's head and what follows it in the same read.
pub const RESPONSE_BUFFER_BYTES: usize = proto::limits::HEAD_BYTES_MAX;

/// Free write buffers that a thread keeps.
pub const WRITE_BUFFERS_POOLED_MAX: usize = 16;

/// Interim responses (1xx) before the final one. Destinations send one or two.
pub const INTERIMS_MAX: u8 = 16;

/// Bytes of a denied request's body that are discarded, so that the connection can serve the next request.
pub const DISCARDED_BODY_BYTES_MAX: u64 = 64 * 1024;

/// Addresses of one name that are kept and dialled. More are ignored.
pub const ADDRESSES_MAX: usize = 16;

/// Connection attempts of a thread's dials beyond the first of each, a descriptor each. A dial takes one only
/// if an address has not accepted within 250 ms; a thread has some hundred such dials in a bad hour.
pub const EXTRA_ATTEMPTS_PER_THREAD_MAX: usize = 256;

/// Open flows of one thread.
pub const FLOWS_PER_THREAD_MAX: usize = 1 << 20;

/// Flows that one thread ends in a second, at the most that was measured: 67 us of CPU each.
pub const CLOSES_PER_SECOND_MAX: usize = 16 * 1024;

/// How long the journal may stall before new flows are denied: the live table has slots for the closed flows
/// of so many seconds, beside the open ones.
pub const STALL_SECONDS_MAX: usize = 1;

/// How long a flow of plain HTTP stays open between two requests: as long as an open flow waits for its next
/// interim, so that no response is journaled later than that.
pub const RUN_IDLE_MAX: Duration = INTERIM_PAUSE_MAX;

/// A flow of plain HTTP ends with the first response after this. Its requests are counted in sums then.
pub const RUN_SPAN_MAX: Duration = Duration::from_secs(60);

/// Flows of one thread that may be open between two requests; the live table has slots for them beside those
/// of other flows. A run that finds no space ends with its request. The crate's tests reach a smaller number.
pub const IDLE_RUNS_PER_THREAD_MAX: usize = if cfg!(test) { 4 } else { 1024 };

/// Idle connections that are evicted when an accept or a dial finds descriptors or memory exhausted. Each has
/// one or two descriptors, and a listener retries 10 to 50 times a second.
pub const EVICTIONS_PER_ATTEMPT_MAX: usize = 16;

/// The longest idle connections among which one is chosen for eviction.
pub const EVICTION_CANDIDATES_MAX: usize = 64;

/// Bytes sent to a peer from which on the kernel is asked whether the peer has acknowledged them. Shorter
/// flows are spared the call.
pub const QUEUED_BYTES_MIN: u64 = 32 * 1024;

/// How long a closing connection's peer may acknowledge nothing.
pub const QUEUE_STALL_MAX: Duration = Duration::from_secs(60);

/// Identified clients of a thread that linger behind a last response, a descriptor each, for some seconds.
/// More are closed at once.
pub const LINGERING_PER_THREAD_MAX: usize = 128;

/// Bytes of a denied client that are discarded, so that it can read the response before an RST. Java and
/// others send the whole body of an upload before they read a 407.
pub const LINGER_BYTES_MAX: usize = 16 * 1024 * 1024;

const _: () = assert!(SCRATCH_BYTES >= CLIENT_BUFFER_BYTES_MAX);
const _: () = assert!(READ_BYTES_UNDER_PRESSURE <= SCRATCH_BYTES);
const _: () = assert!((PENDING_CACHED_MAX * SCRATCH_BYTES) as u64 <= PENDING_BYTES_MAX / 2);
const _: () = assert!(PASS_BYTES_MAX >= SCRATCH_BYTES);
const _: () = assert!(SUSTAINED_PASS_BYTES_MAX >= PASS_BYTES_MAX);
const _: () = assert!(SUSTAINED_PASS_BYTES_MAX <= GROWN_PIPE_BYTES as usize);
const _: () = assert!(SEND_BYTES_MAX >= SCRATCH_BYTES);
const _: () = assert!(SEND_BYTES_MAX < 1 << 20, "the length of an intent has 20 bits");
const _: () =
    assert!(GROWN_PIPES_PER_THREAD_MAX as u64 * GROWN_PIPE_BYTES as u64 <= PIPES_BYTES_PER_THREAD_MAX / 2);
const _: () = assert!(PIPES_BYTES_PER_THREAD_MAX <= PENDING_BYTES_MAX, "stalled pipes move to buffers");
const _: () = assert!(CLIENT_BUFFER_BYTES_MAX >= proto::limits::HEAD_BYTES_MAX);
const _: () = assert!(CLIENT_BUFFER_BYTES_MAX >= proto::limits::SOCKS5_MESSAGE_BYTES_MAX);
const _: () = assert!(CLIENT_BUFFER_BYTES_FIRST <= CLIENT_BUFFER_BYTES_MAX);
const _: () = assert!(HANDSHAKES_PER_THREAD_MAX <= engine::executor::TASKS_MAX);
const _: () = assert!(EXCHANGES_PER_THREAD_MAX <= engine::executor::TASKS_MAX);
const _: () = assert!(RESPONSE_BUFFER_BYTES >= proto::limits::HEAD_BYTES_MAX);
const _: () = assert!(FLOWS_PER_THREAD_MAX <= crate::token::INDEX_COUNT);
