//! Fair shares: a pool of slots that users take, so that no user takes what others need.
//!
//! Guarantees: a user may take a slot while they hold fewer than are free. So one user holds at most half of
//! the pool. If `n` users want all of it, each holds one part in `n + 1`, and one such part stays free for
//! users that come later. This is the dynamic threshold of A. K. Choudhury and E. L. Hahne ("Dynamic queue
//! length thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking 6(2), 1998) with
//! the factor 1. A fixed share was considered: it needs the number of users, which are many and mostly idle.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::account::AccountId;

/// The slots of a pool, counted by user.
#[derive(Debug)]
pub(crate) struct FairShares {
    max: usize,
    taken: usize,
    /// The users that hold a slot, so never more than `taken`.
    held: HashMap<AccountId, usize>,
}

/// Why no slot may be taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ShareExhausted {
    /// The user holds as many as are free.
    UserShare,
    /// No slot is free, and the user holds none.
    Pool,
}

impl FairShares {
    /// A pool of `max` slots.
    pub(crate) fn new(max: usize) -> FairShares {
        FairShares { max, taken: 0, held: HashMap::new() }
    }

    /// Whether this user may take a slot.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check(&self, user: AccountId) -> Result<(), ShareExhausted> {
        let (held, free) = (self.held.get(&user).copied().unwrap_or(0), self.max - self.taken);
        match held {
            _ if held < free => Ok(()),
            0 => Err(ShareExhausted::Pool),
            _ => Err(ShareExhausted::UserShare),
        }
    }

    /// Takes a slot for this user.
    ///
    /// # Panics
    /// If none is free: the caller calls [`FairShares::check`] first.
    pub(crate) fn take(&mut self, user: AccountId) {
        assert!(self.taken < self.max, "`check` found a free slot before `take`");
        self.taken += 1;
        *self.held.entry(user).or_default() += 1;
    }

    /// Returns a slot of this user.
    ///
    /// # Panics
    /// If the user holds none.
    pub(crate) fn release(&mut self, user: AccountId) {
        let held = self.held.get_mut(&user).expect("each slot is released once");
        *held -= 1;
        if *held == 0 {
            self.held.remove(&user);
        }
        self.taken -= 1;
    }

    /// Whether no slot is free.
    pub(crate) fn is_full(&self) -> bool {
        self.taken == self.max
    }
}

/// The shares of one thread, whose slots are returned by permits.
pub(crate) struct SharePool(Rc<RefCell<FairShares>>);

/// A user's slot; returned when it is dropped.
pub(crate) struct SharePermit {
    shares: Rc<RefCell<FairShares>>,
    user: AccountId,
}

impl SharePool {
    /// A pool of `max` slots.
    pub(crate) fn new(max: usize) -> SharePool {
        SharePool(Rc::new(FairShares::new(max).into()))
    }

    /// A slot for this user; `None` where the pool or the user's share is used up.
    pub(crate) fn take(&self, user: AccountId) -> Option<SharePermit> {
        let mut shares = self.0.borrow_mut();
        shares.check(user).ok()?;
        shares.take(user);
        Some(SharePermit { shares: Rc::clone(&self.0), user })
    }

    /// The number of taken slots.
    pub(crate) fn taken(&self) -> usize {
        self.0.borrow().taken
    }
}

impl Drop for SharePermit {
    fn drop(&mut self) {
        self.shares.borrow_mut().release(self.user);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes as many slots as `user` may; returns how many.
    fn fill(shares: &mut FairShares, user: AccountId) -> usize {
        (0..).take_while(|_| shares.check(user).map(|()| shares.take(user)).is_ok()).count()
    }

    #[test]
    fn one_user_gets_half_and_several_get_equal_parts() {
        let [ann, ben, eve] = [(); 3].map(|()| AccountId::next());
        let mut shares = FairShares::new(12);
        assert_eq!(fill(&mut shares, ann), 6);
        assert_eq!(shares.check(ann), Err(ShareExhausted::UserShare));
        assert_eq!(fill(&mut shares, ben), 3);
        // A user above their part gets nothing more until others have theirs.
        (0..3).for_each(|_| shares.release(ann));
        assert_eq!((fill(&mut shares, ann), fill(&mut shares, eve)), (2, 2));
        assert_eq!(shares.taken, 10);
    }

    #[test]
    fn last_slot_goes_to_a_user_without_one() {
        let [ann, ben] = [(); 2].map(|()| AccountId::next());
        let mut shares = FairShares::new(1);
        assert_eq!((fill(&mut shares, ann), shares.is_full()), (1, true));
        assert_eq!(
            (shares.check(ann), shares.check(ben)),
            (Err(ShareExhausted::UserShare), Err(ShareExhausted::Pool))
        );
        shares.release(ann);
        assert_eq!(shares.check(ben), Ok(()));
        assert!(shares.held.is_empty());
    }

    #[test]
    fn dropped_permit_frees_its_slot() {
        let (pool, ann) = (SharePool::new(8), AccountId::next());
        let permits: Vec<_> = (0..8).map_while(|_| pool.take(ann)).collect();
        assert_eq!((permits.len(), pool.taken()), (4, 4));
        drop(permits);
        assert_eq!(pool.taken(), 0);
        assert!(pool.take(ann).is_some());
    }
}
