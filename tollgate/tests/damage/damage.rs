//! Damage: what is done to a part of a ledger while no gateway runs.
//!
//! Guarantees: equal random numbers do equal damage to equal files. The damage can be printed and, if it is a
//! seal, undone. `verdict` judges its effects.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

use crate::base::Base;
use crate::part::{Part, all_files};
use crate::rng::Rng;

/// A kind of damage.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub(crate) enum Kind {
    Deleted,
    Emptied,
    Halved,
    CutAtABlock,
    CutByAByte,
    CutAnywhere,
    Zeroed,
    SectorZeroed,
    BlockZeroed,
    LastFrameZeroed,
    BitFlipped,
    OlderCopy,
    EarlierCopy,
    AnotherLedgers,
    ReadOnly,
    InTheWay,
    Lengthened,
    Swapped,
}

impl Kind {
    pub(crate) const ALL: [Kind; 18] = [
        Kind::Deleted,
        Kind::Emptied,
        Kind::Halved,
        Kind::CutAtABlock,
        Kind::CutByAByte,
        Kind::CutAnywhere,
        Kind::Zeroed,
        Kind::SectorZeroed,
        Kind::BlockZeroed,
        Kind::LastFrameZeroed,
        Kind::BitFlipped,
        Kind::OlderCopy,
        Kind::EarlierCopy,
        Kind::AnotherLedgers,
        Kind::ReadOnly,
        Kind::InTheWay,
        Kind::Lengthened,
        Kind::Swapped,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Deleted => "deleted",
            Kind::Emptied => "cut to nothing",
            Kind::Halved => "cut to half",
            Kind::CutAtABlock => "cut at 4 KiB",
            Kind::CutByAByte => "cut by a byte",
            Kind::CutAnywhere => "cut anywhere",
            Kind::Zeroed => "zeroed",
            Kind::SectorZeroed => "512 B zeroed",
            Kind::BlockZeroed => "4 KiB zeroed",
            Kind::LastFrameZeroed => "last frame zeroed",
            Kind::BitFlipped => "a bit flipped",
            Kind::OlderCopy => "an older copy",
            Kind::EarlierCopy => "an earlier run's",
            Kind::AnotherLedgers => "another ledger's",
            Kind::ReadOnly => "read-only",
            Kind::InTheWay => "a directory in its place",
            Kind::Lengthened => "garbage appended",
            Kind::Swapped => "two swapped",
        }
    }
}

/// Damage that was done.
#[derive(Debug)]
pub(crate) struct Damage {
    pub(crate) kind: Kind,
    pub(crate) part: Part,
    /// The description, for people.
    pub(crate) text: String,
    /// Bytes that an undamaged ledger would not have, to detect whether they remain.
    damaged_bytes: Vec<DamagedBytes>,
    sealed: Vec<PathBuf>,
}

#[derive(Debug)]
struct DamagedBytes {
    path: PathBuf,
    at: u64,
    bytes: Vec<u8>,
}

const SECTOR_BYTES: u64 = 512;
const BLOCK_BYTES: u64 = 4096;
const GARBAGE_BYTES: u64 = 10_000;
/// Draws of a unit that is not zero, before any unit is taken.
const DRAWS: usize = 64;

impl Damage {
    /// Damages `part` of the ledger in `tree`, which was copied from `base`; `None` if there is no such part,
    /// or nothing would change. Fails where the file system has no such attribute.
    pub(crate) fn inflict(
        (kind, part): (Kind, Part),
        tree: &Path,
        (base, other): (&Base, &Base),
        rng: &mut Rng,
    ) -> Option<Damage> {
        let files = part.files(tree);
        if files.is_empty() {
            return None;
        }
        let mut damage =
            Damage { kind, part, text: String::new(), damaged_bytes: Vec::new(), sealed: Vec::new() };
        let is_done = match kind {
            Kind::Deleted => damage.delete(tree, &files),
            Kind::InTheWay => damage.obstruct(tree, &files),
            Kind::OlderCopy => damage.replace(tree, &files, &base.older()),
            Kind::EarlierCopy => damage.replace(tree, &files, &base.earlier()),
            Kind::AnotherLedgers => damage.replace(tree, &files, &other.now()),
            Kind::ReadOnly => files.iter().all(|file| damage.seal(tree, file)),
            Kind::Swapped => damage.swap(tree, &files[0], rng),
            Kind::LastFrameZeroed => damage.zero_last_frame(tree, &files[0]),
            Kind::SectorZeroed | Kind::BlockZeroed | Kind::BitFlipped => {
                let file = rng.choose(&files).clone();
                damage.corrupt(tree, &file, rng)
            }
            _ => files.iter().fold(false, |done, file| damage.resize(tree, file, rng) | done),
        };
        is_done.then_some(damage)
    }

    /// Removes the seals.
    pub(crate) fn unseal(&mut self, tree: &Path) -> bool {
        let sealed = std::mem::take(&mut self.sealed);
        for path in &sealed {
            set_immutable(&tree.join(path), false);
        }
        !sealed.is_empty()
    }

    /// Whether the damage can still be found in the files.
    pub(crate) fn remains(&self, tree: &Path) -> bool {
        // Only SQLite can tell whether a database still has it.
        let is_of_database = self.part.words().iter().any(|word| ["ledger.db", "usage-"].contains(word));
        is_of_database || self.damaged_bytes.iter().any(|mark| mark.holds(tree))
    }

    fn describe(&mut self, text: &str) {
        if self.text.len() < 200 {
            self.text += &format!("{}{text}", if self.text.is_empty() { "" } else { ", " });
        }
    }

    fn delete(&mut self, tree: &Path, files: &[PathBuf]) -> bool {
        files.iter().for_each(|file| fs::remove_file(tree.join(file)).unwrap());
        if self.part == Part::Journal {
            fs::remove_dir(tree.join("data/journal")).unwrap();
        }
        self.describe(&format!("{} files", files.len()));
        true
    }

    /// Puts a directory in the place of a file; for the journal, a file in the place of its directory.
    fn obstruct(&mut self, tree: &Path, files: &[PathBuf]) -> bool {
        if self.part.is_group() && self.part != Part::Journal {
            return false;
        }
        self.delete(tree, files);
        match self.part {
            Part::Journal => fs::write(tree.join("data/journal"), "").unwrap(),
            _ => fs::create_dir(tree.join(&files[0])).unwrap(),
        }
        true
    }

    fn replace(&mut self, tree: &Path, files: &[PathBuf], source: &Path) -> bool {
        let sources = self.part.files(source);
        let same = |from: &Path, to: &Path| fs::read(source.join(from)).ok() == fs::read(tree.join(to)).ok();
        let pairs: Vec<(PathBuf, PathBuf)> = if self.part.is_group() {
            sources.into_iter().map(|file| (file.clone(), file)).collect()
        } else {
            // The file of the same name, or the one with the same role.
            let has_same_name = source.join(&files[0]).is_file() && self.kind != Kind::AnotherLedgers;
            let from = if has_same_name { Some(files[0].clone()) } else { sources.into_iter().next() };
            from.into_iter().map(|from| (from, files[0].clone())).collect()
        };
        let is_equal = pairs.iter().all(|(from, to)| same(from, to)) && pairs.len() == files.len();
        // Another damage may have put a directory there.
        let is_blocked = pairs.iter().any(|(_, to)| tree.join(to).is_dir());
        if pairs.is_empty() || is_equal || is_blocked {
            return false;
        }
        files.iter().for_each(|file| fs::remove_file(tree.join(file)).unwrap());
        for (from, to) in &pairs {
            // Another damage may have deleted its directory.
            fs::create_dir_all(tree.join(to).parent().unwrap()).unwrap();
            fs::copy(source.join(from), tree.join(to)).unwrap();
            self.record_whole_file(tree, to);
        }
        self.describe(&format!("{} files for {}", pairs.len(), files.len()));
        true
    }

    fn seal(&mut self, tree: &Path, file: &Path) -> bool {
        let is_sealed = set_immutable(&tree.join(file), true);
        if is_sealed {
            self.sealed.push(file.to_owned());
        }
        is_sealed
    }

    fn swap(&mut self, tree: &Path, file: &Path, rng: &mut Rng) -> bool {
        let mut others = all_files(tree);
        others.retain(|other| {
            other.display().to_string().starts_with("data/journal/segment-0") && other != file
        });
        if !self.part.is_segment() || others.is_empty() {
            return false;
        }
        let other = rng.choose(&others).clone();
        let (one, two) = (fs::read(tree.join(file)).unwrap(), fs::read(tree.join(&other)).unwrap());
        fs::write(tree.join(file), two).unwrap();
        fs::write(tree.join(&other), one).unwrap();
        self.record_whole_file(tree, file);
        self.record_whole_file(tree, &other);
        self.describe(&format!("{} with {}", file.display(), other.display()));
        true
    }

    fn zero_last_frame(&mut self, tree: &Path, file: &Path) -> bool {
        if !self.part.is_segment() {
            return false;
        }
        let bytes = fs::read(tree.join(file)).unwrap();
        let is_own = |at: &u64| {
            let frame = &bytes[usize::try_from(*at).unwrap()..];
            frame.starts_with(b"FRM2") && frame.get(16..24) == bytes.get(16..24)
        };
        let frames = (BLOCK_BYTES..bytes.len() as u64).step_by(BLOCK_BYTES as usize).filter(is_own);
        let Some(last) = frames.last() else { return false };
        self.write(tree, file, last, &[0; SECTOR_BYTES as usize]);
        true
    }

    /// Damages one unit of a file: one that is not zero, if one is found.
    fn corrupt(&mut self, tree: &Path, file: &Path, rng: &mut Rng) -> bool {
        let bytes = fs::read(tree.join(file)).unwrap();
        if bytes.is_empty() {
            return false;
        }
        let unit = match self.kind {
            Kind::BitFlipped => 1,
            Kind::SectorZeroed => SECTOR_BYTES,
            _ => BLOCK_BYTES,
        };
        let units = (bytes.len() as u64).div_ceil(unit);
        let unit_at = |at: u64| {
            let end = (at + unit).min(bytes.len() as u64);
            &bytes[usize::try_from(at).unwrap()..usize::try_from(end).unwrap()]
        };
        let mut at = 0;
        for _ in 0..DRAWS {
            at = rng.random_range(0..units) * unit;
            // A flipped bit of a zero counts too, where other bytes are near.
            let near = unit_at(at - at % 64);
            if unit_at(at).iter().chain(near).any(|byte| *byte != 0) {
                break;
            }
        }
        let corrupted = match self.kind {
            Kind::BitFlipped => vec![unit_at(at)[0] ^ (1 << rng.random_range(0..8))],
            _ => vec![0; unit_at(at).len()],
        };
        let differs = corrupted != unit_at(at);
        self.write(tree, file, at, &corrupted);
        differs
    }

    /// Cuts a file, zeroes all of it, or appends to it.
    fn resize(&mut self, tree: &Path, file: &Path, rng: &mut Rng) -> bool {
        let path = tree.join(file);
        let length = fs::metadata(&path).unwrap().len();
        let to = match self.kind {
            Kind::Emptied => 0,
            Kind::Halved => length / 2,
            Kind::CutAtABlock => rng.random_range(0..length.div_ceil(BLOCK_BYTES).max(1)) * BLOCK_BYTES,
            Kind::CutByAByte => length.saturating_sub(1),
            Kind::CutAnywhere => rng.random_range(0..length.max(1)),
            Kind::Lengthened => length + rng.random_range(1..GARBAGE_BYTES),
            _ => length,
        };
        let differs =
            to != length || (self.kind == Kind::Zeroed && fs::read(&path).unwrap().iter().any(|it| *it != 0));
        let target = OpenOptions::new().write(true).open(&path).unwrap();
        match self.kind {
            Kind::Zeroed => target.write_all_at(&vec![0; usize::try_from(length).unwrap()], 0).unwrap(),
            Kind::Lengthened => {
                let garbage: Vec<u8> = (length..to).map(|_| rng.random_range(0..256) as u8).collect();
                target.write_all_at(&garbage, length).unwrap();
            }
            _ => target.set_len(to).unwrap(),
        }
        self.record_whole_file(tree, file);
        self.describe(&format!("{}: {length} to {to} B", file.display()));
        differs
    }

    fn write(&mut self, tree: &Path, file: &Path, at: u64, bytes: &[u8]) {
        let target = OpenOptions::new().write(true).open(tree.join(file)).unwrap();
        target.write_all_at(bytes, at).unwrap();
        self.damaged_bytes.push(DamagedBytes { path: file.to_owned(), at, bytes: bytes.to_vec() });
        self.describe(&format!("{}: {} B at {at}", file.display(), bytes.len()));
    }

    fn record_whole_file(&mut self, tree: &Path, file: &Path) {
        let bytes = fs::read(tree.join(file)).unwrap();
        self.damaged_bytes.push(DamagedBytes { path: file.to_owned(), at: 0, bytes });
    }
}

impl DamagedBytes {
    fn holds(&self, tree: &Path) -> bool {
        let Ok(found) = fs::read(tree.join(&self.path)) else { return false };
        let at = usize::try_from(self.at).unwrap();
        let is_there = found.get(at..at + self.bytes.len()) == Some(self.bytes.as_slice());
        is_there && (at > 0 || self.bytes.len() <= SECTOR_BYTES as usize || found.len() == self.bytes.len())
    }
}

/// Makes a file immutable, also for root; `false` where there is no such attribute.
fn set_immutable(path: &Path, is_on: bool) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let Ok(mut flags) = ioctl_getflags(&file) else { return false };
    flags.set(IFlags::IMMUTABLE, is_on);
    ioctl_setflags(&file, flags).is_ok()
}
