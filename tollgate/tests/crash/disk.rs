//! A disk that loses power: a file system of ours that forgets, tears and reorders what was not synced.
//!
//! Promises: what a successful sync covers is there after a power failure, and of all else any part may be,
//! as a seed decides; with that it keeps the contract of a POSIX file system (ledger/src/storage.rs, rules 1
//! and 2) and not more. Once it is frozen nothing counts any more, whoever still writes. Leaves to others:
//! killing who uses it (`gateway`); a sync that fails, which the simulation of the ledger has.
//!
//! This process must map no file of the disk: the kernel would wait for our threads, with the lock on our
//! memory that they need for their work.
//!
//! ```text
//!   served.rs   what the kernel asks for      content.rs   a file's bytes, now and after a power failure
//!   tree.rs     files by number               names.rs     a directory's names, the same
//!   proof.rs    the disk's own test
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

/// Threads of the file system: as many syncs may be under way, with calls beside them.
const THREADS: usize = 6;

/// How a disk behaves where no contract says how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskModel {
    /// How long a sync may take.
    pub(crate) sync_us_max: u64,
    /// Whether the sync of a file that was made brings its first name to the disk, as those of ext4, XFS and
    /// Btrfs do.
    pub(crate) sync_persists_name: bool,
    /// A disk that breaks its contract: to see the harness find it.
    pub(crate) broken: Option<Broken>,
}

impl DiskModel {
    /// Those of one history.
    pub(crate) fn random(rng: &mut Rng, broken: Option<Broken>) -> DiskModel {
        let sync_us_max = *rng.choose(&[0, 300, 3_000, 12_000]);
        DiskModel { sync_us_max, sync_persists_name: rng.random_percent(50), broken }
    }
}

/// What a broken disk has no sync for: it says that all is well, and does nothing.
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

/// See the file's header.
pub(crate) struct Disk {
    at: PathBuf,
    model: DiskModel,
    rng: Rng,
    shared: Arc<SharedDisk>,
    session: Option<BackgroundSession>,
}

/// Where a disk's power is cut. Clones are of the same disk, until its power is back.
#[derive(Clone)]
pub(crate) struct PowerSwitch(Arc<SharedDisk>);

impl PowerSwitch {
    /// Nothing that is asked of the disk from now on is done; who asks waits.
    pub(crate) fn freeze(&self) {
        self.0.freeze();
    }

    /// Whoever waits goes on, with an error: to be called when it is sure to die.
    pub(crate) fn power_off(&self) {
        self.0.power_off();
    }
}

impl Disk {
    /// An empty disk, mounted at the directory `at`.
    ///
    /// # Errors
    /// This machine has no FUSE, or does not let us mount.
    pub(crate) fn mount(at: &Path, model: DiskModel, mut rng: Rng) -> io::Result<Disk> {
        let shared = SharedDisk::new(Tree::new(), model, rng.fork());
        let session = serve(at, &shared)?;
        Ok(Disk { at: at.to_owned(), model, rng, shared, session: Some(session) })
    }

    pub(crate) fn switch(&self) -> PowerSwitch {
        PowerSwitch(Arc::clone(&self.shared))
    }

    /// Ends a power failure: what is left is mounted. Nobody may have a file open any more. What programs saw
    /// just before, of the files that SQLite needs, is copied to `seen`.
    ///
    /// # Errors
    /// Those of mounting, and of the copy.
    pub(crate) fn restore_power(&mut self, seen: &Path) -> io::Result<()> {
        self.shared.power_off();
        self.unmount()?;
        let tree = self.shared.take().expect("it is taken here, and then another is there");
        // A database that was being made when the power failed before has a journal of SQLite's own still.
        let is_of_databases =
            |name: &str| [".db", ".db-wal", ".db-journal"].iter().any(|end| name.ends_with(end));
        tree.save(seen, &is_of_databases)?;
        let left = tree.after_power_failure(&mut self.rng);
        self.shared = SharedDisk::new(left, self.model, self.rng.fork());
        self.session = Some(serve(&self.at, &self.shared)?);
        Ok(())
    }

    /// Copies what can be seen of the disk to `to`, for a person to look at; the disk is of no more use.
    pub(crate) fn save(&self, to: &Path) -> io::Result<()> {
        self.shared.power_off();
        // There is none if mounting has failed.
        self.shared.take().map_or(Ok(()), |tree| tree.save(to, &|_| true))
    }

    fn unmount(&mut self) -> io::Result<()> {
        let Some(session) = self.session.take() else { return Ok(()) };
        // A reader in another process may have come by, as one who watches the machine's mounts.
        unmount(&self.at, UnmountFlags::DETACH)?;
        // Before anything else is mounted there, which it would take for its own. Its threads end when the
        // kernel has let go.
        drop(session);
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.shared.power_off();
        // Whoever had it mounted is told of what came before.
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
