//! A relay's log, and its number of lines so far.
//!
//! Guarantees: each byte is read once, however often the lines are counted while the log grows.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use anyhow::{Context, Result};

const CHUNK_BYTES: usize = 64 * 1_024;

/// A log in one file or, where each worker writes its own, in several.
#[derive(Debug, Default)]
pub(crate) struct Log {
    files: Vec<LogFile>,
}

#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    /// The position up to which the file was read, and the lines up to there.
    read_bytes: u64,
    lines: u64,
}

impl Log {
    /// The log that will be in these files.
    pub(crate) fn in_files(paths: Vec<PathBuf>) -> Self {
        let file = |path| LogFile { path, read_bytes: 0, lines: 0 };
        Self { files: paths.into_iter().map(file).collect() }
    }

    /// The number of lines so far.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(crate) fn lines(&mut self) -> Result<u64> {
        let lines = |file: &mut LogFile| -> Result<u64> {
            file.read_on().with_context(|| format!("reading {}", file.path.display()))?;
            Ok(file.lines)
        };
        self.files.iter_mut().map(lines).sum()
    }
}

impl LogFile {
    fn read_on(&mut self) -> std::io::Result<()> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.read_bytes))?;
        let mut chunk = [0; CHUNK_BYTES];
        loop {
            let read = file.read(&mut chunk)?;
            if read == 0 {
                return Ok(());
            }
            self.read_bytes += read as u64;
            self.lines += chunk[..read].iter().filter(|&&byte| byte == b'\n').count() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn lines_are_counted_as_files_grow() {
        let directory = tempfile::tempdir().expect("a temporary directory can be created");
        let paths = ["1.log", "2.log"].map(|name| directory.path().join(name));
        let mut files = paths.clone().map(|path| File::create(path).expect("the file can be created"));
        let mut log = Log::in_files(paths.to_vec());
        let mut check = |texts: [&str; 2], expected| {
            for (file, text) in files.iter_mut().zip(texts) {
                file.write_all(text.as_bytes()).expect("the file can be written");
            }
            assert_eq!(log.lines().expect("both files can be read"), expected);
        };
        check(["", ""], 0);
        check(["one\ntw", ""], 1);
        check(["o\nthree\n", "four\n"], 4);
        check(["", ""], 4);
        assert!(Log::in_files(vec![directory.path().join("absent")]).lines().is_err());
        assert_eq!(Log::default().lines().expect("the files are missing"), 0);
    }
}
