//! One job: what is to be done, and who is told how it ended.
//!
//! Promises: whoever submitted a job is told of its end once, whatever the end: its value, or why there is
//! none; a panic, of the job or of the one who is told, ends nothing else. Leaves to others: when it runs.

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

/// Why an accepted job gave no value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Failure {
    /// Its deadline passed before its turn came; it was not run.
    Expired,
    /// It had waited for too long in an overloaded queue; it was not run.
    Shed,
    /// It panicked.
    Panicked,
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Failure::Expired => "the job's deadline passed before its turn came",
            Failure::Shed => "the job was shed from an overloaded queue",
            Failure::Panicked => "the job panicked",
        })
    }
}

impl std::error::Error for Failure {}

/// How an accepted job ended.
pub type Outcome<T> = Result<T, Failure>;

/// A job that was accepted; as a future it gives the [`Outcome`]. Dropping it lets the job run unheard.
pub struct JobHandle<T>(pub(super) Receiver<Outcome<T>>);

impl<T: Clone> Future for JobHandle<T> {
    type Output = Outcome<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome<T>> {
        // The sender is in the job's reply, which is called whatever happens, unless the job itself was
        // leaked by the one who wrote it.
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
    /// Runs it, or tells why it is not run; whether there was a value.
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
            Some(why) => drop_unrun(work, reply, why),
        });
        Job { class, submitted, deadline, expiry: None, task }
    }

    /// Runs it and tells its outcome; false if it panicked.
    pub(super) fn run(self) -> bool {
        self.task.call(None)
    }

    /// Tells why it is not run.
    pub(super) fn fail(self, why: Failure) {
        self.task.call(Some(why));
    }
}

fn run<T>(work: impl FnOnce() -> T, reply: impl FnOnce(Outcome<T>)) -> bool {
    let outcome = catch_panic(work);
    let succeeded = outcome.is_ok();
    catch_panic(|| reply(outcome)).is_ok() && succeeded
}

fn drop_unrun<T>(work: impl FnOnce() -> T, reply: impl FnOnce(Outcome<T>), why: Failure) -> bool {
    // What the job owns is released by code that is not ours, as is who is told.
    let _ = catch_panic(|| drop(work));
    let _ = catch_panic(|| reply(Err(why)));
    false
}

/// Calls what is not ours. What a panic throws is leaked: to drop it might panic as well, out here.
fn catch_panic<T>(call: impl FnOnce() -> T) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(call)).map_err(|thrown| {
        std::mem::forget(thrown);
        Failure::Panicked
    })
}
