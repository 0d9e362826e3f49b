//! A small executor for the tasks of one thread: futures of one type in a bounded slab.
//!
//! Guarantees: a wake sets a bit, from any thread; it allocates nothing and takes no lock. Several wakes
//! before a poll cause one poll. A slot's memory is reused, so the steady state allocates nothing. A panic
//! ends the task that caused it and no other.
//!
//! ```text
//!   summary  [ . . 1 . ... ][ ]    bit w: word w has a runnable task
//!   words    [ .1...1.. ][    ]    bit t of word w: task 64 w + t is to be polled
//! ```
//!
//! The waker sets the word's bit, then the summary's; the executor clears the summary, then the word. A waker
//! that is descheduled between the two delays only its own wake.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crate::inbox::Notifier;

/// Summary words: as many as fit a cache line of 64 bytes.
const SUMMARIES: usize = 8;

/// The most tasks of one executor: each has a bit in a word, and each word has a bit in the summary.
pub const TASKS_MAX: usize = SUMMARIES * 64 * 64;

/// The set of runnable tasks; shared with the wakers.
#[derive(Debug)]
struct Runnable {
    summary: [AtomicU64; SUMMARIES],
    words: Box<[AtomicU64]>,
    notifier: Arc<Notifier>,
}

impl Runnable {
    fn insert(&self, index: u32) {
        let (word, bit) = (index / 64, index % 64);
        // Release pairs with the Acquire of `take`: the poll sees everything done before the wake.
        self.words[word as usize].fetch_or(1 << bit, Ordering::Release);
        self.summary[word as usize / 64].fetch_or(1 << (word % 64), Ordering::Release);
        self.notifier.wake();
    }

    fn is_empty(&self) -> bool {
        self.summary.iter().all(|summary| summary.load(Ordering::Acquire) == 0)
    }

    /// Removes every task from the set and passes its index to `each`.
    fn take(&self, mut each: impl FnMut(u32)) {
        for (summary, first) in self.summary.iter().zip((0..).step_by(64)) {
            // Load before the swap: most words are zero, and a load leaves their cache lines shared.
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for_each_bit(summary.swap(0, Ordering::Acquire), |word| {
                let bits = self.words[(first + word) as usize].swap(0, Ordering::Acquire);
                for_each_bit(bits, |bit| each((first + word) * 64 + bit));
            });
        }
    }
}

fn for_each_bit(mut bits: u64, mut each: impl FnMut(u32)) {
    while bits != 0 {
        each(bits.trailing_zeros());
        bits &= bits - 1;
    }
}

/// Made once for each slot, so that cloning a waker only counts a reference.
struct TaskWaker {
    index: u32,
    runnable: Arc<Runnable>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.runnable.insert(self.index);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.runnable.insert(self.index);
    }
}

struct Slot<F> {
    /// Allocated with the slot and kept: the next task is written to the same memory.
    future: Pin<Box<Option<F>>>,
    waker: Waker,
}

/// The counts of one [`Executor::run`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Run {
    /// Tasks polled.
    pub polled: u32,
    /// Tasks that ended by a panic.
    pub panicked: u32,
}

/// How one poll of a task ended.
enum Polled<T> {
    Pending,
    Ready(T),
    /// The poll or the drop of the task panicked.
    Panicked,
}

/// The tasks of one thread, in a bounded slab; wakers set bits in a shared set.
pub struct Executor<F> {
    slots: Vec<Slot<F>>,
    free: Vec<u32>,
    runnable: Arc<Runnable>,
    tasks_max: usize,
}

impl<F: Future> Executor<F> {
    /// An executor for at most `tasks_max` tasks at a time, which is at most [`TASKS_MAX`]. A wake from
    /// another thread calls `notifier`.
    pub fn new(tasks_max: usize, notifier: Arc<Notifier>) -> Executor<F> {
        assert!(tasks_max <= TASKS_MAX, "the runnable set has {TASKS_MAX} bits");
        let words = (0..tasks_max.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let runnable =
            Arc::new(Runnable { summary: [const { AtomicU64::new(0) }; SUMMARIES], words, notifier });
        Executor { slots: Vec::new(), free: Vec::new(), runnable, tasks_max }
    }

    /// The number of tasks.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is no task.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether every slot is occupied.
    pub fn is_full(&self) -> bool {
        self.len() == self.tasks_max
    }

    /// Whether a task is waiting to be polled.
    pub fn has_runnable(&self) -> bool {
        !self.runnable.is_empty()
    }

    /// Adds a task; the next [`Executor::run`] polls it.
    ///
    /// # Errors
    /// Returns the future when all slots are occupied.
    pub fn spawn(&mut self, future: F) -> Result<(), F> {
        if self.is_full() {
            return Err(future);
        }
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        self.slots[index as usize].future.set(Some(future));
        self.runnable.insert(index);
        Ok(())
    }

    /// Polls every task that was woken, and gives `finished` the output of each task that ends. A task that
    /// wakes itself is polled by the next run.
    pub fn run(&mut self, mut finished: impl FnMut(F::Output)) -> Run {
        let mut run = Run::default();
        let runnable = Arc::clone(&self.runnable);
        runnable.take(|index| {
            run.polled += 1;
            match self.poll(index) {
                Polled::Pending => {}
                Polled::Ready(output) => finished(output),
                Polled::Panicked => run.panicked += 1,
            }
        });
        run
    }

    /// Makes the next run poll every task, after a change that concerns all of them.
    pub fn wake_all(&self) {
        let occupied = self.slots.iter().filter(|slot| slot.future.is_some());
        occupied.for_each(|slot| slot.waker.wake_by_ref());
    }

    /// Drops every task, finished or not.
    pub fn clear(&mut self) {
        for index in 0..self.slots.len() {
            if self.slots[index].future.is_some() {
                self.slots[index].future.set(None);
                self.free.push(u32::try_from(index).expect("at most TASKS_MAX slots"));
            }
        }
    }

    fn poll(&mut self, index: u32) -> Polled<F::Output> {
        let slot = &mut self.slots[index as usize];
        // A wake may outlive its task. Then the slot is empty, or its next task is polled once more than
        // needed, which futures must tolerate.
        let Some(future) = slot.future.as_mut().as_pin_mut() else { return Polled::Pending };
        let mut context = Context::from_waker(&slot.waker);
        let polled = catch_unwind(AssertUnwindSafe(|| future.poll(&mut context)));
        if matches!(polled, Ok(Poll::Pending)) {
            return Polled::Pending;
        }
        // Dropping the future releases what it held, and may panic as well.
        let dropped = catch_unwind(AssertUnwindSafe(|| slot.future.set(None)));
        self.free.push(index);
        match (polled, dropped) {
            (Ok(Poll::Ready(output)), Ok(())) => Polled::Ready(output),
            _ => Polled::Panicked,
        }
    }

    fn grow(&mut self) -> u32 {
        let index = u32::try_from(self.slots.len()).expect("at most TASKS_MAX slots");
        let waker = Arc::new(TaskWaker { index, runnable: Arc::clone(&self.runnable) });
        self.slots.push(Slot { future: Box::pin(None), waker: Waker::from(waker) });
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::future::poll_fn;
    use std::rc::Rc;

    type Task = Pin<Box<dyn Future<Output = ()>>>;

    fn executor(tasks_max: usize) -> Executor<Task> {
        Executor::new(tasks_max, Arc::new(Notifier::new().unwrap()))
    }

    /// A task that counts its polls and ends at poll number `last`.
    fn counting(polls: &Rc<Cell<u32>>, last: u32, waker: &Rc<Cell<Option<Waker>>>) -> Task {
        let (polls, waker) = (polls.clone(), waker.clone());
        Box::pin(poll_fn(move |context| {
            polls.set(polls.get() + 1);
            waker.set(Some(context.waker().clone()));
            if polls.get() == last { Poll::Ready(()) } else { Poll::Pending }
        }))
    }

    #[test]
    fn repeated_wakes_poll_once_and_slot_is_reused() {
        let (polls, waker) = (Rc::default(), Rc::default());
        let mut executor = executor(1);
        executor.spawn(counting(&polls, 2, &waker)).ok().unwrap();
        assert!(executor.spawn(Box::pin(async {})).is_err(), "the bound holds");
        assert_eq!(executor.run(drop), Run { polled: 1, panicked: 0 });
        assert_eq!(executor.run(drop), Run::default(), "nothing woke it");

        let woken = waker.take().unwrap();
        woken.wake_by_ref();
        woken.wake_by_ref();
        assert_eq!(executor.run(drop).polled, 1);
        assert!(executor.is_empty());

        woken.wake();
        assert_eq!(executor.run(drop), Run { polled: 1, panicked: 0 }, "a late wake finds an empty slot");
        executor.spawn(Box::pin(async {})).ok().unwrap();
        assert_eq!(executor.slots.len(), 1);
        executor.run(drop);
        assert!(executor.is_empty());
    }

    #[test]
    fn task_panic_ends_only_that_task() {
        let held = Rc::new(());
        let mut executor = executor(8);
        let inside = held.clone();
        let bad = async move {
            let _inside = inside;
            std::panic::panic_any("planted");
        };
        executor.spawn(Box::pin(bad)).ok().unwrap();
        let (polls, waker) = (Rc::default(), Rc::default());
        executor.spawn(counting(&polls, 2, &waker)).ok().unwrap();
        assert_eq!(executor.run(drop), Run { polled: 2, panicked: 1 });
        assert_eq!(Rc::strong_count(&held), 1, "what the task held was released");
        waker.take().unwrap().wake();
        assert_eq!(executor.run(drop), Run { polled: 1, panicked: 0 });
        assert!(executor.is_empty());
    }

    #[test]
    fn wakes_from_other_threads_arrive() {
        const TASKS: usize = TASKS_MAX;
        let mut executor = executor(TASKS);
        let wakers: Rc<std::cell::RefCell<Vec<Waker>>> = Rc::default();
        let left = Rc::new(Cell::new(TASKS));
        for _ in 0..TASKS {
            let (wakers, left, mut first) = (wakers.clone(), left.clone(), true);
            let task = poll_fn(move |context| {
                if std::mem::take(&mut first) {
                    wakers.borrow_mut().push(context.waker().clone());
                    return Poll::Pending;
                }
                left.set(left.get() - 1);
                Poll::Ready(())
            });
            executor.spawn(Box::pin(task)).ok().unwrap();
        }
        executor.run(drop);
        let wakers = wakers.take();
        std::thread::scope(|scope| {
            for part in wakers.chunks(TASKS / 4) {
                scope.spawn(move || part.iter().for_each(Waker::wake_by_ref));
            }
            while left.get() > 0 {
                executor.run(drop);
            }
        });
        assert!(executor.is_empty());
    }

    #[test]
    fn clear_drops_pending_tasks() {
        let (polls, waker) = (Rc::default(), Rc::default());
        let mut executor = executor(2);
        executor.spawn(counting(&polls, 9, &waker)).ok().unwrap();
        executor.run(drop);
        executor.clear();
        assert!(executor.is_empty());
        assert_eq!(Rc::strong_count(&polls), 1);
    }

    #[test]
    fn outputs_go_to_the_caller_in_slot_order() {
        let mut executor = Executor::new(3, Arc::new(Notifier::new().unwrap()));
        for value in [7, 8, 9] {
            assert!(executor.spawn(std::future::ready(value)).is_ok());
        }
        let mut outputs = Vec::new();
        executor.run(|output| outputs.push(output));
        assert_eq!(outputs, [7, 8, 9]);
        assert!(executor.is_empty());
    }
}
