//! Ledgers that an earlier version wrote, and what that version itself said about them.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use ledger::SqliteUsage;
use ledger::query::{Filter, GroupBy, Usage};

use crate::fixture::Fixture;

/// The boot id in a live table's header, and its checksum.
const TABLE_BOOT: usize = 24;
const TABLE_CRC: usize = 56;
/// The same in a segment's header.
const SEGMENT_BOOT: usize = 1104;
pub(crate) const SEGMENT_CRC: usize = 4092;

/// A copy of the ledger `name` as if it had been written in this boot of this machine.
pub(crate) fn unpacked(name: &str) -> Fixture {
    let fixture = Fixture::new();
    let source = testdata(name);
    unpack(&source.join("data"), &fixture.directory());
    if source.join("live").is_dir() {
        unpack(&source.join("live"), &fixture.tables());
    }
    for table in fixture.live_tables() {
        adopt(&table, TABLE_BOOT, TABLE_CRC);
    }
    for segment in fs::read_dir(fixture.journal()).unwrap() {
        adopt(&segment.unwrap().path(), SEGMENT_BOOT, SEGMENT_CRC);
    }
    fixture
}

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/testdata").join(name)
}

fn unpack(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            unpack(&path, &to.join(path.file_name().unwrap()));
            continue;
        }
        let mut content = Vec::new();
        GzDecoder::new(File::open(&path).unwrap()).read_to_end(&mut content).unwrap();
        let mut file = File::options();
        let mut file =
            file.write(true).create_new(true).mode(0o600).open(to.join(path.file_stem().unwrap())).unwrap();
        std::io::Write::write_all(&mut file, &content).unwrap();
    }
}

/// Puts this boot into the header of a file that has one. A segment that was not begun has none.
fn adopt(path: &Path, boot_at: usize, crc_at: usize) {
    let mut content = fs::read(path).unwrap();
    if content[crc_at..][..4] != crc32c::crc32c(&content[..crc_at]).to_le_bytes() {
        return;
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let boot = u128::from_str_radix(&boot.trim().replace('-', ""), 16).unwrap();
    content[boot_at..boot_at + 16].copy_from_slice(&boot.to_le_bytes());
    let crc = crc32c::crc32c(&content[..crc_at]);
    content[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
    fs::write(path, content).unwrap();
}

/// The usage of a clean ledger by hour, user and class, as in `usage.tsv`.
pub(crate) fn usage(fixture: &Fixture) -> String {
    let report = ledger::verify::verify(&fixture.directory()).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    let usage = SqliteUsage::open(&fixture.directory()).unwrap();
    let answer = usage.rows(&Filter::default(), &[GroupBy::Hour, GroupBy::User, GroupBy::Class]).unwrap();
    assert!(answer.missing.is_empty(), "{:?}", answer.missing);
    let line = |row: &ledger::query::Row| {
        let sums = [row.flows, row.up, row.down, row.uncertain_up, row.uncertain_down];
        format!("{}\t{}\n", row.keys.join("\t"), sums.map(|sum| sum.to_string()).join("\t"))
    };
    let mut lines: Vec<String> = answer.rows.iter().map(line).collect();
    lines.sort();
    lines.concat()
}

pub(crate) fn expected(name: &str) -> String {
    fs::read_to_string(testdata(name).join("usage.tsv")).unwrap()
}
