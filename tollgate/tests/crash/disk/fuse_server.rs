//! The disk as a FUSE file system, whose operations the kernel calls.
//!
//! Guarantees: each operation takes effect at one moment, except a sync, which takes a while and makes
//! durable what was done before it began. Once the power fails no operation takes effect: its caller blocks
//! until the process is sure to die, and gets an error then. The kernel caches locks and reads, but no
//! writes: `write` arrives here at once, a page of a shared mapping when it is synced or evicted. `tree`
//! decides what survives.

use std::ffi::OsStr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::DiskModel;
use super::tree::Tree;
use crate::rng::Rng;

/// How long the kernel may cache a name or an attribute: all changes go through the kernel.
const ATTRIBUTE_TTL: Duration = Duration::from_secs(3600);

/// The size that `statfs` reports: enough for all that a test writes.
const BLOCKS: u64 = 1 << 24;
const BLOCK_BYTES: u32 = 4096;

const FALLOCATE_KEEP_SIZE: i32 = 1;

/// A disk and its power: what the threads of the file system and the harness share.
pub(super) struct SharedDisk {
    state: Mutex<State>,
    changed: Condvar,
    model: DiskModel,
}

struct State {
    power: Power,
    /// `None` once it was taken, to see what is left.
    tree: Option<Tree>,
    rng: Rng,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Power {
    On,
    /// Operations block, without an error so far.
    Failing,
    Off,
}

impl SharedDisk {
    pub(super) fn new(tree: Tree, model: DiskModel, rng: Rng) -> Arc<SharedDisk> {
        let state = State { power: Power::On, tree: Some(tree), rng };
        Arc::new(SharedDisk { state: Mutex::new(state), changed: Condvar::new(), model })
    }

    /// From now on no operation takes effect.
    pub(super) fn freeze(&self) {
        self.lock().power = Power::Failing;
    }

    /// Blocked operations return an error.
    pub(super) fn power_off(&self) {
        self.lock().power = Power::Off;
        self.changed.notify_all();
    }

    /// Takes the tree of a disk that is off; `None` if it was taken before.
    pub(super) fn take(&self) -> Option<Tree> {
        self.lock().tree.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work`, unless the power has failed.
    fn with_tree<T>(&self, work: impl FnOnce(&mut Tree) -> Result<T, Errno>) -> Result<T, Errno> {
        let mut state = self.lock();
        while state.power == Power::Failing {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match (state.power, &mut state.tree) {
            (Power::On, Some(tree)) => work(tree),
            _ => Err(Errno::EIO),
        }
    }

    fn sync(&self, inode: u64) -> Result<(), Errno> {
        let sync_point = self.with_tree(|tree| tree.sync_point(inode))?;
        let pause_us = self.lock().rng.random_range(0..self.model.sync_us_max + 1);
        thread::sleep(Duration::from_micros(pause_us));
        self.with_tree(|tree| tree.sync(sync_point, self.model))
    }
}

/// The FUSE operations on a [`SharedDisk`].
pub(super) struct FuseServer(pub(super) Arc<SharedDisk>);

impl FuseServer {
    fn create_file(
        &self,
        parent: INodeNo,
        name: &OsStr,
        kind: FileType,
        mode: u32,
    ) -> Result<fuser::FileAttr, Errno> {
        self.0.with_tree(|tree| {
            let inode = tree.create_file(parent.0, name, kind, mode)?;
            tree.attributes(inode)
        })
    }
}

fn reply_entry(outcome: Result<fuser::FileAttr, Errno>, reply: ReplyEntry) {
    match outcome {
        Ok(attributes) => reply.entry(&ATTRIBUTE_TTL, &attributes, Generation(0)),
        Err(error) => reply.error(error),
    }
}

fn reply_empty(outcome: Result<(), Errno>, reply: ReplyEmpty) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn to_usize(offset: u64) -> Result<usize, Errno> {
    usize::try_from(offset).map_err(|_| Errno::EFBIG)
}

impl Filesystem for FuseServer {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.0.with_tree(|tree| {
            let inode = tree.lookup(parent.0, name)?;
            tree.attributes(inode)
        });
        reply_entry(found, reply);
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.0.with_tree(|tree| tree.attributes(inode.0)) {
            Ok(attributes) => reply.attr(&ATTRIBUTE_TTL, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let outcome = self.0.with_tree(|tree| {
            if let Some(mode) = mode {
                tree.set_mode(inode.0, mode)?;
            }
            if let Some(size) = size {
                tree.file(inode.0)?.content.set_length(to_usize(size)?);
            }
            tree.attributes(inode.0)
        });
        match outcome {
            Ok(attributes) => reply.attr(&ATTRIBUTE_TTL, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn mknod(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        const FORMAT: u32 = 0o170_000;
        const SOCKET: u32 = 0o140_000;
        let kind = if mode & FORMAT == SOCKET { FileType::Socket } else { FileType::RegularFile };
        reply_entry(self.create_file(parent, name, kind, mode & !umask), reply);
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        reply_entry(self.create_file(parent, name, FileType::Directory, mode & !umask), reply);
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        match self.create_file(parent, name, FileType::RegularFile, mode & !umask) {
            Ok(made) => {
                reply.created(
                    &ATTRIBUTE_TTL,
                    &made,
                    Generation(0),
                    FileHandle(0),
                    FopenFlags::FOPEN_KEEP_CACHE,
                );
            }
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(self.0.with_tree(|tree| tree.unlink(parent.0, name)), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_empty(self.0.with_tree(|tree| tree.remove_directory(parent.0, name)), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        // Tollgate moves no file to another directory, and two directories would have to agree after a power
        // failure.
        if parent != new_parent || !flags.is_empty() {
            return reply.error(Errno::EXDEV);
        }
        reply_empty(self.0.with_tree(|tree| tree.rename(parent.0, name, new_name)), reply);
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = self.0.with_tree(|tree| {
            let bytes = tree.file(inode.0)?.content.bytes();
            let start = to_usize(offset)?.min(bytes.len());
            let end = bytes.len().min(start + size as usize);
            Ok(bytes[start..end].to_vec())
        });
        match read {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.0.with_tree(|tree| {
            tree.file(inode.0)?.content.write(to_usize(offset)?, data);
            Ok(())
        });
        match written {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let outcome = self.0.with_tree(|tree| {
            let content = &mut tree.file(inode.0)?.content;
            let end = to_usize(offset + length)?;
            match mode {
                0 if content.bytes().len() < end => content.set_length(end),
                0 | FALLOCATE_KEEP_SIZE => {}
                _ => return Err(Errno::EOPNOTSUPP),
            }
            Ok(())
        });
        reply_empty(outcome, reply);
    }

    fn fsync(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply_empty(self.0.sync(inode.0), reply);
    }

    fn fsyncdir(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply_empty(self.0.sync(inode.0), reply);
    }

    fn readdir(&self, _: &Request, inode: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match self.0.with_tree(|tree| tree.list(inode.0)) {
            Ok(entries) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                for (at, (name, inode, kind)) in entries.iter().enumerate().skip(from) {
                    if reply.add(INodeNo(*inode), at as u64 + 1, *kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(error),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(BLOCKS, BLOCKS, BLOCKS, BLOCKS, BLOCKS, BLOCK_BYTES, 255, BLOCK_BYTES);
    }
}
