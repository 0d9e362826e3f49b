//! One job: its work and its reply.
//!
//! Guarantees: the reply is called once, with the value or the reason why there is none. A panic of the work
//! or of the reply ends nothing else.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use sys::clock::Nanos;
use sys::once_fn::OnceFn;

use super::settings::Class;
use crate::oneshot::Receiver;
use crate::timer::TimerHandle;

/// Why an accepted job has no value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Failure {
    /// Its deadline passed before it began; it was not run.
    Expired,
    /// It waited too long in an overloaded queue; it was not run.
    Shed,
    /// It panicked.
    Panicked,
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Failure::Expired => "the job's deadline passed before it began",
            Failure::Shed => "the job was shed from an overloaded queue",
            Failure::Panicked => "the job panicked",
        })
    }
}

impl std::error::Error for Failure {}

/// How an accepted job ended.
pub type Outcome<T> = Result<T, Failure>;

/// An accepted job, as a future of its [`Outcome`]. Dropping the handle does not cancel the job.
pub struct JobHandle<T>(pub(super) Receiver<Outcome<T>>);

impl<T: Clone> Future for JobHandle<T> {
    type Output = Outcome<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<T>> {
        // The sender is in the job's reply, which is always called, unless the work itself leaked it.
        Pin::new(&mut self.0).poll(context).map(|outcome| outcome.unwrap_or(Err(Failure::Panicked)))
    }
}

/// A job in a queue.
pub(super) struct Job {
    pub(super) class: Class,
    pub(super) submitted: Nanos,
    pub(super) deadline: Nanos,
    /// The timer of its deadline, while it waits.
    pub(super) expiry: Option<TimerHandle>,
    /// Runs the job, or replies with the failure; returns whether there was a value.
    task: OnceFn<Option<Failure>, bool>,
}

impl Job {
    pub(super) fn new<T>(
        (class, submitted, deadline): (Class, Nanos, Nanos),
        work: impl FnOnce() -> T + Send + 'static,
        reply: impl FnOnce(Outcome<T>) + Send + 'static,
    ) -> Job {
        let task = OnceFn::new(move |failure| match failure {
            None => run(work, reply),
            Some(failure) => drop_unrun(work, reply, failure),
        });
        Job { class, submitted, deadline, expiry: None, task }
    }

    /// Runs the job and replies with its outcome; false if it panicked.
    pub(super) fn run(self) -> bool {
        self.task.call(None)
    }

    /// Replies with `failure` instead of running the job.
    pub(super) fn fail(self, failure: Failure) {
        self.task.call(Some(failure));
    }
}

fn run<T>(work: impl FnOnce() -> T, reply: impl FnOnce(Outcome<T>)) -> bool {
    let outcome = catch_panic(work);
    let succeeded = outcome.is_ok();
    catch_panic(|| reply(outcome)).is_ok() && succeeded
}

fn drop_unrun<T>(work: impl FnOnce() -> T, reply: impl FnOnce(Outcome<T>), failure: Failure) -> bool {
    // Destructors and replies are foreign code, which may panic.
    let _ = catch_panic(|| drop(work));
    let _ = catch_panic(|| reply(Err(failure)));
    false
}

/// Calls foreign code. The panic's payload is leaked, because its destructor might panic as well, outside of
/// `catch_unwind`.
fn catch_panic<T>(call: impl FnOnce() -> T) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|payload| {
        std::mem::forget(payload);
        Failure::Panicked
    })
}
