//! A loss that an operator accepted: what is missing, the author, and the time.
//!
//! Guarantees: a text is cut at a character's border and fits its entry.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use sys::clock::WallNanos;

use crate::directory;

/// Bytes of an author's name; a longer one is cut.
const AUTHOR_BYTES_MAX: usize = 64;

/// Bytes of the text on what is missing; a longer one is cut.
const WHAT_BYTES_MAX: usize = 288;

/// The consent to continue without one loss.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Consent {
    /// The run that began with it.
    pub epoch: u32,
    /// When it was given, by the wall clock.
    pub at: WallNanos,
    /// The number of the first missing entry; 0 if no entry is missing.
    pub first_lsn: u64,
    /// The number of the last missing entry.
    pub last_lsn: u64,
    author: Text<AUTHOR_BYTES_MAX>,
    what: Text<WHAT_BYTES_MAX>,
}

impl Consent {
    /// A consent of `author` to continue without `what`.
    pub(crate) fn new(epoch: u32, at: WallNanos, lsns: (u64, u64), author: &str, what: &str) -> Consent {
        let (first_lsn, last_lsn) = lsns;
        // Both are shown on terminals, one line for each consent.
        let plain = |text: &str| text.replace(char::is_control, " ");
        let (author, what) = (Text::cut(&plain(author)), Text::cut(&plain(what)));
        Consent { epoch, at, first_lsn, last_lsn, author, what }
    }

    /// The same consent, for run `epoch`.
    pub(crate) fn for_run(self, epoch: u32) -> Consent {
        Consent { epoch, ..self }
    }

    /// The author.
    pub fn author(&self) -> &str {
        self.author.as_str()
    }

    /// What is missing.
    pub fn what(&self) -> &str {
        self.what.as_str()
    }
}

/// The file of consents that are given and not in the journal yet. The databases are changed in between:
/// after a kill there, the next start finds nothing missing and reads the consents from this file.
pub(crate) struct Pending;

impl Pending {
    /// Writes `consents`, in place of earlier ones, beside the ledger in `directory`, on stable storage.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn write(directory: &Path, consents: &[Consent]) -> io::Result<()> {
        if consents.is_empty() {
            return Pending::clear(directory);
        }
        let new = directory.join("consents.new");
        let mut file = directory::open_private(&new)?;
        file.set_len(0)?;
        for consent in consents {
            let Consent { at, first_lsn, last_lsn, .. } = consent;
            let (author, what) = (consent.author(), consent.what());
            writeln!(file, "{}\t{first_lsn}\t{last_lsn}\t{author}\t{what}", at.0)?;
        }
        file.sync_all()?;
        fs::rename(&new, directory.join(directory::CONSENTS))?;
        File::open(directory)?.sync_all()
    }

    /// The consents that an earlier start left. A damaged line becomes a consent with that text.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn read(directory: &Path) -> io::Result<Vec<Consent>> {
        let bytes = directory::read_file(&directory.join(directory::CONSENTS))?.unwrap_or_default();
        Ok(String::from_utf8_lossy(&bytes).lines().map(Pending::parse).collect())
    }

    /// Removes the file: the consents are in the journal, or the start was refused.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) fn clear(directory: &Path) -> io::Result<()> {
        match fs::remove_file(directory.join(directory::CONSENTS)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn parse(line: &str) -> Consent {
        let fields: Vec<&str> = line.splitn(5, '\t').collect();
        let number = |text: &str| text.parse().unwrap_or(0);
        match fields[..] {
            [at, first, last, author, what] => {
                Consent::new(0, WallNanos(number(at)), (number(first), number(last)), author, what)
            }
            _ => Consent::new(0, WallNanos(0), (0, 0), "", line),
        }
    }
}

/// A text of at most `N` bytes without an allocation, so that an entry is `Copy`.
#[derive(Clone, Copy, Eq, PartialEq)]
struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Text<N> {
    fn cut(text: &str) -> Text<N> {
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
    fn long_consent_text_is_cut_at_a_character() {
        let consent = Consent::new(1, WallNanos(2), (3, 4), &"ä".repeat(40), &"x".repeat(300));
        assert_eq!((consent.author().len(), consent.what().len()), (64, 288));
        let consent = Consent::new(1, WallNanos(2), (3, 4), &format!("x{}", "ä".repeat(40)), "");
        assert_eq!((consent.author().len(), consent.what()), (63, ""));
    }

    #[test]
    fn pending_consents_round_trip() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        assert_eq!(Pending::read(path).unwrap(), []);
        let consents = [
            Consent::new(0, WallNanos(2), (3, 4), "a\nb\t\x1b[1m", "one: two\n"),
            Consent::new(0, WallNanos(u64::MAX), (0, 0), "", ""),
        ];
        assert_eq!(consents[0].author(), "a b  [1m");
        Pending::write(path, &consents).unwrap();
        assert_eq!(Pending::read(path).unwrap(), consents);
        Pending::clear(path).unwrap();
        assert_eq!(Pending::read(path).unwrap(), []);
        Pending::clear(path).unwrap();
        fs::create_dir(path.join(directory::CONSENTS)).unwrap();
        assert!(Pending::read(path).unwrap_err().to_string().contains("it is not a file"));
    }
}
