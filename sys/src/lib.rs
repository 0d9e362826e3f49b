//! Tollgate's floor: what the kernel offers, in types that cannot be misused.
//!
//! Promises: every `unsafe` block of the project is in this crate, each with the reason that makes it
//! sound; only `clock` reads time. Leaves to others: what the calls are for.
//!
//! ```text
//!   epoll.rs   readiness, level or edge triggered, 64-bit tokens, nanosecond timeouts
//!   socket.rs  TCP sockets that never block        splice.rs  pipes, and moving pages through them
//!   clock.rs   monotonic and wall time             limits.rs  what this machine permits
//!   ring.rs    one producer, one consumer          stack.rs   many producers, one who takes all
//!   parking.rs who sleeps and who wakes        parker.rs  the sleep of one thread
//!   mailbox.rs many senders, one who receives, bounded
//!   alarm.rs   a sleep until a time that others move
//!   mapping.rs memory that outlives the process    once_fn.rs a closure for another thread
//!   thread.rs  what the kernel knows of a thread   pressure.rs  what threads and machine waited for
//!   route.rs   what the kernel would deliver to this machine
//!   disk.rs    room on a file system               heap.rs   where the allocator keeps large blocks
//!   crash.rs   where a kill test strikes    witness.rs    what it found sent; both are nothing otherwise
//! ```

pub mod alarm;
pub mod clock;
pub mod crash;
pub mod disk;
pub mod epoll;
pub mod heap;
pub mod limits;
pub mod mailbox;
pub mod mapping;
pub mod once_fn;
pub mod parker;
pub mod parking;
pub mod pressure;
pub mod ring;
pub mod route;
pub mod send_audit;
pub mod socket;
pub mod splice;
pub mod stack;
mod step_filter;
pub mod sync;
pub mod thread;
