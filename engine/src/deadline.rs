//! Deadlines of tasks: a future that ends at a time, on the timer wheel of its thread's reactor.
//!
//! Guarantees: a future that is ready at its first poll costs no timer. Dropping the future frees the timer
//! at once.
//!
//! Not handled here: deadlines of state machines (`Reactor::arm` with a token).

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use sys::clock::Nanos;

use crate::reactor::{Reactor, WakeTarget};
use crate::timer::wheel::TimerId;

/// The deadline passed first.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Elapsed;

impl std::fmt::Display for Elapsed {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("the deadline passed")
    }
}

impl std::error::Error for Elapsed {}

/// Awaits `future`, but not beyond `deadline`.
///
/// # Errors
/// [`Elapsed`] when the deadline passes first; the future is dropped, finished or not.
pub async fn within<F: Future>(
    reactor: &Rc<Reactor>,
    deadline: Nanos,
    future: F,
) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut timer = Timer { reactor, armed: None };
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        if reactor.now() >= deadline {
            return Poll::Ready(Err(Elapsed));
        }
        timer.ensure(deadline, context.waker());
        Poll::Pending
    })
    .await
}

/// Awaits the time `deadline`.
pub async fn sleep_until(reactor: &Rc<Reactor>, deadline: Nanos) {
    // The pending future is never ready, so the deadline always passes first.
    let Err(Elapsed) = within(reactor, deadline, std::future::pending::<std::convert::Infallible>()).await;
}

/// A timer that is cancelled by its drop.
struct Timer<'r> {
    reactor: &'r Rc<Reactor>,
    armed: Option<(TimerId, Waker)>,
}

impl Timer<'_> {
    fn ensure(&mut self, deadline: Nanos, waker: &Waker) {
        if self.armed.as_ref().is_some_and(|(_, armed_for)| armed_for.will_wake(waker)) {
            return;
        }
        self.cancel();
        let timer = self.reactor.arm(deadline, WakeTarget::Task(waker.clone()));
        self.armed = Some((timer, waker.clone()));
    }

    fn cancel(&mut self) {
        if let Some((timer, _)) = self.armed.take() {
            self.reactor.cancel(timer);
        }
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        self.cancel();
    }
}
