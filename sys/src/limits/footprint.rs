//! What a thread takes of the limits that count memory: measured on this machine, with this C library.
//!
//! Promises: threads of the kind that the product starts are started, counted while they wait, and ended;
//! some hundred microseconds, once in a process. Leaves to others: what a thread touches when it works.

use std::io;
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, OnceLock};
use std::thread::{self, Builder};

use super::root::ProcRoot;

/// Threads that are started to be counted: enough that a mapping more or less elsewhere is an eighth.
const PROBES: usize = 8;

/// The stack of a probe: what std gives to its threads, and a page more, so that no stack of an ended thread
/// that the C library keeps for the next one is large enough to be used again, which would cost nothing.
const PROBE_STACK_BYTES: usize = 2 * 1024 * 1024 + 4096;

/// What one more thread takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Footprint {
    /// Mappings (`vm.max_map_count`): the stack, the stack for signals, and their guards. With a kernel and a
    /// C library that keep guards within a mapping it is half of that.
    pub maps: f64,
    /// Address space, most of it never touched.
    pub address_bytes: u64,
}

/// Where it cannot be measured: four mappings and a stack, as on Linux 6.18 with glibc 2.36.
pub const FOOTPRINT_USUAL: Footprint = Footprint { maps: 4.0, address_bytes: PROBE_STACK_BYTES as u64 };

/// What one more thread of this process takes; measured at the first call.
pub fn footprint() -> Footprint {
    static MEASURED: OnceLock<Footprint> = OnceLock::new();
    *MEASURED.get_or_init(|| measure().unwrap_or(FOOTPRINT_USUAL))
}

/// Mappings of this process now.
///
/// # Errors
/// `/proc` is not mounted, or no descriptor is left to read it with.
pub(super) fn maps(root: &ProcRoot) -> io::Result<u64> {
    Ok(root.text("/proc/self/maps")?.lines().count() as u64)
}

fn measure() -> io::Result<Footprint> {
    let root = ProcRoot::machine();
    let process_maps = || -> io::Result<ProcessMaps> {
        let text = root.text("/proc/self/maps")?;
        ProcessMaps::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    };
    // What this function itself allocates is there before it counts.
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
    // Less than a mapping for each stack cannot be: something else went away meanwhile.
    Ok(Footprint {
        maps: if maps < 1.0 { FOOTPRINT_USUAL.maps } else { maps },
        address_bytes: (after.bytes.saturating_sub(before.bytes) / count as u64)
            .max(PROBE_STACK_BYTES as u64),
    })
}

/// What a process has taken, without the arenas of the allocator: those are a luxury, of which there are at
/// most eight for each CPU, and a thread that gets none shares one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ProcessMaps {
    maps: u64,
    bytes: u64,
}

/// glibc's arenas (`HEAP_MAX_SIZE`): so large, and aligned to it. A small beginning is in use, the rest has
/// no access yet.
const ARENA_BYTES: u64 = 64 * 1024 * 1024;

impl ProcessMaps {
    /// Of the text of `/proc/self/maps`; none if it is of another form.
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
        // Threads of other tests come and go meanwhile; `doctor`'s test has a process of its own.
        assert!(maps >= 1.0 && maps.is_finite(), "{maps}");
        assert!(address_bytes >= PROBE_STACK_BYTES as u64);
        assert_eq!(footprint(), footprint(), "it is measured once");
    }
}
