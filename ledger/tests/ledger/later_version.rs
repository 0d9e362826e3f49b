//! Journals with entries of a later version of the program, whose checksums and chain are whole.
//!
//! A start passed over a proved entry of an unknown kind, wrote behind it, and left the applier with an entry
//! that it could not read, for ever. Behind damage, a repair gave such an entry up.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use blake2::Blake2b;
use blake2::digest::{Digest, consts::U8};
use ledger::SqliteUsage;
use ledger::query::Usage;
use ledger::repair::{examine, inspect, repair};
use sys::clock::WallNanos;

use crate::fixture::Fixture;
use crate::losses::{begun_segments, copied, flip, frames_with_entries, unapplied_fixture};

const KIND: usize = 2;
const HEADER_BYTES: usize = 4096;

/// Gives the first entry of the frame at `at` in `segment` the kind `kind`, and makes all that is behind it
/// continue that frame: as if a later version had written it.
fn put_kind(fixture: &Fixture, segment: &Path, at: usize, kind: u8) {
    let mut hashes = BTreeMap::new();
    for path in begun_segments(fixture) {
        let mut bytes = fs::read(&path).unwrap();
        rename(&mut bytes[48..56], &hashes);
        seal(&mut bytes[..HEADER_BYTES], HEADER_BYTES - 4, 0);
        for frame in frames(&bytes) {
            let header = &mut bytes[frame..frame + 64];
            let before = hash(header);
            rename(&mut header[40..48], &hashes);
            if path == segment && frame == at {
                let end = frame + 64 + u32_at(header, 48) as usize;
                bytes[frame + 64 + KIND] = kind;
                let crc = crc32c::crc32c(&bytes[frame + 64..end]);
                bytes[frame + 52..frame + 56].copy_from_slice(&crc.to_le_bytes());
            }
            let header = &mut bytes[frame..frame + 64];
            seal(header, 4, 8);
            hashes.insert(before, hash(header));
        }
        fs::write(&path, bytes).unwrap();
    }
}

/// The positions of all frames of a segment.
fn frames(bytes: &[u8]) -> Vec<usize> {
    let number = &bytes[16..24];
    let is_frame = |at: &usize| bytes[*at..].starts_with(b"FRM2") && &bytes[at + 16..at + 24] == number;
    (HEADER_BYTES..bytes.len()).step_by(4096).filter(is_frame).collect()
}

/// Puts the checksum of what is sealed at `at`: all before it, or all from `from` on.
fn seal(bytes: &mut [u8], at: usize, from: usize) {
    let crc = if from > 0 { crc32c::crc32c(&bytes[from..]) } else { crc32c::crc32c(&bytes[..at]) };
    bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn rename(hash: &mut [u8], hashes: &BTreeMap<[u8; 8], [u8; 8]>) {
    if let Some(new) = <[u8; 8]>::try_from(&*hash).ok().and_then(|hash| hashes.get(&hash)) {
        hash.copy_from_slice(new);
    }
}

fn hash(header: &[u8]) -> [u8; 8] {
    Blake2b::<U8>::digest(header).into()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..][..4].try_into().unwrap())
}

/// The contents of the journal, the live table and `ledger.db`.
fn contents(fixture: &Fixture) -> BTreeMap<PathBuf, Vec<u8>> {
    let segments = fs::read_dir(fixture.journal()).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = segments.chain(fixture.live_tables()).collect();
    paths.push(fixture.directory().join("ledger.db"));
    paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

#[test]
fn proved_entry_of_an_unknown_kind_is_refused_unchanged() {
    let killed = unapplied_fixture();
    let segments = begun_segments(&killed);
    let segment = |fixture: &Fixture| fixture.journal().join(segments[1].file_name().unwrap());
    let at = frames_with_entries(&segments[1])[1];
    for is_damaged_before in [false, true] {
        let fixture = copied(&killed);
        put_kind(&fixture, &segment(&fixture), at, 100);
        if is_damaged_before {
            let first = &begun_segments(&fixture)[0];
            flip(first, frames_with_entries(first)[1] + 100);
        }
        let before = contents(&fixture);
        let settings = fixture.settings(1, 64);
        let refusals = [
            fixture.refusal().to_string(),
            inspect(&settings).unwrap_err().to_string(),
            examine(&settings).unwrap_err().to_string(),
            repair(&settings, "root", WallNanos(1)).unwrap_err().to_string(),
        ];
        for refusal in refusals {
            assert!(refusal.contains("an entry of an unknown kind, written by a later version"), "{refusal}");
        }
        let usage = SqliteUsage::open_with_journal(&fixture.directory()).unwrap();
        let cause = usage.completeness().unread.unwrap();
        assert!(cause.contains("later version"), "{cause}");
        assert_eq!(contents(&fixture), before);
    }
}

/// It keeps its number, and sums are right without it.
#[test]
fn proved_entry_that_may_be_skipped_takes_no_other() {
    let fixture = unapplied_fixture();
    let segment = begun_segments(&fixture).swap_remove(1);
    put_kind(&fixture, &segment, frames_with_entries(&segment)[1], 200);
    fixture.restart();
    assert_eq!(fixture.bill().len(), 59);
}
