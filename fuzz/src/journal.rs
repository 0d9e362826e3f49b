//! The invariants of the journal: what is read was written, and what is missing is reported.
//!
//! An input is one of three: the bytes of a segment; segments with any fields and valid checksums; or a
//! journal that the product writes and that is damaged then.

use ledger::entry::{Entry, TableFinding};
use ledger::fuzzing::{Files, Journal, Numbered, entries, proved, recovered, scan, tables};
use ledger::record::{CloseReason, Flow, Record};
use sys::clock::WallNanos;

use crate::choices::Choices;
use crate::entry::{bytes_of, flow};
use crate::segments::{BLOCK_BYTES, FrameHeader, SegmentHeader, frames, hash, numbered, proved_lsn};

/// Segments, frames and steps of a journal that is made from an input.
const SEGMENTS_MAX: usize = 4;
const FRAMES_MAX: usize = 8;
const STEPS_MAX: usize = 32;

/// Bytes that a disk writes atomically.
const SECTOR_BYTES: usize = 512;

/// The first byte says which of the three the input is.
pub fn journal(data: &[u8]) {
    let Some((&kind, rest)) = data.split_first() else { return };
    match kind % 3 {
        0 => assert_only_written(&Files::from([(name(1), rest.to_vec())])),
        1 => assert_only_written(&made(&mut Choices::new(rest))),
        _ => assert_damage_is_reported(&mut Choices::new(rest)),
    }
}

fn name(number: u64) -> String {
    format!("segment-{number:012}")
}

/// Whatever the files hold, the entries that are read are those of intact frames, each with its number. The
/// result is the same each time.
fn assert_only_written(files: &Files) {
    let frames = frames(files);
    let written = numbered(&frames);
    let check = |read: &[Numbered]| {
        for (lsn, entry) in read {
            assert!(written.contains(&(*lsn, &*bytes_of(entry))), "entry {lsn} was not written");
        }
    };
    let first_lsn = frames.first().map_or(7, |frame| frame.first_lsn);
    // The databases have no greater number than the journal may hold.
    for applied in [0, 1, first_lsn.min(1 << 62)] {
        let read = scan(files, applied);
        assert_eq!(read, scan(files, applied));
        let Ok(read) = read else { continue };
        for numbered in [&read.tail, &read.salvaged] {
            check(numbered);
            assert!(numbered.is_sorted_by(|one, next| one.0 < next.0));
            assert!(numbered.iter().all(|(lsn, _)| *lsn > applied));
        }
    }
    for (first, last) in [(1, 1), (1, 3), (2, u64::MAX - 1)] {
        check(&entries(files, first, last).0);
    }
    let written: Vec<&[u8]> = written.iter().map(|(_, bytes)| *bytes).collect();
    assert!(proved(files).0.iter().all(|entry| written.contains(&&*bytes_of(entry))));
    let _ = (tables(files), recovered(files, 16 * BLOCK_BYTES as u64));
}

/// Segments that continue each other, unless the input says otherwise. Checksums match, unless it says so.
fn made(choices: &mut Choices<'_>) -> Files {
    let mut files = Files::new();
    let mut made = Made { next_lsn: 1, synced_lsn: 0, previous: 0 };
    let mut number = 0;
    while !choices.is_empty() && files.len() < SEGMENTS_MAX {
        number += 1 + choices.below(2) as u64;
        let mut bytes = made.segment(choices, number);
        if choices.flag() {
            bytes.truncate(choices.below(usize::from(u16::MAX)));
        }
        files.insert(name(number), bytes);
    }
    files
}

/// The end of the journal that is being made.
struct Made {
    next_lsn: u64,
    synced_lsn: u64,
    previous: u64,
}

impl Made {
    fn segment(&mut self, choices: &mut Choices<'_>, number: u64) -> Vec<u8> {
        self.next_lsn = choices.near(self.next_lsn);
        let epoch = if choices.flag() { u32::from_le_bytes(choices.array()) } else { 1 };
        let header = SegmentHeader {
            number,
            epoch,
            first_lsn: self.next_lsn,
            synced_lsn: choices.near(self.synced_lsn),
            previous: choices.near(self.previous),
            rewrites_to: if choices.flag() { choices.near(self.next_lsn) } else { 0 },
            table: &choices.text(),
            bytes: 0,
        };
        let mut bytes = header.write();
        if choices.flag() {
            bytes[BLOCK_BYTES - 1] ^= 1;
        }
        let frames = choices.below(FRAMES_MAX);
        for _ in 0..frames {
            self.frame(choices, number, epoch, &mut bytes);
        }
        bytes
    }

    fn frame(&mut self, choices: &mut Choices<'_>, segment: u64, epoch: u32, out: &mut Vec<u8>) {
        let mut payload = Vec::new();
        let mut count = choices.below(4) as u64;
        match choices.below(8) {
            0 => {
                let bytes = choices.below(1 << 14);
                payload.extend_from_slice(choices.take(bytes));
            }
            _ => (0..count).for_each(|_| payload.extend(bytes_of(&entry(choices)))),
        }
        count = choices.near(count);
        let mut header = FrameHeader {
            epoch,
            count: count as u32,
            segment: choices.near(segment),
            first_lsn: choices.near(self.next_lsn),
            synced_lsn: choices.near(self.synced_lsn),
            previous: choices.near(self.previous),
            payload_bytes: payload.len() as u32,
            payload_crc: crc32c::crc32c(&payload),
        };
        if choices.byte() == 1 {
            header.payload_bytes = u32::from_le_bytes(choices.array());
        }
        let mut bytes = header.write().to_vec();
        (self.synced_lsn, self.previous) = (header.synced_lsn, hash(&header.write()));
        self.next_lsn = header.first_lsn.wrapping_add(u64::from(header.count));
        bytes.extend_from_slice(&payload);
        match choices.byte() {
            1 => bytes[5] ^= 1,
            2 => bytes.truncate(choices.below(1 << 14)),
            3 => out.resize(out.len() + BLOCK_BYTES, 0),
            _ => {}
        }
        out.extend_from_slice(&bytes);
        out.resize(out.len().next_multiple_of(BLOCK_BYTES), 0);
    }
}

fn entry(choices: &mut Choices<'_>) -> Entry {
    let (epoch, at) = (u32::from(choices.byte()), WallNanos(u64::from(choices.byte())));
    match choices.below(7) {
        0 => Entry::RunBegan { epoch, at, run: choices.near(1).into(), table: TableFinding::Found },
        1 => Entry::RunEnded { epoch, at },
        2 => Entry::Gap { epoch, at, first_lsn: choices.near(1) },
        3 => Entry::Accepted(ledger::fuzzing::consent(at, (1, 2), &choices.text(), &choices.text())),
        4 => Entry::Edge { epoch, at },
        kind => {
            let texts = [choices.text(), choices.text(), choices.text()];
            let flow = flow(choices, &texts);
            match kind {
                5 => Entry::Final(Record::new(&flow)),
                // An interim keeps no reason: its flow is open.
                _ => Entry::Interim(Record::new(&Flow { reason: CloseReason::Fault, ..flow })),
            }
        }
    }
}

/// A journal is read as it was written. After damage, what is before it is read, nothing is read that was not
/// written, and no durable entry is missing without a report.
fn assert_damage_is_reported(choices: &mut Choices<'_>) {
    let damages: Vec<[u8; 5]> = (0..choices.below(4)).map(|_| choices.array()).collect();
    let segment_bytes = (4 + choices.below(5)) * BLOCK_BYTES;
    let mut journal = Journal::new(segment_bytes as u64);
    let written = write(&mut journal, choices);
    let intact = journal.files();
    assert_intact(&intact, &written);
    let mut damaged = intact.clone();
    for damage in damages {
        apply(damage, &mut damaged);
    }
    let intact_lsn = intact_lsn(&intact, &damaged);
    let read = scan(&damaged, 0).expect("every entry is known");
    let was_written = |(lsn, entry): &Numbered| written.get(*lsn as usize - 1) == Some(entry);
    assert!(read.tail.iter().all(was_written) && read.salvaged.iter().all(was_written));
    assert!(read.last_lsn >= intact_lsn);
    assert_prefix(&damaged, &written, intact_lsn);
    if read.is_intact && read.is_complete {
        let proved_lsn = proved_lsn(&damaged, &frames(&damaged));
        assert!(read.last_lsn >= proved_lsn, "a durable entry is missing without a report");
        assert_prefix(&damaged, &written, proved_lsn);
    }
    if let Some(files) = recovered(&damaged, segment_bytes as u64) {
        // An edge behind a gap does not say any more that all of its run is in front of it.
        let salvaged = read.salvaged.into_iter().filter(|(_, entry)| !matches!(entry, Entry::Edge { .. }));
        let others: Vec<Numbered> = read.tail.into_iter().chain(salvaged).collect();
        assert_recovered(&files, &written, read.durable_lsn, &others);
    }
}

/// Writes a journal as the input says, reads what is durable behind the writer, and returns all entries.
fn write(journal: &mut Journal, choices: &mut Choices<'_>) -> Vec<Entry> {
    let (mut written, mut read) = (Vec::new(), Vec::new());
    for _ in 0..STEPS_MAX {
        if choices.is_empty() {
            break;
        }
        match choices.below(8) {
            0 => journal.begin_segment(),
            1 | 2 => {
                journal.sync();
                read.extend(journal.read());
                assert_eq!(read, written);
            }
            step => {
                let count = if step == 3 { 12 } else { 1 + choices.below(3) };
                let entries: Vec<Entry> = (0..count).map(|_| entry(choices)).collect();
                journal.append(&entries);
                written.extend(entries);
            }
        }
    }
    written
}

fn assert_intact(files: &Files, written: &[Entry]) {
    let read = scan(files, 0).expect("every entry is known");
    let last_lsn = written.len() as u64;
    assert!(read.is_intact && read.is_complete && read.salvaged.is_empty());
    assert_eq!(read.last_lsn, last_lsn);
    let tail: Vec<Entry> = read.tail.iter().map(|(_, entry)| *entry).collect();
    assert_eq!(tail, written[read.durable_lsn as usize..]);
    assert_prefix(files, written, last_lsn);
    let (proved, is_whole) = proved(files);
    assert!(is_whole && written.starts_with(&proved));
}

/// The entries up to `last_lsn` are read as they were written.
fn assert_prefix(files: &Files, written: &[Entry], last_lsn: u64) {
    if last_lsn == 0 {
        return;
    }
    let (read, is_whole) = entries(files, 1, last_lsn);
    let expected: Vec<Numbered> = (1..=last_lsn).zip(written.iter().copied()).collect();
    assert!(is_whole && read == expected, "entries up to {last_lsn} are intact and were not read");
}

/// Flips bits of a byte, zeroes a sector or a block, or truncates the file.
fn apply([kind, file, mask, low, high]: [u8; 5], files: &mut Files) {
    let index = usize::from(file) % files.len();
    let bytes = files.values_mut().nth(index).expect("the index is below their number");
    if bytes.is_empty() {
        return;
    }
    let at = usize::from(u16::from_le_bytes([low, high])) % bytes.len();
    let mut clear = |length: usize| {
        let start = at / length * length;
        let end = bytes.len().min(start + length);
        bytes[start..end].fill(0);
    };
    match kind % 4 {
        0 => bytes[at] ^= mask,
        1 => clear(SECTOR_BYTES),
        2 => clear(BLOCK_BYTES),
        _ => bytes.truncate(at),
    }
}

/// The last entry up to which each frame, and its segment's header, is as it was written.
fn intact_lsn(before: &Files, after: &Files) -> u64 {
    let mut frames = frames(before);
    frames.sort_by_key(|frame| (frame.first_lsn, frame.file.clone(), frame.at));
    let mut intact_lsn = 0;
    for frame in &frames {
        let header = |files: &Files| files[&frame.file].get(..BLOCK_BYTES).map(<[u8]>::to_vec);
        if header(before) != header(after) || frame.bytes(before) != frame.bytes(after) {
            break;
        }
        intact_lsn = frame.first_lsn + frame.entries.len() as u64 - 1;
    }
    intact_lsn
}

/// A start leaves a journal without damage: what was durable, and behind it, in order, what else was read.
fn assert_recovered(files: &Files, written: &[Entry], durable_lsn: u64, others: &[Numbered]) {
    let read = scan(files, 0).expect("every entry is known");
    assert!(read.is_intact && read.salvaged.is_empty());
    let (all, is_whole) = entries(files, 1, read.last_lsn);
    assert!(is_whole);
    let all: Vec<Entry> = all.into_iter().map(|(_, entry)| entry).collect();
    let durable = durable_lsn as usize;
    assert_eq!(all[..durable], written[..durable]);
    let mut behind = all[durable..].iter();
    assert!(others.iter().all(|(_, entry)| behind.any(|found| found == entry)));
    assert!(matches!(all.last(), Some(Entry::RunBegan { .. })));
}
