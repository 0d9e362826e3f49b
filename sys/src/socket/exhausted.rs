//! The resource whose exhaustion makes a socket call fail, from its errno.

use std::error::Error;
use std::fmt;
use std::io;

/// An exhausted resource that a new socket needs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ResourceExhausted {
    /// The process's descriptors (`EMFILE`): closing one helps.
    Descriptors,
    /// The machine's descriptors (`ENFILE`).
    SystemDescriptors,
    /// Memory for sockets (`ENOBUFS`).
    Buffers,
    /// The kernel's memory (`ENOMEM`).
    Memory,
}

impl ResourceExhausted {
    /// Every resource, in the order of the variants.
    pub const ALL: [ResourceExhausted; 4] = [
        ResourceExhausted::Descriptors,
        ResourceExhausted::SystemDescriptors,
        ResourceExhausted::Buffers,
        ResourceExhausted::Memory,
    ];

    /// Its name in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            ResourceExhausted::Descriptors => "descriptors",
            ResourceExhausted::SystemDescriptors => "system_descriptors",
            ResourceExhausted::Buffers => "buffers",
            ResourceExhausted::Memory => "memory",
        }
    }

    /// The resource whose exhaustion `error` reports, if it reports one.
    pub fn from_error(error: &io::Error) -> Option<ResourceExhausted> {
        ResourceExhausted::from_errno(rustix::io::Errno::from_io_error(error)?)
    }

    pub(super) fn from_errno(errno: rustix::io::Errno) -> Option<ResourceExhausted> {
        use rustix::io::Errno;
        match errno {
            Errno::MFILE => Some(ResourceExhausted::Descriptors),
            Errno::NFILE => Some(ResourceExhausted::SystemDescriptors),
            Errno::NOBUFS => Some(ResourceExhausted::Buffers),
            Errno::NOMEM => Some(ResourceExhausted::Memory),
            _ => None,
        }
    }
}

impl fmt::Display for ResourceExhausted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            ResourceExhausted::Descriptors => "the process's descriptors are used up",
            ResourceExhausted::SystemDescriptors => "the machine's descriptors are used up",
            ResourceExhausted::Buffers => "memory for sockets is used up",
            ResourceExhausted::Memory => "the kernel's memory is used up",
        })
    }
}

impl Error for ResourceExhausted {}
