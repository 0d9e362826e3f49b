//! The range table: finds the nested networks that contain an address by one binary search.
//!
//! Guarantees: the table is immutable. A lookup allocates nothing and costs one binary search over the
//! borders plus one step per enclosing network.
//!
//! ```text
//! networks    10.0.0.0/8 ........................................  id 0
//!                  10.20.0.0/16 ......                             id 1, parent 0
//! borders     | 10.0.0.0   | 10.20.0.0   | 10.21.0.0   | 11.0.0.0
//! innermost     0            1             0             none
//! ```
//!
//! Networks are nested or disjoint and never overlap partly, so one parent is enough.

/// An address as a number: an IPv4 address as `u32`, an IPv6 address as `u128`.
pub(crate) trait Key: Copy + Ord {
    /// The next address, or `None` after the last.
    fn successor(self) -> Option<Self>;
}

impl Key for u32 {
    fn successor(self) -> Option<Self> {
        self.checked_add(1)
    }
}

impl Key for u128 {
    fn successor(self) -> Option<Self> {
        self.checked_add(1)
    }
}

/// The id that means "no network".
const NONE: u32 = u32::MAX;

/// Sorted borders over nested networks, as in the drawing above.
#[derive(Debug)]
pub(crate) struct RangeTable<K> {
    /// The first addresses of ranges with another innermost network; strictly ascending.
    borders: Box<[K]>,
    /// The innermost network from this border to the next; as long as `borders`.
    innermost: Box<[u32]>,
    /// The next wider network around each network.
    parents: Box<[u32]>,
}

impl<K: Key> RangeTable<K> {
    /// Builds the table from networks as (first, last), both inclusive, sorted by first ascending then
    /// last descending, without duplicates. A network's id is its position.
    pub(crate) fn build(networks: &[(K, K)]) -> Self {
        assert!(networks.len() < NONE as usize, "the builder bounds the rules of a list");
        let mut sweep = Sweep { borders: Vec::new(), innermost: Vec::new(), open: Vec::new() };
        let mut parents = Vec::with_capacity(networks.len());
        for (id, &(first, last)) in (0..).zip(networks) {
            sweep.close_before(Some(first));
            parents.push(sweep.innermost_open());
            sweep.open.push((id, last));
            sweep.border(first, id);
        }
        sweep.close_before(None);
        Self { borders: sweep.borders.into(), innermost: sweep.innermost.into(), parents: parents.into() }
    }

    /// The ids of the networks that contain this address, narrowest first.
    pub(crate) fn holding(&self, address: K) -> impl Iterator<Item = usize> {
        let borders_before = self.borders.partition_point(|border| *border <= address);
        let innermost = borders_before.checked_sub(1).map_or(NONE, |at| self.innermost[at]);
        let id = |network: u32| (network != NONE).then_some(network as usize);
        std::iter::successors(id(innermost), move |network| id(self.parents[*network]))
    }
}

/// The state of the build: the output so far, and the networks that contain the current address.
struct Sweep<K> {
    borders: Vec<K>,
    innermost: Vec<u32>,
    /// Networks around the current address with their last address, widest first.
    open: Vec<(u32, K)>,
}

impl<K: Key> Sweep<K> {
    /// Closes every open network that ends before this address, or all of them.
    fn close_before(&mut self, first: Option<K>) {
        while let Some((_, last)) = self.open.pop_if(|(_, last)| first.is_none_or(|first| *last < first)) {
            if let Some(after) = last.successor() {
                self.border(after, self.innermost_open());
            }
        }
    }

    fn innermost_open(&self) -> u32 {
        self.open.last().map_or(NONE, |(id, _)| *id)
    }

    /// Adds a border: from this address on, `id` is the innermost network. A later call for the same address
    /// replaces an earlier one.
    fn border(&mut self, from: K, id: u32) {
        if self.borders.last() == Some(&from) {
            self.innermost.pop();
        } else {
            self.borders.push(from);
        }
        self.innermost.push(id);
    }
}

#[cfg(test)]
mod tests;
