//! The files and directories of the disk, by number.
//!
//! Promises: a file without a name stays for as long as a power failure may give it one again. Not forgotten
//! are modes, and which kind a file is: nothing of ours depends on it. Leaves to others: what a power failure
//! leaves of one file or directory (`content`, `names`).

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use fuser::{Errno, FileAttr, FileType, INodeNo};

use super::Manners;
use super::content::Content;
use super::names::{Names, Step};
use crate::chance::Chance;

/// The number of the topmost directory.
pub(super) const ROOT: u64 = 1;

/// See the file's header.
pub(super) struct Tree {
    files: HashMap<u64, File>,
    next: u64,
}

/// A file of any kind.
pub(super) struct File {
    kind: FileType,
    mode: u16,
    modified: SystemTime,
    pub(super) content: Content,
    pub(super) names: Names,
    /// The directory that it was made in, and how much had been done there then.
    born: (u64, u64),
    /// What it was called at first.
    first_name: String,
}

/// What a sync that begins now is to make durable.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    number: u64,
    content: u64,
    names: u64,
}

impl File {
    fn new(kind: FileType, mode: u32, born: (u64, u64), first_name: &OsStr) -> File {
        File {
            kind,
            mode: (mode & 0o7777) as u16,
            modified: SystemTime::now(),
            content: Content::default(),
            names: Names::default(),
            born,
            first_name: first_name.to_string_lossy().into_owned(),
        }
    }
}

impl Tree {
    /// An empty directory.
    pub(super) fn new() -> Tree {
        let root = File::new(FileType::Directory, 0o700, (ROOT, 0), OsStr::new(""));
        Tree { files: HashMap::from([(ROOT, root)]), next: ROOT + 1 }
    }

    pub(super) fn file(&mut self, number: u64) -> Result<&mut File, Errno> {
        self.files.get_mut(&number).ok_or(Errno::ENOENT)
    }

    pub(super) fn lookup(&mut self, directory: u64, name: &OsStr) -> Result<u64, Errno> {
        self.file(directory)?.names.number(name).ok_or(Errno::ENOENT)
    }

    pub(super) fn attributes(&mut self, number: u64) -> Result<FileAttr, Errno> {
        let file = self.file(number)?;
        let size = file.content.bytes().len() as u64;
        Ok(FileAttr {
            ino: INodeNo(number),
            size,
            blocks: size.div_ceil(512),
            atime: file.modified,
            mtime: file.modified,
            ctime: file.modified,
            crtime: file.modified,
            kind: file.kind,
            perm: file.mode,
            nlink: if file.kind == FileType::Directory { 2 } else { 1 },
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    pub(super) fn set_mode(&mut self, number: u64, mode: u32) -> Result<(), Errno> {
        self.file(number)?.mode = (mode & 0o7777) as u16;
        Ok(())
    }

    pub(super) fn make(
        &mut self,
        directory: u64,
        name: &OsStr,
        kind: FileType,
        mode: u32,
    ) -> Result<u64, Errno> {
        let number = self.next;
        let names = &mut self.file(directory)?.names;
        if names.number(name).is_some() {
            return Err(Errno::EEXIST);
        }
        names.step(Step::Put(name.to_owned(), number));
        let born = (directory, names.done());
        self.files.insert(number, File::new(kind, mode, born, name));
        self.next += 1;
        Ok(number)
    }

    pub(super) fn unlink(&mut self, directory: u64, name: &OsStr) -> Result<(), Errno> {
        self.lookup(directory, name)?;
        self.file(directory)?.names.step(Step::Gone(name.to_owned()));
        Ok(())
    }

    pub(super) fn remove_directory(&mut self, directory: u64, name: &OsStr) -> Result<(), Errno> {
        let number = self.lookup(directory, name)?;
        if self.file(number)?.names.all().next().is_some() {
            return Err(Errno::ENOTEMPTY);
        }
        self.unlink(directory, name)
    }

    pub(super) fn rename(&mut self, directory: u64, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
        self.lookup(directory, from)?;
        self.file(directory)?.names.step(Step::Moved { from: from.to_owned(), to: to.to_owned() });
        Ok(())
    }

    /// The names in a directory, with what they name.
    pub(super) fn list(&mut self, directory: u64) -> Result<Vec<(String, u64, FileType)>, Errno> {
        let names: Vec<_> = self.file(directory)?.names.all().map(|(name, at)| (name.clone(), at)).collect();
        let entry = |(name, number): (std::ffi::OsString, u64)| {
            (name.to_string_lossy().into_owned(), number, self.files[&number].kind)
        };
        Ok(names.into_iter().map(entry).collect())
    }

    /// What a sync of this file that begins now makes durable.
    pub(super) fn mark(&mut self, number: u64) -> Result<Mark, Errno> {
        let file = self.file(number)?;
        Ok(Mark { number, content: file.content.done(), names: file.names.done() })
    }

    /// A sync has come to its end.
    pub(super) fn sync(&mut self, mark: Mark, manners: Manners) -> Result<(), Errno> {
        let file = self.file(mark.number)?;
        if manners.broken.is_some_and(|broken| broken.ignores(&file.first_name, file.kind)) {
            return Ok(());
        }
        file.content.sync(mark.content);
        file.names.sync(mark.names);
        let (directory, born) = file.born;
        if manners.files_bring_names {
            self.file(directory)?.names.sync(born);
        }
        Ok(())
    }

    /// Copies what programs see of files whose name is `wanted` to the directory `to`.
    pub(super) fn save(&self, to: &Path, wanted: &dyn Fn(&str) -> bool) -> io::Result<()> {
        self.save_below(ROOT, to, wanted)
    }

    fn save_below(&self, number: u64, to: &Path, wanted: &dyn Fn(&str) -> bool) -> io::Result<()> {
        fs::create_dir_all(to)?;
        for (name, number) in self.files[&number].names.all() {
            let (file, to) = (&self.files[&number], to.join(name));
            match file.kind {
                FileType::Directory => self.save_below(number, &to, wanted)?,
                FileType::RegularFile if wanted(&name.to_string_lossy()) => {
                    fs::write(to, file.content.bytes())?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What a power failure leaves.
    pub(super) fn after_power_failure(self, chance: &mut Chance) -> Tree {
        let mut files: Vec<(u64, File)> = self.files.into_iter().collect();
        // Else the order of a hash would decide, and not the seed.
        files.sort_by_key(|(number, _)| *number);
        let left = files.into_iter().map(|(number, file)| {
            let content = file.content.after_power_failure(chance);
            let names = file.names.after_power_failure(chance);
            // Whatever name it has now is durable.
            (number, File { content, names, born: (ROOT, 0), ..file })
        });
        let mut tree = Tree { files: left.collect(), next: self.next };
        tree.drop_nameless();
        tree
    }

    /// Forgets the files that nothing leads to: nobody has one open after a power failure.
    fn drop_nameless(&mut self) {
        let mut reached = vec![ROOT];
        let mut at = 0;
        while let Some(number) = reached.get(at) {
            let below: Vec<u64> = self.files[number].names.all().map(|(_, number)| number).collect();
            reached.extend(below);
            at += 1;
        }
        self.files.retain(|number, _| reached.contains(number));
    }
}
