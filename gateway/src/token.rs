//! What an event or a timer of a reactor thread belongs to, and its encoding as the word that epoll returns.
//!
//! The set is closed: the thread's loop handles every token, or does not compile.

use engine::reactor::RawToken;

/// A side of a relay or of an idle connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Side {
    /// The connection that a listener accepted.
    Client,
    /// The connection that the gateway dialled.
    Upstream,
}

/// The owner of a source or timer that is not a task's.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Token {
    /// The listener with that id has connections in its queue, or its backoff is over.
    Listener(u32),
    /// A socket of the relay in that slot is ready.
    Relay(u32, Side),
    /// The relay in that slot is to check its deadlines.
    RelayTimer(u32),
    /// A socket of the idle connection in that slot is ready.
    Idle(u32, Side),
    /// The idle connection in that slot has reached its deadline.
    IdleTimer(u32),
    /// The closing socket in that slot has an event.
    Closing(u32),
    /// The closing socket in that slot is to be checked.
    ClosingTimer(u32),
    /// The flow in that slot of the meter has become a long one.
    LongFlowTimer(u32),
    /// The counts of suppressed log lines are to be logged.
    SuppressedTimer,
    /// A relay that waits for credit has some.
    CreditTimer,
}

/// The number of different indexes that a token can carry.
pub(crate) const INDEX_COUNT: usize = 1 << INDEX_BITS;

const INDEX_BITS: u32 = 28;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

impl Token {
    /// The token as a word: its kind in the upper bits, its index below.
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
            Token::LongFlowTimer(index) => (9, index),
            Token::SuppressedTimer => (10, 0),
            Token::CreditTimer => (11, 0),
        };
        assert!(index <= INDEX_MASK, "tables are bounded below 2^{INDEX_BITS}");
        RawToken(kind << INDEX_BITS | index)
    }

    /// The token of a word that [`Token::to_raw`] made.
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
            9 => Token::LongFlowTimer(index),
            10 => Token::SuppressedTimer,
            _ => Token::CreditTimer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_survives_encoding() {
        for index in [0, 1, INDEX_MASK] {
            for token in [
                Token::Listener(index),
                Token::Relay(index, Side::Client),
                Token::Relay(index, Side::Upstream),
                Token::RelayTimer(index),
                Token::Idle(index, Side::Client),
                Token::Idle(index, Side::Upstream),
                Token::IdleTimer(index),
                Token::Closing(index),
                Token::ClosingTimer(index),
                Token::LongFlowTimer(index),
                Token::SuppressedTimer,
                Token::CreditTimer,
            ] {
                assert_eq!(Token::from_raw(token.to_raw()), token);
            }
        }
    }
}
