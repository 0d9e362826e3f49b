//! The disk's own test, run before a gateway uses it: over many power failures each permitted loss happens at
//! some time, and no other ever does.
//!
//! Guarantees: goes through the kernel, as a gateway does.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rusqlite::Connection;

use super::{Broken, Disk, DiskModel};
use crate::rng::Rng;

const FAILURES: u64 = 60;
const SECTOR: usize = 512;
const SECTORS: usize = 4;

/// Whether a disk can be mounted here; panics if it breaks its contract.
///
/// # Errors
/// This machine has no FUSE, or does not permit mounting.
pub(crate) fn run_self_test() -> io::Result<()> {
    let directory = tempfile::tempdir()?;
    let at = directory.path();
    let mut seen = HashSet::new();
    for seed in 0..FAILURES {
        let model = DiskModel { sync_us_max: 0, sync_persists_name: seed % 2 == 0, broken: None };
        let mut disk = Disk::mount(at, model, Rng::new(seed, 0))?;
        let connection = prepare(at)?;
        change(at)?;
        fail_power(&mut disk, connection)?;
        inspect(at, model, &mut seen);
    }
    for outcome in OUTCOMES {
        assert!(seen.contains(outcome), "{FAILURES} power failures, and none with the outcome: {outcome}");
    }
    assert!(broken_disk_is_detected(at)?, "a disk that ignores syncs lost nothing");
    Ok(())
}

/// Outcomes that must occur in some power failure.
const OUTCOMES: [&str; 9] = [
    "nothing of a write",
    "all of a write",
    "a torn write",
    "a later write without an earlier one",
    "a name that was not synced",
    "no name that was not synced",
    "a removed file, with its content",
    "no removed file",
    "the old name",
];

/// Creates files that are synced in every way, and an open database.
fn prepare(at: &Path) -> io::Result<Connection> {
    for name in ["kept", "overwritten", "removed", "old"] {
        let file = File::create(at.join(name))?;
        file.write_all_at(&[1; SECTORS * SECTOR], 0)?;
        file.sync_data()?;
    }
    fs::create_dir(at.join("below"))?;
    File::open(at)?.sync_all()?;
    let connection = Connection::open(at.join("some.db")).map_err(io::Error::other)?;
    // Exclusive: SQLite maps no file then (see the header of `disk`).
    let text = "PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
                CREATE TABLE row (x INTEGER) STRICT; INSERT INTO row VALUES (7);
                PRAGMA synchronous = OFF; INSERT INTO row VALUES (8);";
    connection.execute_batch(text).map_err(io::Error::other)?;
    Ok(connection)
}

/// Makes changes that are not synced.
fn change(at: &Path) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(at.join("overwritten"))?;
    file.write_all_at(&[2; SECTORS * SECTOR], 0)?;
    file.write_all_at(&[3; SECTOR], (SECTORS * SECTOR) as u64)?;
    let mut bytes = [0; SECTOR];
    file.read_exact_at(&mut bytes, 0)?;
    assert_eq!(bytes, [2; SECTOR], "what was written is read back");
    File::create(at.join("unsynced-name"))?;
    let synced = File::create(at.join("synced-file"))?;
    synced.write_all_at(b"whole", 0)?;
    synced.sync_all()?;
    let removed = File::open(at.join("removed"))?;
    fs::remove_file(at.join("removed"))?;
    removed.read_exact_at(&mut bytes, 0)?;
    assert_eq!(bytes, [1; SECTOR], "an open file without a name can be read");
    fs::rename(at.join("old"), at.join("new"))?;
    UnixListener::bind(at.join("below/socket"))?;
    let grown = File::create(at.join("below/grown"))?;
    sys::mapping::allocate(&grown, 10_000)?;
    assert_eq!(grown.metadata()?.len(), 10_000);
    grown.set_len(3)?;
    assert_eq!(grown.metadata()?.len(), 3);
    Ok(())
}

fn fail_power(disk: &mut Disk, connection: Connection) -> io::Result<()> {
    disk.switch().freeze();
    disk.switch().power_off();
    // Its last writes come too late.
    drop(connection);
    disk.restore_power(tempfile::tempdir()?.path())
}

fn inspect(at: &Path, model: DiskModel, seen: &mut HashSet<&'static str>) {
    assert_eq!(fs::read(at.join("kept")).unwrap(), [1; SECTORS * SECTOR], "it was synced");
    assert!(at.join("below").is_dir());
    let bytes = fs::read(at.join("overwritten")).unwrap();
    assert!(bytes.len() == SECTORS * SECTOR || bytes.len() == (SECTORS + 1) * SECTOR);
    let news = bytes.chunks(SECTOR).take(SECTORS).filter(|sector| **sector == [2; SECTOR]).count();
    let olds = bytes.chunks(SECTOR).take(SECTORS).filter(|sector| **sector == [1; SECTOR]).count();
    assert_eq!(news + olds, SECTORS, "a sector is written whole or not at all");
    seen.insert(match news {
        0 => "nothing of a write",
        SECTORS => "all of a write",
        _ => "a torn write",
    });
    if news == 0 && bytes.len() > SECTORS * SECTOR {
        seen.insert("a later write without an earlier one");
    }
    let has = |name: &str| at.join(name).exists();
    seen.insert(if has("unsynced-name") {
        "a name that was not synced"
    } else {
        "no name that was not synced"
    });
    if model.sync_persists_name {
        // Earlier changes of the directory come with it.
        assert!(has("synced-file") && has("unsynced-name"), "its sync brings its name");
    }
    if has("synced-file") {
        assert_eq!(fs::read(at.join("synced-file")).unwrap(), b"whole");
        assert!(has("unsynced-name"), "names come in order");
    }
    if has("removed") {
        assert_eq!(fs::read(at.join("removed")).unwrap(), [1; SECTORS * SECTOR]);
        assert!(has("old"), "names go in order");
    }
    seen.insert(if has("removed") { "a removed file, with its content" } else { "no removed file" });
    assert!(has("old") != has("new"), "a file is renamed or not");
    if has("old") {
        seen.insert("the old name");
    }
    let connection = Connection::open(at.join("some.db")).unwrap();
    connection.execute_batch("PRAGMA locking_mode = EXCLUSIVE").unwrap();
    let count = |text: &str| connection.query_row(text, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count("SELECT count(*) FROM row WHERE x = 7"), 1, "SQLite had synced it");
}

/// Whether a disk without syncs is detected.
fn broken_disk_is_detected(at: &Path) -> io::Result<bool> {
    for seed in 0..FAILURES {
        let broken = Some(Broken::All);
        let model = DiskModel { sync_us_max: 0, sync_persists_name: true, broken };
        let mut disk = Disk::mount(at, model, Rng::new(seed, 1))?;
        let connection = prepare(at)?;
        fail_power(&mut disk, connection)?;
        if fs::read(at.join("kept")).map_or(true, |bytes| bytes != [1; SECTORS * SECTOR]) {
            return Ok(true);
        }
    }
    Ok(false)
}
