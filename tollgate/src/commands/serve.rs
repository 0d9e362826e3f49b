//! `tollgate serve`: the gateway in the foreground, and the signals that move it.
//!
//! Promises: HUP puts a new configuration in place or leaves everything as it was; TERM and Ctrl-C drain, a
//! second one ends the patience; what is printed at the start is all that a newcomer needs. Leaves to others:
//! everything that happens on the way of a connection (`gateway`).

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use admin::Admin;
use anyhow::Context as _;
use gateway::config::{Config, Given, Ingress};
use gateway::log::{Level, Value};
use gateway::server::Gateway;
use gateway::settings::OnFailure;
use gateway::users::{FirstUser, first_start};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::{Context, doctor};
use crate::voice::Voice;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Looks at which nothing could be journaled, before `on_failure` takes effect: one may be a failure that
/// heals.
const STUCK_LOOKS: u32 = 3;

/// How often it looks whether the ledger fails.
const LEDGER_LOOK: Duration = Duration::from_secs(1);

/// What the command line says.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Let the first user `me` reach DEST too, for this run: HOST:PORT, NETWORK:PORT or the like.
    #[arg(long, value_name = "DEST")]
    allow: Vec<String>,
}

/// Runs until a signal ends it.
pub(crate) fn run(context: &Context, options: Options) -> anyhow::Result<ExitCode> {
    let signals =
        Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1]).context("cannot watch signals")?;
    // The limit of 1,024 that many systems start with is 500 tunnels.
    let _ = sys::limits::raise_descriptors();
    let mut given = Given { allow: options.allow, ..context.given()? };
    let first = first_start(&given)?;
    let started = start(&given);
    if let (Err(_), Some(first)) = (&started, &first) {
        // Its password was never shown: the next start makes the user anew.
        let _ = std::fs::remove_file(&first.path);
    }
    let Started { mut gateway, admin, outlook } = started?;
    // Whoever started us may not read what we say; that is no reason to stop.
    let _ = greet(&gateway, &admin, &outlook, first.as_ref());
    let (signals, voice) = (watched(signals), Voice::new());
    let was_asked = serve_signals(&mut gateway, &mut given, &signals, &voice);
    let ended = end(gateway, admin, &signals, &voice);
    voice.finish();
    // Whoever watches over us is to start another.
    ended.map(|code| if was_asked { code } else { ExitCode::FAILURE })
}

/// What a start made.
struct Started {
    gateway: Gateway,
    admin: Admin,
    /// Which limit of the kernel's is met first.
    outlook: String,
}

fn start(given: &Given) -> anyhow::Result<Started> {
    let config = Config::load(given)?;
    // Before there are threads of ours, which it would count as others'.
    let outlook = doctor::outlook(&config);
    let admin = admin::bind(config.admin.address)?;
    let gateway = Gateway::start(config, admin.address(), VERSION)?;
    let watch = gateway.ledger().watch();
    let admin = admin.start(gateway.stats().clone(), Box::new(move || watch.status()))?;
    Ok(Started { gateway, admin, outlook })
}

/// Signals as a channel, so that they can be awaited with a time limit.
fn watched(mut signals: Signals) -> Receiver<i32> {
    // Signals that arrive faster than they are obeyed wait in the kernel, where equal ones become one.
    let (sender, receiver) = mpsc::sync_channel(1);
    // The thread lives as long as the process: a signal is delivered whenever it comes.
    thread::spawn(move || signals.forever().try_for_each(|signal| sender.send(signal)));
    receiver
}

/// Obeys signals until one asks for the end; `false` if the ledger asked for it.
fn serve_signals(gateway: &mut Gateway, given: &mut Given, signals: &Receiver<i32>, voice: &Voice) -> bool {
    let (mut told, mut stuck_looks) = (Told::default(), 0);
    // A reload does not change it.
    let on_failure = gateway.config().ledger.on_failure;
    loop {
        match signals.recv_timeout(LEDGER_LOOK) {
            Ok(SIGHUP) => reload(gateway, given, voice),
            Ok(SIGUSR1) => gateway.log().reopen(),
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return true,
            Err(RecvTimeoutError::Timeout) => {}
        }
        tell_of_ledger(gateway, &mut told, voice);
        stuck_looks = if gateway.ledger().watch().is_stuck() { stuck_looks + 1 } else { 0 };
        if stuck_looks >= STUCK_LOOKS && on_failure == OnFailure::Drain {
            voice.say("the journal cannot be written: ending, as `on_failure` says".to_owned());
            return false;
        }
    }
}

/// What was said of the ledger, and holds.
#[derive(Default)]
struct Told {
    failing: bool,
    warning: bool,
}

/// Says when the ledger has begun to fail, or will before long, and when that is over.
fn tell_of_ledger(gateway: &Gateway, told: &mut Told, voice: &Voice) {
    let status = gateway.ledger().status();
    let say = |was: &mut bool, cause: Option<&String>, level, begins: &str, ends: &str| {
        match cause {
            Some(cause) if !*was => {
                gateway.log().say(level, begins, &[("cause", Value::Text(cause))]);
                voice.say(format!("{begins}: {cause}"));
            }
            None if *was => {
                gateway.log().say(Level::Info, ends, &[]);
                voice.say(ends.to_owned());
            }
            _ => {}
        }
        *was = cause.is_some();
    };
    let begins = "the ledger cannot be written: ended flows wait in the live table or the journal";
    say(&mut told.failing, status.failing.as_ref(), Level::Error, begins, "the ledger is written again");
    let begins = "the next segment of the journal cannot be made, and will be needed";
    let ends = "the next segment of the journal is made";
    say(&mut told.warning, status.warning.as_ref(), Level::Warning, begins, ends);
}

fn reload(gateway: &mut Gateway, given: &mut Given, voice: &Voice) {
    let log = gateway.log().clone();
    if let Ok(addresses) = sys::socket::local_addresses() {
        given.local_addresses = addresses;
    }
    given.running = gateway.config().file().map(Path::to_path_buf);
    let outcome = Config::load(given)
        .map_err(|errors| errors.to_string())
        .and_then(|config| gateway.reload(config).map_err(|error| error.to_string()));
    match outcome {
        Ok(changes) => {
            let (added, removed) = (list(&changes.added), list(&changes.removed));
            let restart = changes.needs_restart.join(" ");
            log.say(
                Level::Info,
                "configuration reloaded",
                &[
                    ("listeners_added", Value::Text(&added)),
                    ("listeners_removed", Value::Text(&removed)),
                    ("needs_restart", Value::Text(&restart)),
                ],
            );
            if !restart.is_empty() {
                voice.say(format!("reloaded; these take effect with the next start: {restart}"));
            }
        }
        Err(error) => {
            gateway.stats().reloads.failed();
            log.say(
                Level::Error,
                "reload refused, the old configuration stays",
                &[("error", Value::Text(&error))],
            );
            voice.say(format!("reload refused, the old configuration stays:\n{error}"));
        }
    }
}

fn end(gateway: Gateway, admin: Admin, signals: &Receiver<i32>, voice: &Voice) -> anyhow::Result<ExitCode> {
    let patience = gateway.config().timeouts.drain;
    voice.say(format!(
        "draining {} connections for at most {} s; a second signal ends the patience",
        gateway.connections(),
        patience.as_secs()
    ));
    let hurry = |span: Duration| matches!(signals.recv_timeout(span), Ok(SIGTERM | SIGINT | SIGQUIT));
    let summary = gateway.drain(patience, hurry).context("the ledger could not be closed")?;
    admin.stop();
    voice.say(format!("stopped; {} flows are in the ledger since the start", summary.records));
    Ok(ExitCode::SUCCESS)
}

fn greet(gateway: &Gateway, admin: &Admin, outlook: &str, first: Option<&FirstUser>) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let config = gateway.config();
    writeln!(out, "tollgate {VERSION}")?;
    for listener in &config.listeners {
        let bound = gateway.listening()[&listener.address];
        match &listener.ingress {
            Ingress::Mixed => writeln!(out, "  HTTP and SOCKS5 on {bound}")?,
            Ingress::Http => writeln!(out, "  HTTP on {bound}")?,
            Ingress::Socks5 => writeln!(out, "  SOCKS5 on {bound}")?,
            Ingress::Forward { to, user } => {
                let user = config.policy.user_name(*user);
                writeln!(out, "  {bound} leads to {to}, billed to {user}")?;
            }
        }
    }
    writeln!(out, "  health and metrics on http://{}/metrics", admin.address())?;
    writeln!(out, "  {outlook}")?;
    greet_ledger(&mut out, gateway)?;
    if let Some(first) = first {
        let proxy = gateway.listening().values().copied().next().unwrap_or(config.admin.address);
        greet_first(&mut out, first, proxy)?;
    }
    out.flush()
}

/// What the ledger promises here, in a user's words, and what it found.
fn greet_ledger(out: &mut impl Write, gateway: &Gateway) -> std::io::Result<()> {
    let (promise, recovery) = (gateway.ledger().promise(), gateway.ledger().recovery());
    let directory = gateway.config().ledger.directory.display();
    writeln!(out, "  ledger in {directory}: every byte is billed once, also across kill -9")?;
    writeln!(out, "    live table: {}, {}", promise.table.display(), medium(promise))?;
    let durable = match promise.durability {
        ledger::Durability::Delayed => "ended flows within 10 ms and a sync of the disk",
        ledger::Durability::Sync => "ended flows before their place is free",
    };
    writeln!(out, "    after a power failure: {durable}; open ones to their last 5 s or 8 MiB")?;
    let ledger::Recovery { killed, closed, uncertain, damaged, damaged_tables, lost, trouble, .. } = recovery;
    if killed + closed > 0 {
        let flows = killed + closed;
        writeln!(out, "    the last run was killed: {flows} flows recovered, {uncertain} bytes uncertain")?;
    }
    if *lost > 0 {
        writeln!(
            out,
            "    {lost} flows were open when the last run lost its live table: billed as journaled"
        )?;
    }
    if *damaged > 0 {
        writeln!(
            out,
            "    {damaged} places of its live table were damaged; their flows are billed as journaled"
        )?;
    }
    if *damaged_tables > 0 {
        writeln!(out, "    {damaged_tables} live tables were damaged as a whole; now named `*.damaged`")?;
    }
    trouble.iter().try_for_each(|trouble| writeln!(out, "    the journal: {trouble}"))
}

/// What the live table lies on, and what that means.
fn medium(promise: &ledger::Promise) -> &'static str {
    match (promise.medium.is_tmpfs, promise.medium.is_locked) {
        (true, true) => "in memory that outlives the process (and goes with its container)",
        (true, false) => {
            "in memory that outlives the process (and goes with its container); it may be swapped"
        }
        (false, _) => "on a disk: no tmpfs has room, so counting may wait for the disk",
    }
}

fn greet_first(out: &mut impl Write, first: &FirstUser, proxy: SocketAddr) -> std::io::Result<()> {
    let FirstUser { name, password, path } = first;
    writeln!(out, "\nMade the user `{name}` ({}). The password is shown this once. Try:", path.display())?;
    writeln!(out, "\n  curl -x http://{name}:{}@{proxy} https://example.com/\n", password.as_str())?;
    writeln!(out, "and then: tollgate usage")
}

fn list(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(" ")
}
