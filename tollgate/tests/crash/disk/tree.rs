//! The files and directories of the disk, by inode.
//!
//! Guarantees: a file without a name stays for as long as a power failure may restore a name. Modes and file
//! types survive a power failure, since nothing depends on their loss. `content` and `names` decide what a
//! power failure leaves of one file or directory.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use fuser::{Errno, FileAttr, FileType, INodeNo};

use super::DiskModel;
use super::content::Content;
use super::names::{NameChange, Names};
use crate::rng::Rng;

/// The inode of the root directory.
pub(super) const ROOT: u64 = 1;

/// All files, by inode.
pub(super) struct Tree {
    files: HashMap<u64, File>,
    next: u64,
}

/// A file of any type.
pub(super) struct File {
    kind: FileType,
    mode: u16,
    modified: SystemTime,
    pub(super) content: Content,
    pub(super) names: Names,
    /// The directory in which it was created, and that directory's number of changes then.
    created: (u64, u64),
    /// Its first name.
    first_name: String,
}

/// What a sync that begins now will make durable.
#[derive(Clone, Copy)]
pub(super) struct SyncPoint {
    inode: u64,
    content: u64,
    names: u64,
}

impl File {
    fn new(kind: FileType, mode: u32, created: (u64, u64), first_name: &OsStr) -> File {
        File {
            kind,
            mode: (mode & 0o7777) as u16,
            modified: SystemTime::now(),
            content: Content::default(),
            names: Names::default(),
            created,
            first_name: first_name.to_string_lossy().into_owned(),
        }
    }
}

impl Tree {
    /// An empty root directory.
    pub(super) fn new() -> Tree {
        let root = File::new(FileType::Directory, 0o700, (ROOT, 0), OsStr::new(""));
        Tree { files: HashMap::from([(ROOT, root)]), next: ROOT + 1 }
    }

    pub(super) fn file(&mut self, inode: u64) -> Result<&mut File, Errno> {
        self.files.get_mut(&inode).ok_or(Errno::ENOENT)
    }

    pub(super) fn lookup(&mut self, directory: u64, name: &OsStr) -> Result<u64, Errno> {
        self.file(directory)?.names.inode(name).ok_or(Errno::ENOENT)
    }

    pub(super) fn attributes(&mut self, inode: u64) -> Result<FileAttr, Errno> {
        let file = self.file(inode)?;
        let size = file.content.bytes().len() as u64;
        Ok(FileAttr {
            ino: INodeNo(inode),
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

    pub(super) fn set_mode(&mut self, inode: u64, mode: u32) -> Result<(), Errno> {
        self.file(inode)?.mode = (mode & 0o7777) as u16;
        Ok(())
    }

    pub(super) fn create_file(
        &mut self,
        directory: u64,
        name: &OsStr,
        kind: FileType,
        mode: u32,
    ) -> Result<u64, Errno> {
        let inode = self.next;
        let names = &mut self.file(directory)?.names;
        if names.inode(name).is_some() {
            return Err(Errno::EEXIST);
        }
        names.change(NameChange::Insert(name.to_owned(), inode));
        let created = (directory, names.change_count());
        self.files.insert(inode, File::new(kind, mode, created, name));
        self.next += 1;
        Ok(inode)
    }

    pub(super) fn unlink(&mut self, directory: u64, name: &OsStr) -> Result<(), Errno> {
        self.lookup(directory, name)?;
        self.file(directory)?.names.change(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    pub(super) fn remove_directory(&mut self, directory: u64, name: &OsStr) -> Result<(), Errno> {
        let inode = self.lookup(directory, name)?;
        if self.file(inode)?.names.all().next().is_some() {
            return Err(Errno::ENOTEMPTY);
        }
        self.unlink(directory, name)
    }

    pub(super) fn rename(&mut self, directory: u64, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
        self.lookup(directory, from)?;
        self.file(directory)?.names.change(NameChange::Rename { from: from.to_owned(), to: to.to_owned() });
        Ok(())
    }

    /// The names in a directory, with their inodes and types.
    pub(super) fn list(&mut self, directory: u64) -> Result<Vec<(String, u64, FileType)>, Errno> {
        let names: Vec<_> = self.file(directory)?.names.all().map(|(name, at)| (name.clone(), at)).collect();
        let entry = |(name, inode): (std::ffi::OsString, u64)| {
            (name.to_string_lossy().into_owned(), inode, self.files[&inode].kind)
        };
        Ok(names.into_iter().map(entry).collect())
    }

    /// What a sync of this file that begins now makes durable.
    pub(super) fn sync_point(&mut self, inode: u64) -> Result<SyncPoint, Errno> {
        let file = self.file(inode)?;
        Ok(SyncPoint { inode, content: file.content.change_count(), names: file.names.change_count() })
    }

    /// Completes a sync.
    pub(super) fn sync(&mut self, sync_point: SyncPoint, model: DiskModel) -> Result<(), Errno> {
        let file = self.file(sync_point.inode)?;
        if model.broken.is_some_and(|broken| broken.ignores(&file.first_name, file.kind)) {
            return Ok(());
        }
        file.content.sync(sync_point.content);
        file.names.sync(sync_point.names);
        let (directory, created) = file.created;
        if model.sync_persists_name {
            self.file(directory)?.names.sync(created);
        }
        Ok(())
    }

    /// Copies the visible content of files whose name is `wanted` to the directory `to`.
    pub(super) fn save(&self, to: &Path, wanted: &dyn Fn(&str) -> bool) -> io::Result<()> {
        self.save_below(ROOT, to, wanted)
    }

    fn save_below(&self, inode: u64, to: &Path, wanted: &dyn Fn(&str) -> bool) -> io::Result<()> {
        fs::create_dir_all(to)?;
        for (name, inode) in self.files[&inode].names.all() {
            let (file, to) = (&self.files[&inode], to.join(name));
            match file.kind {
                FileType::Directory => self.save_below(inode, &to, wanted)?,
                FileType::RegularFile if wanted(&name.to_string_lossy()) => {
                    fs::write(to, file.content.bytes())?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What a power failure leaves.
    pub(super) fn after_power_failure(self, rng: &mut Rng) -> Tree {
        let mut files: Vec<(u64, File)> = self.files.into_iter().collect();
        // Else the order of a hash table would decide, and not the seed.
        files.sort_by_key(|(inode, _)| *inode);
        let left = files.into_iter().map(|(inode, file)| {
            let content = file.content.after_power_failure(rng);
            let names = file.names.after_power_failure(rng);
            // Its current name is durable.
            (inode, File { content, names, created: (ROOT, 0), ..file })
        });
        let mut tree = Tree { files: left.collect(), next: self.next };
        tree.drop_unreachable();
        tree
    }

    /// Drops files without a name: no process has one open after a power failure.
    fn drop_unreachable(&mut self) {
        let mut reached = vec![ROOT];
        let mut at = 0;
        while let Some(inode) = reached.get(at) {
            let below: Vec<u64> = self.files[inode].names.all().map(|(_, inode)| inode).collect();
            reached.extend(below);
            at += 1;
        }
        self.files.retain(|inode, _| reached.contains(inode));
    }
}
