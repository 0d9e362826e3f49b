//! Sums over whole quarter-hours, from the rollups.
//!
//! Guarantees: the same sums as from details.
//!
//! Whole months and days in the window are read from their own rollups, unless a key is finer:
//!
//! ```text
//!   quarter-hours | days |        months        | days | quarter-hours
//! ```
//!
//! Of days and months that are over, packed values take the place of rows, where neither class nor set
//! matters.

use rusqlite::{Params, Statement};

use super::groups::{Item, closed, closed_columns};
use super::{Admission, Groups, QueryError, SqliteUsage};
use crate::database::checksum::{self, Checker};
use crate::database::derived::Packed;
use crate::database::month::{DAY_NS, Month, QUARTER_NS};
use crate::database::packed;
use crate::database::sums::DAY_QUARTERS;
use crate::query::window::Window;
use crate::query::{Filter, GroupBy};

/// A table of rollups.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Unit {
    Quarter,
    Day,
    Month,
}

impl Unit {
    /// The table with the sums of one account, or of all, and its first column.
    fn source(self, needs_account: bool) -> (&'static str, &'static str) {
        let (rollup, total, column) = match self {
            Unit::Quarter => ("rollup_quarter", "total_quarter", "quarter"),
            Unit::Day => ("rollup_day", "total_day", "day"),
            Unit::Month => ("rollup_month", "total_month", "month"),
        };
        (if needs_account { rollup } else { total }, column)
    }

    /// The number of the unit with a moment.
    fn number(self, at_ns: i64) -> i64 {
        match self {
            Unit::Quarter => at_ns / QUARTER_NS,
            Unit::Day => at_ns / DAY_NS,
            Unit::Month => Month::containing(at_ns).number(),
        }
    }

    /// The moment at which a unit begins.
    fn start_ns(self, number: i64) -> i64 {
        match self {
            Unit::Quarter => number.saturating_mul(QUARTER_NS),
            Unit::Day => number.saturating_mul(DAY_NS),
            Unit::Month => Month::from_number(number).map_or(0, Month::beginning_ns),
        }
    }

    /// The first and the last unit of a window.
    fn numbers(self, window: Window) -> (i64, i64) {
        (self.number(window.since_ns), self.number(window.last_ns))
    }

    /// The next unit.
    fn next(self, number: i64) -> Option<i64> {
        match self {
            Unit::Month => Some(Month::from_number(number)?.next()?.number()),
            _ => number.checked_add(1),
        }
    }
}

/// The sums of one table: by unit, perhaps by account, by class and set.
struct Source<'a> {
    unit: Unit,
    needs_account: bool,
    admission: &'a Admission<'a>,
}

impl Window {
    /// The tables that have the sums of this window, which consists of whole quarter-hours, and their parts
    /// of it. `coarsest`: the longest unit that the keys permit.
    fn units(self, coarsest: Unit) -> Vec<(Unit, Window)> {
        let (inner, finer) = match coarsest {
            Unit::Quarter => return vec![(Unit::Quarter, self)],
            Unit::Day => (self.whole(DAY_NS), Unit::Quarter),
            Unit::Month => (self.whole_months(), Unit::Day),
        };
        let Some(inner) = inner else { return self.units(finer) };
        let mut units = vec![(coarsest, inner)];
        self.without(inner).for_each(|rest| units.extend(rest.units(finer)));
        units
    }
}

impl SqliteUsage {
    /// Adds the sums of a window of whole quarter-hours.
    pub(super) fn add_rollups(
        &self,
        filter: &Filter,
        keys: &[GroupBy],
        window: Window,
        groups: &mut Groups<'_>,
    ) -> Result<(), QueryError> {
        let is_of_account = |key: &GroupBy| matches!(key, GroupBy::User | GroupBy::Team);
        let needs_account = filter.is_of_account() || keys.iter().any(is_of_account);
        let coarsest = match () {
            () if keys.iter().any(|key| matches!(key, GroupBy::Quarter | GroupBy::Hour)) => Unit::Quarter,
            () if keys.contains(&GroupBy::Day) => Unit::Day,
            () if !needs_account && !self.has_derived => Unit::Quarter,
            () => Unit::Month,
        };
        let needs_row = filter.user.is_some()
            || filter.class.is_some()
            || filter.set.is_some()
            || keys.iter().any(|key| matches!(key, GroupBy::Class | GroupBy::Set))
            || !self.has_derived;
        let admission = filter.admission(&self.registry, Window::EVER);
        for (mut unit, part) in self.parts_by_unit(keys, window, coarsest)? {
            if !needs_account && !self.has_derived {
                unit = Unit::Quarter;
            }
            let source = Source { unit, needs_account, admission: &admission };
            let numbers = unit.numbers(part);
            match admission.account {
                Some(account) => self.add_account(&source, account, numbers, groups)?,
                None if needs_row => self.add_units(&source, numbers, groups)?,
                None => self.add_packed(&source, numbers, groups)?,
            }
        }
        let admission = filter.admission(&self.registry, window);
        self.each_open(&admission, |item| {
            // Their bytes are in the rollups.
            groups.add(&Item { sums: [0, 1, 0, 0, 0, 0, 0], ..*item })
        })
    }

    /// Adds the rows of the units from `first` to `last`.
    fn add_units(
        &self,
        source: &Source<'_>,
        (first, last): (i64, i64),
        groups: &mut Groups<'_>,
    ) -> Result<(), QueryError> {
        let (table, column) = source.unit.source(source.needs_account);
        let sql = format!("SELECT * FROM {table} WHERE {column} BETWEEN ?1 AND ?2");
        let mut select = self.connection.prepare_cached(&sql)?;
        self.add_sums(source, &mut select, [first, last], groups)
    }

    /// Adds the rows of an account. Their key begins with the unit: those of each unit are found by key.
    fn add_account(
        &self,
        source: &Source<'_>,
        account: i64,
        (first, last): (i64, i64),
        groups: &mut Groups<'_>,
    ) -> Result<(), QueryError> {
        let (table, column) = source.unit.source(true);
        let sql = format!("SELECT * FROM {table} WHERE {column} = ?1 AND account = ?2");
        let mut select = self.connection.prepare_cached(&sql)?;
        let mut of_day = self.connection.prepare_cached(HAS_DAY)?;
        let Some(span) = self.span()? else { return Ok(()) };
        let (first, last) =
            (first.max(source.unit.number(span.since_ns)), last.min(source.unit.number(span.last_ns)));
        let mut next = Some(first);
        while let Some(number) = next.filter(|number| *number <= last) {
            next = source.unit.next(number);
            // A day without a row has no quarter-hour with one.
            if source.unit == Unit::Quarter && (number == first || number % DAY_QUARTERS == 0) {
                let day = number / DAY_QUARTERS;
                if !of_day.exists([day, account])? {
                    next = day.checked_add(1).and_then(|day| day.checked_mul(DAY_QUARTERS));
                    continue;
                }
            }
            self.add_sums(source, &mut select, [number, account], groups)?;
        }
        Ok(())
    }

    fn add_sums(
        &self,
        source: &Source<'_>,
        select: &mut Statement<'_>,
        parameters: impl Params,
        groups: &mut Groups<'_>,
    ) -> Result<(), QueryError> {
        let class = if source.needs_account { 2 } else { 1 };
        // The class, the set, six sums, and the checksum.
        let mut checker = Checker::new(0, class + 8);
        let mut rows = select.query(parameters)?;
        // The beginning of the unit of the row before.
        let mut start = (i64::MIN, 0);
        while let Some(row) = rows.next()? {
            if !self.row_checks.admits(checker.is_intact(row)?) {
                continue;
            }
            let integers = checker.integers();
            if start.0 != integers[0] {
                start = (integers[0], source.unit.start_ns(integers[0]));
            }
            let item = Item {
                account: if source.needs_account { integers[1] } else { 0 },
                class: row.get_ref(class)?.as_str().map_err(rusqlite::Error::from)?,
                set: integers[class + 1],
                sums: closed_columns(&integers[class + 2..]),
                ..Item::at(start.1)
            };
            if source.admission.admits(&item) {
                groups.add(&item)?;
            }
        }
        Ok(())
    }

    /// Adds packed values, and the rows of units without one. Neither classes nor sets matter.
    fn add_packed(
        &self,
        source: &Source<'_>,
        (first, last): (i64, i64),
        groups: &mut Groups<'_>,
    ) -> Result<(), QueryError> {
        let (kind, whole) = match (source.unit, source.needs_account) {
            (Unit::Day, true) => (Packed::Day, (first, last)),
            (Unit::Month, true) => (Packed::Month, (first, last)),
            (Unit::Quarter, false) => {
                (Packed::Quarters, ((first + DAY_QUARTERS - 1) / DAY_QUARTERS, (last + 1) / DAY_QUARTERS - 1))
            }
            _ => return self.add_units(source, (first, last), groups),
        };
        // The first and the last unit of a value.
        let span = |value: i64| match kind {
            Packed::Quarters => (value * DAY_QUARTERS, value * DAY_QUARTERS + DAY_QUARTERS - 1),
            _ => (value, value),
        };
        let (table, column) = (kind.table(), kind.unit());
        let sql = format!("SELECT * FROM {table} WHERE {column} BETWEEN ?1 AND ?2 ORDER BY {column}");
        let mut select = self.connection.prepare_cached(&sql)?;
        let mut values = select.query([whole.0, whole.1])?;
        // The first unit that is not added yet.
        let mut next = first;
        while let Some(value) = values.next()? {
            let number: i64 = value.get(0)?;
            // The rows have what a damaged value has.
            if !checksum::is_intact(value)? {
                continue;
            }
            let (begin, end) = span(number);
            if next < begin {
                self.add_units(source, (next, begin - 1), groups)?;
            }
            let packed = value.get_ref(1)?.as_blob().map_err(rusqlite::Error::from)?;
            add_value(source, begin, packed, groups)?;
            next = source.unit.next(end).unwrap_or(i64::MAX);
        }
        if next <= last {
            self.add_units(source, (next, last), groups)?;
        }
        Ok(())
    }

    /// Whether a user with this name had any usage; also a removed one, and by an earlier name.
    pub(super) fn find_user(&self, name: &str) -> Result<bool, QueryError> {
        let Some(account) = self.registry.accounts.find(name) else { return Ok(false) };
        let mut is_live = self.connection.prepare("SELECT 1 FROM live WHERE account = ?1")?;
        if is_live.exists([account])? {
            return Ok(true);
        }
        let Some(span) = self.span()? else { return Ok(false) };
        let (mut next, (_, last)) = (Some(Unit::Month.number(span.since_ns)), Unit::Month.numbers(span));
        let mut has_month =
            self.connection.prepare("SELECT 1 FROM rollup_month WHERE month = ?1 AND account = ?2")?;
        while let Some(month) = next.filter(|month| *month <= last) {
            if has_month.exists([month, account])? {
                return Ok(true);
            }
            next = Unit::Month.next(month);
        }
        Ok(false)
    }

    /// The tables that have the sums of this window, and their parts of it. A part lies within one day or one
    /// month of the zone, if the keys have that.
    fn parts_by_unit(
        &self,
        keys: &[GroupBy],
        window: Window,
        coarsest: Unit,
    ) -> Result<Vec<(Unit, Window)>, QueryError> {
        if coarsest == Unit::Quarter {
            return Ok(window.units(coarsest));
        }
        let Some(span) = self.span()? else { return Ok(Vec::new()) };
        let since_ns = window.since_ns.max(span.since_ns);
        let periods = self.zone.periods(keys, Window { since_ns, last_ns: window.last_ns.min(span.last_ns) });
        Ok(periods.into_iter().flat_map(|period| period.units(coarsest)).collect())
    }

    /// The span of all quarter-hours with sums.
    fn span(&self) -> Result<Option<Window>, QueryError> {
        let limit =
            |order| format!("SELECT (SELECT quarter FROM total_quarter ORDER BY quarter {order} LIMIT 1)");
        let read = |order| self.connection.query_row(&limit(order), [], |row| row.get::<_, Option<i64>>(0));
        let (Some(first), Some(last)) = (read("ASC")?, read("DESC")?) else { return Ok(None) };
        let since_ns = first.saturating_mul(QUARTER_NS);
        let end_ns = last.saturating_add(1).saturating_mul(QUARTER_NS);
        Ok(Some(Window { since_ns, last_ns: if end_ns == i64::MAX { end_ns } else { end_ns - 1 } }))
    }
}

const HAS_DAY: &str = "SELECT 1 FROM rollup_day WHERE day = ?1 AND account = ?2";

/// Adds a packed value of the unit `begin`, or of the day that begins with it.
fn add_value(
    source: &Source<'_>,
    begin: i64,
    packed: &[u8],
    groups: &mut Groups<'_>,
) -> Result<(), QueryError> {
    let start_ns = source.unit.start_ns(begin);
    let mut outcome = Ok(());
    packed::unpack(packed, |number, sums| {
        let item = match source.needs_account {
            true => Item { account: number, sums: closed(sums), ..Item::at(start_ns) },
            false => Item { sums: closed(sums), ..Item::at(source.unit.start_ns(number)) },
        };
        if outcome.is_ok() && source.admission.admits(&item) {
            outcome = groups.add(&item);
        }
    });
    outcome
}
