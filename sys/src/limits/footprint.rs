//! What a thread takes of the memory limits, measured on this machine with this C library.
//!
//! Guarantees: the measurement starts threads like those of the product, reads the mappings while they
//! wait, and ends them: some hundred microseconds, once per process.
//!
//! Not handled here: memory that a thread touches when it works.

use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, OnceLock};
use std::thread::{self, Builder};

use super::root::ProcRoot;

/// Threads that the measurement starts: enough that a mapping more or less elsewhere counts as an eighth.
const PROBES: usize = 8;

/// The stack of a probe thread: std's default and one page more. The C library reuses the stacks of ended
/// threads; none of them is then large enough, and each probe takes a new one.
const PROBE_STACK_BYTES: usize = 2 * 1024 * 1024 + 4096;

/// What one further thread takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Footprint {
    /// Mappings (`vm.max_map_count`): the stack, the signal stack, and their guards. Half of that with a
    /// kernel and a C library that keep guards within the mapping.
    pub maps: f64,
    /// Bytes of address space, most of them never touched.
    pub address_bytes: u64,
}

/// The default where it cannot be measured: four mappings and a stack, as on Linux 6.18 with glibc 2.36.
pub const FOOTPRINT_USUAL: Footprint = Footprint { maps: 4.0, address_bytes: PROBE_STACK_BYTES as u64 };

/// What one further thread of this process takes; measured at the first call.
pub fn footprint() -> Footprint {
    static MEASURED: OnceLock<Footprint> = OnceLock::new();
    *MEASURED.get_or_init(|| measure().unwrap_or(FOOTPRINT_USUAL))
}

/// The number of mappings of this process.
///
/// # Errors
/// `/proc` is not mounted, or no descriptor is left to read it with.
pub(super) fn maps(root: &ProcRoot) -> io::Result<u64> {
    Ok(root.read_text("/proc/self/maps")?.lines().count() as u64)
}

fn measure() -> io::Result<Footprint> {
    let root = ProcRoot::machine();
    let process_maps = || -> io::Result<ProcessMaps> {
        let text = root.read_text("/proc/self/maps")?;
        ProcessMaps::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    };
    // What this function itself allocates exists before the first count.
    let (started, starts) = sync_channel(PROBES);
    let gate = Mutex::new(());
    let before = process_maps()?;
    let (count, after) = thread::scope(|scope| {
        let gate_guard = gate.lock();
        let probe = |started: std::sync::mpsc::SyncSender<()>| {
            let wait = || drop(gate.lock());
            Builder::new().stack_size(PROBE_STACK_BYTES).spawn_scoped(scope, move || {
                let _ = started.send(());
                wait();
            })
        };
        let count = (0..PROBES).map_while(|_| probe(started.clone()).ok()).count();
        starts.iter().take(count).for_each(|()| ());
        let after = process_maps();
        drop(gate_guard);
        (count, after)
    });
    let after = after?;
    if count == 0 {
        return Err(io::Error::other("no thread can be started"));
    }
    let maps = after.maps.saturating_sub(before.maps) as f64 / count as f64;
    // Less than one mapping per stack is impossible: another part of the process unmapped some meanwhile.
    Ok(Footprint {
        maps: if maps < 1.0 { FOOTPRINT_USUAL.maps } else { maps },
        address_bytes: (after.bytes.saturating_sub(before.bytes) / count as u64)
            .max(PROBE_STACK_BYTES as u64),
    })
}

/// The mappings of a process, without the arenas of the allocator: glibc makes at most eight for each CPU,
/// and a thread without an arena of its own shares one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ProcessMaps {
    maps: u64,
    bytes: u64,
}

/// The size and alignment of glibc's arenas (`HEAP_MAX_SIZE`). Their first part is in use, the rest has no
/// access rights yet.
const ARENA_BYTES: u64 = 64 * 1024 * 1024;

impl ProcessMaps {
    /// Parses the text of `/proc/self/maps`; `None` if it is malformed.
    fn parse(text: &str) -> Option<ProcessMaps> {
        let mut process_maps = ProcessMaps::default();
        for line in text.lines() {
            let (range, rest) = line.split_once(' ')?;
            let (low, high) = range.split_once('-')?;
            let (low, high) = (u64::from_str_radix(low, 16).ok()?, u64::from_str_radix(high, 16).ok()?);
            let is_arena = low / ARENA_BYTES == high.saturating_sub(1) / ARENA_BYTES && {
                let is_used_part = low.is_multiple_of(ARENA_BYTES) && rest.starts_with("rw-p");
                let is_reserved_part = high.is_multiple_of(ARENA_BYTES) && rest.starts_with("---p");
                is_used_part || is_reserved_part
            };
            if !is_arena {
                process_maps.maps += 1;
                process_maps.bytes += high.saturating_sub(low);
            }
        }
        Some(process_maps)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn arenas_are_not_counted() {
        let check = |text: &str, expected: Option<(u64, u64)>| {
            assert_eq!(
                ProcessMaps::parse(text),
                expected.map(|(maps, bytes)| ProcessMaps { maps, bytes }),
                "{text:?}"
            );
        };
        check("", Some((0, 0)));
        let stack = "7f1000000000-7f1000001000 ---p 00000000 00:00 0\n7f1000001000-7f1000201000 rw-p 0 0 0\n";
        check(stack, Some((2, 0x20_1000)));
        let arena = "7f2000000000-7f2000021000 rw-p 0 00:00 0\n7f2000021000-7f2004000000 ---p 0 00:00 0\n";
        check(arena, Some((0, 0)));
        check(&format!("{stack}{arena}"), Some((2, 0x20_1000)));
        for bad in ["x", "1-z rw-p", "10 rw-p", "\u{0} \u{0}"] {
            check(bad, None);
        }
    }

    #[test]
    fn thread_footprint_covers_its_stack() {
        let Footprint { maps, address_bytes } = footprint();
        // Threads of other tests start and end meanwhile; `doctor`'s test has a process of its own.
        assert!(maps >= 1.0 && maps.is_finite(), "{maps}");
        assert!(address_bytes >= PROBE_STACK_BYTES as u64);
        assert_eq!(footprint(), footprint(), "the footprint is measured once");
    }
}
