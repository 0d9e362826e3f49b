//! The stack under loom: two producers and one consumer, in every interleaving and every reordering that the
//! memory model permits.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p sys --release --test stack_loom`

#![cfg(loom)]

use loom::sync::Arc;
use loom::thread;
use sys::stack::Stack;

#[test]
fn values_are_taken_once_in_producer_order() {
    loom::model(|| {
        let stack = Arc::new(Stack::new());
        let producers: Vec<_> = (0..2)
            .map(|producer| {
                let stack = Arc::clone(&stack);
                thread::spawn(move || (0..2).for_each(|number| stack.push((producer, number))))
            })
            .collect();
        let mut taken: Vec<(usize, usize)> = stack.take().collect();
        for producer in producers {
            producer.join().unwrap();
        }
        taken.extend(stack.take());
        for producer in 0..2 {
            let numbers: Vec<usize> =
                taken.iter().filter(|(from, _)| *from == producer).map(|(_, number)| *number).collect();
            assert_eq!(numbers, [0, 1]);
        }
        assert!(stack.is_empty());
    });
}
