//! The root directory of `/proc` and `/sys`: this machine's, or a fixture's.
//!
//! Guarantees: reading a file with any content returns a value or an error that names the file; it never
//! panics.

use std::io;
use std::path::{Path, PathBuf};

/// A directory that contains `proc` and `sys`.
#[derive(Clone, Debug)]
pub struct ProcRoot(PathBuf);

impl ProcRoot {
    /// This machine's root.
    pub fn machine() -> ProcRoot {
        ProcRoot::at("/")
    }

    /// The root at `path`: tests write fixture machines there.
    pub fn at(path: impl Into<PathBuf>) -> ProcRoot {
        ProcRoot(path.into())
    }

    /// The location of `path`, which may begin with a slash.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The file's text; invalid UTF-8 is replaced.
    ///
    /// # Errors
    /// The kernel's error, with the file's name before it.
    pub fn read_text(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let path = path.as_ref();
        let bytes = std::fs::read(self.path(path))
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The number that is the file's whole content.
    ///
    /// # Errors
    /// As [`ProcRoot::read_text`], and `InvalidData` for anything but a number.
    pub fn read_number(&self, path: impl AsRef<Path>) -> io::Result<u64> {
        let text = self.read_text(&path)?;
        parse_number(text.trim()).ok_or_else(|| malformed(path.as_ref(), &text))
    }

    /// The numbers at the beginning of the file, at least `count`.
    ///
    /// # Errors
    /// As [`ProcRoot::read_number`].
    pub fn read_numbers(&self, path: impl AsRef<Path>, count: usize) -> io::Result<Vec<u64>> {
        let text = self.read_text(&path)?;
        let numbers: Vec<u64> = text.split_whitespace().map_while(parse_number).collect();
        if numbers.len() < count { Err(malformed(path.as_ref(), &text)) } else { Ok(numbers) }
    }
}

/// Parses a number as the kernel writes it. One beyond 64 bits becomes the maximum.
pub(crate) fn parse_number(text: &str) -> Option<u64> {
    match text.parse() {
        Ok(number) => Some(number),
        Err(_) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => Some(u64::MAX),
        Err(_) => None,
    }
}

/// The error for a malformed file. It quotes the beginning only: the file may be long.
pub(crate) fn malformed(path: &Path, text: &str) -> io::Error {
    let shown: String = text.trim().chars().take(40).collect();
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{} holds {shown:?}, not what is expected", path.display()),
    )
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn malformed_files_give_errors_naming_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let root = ProcRoot::at(directory.path());
        let check = |bytes: &[u8], expected: Option<u64>| {
            std::fs::write(root.path("/x"), bytes).unwrap();
            let read = root.read_number("/x");
            assert_eq!(read.as_ref().ok().copied(), expected, "{bytes:?}");
            if let Err(error) = read {
                assert!(error.to_string().starts_with("/x holds "), "{error}");
            }
        };
        check(b"12\n", Some(12));
        check(b" 0 ", Some(0));
        check(b"99999999999999999999999\n", Some(u64::MAX));
        for bad in [b"".as_slice(), b"\n", b"max", b"-1", b"1 2", b"\xff\xfe", b"1.5", b"0x10", &[b'z'; 4000]]
        {
            check(bad, None);
        }
        let error = root.read_number("/y").unwrap_err();
        assert_eq!((error.kind(), &error.to_string()[..4]), (io::ErrorKind::NotFound, "/y: "));
        std::fs::write(root.path("three"), "1\t2 3 x 4").unwrap();
        assert_eq!(root.read_numbers("three", 2).unwrap(), [1, 2, 3]);
        assert!(root.read_numbers("three", 4).is_err());
    }
}
