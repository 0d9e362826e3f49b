//! The handshake slots of a reactor thread: the source and age of each handshake, and which are evicted.
//!
//! Guarantees: while up to half of the slots are taken, every handshake has its whole timeout. Beyond that
//! the timeout shrinks with each slot, for running handshakes too. With all slots taken, the next connection
//! has the oldest handshakes of the sources with the most of them evicted, until all sources above the rest
//! have the same number. So no number of handshakes keeps out a client that sends its request at once: it is
//! the youngest, and is evicted last. A handshake whose credentials are being checked is evicted only if the
//! largest sources have no other, as long as no more than a quarter of the slots have such.
//!
//! fq_codel drops packets of the largest flow likewise when its queue is full, in batches for the same
//! reason: finding the largest costs a look at each (Linux, `net/sched/sch_fq_codel.c`). An attacker with
//! many addresses is bounded by the slots alone, and each of its handshakes evicts an older one.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use sys::clock::Nanos;

use crate::limits::{
    DESCRIPTORS_PER_HANDSHAKE, EVICTED_AT_ONCE_MAX, HANDSHAKE_TIMEOUT_MIN, HANDSHAKES_CACHED_MAX,
    HANDSHAKES_PER_THREAD_MAX,
};
use crate::observe::stats::DenialKind;
use crate::source_network::source_network;

/// One in so many slots may be spared while its credentials are checked. If more were, wrong credentials
/// could hold all slots, and the one handshake without a check would be evicted next.
const CHECKED_PART: usize = 4;

/// The handshakes of one thread, each in a slot.
pub(crate) struct Handshakes {
    slots: usize,
    /// In the order of arrival.
    all: BTreeMap<u64, Rc<Handshake>>,
    next: u64,
    /// Handshakes by source, without evicted ones.
    held: HashMap<IpAddr, usize>,
    /// Evicted handshakes whose tasks have not ended.
    ending: usize,
    /// Entries for reuse.
    spare: Vec<Rc<Handshake>>,
}

struct Handshake {
    /// The source's network: an IPv4 address, or an IPv6 /64.
    source: IpAddr,
    started: Nanos,
    /// Its credentials are being checked: it waits for the gateway, and not for its client.
    is_checked: Cell<bool>,
    /// Why it was evicted, if it was.
    end: Cell<Option<DenialKind>>,
    /// The waker of its task, once that waits.
    task: RefCell<Option<Waker>>,
}

/// The `configured` handshakes, bounded by the process's descriptors.
pub(crate) fn bounded_by_descriptors(configured: u32, descriptors: u64) -> u32 {
    let max = (descriptors / DESCRIPTORS_PER_HANDSHAKE).max(1);
    u32::try_from(max).unwrap_or(u32::MAX).min(configured)
}

/// One thread's part of `handshakes`.
pub(crate) fn slots_per_thread(handshakes: u32, threads: usize) -> usize {
    (handshakes as usize).div_ceil(threads).min(HANDSHAKES_PER_THREAD_MAX)
}

impl Handshakes {
    /// No handshake yet, of at most `slots`.
    pub(crate) fn new(slots: usize) -> Handshakes {
        Handshakes {
            slots,
            all: BTreeMap::new(),
            next: 0,
            held: HashMap::new(),
            ending: 0,
            spare: Vec::new(),
        }
    }

    /// Adds a handshake from `source`.
    fn add(&mut self, source: IpAddr, now: Nanos) -> (u64, Rc<Handshake>) {
        let (number, source) = (self.next, source_network(source));
        self.next += 1;
        *self.held.entry(source).or_default() += 1;
        let (is_checked, end, task) = Default::default();
        let entry = Handshake { source, started: now, is_checked, end, task };
        let mut spare = self.spare.pop();
        // `None` while its former task still holds it.
        let handshake = match spare.as_mut().and_then(Rc::get_mut) {
            Some(reused) => {
                *reused = entry;
                spare.expect("it was just written")
            }
            None => Rc::new(entry),
        };
        self.all.insert(number, Rc::clone(&handshake));
        (number, handshake)
    }

    fn remove(&mut self, number: u64) {
        let handshake = self.all.remove(&number).expect("a handshake leaves once");
        match handshake.end.get() {
            Some(_) => self.ending -= 1,
            None => release(&mut self.held, handshake.source),
        }
        if self.spare.len() < HANDSHAKES_CACHED_MAX {
            self.spare.push(handshake);
        }
    }

    /// Evicts the handshakes whose timeout is over at `now`: `greeting`, or less while slots are scarce.
    pub(crate) fn shorten_deadlines(&mut self, greeting: Duration, now: Nanos) {
        let Handshakes { slots, all, held, ending, .. } = self;
        let allowed = timeout_under_load(greeting, all.len(), *slots);
        if allowed >= greeting {
            return;
        }
        for handshake in all.values().take_while(|handshake| now.since(handshake.started) > allowed) {
            if handshake.may_end() && !handshake.is_checked.get() {
                handshake.end(DenialKind::GreetingShortened, held, ending);
            }
        }
    }

    /// Evicts some of the oldest handshakes of the sources with the most of them, for pending connections;
    /// none while evicted ones have yet to end.
    pub(crate) fn evict(&mut self) {
        if self.ending > 0 {
            return;
        }
        let count = (self.slots / 16).clamp(1, EVICTED_AT_ONCE_MAX);
        let checked = self.all.values().filter(|handshake| handshake.is_checked.get()).count();
        let spares_checked = checked <= self.slots.div_ceil(CHECKED_PART);
        if self.end_oldest(count, |handshake| !spares_checked || !handshake.is_checked.get()) == 0 {
            self.end_oldest(1, |_| true);
        }
    }

    /// Evicts up to `count` handshakes for which `may_evict` holds, the oldest first, of sources above the
    /// level to which the largest are cut. Returns how many.
    fn end_oldest(&mut self, count: usize, may_evict: impl Fn(&Handshake) -> bool) -> usize {
        let Handshakes { all, held, ending, .. } = self;
        let level = level(held, count);
        let before = *ending;
        for handshake in all.values().filter(|handshake| handshake.may_end() && may_evict(handshake)) {
            if held.get(&handshake.source).is_some_and(|held| *held > level) {
                handshake.end(DenialKind::HandshakeDisplaced, held, ending);
            }
            if *ending - before == count {
                break;
            }
        }
        *ending - before
    }
}

impl Handshake {
    /// Whether it waits and is not evicted. A handshake that was not polled yet may have its request in the
    /// socket.
    fn may_end(&self) -> bool {
        self.end.get().is_none() && self.task.borrow().is_some()
    }

    fn end(&self, reason: DenialKind, held: &mut HashMap<IpAddr, usize>, ending: &mut usize) {
        self.end.set(Some(reason));
        release(held, self.source);
        *ending += 1;
        if let Some(task) = self.task.take() {
            task.wake();
        }
    }
}

fn release(held: &mut HashMap<IpAddr, usize>, source: IpAddr) {
    let count = held.get_mut(&source).expect("each handshake is counted for its source");
    *count -= 1;
    if *count == 0 {
        held.remove(&source);
    }
}

/// The timeout of a handshake while `taken` of `slots` are: the whole up to half, then less in proportion,
/// down to [`HANDSHAKE_TIMEOUT_MIN`].
fn timeout_under_load(greeting: Duration, taken: usize, slots: usize) -> Duration {
    let scarce = slots - slots / 2;
    let beyond = u32::try_from(taken.saturating_sub(slots / 2).min(scarce)).expect("slots are few");
    let shrinks_by = greeting.saturating_sub(HANDSHAKE_TIMEOUT_MIN);
    greeting - shrinks_by * beyond / u32::try_from(scarce.max(1)).expect("slots are few")
}

/// The highest level such that the sources above it have `count` handshakes above it, together.
fn level(held: &HashMap<IpAddr, usize>, count: usize) -> usize {
    let above = |level: usize| held.values().map(|held| held.saturating_sub(level)).sum::<usize>();
    let (mut low, mut high) = (0, held.values().copied().max().unwrap_or(0));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if above(middle) >= count { low = middle } else { high = middle - 1 }
    }
    low
}

/// One of a thread's handshakes; its drop returns the slot.
pub(crate) struct HandshakeSlot {
    handshakes: Rc<RefCell<Handshakes>>,
    number: u64,
    handshake: Rc<Handshake>,
}

impl HandshakeSlot {
    /// Takes a slot for a connection from `source` at `now`.
    pub(crate) fn take(handshakes: &Rc<RefCell<Handshakes>>, source: IpAddr, now: Nanos) -> HandshakeSlot {
        let (number, handshake) = handshakes.borrow_mut().add(source, now);
        HandshakeSlot { handshakes: Rc::clone(handshakes), number, handshake }
    }

    /// Awaits `check`, which verifies credentials: meanwhile the handshake waits for the gateway, and not for
    /// its client.
    pub(crate) async fn checking<F: Future>(&self, check: F) -> F::Output {
        self.handshake.is_checked.set(true);
        let output = check.await;
        self.handshake.is_checked.set(false);
        output
    }

    /// The handshake's end by eviction.
    pub(crate) fn end(&self) -> HandshakeEnd {
        HandshakeEnd(Rc::clone(&self.handshake))
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        self.handshakes.borrow_mut().remove(self.number);
    }
}

/// Resolves when the handshake is evicted.
pub(crate) struct HandshakeEnd(Rc<Handshake>);

impl HandshakeEnd {
    /// Awaits `future`, unless the handshake is evicted before.
    ///
    /// # Errors
    /// The reason of the eviction.
    pub(crate) async fn or_ended<F: Future>(&self, mut future: Pin<&mut F>) -> Result<F::Output, DenialKind> {
        poll_fn(|context| {
            // Polled first, so that a request which has arrived is served.
            if let Poll::Ready(output) = future.as_mut().poll(context) {
                return Poll::Ready(Ok(output));
            }
            self.0.task.borrow_mut().get_or_insert_with(|| context.waker().clone());
            self.0.end.get().map_or(Poll::Pending, |reason| Poll::Ready(Err(reason)))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREETING: Duration = Duration::from_secs(10);
    const START: Nanos = Nanos(1_000_000_000_000);

    /// Handshakes a millisecond apart, by the last byte of their IPv4 address.
    fn filled(slots: usize, sources: &[u8]) -> (Handshakes, Vec<Rc<Handshake>>) {
        let mut handshakes = Handshakes::new(slots);
        let add = |(ms, source): (u64, &u8)| {
            let now = START + Duration::from_millis(ms);
            let handshake = handshakes.add([192, 0, 2, *source].into(), now).1;
            handshake.task.replace(Some(Waker::noop().clone()));
            handshake
        };
        let entered = (0..).zip(sources).map(add).collect();
        (handshakes, entered)
    }

    /// The positions of evicted handshakes.
    fn ended(entered: &[Rc<Handshake>]) -> Vec<usize> {
        (0..entered.len()).filter(|&at| entered[at].end.get().is_some()).collect()
    }

    #[test]
    fn slots_are_bounded_by_config_and_descriptors() {
        let cases = [(2_000, 1_048_576), (2_000, 8_000), (2_000, 1_024), (2_000, 3), (100_000, u64::MAX)];
        let bounded = cases.map(|(cases, descriptors)| bounded_by_descriptors(cases, descriptors));
        assert_eq!(bounded, [2_000, 2_000, 256, 1, 100_000]);
        let slots = [(2_000, 2), (2_000, 3), (1, 8), (100_000, 2)];
        let slots = slots.map(|(handshakes, threads)| slots_per_thread(handshakes, threads));
        assert_eq!(slots, [1_000, 667, 1, HANDSHAKES_PER_THREAD_MAX]);
    }

    #[test]
    fn largest_source_loses_its_oldest() {
        let (mut handshakes, entered) = filled(8, &[1, 2, 2, 3, 2, 2, 1, 4]);
        handshakes.evict();
        assert_eq!(ended(&entered), [1]);
        handshakes.evict();
        assert_eq!(ended(&entered), [1], "the evicted handshake has to end first");
        handshakes.remove(1);
        handshakes.evict();
        assert_eq!(ended(&entered), [1, 2]);
        handshakes.remove(2);
        handshakes.evict();
        assert_eq!(ended(&entered), [0, 1, 2], "of two that hold as many, the oldest");
    }

    #[test]
    fn equal_sources_lose_the_oldest() {
        let (mut handshakes, entered) = filled(48, &(0..48).collect::<Vec<_>>());
        handshakes.evict();
        assert_eq!(ended(&entered), [0, 1, 2], "a sixteenth of the slots at once");
    }

    #[test]
    fn batch_cuts_the_largest_to_one_level() {
        let sources: Vec<u8> = [[1; 20].as_slice(), &[2; 20], &[3; 8]].concat();
        let (mut handshakes, entered) = filled(48, &sources);
        handshakes.evict();
        assert_eq!(ended(&entered), [0, 1, 20]);
        assert_eq!(handshakes.held[&IpAddr::from([192, 0, 2, 3])], 8, "a smaller source loses nothing");
    }

    #[test]
    fn checked_handshake_is_evicted_last() {
        let (mut handshakes, entered) = filled(8, &[1; 8]);
        (0..2).for_each(|at| entered[at].is_checked.set(true));
        let mut expected = Vec::new();
        for next in [2_u8, 3, 4, 5, 6, 7, 0] {
            expected.push(usize::from(next));
            handshakes.evict();
            let mut ended = ended(&entered);
            ended.sort_by_key(|at| (*at == 0, *at));
            assert_eq!(ended, expected);
            handshakes.remove(next.into());
        }
    }

    #[test]
    fn youngest_survives_many_checked_handshakes() {
        let (mut handshakes, entered) = filled(8, &[1, 2, 3, 4, 5, 6, 7, 8]);
        (0..7).for_each(|at| entered[at].is_checked.set(true));
        handshakes.evict();
        assert_eq!(ended(&entered), [0]);
    }

    #[test]
    fn unpolled_handshake_is_not_evicted() {
        let (mut handshakes, entered) = filled(2, &[1, 1]);
        entered[0].task.replace(None);
        handshakes.evict();
        assert_eq!(ended(&entered), [1]);
        handshakes.remove(1);
        handshakes.evict();
        handshakes.shorten_deadlines(GREETING, START + GREETING);
        assert_eq!(ended(&entered), [1]);
    }

    #[test]
    fn source_is_an_ipv4_address_or_an_ipv6_64() {
        let mut handshakes = Handshakes::new(8);
        for source in ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "2001:db8::ffff", "2001:db8:0:1::1"] {
            handshakes.add(source.parse().unwrap(), START);
        }
        let mut held: Vec<usize> = handshakes.held.values().copied().collect();
        held.sort_unstable();
        assert_eq!(held, [1, 2, 2]);
        (0..5).for_each(|number| handshakes.remove(number));
        assert!(handshakes.held.is_empty() && handshakes.all.is_empty());
    }

    #[test]
    fn timeout_shrinks_from_half_of_the_slots() {
        let seconds = |taken| timeout_under_load(GREETING, taken, 100).as_secs_f64();
        assert_eq!([0, 1, 50, 75, 100, 200].map(seconds), [10.0, 10.0, 10.0, 5.5, 1.0, 1.0]);
        assert_eq!([0, 1].map(|taken| timeout_under_load(GREETING, taken, 1).as_secs()), [10, 1]);
        let short = HANDSHAKE_TIMEOUT_MIN / 2;
        assert_eq!(timeout_under_load(short, 100, 100), short, "a shorter timeout stays");
    }

    #[test]
    fn shorter_timeout_ends_running_handshakes() {
        let (mut handshakes, entered) = filled(4, &[1, 2, 3, 4]);
        entered[1].is_checked.set(true);
        let at_ms = |ms| START + Duration::from_millis(ms);
        handshakes.shorten_deadlines(GREETING, at_ms(1000));
        assert!(ended(&entered).is_empty());
        handshakes.shorten_deadlines(GREETING, at_ms(1003));
        assert_eq!(
            ended(&entered),
            [0, 2],
            "each by its own age, except the one whose credentials are checked"
        );
        [0, 2].into_iter().for_each(|number| handshakes.remove(number));
        handshakes.shorten_deadlines(GREETING, at_ms(9000));
        assert_eq!(ended(&entered), [0, 2], "half of the slots are free");
    }
}
