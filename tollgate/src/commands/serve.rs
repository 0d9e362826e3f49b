//! `tollgate serve`: runs the gateway in the foreground and handles signals and control requests.
//!
//! Guarantees: SIGHUP and `tollgate reload` put a new configuration in place, or leave everything as it was.
//! SIGTERM and Ctrl-C drain; a second signal stops immediately. The start prints all that a newcomer needs.

mod first_user;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use admin::Admin;
use anyhow::Context as _;
use gateway::config::settings::{OnFailure, Timeouts};
use gateway::config::{Config, Findings, Ingress, LoadOptions, Severity};
use gateway::first_start::first_start;
use gateway::observe::log::{Level, Value};
use gateway::server::Gateway;
use ledger::ReaderStatus;
use ledger::limits::DURABLE_AFTER;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use self::first_user::CredentialDelivery;
use super::{Context, counted, doctor, quota};
use crate::console::Console;
use crate::control::{Command, Control};
use crate::styled;
use events::{Event, Events};

mod events;
mod reload;
mod shortage;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Checks in a row during which the journal could not be written, before `on_failure` takes effect: a single
/// one may be transient.
const STUCK_CHECKS: u32 = 3;

/// The interval of checks for a failing ledger.
const LEDGER_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The options of `serve`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Let the first user `me` reach DEST too, for this run: HOST:PORT, NETWORK:PORT or the like.
    #[arg(long, value_name = "DEST")]
    allow: Vec<String>,
}

/// Serves until a signal or the ledger ends it.
pub(crate) fn run(context: &Context, options: Options) -> anyhow::Result<ExitCode> {
    let signals =
        Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1]).context("cannot watch signals")?;
    // Before tables exist that grow with the load.
    sys::heap::map_large_blocks();
    // Many systems start a process with a limit of 1,024, which is 500 tunnels.
    let _ = sys::limits::raise_descriptors();
    let mut load_options = LoadOptions { allow: options.allow, ..context.load_options()? };
    let is_terminal = std::io::stdout().is_terminal();
    let first =
        first_start(&load_options)?.map(|user| CredentialDelivery::prepare(user, is_terminal)).transpose()?;
    let started = start(&load_options);
    if let (Err(_), Some(first)) = (&started, &first) {
        first.undo();
    }
    let Started { mut gateway, admin, first_limit } = started?;
    // The parent process may not read standard output. That is no reason to stop.
    let _ = print_banner(&gateway, &admin, &first_limit, first.as_ref());
    let _ = warn(&gateway.config().warnings);
    let (events, console) = (Events::watch(signals, Arc::clone(gateway.log())), Console::new());
    let control = open_control(&gateway, &events, &console);
    let was_signalled = serve_events(&mut gateway, &mut load_options, &events, &console);
    // Afterwards the ledger's directory may belong to another process.
    drop(control);
    let ended = shut_down(gateway, admin, &events, &console);
    console.finish();
    // A supervisor is to start another process.
    ended.map(|code| if was_signalled { code } else { ExitCode::FAILURE })
}

/// The parts that a start creates.
struct Started {
    gateway: Gateway,
    admin: Admin,
    /// The limit of the kernel that is met first.
    first_limit: String,
}

fn start(load_options: &LoadOptions) -> anyhow::Result<Started> {
    let config = Config::load(load_options)?;
    // Before Tollgate starts threads, which would be counted as those of other processes.
    let first_limit = doctor::first_limit_line(&config);
    let admin = admin::bind(config.admin.address)?;
    let gateway = Gateway::start(config, admin.address(), VERSION)?;
    let watch = gateway.ledger().status_handle();
    let admin = admin.start(gateway.stats().clone(), Box::new(move || watch.status()))?;
    Ok(Started { gateway, admin, first_limit })
}

/// Opens the control socket. Without it the gateway serves all the same, and reloads on SIGHUP.
fn open_control(gateway: &Gateway, events: &Events, console: &Console) -> Option<Control> {
    let directory = &gateway.config().ledger.directory;
    let opened = Control::open(directory, events.on_request());
    let report = |error: &std::io::Error| {
        console.print_line(format!(
            "the control socket in {} cannot be opened: {error}. Reload by SIGHUP, since `tollgate reload` \
             cannot reach this gateway",
            directory.display()
        ));
    };
    opened.inspect_err(report).ok()
}

/// Handles events until a signal requests the stop; `false` if a failing ledger ends it.
fn serve_events(
    gateway: &mut Gateway,
    load_options: &mut LoadOptions,
    events: &Events,
    console: &Console,
) -> bool {
    let (mut reported, mut stuck_checks) = (LedgerHealth::default(), 0);
    let mut reported_shortages = shortage::ReportedShortages::default();
    // A reload does not change this setting.
    let on_failure = gateway.config().ledger.on_failure;
    loop {
        match events.next(LEDGER_CHECK_INTERVAL) {
            Some(Event::Reload) => _ = reload::reload(gateway, load_options, console),
            Some(Event::Request(request)) => {
                let outcome = match &request.command {
                    Command::Reload => reload::reload(gateway, load_options, console),
                    Command::Quotas => quota::state(gateway),
                    Command::Grant(json) => quota::grant(gateway, json),
                };
                request.reply(outcome);
            }
            Some(Event::Stop) => return true,
            None => {}
        }
        report_ledger_health(gateway, &mut reported, console);
        shortage::report(gateway, &mut reported_shortages, console);
        gateway.check_quotas();
        stuck_checks = if gateway.ledger().status_handle().is_stuck() { stuck_checks + 1 } else { 0 };
        if stuck_checks >= STUCK_CHECKS && on_failure == OnFailure::Drain {
            let cause = "the journal cannot be written, and `[ledger] on_failure` is `drain`";
            console.print_line(format!("the gateway stops: {cause}"));
            return false;
        }
    }
}

/// The conditions of the ledger that were reported and have not ended.
#[derive(Default)]
struct LedgerHealth {
    failing: bool,
    warning: bool,
    /// How often each further reader of the journal has lapsed, by its name.
    lapses: BTreeMap<String, u64>,
}

/// Reports the begin and the end of failures and warnings of the ledger.
fn report_ledger_health(gateway: &Gateway, reported: &mut LedgerHealth, console: &Console) {
    let status = gateway.ledger().status();
    let report = |was: &mut bool, cause: Option<&String>, level, begins: &str, ends: &str| {
        match cause {
            Some(cause) if !*was => {
                gateway.log().write_message(level, begins, &[("cause", Value::Text(cause))]);
                console.print_line(format!("{begins}: {cause}"));
            }
            None if *was => {
                gateway.log().write_message(Level::Info, ends, &[]);
                console.print_line(ends.to_owned());
            }
            _ => {}
        }
        *was = cause.is_some();
    };
    let begins = "the ledger cannot be written: ended flows wait in the live table or the journal";
    report(
        &mut reported.failing,
        status.failing.as_ref(),
        Level::Error,
        begins,
        "the ledger is written again",
    );
    let begins = "the ledger warns";
    let ends = "the ledger's warning has ended";
    report(&mut reported.warning, status.warning.as_ref(), Level::Warning, begins, ends);
    for reader in reported.lapsed(&status.readers) {
        let fields = [("reader", Value::Text(&reader.name)), ("lsn", Value::Number(reader.missed_from))];
        gateway.log().write_message(Level::Warning, READER_LAPSED, &fields);
        console.print_line(render_lapse(reader));
    }
}

impl LedgerHealth {
    /// The further readers of the journal that lapsed and were not reported.
    fn lapsed<'s>(&mut self, readers: &'s [ReaderStatus]) -> Vec<&'s ReaderStatus> {
        let is_new = |reader: &&ReaderStatus| {
            let reported = self.lapses.entry(reader.name.clone()).or_default();
            std::mem::replace(reported, reader.lapses) < reader.lapses
        };
        readers.iter().filter(is_new).collect()
    }
}

fn render_lapse(reader: &ReaderStatus) -> String {
    let ReaderStatus { name, missed_from, .. } = reader;
    format!("{READER_LAPSED}: {name} misses entry {missed_from} and later ones, which the database has")
}

/// In the log, with the reader and the first entry that it misses.
const READER_LAPSED: &str =
    "a reader of the journal lapsed: it was behind its bound, or the disk had no space for both";

fn shut_down(gateway: Gateway, admin: Admin, events: &Events, console: &Console) -> anyhow::Result<ExitCode> {
    let has_second_signal = |span: Duration| matches!(events.next(span), Some(Event::Stop));
    let Timeouts { unready, mut drain, .. } = gateway.config().timeouts;
    if !unready.is_zero() {
        console
            .print_line(format!("/readyz returns 503, and the listeners close in {} s", unready.as_secs()));
    }
    if gateway.announce_end(unready, has_second_signal) {
        drain = Duration::ZERO;
    }
    console.print_line(format!(
        "draining: {} may take {} s to end; a second signal ends them at once",
        counted(gateway.connections(), "connection"),
        drain.as_secs()
    ));
    let summary = gateway.drain(drain, has_second_signal).context("the ledger could not be closed")?;
    admin.stop();
    let flows = counted(summary.records, "flow");
    console.print_line(format!("stopped; the ledger recorded {flows} in this run"));
    Ok(ExitCode::SUCCESS)
}

fn print_banner(
    gateway: &Gateway,
    admin: &Admin,
    first_limit: &str,
    first: Option<&CredentialDelivery>,
) -> std::io::Result<()> {
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
    writeln!(out, "  {first_limit}")?;
    print_ledger_status(&mut out, gateway)?;
    if let Some(first) = first {
        let proxy = gateway.listening().values().copied().next().unwrap_or(config.admin.address);
        first.print(&mut out, proxy)?;
    }
    out.flush()
}

/// Prints the configuration's warnings: settings that are valid but hardly intended.
fn warn(warnings: &Findings) -> std::io::Result<()> {
    if warnings.is_empty() {
        return Ok(());
    }
    writeln!(std::io::stderr(), "{}", warnings.render(Severity::Warning, styled()))
}

/// Prints the ledger's guarantees on this machine, and what its recovery found.
fn print_ledger_status(out: &mut impl Write, gateway: &Gateway) -> std::io::Result<()> {
    let (guarantees, recovery) = (gateway.ledger().guarantees(), gateway.ledger().recovery());
    let directory = gateway.config().ledger.directory.display();
    writeln!(out, "  ledger in {directory}: every counted byte is billed once, also across kill -9")?;
    writeln!(out, "    live table: {}, {}", guarantees.table.display(), medium(guarantees))?;
    let durable = match guarantees.durability {
        ledger::Durability::Delayed => format!("{} ms and three disk syncs", DURABLE_AFTER.as_millis()),
        ledger::Durability::Sync => "two disk syncs".to_owned(),
    };
    writeln!(
        out,
        "    after a power failure: flows that had ended {durable} before are billed in full; others as last \
         recorded: every 5 s, and with each 8 MiB"
    )?;
    let ledger::Recovery {
        killed, closed, uncertain, damaged, damaged_tables, lost, corruption, notes, ..
    } = recovery;
    if recovery.table_missing {
        writeln!(
            out,
            "    the last run was killed and its live table is missing: what its flows moved since they were \
             last journaled is not billed"
        )?;
    }
    notes.iter().try_for_each(|note| writeln!(out, "    {note}"))?;
    if killed + closed > 0 {
        let flows = killed + closed;
        writeln!(
            out,
            "    the last run was killed: {} recovered; whether {} more were sent is unknown, and they are \
             not billed",
            counted(flows, "flow"),
            counted(*uncertain, "byte")
        )?;
    }
    if *lost > 0 {
        writeln!(
            out,
            "    open when the last run lost its live table, and billed as last journaled: {}",
            counted(*lost, "flow")
        )?;
    }
    if *damaged > 0 {
        writeln!(
            out,
            "    damaged in its live table: {}, with flows that are billed as last journaled",
            counted(*damaged, "slot")
        )?;
    }
    if *damaged_tables > 0 {
        writeln!(
            out,
            "    damaged as a whole, and renamed to `*.damaged`: {}",
            counted(*damaged_tables, "live table")
        )?;
    }
    corruption.iter().try_for_each(|corruption| writeln!(out, "    the journal: {corruption}"))
}

/// The medium of the live table, and its consequence.
fn medium(guarantees: &ledger::Guarantees) -> &'static str {
    match (guarantees.medium.is_tmpfs, guarantees.medium.is_locked) {
        (true, true) => "in shared memory that outlives the process, but not its container",
        (true, false) => {
            "in shared memory that outlives the process, but not its container; it may be swapped, which a \
             larger LimitMEMLOCK (ulimit -l) prevents"
        }
        (false, _) => "on a disk: counting may wait for it (`tollgate doctor` says what space a tmpfs needs)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lapse_is_reported_once() {
        let reader = |name: &str, lapses, missed_from| ReaderStatus {
            name: name.to_owned(),
            lapses,
            missed_from,
            ..ReaderStatus::default()
        };
        let mut health = LedgerHealth::default();
        let mut lapsed = |readers: &[ReaderStatus]| -> Vec<String> {
            health.lapsed(readers).into_iter().map(render_lapse).collect()
        };
        assert_eq!(lapsed(&[reader("archive", 0, 0), reader("export", 0, 0)]), Vec::<String>::new());
        for (lapses, missed_from) in [(1, 17), (3, 90)] {
            let readers = [reader("archive", lapses, missed_from), reader("export", 0, 0)];
            let text = format!("archive misses entry {missed_from} and later ones, which the database has");
            assert_eq!(lapsed(&readers), [format!("{READER_LAPSED}: {text}")]);
            assert_eq!(lapsed(&readers), Vec::<String>::new());
        }
    }
}
