//! `tollgate usage`: the usage of each user, from the ledger.
//!
//! Guarantees: exact bytes for programs (`--json`, `--csv`), decimal units for people. Works while `serve`
//! runs. A user that neither the configuration nor the ledger knows is an error.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gateway::config::settings::duration;
use gateway::config::{Config, nearest};
use gateway::users::UserName;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use ledger::Losses;
use ledger::SqliteUsage;
use ledger::query::{Answer, Completeness, Filter, GroupBy, Row, Usage};
use ledger::record::Class;
use ledger::repair::inspect;
use serde_json::{Value, json};
use sys::clock::{self, WallNanos};

use super::ledger::read_settings;
use super::{Context, print, print_json, table};

#[derive(Args)]
pub(crate) struct Options {
    /// The key of a row: several, separated by commas, make a row for each combination. The ledger does not
    /// record the listener; the log does.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "user")]
    by: Vec<By>,
    /// Count from this moment on: a day (2026-01-31), a moment (2026-01-31T12:00:00Z), or a time ago
    /// (36h).
    #[arg(long, value_name = "WHEN")]
    since: Option<When>,
    /// Count up to this moment; a day counts to its end.
    #[arg(long, value_name = "WHEN")]
    until: Option<When>,
    /// The time zone of hours, days and months, here and in `--since` and `--until`: a name such as
    /// Asia/Kolkata. Without it they are those of UTC.
    #[arg(long, value_name = "ZONE", value_parser = zone)]
    zone: Option<TimeZone>,
    /// Flows of this user.
    #[arg(long, value_name = "NAME")]
    user: Option<UserName>,
    /// Flows of the present users of this team, and of those that were removed while they were in it.
    #[arg(long, value_name = "NAME")]
    team: Option<String>,
    /// Flows to this host, as requested.
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Flows of this class: the outside, or a company's own services.
    #[arg(long, value_enum)]
    class: Option<ClassFilter>,
    /// Flows that this set of `[destinations]` admitted.
    #[arg(long, value_name = "NAME")]
    set: Option<String>,
    /// Print JSON with exact bytes.
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV with exact bytes (RFC 4180). A text that a spreadsheet would run as a formula, one that
    /// begins with = + - @, a tab or a carriage return, gets an apostrophe before it.
    #[arg(long)]
    csv: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    User,
    /// The present team of the user; empty if it has none.
    Team,
    Host,
    Port,
    Protocol,
    Class,
    /// The set of `[destinations]` whose rule admitted the flow; empty if none did.
    Set,
    /// A quarter-hour.
    Quarter,
    Hour,
    Day,
    Month,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ClassFilter {
    External,
    Internal,
}

impl From<ClassFilter> for Class {
    fn from(class: ClassFilter) -> Class {
        match class {
            ClassFilter::External => Class::External,
            ClassFilter::Internal => Class::Internal,
        }
    }
}

impl By {
    fn group(self) -> GroupBy {
        match self {
            By::User => GroupBy::User,
            By::Team => GroupBy::Team,
            By::Host => GroupBy::Host,
            By::Port => GroupBy::Port,
            By::Protocol => GroupBy::Protocol,
            By::Class => GroupBy::Class,
            By::Set => GroupBy::Set,
            By::Quarter => GroupBy::Quarter,
            By::Hour => GroupBy::Hour,
            By::Day => GroupBy::Day,
            By::Month => GroupBy::Month,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            By::User => "user",
            By::Team => "team",
            By::Host => "host",
            By::Port => "port",
            By::Protocol => "protocol",
            By::Class => "class",
            By::Set => "set",
            By::Quarter => "quarter",
            By::Hour => "hour",
            By::Day => "day",
            By::Month => "month",
        }
    }
}

pub(crate) fn run(context: &Context, options: &Options) -> anyhow::Result<ExitCode> {
    let config = context.load()?;
    let now = clock::wall();
    let zone = options.zone.clone().unwrap_or(TimeZone::UTC);
    let filter = Filter {
        since: options.since.map(|when| when.beginning(now, &zone)),
        until: options.until.map(|when| when.end(now, &zone)),
        user: options.user.as_ref().map(|user| user.to_string()),
        team: options.team.clone(),
        host: options.host.clone(),
        class: options.class.map(Class::from),
        set: options.set.clone(),
    };
    // Before the query, so that a loss reported here is also missing in its answer.
    let losses = inspect(&read_settings(&config))?.losses;
    let by = keys(&options.by);
    let (usage, answer, total) = ask(&config.ledger.directory, &zone, &filter, &by)?;
    if let Some(user) = &filter.user {
        check_user(user, &config, &usage)?;
    }
    if let Some(team) = &filter.team {
        check_team(team, &usage)?;
    }
    if let Some(set) = &filter.set {
        check_set(set, &config, &usage)?;
    }
    let completeness = usage.completeness();
    let status = AnswerStatus {
        problems: problems(&completeness, &losses, &answer, &total),
        accepted: usage.consents()?,
        is_ahead: completeness.includes_unapplied,
    };
    if options.json {
        print_json(&as_json(&by, &answer, &total, &status))?;
    } else if options.csv {
        print(&as_csv(&by, &answer.rows))?;
        status.problems.iter().for_each(|problem| eprintln!("tollgate: incomplete: {problem}"));
    } else {
        print(&as_table(&by, &answer, &total, &status))?;
    }
    Ok(if status.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Answers a question as of one moment: where a month is ahead of it, as a gateway writes, as of another one.
fn ask(
    directory: &Path,
    zone: &TimeZone,
    filter: &Filter,
    by: &[By],
) -> anyhow::Result<(SqliteUsage, Answer, Row)> {
    let keys: Vec<GroupBy> = by.iter().map(|key| key.group()).collect();
    let mut attempt = 1;
    loop {
        let usage = SqliteUsage::open_with_journal(directory)?.in_zone(zone.clone());
        let (answer, total) = (usage.rows(filter, &keys)?, usage.total(filter)?);
        if attempt == ATTEMPTS_MAX || usage.completeness().months_ahead.is_empty() {
            return Ok((usage, answer, total));
        }
        attempt += 1;
        thread::sleep(ATTEMPT_PAUSE);
    }
}

/// A gateway commits a month some milliseconds before `ledger.db`.
const ATTEMPTS_MAX: u32 = 10;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(7);

/// How complete and correct an answer is.
struct AnswerStatus {
    /// Why it is wrong.
    problems: Vec<String>,
    /// Losses that an operator accepted.
    accepted: Vec<String>,
    /// Whether it includes entries that are only in the journal.
    is_ahead: bool,
}

/// Why an answer is wrong: losses, unreadable entries, and rows that do not add up to their total although no
/// month's flows were removed.
fn problems(completeness: &Completeness, losses: &Losses, answer: &Answer, total: &Row) -> Vec<String> {
    let mut problems: Vec<String> = losses.0.iter().map(ToString::to_string).collect();
    problems.extend(completeness.unread.as_ref().map(|cause| {
        format!(
            "these figures lack journal entries that are not yet in the database, because the journal \
                 cannot be read: {cause}"
        )
    }));
    if completeness.has_damaged_rows {
        problems.push(
            "a row of the database is damaged and left out: `tollgate ledger verify` names it".to_owned(),
        );
    }
    problems.extend(completeness.months_ahead.iter().map(|month| {
        format!(
            "the sums of {month} have later entries than the totals, and may count them twice: start the \
             gateway, which completes what was interrupted, or repeat the command while it runs"
        )
    }));
    let sum = |column: fn(&Row) -> u64| answer.rows.iter().map(column).fold(0, u64::saturating_add);
    let rows = (sum(|row| row.flows), sum(|row| row.up), sum(|row| row.down));
    if answer.missing.is_empty() && rows != (total.flows, total.up, total.down) {
        problems.push(format!(
            "the rows add up to {} flows, {} bytes up and {} down, but the total to {}, {} and {}: the \
             database lacks flows that its sums include, and `tollgate ledger verify` names their month",
            rows.0, rows.1, rows.2, total.flows, total.up, total.down
        ));
    }
    problems
}

/// The keys, each once: a second column would be the same.
fn keys(by: &[By]) -> Vec<By> {
    let mut keys = Vec::new();
    for key in by {
        if !keys.contains(key) {
            keys.push(*key);
        }
    }
    keys
}

/// Checks that the user is in the configuration, or was when a flow was recorded.
fn check_user(user: &str, config: &Config, usage: &impl Usage) -> anyhow::Result<()> {
    if config.user(user).is_some() || usage.has_user(user)? {
        return Ok(());
    }
    let mut known = usage.users()?;
    known.extend(config.users.iter().map(|user| user.name.to_string()));
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let hint = nearest(user, &known).map_or(String::new(), |name| format!(": did you mean `{name}`?"));
    anyhow::bail!("there is no user `{user}`, and the ledger has had none{hint}")
}

/// Checks that a user is in the team, or was when it was removed.
fn check_team(team: &str, usage: &impl Usage) -> anyhow::Result<()> {
    let known = usage.teams();
    if known.contains(team) {
        return Ok(());
    }
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let hint = nearest(team, &known).map_or(String::new(), |name| format!(": did you mean `{name}`?"));
    anyhow::bail!("no user that the ledger knows is in a team `{team}`{hint}")
}

/// Checks that the set is in the configuration, or was when a flow was recorded.
fn check_set(set: &str, config: &Config, usage: &impl Usage) -> anyhow::Result<()> {
    let sets = config.policy.sets().iter();
    let mut known = usage.sets();
    known.extend(sets.cloned());
    if known.contains(set) {
        return Ok(());
    }
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let hint = nearest(set, &known).map_or(String::new(), |name| format!(": did you mean `{name}`?"));
    anyhow::bail!("there is no set `{set}` in `[destinations]`, and the ledger has had none{hint}")
}

/// A time zone on the command line.
fn zone(text: &str) -> Result<TimeZone, String> {
    let database = jiff::tz::db();
    database.get(text).map_err(|_| {
        let names: Vec<String> = database.available().map(|name| name.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let hint = nearest(text, &names).map_or(String::new(), |name| format!(": did you mean `{name}`?"));
        format!(
            "there is no time zone `{text}`; write a name such as Europe/Berlin, Asia/Kolkata or UTC{hint}"
        )
    })
}

/// A moment on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Moment(WallNanos),
    Day(Date),
    Ago(Duration),
}

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<When, String> {
        if let Some(ago) = duration(text) {
            return Ok(When::Ago(ago));
        }
        // A date alone would also parse from the start of a moment.
        if text.len() == "2026-01-31".len()
            && let Ok(day) = text.parse::<Date>()
        {
            return Ok(When::Day(day));
        }
        let moment = text.parse::<Timestamp>().ok().map(nanos);
        moment.map(When::Moment).ok_or_else(|| {
            "expected a day such as 2026-01-31, a moment such as 2026-01-31T12:00:00Z, \
             or how long ago such as 36h"
                .into()
        })
    }
}

impl When {
    /// The moment, or the beginning of the day.
    fn beginning(self, now: WallNanos, zone: &TimeZone) -> WallNanos {
        match self {
            When::Moment(moment) => moment,
            When::Day(day) => midnight(day, zone),
            When::Ago(ago) => {
                WallNanos(now.0.saturating_sub(u64::try_from(ago.as_nanos()).unwrap_or(u64::MAX)))
            }
        }
    }

    /// The moment, or the end of the day.
    fn end(self, now: WallNanos, zone: &TimeZone) -> WallNanos {
        match self {
            When::Day(day) => {
                day.checked_add(1.day()).map_or(WallNanos(u64::MAX), |next| midnight(next, zone))
            }
            other => other.beginning(now, zone),
        }
    }
}

/// The beginning of a day in `zone`; the last day's for a later one, which cannot be represented.
fn midnight(day: Date, zone: &TimeZone) -> WallNanos {
    let moment = day.to_zoned(zone.clone()).ok().map(|moment| nanos(moment.timestamp()));
    moment.unwrap_or(WallNanos(u64::MAX))
}

/// Nanoseconds since 1970. An earlier moment becomes the first, a later one than fits (in 2554) the last.
fn nanos(moment: Timestamp) -> WallNanos {
    let nanos = moment.as_nanosecond();
    WallNanos(u64::try_from(nanos).unwrap_or(if nanos < 0 { 0 } else { u64::MAX }))
}

fn as_table(by: &[By], answer: &Answer, total: &Row, status: &AnswerStatus) -> String {
    let row = |row: &Row| {
        let both = row.up.saturating_add(row.down);
        let keys = (0..by.len()).map(|index| row.keys.get(index).cloned().unwrap_or_default());
        keys.chain([row.flows.to_string(), bytes(row.up), bytes(row.down), bytes(both)]).collect()
    };
    let rows = answer.rows.iter().chain([total]).map(row).collect();
    let header: Vec<&str> = names(by).chain(["flows", "up", "down", "both"]).collect();
    let mut text = table(&header, rows, &[0, 1, 2, 3].map(|column| by.len() + column));
    if total.live > 0 {
        text.push_str(&match total.live {
            1 => "1 flow is still open: its bytes so far are included.\n".to_owned(),
            live => format!("{live} flows are still open: their bytes so far are included.\n"),
        });
    }
    if !answer.missing.is_empty() {
        let months = answer.missing.join(", ");
        text.push_str(&format!(
            "Incomplete: the ledger has the flows of {months} only as sums by user, class and hour \
             (`[ledger] detail_months`), so the rows lack them.\n"
        ));
    }
    if status.is_ahead {
        text.push_str("Includes flows that are in the journal and not yet in the database.\n");
    }
    text.extend(status.accepted.iter().map(|loss| format!("Incomplete: a loss was accepted on {loss}.\n")));
    text.extend(status.problems.iter().map(|problem| format!("Wrong: {problem}.\n")));
    if !status.problems.is_empty() {
        text.push_str("These sums cannot be relied on. `tollgate ledger repair` explains the remedies.\n");
    }
    text
}

fn names(by: &[By]) -> impl Iterator<Item = &'static str> {
    by.iter().map(|key| key.as_str())
}

fn as_json(by: &[By], answer: &Answer, total: &Row, status: &AnswerStatus) -> Value {
    let sums = |row: &Row| {
        json!({
            "flows": row.flows, "live": row.live, "requests": row.requests, "up": row.up, "down": row.down,
            "uncertain_up": row.uncertain_up, "uncertain_down": row.uncertain_down,
        })
    };
    let row = |row: &Row| {
        let mut value = sums(row);
        for (key, text) in by.iter().zip(&row.keys) {
            value[key.as_str()] = match key {
                By::Port => json!(text.parse::<u16>().ok()),
                By::Protocol | By::Set if text.is_empty() => Value::Null,
                _ => json!(text),
            };
        }
        value
    };
    let rows: Vec<Value> = answer.rows.iter().map(row).collect();
    let by = names(by).collect::<Vec<_>>().join(",");
    json!({
        "by": by, "rows": rows, "total": sums(total), "missing": answer.missing,
        "right": status.problems.is_empty(), "problems": status.problems, "accepted": status.accepted,
    })
}

fn as_csv(by: &[By], rows: &[Row]) -> String {
    let names = names(by).collect::<Vec<_>>().join(",");
    let mut text = format!("{names},flows,up,down,live,uncertain_up,uncertain_down,requests\r\n");
    for Row { keys, flows, live, requests, up, down, uncertain_up, uncertain_down } in rows {
        keys.iter().for_each(|key| text.extend([&field(key), ","]));
        for sum in [flows, up, down, live, uncertain_up, uncertain_down] {
            let _ = write!(text, "{sum},");
        }
        let _ = write!(text, "{requests}\r\n");
    }
    text
}

/// A text as a CSV field that no spreadsheet interprets as a formula.
fn field(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = format!("{}{text}", if formula { "'" } else { "" });
    match text.contains(['"', ',', '\r', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

/// Bytes in decimal units, three digits: `1.23 GB` is 1,230,000,000 bytes.
pub(super) fn bytes(count: u64) -> String {
    const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    // In thousandths, so that rounding never turns 999,999 bytes into "1000 kB".
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        value if value >= 99.95 => 0,
        value if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_for_a_wrong_answer_is_told() {
        let told = |completeness: &Completeness| {
            problems(completeness, &Losses::default(), &Answer::default(), &Row::default())
        };
        assert_eq!(told(&Completeness { includes_unapplied: true, ..Completeness::default() }), [""; 0]);
        let ahead = Completeness { months_ahead: vec!["2026-02".to_owned()], ..Completeness::default() };
        let unread = Completeness { unread: Some("a cut segment".to_owned()), ..Completeness::default() };
        let damaged = Completeness { has_damaged_rows: true, ..Completeness::default() };
        for (completeness, word) in [(ahead, "2026-02"), (unread, "a cut segment"), (damaged, "damaged")] {
            let told = told(&completeness);
            assert!(told.len() == 1 && told[0].contains(word), "{told:?}");
        }
    }

    #[test]
    fn bytes_have_decimal_units() {
        for (count, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.00 kB"),
            (1_234, "1.23 kB"),
            (9_994, "9.99 kB"),
            (9_996, "10.0 kB"),
            (99_940, "99.9 kB"),
            (99_960, "100 kB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (1_230_000_000, "1.23 GB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(bytes(count), text, "{count}");
        }
    }

    #[test]
    fn fields_are_quoted_and_disarmed() {
        for (text, shown) in [
            ("ci", "ci"),
            ("", ""),
            ("a,b", "\"a,b\""),
            ("a\"b", "\"a\"\"b\""),
            ("a\r\nb", "\"a\r\nb\""),
            ("=1+1", "'=1+1"),
            ("@sum(a)", "'@sum(a)"),
            ("-2,3", "\"'-2,3\""),
            ("\tx", "'\tx"),
        ] {
            assert_eq!(field(text), shown, "{text:?}");
        }
    }

    #[test]
    fn moments_are_read() {
        let (now, utc) = (WallNanos(10_000_000_000_000), TimeZone::UTC);
        let day: When = "1970-01-02".parse().unwrap();
        assert_eq!(day.beginning(now, &utc), WallNanos(86_400_000_000_000));
        assert_eq!(day.end(now, &utc), WallNanos(2 * 86_400_000_000_000));
        // A day of 23 hours: clocks go forward at its beginning.
        let cairo = zone("Africa/Cairo").unwrap();
        let day: When = "2026-04-24".parse().unwrap();
        let hours = (day.end(now, &cairo).0 - day.beginning(now, &cairo).0) / 3_600_000_000_000;
        assert_eq!(hours, 23);
        assert!(zone("Asia/Calcuta").unwrap_err().contains("did you mean `Asia/Calcutta`?"));
        let moment: When = "1970-01-01T01:00:00+01:00".parse().unwrap();
        assert_eq!((moment.beginning(now, &utc), moment.end(now, &utc)), (WallNanos(0), WallNanos(0)));
        let ago: When = "1h".parse().unwrap();
        assert_eq!(ago.end(now, &utc), WallNanos(6_400_000_000_000));
        assert_eq!("1000d".parse::<When>().unwrap().beginning(now, &utc), WallNanos(0));
        // A moment outside the range of nanoseconds becomes the first or the last one.
        for (text, beginning, end) in [
            ("2555-01-01", u64::MAX, u64::MAX),
            ("9999-12-31", u64::MAX, u64::MAX),
            ("2600-01-01T00:00:00Z", u64::MAX, u64::MAX),
            ("1969-12-30", 0, 0),
            ("1969-12-31T00:00:00Z", 0, 0),
        ] {
            let when: When = text.parse().unwrap();
            assert_eq!(
                (when.beginning(now, &utc), when.end(now, &utc)),
                (WallNanos(beginning), WallNanos(end)),
                "{text}"
            );
        }
        for bad in ["", "yesterday", "2026-02-30", "2026-1-1", "12:00", "-1h"] {
            assert!(bad.parse::<When>().is_err(), "{bad:?}");
        }
    }
}
