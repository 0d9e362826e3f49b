//! The disk as a file system that the kernel asks: FUSE.
//!
//! Promises: each call is done at one moment, but for a sync, which takes a while, and makes durable what was
//! done before it began. Once the power fails nothing is done any more: who asks waits until the process is
//! sure to die, and has an error then. The kernel keeps locks, and keeps what is read, but nothing that is
//! written: `write` comes here at once, a page of a shared mapping when it is synced or given up. Leaves to
//! others: what survives (`tree`).

use std::ffi::OsStr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::Manners;
use super::tree::Tree;
use crate::chance::Chance;

/// How long the kernel may believe a name or an attribute: nothing changes but through it.
const BELIEVED: Duration = Duration::from_secs(3600);

/// What `statfs` tells: room for all that a test writes.
const BLOCKS: u64 = 1 << 24;
const BLOCK_BYTES: u32 = 4096;

const FALLOCATE_KEEP_SIZE: i32 = 1;

/// A disk and its power: what the threads of the file system and the harness share.
pub(super) struct Machine {
    state: Mutex<State>,
    changed: Condvar,
    manners: Manners,
}

struct State {
    power: Power,
    /// `None` when somebody has taken it away to see what is left.
    tree: Option<Tree>,
    chance: Chance,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Power {
    On,
    /// Nothing is done any more, and nobody is told yet.
    Failing,
    Off,
}

impl Machine {
    pub(super) fn new(tree: Tree, manners: Manners, chance: Chance) -> Arc<Machine> {
        let state = State { power: Power::On, tree: Some(tree), chance };
        Arc::new(Machine { state: Mutex::new(state), changed: Condvar::new(), manners })
    }

    /// Nothing that is asked for from now on is done.
    pub(super) fn freeze(&self) {
        self.lock().power = Power::Failing;
    }

    /// Whoever waits gets an error.
    pub(super) fn go_off(&self) {
        self.lock().power = Power::Off;
        self.changed.notify_all();
    }

    /// Takes what there is out of a machine that is off; `None` if it has been taken.
    pub(super) fn take(&self) -> Option<Tree> {
        self.lock().tree.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `work`, unless the power has failed.
    fn work<T>(&self, work: impl FnOnce(&mut Tree) -> Result<T, Errno>) -> Result<T, Errno> {
        let mut state = self.lock();
        while state.power == Power::Failing {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match (state.power, &mut state.tree) {
            (Power::On, Some(tree)) => work(tree),
            _ => Err(Errno::EIO),
        }
    }

    fn sync(&self, number: u64) -> Result<(), Errno> {
        let mark = self.work(|tree| tree.mark(number))?;
        let pause_us = self.lock().chance.within(0..self.manners.sync_us_max + 1);
        thread::sleep(Duration::from_micros(pause_us));
        self.work(|tree| tree.sync(mark, self.manners))
    }
}

/// See the file's header.
pub(super) struct Served(pub(super) Arc<Machine>);

impl Served {
    fn make(
        &self,
        parent: INodeNo,
        name: &OsStr,
        kind: FileType,
        mode: u32,
    ) -> Result<fuser::FileAttr, Errno> {
        self.0.work(|tree| {
            let number = tree.make(parent.0, name, kind, mode)?;
            tree.attributes(number)
        })
    }
}

fn entry(outcome: Result<fuser::FileAttr, Errno>, reply: ReplyEntry) {
    match outcome {
        Ok(attributes) => reply.entry(&BELIEVED, &attributes, Generation(0)),
        Err(error) => reply.error(error),
    }
}

fn empty(outcome: Result<(), Errno>, reply: ReplyEmpty) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn index(offset: u64) -> Result<usize, Errno> {
    usize::try_from(offset).map_err(|_| Errno::EFBIG)
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.0.work(|tree| {
            let number = tree.lookup(parent.0, name)?;
            tree.attributes(number)
        });
        entry(found, reply);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.0.work(|tree| tree.attributes(number.0)) {
            Ok(attributes) => reply.attr(&BELIEVED, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
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
        let outcome = self.0.work(|tree| {
            if let Some(mode) = mode {
                tree.set_mode(number.0, mode)?;
            }
            if let Some(size) = size {
                tree.file(number.0)?.content.set_length(index(size)?);
            }
            tree.attributes(number.0)
        });
        match outcome {
            Ok(attributes) => reply.attr(&BELIEVED, &attributes),
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
        entry(self.make(parent, name, kind, mode & !umask), reply);
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        entry(self.make(parent, name, FileType::Directory, mode & !umask), reply);
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
        match self.make(parent, name, FileType::RegularFile, mode & !umask) {
            Ok(made) => {
                reply.created(&BELIEVED, &made, Generation(0), FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
            }
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.0.work(|tree| tree.unlink(parent.0, name)), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(self.0.work(|tree| tree.remove_directory(parent.0, name)), reply);
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
        // Nothing of ours does it, and it would need two directories that agree after a power failure.
        if parent != new_parent || !flags.is_empty() {
            return reply.error(Errno::EXDEV);
        }
        empty(self.0.work(|tree| tree.rename(parent.0, name, new_name)), reply);
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = self.0.work(|tree| {
            let bytes = tree.file(number.0)?.content.bytes();
            let start = index(offset)?.min(bytes.len());
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
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.0.work(|tree| {
            tree.file(number.0)?.content.write(index(offset)?, data);
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
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let outcome = self.0.work(|tree| {
            let content = &mut tree.file(number.0)?.content;
            let end = index(offset + length)?;
            match mode {
                0 if content.bytes().len() < end => content.set_length(end),
                0 | FALLOCATE_KEEP_SIZE => {}
                _ => return Err(Errno::EOPNOTSUPP),
            }
            Ok(())
        });
        empty(outcome, reply);
    }

    fn fsync(&self, _: &Request, number: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        empty(self.0.sync(number.0), reply);
    }

    fn fsyncdir(&self, _: &Request, number: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        empty(self.0.sync(number.0), reply);
    }

    fn readdir(&self, _: &Request, number: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        match self.0.work(|tree| tree.list(number.0)) {
            Ok(entries) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX);
                for (at, (name, number, kind)) in entries.iter().enumerate().skip(from) {
                    if reply.add(INodeNo(*number), at as u64 + 1, *kind, name) {
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
