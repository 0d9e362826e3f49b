//! Deadlines: those of tasks here, on the thread's own wheel; all others in the files below.
//!
//! Guarantees: a future that is ready at its first poll costs no timer. Dropping the future frees the timer
//! at once.
//!
//! Not handled here: deadlines of state machines (`Reactor::arm` with a token).
//!
//! ```text
//!   levels.rs          buckets of timers in virtual time
//!     wheel.rs           a wheel for one thread: a reactor's own timers
//!   service.rs         timers that any thread arms and cancels: Service, Timers
//!     handle.rs          settings, handles and outcomes of the service
//!     timer_thread.rs    a wheel with a thread that sleeps until a timer is due
//!     local.rs           a wheel in the loop of another thread: LocalTimers
//!     remote_handle.rs   that wheel as other threads use it
//!     wheel_driver.rs    the only user of a wheel: arms, fires and collects
//!     shard.rs           what all threads access: the cells, and the lists that cells pass through
//!     cell.rs            a timer's state, in one word       arm_request.rs     what a caller asks for
//!     cell_allocator.rs  which free cell is used next       callback_barrier.rs  waits for a callback's end
//!   slack.rs           by how much a deadline may be rounded up
//!   lazy.rs            a deadline that is extended by one store
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
