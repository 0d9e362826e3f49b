//! Who may be woken on a reactor thread, and the word by which the reactor remembers it.
//!
//! Promises: the set is closed, so the thread's loop handles every kind of wake or does not compile.

use engine::reactor::RawToken;

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
pub(crate) enum Token {
    /// The listener of that number has connections waiting, or has rested long enough.
    Listener(u32),
    /// A socket of the relay in that slot is ready.
    Relay(u32, Side),
    /// The relay in that slot is to look at its deadlines.
    RelayTimer(u32),
    /// A socket of the connection that rests in that slot is ready.
    Idle(u32, Side),
    /// The connection in that slot has rested long enough.
    IdleTimer(u32),
    /// The socket of the connection that closes in that slot has news.
    Closing(u32),
    /// The connection that closes in that slot is to be looked at.
    ClosingTimer(u32),
    /// The log is to be told how many lines were left out.
    SuppressedTimer,
}

/// How many different indexes a subject can carry.
pub(crate) const INDEX_COUNT: usize = 1 << INDEX_BITS;

const INDEX_BITS: u32 = 28;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

impl Token {
    /// The subject as a word: its kind above, its index below.
    pub(crate) fn to_raw(self) -> RawToken {
        let (kind, index) = match self {
            Token::Listener(index) => (0, index),
            Token::Relay(index, Side::Client) => (1, index),
            Token::Relay(index, Side::Upstream) => (2, index),
            Token::RelayTimer(index) => (3, index),
            Token::Idle(index, Side::Client) => (4, index),
            Token::Idle(index, Side::Upstream) => (5, index),
            Token::IdleTimer(index) => (6, index),
            Token::Closing(index) => (7, index),
            Token::ClosingTimer(index) => (8, index),
            Token::SuppressedTimer => (9, 0),
        };
        assert!(index <= INDEX_MASK, "tables are bounded below 2^{INDEX_BITS}");
        RawToken(kind << INDEX_BITS | index)
    }

    /// The subject that [`Token::to_raw`] made the word of.
    pub(crate) fn from_raw(RawToken(word): RawToken) -> Token {
        let index = word & INDEX_MASK;
        match word >> INDEX_BITS {
            0 => Token::Listener(index),
            1 => Token::Relay(index, Side::Client),
            2 => Token::Relay(index, Side::Upstream),
            3 => Token::RelayTimer(index),
            4 => Token::Idle(index, Side::Client),
            5 => Token::Idle(index, Side::Upstream),
            6 => Token::IdleTimer(index),
            7 => Token::Closing(index),
            8 => Token::ClosingTimer(index),
            _ => Token::SuppressedTimer,
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
                Token::Listener(index),
                Token::Relay(index, Side::Client),
                Token::Relay(index, Side::Upstream),
                Token::RelayTimer(index),
                Token::Idle(index, Side::Client),
                Token::Idle(index, Side::Upstream),
                Token::IdleTimer(index),
                Token::Closing(index),
                Token::ClosingTimer(index),
            ] {
                assert_eq!(Token::from_raw(subject.to_raw()), subject);
            }
        }
    }
}
