//! A disk that loses power: a FUSE file system that forgets, tears and reorders writes that were not synced.
//!
//! Guarantees: after a power failure everything is present that a successful sync covers; of all else any
//! part may be, by the seed. So it keeps the contract of a POSIX file system (ledger/src/storage.rs, rules 1
//! and 2) and not more. While it is frozen no operation takes effect.
//!
//! Not handled here: killing the processes that use it (`gateway`); a failing sync, which the simulation of
//! the ledger has.
//!
//! This process must map no file of the disk: the kernel would wait for the disk's threads, with the lock on
//! this process's memory that they need for their work.
//!
//! ```text
//!   fuse_server.rs  the FUSE operations           content.rs  a file's bytes, now and after a power failure
//!   tree.rs         files by inode                names.rs    a directory's names, the same
//!   self_test.rs    the disk's own test
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::ValueEnum;
use fuser::{BackgroundSession, Config, FileType, MountOption};
use rustix::mount::{UnmountFlags, unmount};

use crate::rng::Rng;
use fuse_server::{FuseServer, SharedDisk};
use tree::Tree;

mod content;
mod fuse_server;
mod names;
mod self_test;
mod tree;

pub(crate) use self_test::run_self_test;

/// Threads of the file system: that many syncs may run, together with other calls.
const THREADS: usize = 6;

/// The behavior of a disk where no contract specifies it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskModel {
    /// The longest duration of a sync.
    pub(crate) sync_us_max: u64,
    /// Whether the sync of a new file also makes its first name durable, as ext4, XFS and Btrfs do.
    pub(crate) sync_persists_name: bool,
    /// A disk that breaks its contract, so that the harness must find it.
    pub(crate) broken: Option<Broken>,
}

impl DiskModel {
    /// The behavior for one history.
    pub(crate) fn random(rng: &mut Rng, broken: Option<Broken>) -> DiskModel {
        let sync_us_max = *rng.choose(&[0, 300, 3_000, 12_000]);
        DiskModel { sync_us_max, sync_persists_name: rng.random_percent(50), broken }
    }
}

/// The files for which a broken disk ignores sync, which still succeeds.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Broken {
    /// Files of the journal.
    Journal,
    /// Files of SQLite.
    Database,
    /// Directories.
    Names,
    /// Anything.
    All,
}

impl Broken {
    fn ignores(self, first_name: &str, kind: FileType) -> bool {
        match self {
            Broken::Journal => first_name.starts_with("segment-"),
            Broken::Database => first_name.contains(".db"),
            Broken::Names => kind == FileType::Directory,
            Broken::All => true,
        }
    }
}

/// A mounted disk.
pub(crate) struct Disk {
    at: PathBuf,
    model: DiskModel,
    rng: Rng,
    shared: Arc<SharedDisk>,
    session: Option<BackgroundSession>,
}

/// Cuts the power of a disk. Clones cut that of the same disk, until its power is restored.
#[derive(Clone)]
pub(crate) struct PowerSwitch(Arc<SharedDisk>);

impl PowerSwitch {
    /// From now on no operation takes effect; its caller blocks.
    pub(crate) fn freeze(&self) {
        self.0.freeze();
    }

    /// Blocked callers continue with an error. To be called when they are sure to die.
    pub(crate) fn power_off(&self) {
        self.0.power_off();
    }
}

impl Disk {
    /// An empty disk, mounted at the directory `at`.
    ///
    /// # Errors
    /// This machine has no FUSE, or does not permit mounting.
    pub(crate) fn mount(at: &Path, model: DiskModel, mut rng: Rng) -> io::Result<Disk> {
        let shared = SharedDisk::new(Tree::new(), model, rng.fork());
        let session = serve(at, &shared)?;
        Ok(Disk { at: at.to_owned(), model, rng, shared, session: Some(session) })
    }

    pub(crate) fn switch(&self) -> PowerSwitch {
        PowerSwitch(Arc::clone(&self.shared))
    }

    /// Ends a power failure: mounts what is left. No file may be open any more. What programs last saw of
    /// SQLite's files is copied to `seen`.
    ///
    /// # Errors
    /// Those of mounting, and of the copy.
    pub(crate) fn restore_power(&mut self, seen: &Path) -> io::Result<()> {
        self.shared.power_off();
        self.unmount()?;
        let tree = self.shared.take().expect("the tree is taken here alone, and replaced below");
        // SQLite's rollback journal remains of a database that was being created at an earlier power failure.
        let is_of_databases =
            |name: &str| [".db", ".db-wal", ".db-journal"].iter().any(|end| name.ends_with(end));
        tree.save(seen, &is_of_databases)?;
        let left = tree.after_power_failure(&mut self.rng);
        self.shared = SharedDisk::new(left, self.model, self.rng.fork());
        self.session = Some(serve(&self.at, &self.shared)?);
        Ok(())
    }

    /// Copies the visible files to `to`, to be inspected; the disk cannot be used afterwards.
    pub(crate) fn save(&self, to: &Path) -> io::Result<()> {
        self.shared.power_off();
        // There is none if mounting has failed.
        self.shared.take().map_or(Ok(()), |tree| tree.save(to, &|_| true))
    }

    fn unmount(&mut self) -> io::Result<()> {
        let Some(session) = self.session.take() else { return Ok(()) };
        // A process that watches the machine's mounts may hold this one, so detach it.
        unmount(&self.at, UnmountFlags::DETACH)?;
        // Before another disk is mounted there, which the session would unmount as its own. Its threads end
        // once the kernel has released the mount.
        drop(session);
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.shared.power_off();
        // An error of mounting was already returned.
        let _ = self.unmount();
        // Its threads may outlive it.
        drop(self.shared.take());
    }
}

fn serve(at: &Path, shared: &Arc<SharedDisk>) -> io::Result<BackgroundSession> {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("tollgate-crash".to_owned())];
    config.n_threads = Some(THREADS);
    fuser::spawn_mount(FuseServer(Arc::clone(shared)), at, &config)
}
