//! The allowance under loom: reservers, refunds and a raised limit, in every interleaving and every
//! reordering that the memory model permits, up to a bound of preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p sys --release --test allowance_loom`

#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use sys::allowance::{Allowance, Reservation};

/// Spends what it gets, but for `unspent` bytes of its first grant; returns the spent bytes. It ends when the
/// allowance is spent, or another thread has a reservation.
fn spend(allowance: &Allowance, wanted: u64, mut unspent: u64) -> (u64, bool) {
    let mut spent = 0;
    loop {
        match allowance.reserve(wanted) {
            Reservation::Granted(granted) => {
                let returned = std::mem::take(&mut unspent).min(granted);
                allowance.settle(returned);
                spent += granted - returned;
            }
            Reservation::Busy => return (spent, false),
            Reservation::Spent => return (spent, true),
        }
    }
}

#[test]
fn no_byte_beyond_the_limit_and_none_is_lost() {
    let mut model = loom::model::Builder::new();
    // Three threads in every interleaving take hours; most faults need two preemptions (M. Musuvathi and
    // S. Qadeer, "Iterative context bounding for systematic testing of multithreaded programs", PLDI 2007).
    model.preemption_bound = Some(3);
    model.check(|| {
        let allowance = Arc::new(Allowance::new(4, 0));
        let threads: Vec<_> = [(3, 1), (2, 2)]
            .map(|(wanted, unspent)| {
                let allowance = Arc::clone(&allowance);
                thread::spawn(move || spend(&allowance, wanted, unspent))
            })
            .into_iter()
            .collect();
        let (mut spent, saw_end) = spend(&allowance, 1, 0);
        assert!(spent <= 4);
        let mut ended = saw_end;
        for thread in threads {
            let (more, saw_end) = thread.join().unwrap();
            (spent, ended) = (spent + more, ended | saw_end);
        }
        // A thread that saw the end saw it for all.
        assert!(spent <= 4 && (!ended || spent == 4));
        assert_eq!(allowance.spent(), spent);
        assert_eq!(spend(&allowance, 9, 0), (4 - spent, true));
    });
}

#[test]
fn refund_and_a_raised_limit_can_be_spent() {
    loom::model(|| {
        let allowance = Arc::new(Allowance::new(2, 0));
        assert_eq!(allowance.reserve(2), Reservation::Granted(2));
        allowance.settle(0);
        let other = Arc::clone(&allowance);
        let refund = thread::spawn(move || other.refund(1));
        let other = Arc::clone(&allowance);
        let raise = thread::spawn(move || other.set_limit(3));
        let (spent, _) = spend(&allowance, 2, 0);
        refund.join().unwrap();
        raise.join().unwrap();
        assert_eq!(spent + spend(&allowance, 2, 0).0, 2);
        assert!(allowance.is_spent());
    });
}
