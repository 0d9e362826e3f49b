//! Who may be woken on a reactor thread, and the word by which the reactor remembers it.
//!
//! Promises: the set is closed, so the thread's loop handles every kind of wake or does not compile.

use engine::reactor::Tag;

/// Which end of a relay.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Side {
    /// The one who came to us.
    Client,
    /// The one we dialled.
    Upstream,
}

/// What a source or timer belongs to, apart from tasks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Subject {
    /// The listener of that number has connections waiting, or has rested long enough.
    Listener(u32),
    /// A socket of the relay in that slot is ready.
    Relay(u32, Side),
    /// The relay in that slot is to look at its deadlines.
    RelayTimer(u32),
    /// A socket of the connection that rests in that slot is ready.
    Rest(u32, Side),
    /// The connection in that slot has rested long enough.
    RestTimer(u32),
    /// The socket of the connection that closes in that slot has news.
    Closing(u32),
    /// The connection that closes in that slot is to be looked at.
    ClosingTimer(u32),
    /// The log is to be told how many lines were left out.
    LeftOutTimer,
}

/// How many different indexes a subject can carry.
pub(crate) const INDEXES: usize = 1 << INDEX_BITS;

const INDEX_BITS: u32 = 28;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

impl Subject {
    /// The subject as a word: its kind above, its index below.
    pub(crate) fn tag(self) -> Tag {
        let (kind, index) = match self {
            Subject::Listener(index) => (0, index),
            Subject::Relay(index, Side::Client) => (1, index),
            Subject::Relay(index, Side::Upstream) => (2, index),
            Subject::RelayTimer(index) => (3, index),
            Subject::Rest(index, Side::Client) => (4, index),
            Subject::Rest(index, Side::Upstream) => (5, index),
            Subject::RestTimer(index) => (6, index),
            Subject::Closing(index) => (7, index),
            Subject::ClosingTimer(index) => (8, index),
            Subject::LeftOutTimer => (9, 0),
        };
        assert!(index <= INDEX_MASK, "tables are bounded below 2^{INDEX_BITS}");
        Tag(kind << INDEX_BITS | index)
    }

    /// The subject that [`Subject::tag`] made the word of.
    pub(crate) fn of(Tag(word): Tag) -> Subject {
        let index = word & INDEX_MASK;
        match word >> INDEX_BITS {
            0 => Subject::Listener(index),
            1 => Subject::Relay(index, Side::Client),
            2 => Subject::Relay(index, Side::Upstream),
            3 => Subject::RelayTimer(index),
            4 => Subject::Rest(index, Side::Client),
            5 => Subject::Rest(index, Side::Upstream),
            6 => Subject::RestTimer(index),
            7 => Subject::Closing(index),
            8 => Subject::ClosingTimer(index),
            _ => Subject::LeftOutTimer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_survives_being_a_word() {
        for index in [0, 1, INDEX_MASK] {
            for subject in [
                Subject::Listener(index),
                Subject::Relay(index, Side::Client),
                Subject::Relay(index, Side::Upstream),
                Subject::RelayTimer(index),
                Subject::Rest(index, Side::Client),
                Subject::Rest(index, Side::Upstream),
                Subject::RestTimer(index),
                Subject::Closing(index),
                Subject::ClosingTimer(index),
            ] {
                assert_eq!(Subject::of(subject.tag()), subject);
            }
        }
    }
}
