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
//!   parking.rs who sleeps and who wakes     semaphore.rs  permits that threads sleep for
//! ```

pub mod clock;
pub mod epoll;
pub mod limits;
pub mod parking;
pub mod ring;
pub mod semaphore;
pub mod socket;
pub mod splice;
pub mod stack;
mod sync;
