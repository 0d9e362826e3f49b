//! The groups of an answer: sums by keys, and the order of their rows.
//!
//! Guarantees: a group's key is a number while rows are added, and its text is made once.

use std::collections::HashMap;
use std::rc::Rc;

use super::QueryError;
use crate::database::month::{DAY_NS, Month};
use crate::database::number_hasher::NumberMap;
use crate::database::registry::Registry;
use crate::database::sums;
use crate::query::zone::Zone;
use crate::query::{GroupBy, Row};

pub(super) const TOTAL: &str = "total";

/// The sums of a group: flows, live, requests, up, down, uncertain up, uncertain down.
pub(super) type Sums = [i64; 7];

/// The sums of rows without open flows.
pub(super) fn closed(sums: &sums::Sums) -> Sums {
    let sums::Sums { flows, requests, up, down, uncertain_up, uncertain_down } = *sums;
    [flows, 0, requests, up, down, uncertain_up, uncertain_down]
}

/// The sums in the columns of a row without open flows, which begin with `flows`.
pub(super) fn closed_columns(columns: &[i64]) -> Sums {
    let sum = |index: usize| columns.get(index).copied().unwrap_or(0);
    [sum(0), 0, sum(1), sum(2), sum(3), sum(4), sum(5)]
}

/// What is grouped: the fields that keys are made of, and sums. Where no key needs a field, it may be empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item<'a> {
    pub(super) at_ns: i64,
    pub(super) account: i64,
    pub(super) host: Text<'a>,
    pub(super) port: Text<'a>,
    pub(super) protocol: &'a str,
    pub(super) class: &'a str,
    pub(super) set: i64,
    pub(super) sums: Sums,
}

impl Item<'_> {
    /// Nothing, at a moment.
    pub(super) fn at(at_ns: i64) -> Item<'static> {
        let (host, port) = (Text::Plain(""), Text::Plain(""));
        Item { at_ns, account: 0, host, port, protocol: "", class: "", set: 0, sums: Sums::default() }
    }
}

/// The text of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Text<'a> {
    Plain(&'a str),
    /// A number as its digits.
    Number(i64),
    /// The number that [`Groups::intern`] gave.
    Interned(i64),
}

/// Sums by keys.
pub(super) struct Groups<'a> {
    keys: &'a [GroupBy],
    registry: &'a Registry,
    zone: &'a Zone,
    texts: Interner,
    /// Of one key that is a text: by the text's number, from 0 on.
    by_text: Vec<Option<Sums>>,
    /// By a number for each key: of one key, or of several.
    of_one: NumberMap<i64, Sums>,
    sums: HashMap<Box<[i64]>, Sums>,
    /// Those of which only texts are known.
    named: HashMap<Vec<String>, Sums>,
    /// The numbers of the item at hand.
    numbers: Vec<i64>,
    /// The last looked up day, counted from 1970, and its month.
    month: (i64, i64),
    /// The names of periods of another zone than UTC, by key and moment.
    periods: HashMap<(GroupBy, i64), i64>,
}

impl<'a> Groups<'a> {
    pub(super) fn new(keys: &'a [GroupBy], registry: &'a Registry, zone: &'a Zone) -> Self {
        Self {
            keys,
            registry,
            zone,
            texts: Interner::default(),
            by_text: Vec::new(),
            of_one: NumberMap::default(),
            sums: HashMap::new(),
            named: HashMap::new(),
            numbers: Vec::new(),
            month: (-1, 0),
            periods: HashMap::new(),
        }
    }

    /// Adds an item.
    pub(super) fn add(&mut self, item: &Item<'_>) -> Result<(), QueryError> {
        if let [key] = self.keys {
            let number = self.number(*key, item);
            let sums = match usize::try_from(number).ok().filter(|_| key.is_text()) {
                Some(index) => {
                    if self.by_text.len() <= index {
                        self.by_text.resize(index + 1, None);
                    }
                    self.by_text[index].get_or_insert_default()
                }
                None => self.of_one.entry(number).or_default(),
            };
            return add(sums, item.sums);
        }
        let mut numbers = std::mem::take(&mut self.numbers);
        numbers.clear();
        numbers.extend(self.keys.iter().map(|key| self.number(*key, item)));
        let outcome = match self.sums.get_mut(numbers.as_slice()) {
            Some(sums) => add(sums, item.sums),
            None => {
                self.sums.insert(numbers.as_slice().into(), item.sums);
                Ok(())
            }
        };
        self.numbers = numbers;
        outcome
    }

    /// The number of a text.
    pub(super) fn intern(&mut self, text: &str) -> i64 {
        self.texts.intern(text)
    }

    fn number(&mut self, key: GroupBy, item: &Item<'_>) -> i64 {
        match key {
            GroupBy::User => item.account,
            GroupBy::Team => self.texts.intern(self.registry.teams.of(item.account)),
            GroupBy::Set => item.set,
            GroupBy::Host => self.text_number(item.host),
            GroupBy::Port => self.text_number(item.port),
            GroupBy::Protocol => self.texts.intern(item.protocol),
            GroupBy::Class => self.texts.intern(item.class),
            GroupBy::Quarter | GroupBy::Hour | GroupBy::Day | GroupBy::Month => self.period(key, item.at_ns),
        }
    }

    fn text_number(&mut self, text: Text<'_>) -> i64 {
        match text {
            Text::Plain(text) => self.texts.intern(text),
            Text::Number(number) => self.texts.intern(&number.to_string()),
            Text::Interned(number) => number,
        }
    }

    /// The number of the period that has the moment `at_ns`: that of its beginning in UTC, or of its name.
    fn period(&mut self, key: GroupBy, at_ns: i64) -> i64 {
        let start_ns = key.period_ns().map_or(at_ns, |period_ns| at_ns / period_ns * period_ns);
        match (self.zone.is_utc(), key) {
            (true, GroupBy::Month) => {
                let day = at_ns / DAY_NS;
                if self.month.0 != day {
                    self.month = (day, Month::containing(at_ns).beginning_ns());
                }
                self.month.1
            }
            (true, _) => start_ns,
            (false, _) => {
                let Groups { zone, texts, .. } = self;
                let quarter_ns = GroupBy::Quarter.period_ns().map_or(at_ns, |length| at_ns / length);
                let name = || texts.intern(&zone.name(key, at_ns));
                *self.periods.entry((key, quarter_ns)).or_insert_with(name)
            }
        }
    }

    /// Adds sums to the group with these texts as keys.
    pub(super) fn sum(&mut self, keys: Vec<String>, more: Sums) -> Result<(), QueryError> {
        add(self.named.entry(keys).or_default(), more)
    }

    pub(super) fn finish(mut self) -> Result<Vec<Row>, QueryError> {
        let (by_text, of_one) = (std::mem::take(&mut self.by_text), std::mem::take(&mut self.of_one));
        let (sums, mut named) = (std::mem::take(&mut self.sums), std::mem::take(&mut self.named));
        let mut rows = Vec::new();
        for (number, sums) in by_text.into_iter().enumerate() {
            let Some(mut sums) = sums else { continue };
            let keys = vec![self.texts.text(number as i64).to_owned()];
            // No other number has this text.
            if let Some(more) = named.remove(&keys) {
                add(&mut sums, more)?;
            }
            rows.extend(row(keys, sums)?);
        }
        // Several accounts or sets may have one name.
        let is_unique = self.keys.iter().all(|key| !matches!(key, GroupBy::User | GroupBy::Set));
        let of_one = of_one.into_iter().map(|(number, sums)| (Box::from([number]), sums));
        for (numbers, sums) in of_one.chain(sums) {
            let texts = match self.keys {
                [] => vec![TOTAL.to_owned()],
                keys => keys.iter().zip(&numbers).map(|(key, number)| self.name(*key, *number)).collect(),
            };
            if is_unique && named.is_empty() {
                rows.extend(row(texts, sums)?);
            } else {
                add(named.entry(texts).or_default(), sums)?;
            }
        }
        named.into_iter().try_for_each(|(keys, sums)| row(keys, sums).map(|row| rows.extend(row)))?;
        Ok(rows)
    }

    fn name(&self, key: GroupBy, number: i64) -> String {
        match key {
            GroupBy::User => self.registry.accounts.name(number),
            GroupBy::Set => self.registry.sets.name(number),
            key if key.is_time() && self.zone.is_utc() => self.zone.name(key, number),
            _ => self.texts.text(number).to_owned(),
        }
    }
}

fn add(sums: &mut Sums, more: Sums) -> Result<(), QueryError> {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum = sum.checked_add(more).ok_or(QueryError::Overflow)?;
    }
    Ok(())
}

/// A number for each text.
#[derive(Default)]
struct Interner {
    numbers: HashMap<Rc<str>, i64>,
    texts: Vec<Rc<str>>,
}

impl Interner {
    fn intern(&mut self, text: &str) -> i64 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.texts.len() as i64;
        let text: Rc<str> = text.into();
        self.texts.push(Rc::clone(&text));
        self.numbers.insert(text, number);
        number
    }

    fn text(&self, number: i64) -> &str {
        usize::try_from(number).ok().and_then(|index| self.texts.get(index)).map_or("", |text| text)
    }
}

/// The row of a group, if it has any usage.
fn row(keys: Vec<String>, sums: Sums) -> Result<Option<Row>, QueryError> {
    // The largest number stands for any larger sum too.
    if sums.contains(&i64::MAX) {
        return Err(QueryError::Overflow);
    }
    if sums.iter().any(|sum| *sum < 0) {
        return Err(QueryError::Contradiction);
    }
    if sums == Sums::default() {
        return Ok(None);
    }
    let [flows, live, requests, up, down, uncertain_up, uncertain_down] = sums.map(i64::cast_unsigned);
    Ok(Some(Row { keys, flows, live, requests, up, down, uncertain_up, uncertain_down }))
}
