//! What a new socket takes and there is none of.
//!
//! Guarantees: pure: an error goes in, what is used up comes out. Leaves out: what is done about it.

use std::error::Error;
use std::fmt;
use std::io;

/// What a new socket takes and there is none of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Shortage {
    /// The process's descriptors (`EMFILE`): one that is closed helps.
    Descriptors,
    /// The machine's descriptors (`ENFILE`).
    SystemDescriptors,
    /// Memory for sockets (`ENOBUFS`).
    Buffers,
    /// The kernel's memory (`ENOMEM`).
    Memory,
}

impl Shortage {
    /// Every shortage, in the order of their numbers.
    pub const ALL: [Shortage; 4] =
        [Shortage::Descriptors, Shortage::SystemDescriptors, Shortage::Buffers, Shortage::Memory];

    /// Its name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Shortage::Descriptors => "descriptors",
            Shortage::SystemDescriptors => "system_descriptors",
            Shortage::Buffers => "buffers",
            Shortage::Memory => "memory",
        }
    }

    /// What `error` says is used up, if that is what it says.
    pub fn of(error: &io::Error) -> Option<Shortage> {
        Shortage::of_errno(rustix::io::Errno::from_io_error(error)?)
    }

    pub(super) fn of_errno(errno: rustix::io::Errno) -> Option<Shortage> {
        use rustix::io::Errno;
        match errno {
            Errno::MFILE => Some(Shortage::Descriptors),
            Errno::NFILE => Some(Shortage::SystemDescriptors),
            Errno::NOBUFS => Some(Shortage::Buffers),
            Errno::NOMEM => Some(Shortage::Memory),
            _ => None,
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Shortage::Descriptors => "the process's descriptors are used up",
            Shortage::SystemDescriptors => "the machine's descriptors are used up",
            Shortage::Buffers => "memory for sockets is used up",
            Shortage::Memory => "the kernel's memory is used up",
        })
    }
}

impl Error for Shortage {}
