//! The tasks of a reactor thread: handshakes and exchanges, each kind in an executor of its own.

use std::future::Future;

use engine::executor::Executor;

use crate::client::Client;
use crate::http::{NextStep, Session};
use crate::tunnel;

/// An identified client's connection that needs a task.
pub(crate) enum Exchange {
    /// Its tunnel is to be opened.
    Tunnel(Box<Client>),
    /// Its plain HTTP request is to be served.
    Session(Box<Session>),
}

/// Serves an exchange until its connection closes, waits for a request, or needs a relay.
pub(crate) async fn serve(exchange: Exchange) -> NextStep {
    match exchange {
        Exchange::Session(session) => session.serve().await,
        Exchange::Tunnel(client) => match tunnel::open(client).await {
            Some(start) => NextStep::Relay(Box::new(start)),
            None => NextStep::Closed,
        },
    }
}

/// Tasks of one kind, and the function that makes one.
pub(crate) struct Tasks<T, F> {
    executor: Executor<F>,
    serve: fn(T) -> F,
}

impl<T, F: Future> Tasks<T, F> {
    /// Tasks that `executor` runs and `serve` makes.
    pub(crate) fn new(executor: Executor<F>, serve: fn(T) -> F) -> Tasks<T, F> {
        Tasks { executor, serve }
    }

    pub(super) fn len(&self) -> usize {
        self.executor.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.executor.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.executor.is_full()
    }

    pub(super) fn has_runnable(&self) -> bool {
        self.executor.has_runnable()
    }

    /// Spawns a task.
    ///
    /// # Panics
    /// If the executor is full.
    pub(super) fn spawn(&mut self, argument: T) {
        let spawned = self.executor.spawn((self.serve)(argument));
        assert!(spawned.is_ok(), "a task is spawned only while the executor has capacity");
    }

    /// Spawns tasks for what `next` returns, while the executor has capacity.
    pub(super) fn fill(&mut self, mut next: impl FnMut() -> Option<T>) {
        while !self.is_full() {
            let Some(argument) = next() else { break };
            self.spawn(argument);
        }
    }

    /// Runs the woken tasks, and gives `finished` their outputs. Returns how many panicked.
    pub(super) fn run(&mut self, finished: impl FnMut(F::Output)) -> u64 {
        self.executor.run(finished).panicked.into()
    }

    /// Has every task polled in the next run.
    pub(super) fn wake_all(&self) {
        self.executor.wake_all();
    }

    /// Drops every task.
    pub(super) fn clear(&mut self) {
        self.executor.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_future_is_bounded() {
        fn future_size<T, F>(_: fn(T) -> F) -> usize {
            size_of::<F>()
        }
        // A thread keeps the memory of as many futures as it ever had at once.
        let size = future_size(serve);
        assert!(size <= 4096, "the future has {size} bytes");
    }
}
