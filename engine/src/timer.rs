//! Deadlines: of tasks here, kept on the thread's own wheel; of all else by the parts below.
//!
//! Promises: a future that is ready at its first poll costs no timer; dropping the future frees the timer
//! at once. Leaves to others: deadlines of state machines (`Reactor::arm` with a tag).
//!
//! ```text
//!   levels.rs    who is due by when, in virtual time
//!     wheel.rs     for one thread: a reactor's own timers
//!   service.rs   armed and cancelled from any thread: Service, Timers
//!     post.rs      a wheel with a thread that sleeps until something is due
//!     local.rs     a wheel turned by a thread with a loop of its own
//!     shard.rs     what all threads touch: the cells, and the lists by which they come and go
//!     cell.rs      whose a timer is, by one word     request.rs   what the owner is asked for
//!     owner.rs     what the wheel's owner does       free.rs      which cells it gives out next
//!     ending.rs    waiting for a callback's end
//!   slack.rs     how late is soon enough             lazy.rs   a deadline put off by one store
//! ```

mod arm_request;
mod callback_barrier;
mod cell;
mod cell_allocator;
mod handle;
mod lazy;
mod levels;
mod local;
mod remote_handle;
#[cfg(all(test, shuttle))]
mod schedules;
mod service;
mod shard;
mod slack;
#[cfg(all(test, not(shuttle)))]
mod tests;
mod timer_thread;
pub mod wheel;
mod wheel_driver;

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};

use sys::clock::Nanos;

use crate::reactor::{Reactor, WakeTarget};
pub use handle::{ArmError, Cancel, Next, Settings, TimerHandle};
pub use lazy::LazyDeadline;
pub use local::LocalTimers;
pub use service::{Callback, Service, Timers};
pub use slack::Slack;
pub use timer_thread::TimerStats;
use wheel::TimerId;

/// The deadline came first.
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
/// [`Elapsed`] when the deadline came first; the future is dropped where it stands.
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
    // A future that is never ready cannot win against the deadline.
    let Err(Elapsed) = within(reactor, deadline, std::future::pending::<std::convert::Infallible>()).await;
}

/// A timer that ends with its owner.
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
