//! Timers: a wheel for one thread, and a service whose timers any thread arms and cancels.
//!
//! Not handled here: deadlines of tasks (`deadline`).
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
mod service;
mod shard;
#[cfg(all(test, shuttle))]
mod shuttle_tests;
mod slack;
#[cfg(all(test, not(shuttle)))]
mod tests;
mod timer_thread;
pub mod wheel;
mod wheel_driver;

pub use handle::{ArmError, Cancel, Next, Settings, TimerHandle};
pub use lazy::LazyDeadline;
pub use local::LocalTimers;
pub use service::{Callback, Service, Timers};
pub use slack::Slack;
pub use timer_thread::TimerStats;
