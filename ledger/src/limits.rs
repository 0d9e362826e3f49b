//! The ledger's bounds: every queue, batch, pause and text, each with what happens at it.

use std::time::Duration;

/// Records in one inlet's ring: 2 MiB. When it is full, the inlet's owner keeps its record and retries.
pub const RING_RECORDS: usize = 4096;

/// Records in one transaction: 4 MiB. While the database fails, one such batch waits in memory and the
/// rest stays in the rings.
pub const BATCH_RECORDS_MAX: usize = 8192;

/// A turn that moved as many records is followed by the next one without a nap, so that rings which fill
/// fast are emptied before they are full.
pub(crate) const NAP_RECORDS_MAX: usize = RING_RECORDS / 2;

/// Bytes of a user's name in a record; longer ones are cut and flagged.
pub const USER_BYTES_MAX: usize = 64;

/// Bytes of a rule's text in a record; longer ones are cut and flagged.
pub const RULE_BYTES_MAX: usize = 64;

/// Bytes of a host in a record: the longest DNS name without its last dot (RFC 1035 section 2.3.4).
pub const HOST_BYTES_MAX: usize = 253;

/// The pause between two looks at the rings while there is traffic. The ledger thread naps through it
/// without announcing itself asleep, so that producers under load never wake it. Each nap ends in a commit,
/// which costs as much as some twenty rows: a shorter one is CPU that a short connection pays for.
pub(crate) const NAP: Duration = Duration::from_millis(50);

/// How long applied records may wait for a checkpoint, which brings them to the disk.
pub(crate) const CHECKPOINT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How many applied records may wait for a checkpoint: some 20 MiB of write-ahead log.
pub(crate) const CHECKPOINT_RECORDS_MAX: u64 = 65_536;

/// The pause after a first failure of the database; it doubles with each further one.
pub(crate) const RETRY_PAUSE_MIN: Duration = Duration::from_millis(10);

/// The longest pause between two attempts at a failing database.
pub(crate) const RETRY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Attempts at a failing database while closing, some 3 s of pauses; then `close` reports what it could
/// not write.
pub(crate) const CLOSE_ATTEMPTS_MAX: u32 = 10;

/// How long one write waits inside SQLite for somebody else's lock, before it counts as a failure.
pub(crate) const WRITER_BUSY_MAX: Duration = Duration::from_millis(250);

/// How long a query waits for a lock. A reader meets one only while the ledger opens or closes.
pub(crate) const READER_BUSY_MAX: Duration = Duration::from_secs(5);

const _: () = assert!(BATCH_RECORDS_MAX >= RING_RECORDS, "one transaction empties any one ring");
const _: () = assert!(CHECKPOINT_RECORDS_MAX >= BATCH_RECORDS_MAX as u64);
const _: () = assert!(RETRY_PAUSE_MIN.as_nanos() > 0, "doubling it has to grow");
const _: () = assert!(HOST_BYTES_MAX <= u8::MAX as usize, "a record keeps lengths in one byte each");
const _: () = assert!(USER_BYTES_MAX <= HOST_BYTES_MAX && RULE_BYTES_MAX <= HOST_BYTES_MAX);
