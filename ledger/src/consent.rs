//! A loss that an operator accepted: what is missing, who goes on without it, and when that was said.
//!
//! Guarantees: a text is cut at a character's border and fits its entry. Leaves out: which losses there are
//! (`loss`), and asking for consent (`tollgate ledger repair`).

use std::fmt;

use sys::clock::WallNanos;

/// Bytes of an author's name; a longer one is cut.
const AUTHOR_BYTES_MAX: usize = 64;

/// Bytes that tell what is missing; a longer text is cut.
const WHAT_BYTES_MAX: usize = 288;

/// See the file's header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Consent {
    /// The run that began with it.
    pub epoch: u32,
    /// When it was given, by the wall clock.
    pub at: WallNanos,
    /// The number of the first entry that is missing; 0 where no entry is.
    pub first_lsn: u64,
    /// The number of the last one.
    pub last_lsn: u64,
    author: Text<AUTHOR_BYTES_MAX>,
    what: Text<WHAT_BYTES_MAX>,
}

impl Consent {
    /// A consent of `author` to go on without `what`.
    pub(crate) fn new(epoch: u32, at: WallNanos, lsns: (u64, u64), author: &str, what: &str) -> Consent {
        let (first_lsn, last_lsn) = lsns;
        Consent { epoch, at, first_lsn, last_lsn, author: Text::of(author), what: Text::of(what) }
    }

    /// The same, of run `epoch`.
    pub(crate) fn of_run(self, epoch: u32) -> Consent {
        Consent { epoch, ..self }
    }

    /// Who gave it.
    pub fn author(&self) -> &str {
        self.author.as_str()
    }

    /// What is missing.
    pub fn what(&self) -> &str {
        self.what.as_str()
    }
}

/// A text of at most `N` bytes, in place, so that an entry stays a plain value.
#[derive(Clone, Copy, Eq, PartialEq)]
struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Text<N> {
    fn of(text: &str) -> Text<N> {
        let length = text.floor_char_boundary(N.min(text.len()));
        let mut bytes = [0; N];
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        Text { bytes, length }
    }

    fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_str().fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_two_characters() {
        let consent = Consent::new(1, WallNanos(2), (3, 4), &"ä".repeat(40), &"x".repeat(300));
        assert_eq!((consent.author().len(), consent.what().len()), (64, 288));
        let consent = Consent::new(1, WallNanos(2), (3, 4), &format!("x{}", "ä".repeat(40)), "");
        assert_eq!((consent.author().len(), consent.what()), (63, ""));
    }
}
