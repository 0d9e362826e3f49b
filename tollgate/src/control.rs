//! The control socket of a running gateway: how `tollgate reload` asks one gateway, and learns the outcome.
//!
//! Guarantees: the socket stands in the ledger's directory, which one gateway at a time owns, so a request
//! reaches that gateway or none, and never another process; the account of the gateway and root alone can
//! connect; one connection at a time is served, for a bounded time. Leaves out: what a request does.
//!
//! ```text
//!   client:   reload LF
//!   gateway:  done LF text      or      refused LF text      and closes
//! ```

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, SyncSender};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};

/// The socket's name in the ledger's directory.
const NAME: &str = "control";

const RELOAD: &str = "reload\n";
const DONE: &str = "done\n";
const REFUSED: &str = "refused\n";

/// How long a client may take to send its request, and to take a part of the answer.
const CLIENT_SPAN_MAX: Duration = Duration::from_secs(1);

/// How long the outcome of a request may take: a reload of a hundred thousand users takes seconds.
const OUTCOME_SPAN_MAX: Duration = Duration::from_secs(120);

/// Bytes of an answer that are read: fifty errors with the lines that they point to.
const REPLY_BYTES_MAX: u64 = 1 << 20;

/// The pause after a failed accept: descriptors are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What became of a request.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) is_done: bool,
    /// For a person: lines, or nothing.
    pub(crate) text: String,
}

/// A request to reload; dropped without an answer, it is refused.
pub(crate) struct Request(SyncSender<Outcome>);

impl Request {
    /// Answers it.
    pub(crate) fn reply(self, outcome: Outcome) {
        // There is room for the one answer; the thread may have given up.
        let _ = self.0.try_send(outcome);
    }
}

/// The open socket; dropping it removes the socket, while requests that have arrived are still answered.
pub(crate) struct Control {
    path: PathBuf,
}

impl Control {
    /// Opens the socket in `directory`, which this process owns, and passes requests to `hear` on a thread of
    /// its own.
    ///
    /// # Errors
    /// What the system says: a file system may have no sockets.
    pub(crate) fn open(
        directory: &Path,
        on_request: impl Fn(Request) + Send + 'static,
    ) -> io::Result<Control> {
        let opened = File::open(directory)?;
        let (path, short) = (directory.join(NAME), short_path(&opened));
        // One of a gateway that was killed: the owner of the directory is this process now.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // The directory is the account's own, so nothing connects before the socket's own mode holds.
        let listener = UnixListener::bind(short)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        thread::Builder::new().name("control".into()).spawn(move || serve(&listener, on_request))?;
        Ok(Control { path })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // What stays answers nothing, and the next start removes it.
        let _ = fs::remove_file(&self.path);
    }
}

fn serve(listener: &UnixListener, on_request: impl Fn(Request)) {
    for stream in listener.incoming() {
        match stream {
            // A client that leaves or sends something else has its own reasons.
            Ok(stream) => _ = reply(stream, &on_request),
            Err(_) => thread::sleep(ACCEPT_PAUSE),
        }
    }
}

fn reply(mut stream: UnixStream, on_request: &impl Fn(Request)) -> io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_SPAN_MAX))?;
    stream.set_write_timeout(Some(CLIENT_SPAN_MAX))?;
    let mut request = [0; RELOAD.len()];
    stream.read_exact(&mut request)?;
    let refused = |text: &str| Outcome { is_done: false, text: text.to_owned() };
    let outcome = if request == RELOAD.as_bytes() {
        let (sender, outcome) = mpsc::sync_channel(1);
        on_request(Request(sender));
        outcome.recv().unwrap_or_else(|_| refused("the gateway is ending"))
    } else {
        refused("this gateway does not know the request")
    };
    stream.write_all(if outcome.is_done { DONE } else { REFUSED }.as_bytes())?;
    stream.write_all(outcome.text.as_bytes())
}

/// Asks the gateway that owns `directory` to reload, and waits for the outcome.
///
/// # Errors
/// No gateway owns it, this account may not ask, or the gateway ended or took too long.
pub(crate) fn request_reload(directory: &Path) -> anyhow::Result<Outcome> {
    let shown = directory.display();
    let mut stream = match File::open(directory).and_then(|opened| UnixStream::connect(short_path(&opened))) {
        Ok(stream) => stream,
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                bail!("no gateway serves with the ledger in {shown}: its next start reads the configuration")
            }
            io::ErrorKind::PermissionDenied => {
                bail!("no permission to ask the gateway of {shown}: ask as its account, or as root")
            }
            _ => return Err(error).with_context(|| format!("cannot ask the gateway of {shown}")),
        },
    };
    let reply = exchange(&mut stream).with_context(|| format!("no answer of the gateway of {shown}"))?;
    let outcome = |is_done, text: &str| Outcome { is_done, text: text.to_owned() };
    let done = reply.strip_prefix(DONE).map(|text| outcome(true, text));
    done.or_else(|| reply.strip_prefix(REFUSED).map(|text| outcome(false, text)))
        .with_context(|| format!("the gateway of {shown} ended before it answered"))
}

fn exchange(stream: &mut UnixStream) -> io::Result<String> {
    stream.set_read_timeout(Some(OUTCOME_SPAN_MAX))?;
    stream.write_all(RELOAD.as_bytes())?;
    let mut reply = String::new();
    stream.take(REPLY_BYTES_MAX).read_to_string(&mut reply)?;
    Ok(reply)
}

/// The socket's path by way of the open directory: a socket's address has 108 bytes, a directory's path more.
fn short_path(directory: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{NAME}", directory.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_answered_with_its_outcome() {
        let directory = tempfile::tempdir().unwrap();
        // Longer than an address of a socket may be.
        let directory = directory.path().join("d".repeat(200));
        fs::create_dir(&directory).unwrap();
        let ask = || request_reload(&directory).map_err(|error| error.to_string());
        assert!(ask().unwrap_err().starts_with("no gateway serves with the ledger in /"));
        for (is_done, text) in [(true, "lines\nof text\n"), (false, ""), (false, "why")] {
            let on_request =
                move |request: Request| request.reply(Outcome { is_done, text: text.to_owned() });
            let control = Control::open(&directory, on_request).unwrap();
            let mode = fs::metadata(directory.join(NAME)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            assert_eq!(ask(), Ok(Outcome { is_done, text: text.to_owned() }));
            drop(control);
            assert!(!directory.join(NAME).exists());
        }
    }

    #[test]
    fn stale_socket_of_a_killed_gateway_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        drop(UnixListener::bind(directory.path().join(NAME)).unwrap());
        assert!(request_reload(directory.path()).unwrap_err().to_string().starts_with("no gateway serves"));
        let _control = Control::open(directory.path(), drop).unwrap();
        let outcome = request_reload(directory.path()).unwrap();
        assert_eq!(outcome, Outcome { is_done: false, text: "the gateway is ending".to_owned() });
    }

    #[test]
    fn silent_client_delays_others_for_a_bounded_time() {
        let directory = tempfile::tempdir().unwrap();
        let done = || Outcome { is_done: true, text: String::new() };
        let _control = Control::open(directory.path(), move |request| request.reply(done())).unwrap();
        let _silent = UnixStream::connect(directory.path().join(NAME)).unwrap();
        let mut confused = UnixStream::connect(directory.path().join(NAME)).unwrap();
        confused.write_all(b"shutdown\n").unwrap();
        assert!(request_reload(directory.path()).unwrap().is_done);
    }
}
