//! The configuration: from texts to validated settings, or to every error at once.
//!
//! Guarantees: a [`Config`] is consistent. Bounds hold, references resolve, and its users and its policy
//! belong to each other. Loading changes nothing on disk.
//!
//! ```text
//! source.rs             texts             --config, ./tollgate.toml, users.d/*.toml, --allow
//!    |
//! raw.rs                typed tables      with read.rs (walks the TOML tree) and value.rs (types of values),
//!    |                                    as settings.rs declares them in the form of schema.rs
//! listeners.rs, user.rs, team.rs,         what the tables mean together
//! quota.rs
//!    |
//! Config, or ConfigErrors                 report.rs renders them, secrets.rs masks secrets
//! ```

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use policy::Policy;
use policy::rules::Rule;

pub use listeners::{Ingress, Listener};
pub use quota::{Quota, Quotas, Rates};
pub use read::{Items, Located, Optional, nearest};
pub use report::{ConfigErrors, Finding, Findings, Severity, Span};
pub use team::Team;
pub use user::User;
pub use value::{Direction, NameServer, OwnAddress, Scope};

use crate::config::settings::{
    Accept, Admin, Auth, Dns, DnsMode, Ledger, Limits, Log, LogTarget, Network, Threads, Timeouts,
};
use crate::users::USERS_DIRECTORY;
use raw::RawConfig;
use report::{Diagnostic, Report, SourceText};
use source::Sources;

#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod listeners;
mod quota;
mod raw;
mod read;
mod report;
mod schema;
mod secrets;
pub mod settings;
mod source;
mod team;
mod user;
mod value;

/// The user that the first start without a configuration creates, and to which `serve --allow` adds
/// destinations.
pub const FIRST_USER: &str = "me";

/// The inputs of a load.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// The named file. Without one it is `./tollgate.toml` if that exists, else the embedded defaults.
    pub path: Option<PathBuf>,
    /// Destinations for the user [`FIRST_USER`], in addition to those in its file.
    pub allow: Vec<String>,
    /// The addresses of this machine's interfaces, for which a wildcard listener stands.
    pub local_addresses: Vec<IpAddr>,
    /// The directory that systemd made for this run (`$RUNTIME_DIRECTORY`). The live table is put there,
    /// unless it is configured.
    pub runtime_directory: Option<PathBuf>,
    /// At a reload, the result of [`Config::file`]. If that file is gone or empty now, this is an error, and
    /// no reason to use the defaults: an editor may be about to write it.
    pub running: Option<PathBuf>,
    /// A user file that is to be checked before it is written: its path and its text. Without a text it is
    /// treated as deleted.
    pub draft: Option<(PathBuf, Option<String>)>,
}

/// The source of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This file.
    File(PathBuf),
    /// No file: the defaults.
    Embedded,
}

/// A whole configuration.
#[derive(Debug)]
pub struct Config {
    /// The source.
    pub origin: Origin,
    /// Whether the file has any text.
    is_written: bool,
    /// The directory of user files; it may not exist yet.
    pub users_directory: PathBuf,
    /// At least one; no two on one address.
    pub listeners: Vec<Listener>,
    /// The addresses at which this gateway is reached.
    pub network: Network,
    /// Health and metrics.
    pub admin: Admin,
    /// How connections reach the threads.
    pub accept: Accept,
    /// Threads.
    pub threads: Threads,
    /// Bounds on what is open at a time.
    pub limits: Limits,
    /// Deadlines.
    pub timeouts: Timeouts,
    /// Name resolution.
    pub dns: Dns,
    /// The ledger; its directory as the process can open it.
    pub ledger: Ledger,
    /// As in [`LoadOptions`].
    pub runtime_directory: Option<PathBuf>,
    /// The log; its file as the process can open it.
    pub log: Log,
    /// How clients prove their user.
    pub auth: Auth,
    /// Each behind its parent, and so behind all its ancestors.
    pub teams: Vec<Team>,
    /// What all quotas have in common.
    pub quotas: Quotas,
    /// In the order of the policy: `users[i].index.as_usize() == i`.
    pub users: Vec<User>,
    /// The rules of all users.
    pub policy: Policy,
    /// As in [`LoadOptions`].
    local_addresses: Vec<IpAddr>,
    /// Settings that are valid but probably not intended.
    pub warnings: Findings,
}

impl Config {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// All errors at once.
    pub fn load(options: &LoadOptions) -> Result<Config, ConfigErrors> {
        let mut report = Report::default();
        let sources = source::read_sources(options, &Ledger::default().directory, &mut report);
        Config::from_sources(options, sources, report)
    }

    /// Checks a configuration whose texts were read. `report` has what was wrong with reading them.
    fn from_sources(
        options: &LoadOptions,
        mut sources: Sources,
        mut report: Report,
    ) -> Result<Config, ConfigErrors> {
        let mut raw = raw::read(&sources, &mut report);
        add_allowed(options, &mut raw, &mut sources.sources, &mut report);
        listeners::check(&raw, &mut report);
        user::check(&raw, &mut report);
        team::check(&raw, &mut report);
        quota::check(&raw, &mut report);
        check_agreement(&raw, &mut report);
        user::warn_unshared_limit(&raw, &mut report);
        warn_unread_user_files(&sources.origin, &raw, &sources.users_directory, &mut report);
        warn_no_users(&sources, &raw, &mut report);
        let policy = user::policy(&raw, &mut report);
        if let Some(policy) = &policy {
            listeners::warn_denied_forwards(&raw, policy, &mut report);
            listeners::warn_public_admin(&raw, &options.local_addresses, policy, &mut report);
        }
        let findings = |diagnostics| Findings::new(&sources.sources, diagnostics, &report.secrets);
        match policy {
            Some(policy) if report.errors.is_empty() => {
                let warnings = findings(report.warnings);
                let (origin, users_directory) = (sources.origin, sources.users_directory);
                let main = sources.main.map(|index| &sources.sources[index].text);
                let is_written = main.is_some_and(|text| !text.trim().is_empty());
                let mut config =
                    assemble(options, (origin, is_written), users_directory, raw, policy, warnings);
                config.add_own_addresses([]);
                Ok(config)
            }
            _ => Err(ConfigErrors(findings(report.errors))),
        }
    }

    /// The file of the running configuration, if it has one.
    pub fn file(&self) -> Option<&Path> {
        match &self.origin {
            Origin::File(path) if self.is_written => Some(path),
            Origin::File(_) | Origin::Embedded => None,
        }
    }

    /// Marks the addresses of `open` sockets as the gateway's own, in addition to the configured ones: those
    /// with ports that the kernel chose, or opened by an earlier configuration.
    pub(crate) fn add_own_addresses(&mut self, open: impl IntoIterator<Item = SocketAddr>) {
        let configured = self.listeners.iter().map(|listener| listener.address).chain([self.admin.address]);
        let further = &self.network.own_addresses;
        let own = listeners::own_addresses(configured.chain(open), &self.local_addresses, further);
        self.policy.set_own(&own);
    }

    /// The users that can have any name resolved, in the order of [`Config::users`].
    pub fn resolvers_of_any_name(&self) -> impl Iterator<Item = &User> {
        self.users.iter().filter(|user| !user.disabled && self.policy.resolves_any_name(user.index))
    }

    /// The user with this name.
    pub fn user(&self, name: &str) -> Option<&User> {
        self.policy.user(name).map(|index| &self.users[index.as_usize()])
    }
}

fn assemble(
    options: &LoadOptions,
    (origin, is_written): (Origin, bool),
    users_directory: PathBuf,
    raw: RawConfig,
    policy: Policy,
    warnings: Findings,
) -> Config {
    let base = base_directory(&origin);
    let listeners = listeners::resolve(&raw, &policy);
    let ledger = Ledger {
        directory: base.join(&raw.ledger.directory),
        live_table: raw.ledger.live_table.as_ref().map(|path| base.join(path)),
        ..raw.ledger
    };
    let teams = team::resolve(&raw);
    let log = Log {
        to: match &raw.log.to {
            LogTarget::Stderr => LogTarget::Stderr,
            LogTarget::File(path) => LogTarget::File(base.join(path)),
        },
        ..raw.log.clone()
    };
    Config {
        users_directory,
        listeners,
        network: raw.network.clone(),
        admin: raw.admin.clone(),
        accept: raw.accept.clone(),
        threads: raw.threads.clone(),
        limits: raw.limits.clone(),
        timeouts: raw.timeouts.clone(),
        dns: raw.dns.clone(),
        ledger,
        runtime_directory: options.runtime_directory.clone(),
        log,
        auth: raw.auth.clone(),
        quotas: Quotas::new(&raw.quotas),
        users: user::resolve(raw, &policy, &teams),
        teams,
        policy,
        local_addresses: options.local_addresses.clone(),
        warnings,
        origin,
        is_written,
    }
}

/// The directory to which paths are relative.
fn base_directory(origin: &Origin) -> PathBuf {
    match origin {
        Origin::File(path) => path.parent().map_or(PathBuf::new(), Path::to_path_buf),
        Origin::Embedded => source::absolute(Path::new(".")),
    }
}

/// Adds the destinations of `serve --allow` to the first user. Each is a text of its own, so that an error
/// can point into it.
fn add_allowed(
    options: &LoadOptions,
    raw: &mut RawConfig,
    sources: &mut Vec<SourceText>,
    report: &mut Report,
) {
    for text in &options.allow {
        sources.push(SourceText { name: "--allow".into(), text: text.clone() });
        let span = Span::new(sources.len() - 1, 0..text.len());
        let rule = match Rule::parse(text) {
            Ok(rule) => Located { value: rule, span },
            Err(error) => {
                let title = "wrong destination for `--allow`";
                report.error(Diagnostic::at(&span, title).label(error.to_string()));
                continue;
            }
        };
        match raw.users.iter_mut().find(|user| *user.name == *FIRST_USER) {
            Some(user) => user.table.allow.push(rule),
            None if !raw.has_all_users => {}
            None => report.error(
                Diagnostic::at(&rule.span, format!("there is no user `{FIRST_USER}`")).help(format!(
                    "`--allow` adds a destination to `{FIRST_USER}`; for another user edit its `allow`"
                )),
            ),
        }
    }
}

/// Reports settings of different lines that contradict each other.
fn check_agreement(raw: &RawConfig, report: &mut Report) {
    let dns = &raw.dns;
    if dns.mode == DnsMode::System
        && let Some(server) = dns.servers.first()
    {
        let title = "`servers` is for `mode = \"builtin\"` only";
        report.error(Diagnostic::at(&server.span, title).help("the system resolver has its own"));
    }
    if let Some(span) = &raw.dns_span
        && dns.ttl_min > dns.ttl_max
    {
        report.error(Diagnostic::at(span, "`ttl_min` is greater than `ttl_max`"));
    }
    let log = &raw.log;
    if let Some(written) = log.size_max.written()
        && log.to == LogTarget::Stderr
    {
        let title = "`size_max` is for a log in a file only";
        report.error(Diagnostic::at(&written.span, title).help("name the file: `to = \"tollgate.log\"`"));
    }
}

/// Warns of user files that were created before there was a configuration file: they are no longer read.
fn warn_unread_user_files(origin: &Origin, raw: &RawConfig, users_directory: &Path, report: &mut Report) {
    let orphaned = base_directory(origin).join(&raw.ledger.directory).join(USERS_DIRECTORY);
    let files = source::user_files(&orphaned).unwrap_or_default();
    if !files.is_empty() && orphaned != users_directory {
        let title = format!("the user files in {} are not read", orphaned.display());
        let help = format!("with a configuration file they belong into {}", users_directory.display());
        report.warning(Diagnostic::without_span(title).help(help));
    }
}

/// Warns that every request is denied without users. Where there is no file either, the first start creates a
/// user.
fn warn_no_users(sources: &Sources, raw: &RawConfig, report: &mut Report) {
    if raw.users.is_empty() && sources.origin != Origin::Embedded {
        let title = "there are no users: every request is refused";
        let directory = sources.users_directory.display();
        let help = format!("`tollgate user add NAME` creates a user in {directory}");
        report.warning(Diagnostic::without_span(title).help(help));
    }
}

#[cfg(test)]
mod tests;
