//! Tollgate's lowest layer: Linux system calls and lock-free queues behind safe types.
//!
//! Guarantees: every `unsafe` block of the project is in this crate, each with the reason that makes it
//! sound; only `clock` reads time.
//!
//! ```text
//!   epoll.rs       readiness, level or edge triggered, 64-bit tokens, nanosecond timeouts
//!   socket.rs      non-blocking TCP sockets         splice.rs    pipes, and moving pages through them
//!   clock.rs       monotonic and wall time          step_filter.rs  the wall clock without short steps
//!   ring.rs        one producer, one consumer       stack.rs     many producers, one consumer of all
//!   mailbox.rs     many senders, one receiver, bounded
//!   allowance.rs   bytes that threads spend together    rate_limit.rs  the same, over time
//!   park_flag.rs   whether a producer must wake a sleeping thread
//!   parker.rs      a one-token sleep of one thread
//!   alarm.rs       a sleep whose deadline other threads set
//!   mapping.rs     memory that outlives the process    once_fn.rs  a closure for another thread
//!   thread.rs      a thread's state and run time    pressure.rs  what threads and machine waited for
//!   limits.rs      what this machine permits        route.rs     whether an address is of this machine
//!   disk.rs        space on a file system           heap.rs      how the allocator keeps large blocks
//!   append.rs      opening a file for appending, without a wait
//!   kernel.rs      the system calls themselves    simulation.rs  a kernel in memory, for tests
//!   crash.rs       crash points of kill tests       send_audit.rs  the bytes sent, kept for kill tests
//! ```
//!
//! `crash` and `send_audit` do nothing in builds without the feature `crash`; `simulation` exists with its
//! feature alone.
//!
//! Modules, each above those that it may use:
//!
//! ```text
//!   alarm parker pressure socket
//!   rate_limit
//!   allowance clock epoll limits mailbox mapping park_flag ring send_audit splice stack
//!   kernel route
//!   append crash disk heap once_fn simulation step_filter sync thread
//! ```

pub mod alarm;
pub mod allowance;
pub mod append;
pub mod clock;
pub mod crash;
pub mod disk;
pub mod epoll;
pub mod heap;
mod kernel;
pub mod limits;
pub mod mailbox;
pub mod mapping;
pub mod once_fn;
pub mod park_flag;
pub mod parker;
pub mod pressure;
pub mod rate_limit;
pub mod ring;
pub mod route;
pub mod send_audit;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod socket;
pub mod splice;
pub mod stack;
mod step_filter;
pub mod sync;
pub mod thread;
