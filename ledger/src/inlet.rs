//! The way into the ledger: an [`Inlet`] for a data-plane thread, an [`Outlet`] for the ledger thread.
//!
//! Promises: a push never blocks and makes no system call unless the ledger thread sleeps; a record whose
//! push returned `Ok` is drained, even if the ledger closes at that moment; one that was refused is the
//! caller's as before. Leaves to others: keeping a refused record, and the order in which outlets are
//! emptied.
//!
//! Between the two ends stands a door, so that closing is exact:
//!
//! ```text
//!             enter                        shut
//!   Busy <-------------> Open --------------------------> Shut
//!          leave (both the inlet's)   (the outlet's)
//! ```
//!
//! A push happens while the door is `Busy`; the outlet shuts it only from `Open`. So when it is shut, each
//! push either lies in the ring or was refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::Thread;

use sys::ring::{Consumer, Full, Producer, ring};

use crate::record::Record;
use crate::status::Shared;

/// A data-plane thread's end: it takes records.
pub struct Inlet {
    producer: Producer<Record>,
    door: Arc<Door>,
    shared: Arc<Shared>,
    ledger: Thread,
}

impl Inlet {
    /// Hands over a copy of `record`, or refuses it because the ledger has fallen behind or is closed.
    /// The caller keeps a refused record, and tries again later: nothing may be lost here.
    pub fn push(&mut self, record: &Record) -> Result<(), Full> {
        if !self.door.enter() {
            return Err(Full);
        }
        let pushed = self.producer.push(record);
        self.door.leave();
        if pushed.is_ok() && self.shared.parking.must_wake() {
            self.ledger.unpark();
        }
        pushed
    }
}

/// The ledger thread's end.
pub(crate) struct Outlet {
    consumer: Consumer<Record>,
    door: Arc<Door>,
}

impl Outlet {
    /// Moves records to the end of `batch` until that holds `records_max`, or none is left.
    pub(crate) fn drain_into(&mut self, batch: &mut Vec<Record>, records_max: usize) {
        let room = records_max.saturating_sub(batch.len());
        self.consumer.drain(room, |record| batch.push(*record));
    }

    pub(crate) fn len(&self) -> usize {
        self.consumer.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.consumer.is_empty()
    }

    /// Ends the inlet: afterwards every accepted record is in the ring, and none is accepted any more.
    /// `false` if the inlet is in the middle of a push: ask again.
    pub(crate) fn shut(&self) -> bool {
        self.door.shut()
    }
}

/// An outlet, and the inlet that is complete once the ledger thread exists.
pub(crate) fn pair(records: usize) -> (Outlet, UnboundInlet) {
    let (producer, consumer) = ring(records);
    let door = Arc::new(Door(AtomicU8::new(OPEN)));
    (Outlet { consumer, door: Arc::clone(&door) }, UnboundInlet { producer, door })
}

/// An inlet that does not know yet whom to wake.
pub(crate) struct UnboundInlet {
    producer: Producer<Record>,
    door: Arc<Door>,
}

impl UnboundInlet {
    pub(crate) fn bind(self, shared: &Arc<Shared>, ledger: &Thread) -> Inlet {
        let Self { producer, door } = self;
        Inlet { producer, door, shared: Arc::clone(shared), ledger: ledger.clone() }
    }
}

const OPEN: u8 = 0;
const BUSY: u8 = 1;
const SHUT: u8 = 2;

/// See the file's header.
struct Door(AtomicU8);

impl Door {
    fn enter(&self) -> bool {
        // Acquire keeps the push behind it. It fails only where the door is shut: `&mut Inlet` means
        // that no second push is under way.
        self.0.compare_exchange(OPEN, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn leave(&self) {
        // A plain store is enough, as nobody changes a busy door. Release pairs with the Acquire of
        // `shut`: who shuts the door sees the push.
        self.0.store(OPEN, Ordering::Release);
    }

    fn shut(&self) -> bool {
        // Acquire pairs with the Release of `leave`.
        match self.0.compare_exchange(OPEN, SHUT, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => true,
            Err(state) => state == SHUT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_door_is_not_shut_and_a_shut_one_not_entered() {
        let door = Door(AtomicU8::new(OPEN));
        assert!(door.enter());
        assert!(!door.shut());
        door.leave();
        assert!(door.shut());
        assert!(door.shut(), "shutting is idempotent");
        assert!(!door.enter());
    }
}
