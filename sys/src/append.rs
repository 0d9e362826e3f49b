//! Opening a file for appending, without waiting for the reader of a named pipe.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// Opens `path` for appending, and creates it with `mode` if it is missing. Its writes wait as usual.
///
/// # Errors
/// Those of open(2). A named pipe without a reader is one, and the text says so.
pub fn open(path: &Path, mode: u32) -> io::Result<File> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    let opened = OpenOptions::new().append(true).create(true).mode(mode).custom_flags(nonblocking).open(path);
    let file = opened.map_err(|error| {
        // Sockets and absent devices give this error too.
        let is_pipe = || fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo());
        match Errno::from_io_error(&error) {
            Some(Errno::NXIO) if is_pipe() => {
                io::Error::new(error.kind(), "it is a named pipe that nothing reads: start its reader first")
            }
            _ => error,
        }
    })?;
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn named_pipe_is_opened_once_it_has_a_reader() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let error = open(&path, 0o600).unwrap_err();
        assert!(error.to_string().contains("start its reader first"), "{error}");
        let mut reader = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(&path)
            .unwrap();
        open(&path, 0o600).unwrap().write_all(b"line").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "line");
    }

    #[test]
    fn socket_is_not_called_a_pipe() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let _listener = UnixListener::bind(&path).unwrap();
        assert!(!open(&path, 0o600).unwrap_err().to_string().contains("pipe"));
    }

    #[test]
    fn file_is_created_and_appended_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        for line in ["one", "two"] {
            open(&path, 0o600).unwrap().write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "onetwo");
    }
}
