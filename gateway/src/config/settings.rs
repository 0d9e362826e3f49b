//! Every setting, declared once: name, type, default, bounds and text.
//!
//! Guarantees: the typed tables, the parser's checks, `tollgate check --settings` and `docs/settings.md` all
//! come from the declarations in this file. A default is written as a user would write it, and read by the
//! same code.
//!
//! Not handled here: reading (`read.rs`) and what settings mean together (`config.rs`).

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use jiff::tz::TimeZone;
use policy::rules::Rule;
use proto::target::Target;
use toml::de::DeValue;

use crate::config::read::{FromSetting, FromTable, Items, Located, Optional, Scalar, Section, kind_of};
use crate::config::report::Report;
pub use crate::config::schema::{Setting, Table};
pub use crate::config::value::{
    AcceptStrategy, BitRate, ByteSize, Direction, LogTarget, Realm, Scope, TeamName, byte_size, duration,
    network,
};
use crate::config::value::{NameServer, OwnAddress, choice};
use crate::credit::calendar::Per;
use crate::users::{PasswordHash, TokenHash, UserName};

/// Declares tables of settings: for each a struct with one field per setting, the code that reads it, and its
/// [`Table`]. A setting is `name: type = default, low ..= high;`, default and bounds as TOML.
macro_rules! settings {
    ($(
        $(#[doc = $about:literal])+
        $header:literal $table:ident {
            $(
                $(#[doc = $text:literal])+
                $name:ident: $type:ty = $default:tt $(, $low:literal ..= $high:literal)?;
            )+
        }
    )+) => {
        $(
            $(#[doc = $about])+
            #[derive(Clone, Debug, PartialEq)]
            pub struct $table {
                $($(#[doc = $text])+ pub $name: $type,)+
            }

            impl FromTable for $table {
                const TABLE: &'static Table = &Table {
                    header: $header,
                    text: &[$($about),+],
                    settings: &[$(Setting {
                        name: stringify!($name),
                        kind: <$type as FromSetting>::KIND,
                        list: <$type as FromSetting>::LIST,
                        secret: <$type as FromSetting>::SECRET,
                        default: stringify!($default),
                        bounds: &[$(stringify!($low), stringify!($high))?],
                        text: &[$($text),+],
                    }),+],
                };

                fn read(section: &Section<'_>, report: &mut Report) -> Option<$table> {
                    section.reject_unknown_keys(Self::TABLE, TABLES, report);
                    $(let $name = section.value(Self::TABLE, stringify!($name), report);)+
                    Some($table { $($name: $name?),+ })
                }
            }
        )+

        /// All tables.
        pub const TABLES: &[&Table] = &[$($table::TABLE),+];
    };
}

settings! {
    /// A port that Tollgate listens on. Without any `[[listener]]` there is one: `mixed` on `127.0.0.1:3128`.
    "[[listener]]" ListenerTable {
        /// Address and port. `[::]` takes IPv6 only: for both families have a listener on `0.0.0.0` too. Port
        /// 0 lets the kernel choose one, which `serve` prints.
        address: Located<SocketAddr> = required;
        /// The protocol of its clients. `mixed` serves HTTP, CONNECT and plain requests, and SOCKS5,
        /// distinguished by the first byte; `forward` has no protocol: every connection leads to one
        /// destination, billed to one user.
        kind: ListenerKind = "mixed";
        /// The destination of a `forward` listener, `HOST:PORT`.
        to: Optional<Target> = none;
        /// The user that a `forward` listener's flows are billed to, and whose rules apply.
        user: Optional<UserName> = none;
    }

    /// The addresses of this gateway.
    "[network]" Network {
        /// Further addresses at which connections reach this gateway, which denies connections to them: a
        /// published port of its container, an address that a router translates (1:1 NAT), a load balancer.
        /// Without a port, the ports of all listeners and of the admin side are meant. Addresses of this
        /// machine need not be named, whenever they are added.
        own_addresses: Vec<Located<OwnAddress>> = [];
    }

    /// Health and metrics, over plain HTTP and without a password: keep it on a private address.
    "[admin]" Admin {
        /// Address and port of `/healthz`, `/readyz`, `/metrics` and `/version`.
        address: SocketAddr = "127.0.0.1:9128";
    }

    /// How connections reach the reactor threads.
    "[accept]" Accept {
        /// `mutex` lets one thread at a time wait for connections, and a thread with many of them declines:
        /// the least work. `handoff` lets any idle thread accept, and hands each connection to a thread that
        /// has few: the best balance, for tunnels that last. `reuse_port` gives each thread a socket of its
        /// own, and the kernel distributes connections at random.
        strategy: AcceptStrategy = "mutex";
        /// Connections that may wait in the kernel for each listening socket; `net.core.somaxconn` bounds it.
        backlog: u32 = 4096, 1 ..= 65535;
    }

    /// Threads that serve. Hashing, names, ledger, log and admin have their own.
    "[threads]" Threads {
        /// Reactor threads; 0 is one for each CPU that the process may use.
        reactors: u32 = 0, 0 ..= 256;
    }

    /// Bounds on what is open at a time. A reached limit refuses what is new; open flows stay.
    "[limits]" Limits {
        /// Flows and idle plain HTTP connections at the same time; `handshakes` counts the connections before
        /// them. A tunnel takes two descriptors; `tollgate doctor` reports
        /// whether this machine can hold them. Idle plain HTTP connections are closed where flows need their
        /// slots, first those of the user with the most.
        connections: u32 = 9_000, 1 ..= 1_000_000;
        /// Connections whose client is not known yet, at the same time: all that clients without credentials
        /// can hold. Each reactor thread has an equal part of them, and together they are a quarter of the
        /// process's descriptors at most. Where all of a part are taken, the next client evicts the oldest of
        /// the source with the most (a source is an IPv4 address or an IPv6 /64).
        handshakes: u32 = 2_000, 1 ..= 100_000;
        /// Connections at the same time for each user without a `connections` of their own. A closing one
        /// counts until its peers have acknowledged all bytes (see `half_closed`). Plain HTTP connections are
        /// kept for a next request up to 32 beyond this; those above it close after a response.
        connections_per_user: u32 = 1_000, 1 ..= 1_000_000;
    }

    /// Deadlines. Durations are written with their unit: ms, s, m, h or d.
    "[timeouts]" Timeouts {
        /// From accept to a complete request that identifies the user, authentication included, however often
        /// credentials are requested meanwhile (3 times at most); then from the first byte of each next
        /// request to the end of its head. A denied client has 2 s more to read the response. While more than
        /// half of `[limits] handshakes` are taken, the first of these is shorter: 1 s when all are.
        greeting: Duration = "10s", "100ms" ..= "10m";
        /// For reaching the destination, over all its addresses together.
        connect: Duration = "10s", "100ms" ..= "10m";
        /// A tunnel, or a plain HTTP request, ends when for this long neither peer has sent or acknowledged a
        /// byte. While bytes wait for a peer that acknowledges none, it may end an eighth of this later.
        idle: Duration = "15m", "1s" ..= "30d";
        /// The same for a tunnel or request of which one direction has ended; it begins anew with that end.
        /// Bytes that were sent before an end still reach their peer: from 32 KiB on, the connection counts
        /// among the user's until the peer has acknowledged them, or has acknowledged nothing for a minute.
        /// Where the process has no free descriptor, one that was not acknowledged for 15 s is reset. A
        /// receiver's kernel announces free space when half of its buffer is free, which may take a receiver
        /// of 1 kB/s a minute.
        half_closed: Duration = "1m", "1s" ..= "30d";
        /// A tunnel or request ends after this in any case.
        lifetime: Option<Duration> = "none", "1s" ..= "365d";
        /// A client's connection that waits for its next plain HTTP request ends after this.
        keep_alive: Duration = "1m", "1s" ..= "1d";
        /// How long a stopping `serve` goes on as before while `/readyz` already says 503, so that load
        /// balancers send new clients elsewhere before the listeners close. A second signal ends it.
        unready: Duration = "0s", "0s" ..= "1h";
        /// How long a stopping `serve` waits for its flows to end by themselves.
        drain: Duration = "30s", "0s" ..= "1d";
    }

    /// Name resolution.
    "[dns]" Dns {
        /// `builtin` reads `/etc/hosts`, queries the name servers itself, and caches answers for their TTL;
        /// `system` uses the C library (nsswitch, search domains), which returns no TTL.
        mode: DnsMode = "builtin";
        /// Name servers, for `builtin`; an empty list means those of `/etc/resolv.conf`.
        servers: Vec<Located<NameServer>> = [];
        /// For the answer to one lookup.
        timeout: Duration = "5s", "100ms" ..= "1m";
        /// Cached names, existing or not, for `builtin`.
        cache_entries: u32 = 16_384, 1 ..= 1_000_000;
        /// An answer is cached at least this long, whatever its TTL.
        ttl_min: Duration = "1s", "0s" ..= "1h";
        /// An answer is cached at most this long, whatever its TTL.
        ttl_max: Duration = "1h", "1s" ..= "7d";
        /// The answer that a name does not exist is cached at most this long.
        ttl_negative_max: Duration = "1m", "0s" ..= "1h";
    }

    /// The record of what each user used.
    "[ledger]" Ledger {
        /// Where it is kept; a relative path starts at the configuration file's directory. One `serve` at a
        /// time may use it.
        directory: PathBuf = "tollgate-data";
        /// When an ended flow is safe from a power failure. `delayed`: 15 ms and three syncs of the disk
        /// after its end; `sync`: two syncs after it. Either way no flow waits for the disk, and a kill of
        /// the process loses no counted byte.
        durability: Durability = "delayed";
        /// A directory for the live table, on a tmpfs that outlives the process; it must have enough space.
        /// `auto` takes `/dev/shm`, else systemd's `RuntimeDirectory`, else the ledger's own directory.
        live_table: Option<PathBuf> = "auto";
        /// The size of a file of the journal. Two or three of them exist at a time.
        segment: ByteSize = "64MiB", "256KiB" ..= "1GiB";
        /// The journal's size at most, but never less than four segments. It is reached only if the database
        /// cannot be written for long; then new flows are refused until it can.
        journal_max: ByteSize = "4GiB", "8MiB" ..= "1024GiB";
        /// What happens when the journal cannot be written, to any file. Open flows go on and are counted in
        /// the live table. `refuse`: new ones get 503 until it can be written; `drain`: the process drains
        /// and ends, so that another gateway can take over.
        on_failure: OnFailure = "refuse";
        /// Months of which each flow is kept; of older ones, the sums by user, class, hour and day.
        detail_months: u32 = 13, 1 ..= 1200;
    }

    /// The log: a line for each denial and each failure, and one or two for each flow
    /// ([which](log.md#which-lines-a-flow-has)). The log may drop lines, and counts them; the ledger drops
    /// nothing. A reload changes all of these settings but `to`.
    "[log]" Log {
        /// `stderr`, or a file, which SIGUSR1 opens again after a rotation; a relative path starts at the
        /// configuration file's directory.
        to: LogTarget = "stderr";
        /// Adds the `path` of plain HTTP requests, without the query, at most 256 bytes of it. Paths may
        /// reveal what users read, and some carry secrets.
        request_path: bool = false;
        /// The decisions that have a line. What was denied or failed always has one. `denied_and_long`: so
        /// has each tunnel that is still open after `long`; a shorter one has its `close` line alone, with
        /// the same fields. `all`: so has each tunnel when it opens. `denied`: no tunnel has one.
        decisions: LoggedDecisions = "denied_and_long";
        /// A tunnel or plain HTTP request that has lasted for this is a long one.
        long: Duration = "10s", "100ms" ..= "1d";
        /// The tunnels and plain HTTP requests that have a `close` line: `all`, those that lasted for `long`,
        /// or `none`. What then has no line at all is counted.
        closes: LoggedCloses = "all";
        /// One of so many tunnels and plain HTTP requests has its lines; they have this number as `sample`.
        /// The gateway chooses at random. What was denied or failed is not sampled.
        sample: u32 = 1, 1 ..= 1_000_000;
        /// The file's size at most. A full file is renamed to `.1`, the one before it to `.2`, and so on, and
        /// a new one is begun. Without it the file grows, for a program such as logrotate.
        size_max: Optional<ByteSize> = none, "64KiB" ..= "1024GiB";
        /// With `size_max`: so many renamed files are kept. Files beyond a number that was lowered stay.
        keep: u32 = 5, 1 ..= 1000;
    }

    /// How clients prove their user.
    "[auth]" Auth {
        /// What a browser shows when it asks for the password.
        realm: Realm = "tollgate";
        /// Password checks that may wait for the one that is running (some 50 ms each); beyond this a client
        /// gets 503. Unknown sources may take three quarters; the rest is reserved for sources with right
        /// credentials within the last day, and for those credentials, which are checked first. Sources are
        /// served round robin. Where the queue is full, checks of sources that failed within the last hour
        /// are dropped first, then those of the source with the most.
        hash_queue: u32 = 64, 1 ..= 4096;
        /// Verified credentials that are cached, so that they are not hashed again.
        cache_entries: u32 = 4096, 0 ..= 1_000_000;
        /// How long they are accepted without another check. For a day after that they are checked again,
        /// whatever failed at their source. A reload that changes this, or `cache_entries`, empties the
        /// cache.
        cache_ttl: Duration = "10m", "1s" ..= "1d";
        /// Wrong credentials in a minute for one user from one source (an IPv4 address, an IPv6 /64), before
        /// more are refused unchecked; for all users together ten times as many, and from an IPv6 /48 forty
        /// times. Credentials that were right before, and right tokens, are accepted all the same.
        failures_per_minute: u32 = 20, 1 ..= 100_000;
    }

    /// A named set of destinations, for `allow` and `deny` as `@NAME`.
    "[destinations.NAME]" DestinationTable {
        /// Its destinations: `host:port`, `host:low-high`, `host` for any port, `*.host` for any depth below
        /// it and not itself, `[v6]:port`, `network:port`.
        to: Vec<Located<Rule>> = [];
        /// `internal` lets the set's names lead to private addresses, and its flows are metered apart; those
        /// of an `external` one count as external. Without it the address decides.
        class: Optional<DestinationClass> = none;
        /// Networks without public addresses, such as `198.18.0.0/15`, to which the set's names may lead, on
        /// the names' ports. They open nothing to other names, nor to requests that write an address; a
        /// metadata service needs its very address. See [policy.md](policy.md).
        addresses: Vec<Located<IpNet>> = [];
    }

    /// What all quotas have in common.
    "[quotas]" QuotaDefaults {
        /// The time zone in which hours, days, weeks and months begin: an IANA name.
        zone: TimeZone = "UTC";
        /// Percentages of a quota that are reported, each once in a period; at most 8.
        thresholds: Vec<Located<u32>> = [80, 85, 95, 100], 1 ..= 100;
    }

    /// A team: users, and other teams, that have quotas and rates together. Each user has their own as well.
    /// A name is written as that of a user.
    "[teams.NAME]" TeamTable {
        /// The team of which this one is a part; at most 8 levels.
        parent: Optional<TeamName> = none;
        /// What all its users together may move; at most 16, each as in `quota = [{ }]`.
        quota: Items<QuotaItem> = [];
        /// Bits in a second at most, in each direction, of all its users together; units are decimal.
        rate: Optional<BitRate> = none, "8kbit/s" ..= "100Gbit/s";
        /// The same for the direction from client to destination, instead of `rate`.
        rate_up: Optional<BitRate> = none, "8kbit/s" ..= "100Gbit/s";
        /// The same for the direction from destination to client, instead of `rate`.
        rate_down: Optional<BitRate> = none, "8kbit/s" ..= "100Gbit/s";
    }

    /// A user: a person, an app, a job. Instead of a `[[user]]` table, a file `users.d/NAME.toml` may hold
    /// the settings of one user; the file's name is the user's name. `tollgate user add` writes such files.
    "[[user]]" UserTable {
        /// The name: a-z, 0-9, `.`, `_` and `-`, at most 64 characters.
        name: Optional<UserName> = none;
        /// Earlier names of the user, the last one first: the usage under such a name stays its own. Without
        /// this a user with another name has another account. At a reload, connections under the earlier name
        /// end.
        former_names: Vec<Located<UserName>> = [];
        /// The argon2id hash of a password, as `tollgate user passwd` makes it.
        password: Optional<PasswordHash> = none;
        /// The hash of a token, as `tollgate user add --token` makes it. Instead of a password.
        token: Optional<TokenHash> = none;
        /// Networks whose connections are this user's if they present no credentials. Credentials come first:
        /// a client that presents some is the user that they prove, and wrong ones are refused from these
        /// networks too. Where networks of two users nest, the smaller one decides.
        from: Vec<Located<IpNet>> = [];
        /// Where the user may go: destinations as in `[destinations.NAME]`, and `@NAME` for such a set. What
        /// nothing allows is denied. A network matches addresses, and the addresses of a name that another
        /// rule allows.
        allow: Vec<Located<Rule>> = [];
        /// Where the user may not go, whatever is allowed.
        deny: Vec<Located<Rule>> = [];
        /// Resolves any name on a port of which a network in `allow` speaks, and allows the addresses that
        /// the network holds. The name servers then see every name that the user requests, so a program that
        /// may reach nothing else can carry data out in names. Without it only names that a rule by name
        /// allows are resolved.
        resolve_for_networks: bool = false;
        /// Connections at the same time; without it `connections_per_user` of `[limits]` holds.
        connections: Optional<u32> = none, 1 ..= 1_000_000;
        /// The team that the user belongs to.
        team: Optional<TeamName> = none;
        /// What the user may move; at most 16, each as in `quota = [{ }]`.
        quota: Items<QuotaItem> = [];
        /// Bits in a second at most, in each direction; units are decimal.
        rate: Optional<BitRate> = none, "8kbit/s" ..= "100Gbit/s";
        /// The same for the direction from client to destination, instead of `rate`.
        rate_up: Optional<BitRate> = none, "8kbit/s" ..= "100Gbit/s";
        /// The same for the direction from destination to client, instead of `rate`.
        rate_down: Optional<BitRate> = none, "8kbit/s" ..= "100Gbit/s";
        /// Denies every request of the user; the name stays in use.
        disabled: bool = false;
    }

    /// A quota of a user or a team, as `quota = [{ limit = "20GB", per = "day", of = "external" }]`. No two
    /// quotas of one owner differ in `limit` alone.
    "quota = [{ }]" QuotaItem {
        /// Bytes at most in a period.
        limit: Located<ByteSize> = required, "1kB" ..= "4PB";
        /// The period after which the quota renews: at each hour of the local clock, at local midnight, at
        /// midnight of Monday, at midnight of the anchor day; `total` never renews.
        per: Per = required;
        /// The flows that count: all, those that are metered as external or internal, or those to a set of
        /// destinations.
        of: Located<Scope> = "all";
        /// The bytes that count: `up` from client to destination, `down` from destination to client, or
        /// both together.
        direction: Direction = "both";
        /// The time zone of this quota, instead of that in `[quotas]`.
        zone: Optional<TimeZone> = none;
        /// With `per = "month"`: the day of the month on which the period begins, or the last day of a month
        /// that is shorter. Without it that is the first.
        anchor: Optional<u32> = none, 1 ..= 31;
    }
}

impl Dns {
    /// The configured name servers; an empty list means those of `/etc/resolv.conf`.
    pub fn server_addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|server| server.0).collect()
    }
}

/// Tables in which every setting has a default.
macro_rules! defaults {
    ($($table:ident)+) => {$(
        impl Default for $table {
            fn default() -> $table {
                let mut report = Report::default();
                let table = $table::read(&Section::empty(), &mut report);
                table.expect("every setting of this table has a default")
            }
        }
    )+};
}
defaults! { Network Admin Accept Threads Limits Timeouts Dns Ledger Log Auth QuotaDefaults }

choice! {
    /// The protocol of a listener.
    ListenerKind {
        /// HTTP or SOCKS5.
        Mixed = "mixed",
        /// HTTP only.
        Http = "http",
        /// SOCKS5 only.
        Socks5 = "socks5",
        /// Nothing: every connection leads to one destination.
        Forward = "forward",
    }
}

choice! {
    /// When an ended flow is safe from a power failure.
    Durability {
        /// 15 ms and three syncs of the disk after its end.
        Delayed = "delayed",
        /// Two syncs of the disk after its end: its slot of the live table is free only then.
        Sync = "sync",
    }
}

choice! {
    /// What happens when the journal cannot be written.
    OnFailure {
        /// New flows are denied.
        Refuse = "refuse",
        /// The process drains and ends.
        Drain = "drain",
    }
}

choice! {
    /// The decisions that have a line in the log.
    LoggedDecisions {
        /// All.
        All = "all",
        /// Those that were denied or failed, and those of tunnels that are still open after a time.
        DeniedAndLong = "denied_and_long",
        /// Those that were denied or failed.
        Denied = "denied",
    }
}

choice! {
    /// The flows that have a `close` line in the log, from the fewest to all.
    #[derive(PartialOrd, Ord)]
    LoggedCloses {
        /// None.
        None = "none",
        /// Those that lasted for some time.
        Long = "long",
        /// All.
        All = "all",
    }
}

choice! {
    /// What resolves names.
    DnsMode {
        /// The built-in resolver.
        Builtin = "builtin",
        /// `getaddrinfo` of the C library.
        System = "system",
    }
}

choice! {
    /// What a set of destinations is to the company.
    DestinationClass {
        /// Its own services: restricted, not billed.
        Internal = "internal",
        /// Other networks: billed.
        External = "external",
    }
}

/// The text of `docs/settings.md`.
pub fn markdown() -> String {
    let mut page = String::from(INTRODUCTION);
    for table in TABLES {
        let text: Vec<&str> = table.text.iter().map(|line| line.trim()).collect();
        let _ = write!(page, "\n## {}\n\n{}\n\n", table.header, text.join("\n"));
        page.push_str("| setting | write | default | bounds |   |\n|---|---|---|---|---|\n");
        for setting in table.settings {
            let list = if setting.list { "a list, each " } else { "" };
            let bounds = setting.bounds().map_or(String::new(), |(low, high)| format!("`{low}` to `{high}`"));
            let _ = writeln!(
                page,
                "| `{}` | {list}{} | {} | {bounds} | {} |",
                setting.name,
                setting.kind,
                default_cell(setting),
                setting.text(),
            );
        }
    }
    page
}

const INTRODUCTION: &str = "\
# Settings

Tollgate reads one TOML file, `--config FILE`, else `./tollgate.toml` if there is one, and the users in
`users.d/*.toml` beside it. Without a file every setting has its default, and users are kept in
`tollgate-data/users.d`. Every key that is not listed here is an error. `tollgate check` reports all errors
at once.

This page is generated from `gateway/src/config/settings.rs`; `tollgate check --settings` prints it.
";

fn default_cell(setting: &Setting) -> String {
    match setting.default {
        word @ ("required" | "none") => word.to_owned(),
        toml => format!("`{toml}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_reads_as_written() {
        let limits = Limits::default();
        assert_eq!((limits.connections, limits.handshakes), (9_000, 2_000));
        let timeouts = Timeouts::default();
        assert_eq!(timeouts.greeting, Duration::from_secs(10));
        assert_eq!(timeouts.lifetime, None);
        assert_eq!(Accept::default().strategy.name(), "mutex");
        assert_eq!(Admin::default().address, "127.0.0.1:9128".parse().unwrap());
        assert_eq!(Ledger::default().directory, PathBuf::from("tollgate-data"));
        let log = Log::default();
        assert_eq!((log.to, log.size_max), (LogTarget::Stderr, Optional::Absent));
        assert_eq!((log.decisions, log.closes), (LoggedDecisions::DeniedAndLong, LoggedCloses::All));
        assert_eq!(Auth::default().realm.to_string(), "tollgate");
        assert_eq!(Threads::default().reactors, 0);
        assert!(Dns::default().servers.is_empty());
        let thresholds = QuotaDefaults::default().thresholds;
        assert!(thresholds.iter().map(|percent| percent.value).eq([80, 85, 95, 100]));
    }

    #[test]
    fn bounds_are_in_order_and_enclose_the_default() {
        for setting in TABLES.iter().flat_map(|table| table.settings) {
            let Some((low, high)) = setting.bounds() else { continue };
            // Each bound must itself be a value of the setting.
            let value = |text| DeValue::parse(text).unwrap().into_inner();
            for text in [low, high, setting.default] {
                let within = match text {
                    "none" | "required" => true,
                    list if list.starts_with('[') => {
                        <Vec<Located<u32>> as FromSetting>::default(setting).is_some()
                    }
                    text if text.starts_with('"') => {
                        Option::<Duration>::parse(&value(text), setting).is_ok()
                            || ByteSize::parse(&value(text), setting).is_ok()
                            || BitRate::parse(&value(text), setting).is_ok()
                    }
                    number => u32::parse(&value(number), setting).is_ok(),
                };
                assert!(within, "{} = {text}", setting.name);
            }
        }
    }

    #[test]
    fn settings_page_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/settings.md");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, markdown()).unwrap();
        }
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            page == markdown(),
            "docs/settings.md is out of date: UPDATE=1 cargo test -p gateway settings"
        );
    }
}
