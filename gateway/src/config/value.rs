//! The types of settings' values, and how each is written.
//!
//! Guarantees: an accepted text has one meaning, and an error says what to write instead.
//!
//! Not handled here: which setting has which type (`settings.rs`), and where it was written (`read.rs`).

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use jiff::tz::TimeZone;
use ledger::record::Class;
use policy::rules::Rule;
use proto::target::Target;
use toml::de::DeValue;

use super::read::{Scalar, kind_of, nearest};
use super::schema::Setting;
use crate::credit::calendar::Per;
use crate::users::{CredentialError, NameError, PasswordHash, TokenHash, UserName};

/// The default port of name servers (RFC 1035 section 4.2).
const DNS_PORT: u16 = 53;

/// Longest path or other free text in a setting, in bytes.
const TEXT_BYTES_MAX: usize = 4096;

/// Declares an enumeration whose values are written as words. With `@scalar`, reads one that another module
/// declares.
macro_rules! choice {
    ($(#[$about:meta])* $name:ident { $($(#[$text:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$text])* $variant,)+ }

        impl $name {
            /// The word for it.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)+ }
            }
        }

        $crate::config::value::choice!(@scalar $name { $($variant = $word,)+ });
    };
    (@scalar $name:ident { $($variant:ident = $word:literal,)+ }) => {
        impl Scalar for $name {
            const KIND: &'static str = $crate::config::value::choice!(@words $($word)+);

            fn parse(value: &DeValue<'_>, _: &Setting) -> Result<$name, String> {
                let wrong = |found: String| format!("expected {}; found {found}", <$name as Scalar>::KIND);
                match value.as_str() {
                    $(Some($word) => Ok($name::$variant),)+
                    Some(other) => Err(match $crate::config::nearest(other, &[$($word),+]) {
                        Some(near) => wrong(format!("\"{other}\": did you mean \"{near}\"?")),
                        None => wrong(format!("\"{other}\"")),
                    }),
                    None => Err(wrong(kind_of(value))),
                }
            }
        }
    };
    (@words $first:literal $($more:literal)*) => { concat!("\"", $first, "\"", $(" or \"", $more, "\""),*) };
}
pub(crate) use choice;

impl Scalar for u32 {
    const KIND: &'static str = "a number";

    fn parse(value: &DeValue<'_>, setting: &Setting) -> Result<u32, String> {
        let number = parse_integer(value)?;
        if let Some((low, high)) = setting.bounds() {
            let bound =
                |text| DeValue::parse(text).ok().and_then(|bound| parse_integer(bound.get_ref()).ok());
            if bound(low) > Some(number) || bound(high) < Some(number) {
                return Err(out_of_bounds_message(low, high));
            }
        }
        u32::try_from(number).map_err(|_| format!("expected a number up to {}", u32::MAX))
    }
}

fn parse_integer(value: &DeValue<'_>) -> Result<i64, String> {
    let integer = value.as_integer().ok_or_else(|| format!("expected a number; found {}", kind_of(value)))?;
    let parsed = i64::from_str_radix(integer.as_str(), integer.radix());
    parsed.map_err(|_| "this number is too large".into())
}

impl Scalar for bool {
    const KIND: &'static str = "true or false";

    fn parse(value: &DeValue<'_>, _: &Setting) -> Result<bool, String> {
        value.as_bool().ok_or_else(|| format!("expected true or false; found {}", kind_of(value)))
    }
}

const DURATION: &str = "a duration such as \"10s\" (units: ms, s, m, h, d)";

impl Scalar for Duration {
    const KIND: &'static str = "a duration";

    fn parse(value: &DeValue<'_>, setting: &Setting) -> Result<Duration, String> {
        let text = value.as_str().ok_or_else(|| format!("expected {DURATION}; found {}", kind_of(value)))?;
        let duration = duration(text).ok_or_else(|| format!("expected {DURATION}"))?;
        within_bounds(duration, setting, self::duration)
    }
}

/// A duration that may be unlimited: `"none"`.
impl Scalar for Option<Duration> {
    const KIND: &'static str = "a duration or \"none\"";

    fn parse(value: &DeValue<'_>, setting: &Setting) -> Result<Option<Duration>, String> {
        match value.as_str() {
            Some("none") => Ok(None),
            _ => Duration::parse(value, setting).map(Some).map_err(|error| format!("{error}, or \"none\"")),
        }
    }
}

/// A directory that may be chosen automatically: `"auto"`.
impl Scalar for Option<PathBuf> {
    const KIND: &'static str = "a directory or \"auto\"";

    fn parse(value: &DeValue<'_>, setting: &Setting) -> Result<Option<PathBuf>, String> {
        match value.as_str() {
            Some("auto") => Ok(None),
            _ => PathBuf::parse(value, setting).map(Some),
        }
    }
}

/// A whole number with its unit (ms, s, m, h or d); `None` if it is invalid, or too large for a u64 of
/// milliseconds.
pub fn duration(text: &str) -> Option<Duration> {
    let unit_ms = |unit: &str| match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60 * 1_000),
        "h" => Some(60 * 60 * 1_000),
        "d" => Some(24 * 60 * 60 * 1_000),
        _ => None,
    };
    number_with_unit(text, unit_ms).map(Duration::from_millis)
}

const BYTE_SIZE: &str = "a size such as \"64MiB\" (units: kB, MB, GB, TB, PB, KiB, MiB, GiB, TiB, PiB)";

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl Scalar for ByteSize {
    const KIND: &'static str = "a size";

    fn parse(value: &DeValue<'_>, setting: &Setting) -> Result<ByteSize, String> {
        let text = value.as_str().ok_or_else(|| format!("expected {BYTE_SIZE}; found {}", kind_of(value)))?;
        let size = byte_size(text).ok_or_else(|| format!("expected {BYTE_SIZE}"))?;
        within_bounds(size, setting, byte_size)
    }
}

/// A whole number with its unit: `GB` is 10^9 bytes, `GiB` 2^30.
pub fn byte_size(text: &str) -> Option<ByteSize> {
    let unit = |unit: &str| match unit {
        "kB" => Some(1_000),
        "MB" => Some(1_000_000),
        "GB" => Some(1_000_000_000),
        "TB" => Some(1_000_000_000_000),
        "PB" => Some(1_000_000_000_000_000),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        "TiB" => Some(1 << 40),
        "PiB" => Some(1 << 50),
        _ => None,
    };
    number_with_unit(text, unit).map(ByteSize)
}

const BIT_RATE: &str = "a rate such as \"50Mbit/s\" (units: bit/s, kbit/s, Mbit/s, Gbit/s)";

/// A number of bits in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BitRate(pub u64);

impl Scalar for BitRate {
    const KIND: &'static str = "a rate";

    fn parse(value: &DeValue<'_>, setting: &Setting) -> Result<BitRate, String> {
        let text = value.as_str().ok_or_else(|| format!("expected {BIT_RATE}; found {}", kind_of(value)))?;
        let rate = bit_rate(text).ok_or_else(|| format!("expected {BIT_RATE}"))?;
        within_bounds(rate, setting, bit_rate)
    }
}

/// A whole number with its unit: `Mbit/s` is 10^6 bits in a second.
fn bit_rate(text: &str) -> Option<BitRate> {
    let unit = |unit: &str| match unit {
        "bit/s" => Some(1),
        "kbit/s" => Some(1_000),
        "Mbit/s" => Some(1_000_000),
        "Gbit/s" => Some(1_000_000_000),
        _ => None,
    };
    number_with_unit(text, unit).map(BitRate)
}

/// A whole number and its unit, without a space; `None` if it is invalid, or too large for a u64.
fn number_with_unit(text: &str, unit: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, word) = text.split_at(digits);
    number.parse::<u64>().ok()?.checked_mul(unit(word)?)
}

/// The value, if it is within the setting's bounds, which `parse` reads.
fn within_bounds<T: PartialOrd>(
    value: T,
    setting: &Setting,
    parse: fn(&str) -> Option<T>,
) -> Result<T, String> {
    let bound = |text: &str| parse(text.trim_matches('"'));
    match setting.bounds() {
        Some((low, high)) if bound(low).is_some_and(|low| value < low) => {
            Err(out_of_bounds_message(low, high))
        }
        Some((low, high)) if bound(high).is_some_and(|high| value > high) => {
            Err(out_of_bounds_message(low, high))
        }
        _ => Ok(value),
    }
}

fn out_of_bounds_message(low: &str, high: &str) -> String {
    format!("out of bounds: from {low} to {high}")
}

/// The text of a string value, within bounds.
fn string_value<'a>(value: &'a DeValue<'_>, kind: &str) -> Result<&'a str, String> {
    let text =
        value.as_str().ok_or_else(|| format!("expected {kind}, in quotes; found {}", kind_of(value)))?;
    match text {
        "" => Err(format!("expected {kind}; found an empty string")),
        text if text.len() > TEXT_BYTES_MAX => Err(format!("longer than {TEXT_BYTES_MAX} bytes")),
        text => Ok(text),
    }
}

/// Implements [`Scalar`] for a type that is written as a string.
macro_rules! textual {
    ($($type:ty: $kind:literal $(secret $secret:literal)? => $parse:expr;)+) => {$(
        impl Scalar for $type {
            const KIND: &'static str = $kind;
            $(const SECRET: bool = $secret;)?

            fn parse(value: &DeValue<'_>, _: &Setting) -> Result<$type, String> {
                let parse: fn(&str) -> Result<$type, String> = $parse;
                parse(string_value(value, $kind)?)
            }
        }
    )+};
}

textual! {
    SocketAddr: "an address with a port" => socket_address;
    NameServer: "an IP address, with or without a port" => name_server;
    OwnAddress: "an IP address, with or without a port" => own_address;
    IpNet: "a network such as \"10.1.0.0/16\"" => network;
    Rule: "a destination" => |text| Rule::parse(text).map_err(|error| error.to_string());
    Target: "HOST:PORT" => |text| Target::parse_authority(text.as_bytes()).map_err(|error| error.to_string());
    UserName: "a user's name" => |text| text.parse().map_err(|error: NameError| error.to_string());
    PasswordHash: "an argon2id hash" secret true => |text| text.parse().map_err(credential_error);
    TokenHash: "a token's hash" secret true => |text| text.parse().map_err(credential_error);
    PathBuf: "a path" => path;
    LogTarget: "\"stderr\" or a path" => log_target;
    Realm: "a text" => realm;
    TeamName: "a team's name" => team_name;
    TimeZone: "a time zone's name" => time_zone;
    Scope: "\"all\" or \"external\" or \"internal\" or \"@SET\"" => scope;
}

choice! {
    @scalar Per { Hour = "hour", Day = "day", Week = "week", Month = "month", Total = "total", }
}

choice! {
    /// The direction of the bytes that a quota counts.
    Direction {
        /// Both directions, together.
        Both = "both",
        /// From the client to the destination.
        Up = "up",
        /// From the destination to the client.
        Down = "down",
    }
}

/// The flows that a quota counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All.
    All,
    /// Those of one class.
    Class(Class),
    /// Those to a set of destinations: its name, without `@`.
    Set(Box<str>),
}

impl fmt::Display for Scope {
    /// As a configuration has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::All => f.write_str("all"),
            Scope::Class(class) => f.write_str(class.as_str()),
            Scope::Set(name) => write!(f, "@{name}"),
        }
    }
}

/// A team's name: as that of a user, `[a-z0-9][a-z0-9._-]{0,63}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TeamName(UserName);

impl TeamName {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// How connections reach the reactor threads: a strategy of `engine::accept`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceptStrategy {
    /// Its name in the engine.
    name: &'static str,
}

impl AcceptStrategy {
    /// What a configuration may choose.
    const OFFERED: [&str; 3] = ["reuse_port", "mutex", "handoff"];

    /// What `lab accept` compares with them: setting and name. Only the lab configures these, so no document
    /// lists them. The prefix states their purpose, and keeps the plain name an error.
    const COMPARED: [(&str, &str); 2] = [("lab:shared", "shared"), ("lab:exclusive", "exclusive")];

    /// The name in the engine.
    pub fn name(self) -> &'static str {
        self.name
    }

    fn configured_as(word: &str) -> Option<AcceptStrategy> {
        let offered = Self::OFFERED.into_iter().find(|name| *name == word);
        let compared = || Self::COMPARED.into_iter().find(|(setting, _)| *setting == word);
        let name = offered.or_else(|| compared().map(|(_, name)| name))?;
        Some(AcceptStrategy { name })
    }
}

impl Scalar for AcceptStrategy {
    const KIND: &'static str = "\"reuse_port\" or \"mutex\" or \"handoff\"";

    fn parse(value: &DeValue<'_>, _: &Setting) -> Result<AcceptStrategy, String> {
        let expected = format!("expected {}", Self::KIND);
        let word = value.as_str().ok_or_else(|| format!("{expected}; found {}", kind_of(value)))?;
        AcceptStrategy::configured_as(word).ok_or_else(|| match word {
            "shared" | "exclusive" => {
                format!("{expected}; \"{word}\" is for comparison: `lab accept` measures all five strategies")
            }
            _ => format!("{expected}; found \"{word}\""),
        })
    }
}

/// A DNS server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameServer(pub SocketAddr);

/// An address that leads to this gateway, though no interface has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnAddress {
    /// The address.
    pub ip: IpAddr,
    /// One port of it; without one, each port of a listener.
    pub port: Option<u16>,
}

/// The destination of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard error.
    Stderr,
    /// A file that is appended to, and reopened on SIGUSR1.
    File(PathBuf),
}

/// A realm that a `Proxy-Authenticate` header can quote without escapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Realm(Box<str>);

impl Realm {
    /// The text, without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Realm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn socket_address(text: &str) -> Result<SocketAddr, String> {
    let hint = "expected ADDRESS:PORT, such as \"127.0.0.1:3128\" or \"[::1]:3128\"";
    text.parse().map_err(|_| match text.rsplit_once(':') {
        Some(("", _)) => format!("{hint}; for all addresses write \"0.0.0.0{text}\" or \"[::]{text}\""),
        Some(("localhost", port)) => format!("{hint}; a name is no address: write \"127.0.0.1:{port}\""),
        _ => hint.to_owned(),
    })
}

fn name_server(text: &str) -> Result<NameServer, String> {
    let address = text.parse::<IpAddr>().map(|address| SocketAddr::new(address, DNS_PORT));
    let server = address.or_else(|_| text.parse::<SocketAddr>());
    server
        .map(NameServer)
        .map_err(|_| "expected an IP address, such as \"192.0.2.53\" or \"[::1]:5353\"".into())
}

fn own_address(text: &str) -> Result<OwnAddress, String> {
    let without_port = text.parse().map(|ip| OwnAddress { ip, port: None });
    let with_port = || text.parse::<SocketAddr>().map(|at| OwnAddress { ip: at.ip(), port: Some(at.port()) });
    match without_port.or_else(|_| with_port()) {
        Ok(own) if own.ip.is_unspecified() => Err("name the address itself: this one stands for all".into()),
        Ok(own) => Ok(own),
        Err(_) => Err("expected an IP address, such as \"203.0.113.7\" or \"203.0.113.7:3128\"".into()),
    }
}

/// A network, or an address as the network of itself alone, as `from` takes them.
///
/// # Errors
/// What to write instead.
pub fn network(text: &str) -> Result<IpNet, String> {
    let network: IpNet = text
        .parse()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| "expected a network such as \"10.1.0.0/16\", or an address")?;
    if network != network.trunc() {
        return Err(format!("this network has bits set beyond its length: write \"{}\"", network.trunc()));
    }
    match network {
        IpNet::V6(mapped) if mapped.network().to_ipv4_mapped().is_some() => {
            Err("such addresses are taken for the IPv4 addresses in them: write the IPv4 network".into())
        }
        network => Ok(network),
    }
}

fn path(text: &str) -> Result<PathBuf, String> {
    match text.contains('\0') {
        true => Err("a path cannot hold NUL".into()),
        false => Ok(PathBuf::from(text)),
    }
}

fn log_target(text: &str) -> Result<LogTarget, String> {
    match text {
        "stderr" => Ok(LogTarget::Stderr),
        other => path(other).map(LogTarget::File),
    }
}

fn realm(text: &str) -> Result<Realm, String> {
    const REALM_BYTES_MAX: usize = 64;
    let plain = |c: char| (c.is_ascii_graphic() || c == ' ') && !matches!(c, '"' | '\\');
    match text.len() <= REALM_BYTES_MAX && text.chars().all(plain) {
        true => Ok(Realm(text.into())),
        false => Err(format!("expected at most {REALM_BYTES_MAX} printable ASCII characters, no quotes")),
    }
}

/// A team's name, or the reason why it is none.
pub(super) fn team_name(text: &str) -> Result<TeamName, String> {
    let name: Result<UserName, NameError> = text.parse();
    name.map(TeamName).map_err(|error| error.to_string().replacen("user", "team", 1))
}

/// A zone of this machine, or of jiff's copy where the machine has none.
fn time_zone(text: &str) -> Result<TimeZone, String> {
    let database = jiff::tz::db();
    let known = database.get(text).ok().filter(|zone| zone.iana_name().is_some() && !zone.is_unknown());
    known.ok_or_else(|| {
        let names: Vec<String> = database.available().map(|name| name.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        match nearest(text, &names) {
            Some(near) => format!("there is no time zone \"{text}\": did you mean \"{near}\"?"),
            None => {
                format!("there is no time zone \"{text}\"; write a name such as \"Europe/Berlin\" or \"UTC\"")
            }
        }
    })
}

fn scope(text: &str) -> Result<Scope, String> {
    let expected = format!("expected {}", <Scope as Scalar>::KIND);
    match (text, text.strip_prefix('@')) {
        ("all", _) => Ok(Scope::All),
        ("external", _) => Ok(Scope::Class(Class::External)),
        ("internal", _) => Ok(Scope::Class(Class::Internal)),
        (_, Some("")) => Err(format!("{expected}; found no name behind the @")),
        (_, Some(name)) => Ok(Scope::Set(name.into())),
        (other, None) => Err(format!("{expected}; found \"{other}\"")),
    }
}

fn credential_error(error: CredentialError) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_strategies_are_those_of_the_engine() {
        let compared = AcceptStrategy::COMPARED.map(|(setting, _)| setting);
        let settings = AcceptStrategy::OFFERED.into_iter().chain(compared);
        let mut ours: Vec<&str> =
            settings.map(|word| AcceptStrategy::configured_as(word).unwrap().name()).collect();
        let mut engines: Vec<&str> =
            engine::accept::STRATEGIES.iter().map(|strategy| strategy.name()).collect();
        ours.sort_unstable();
        engines.sort_unstable();
        assert_eq!(ours, engines);
        assert_eq!(AcceptStrategy::configured_as("shared"), None);
    }

    #[test]
    fn durations_have_units() {
        for (text, ms) in [("0s", 0), ("250ms", 250), ("10s", 10_000), ("15m", 900_000), ("2h", 7_200_000)] {
            assert_eq!(duration(text), Some(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(duration("365d"), Some(Duration::from_secs(365 * 86_400)));
        for bad in ["", "10", "s", "10 s", "-1s", "+1s", "1.5s", "1h30m", "10S", "99999999999999999999s"] {
            assert_eq!(duration(bad), None, "{bad:?}");
        }
        assert_eq!(duration(&format!("{}d", u64::MAX)), None, "overflow is no duration");
    }

    #[test]
    fn sizes_and_rates_have_units() {
        for (text, bytes) in
            [("1kB", 1_000), ("2TB", 2_000_000_000_000), ("3TiB", 3 << 40), ("4PB", 4 * 10_u64.pow(15))]
        {
            assert_eq!(byte_size(text), Some(ByteSize(bytes)), "{text}");
        }
        for (text, bits) in [("8kbit/s", 8_000), ("50Mbit/s", 50_000_000), ("100Gbit/s", 100_000_000_000)] {
            assert_eq!(bit_rate(text), Some(BitRate(bits)), "{text}");
        }
        for bad in ["", "20", "-1GB", "1.5GB", "1 GB", "1gb", "20000PiB", "1Mbit", "1MB/s", "1mbit/s"] {
            assert_eq!((byte_size(bad), bit_rate(bad)), (None, None), "{bad:?}");
        }
    }

    #[test]
    fn periods_are_written_as_they_are_shown() {
        let setting = crate::config::settings::TABLES.iter().find_map(|table| table.setting("per")).unwrap();
        for per in [Per::Hour, Per::Day, Per::Week, Per::Month, Per::Total] {
            let text = format!("\"{}\"", per.as_str());
            assert_eq!(Per::parse(DeValue::parse(&text).unwrap().get_ref(), setting), Ok(per));
        }
    }

    #[test]
    fn texts_are_checked() {
        assert_eq!(name_server("192.0.2.53").unwrap().0, "192.0.2.53:53".parse().unwrap());
        assert_eq!(name_server("::1").unwrap().0, "[::1]:53".parse().unwrap());
        assert_eq!(name_server("[::1]:5353").unwrap().0, "[::1]:5353".parse().unwrap());
        assert!(name_server("dns.example").is_err());
        let own = |ip: &str, port| Ok(OwnAddress { ip: ip.parse().unwrap(), port });
        assert_eq!(own_address("203.0.113.7"), own("203.0.113.7", None));
        assert_eq!(own_address("[2001:db8::7]:3128"), own("2001:db8::7", Some(3128)));
        assert!(own_address("0.0.0.0:3128").is_err() && own_address("gateway.example").is_err());
        assert_eq!(network("10.1.2.3").unwrap(), "10.1.2.3/32".parse().unwrap());
        assert_eq!(
            network("10.1.2.3/16").unwrap_err(),
            "this network has bits set beyond its length: write \"10.1.0.0/16\""
        );
        assert!(socket_address(":3128").unwrap_err().ends_with("write \"0.0.0.0:3128\" or \"[::]:3128\""));
        assert!(socket_address("localhost:1").unwrap_err().ends_with("write \"127.0.0.1:1\""));
        assert!(socket_address("127.0.0.1:65536").is_err());
        assert!(realm("a \"b\"").is_err() && realm("a\r\nX: b").is_err());
        assert_eq!(log_target("stderr"), Ok(LogTarget::Stderr));
        assert!(path("a\0b").is_err());
    }
}
