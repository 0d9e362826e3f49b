//! The ledger's bounds: every queue, batch, pause and text, each with what happens at it.

use std::time::Duration;

/// Entries in one transaction, but for the last frame's: while the database fails, so many wait in memory and
/// the rest in the journal.
pub const BATCH_ENTRIES_MAX: usize = 8192;

/// Bytes of a user's name in a record; longer ones are cut and flagged.
pub const USER_BYTES_MAX: usize = 64;

/// Bytes of a rule's text in a record; longer ones are cut and flagged.
pub const RULE_BYTES_MAX: usize = 48;

/// Bytes of a host in a record: the longest DNS name without its last dot (RFC 1035 section 2.3.4).
pub const HOST_BYTES_MAX: usize = 253;

/// Bytes of a packed identity: what a slot of the live table has room for beside its counters.
pub const IDENTITY_BYTES_MAX: usize = 440;

/// A flow that moves is journaled at least as often as it has sent this many bytes...
pub const INTERIM_BYTES: u64 = 8 << 20;

/// ...and at least this often. Together they bound what a power failure may cost.
pub const INTERIM_PAUSE_MAX: Duration = Duration::from_secs(5);

/// Flows of one thread that may wait to be journaled for their bytes; more ask again with their next bytes.
pub(crate) const INTERIM_HINTS: usize = 1024;

/// Bytes that wait in memory to become durable; with more, closed flows wait in their slots.
pub(crate) const UNDURABLE_BYTES_MAX: usize = 32 << 20;

/// Bytes of a frame of the journal: what one group commit writes at most.
pub(crate) const FRAME_BYTES_MAX: usize = 1 << 20;

/// Buffers of frames that the journal keeps for the next ones.
pub(crate) const FRAME_BUFFERS_MAX: usize = 40;

/// Bytes of zeros that are written at a time to a new segment.
pub(crate) const ZEROES_BYTES: usize = 1 << 20;

/// Ended segments that nobody needs, kept to be used again; more are removed.
pub(crate) const RELEASED_KEPT: usize = 1;

/// Bytes of an entry of the journal.
pub(crate) const ENTRY_BYTES_MAX: usize = 512;

/// The pause between two looks of the committer at its hints while there is traffic. It naps through it
/// without announcing itself asleep, so that nobody under load has to wake it.
pub(crate) const COMMIT_PAUSE: Duration = Duration::from_millis(5);

/// The committer's niceness, where it is permitted: with 4 to 16 CPU hogs about it has twice to four times
/// the throughput.
pub(crate) const COMMITTER_NICENESS: i32 = -15;

/// How long what is written may wait until it is synced, with delayed durability.
pub const SYNC_PAUSE: Duration = Duration::from_millis(10);

/// The pause between two transactions while there is traffic. Each costs as much as some twenty rows: a
/// shorter one is CPU that a short connection pays for.
pub(crate) const APPLY_PAUSE: Duration = Duration::from_millis(100);

/// Marks from which the lag is told; while more commits than these wait for the database, it is told
/// coarsely.
pub(crate) const LAG_MARKS_MAX: usize = 1024;

/// How long applied entries may wait for a checkpoint, which brings them to the disk.
pub(crate) const CHECKPOINT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How many applied entries may wait for a checkpoint: some 20 MiB of write-ahead log.
pub(crate) const CHECKPOINT_ENTRIES_MAX: u64 = 65_536;

/// The pause after a first failure of the journal or the database; it doubles with each further one.
pub(crate) const RETRY_PAUSE_MIN: Duration = Duration::from_millis(10);

/// The longest pause between two attempts at a failing journal or database.
pub(crate) const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Attempts at a failing journal or database while closing, some 3 s of pauses; then `close` reports what
/// it could not write.
pub(crate) const CLOSE_ATTEMPTS_MAX: u32 = 10;

/// Month files that are open for writing at a time. More than the current one are needed only around a
/// month's end, and by flows that are lost long after they were last counted.
pub(crate) const MONTHS_OPEN_MAX: usize = 3;

/// Rows that the flows of schema version 1 are moved in at a time.
pub(crate) const MOVE_ROWS_MAX: usize = 65_536;

/// How long one write waits inside SQLite for somebody else's lock, before it counts as a failure.
pub(crate) const WRITER_BUSY_MAX: Duration = Duration::from_millis(250);

/// How long a query waits for a lock. A reader meets one only while the ledger opens or closes.
pub(crate) const READER_BUSY_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(CHECKPOINT_ENTRIES_MAX >= BATCH_ENTRIES_MAX as u64);
const _: () = assert!(COMMIT_PAUSE.as_nanos() < SYNC_PAUSE.as_nanos());
const _: () = assert!(RETRY_PAUSE_MIN.as_nanos() > 0, "doubling it has to grow");
const _: () = assert!(HOST_BYTES_MAX <= u8::MAX as usize, "a record keeps lengths in one byte each");
const _: () = assert!(USER_BYTES_MAX <= HOST_BYTES_MAX && RULE_BYTES_MAX <= HOST_BYTES_MAX);
