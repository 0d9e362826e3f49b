//! The groups of an answer: sums by keys, and the order of their rows.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use rusqlite::Row as SqlRow;
use rusqlite::types::ValueRef;

use super::{GroupBy, QueryError, Row};
use crate::database::registry::Registry;

pub(super) const TOTAL: &str = "total";

/// Sums by keys: flows, live, requests, up, down, uncertain up, uncertain down.
pub(super) struct Groups<'a> {
    keys: &'a [GroupBy],
    registry: &'a Registry,
    sums: BTreeMap<Vec<String>, Sums>,
}

pub(super) type Sums = [i64; 7];

impl<'a> Groups<'a> {
    pub(super) fn new(keys: &'a [GroupBy], registry: &'a Registry) -> Self {
        Self { keys, registry, sums: BTreeMap::new() }
    }

    /// Adds a row whose columns are those of [`super::Usage::expressions`] and the sums.
    pub(super) fn add(&mut self, row: &SqlRow<'_>) -> Result<(), QueryError> {
        let key = match self.keys {
            [] => vec![TOTAL.to_owned()],
            keys => keys
                .iter()
                .enumerate()
                .map(|(index, key)| self.key_text(*key, row.get_ref(index)?))
                .collect::<rusqlite::Result<_>>()?,
        };
        let mut more = Sums::default();
        for (index, sum) in more.iter_mut().enumerate() {
            *sum = row.get(self.keys.len().max(1) + index)?;
        }
        self.sum(key, more)
    }

    /// The text of a key's value.
    pub(super) fn key_text(&self, key: GroupBy, value: ValueRef<'_>) -> rusqlite::Result<String> {
        match key {
            GroupBy::User => Ok(self.registry.accounts.name(value.as_i64_or_null()?.unwrap_or(0))),
            GroupBy::Set => Ok(self.registry.sets.name(value.as_i64()?)),
            _ => Ok(value.as_str()?.to_owned()),
        }
    }

    pub(super) fn sum(&mut self, keys: Vec<String>, more: Sums) -> Result<(), QueryError> {
        let sums = self.sums.entry(keys).or_default();
        for (sum, more) in sums.iter_mut().zip(more) {
            *sum = sum.checked_add(more).ok_or(QueryError::Overflow)?;
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<Vec<Row>, QueryError> {
        self.sums.into_iter().map(|(keys, sums)| row(keys, sums)).collect()
    }
}

fn row(keys: Vec<String>, sums: Sums) -> Result<Row, QueryError> {
    // The largest number stands for any larger sum too.
    if sums.contains(&i64::MAX) {
        return Err(QueryError::Overflow);
    }
    if sums.iter().any(|sum| *sum < 0) {
        return Err(QueryError::Contradiction);
    }
    let [flows, live, requests, up, down, uncertain_up, uncertain_down] = sums.map(i64::cast_unsigned);
    Ok(Row { keys, flows, live, requests, up, down, uncertain_up, uncertain_down })
}

/// Sorts rows, which are in the order of their keys, as [`super::Usage::rows`] documents.
pub(super) fn in_order(mut rows: Vec<Row>, keys: &[GroupBy]) -> Vec<Row> {
    let own_bytes = |row: &Row| u128::from(row.up) + u128::from(row.down);
    // With its last key a row is alone: its bytes are not stored again, for there may be very many rows.
    let last = keys.len().saturating_sub(1);
    let mut bytes = HashMap::<Vec<String>, u128>::new();
    for row in &rows {
        for length in 1..=last {
            *bytes.entry(row.keys[..length].to_vec()).or_default() += own_bytes(row);
        }
    }
    let most_first = |row: &Row, index: usize| match keys[index].is_time() {
        true => 0,
        false if index == last => own_bytes(row),
        false => bytes[&row.keys[..=index]],
    };
    rows.sort_by(|one, other| {
        // Equal sums in the order of their keys, so that the result is the same each time.
        let level = |index: usize| {
            let by_bytes = most_first(other, index).cmp(&most_first(one, index));
            by_bytes.then_with(|| one.keys[index].cmp(&other.keys[index]))
        };
        (0..keys.len()).map(level).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    });
    rows
}
