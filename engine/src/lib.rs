//! The engine: threads, reactors, accept strategies, tasks, timers and the job pool.
//!
//! Promises: a thread that runs a reactor waits for nothing but its own epoll: no lock that a descheduled
//! thread may hold, no queue that a preempted producer can stall. Leaves to others: what connections are
//! for. The engine knows nothing of proxies or money.
//!
//! ```text
//!            reactor.rs  one per thread: sources, timers, sleep      inbox.rs    from any thread to one
//!   tasks -> executor.rs async handshakes in a bounded slab          oneshot.rs  one value to a task
//!            net.rs      sockets as futures                          pool.rs     jobs that block or burn
//!            timer.rs    deadlines of tasks, timer/wheel.rs below    accept.rs   how connections arrive
//!            timer/service.rs  deadlines that cross threads
//!            slab.rs     slots with generations                      stats.rs    counters, one writer each
//! ```

#![forbid(unsafe_code)]

pub mod accept;
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
