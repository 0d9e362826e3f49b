//! Pressure stall information (PSI) of the whole machine: how long tasks waited for a scarce resource.
//!
//! A kernel without `/proc/pressure`, or booted with `psi=0`, gives `None`.

use std::time::Duration;

use crate::limits::ProcRoot;

/// A resource for which tasks may wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Resource {
    /// CPUs.
    Cpu,
    /// Disks and other block I/O.
    Io,
    /// Memory.
    Memory,
}

impl Resource {
    /// Every resource.
    pub const ALL: [Resource; 3] = [Resource::Cpu, Resource::Io, Resource::Memory];

    /// Its name in `/proc/pressure`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Resource::Cpu => "cpu",
            Resource::Io => "io",
            Resource::Memory => "memory",
        }
    }
}

/// One line of the file: how long the stall lasted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StallLine {
    /// Share of the last 10 s, in percent.
    pub last_10_s_percent: f64,
    /// Total since boot.
    pub total: Duration,
}

/// The stall of one resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// At least one task waited.
    pub some: StallLine,
    /// Every non-idle task waited. For CPUs it is zero, or missing.
    pub full: Option<StallLine>,
}

impl Stall {
    /// Reads the stall of a resource of the machine at `root`.
    pub fn read(root: &ProcRoot, resource: Resource) -> Option<Stall> {
        Stall::parse(&root.read_text(Stall::path(resource)).ok()?)
    }

    pub(super) fn path(resource: Resource) -> String {
        format!("/proc/pressure/{}", resource.as_str())
    }

    pub(super) fn parse(text: &str) -> Option<Stall> {
        let line = |name: &str| {
            let mut words = text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace();
            let percent = words.find_map(|word| word.strip_prefix("avg10="))?.parse().ok()?;
            let total_us = words.find_map(|word| word.strip_prefix("total="))?.parse().ok()?;
            Some(StallLine { last_10_s_percent: percent, total: Duration::from_micros(total_us) })
        };
        Some(Stall { some: line("some ")?, full: line("full ") })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn some_and_full_lines_are_parsed() {
        let line = |percent, us| StallLine { last_10_s_percent: percent, total: Duration::from_micros(us) };
        let text =
            "some avg10=3.00 avg60=2.83 avg300=3.41 total=1493\nfull avg10=0.50 avg60=0 avg300=0 total=7\n";
        assert_eq!(Stall::parse(text), Some(Stall { some: line(3.0, 1493), full: Some(line(0.5, 7)) }));
        let some = "some avg10=3.00 avg60=2.83 avg300=3.41 total=1493\n";
        assert_eq!(Stall::parse(some), Some(Stall { some: line(3.0, 1493), full: None }));
        for bad in ["", "some", "some avg10=x total=1", "some total=1", "full avg10=1 total=1", "\u{0}"] {
            assert_eq!(Stall::parse(bad), None, "{bad:?}");
        }
    }
}
