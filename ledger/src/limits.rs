//! The bounds of the ledger: every queue, batch, pause and text, and what happens at the bound.

use std::time::Duration;

/// Entries in one transaction; the last frame may exceed it. While the database fails, this many wait in
/// memory and the others in the journal.
pub const BATCH_ENTRIES_MAX: usize = 8192;

/// Bytes of a user's name in a record; longer ones are cut and flagged.
pub const USER_BYTES_MAX: usize = 64;

/// Bytes of a rule's text in a record; longer ones are cut and flagged. Beside the longest user, host and
/// addresses 39 of them fit.
pub const RULE_BYTES_MAX: usize = 48;

/// Bytes of a host in a record: the longest DNS name without its last dot (RFC 1035 section 2.3.4).
pub const HOST_BYTES_MAX: usize = 253;

/// Bytes of a packed identity: what fits into a slot of the live table beside its counters.
pub const IDENTITY_BYTES_MAX: usize = 432;

/// A moving flow is journaled at least each time it has sent this many bytes...
pub const INTERIM_BYTES: u64 = 8 << 20;

/// ...and at least this often. Together they bound what a power failure may cost.
pub const INTERIM_PAUSE_MAX: Duration = Duration::from_secs(5);

/// A final up to this much before the last edge gets the moment of the edge. It is more than a clock can go
/// back without an edge of an earlier moment: a final farther back is by such a clock, and keeps its moment.
pub(crate) const EDGE_REACH: Duration = Duration::from_secs(30 * 60);

/// Flows of one thread that may be queued for an interim because of their bytes. Beyond it a flow requests
/// again with its next bytes.
pub(crate) const INTERIM_HINTS: usize = 1024;

/// Bytes in memory that are not durable yet. Beyond it closed flows stay in their slots.
pub(crate) const UNDURABLE_BYTES_MAX: usize = 32 << 20;

/// Bytes of a journal frame: the most that one group commit writes.
pub(crate) const FRAME_BYTES_MAX: usize = 1 << 20;

/// Frame buffers that the journal keeps for reuse.
pub(crate) const FRAME_BUFFERS_MAX: usize = 40;

/// Bytes of zeros that one step writes to a new segment.
pub(crate) const ZEROES_BYTES: usize = 1 << 20;

/// Released segments that are kept for reuse; others are removed.
pub(crate) const RELEASED_KEPT: usize = 1;

/// Readers of the journal besides the database; more are refused.
pub const READERS_MAX: usize = 64;

/// Bytes of the name of a further reader.
pub const READER_NAME_BYTES_MAX: usize = 32;

/// Bytes of a journal entry.
pub(crate) const ENTRY_BYTES_MAX: usize = 512;

/// Requests to the committer that wait at a time; one more is refused.
pub(crate) const REQUESTS_MAX: usize = 64;

/// The pause between two passes of the committer under traffic. It does not announce this sleep, so that
/// loaded threads need no system call to wake it.
pub(crate) const COMMIT_PAUSE: Duration = Duration::from_millis(5);

/// The niceness of the committer, where permitted. Beside 4 to 16 CPU hogs it has two to four times the
/// throughput so.
pub(crate) const COMMITTER_NICENESS: i32 = -15;

/// How long written entries wait for their sync, with delayed durability.
pub const SYNC_PAUSE: Duration = Duration::from_millis(10);

/// With delayed durability, the final of a flow is durable after this and three syncs: the one that runs when
/// it is written, that of a part of a new segment, and its own. With [`crate::Durability::Sync`], two syncs
/// after its end: the one that runs, and its own.
pub const DURABLE_AFTER: Duration = COMMIT_PAUSE.saturating_add(SYNC_PAUSE);

/// The pause between two transactions under traffic. A transaction costs as much as some twenty rows: a
/// shorter pause is CPU time that short connections lack.
pub(crate) const APPLY_PAUSE: Duration = Duration::from_millis(100);

/// Marks from which the lag is computed. While more commits than this wait for the database, the lag is
/// coarse.
pub(crate) const LAG_MARKS_MAX: usize = 1024;

/// How long applied entries may wait for a checkpoint, which makes them durable in the database.
pub(crate) const CHECKPOINT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How many applied entries may wait for a checkpoint: some 20 MiB of write-ahead log.
pub(crate) const CHECKPOINT_ENTRIES_MAX: u64 = 65_536;

/// The pause after the first failure of the journal or the database; it doubles with each further failure.
pub(crate) const RETRY_PAUSE_MIN: Duration = Duration::from_millis(10);

/// The longest pause between two attempts at a failing journal or database.
pub(crate) const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Attempts at a failing journal or database while closing: some 3 s of pauses. Then `close` reports what was
/// not written.
pub(crate) const CLOSE_ATTEMPTS_MAX: u32 = 10;

/// Rows of a month that wait for being summed up by host. A question reads them one by one. While fewer wait,
/// a checkpoint leaves them.
pub(crate) const HOST_SUM_ROWS_MIN: i64 = 16_384;

/// Rows of a kind that one checkpoint sums up by host: as many as may come until the next one.
pub(crate) const HOST_SUM_ROWS_MAX: i64 = CHECKPOINT_ENTRIES_MAX.cast_signed();
const _: () = assert!(HOST_SUM_ROWS_MAX >= HOST_SUM_ROWS_MIN);

/// Days and months of which one checkpoint makes packed values at most, of a kind...
pub(crate) const PACKED_AT_ONCE_MAX: i64 = 64;

/// ...until it has read this many of their rows: as many as may come until the next one.
pub(crate) const PACKED_ROWS_MAX: i64 = CHECKPOINT_ENTRIES_MAX.cast_signed();

/// Hosts, classes and sets of a day or a month that are packed in one value at most: some 50 MB while it is
/// made. Of a day with more, questions read the rows.
pub(crate) const PACKED_HOSTS_MAX: usize = 262_144;

/// Packed values of sums by host that a question merges at a time.
pub(crate) const MERGED_VALUES_MAX: usize = 32;

/// Month files that are open for writing at a time. More than the current one are used only around a month's
/// end, and for flows that are lost long after their last count.
pub(crate) const MONTHS_OPEN_MAX: usize = 3;

/// Rows of schema version 1 that are migrated in one transaction.
pub(crate) const MOVE_ROWS_MAX: usize = 65_536;

/// How long one write waits inside SQLite for a foreign lock, before it counts as a failure.
pub(crate) const WRITER_BUSY_MAX: Duration = Duration::from_millis(250);

/// How long a query waits for a lock. A reader meets one only while the ledger opens or closes.
pub(crate) const READER_BUSY_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(CHECKPOINT_ENTRIES_MAX >= BATCH_ENTRIES_MAX as u64);
const _: () = assert!(COMMIT_PAUSE.as_nanos() < SYNC_PAUSE.as_nanos());
const _: () = assert!(RETRY_PAUSE_MIN.as_nanos() > 0, "doubling it has to grow");
const _: () = assert!(HOST_BYTES_MAX <= u8::MAX as usize, "a record keeps lengths in one byte each");
const _: () = assert!(USER_BYTES_MAX <= HOST_BYTES_MAX && RULE_BYTES_MAX <= HOST_BYTES_MAX);
