//! Rotation of the log file by its size.
//!
//! Guarantees: only the log thread touches files. A kill between two renames loses no file, and the next
//! rotation goes on. A file that is a symbolic link stays one: the file that it leads to is renamed.
//!
//! Not handled here: when to rotate (`writer.rs`), and rotation by another program.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;

use crate::config::settings::Log;

/// The settings as the log thread reads them. Each is read alone, so their stores need no order.
#[derive(Debug, Default)]
pub(super) struct Rotation {
    /// 0 is no bound.
    size_max: AtomicU64,
    keep: AtomicU32,
}

impl Rotation {
    /// Rotates by `settings` from now on.
    pub(super) fn set(&self, settings: &Log) {
        let size_max = settings.size_max.written().map_or(0, |size| size.value.0);
        self.size_max.store(size_max, Ordering::Relaxed);
        self.keep.store(settings.keep, Ordering::Relaxed);
    }

    /// The greatest size of the file, if it has a bound.
    pub(super) fn size_max(&self) -> Option<u64> {
        Some(self.size_max.load(Ordering::Relaxed)).filter(|size| *size > 0)
    }

    /// Renames the file at `path` to `.1`, the former `.1` to `.2`, and so on; the last one is removed.
    ///
    /// # Errors
    /// A rename fails. The file is at `path` still.
    pub(super) fn rename(&self, path: &Path) -> io::Result<()> {
        let keep = self.keep.load(Ordering::Relaxed).max(1);
        let path = fs::canonicalize(path)?;
        // A kill may have left a gap, which then takes the file before it, and nothing is removed.
        let last = (1..keep).find(|number| !exists(&numbered(&path, *number))).unwrap_or(keep);
        let removed = numbered(&path, last);
        let removed = if removed.is_file() { File::open(removed).ok() } else { None };
        for number in (1..last).rev() {
            fs::rename(numbered(&path, number), numbered(&path, number + 1))?;
        }
        fs::rename(&path, numbered(&path, 1))?;
        if let Some(file) = removed {
            free(file);
        }
        Ok(())
    }
}

/// Closes a file that has no name any more, on a thread of its own: a file system takes a while to free a
/// large one, and the rings would overflow meanwhile.
fn free(file: File) {
    // Without a thread, the closure and its file are dropped here.
    let _ = thread::Builder::new().name("log-free".into()).spawn(move || drop(file));
}

fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// The name of a renamed file.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{number}"));
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// The files `log`, `log.1`, ... of a directory, by their contents.
    fn contents(directory: &Path) -> Vec<String> {
        let numbers = (0..10).map(|number| match number {
            0 => directory.join("log"),
            _ => numbered(&directory.join("log"), number),
        });
        numbers.map(|path| fs::read_to_string(path).unwrap_or_else(|_| "-".into())).collect()
    }

    fn rotation(keep: u32) -> Rotation {
        let rotation = Rotation::default();
        rotation.set(&Log { keep, ..Log::default() });
        rotation
    }

    #[test]
    fn last_file_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        for text in ["a", "b", "c", "d"] {
            fs::write(&path, text).unwrap();
            rotation(2).rename(&path).unwrap();
        }
        assert_eq!(contents(directory.path())[..4], ["-", "d", "c", "-"]);
        fs::write(&path, "e").unwrap();
        rotation(4).rename(&path).unwrap();
        assert_eq!(contents(directory.path())[..5], ["-", "e", "d", "c", "-"]);
        fs::write(&path, "f").unwrap();
        rotation(1).rename(&path).unwrap();
        assert_eq!(contents(directory.path())[..4], ["-", "f", "d", "c"], "files beyond the number stay");
    }

    #[test]
    fn gap_takes_the_file_before_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        for (name, text) in [("log", "a"), ("log.1", "b"), ("log.3", "d"), ("log.4", "e")] {
            fs::write(directory.path().join(name), text).unwrap();
        }
        rotation(4).rename(&path).unwrap();
        assert_eq!(contents(directory.path())[..6], ["-", "a", "b", "d", "e", "-"]);
    }

    #[test]
    fn symbolic_link_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("log"), directory.path().join("link"));
        fs::write(&path, "a").unwrap();
        symlink(&path, &link).unwrap();
        rotation(3).rename(&link).unwrap();
        assert_eq!(contents(directory.path())[..3], ["-", "a", "-"]);
        fs::write(&link, "b").unwrap();
        assert_eq!(contents(directory.path())[..3], ["b", "a", "-"]);
    }

    #[test]
    fn failed_rename_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        assert!(rotation(3).rename(&path).is_err(), "there is no file");
        fs::write(&path, "a").unwrap();
        fs::create_dir_all(directory.path().join("log.1/in_use")).unwrap();
        assert!(rotation(1).rename(&path).is_err());
        assert_eq!(contents(directory.path())[..2], ["a", "-"]);
    }
}
