//! Quotas and rates: how much, and how fast, a user or a team may move bytes.
//!
//! Guarantees: no two quotas of one owner count the same bytes in the same periods, and the set that one
//! refers to exists.
//!
//! Not handled here: the tree of teams (`team.rs`), and what has been used.

use std::collections::{HashMap, HashSet};
use std::fmt::{self, Write as _};

use jiff::tz::TimeZone;

use super::raw::RawConfig;
use super::read::{Items, Located, Optional, suggest};
use super::report::{Diagnostic, Report, Span};
use super::settings::{BitRate, QuotaDefaults, QuotaItem};
use super::value::{Direction, Scope};
use crate::credit::calendar::{Calendar, Per};

/// Most quotas of one user or one team: each counts every byte of a flow.
const QUOTAS_MAX: usize = 16;

/// Most thresholds: each is reported once in a period.
const THRESHOLDS_MAX: usize = 8;

/// What a user or a team may move in each period.
#[derive(Clone, Debug, PartialEq)]
pub struct Quota {
    /// In bytes, 10^3 to 4 * 10^15.
    pub limit: u64,
    /// The periods.
    pub calendar: Calendar,
    /// The flows that count.
    pub of: Scope,
    /// The bytes of these flows that count.
    pub direction: Direction,
}

impl Quota {
    /// What distinguishes the quota from others of its owner, as a stable text for the ledger and for
    /// display: `day/external/up`, `month@15/all/both`; with the zone unless it is UTC, as in
    /// `day[Asia/Kolkata]/@paste/up`. The limit has no part in it.
    pub fn key(&self) -> String {
        let mut key = String::from(self.calendar.per().as_str());
        // Writing to a string cannot fail.
        if self.calendar.anchor() != 1 {
            let _ = write!(key, "@{}", self.calendar.anchor());
        }
        if !self.calendar.is_utc() {
            let _ = write!(key, "[{}]", self.calendar.zone_name());
        }
        let _ = write!(key, "/{}/{}", self.of, self.direction.as_str());
        key
    }

    fn new(item: &QuotaItem, default_zone: &TimeZone) -> Quota {
        let zone = item.zone.written().map_or(default_zone, |zone| &zone.value).clone();
        let anchor = item.anchor.written().and_then(|anchor| u8::try_from(anchor.value).ok()).unwrap_or(1);
        Quota {
            limit: item.limit.0,
            calendar: Calendar::new(item.per, zone, anchor),
            of: item.of.value.clone(),
            direction: item.direction,
        }
    }
}

/// What a user or a team may move in a second, in bits, 8 * 10^3 to 10^11; `None` is unlimited.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Rates {
    /// From client to destination.
    pub up: Option<u64>,
    /// From destination to client.
    pub down: Option<u64>,
}

impl Rates {
    /// A rate of one direction replaces that of each.
    pub(super) fn new(each: &Optional<BitRate>, up: &Optional<BitRate>, down: &Optional<BitRate>) -> Rates {
        let rate = |one: &Optional<BitRate>| one.written().or(each.written()).map(|rate| rate.value.0);
        Rates { up: rate(up), down: rate(down) }
    }
}

/// What all quotas have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Quotas {
    /// Where periods begin, unless a quota has a zone of its own.
    pub zone: TimeZone,
    /// The percentages of a quota that are reported, once in a period each: at most 8 different ones from 1
    /// to 100, in ascending order.
    pub thresholds: Vec<u8>,
}

impl Quotas {
    pub(super) fn new(raw: &QuotaDefaults) -> Quotas {
        let mut thresholds: Vec<u8> =
            raw.thresholds.iter().filter_map(|percent| u8::try_from(percent.value).ok()).collect();
        thresholds.sort_unstable();
        thresholds.dedup();
        Quotas { zone: raw.zone.clone(), thresholds }
    }
}

/// The user or the team that has a quota.
#[derive(Clone, Copy)]
pub(super) enum Owner<'a> {
    Team(&'a str),
    User(&'a str),
}

impl fmt::Display for Owner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Team(name) => write!(f, "team `{name}`"),
            Owner::User(name) => write!(f, "user `{name}`"),
        }
    }
}

/// Every list of quotas, with its owner.
pub(super) fn owners(raw: &RawConfig) -> impl Iterator<Item = (Owner<'_>, &[Located<QuotaItem>])> {
    let teams = raw.teams.iter().map(|team| (Owner::Team(&team.name), &*team.table.quota.0));
    let users = raw.users.iter().map(|user| (Owner::User(&user.name), &*user.table.quota.0));
    teams.chain(users)
}

/// The key of a quota, as [`Quota::key`].
pub(super) fn key(item: &QuotaItem, raw: &RawConfig) -> String {
    Quota::new(item, &raw.quotas.zone).key()
}

/// The quotas of one owner. [`check`] must have found no error.
pub(super) fn resolve(items: &Items<QuotaItem>, default_zone: &TimeZone) -> Vec<Quota> {
    items.0.iter().map(|item| Quota::new(item, default_zone)).collect()
}

/// Reports quotas that are invalid, or of which one owner has two.
pub(super) fn check(raw: &RawConfig, report: &mut Report) {
    if let Some(threshold) = raw.quotas.thresholds.get(THRESHOLDS_MAX) {
        let title = format!("more than {THRESHOLDS_MAX} thresholds");
        report.error(Diagnostic::at(&threshold.span, title));
    }
    let sets: HashSet<&str> = raw.destinations.iter().map(|set| set.name.as_str()).collect();
    for (owner, items) in owners(raw) {
        if let Some(item) = items.get(QUOTAS_MAX) {
            let title = format!("more than {QUOTAS_MAX} quotas of {owner}");
            report.error(Diagnostic::at(&item.span, title));
        }
        for item in items {
            check_calendar(item, report);
            if let Scope::Set(name) = &item.of.value
                && !sets.contains(&**name)
            {
                report.error(unknown_set(raw, &item.of.span, name));
            }
        }
        check_distinct(raw, owner, items, report);
    }
}

/// Reports settings of periods that the quota does not have.
fn check_calendar(item: &QuotaItem, report: &mut Report) {
    if let Some(anchor) = item.anchor.written()
        && item.per != Per::Month
    {
        let title = "`anchor` is for `per = \"month\"` only";
        let help = "a day begins at midnight, a week on Monday: remove it";
        report.error(Diagnostic::at(&anchor.span, title).help(help));
    }
    if let Some(zone) = item.zone.written()
        && item.per == Per::Total
    {
        let title = "`zone` of a quota with `per = \"total\"` has no effect";
        report.warning(Diagnostic::at(&zone.span, title).help("such a quota never renews"));
    }
}

/// Reports two quotas of `owner` that count the same bytes in the same periods.
fn check_distinct(raw: &RawConfig, owner: Owner<'_>, items: &[Located<QuotaItem>], report: &mut Report) {
    let mut seen: HashMap<String, &Located<QuotaItem>> = HashMap::new();
    for item in items {
        if let Some(first) = seen.insert(key(item, raw), item) {
            let title = format!("two quotas of {owner} would be one");
            let diagnostic = Diagnostic::at(&item.span, title).label("it counts the same bytes");
            report.error(diagnostic.related(&first.span, "as this one").help("remove the larger"));
        }
    }
}

/// A finding about a reference to a set that does not exist.
pub(super) fn unknown_set(raw: &RawConfig, span: &Span, reference: &str) -> Diagnostic {
    let sets: Vec<&str> = raw.destinations.iter().map(|set| set.name.as_str()).collect();
    let diagnostic = Diagnostic::at(span, format!("there is no set `@{reference}`"));
    match sets.is_empty() {
        true => diagnostic.help(format!("write a table [destinations.{reference}]")),
        false => suggest(diagnostic, reference, &sets),
    }
}
