//! The control socket of a running gateway: a command sends a request and receives the outcome.
//!
//! Guarantees: the socket lies in the ledger's directory, which one gateway at a time owns. So a request
//! reaches that gateway or none, and never another process. Only root and the gateway's own account can
//! connect. One connection at a time is served, for a bounded time.
//!
//! ```text
//!   client:   reload LF   or   quota LF   or   grant JSON LF
//!   gateway:  done LF text      or      refused LF text      and closes
//! ```

use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
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

const DONE: &str = "done\n";
const REFUSED: &str = "refused\n";

/// How long a client may take to send its request, and to receive a part of the reply.
const CLIENT_SPAN_MAX: Duration = Duration::from_secs(1);

/// How long a request may take: a reload of a hundred thousand users takes seconds.
const OUTCOME_SPAN_MAX: Duration = Duration::from_secs(120);

/// Bytes of a reply that are read: fifty errors, each with the line that it points to, or the state of a
/// million quotas.
const REPLY_BYTES_MAX: u64 = 256 << 20;

/// Bytes of a request.
const REQUEST_BYTES_MAX: u64 = 4096;

/// The pause after a failed accept, which means that descriptors are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The result of a request.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) is_done: bool,
    /// Text for people: lines, or nothing.
    pub(crate) text: String,
}

/// What a client requests.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Command {
    /// Reload the configuration.
    Reload,
    /// The state of all quotas, as JSON.
    Quotas,
    /// A grant, as JSON.
    Grant(String),
}

impl Command {
    /// The line of the request, with its LF.
    fn line(&self) -> String {
        match self {
            Command::Reload => "reload\n".to_owned(),
            Command::Quotas => "quota\n".to_owned(),
            Command::Grant(json) => format!("grant {json}\n"),
        }
    }

    fn parse(line: &str) -> Option<Command> {
        match line.strip_suffix('\n')?.split_once(' ') {
            None if line == "reload\n" => Some(Command::Reload),
            None if line == "quota\n" => Some(Command::Quotas),
            Some(("grant", json)) => Some(Command::Grant(json.to_owned())),
            _ => None,
        }
    }
}

/// A client's request; it is refused if it is dropped without a reply.
pub(crate) struct Request {
    pub(crate) command: Command,
    reply: SyncSender<Outcome>,
}

impl Request {
    /// Sends the outcome to the client.
    pub(crate) fn reply(self, outcome: Outcome) {
        // The channel has capacity for the one reply; the receiver may have given up.
        let _ = self.reply.try_send(outcome);
    }
}

/// The open socket. Dropping it removes the socket's file; requests that have arrived are still answered.
pub(crate) struct Control {
    path: PathBuf,
}

impl Control {
    /// Opens the socket in `directory`, which this process owns. A thread passes each request to
    /// `on_request`.
    ///
    /// # Errors
    /// Those of bind(2) and chmod(2): a file system may not support sockets.
    pub(crate) fn open(
        directory: &Path,
        on_request: impl Fn(Request) + Send + 'static,
    ) -> io::Result<Control> {
        let opened = File::open(directory)?;
        let (path, short) = (directory.join(NAME), short_path(&opened));
        // A killed gateway left it: this process owns the directory now.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Nothing connects before the socket has its own mode: the directory belongs to the account alone.
        let listener = UnixListener::bind(short)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        thread::Builder::new().name("control".into()).spawn(move || serve(&listener, on_request))?;
        Ok(Control { path })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // A socket that stays has no listener, and the next start removes it.
        let _ = fs::remove_file(&self.path);
    }
}

fn serve(listener: &UnixListener, on_request: impl Fn(Request)) {
    for stream in listener.incoming() {
        match stream {
            // A client that disconnects or sends something else needs no reply.
            Ok(stream) => _ = reply(stream, &on_request),
            Err(_) => thread::sleep(ACCEPT_PAUSE),
        }
    }
}

fn reply(mut stream: UnixStream, on_request: &impl Fn(Request)) -> io::Result<()> {
    stream.set_read_timeout(Some(CLIENT_SPAN_MAX))?;
    stream.set_write_timeout(Some(CLIENT_SPAN_MAX))?;
    let mut line = String::new();
    BufReader::new((&stream).take(REQUEST_BYTES_MAX)).read_line(&mut line)?;
    let refused = |text: &str| Outcome { is_done: false, text: text.to_owned() };
    let outcome = match Command::parse(&line) {
        Some(command) => {
            let (reply, outcome) = mpsc::sync_channel(1);
            on_request(Request { command, reply });
            outcome.recv().unwrap_or_else(|_| refused("the gateway is stopping"))
        }
        None => refused("unknown request"),
    };
    stream.write_all(if outcome.is_done { DONE } else { REFUSED }.as_bytes())?;
    stream.write_all(outcome.text.as_bytes())
}

/// Requests a reload from the gateway that owns `directory`, and waits for the outcome.
///
/// # Errors
/// No gateway owns the directory, this account has no permission, or the gateway ended or took too long.
pub(crate) fn request_reload(directory: &Path) -> anyhow::Result<Outcome> {
    request(directory, &Command::Reload)?.with_context(|| {
        let shown = directory.display();
        format!("no gateway serves with the ledger in {shown}: its next start reads the configuration")
    })
}

/// Sends a request to the gateway that owns `directory`, and waits for the outcome; `None` if none does.
///
/// # Errors
/// This account has no permission, or the gateway ended or took too long.
pub(crate) fn request(directory: &Path, command: &Command) -> anyhow::Result<Option<Outcome>> {
    let shown = directory.display();
    let mut stream = match File::open(directory).and_then(|opened| UnixStream::connect(short_path(&opened))) {
        Ok(stream) => stream,
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => return Ok(None),
            io::ErrorKind::PermissionDenied => {
                bail!("no permission for the control socket in {shown}: use the gateway's account, or root")
            }
            _ => return Err(error).with_context(|| format!("cannot connect to the gateway of {shown}")),
        },
    };
    let reply =
        exchange(&mut stream, command).with_context(|| format!("no reply from the gateway of {shown}"))?;
    let outcome = |is_done, text: &str| Outcome { is_done, text: text.to_owned() };
    let done = reply.strip_prefix(DONE).map(|text| outcome(true, text));
    done.or_else(|| reply.strip_prefix(REFUSED).map(|text| outcome(false, text)))
        .with_context(|| format!("the gateway of {shown} ended before it replied"))
        .map(Some)
}

fn exchange(stream: &mut UnixStream, command: &Command) -> io::Result<String> {
    stream.set_read_timeout(Some(OUTCOME_SPAN_MAX))?;
    stream.write_all(command.line().as_bytes())?;
    let mut reply = String::new();
    stream.take(REPLY_BYTES_MAX).read_to_string(&mut reply)?;
    Ok(reply)
}

/// The socket's path through the open directory: `sun_path` has 108 bytes, and a directory's path may be
/// longer.
fn short_path(directory: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{NAME}", directory.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_answered_with_its_outcome() {
        let directory = tempfile::tempdir().unwrap();
        // Longer than the address of a socket may be.
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
        assert_eq!(outcome, Outcome { is_done: false, text: "the gateway is stopping".to_owned() });
    }

    #[test]
    fn silent_client_delays_others_for_a_bounded_time() {
        let directory = tempfile::tempdir().unwrap();
        let done = || Outcome { is_done: true, text: String::new() };
        let _control =
            Control::open(directory.path(), move |request: Request| request.reply(done())).unwrap();
        let _silent = UnixStream::connect(directory.path().join(NAME)).unwrap();
        let mut wrong_client = UnixStream::connect(directory.path().join(NAME)).unwrap();
        wrong_client.write_all(b"shutdown\n").unwrap();
        assert!(request_reload(directory.path()).unwrap().is_done);
    }
}
