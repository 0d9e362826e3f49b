//! Connections that linger: their last answer is sent, and what their clients still send is read and dropped
//! for a while, so that the close is no reset that takes the answer away.
//!
//! Guarantees: a thread has at most [`LINGERING_PER_THREAD_MAX`] of them whose client is known, of which a
//! user takes no more than a share (`shares`); nothing else bounds these, for their requests have given back
//! all that they held. Leaves out: connections whose client is not known, which are bounded as handshakes.

use std::cell::RefCell;
use std::rc::Rc;

use crate::account::AccountId;
use crate::limits::LINGERING_PER_THREAD_MAX;
use crate::shares::Shares;

/// See the file's header.
pub(crate) struct Lingering(Rc<RefCell<Shares>>);

/// A connection's place among them, until it is dropped.
pub(super) struct LingeringPlace(Rc<RefCell<Shares>>, AccountId);

impl Lingering {
    /// None lingers yet.
    pub(crate) fn new() -> Lingering {
        Lingering(Rc::new(Shares::new(LINGERING_PER_THREAD_MAX).into()))
    }

    /// A place for a connection of this user; `None` where all places or the user's share are used up.
    pub(super) fn take(&self, user: AccountId) -> Option<LingeringPlace> {
        let mut shares = self.0.borrow_mut();
        shares.check(user).ok()?;
        shares.take(user);
        Some(LingeringPlace(Rc::clone(&self.0), user))
    }
}

impl Drop for LingeringPlace {
    fn drop(&mut self) {
        self.0.borrow_mut().give_back(self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_lingers_within_a_share_and_gives_it_back() {
        let lingering = Lingering::new();
        let (ann, ben) = (AccountId::next(), AccountId::next());
        let of_ann: Vec<_> = (0..LINGERING_PER_THREAD_MAX).map_while(|_| lingering.take(ann)).collect();
        assert_eq!(of_ann.len(), LINGERING_PER_THREAD_MAX / 2);
        assert!(lingering.take(ben).is_some());
        drop(of_ann);
        assert!(lingering.take(ann).is_some());
    }
}
