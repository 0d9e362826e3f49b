//! Finds and reads the texts of a configuration: the file, and the user files beside it.
//!
//! Guarantees: reads are bounded, and of regular files only. A text is what two reads in a row found. Each
//! text is named by its absolute path.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use sys::clock::{self, WallNanos};

use super::report::{Diagnostic, Report, SourceText};
use super::{LoadOptions, Origin};
use crate::users::{NameError, USERS_DIRECTORY, UserName};

/// The file that is read if none is named and it exists.
pub(super) const DEFAULT_FILE: &str = "tollgate.toml";

/// Longest configuration file in bytes: some hundred thousand rules.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Longest user file in bytes.
const USER_FILE_BYTES_MAX: u64 = 1 << 20;

/// Most reads of one file that another program keeps writing.
const READS_MAX: usize = 10;

/// A file that was written so lately may not be whole: a second read comes [`REWRITE_PAUSE`] later.
const FRESH_SPAN: Duration = Duration::from_millis(20);

/// Time for a program to go on with what it writes in place.
const REWRITE_PAUSE: Duration = Duration::from_millis(10);

/// The bit of a mode by which accounts other than the owner's and the group's may write (inode(7)).
const WRITE_BY_OTHERS: u32 = 0o002;

const _: () = assert!(USER_FILE_BYTES_MAX <= FILE_BYTES_MAX);

/// The texts of a load.
pub(super) struct Sources {
    pub(super) origin: Origin,
    pub(super) users_directory: PathBuf,
    pub(super) sources: Vec<SourceText>,
    /// Index of the configuration file among the sources, if there is one.
    pub(super) main: Option<usize>,
    /// The user files: name, path, index among the sources.
    pub(super) users: Vec<(UserName, PathBuf, usize)>,
    /// Whether every user file was read. If not, a user that another text names may be in one of the others.
    pub(super) has_all_users: bool,
}

/// Reads every text, and reports those that cannot be read.
pub(super) fn read_sources(options: &LoadOptions, default_data: &Path, report: &mut Report) -> Sources {
    let origin = origin(options);
    let users_directory = match &origin {
        Origin::File(path) => path.parent().unwrap_or(Path::new("")).join(USERS_DIRECTORY),
        Origin::Embedded => absolute(&default_data.join(USERS_DIRECTORY)),
    };
    let mut found = Sources {
        origin,
        users_directory,
        sources: Vec::new(),
        main: None,
        users: Vec::new(),
        has_all_users: true,
    };
    if let Origin::File(path) = &found.origin {
        match read_bounded(path, FILE_BYTES_MAX, report) {
            Ok(text) if text.trim().is_empty() && options.running.is_some() => report.error(empty_file(path)),
            Ok(text) => found.main = Some(push_source(&mut found.sources, path, text)),
            Err(error) => report.error(unreadable(path, &error)),
        }
    }
    found.read_users(options.draft.as_ref(), report);
    found
}

impl Sources {
    fn read_users(&mut self, draft: Option<&(PathBuf, Option<String>)>, report: &mut Report) {
        if let Ok(metadata) = fs::metadata(&self.users_directory) {
            warn_if_world_writable(&self.users_directory, &metadata, report);
        }
        let mut paths = match user_files(&self.users_directory) {
            Ok(paths) => paths,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                self.has_all_users = false;
                return report.error(unreadable(&self.users_directory, &error));
            }
        };
        if let Some((draft, text)) = draft {
            match text {
                Some(_) if !paths.contains(draft) => paths.push(draft.clone()),
                Some(_) => {}
                None => paths.retain(|path| path != draft),
            }
        }
        for path in paths {
            let name = match user_name(&path) {
                Ok(name) => name,
                Err(error) => {
                    let title = format!("the file name of {} is not a user name", path.display());
                    report.error(Diagnostic::without_span(title).help(error.to_string()));
                    continue;
                }
            };
            let text = match draft {
                Some((draft, Some(text))) if *draft == path => Ok(text.clone()),
                _ => read_bounded(&path, USER_FILE_BYTES_MAX, report),
            };
            match text {
                Ok(text) => {
                    let index = push_source(&mut self.sources, &path, text);
                    self.users.push((name, path, index));
                }
                Err(error) => {
                    self.has_all_users = false;
                    report.error(unreadable(&path, &error));
                }
            }
        }
    }
}

/// The user files in a directory, sorted by name: those that end with `.toml` and are not hidden, as
/// temporary files of editors are.
pub(super) fn user_files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if path.extension() == Some(OsStr::new("toml")) && !hidden {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn origin(options: &LoadOptions) -> Origin {
    match (&options.path, &options.running) {
        (Some(path), _) | (None, Some(path)) => Origin::File(absolute(path)),
        (None, _) if Path::new(DEFAULT_FILE).exists() => Origin::File(absolute(Path::new(DEFAULT_FILE))),
        (None, _) => Origin::Embedded,
    }
}

/// The path after the working directory: messages about a file are read elsewhere, too, in a log or by a
/// service manager.
pub(super) fn absolute(path: &Path) -> PathBuf {
    // Without a working directory the path stays as given.
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn user_name(path: &Path) -> Result<UserName, NameError> {
    path.file_stem().unwrap_or_default().to_string_lossy().parse()
}

fn push_source(sources: &mut Vec<SourceText>, path: &Path, text: String) -> usize {
    sources.push(SourceText { name: path.display().to_string(), text });
    sources.len() - 1
}

/// Warns of a file, or of the directory of user files, that every account of the machine may write: its
/// contents decide what is admitted.
fn warn_if_world_writable(path: &Path, metadata: &Metadata, report: &mut Report) {
    if metadata.mode() & WRITE_BY_OTHERS != 0 {
        let title = format!("every account of this machine may write {}", path.display());
        report.warning(Diagnostic::without_span(title).help(format!("chmod o-w {}", path.display())));
    }
}

fn read_bounded(path: &Path, bytes_max: u64, report: &mut Report) -> io::Result<String> {
    // Checked before opening: opening a pipe would wait for its writer.
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    warn_if_world_writable(path, &metadata, report);
    let pause = || {
        if is_fresh(path) {
            thread::sleep(REWRITE_PAUSE);
        }
    };
    let bytes = read_settled(&mut File::open(path)?, bytes_max, pause)?;
    if bytes.len() as u64 > bytes_max {
        let text = format!("it is longer than {bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line = 1 + error.as_bytes()[..error.utf8_error().valid_up_to()]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count();
        io::Error::new(io::ErrorKind::InvalidData, format!("line {line} is not UTF-8 text"))
    })
}

/// Whether a file was written within [`FRESH_SPAN`]. Many such files take no more pauses than one: the others
/// are older when their turn comes.
fn is_fresh(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| is_fresh_at(&metadata, clock::wall()))
}

fn is_fresh_at(metadata: &Metadata, now: WallNanos) -> bool {
    let written_at = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
    let age = i128::from(now.0) - written_at;
    // A clock that was set back makes files of the future: they cause no pause.
    (0..FRESH_SPAN.as_nanos().cast_signed()).contains(&age)
}

/// Reads a file until two reads in a row, with a pause between them, agree; up to one byte beyond the bound.
///
/// A program that writes in place empties the file first. A read meanwhile may find the beginning of a text,
/// or of two. That is often a valid configuration, without the lines that follow: they may allow, deny, or
/// disable a user.
fn read_settled(file: &mut (impl Read + Seek), bytes_max: u64, pause: impl Fn()) -> io::Result<Vec<u8>> {
    let mut read_anew = || {
        file.rewind()?;
        let mut bytes = Vec::new();
        file.by_ref().take(bytes_max + 1).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(bytes)
    };
    let mut bytes = read_anew()?;
    for _ in 1..READS_MAX {
        pause();
        let again = read_anew()?;
        if again == bytes {
            return Ok(bytes);
        }
        bytes = again;
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "it changes with each read: load it when it is written"))
}

fn unreadable(path: &Path, error: &io::Error) -> Diagnostic {
    Diagnostic::without_span(format!("cannot read {}: {error}", path.display()))
}

fn empty_file(path: &Path) -> Diagnostic {
    let help = "it may be about to be written: reload again when it is; to run by the defaults, restart";
    Diagnostic::without_span(format!("{} is empty", path.display())).help(help)
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, SeekFrom};

    use super::*;

    /// A file that holds the next of these texts from each rewind on, and stays with the last.
    struct Rewritten {
        texts: Vec<&'static str>,
        open: Cursor<&'static str>,
    }

    impl Read for Rewritten {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.open.read(buffer)
        }
    }

    impl Seek for Rewritten {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            assert_eq!(to, SeekFrom::Start(0));
            self.open = Cursor::new(if self.texts.len() > 1 { self.texts.remove(0) } else { self.texts[0] });
            Ok(0)
        }
    }

    fn read(texts: &[&'static str]) -> io::Result<String> {
        let mut file = Rewritten { texts: texts.to_vec(), open: Cursor::new("") };
        read_settled(&mut file, 100, || ()).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn text_is_what_two_reads_in_a_row_found() {
        assert_eq!(read(&["whole"]).unwrap(), "whole");
        assert_eq!(read(&["the beginn", "", "whole", "whole", "later"]).unwrap(), "whole");
        let texts = ["a", "b"].repeat(READS_MAX);
        let error = read(&texts).unwrap_err().to_string();
        assert!(error.contains("changes with each read"), "{error}");
    }

    /// The file is empty at the first read, as where a program has just opened it to write.
    #[test]
    fn file_that_is_being_written_has_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("user.toml");
        fs::write(&path, "").unwrap();
        let is_written = std::cell::Cell::new(false);
        let write = || {
            if !is_written.replace(true) {
                fs::write(&path, "whole").unwrap();
            }
        };
        assert_eq!(read_settled(&mut File::open(&path).unwrap(), 100, write).unwrap(), b"whole");
    }

    #[test]
    fn file_is_fresh_for_a_while() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let metadata = file.as_file().metadata().unwrap();
        let written_at =
            metadata.mtime().cast_unsigned() * 1_000_000_000 + metadata.mtime_nsec().cast_unsigned();
        let is_fresh = |now: u64| is_fresh_at(&metadata, WallNanos(now));
        let span = u64::try_from(FRESH_SPAN.as_nanos()).unwrap();
        assert!(is_fresh(written_at) && is_fresh(written_at + span - 1));
        assert!(!is_fresh(written_at + span) && !is_fresh(written_at - 1));
    }
}
