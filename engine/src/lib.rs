//! The engine: threads, reactors, accept strategies, tasks, timers and the job pool.
//!
//! Guarantees: a reactor thread waits for nothing but its own epoll. It takes no lock that a descheduled
//! thread may hold, and no preempted producer can stall its queues.
//!
//! Not handled here: the purpose of a connection. The engine knows nothing of proxies or money.
//!
//! ```text
//!            reactor.rs  one per thread: sources, timers, sleep      inbox.rs    from any thread to one
//!   tasks -> executor.rs async handshakes in a bounded slab          oneshot.rs  one value to a task
//!            net.rs      sockets as futures                          pool.rs     jobs that block or burn CPU
//!            deadline.rs futures that end at a time                  accept.rs   listeners and strategies
//!            timer.rs    a thread's timers, and those across threads
//!            slab.rs     slots with generations                      stats.rs    counters, one writer each
//! ```
//!
//! Modules, each above those that it may use:
//!
//! ```text
//!   accept deadline net
//!   pool reactor
//!   executor timer
//!   inbox oneshot slab stats
//! ```

#![forbid(unsafe_code)]

pub mod accept;
pub mod deadline;
pub mod executor;
#[cfg(all(test, shuttle))]
mod explore;
pub mod inbox;
pub mod net;
pub mod oneshot;
pub mod pool;
pub mod reactor;
pub mod slab;
pub mod stats;
pub mod timer;
