//! The reactor: what one thread sleeps for and who is told when it wakes.
//!
//! Promises: one system call per turn, and it sleeps exactly until the next event, timer, wake or message;
//! time is read at a turn's begin and end; an event or timer of something that is gone reaches nobody,
//! because keys carry generations. Leaves to others: running tasks (`executor`), and what a [`RawToken`]
//! stands for.
//!
//! Whoever waits is either a task, which is woken, or a [`RawToken`], which the loop's owner is handed as a
//! [`Wake`]: state machines need no future, no waker and no allocation.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use sys::clock::{self, Nanos};
use sys::epoll::{Epoll, Events, Readiness, Trigger};

use crate::inbox::Notifier;
use crate::slab::{Key, Slab};
use crate::stats::ReactorStats;
use crate::timer::wheel::{TimerId, Wheel};

/// Events taken from the kernel in one turn.
const EVENTS_PER_PASS_MAX: usize = 256;

/// The token of the parking's descriptor; no source can have it, its index would be 2^32 - 1.
const NOTIFIER_TOKEN: u64 = u64::MAX;

/// A word by which the loop's owner knows what woke: it is handed back as it was given.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct RawToken(pub u32);

/// Who waits for a source or a timer.
#[derive(Clone, Debug)]
pub enum WakeTarget {
    /// A task; it is polled.
    Task(Waker),
    /// Something of the loop's owner.
    Tag(RawToken),
}

/// What the loop's owner has to see to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wake {
    /// A source is ready.
    Ready(RawToken, Readiness),
    /// A timer is due.
    Due(RawToken),
}

/// A source that is watched.
struct Source {
    target: WakeTarget,
    /// What was reported since somebody last asked. A tag is told instead, with its wake.
    readiness: Readiness,
}

/// See the file's header.
pub struct Reactor {
    epoll: Epoll,
    notifier: Arc<Notifier>,
    epoll_events: RefCell<Events>,
    sources: RefCell<Slab<Source>>,
    wheel: RefCell<Wheel<WakeTarget>>,
    now: Cell<Nanos>,
    stats: Arc<ReactorStats>,
}

impl Reactor {
    /// A reactor for the calling thread, counting into `stats`.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub fn new(notifier: Arc<Notifier>, stats: Arc<ReactorStats>) -> io::Result<Rc<Reactor>> {
        let epoll = Epoll::new()?;
        epoll.add(&*notifier, NOTIFIER_TOKEN, Trigger::LevelRead)?;
        let now = clock::monotonic();
        Ok(Rc::new(Reactor {
            epoll,
            notifier,
            epoll_events: RefCell::new(Events::with_capacity(EVENTS_PER_PASS_MAX)),
            sources: RefCell::default(),
            wheel: RefCell::new(Wheel::new(now)),
            now: Cell::new(now),
            stats,
        }))
    }

    /// The time at which this turn began.
    pub fn now(&self) -> Nanos {
        self.now.get()
    }

    /// What this thread counts about itself.
    pub fn stats(&self) -> &ReactorStats {
        &self.stats
    }

    /// Sleeps until something happens, wakes tasks, and puts what concerns the owner into `wakes`.
    ///
    /// `is_idle` is asked once the thread has said that it will sleep: it must look at everything that
    /// other threads may have handed over. If it answers false the turn only looks, without sleeping.
    ///
    /// # Errors
    /// None that the caller can cause.
    pub fn turn(&self, events: &mut Vec<Wake>, is_idle: impl FnOnce() -> bool) -> io::Result<()> {
        self.notifier.announce();
        let sleeps = is_idle();
        let ended = clock::monotonic();
        self.stats.end_pass(ended, sleeps);
        let timeout = if sleeps { self.until_next_timer(ended) } else { Some(Duration::ZERO) };
        let epoll_events = &mut *self.epoll_events.borrow_mut();
        let waited = self.epoll.wait(epoll_events, timeout);
        self.notifier.retract();
        waited?;
        self.now.set(clock::monotonic());
        self.stats.begin_pass(self.now.get());
        self.collect_events(epoll_events, events);
        self.collect_timers(events);
        Ok(())
    }

    /// Watches `source` for `waiter`.
    ///
    /// # Errors
    /// `ENOSPC` at `fs.epoll.max_user_watches`, `ENOMEM`.
    pub fn watch(&self, source: impl AsFd, trigger: Trigger, target: WakeTarget) -> io::Result<Key> {
        let key = self.sources.borrow_mut().insert(Source { target, readiness: Readiness::default() });
        let added = self.epoll.add(source, key.to_bits(), trigger);
        if added.is_err() {
            self.forget(key);
        }
        added.map(|()| key)
    }

    /// Changes what a watched `source` reports. One that is ready for it already reports that at once.
    ///
    /// # Errors
    /// `ENOENT` if it is not watched.
    pub fn rewatch(&self, source: impl AsFd, key: Key, trigger: Trigger) -> io::Result<()> {
        self.epoll.modify(source, key.to_bits(), trigger)
    }

    /// From now on `waiter` is who waits for the source, without a system call. Whatever the source
    /// reported before is not reported again: the new waiter has to try first.
    pub fn hand_over(&self, key: Key, target: WakeTarget) {
        if let Some(source) = self.sources.borrow_mut().get_mut(key) {
            source.target = target;
        }
    }

    /// Makes the task of `waker` the one who waits, if it is not already.
    pub fn set_waker(&self, key: Key, waker: &Waker) {
        let mut sources = self.sources.borrow_mut();
        let Some(source) = sources.get_mut(key) else { return };
        match &source.target {
            WakeTarget::Task(current) if current.will_wake(waker) => {}
            _ => source.target = WakeTarget::Task(waker.clone()),
        }
    }

    /// What a source that a task waits for has reported since this was last asked.
    pub fn take_readiness(&self, key: Key) -> Readiness {
        self.sources
            .borrow_mut()
            .get_mut(key)
            .map_or_else(Readiness::default, |source| std::mem::take(&mut source.readiness))
    }

    /// Nobody waits for the source any more; its descriptor is about to be closed.
    pub fn forget(&self, key: Key) {
        self.sources.borrow_mut().remove(key);
    }

    /// As [`Reactor::forget`], for a descriptor that stays open.
    ///
    /// # Errors
    /// `ENOENT` if it is not watched.
    pub fn unwatch(&self, source: impl AsFd, key: Key) -> io::Result<()> {
        self.forget(key);
        self.epoll.delete(source)
    }

    /// Arms a timer. It is never early, and late by at most a tick of 1.05 ms and a turn.
    pub fn arm(&self, when: Nanos, target: WakeTarget) -> TimerId {
        self.wheel.borrow_mut().arm(when, target)
    }

    /// Takes a timer back; one that was due already is ignored.
    pub fn cancel(&self, timer: TimerId) {
        self.wheel.borrow_mut().cancel(timer);
    }

    /// Sources watched and timers armed, for tests and metrics.
    pub fn load(&self) -> (usize, usize) {
        (self.sources.borrow().len(), self.wheel.borrow().armed())
    }

    fn until_next_timer(&self, now: Nanos) -> Option<Duration> {
        let next = self.wheel.borrow_mut().next_due()?;
        Some(next.since(now))
    }

    fn collect_events(&self, epoll_events: &Events, events: &mut Vec<Wake>) {
        let mut sources = self.sources.borrow_mut();
        for event in epoll_events.iter() {
            self.stats.events.add(1);
            if event.token == NOTIFIER_TOKEN {
                self.notifier.clear();
                continue;
            }
            let Some(source) = sources.get_mut(Key::from_bits(event.token)) else {
                self.stats.stale_events.add(1);
                continue;
            };
            match &source.target {
                WakeTarget::Task(waker) => {
                    source.readiness.add(event.readiness);
                    waker.wake_by_ref();
                }
                WakeTarget::Tag(token) => events.push(Wake::Ready(*token, event.readiness)),
            }
        }
    }

    fn collect_timers(&self, events: &mut Vec<Wake>) {
        let mut wheel = self.wheel.borrow_mut();
        while let Some(target) = wheel.pop_due(self.now.get()) {
            self.stats.timers.add(1);
            match target {
                WakeTarget::Task(waker) => waker.wake(),
                WakeTarget::Tag(token) => events.push(Wake::Due(token)),
            }
        }
    }
}

/// A stream's registration, edge triggered. Readiness to write is asked for when a write first would block,
/// and then for good: a connected socket can nearly always be written.
#[derive(Debug, Eq, PartialEq)]
#[must_use = "a registration that is not forgotten keeps its place"]
pub struct Registration {
    key: Key,
    reports_writable: bool,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Interest {
    /// Bytes, the end of the stream, or an error.
    Read,
    /// As well, that a write would not block.
    ReadWrite,
}

impl Registration {
    /// Has `source` watched for `waiter`.
    ///
    /// # Errors
    /// As [`Reactor::watch`].
    pub fn new(
        reactor: &Reactor,
        source: impl AsFd,
        interest: Interest,
        target: WakeTarget,
    ) -> io::Result<Registration> {
        let reports_writable = interest == Interest::ReadWrite;
        let trigger = if reports_writable { Trigger::EdgeReadWrite } else { Trigger::EdgeRead };
        Ok(Registration { key: reactor.watch(source, trigger, target)?, reports_writable })
    }

    /// The key by which the reactor knows the source.
    pub fn key(&self) -> Key {
        self.key
    }

    /// From now on `source` also reports when a write would not block; if that is so already, at once.
    ///
    /// # Errors
    /// As [`Reactor::rewatch`].
    pub fn report_room(&mut self, reactor: &Reactor, source: impl AsFd) -> io::Result<()> {
        if !self.reports_writable {
            reactor.rewatch(source, self.key, Trigger::EdgeReadWrite)?;
            self.reports_writable = true;
        }
        Ok(())
    }
}

/// A task's registration of one source, made when the source first would block and ended by the drop.
pub(crate) struct TaskRegistration {
    reactor: Rc<Reactor>,
    registration: RefCell<Option<Registration>>,
}

impl TaskRegistration {
    pub(crate) fn new(reactor: &Rc<Reactor>, registration: Option<Registration>) -> TaskRegistration {
        TaskRegistration { reactor: Rc::clone(reactor), registration: RefCell::new(registration) }
    }

    /// Has the task of `waker` polled when `source` becomes ready, edge triggered.
    pub(crate) fn wait(&self, source: impl AsFd, interest: Interest, waker: &Waker) -> io::Result<()> {
        let mut registration = self.registration.borrow_mut();
        let Some(registered) = registration.as_mut() else {
            let target = WakeTarget::Task(waker.clone());
            *registration = Some(Registration::new(&self.reactor, source, interest, target)?);
            return Ok(());
        };
        self.reactor.set_waker(registered.key, waker);
        match interest {
            Interest::Read => Ok(()),
            Interest::ReadWrite => registered.report_room(&self.reactor, source),
        }
    }

    /// What the source has reported since this was last asked.
    pub(crate) fn take_readiness(&self) -> Readiness {
        let registration = self.registration.borrow();
        registration.as_ref().map_or_else(Readiness::default, |it| self.reactor.take_readiness(it.key))
    }

    /// Gives the registration away, if there is one.
    pub(crate) fn into_registration(self) -> Option<Registration> {
        self.registration.take()
    }
}

impl Drop for TaskRegistration {
    fn drop(&mut self) {
        if let Some(registration) = self.registration.take() {
            self.reactor.forget(registration.key);
        }
    }
}
