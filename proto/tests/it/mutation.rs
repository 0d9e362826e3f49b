//! Mutations of heads, as an attacker or a broken client makes them.

use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Heads with a few pieces removed, and texts of `insertions` at their positions.
pub(crate) fn mutated(
    heads: impl Strategy<Value = String>,
    insertions: &'static [&'static str],
) -> impl Strategy<Value = String> {
    let change = (any::<Index>(), 0usize..3, select(insertions));
    (heads, prop::collection::vec(change, 0..3)).prop_map(|(mut head, changes)| {
        for (position, removed, inserted) in changes {
            let mut borders: Vec<usize> = head.char_indices().map(|(index, _)| index).collect();
            borders.push(head.len());
            let start = position.index(borders.len());
            let end = (start + removed).min(borders.len() - 1);
            head.replace_range(borders[start]..borders[end], inserted);
        }
        head
    })
}
