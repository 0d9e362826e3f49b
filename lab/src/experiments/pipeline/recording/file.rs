//! A recording as a file, on its way from a trial's process to the lab: 64-bit words, the low byte first.
//!
//! Guarantees: anything but a whole recording of this form is refused. Both processes are one executable, so
//! files of other builds do not occur.
//!
//! ```text
//!   magic, begun, ended, events lost, count of threads
//!   each thread: slot, count of events, stamp begun, stamp ended; each event: kind, stamp
//!   stamp: at, cpu, ready
//! ```

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Event, EventKind, Recording, Stamp, Thread, ThreadPlacement};

/// The first word of a recording's file: "recordin", and the form's version.
const MAGIC: u64 = u64::from_be_bytes(*b"recordi\x01");

/// Stands for an unknown [`Stamp::ready`].
const UNKNOWN: u64 = u64::MAX;

/// Bits for the kind of an event; the others hold its number.
const WHAT_BITS: u32 = 3;

impl Recording {
    /// Writes the recording to a file for [`Recording::read`].
    ///
    /// # Errors
    /// The file could not be written.
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        let bytes: Vec<u8> = self.to_words().into_iter().flat_map(u64::to_le_bytes).collect();
        fs::write(file, bytes).with_context(|| format!("writing {}", file.display()))
    }

    /// Reads what another process wrote.
    ///
    /// # Errors
    /// The file could not be read, or is not a whole recording.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        let (words, rest) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().copied().map(u64::from_le_bytes).collect();
        let recording = rest.is_empty().then(|| Self::from_words(&words)).flatten();
        recording.with_context(|| format!("{} is not a whole recording", file.display()))
    }

    fn to_words(&self) -> Vec<u64> {
        let mut words =
            vec![MAGIC, self.begun_ns, self.ended_ns, self.events_lost, self.threads.len() as u64];
        for thread in &self.threads {
            let placement = match thread.placement {
                ThreadPlacement::Main => 0,
                ThreadPlacement::Any => 1,
                ThreadPlacement::Slot(slot) => 2 + u64::from(slot),
            };
            words.extend([placement, thread.events.len() as u64]);
            words.extend(thread.begun.to_words());
            words.extend(thread.ended.to_words());
            for event in &thread.events {
                words.push(event.kind.to_word());
                words.extend(event.stamp.to_words());
            }
        }
        words
    }

    fn from_words(words: &[u64]) -> Option<Self> {
        let (&[magic, begun_ns, ended_ns, events_lost, threads], mut rest) = words.split_first_chunk()?;
        if magic != MAGIC {
            return None;
        }
        let threads = (0..threads).map(|_| thread_from(&mut rest)).collect::<Option<Vec<_>>>()?;
        rest.is_empty().then_some(Self { begun_ns, ended_ns, events_lost, threads })
    }
}

/// Takes a thread from the front of some words.
fn thread_from(words: &mut &[u64]) -> Option<Thread> {
    let [placement, events] = *take(words)?;
    let placement = match placement {
        0 => ThreadPlacement::Main,
        1 => ThreadPlacement::Any,
        slot => ThreadPlacement::Slot(u32::try_from(slot - 2).ok()?),
    };
    let (begun, ended) = (Stamp::from_words(take(words)?), Stamp::from_words(take(words)?));
    let event = |_| {
        let [kind] = take(words)?;
        Some(Event { kind: EventKind::from_word(*kind)?, stamp: Stamp::from_words(take(words)?) })
    };
    let events = (0..events).map(event).collect::<Option<_>>()?;
    Some(Thread { placement, begun, events, ended })
}

fn take<'a, const COUNT: usize>(words: &mut &'a [u64]) -> Option<&'a [u64; COUNT]> {
    let (first, rest) = words.split_first_chunk()?;
    *words = rest;
    Some(first)
}

impl EventKind {
    fn to_word(self) -> u64 {
        let (code, number) = match self {
            Self::RequestBegins(request) => (0, u64::from(request)),
            Self::WaitBegins(planned) => (1, planned.as_nanos() as u64),
            Self::WaitEnds => (2, 0),
            Self::RequestEnds => (3, 0),
            Self::Checkpoint => (4, 0),
        };
        number << WHAT_BITS | code
    }

    fn from_word(word: u64) -> Option<Self> {
        let number = word >> WHAT_BITS;
        match word & ((1 << WHAT_BITS) - 1) {
            0 => Some(Self::RequestBegins(u32::try_from(number).ok()?)),
            1 => Some(Self::WaitBegins(Duration::from_nanos(number))),
            2 => Some(Self::WaitEnds),
            3 => Some(Self::RequestEnds),
            4 => Some(Self::Checkpoint),
            _ => None,
        }
    }
}

impl Stamp {
    fn to_words(self) -> [u64; 3] {
        [self.at, self.cpu, self.ready.unwrap_or(UNKNOWN)]
    }

    fn from_words(&[at, cpu, ready]: &[u64; 3]) -> Self {
        Self { at, cpu, ready: (ready != UNKNOWN).then_some(ready) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Recording {
        let stamp = |at, ready| Stamp { at, cpu: at / 2, ready };
        let event = |kind, at| Event { kind, stamp: stamp(at, Some(3)) };
        let thread = Thread {
            placement: ThreadPlacement::Slot(u32::MAX),
            begun: stamp(10, None),
            events: vec![
                event(EventKind::RequestBegins(u32::MAX), 11),
                event(EventKind::WaitBegins(Duration::from_secs(1)), 12),
                event(EventKind::WaitEnds, 13),
                event(EventKind::RequestEnds, 14),
                event(EventKind::Checkpoint, 15),
            ],
            ended: stamp(16, Some(7)),
        };
        let empty = |placement| Thread { placement, events: Vec::new(), ..thread.clone() };
        let threads = vec![
            empty(ThreadPlacement::Main),
            thread.clone(),
            empty(ThreadPlacement::Any),
            empty(ThreadPlacement::Slot(0)),
        ];
        Recording { begun_ns: 9, ended_ns: 20, events_lost: 1, threads }
    }

    #[test]
    fn recording_survives_its_file() {
        let directory = tempfile::tempdir().expect("a directory can be created");
        let file = directory.path().join("recording");
        let empty = Recording { threads: Vec::new(), ..sample() };
        for recording in [sample(), empty] {
            recording.write(&file).expect("the directory is ours");
            assert_eq!(Recording::read(&file).expect("the file was just written"), recording);
        }
    }

    #[test]
    fn incomplete_recording_is_refused() {
        let words = sample().to_words();
        assert_eq!(Recording::from_words(&words), Some(sample()));
        for length in 0..words.len() {
            assert_eq!(Recording::from_words(&words[..length]), None, "{length} words");
        }
        let longer = [words.as_slice(), &[0]].concat();
        assert_eq!(Recording::from_words(&longer), None);
        let check = |index: usize, word| {
            let mut words = words.clone();
            words[index] = word;
            assert_eq!(Recording::from_words(&words), None, "word {index} as {word}");
        };
        check(0, MAGIC + 1);
        check(4, u64::MAX);
        check(6, u64::MAX);
        check(5, u64::MAX);
        assert_eq!(EventKind::from_word(7), None);
        assert_eq!(EventKind::from_word(u64::MAX - 7), None);
    }
}
