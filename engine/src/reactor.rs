//! The reactor: the event loop of one thread, over one epoll instance, one timer wheel and one notifier.
//!
//! Guarantees: a pass makes one `epoll_pwait2`, and sleeps exactly until the next event, timer, wake or
//! message. It reads the clock before and after that call. Events and timers of removed sources wake no task,
//! because keys carry generations.
//!
//! Not handled here: running tasks (`executor`), and the meaning of a [`RawToken`].
//!
//! A wake target is either a task, which is woken, or a [`RawToken`], which the owner of the loop gets with a
//! [`ReactorEvent`]. So state machines need no future, no waker and no allocation.

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

/// The most events of one pass.
const EVENTS_PER_PASS_MAX: usize = 256;

/// The epoll token of the notifier. No source can have it: its index would be 2^32 - 1.
const NOTIFIER_TOKEN: u64 = u64::MAX;

/// A word that the owner of the loop gives at registration and gets back with each event.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct RawToken(pub u32);

/// What a source or a timer wakes.
#[derive(Clone, Debug)]
pub enum WakeTarget {
    /// A task; the executor polls it.
    Task(Waker),
    /// A state machine of the loop's owner.
    Token(RawToken),
}

/// An event for a [`RawToken`], which the owner of the loop handles.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReactorEvent {
    /// A source is ready.
    Ready(RawToken, Readiness),
    /// A timer is due.
    TimerDue(RawToken),
}

/// A registered source.
struct Source {
    target: WakeTarget,
    /// The readiness that epoll reported and the task has not taken. A token gets it with its event instead.
    readiness: Readiness,
}

/// The event loop of one thread: sources, timers and the sleep between passes.
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
    /// A reactor for the calling thread that counts into `stats`.
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

    /// The time at which this pass began.
    pub fn now(&self) -> Nanos {
        self.now.get()
    }

    /// The counters of this thread.
    pub fn stats(&self) -> &ReactorStats {
        &self.stats
    }

    /// Runs one pass: sleeps until an event, a timer or a wake, wakes tasks, and appends the events of tokens
    /// to `events`.
    ///
    /// `is_idle` is called after the thread has announced its sleep. It must check everything that other
    /// threads may have sent. If it returns false, the pass polls without sleeping.
    ///
    /// # Errors
    /// None that the caller can cause.
    pub fn poll(&self, events: &mut Vec<ReactorEvent>, is_idle: impl FnOnce() -> bool) -> io::Result<()> {
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

    /// Registers `source` for `target`.
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

    /// Changes what a registered `source` reports. A source that is already ready for it reports at once.
    ///
    /// # Errors
    /// `ENOENT` if it is not registered.
    pub fn rewatch(&self, source: impl AsFd, key: Key, trigger: Trigger) -> io::Result<()> {
        self.epoll.modify(source, key.to_bits(), trigger)
    }

    /// Makes `target` the one that the source wakes, without a system call. Earlier readiness is not reported
    /// again, so the new target has to try first.
    pub fn set_wake_target(&self, key: Key, target: WakeTarget) {
        if let Some(source) = self.sources.borrow_mut().get_mut(key) {
            source.target = target;
        }
    }

    /// Makes the task of `waker` the source's target, unless it is already.
    pub fn set_waker(&self, key: Key, waker: &Waker) {
        let mut sources = self.sources.borrow_mut();
        let Some(source) = sources.get_mut(key) else { return };
        match &source.target {
            WakeTarget::Task(current) if current.will_wake(waker) => {}
            _ => source.target = WakeTarget::Task(waker.clone()),
        }
    }

    /// Returns and clears the readiness that the source has reported for its task.
    pub fn take_readiness(&self, key: Key) -> Readiness {
        self.sources
            .borrow_mut()
            .get_mut(key)
            .map_or_else(Readiness::default, |source| std::mem::take(&mut source.readiness))
    }

    /// Removes the source without a system call; its descriptor is about to be closed.
    pub fn forget(&self, key: Key) {
        self.sources.borrow_mut().remove(key);
    }

    /// As [`Reactor::forget`], for a descriptor that stays open.
    ///
    /// # Errors
    /// `ENOENT` if it is not registered.
    pub fn unwatch(&self, source: impl AsFd, key: Key) -> io::Result<()> {
        self.forget(key);
        self.epoll.delete(source)
    }

    /// Arms a timer. It never fires early; it fires late by at most a tick of 1.05 ms and a pass.
    pub fn arm(&self, when: Nanos, target: WakeTarget) -> TimerId {
        self.wheel.borrow_mut().arm(when, target)
    }

    /// Cancels a timer; no effect if it has fired.
    pub fn cancel(&self, timer: TimerId) {
        self.wheel.borrow_mut().cancel(timer);
    }

    /// The numbers of registered sources and of armed timers, for tests and metrics.
    pub fn load(&self) -> (usize, usize) {
        (self.sources.borrow().len(), self.wheel.borrow().armed())
    }

    fn until_next_timer(&self, now: Nanos) -> Option<Duration> {
        let next = self.wheel.borrow_mut().next_due()?;
        Some(next.since(now))
    }

    fn collect_events(&self, epoll_events: &Events, events: &mut Vec<ReactorEvent>) {
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
                WakeTarget::Token(token) => events.push(ReactorEvent::Ready(*token, event.readiness)),
            }
        }
    }

    fn collect_timers(&self, events: &mut Vec<ReactorEvent>) {
        let mut wheel = self.wheel.borrow_mut();
        while let Some(target) = wheel.pop_due(self.now.get()) {
            self.stats.timers.add(1);
            match target {
                WakeTarget::Task(waker) => waker.wake(),
                WakeTarget::Token(token) => events.push(ReactorEvent::TimerDue(token)),
            }
        }
    }
}

/// A stream's registration, edge triggered. Write readiness is enabled when a write first would block, and
/// stays enabled: a connected socket is nearly always writable.
#[derive(Debug, Eq, PartialEq)]
#[must_use = "a registration that is not forgotten keeps its slot"]
pub struct Registration {
    key: Key,
    reports_readable: bool,
    reports_writable: bool,
}

/// The readiness that a task waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Interest {
    /// Bytes, the end of the stream, or an error.
    Read,
    /// Also that a write would not block.
    ReadWrite,
}

impl Registration {
    /// Registers `source` for `target`.
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
        Ok(Registration {
            key: reactor.watch(source, trigger, target)?,
            reports_readable: true,
            reports_writable,
        })
    }

    /// The key under which the reactor has the source.
    pub fn key(&self) -> Key {
        self.key
    }

    /// Makes `source` report write readiness as well; at once, if it is already writable.
    ///
    /// # Errors
    /// As [`Reactor::rewatch`].
    pub fn report_writable(&mut self, reactor: &Reactor, source: impl AsFd) -> io::Result<()> {
        if !self.reports_writable {
            let trigger = if self.reports_readable { Trigger::EdgeReadWrite } else { Trigger::EdgeWrite };
            reactor.rewatch(source, self.key, trigger)?;
            self.reports_writable = true;
        }
        Ok(())
    }

    /// Stops reports of read readiness: nothing is read for a while, and each arriving segment would wake the
    /// thread. Write readiness is reported on if `awaits_writable`; else it would be reported at once.
    ///
    /// # Errors
    /// As [`Reactor::rewatch`].
    pub fn mute_readable(
        &mut self,
        reactor: &Reactor,
        source: impl AsFd,
        awaits_writable: bool,
    ) -> io::Result<()> {
        if self.reports_readable {
            let trigger = if awaits_writable { Trigger::EdgeWrite } else { Trigger::EdgeFailure };
            reactor.rewatch(source, self.key, trigger)?;
            (self.reports_readable, self.reports_writable) = (false, awaits_writable);
        }
        Ok(())
    }

    /// Makes `source` report read readiness again; at once, if it is readable or has ended.
    ///
    /// # Errors
    /// As [`Reactor::rewatch`].
    pub fn report_readable(&mut self, reactor: &Reactor, source: impl AsFd) -> io::Result<()> {
        if !self.reports_readable {
            let trigger = if self.reports_writable { Trigger::EdgeReadWrite } else { Trigger::EdgeRead };
            reactor.rewatch(source, self.key, trigger)?;
            self.reports_readable = true;
        }
        Ok(())
    }
}

/// A task's registration of one source. It is made when the source first would block, and ends with the drop.
pub(crate) struct TaskRegistration {
    reactor: Rc<Reactor>,
    registration: RefCell<Option<Registration>>,
}

impl TaskRegistration {
    pub(crate) fn new(reactor: &Rc<Reactor>, registration: Option<Registration>) -> TaskRegistration {
        TaskRegistration { reactor: Rc::clone(reactor), registration: RefCell::new(registration) }
    }

    /// Wakes the task of `waker` when `source` becomes ready, edge triggered.
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
            Interest::ReadWrite => registered.report_writable(&self.reactor, source),
        }
    }

    /// Returns and clears the readiness that the source has reported.
    pub(crate) fn take_readiness(&self) -> Readiness {
        let registration = self.registration.borrow();
        registration.as_ref().map_or_else(Readiness::default, |it| self.reactor.take_readiness(it.key))
    }

    /// Returns the registration, if there is one, without ending it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use sys::epoll::StreamEnd;

    const TOKEN: RawToken = RawToken(7);

    /// The readiness that a pass reports of the only source.
    fn reported(reactor: &Reactor) -> Option<Readiness> {
        let mut events = Vec::new();
        reactor.poll(&mut events, || false).unwrap();
        assert!(events.len() <= 1, "{events:?}");
        events.pop().map(|event| match event {
            ReactorEvent::Ready(TOKEN, readiness) => readiness,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn muted_source_reports_what_it_has_once_it_is_heard() {
        let notifier = Arc::new(Notifier::new().unwrap());
        let reactor = Reactor::new(notifier, Arc::default()).unwrap();
        let (mut near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let mut registration =
            Registration::new(&reactor, &near, Interest::Read, WakeTarget::Token(TOKEN)).unwrap();
        far.write_all(b"heard").unwrap();
        assert!(reported(&reactor).is_some_and(|it| it.readable));

        // A writable socket would report that at once.
        registration.mute_readable(&reactor, &near, false).unwrap();
        far.write_all(b"muted").unwrap();
        assert_eq!(reported(&reactor), None);
        registration.report_readable(&reactor, &near).unwrap();
        assert!(reported(&reactor).is_some_and(|it| it.readable && !it.writable));

        assert_eq!(near.read(&mut [0; 16]).unwrap(), 10);
        registration.mute_readable(&reactor, &near, true).unwrap();
        assert!(reported(&reactor).is_some_and(|it| it.writable && !it.readable));
        far.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(reported(&reactor).is_none_or(|it| !it.readable));
        registration.report_readable(&reactor, &near).unwrap();
        assert!(
            reported(&reactor).is_some_and(|it| it.readable && it.writable && it.end == StreamEnd::Ended)
        );
    }
}
