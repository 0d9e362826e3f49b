//! The gateway's bounds, each with a name, and their relations checked when the program is compiled.
//!
//! What an operator may choose is in `settings`; here is what the design needs.

use std::time::Duration;

/// Bytes that a thread's relays read into at a time. Below 16 KiB system calls dominate; above 64 KiB
/// nothing is gained (relay CPU per GB: 0.35 s at 16 KiB, 0.23 s at 64 KiB).
pub const SCRATCH_BYTES: usize = 64 * 1024;

/// Bytes that one relay moves in a direction before others get their turn: about 0.1 ms of copying.
pub const PASS_BYTES_MAX: usize = 256 * 1024;

/// Bytes asked of one splice call.
pub const SPLICE_BYTES_MAX: usize = 256 * 1024;

/// The size of a pipe: 64 slots of a page each.
pub const PIPE_BYTES: u32 = 256 * 1024;

/// Pipes of one thread, two descriptors each.
pub const PIPES_PER_THREAD_MAX: usize = 64;

/// Buffers for slow sinks that a thread keeps when they are empty.
pub const PENDING_CACHED_MAX: usize = 16;

/// How long a pipe may hold bytes of which the sink takes none, before they are moved to a buffer and another
/// stream can have the pipe.
pub const PIPE_STALL_MAX: Duration = Duration::from_secs(1);

/// Pipes that are emptied in a turn: 50 us of copying each.
pub const PIPES_EMPTIED_PER_PASS_MAX: usize = 4;

/// Buffers of one thread for bytes that slow receivers have not taken. While there is as much, a thread reads
/// no more than [`READ_BYTES_UNDER_PRESSURE`] at a time, and empties no pipe.
pub const PENDING_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// See [`PENDING_BYTES_MAX`]: what a receiver that stalls then may add to it in a direction.
pub const READ_BYTES_UNDER_PRESSURE: usize = 4 * 1024;

/// Connections of one thread whose client is not known yet. For each that comes beyond them one of the
/// oldest ends.
pub const HANDSHAKES_PER_THREAD_MAX: usize = 4096;

/// Of the descriptors that the process may have, unknown clients hold one in so many at most. Without this
/// bound a limit of 1,024 descriptors is used up by silent clients before any of 2,000 handshakes has to end.
pub const DESCRIPTORS_PER_HANDSHAKE: u64 = 4;

/// Room for what a client sends before its tunnel stands: the longest message and what may follow it.
pub const CLIENT_BUFFER_BYTES_MAX: usize = 16 * 1024;

/// First room for a greeting. A CONNECT head of a browser has 200 to 500 bytes.
pub const CLIENT_BUFFER_BYTES_FIRST: usize = 1024;

/// Greeting buffers that a thread keeps when their connections are done with them.
pub const READ_BUFFERS_POOLED_MAX: usize = 64;

/// Handshakes, and clients on their way to a relay, whose memory a thread keeps for the next ones.
pub const HANDSHAKES_CACHED_MAX: usize = 64;

/// Handshakes that end at a time to make room for connections that wait: as many packets as fq_codel drops.
pub const EVICTED_AT_ONCE_MAX: usize = 64;

/// The time that a handshake has when all places are taken. A request comes within a round trip or two of its
/// connection; a second covers one that is lost on the way and sent again (RFC 6298, section 2.1).
pub const HANDSHAKE_TIMEOUT_MIN: Duration = Duration::from_secs(1);

/// Requests in a row that do not prove their user, of a client that is known or is not: the connection ends
/// with the last of them. A client that waits to be asked for credentials needs one refusal (curl, browsers,
/// Java, apt); a client with saved credentials that have changed needs another.
pub const AUTH_FAILURES_MAX: u8 = 3;

/// Tunnels of one thread that are being opened, and plain HTTP requests that are served, at the same time;
/// more wait where they are.
pub const EXCHANGES_PER_THREAD_MAX: usize = 16 * 1024;

/// Connections of one thread whose clients are known and whose first request waits to be served.
pub const PENDING_MAX: usize = 4096;

/// Room for an answer's head while it is incomplete, and for what follows it in the same read.
pub const RESPONSE_BUFFER_BYTES: usize = proto::limits::HEAD_BYTES_MAX;

/// Such rooms that a thread keeps when they are empty.
pub const WRITE_BUFFERS_POOLED_MAX: usize = 16;

/// Interim answers (1xx) before the answer. Destinations send one or two.
pub const INTERIMS_MAX: u8 = 16;

/// Bytes of a refused request's body that are read and dropped, so that the connection can go on behind it.
pub const DISCARDED_BODY_BYTES_MAX: u64 = 64 * 1024;

/// Addresses of one name that are kept and tried; a name with more of them loses the rest.
pub const ADDRESSES_MAX: usize = 16;

/// Attempts of a thread's dials beyond the first of each, a descriptor each. A dial takes one only where an
/// address has not answered within 250 ms; a thread has some hundred such dials in a bad hour.
pub const EXTRA_ATTEMPTS_PER_THREAD_MAX: usize = 256;

/// Flows that a thread may hold open in its table.
pub const FLOWS_PER_THREAD_MAX: usize = 1 << 20;

/// Flows that one thread ends in a second, at the most that was measured: 67 us of CPU each.
pub const CLOSES_PER_SECOND_MAX: usize = 16 * 1024;

/// How long the journal may stall before new flows are refused: so many seconds' closed flows have room in
/// the live table beside the open ones.
pub const STALL_SECONDS_MAX: usize = 1;

/// Connections of a thread between two requests that end at a time when an accept finds descriptors or memory
/// used up. Each has one or two descriptors, and a thread tries again 10 to 50 times a second.
pub const EVICTIONS_PER_ATTEMPT_MAX: usize = 16;

/// Resting connections, the longest rests first, of which one is chosen to make room.
pub const EVICTION_CANDIDATES_MAX: usize = 64;

/// Bytes sent to a peer from which on the end of its connection looks for some that the peer has not taken.
/// Shorter flows are spared the call.
pub const QUEUED_BYTES_MIN: u64 = 32 * 1024;

/// How long a peer may take nothing of what the kernel holds for it after its flow has ended.
pub const QUEUE_STALL_MAX: Duration = Duration::from_secs(60);

/// Connections of a thread that linger behind a last answer though their client is known, a descriptor each,
/// for some seconds. More of them are closed at once.
pub const LINGERING_PER_THREAD_MAX: usize = 128;

/// Bytes of a refused client that are read and dropped, so that it can read our answer before a reset.
/// Clients such as Java's send the whole body of an upload before they look at a 407.
pub const LINGER_BYTES_MAX: usize = 16 * 1024 * 1024;

const _: () = assert!(SCRATCH_BYTES >= CLIENT_BUFFER_BYTES_MAX);
const _: () = assert!(READ_BYTES_UNDER_PRESSURE <= SCRATCH_BYTES);
const _: () = assert!((PENDING_CACHED_MAX * SCRATCH_BYTES) as u64 <= PENDING_BYTES_MAX / 2);
const _: () = assert!(PASS_BYTES_MAX >= SCRATCH_BYTES);
const _: () = assert!(CLIENT_BUFFER_BYTES_MAX >= proto::limits::HEAD_BYTES_MAX);
const _: () = assert!(CLIENT_BUFFER_BYTES_MAX >= proto::limits::SOCKS5_MESSAGE_BYTES_MAX);
const _: () = assert!(CLIENT_BUFFER_BYTES_FIRST <= CLIENT_BUFFER_BYTES_MAX);
const _: () = assert!(HANDSHAKES_PER_THREAD_MAX <= engine::executor::TASKS_MAX);
const _: () = assert!(EXCHANGES_PER_THREAD_MAX <= engine::executor::TASKS_MAX);
const _: () = assert!(RESPONSE_BUFFER_BYTES >= proto::limits::HEAD_BYTES_MAX);
const _: () = assert!(FLOWS_PER_THREAD_MAX <= crate::token::INDEX_COUNT);
