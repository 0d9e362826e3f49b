//! The order of the rows of an answer.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::zone::Zone;
use super::{GroupBy, Row};

/// Sorts the rows of `keys`, with periods of `zone`, as [`super::Usage`] documents.
pub(crate) fn in_order(mut rows: Vec<Row>, keys: &[GroupBy], zone: &Zone) -> Vec<Row> {
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
            by_bytes.then_with(|| match keys[index].is_time() {
                true => zone.compare(keys[index], &one.keys[index], &other.keys[index]),
                false => one.keys[index].cmp(&other.keys[index]),
            })
        };
        (0..keys.len()).map(level).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    });
    rows
}
