//! The live table of an earlier run, as a start reads it.

use sys::clock::WallNanos;

use super::slot::STATE;
use super::{ALIVE_AT, ProgressMarks, SlotContents, SlotLayout, TableHeader, alive_at, used};

/// A live table that an earlier run left.
pub(crate) struct TableImage<'a> {
    pub(crate) header: TableHeader,
    pub(crate) layout: SlotLayout,
    /// Reads one of its words.
    pub(crate) word: Box<dyn Fn(usize) -> u64 + 'a>,
}

impl TableImage<'_> {
    /// Calls `show` with the contents of every slot that is not free.
    pub(crate) fn each(&self, mut show: impl FnMut(SlotContents)) {
        for region in 0..self.header.regions {
            let used = used(region, &self.word);
            for slot in 0..self.header.slots {
                let start = self.header.slot_at(region, slot);
                if slot < used && (self.word)(start + STATE) == 0 {
                    show(SlotContents::Damaged { what: "a slot that was used and is empty", id: None });
                    continue;
                }
                match SlotContents::from_words(self.layout, |index| (self.word)(start + index)) {
                    SlotContents::Nothing => {}
                    found => show(found),
                }
            }
        }
    }

    /// How far journal and database had come when the process last stored it.
    pub(crate) fn reached(&self) -> ProgressMarks {
        ProgressMarks::from_words(&self.word)
    }

    /// When the run was last known to be alive.
    pub(crate) fn alive_at(&self) -> Option<WallNanos> {
        alive_at((self.word)(ALIVE_AT))
    }
}
