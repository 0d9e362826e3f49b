//! Memory that fails: any call may be refused or cut short, as a seed decides.

use std::io;
use std::sync::{Arc, Mutex};

use sys::sync::atomic::{AtomicU64, Ordering};

use super::memory::{Memory, MemoryFile};
use super::{Storage, StorageFile};
use crate::random::Random;

/// A call of storage.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Call {
    Create,
    Reserve,
    Open,
    Rename,
    Remove,
    SyncNames,
    Read,
    Write,
    Sync,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fault {
    /// `EIO`.
    Broken,
    /// `ENOSPC`; a write has written a part.
    Full,
}

/// Decides whether a call fails, by its kind and its number.
pub(crate) type Plan = Box<dyn FnMut(Call, u64) -> Option<Fault> + Send>;

/// A memory storage with injected failures.
#[derive(Clone)]
pub(crate) struct Faulty {
    memory: Memory,
    state: Arc<Mutex<State>>,
    /// Calls so far. Outside of the lock, so that a model checker can switch threads here.
    calls: Arc<AtomicU64>,
}

struct State {
    plan: Plan,
    faults: u64,
    random: Random,
}

/// A file of [`Faulty`].
pub(crate) struct FaultyFile {
    file: MemoryFile,
    storage: Faulty,
}

impl Faulty {
    /// Wraps `memory`, with failures by `plan`.
    pub(crate) fn new(memory: Memory, random: Random, plan: Plan) -> Faulty {
        let state = State { plan, faults: 0, random };
        Faulty { memory, state: Arc::new(Mutex::new(state)), calls: Arc::default() }
    }

    /// Calls so far.
    #[cfg(test)]
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Failed calls so far.
    pub(crate) fn faults(&self) -> u64 {
        self.with(|state| state.faults)
    }

    /// From now on calls fail by `plan`.
    #[cfg(all(test, shuttle))]
    pub(crate) fn set_plan(&self, plan: Plan) {
        self.with(|state| state.plan = plan);
    }

    /// From now on every call fails.
    pub(crate) fn fail_always(&self) {
        self.with(|state| state.plan = Box::new(|_, _| Some(Fault::Broken)));
    }

    fn with<R>(&self, access: impl FnOnce(&mut State) -> R) -> R {
        access(&mut self.state.lock().expect("no plan panics"))
    }

    fn fault(&self, call: Call) -> Option<Fault> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        self.with(|state| {
            let fault = (state.plan)(call, number);
            state.faults += u64::from(fault.is_some());
            fault
        })
    }

    fn allow(&self, call: Call) -> io::Result<()> {
        self.fault(call).map_or(Ok(()), |fault| Err(fault.error()))
    }

    fn wrap(&self, file: MemoryFile) -> FaultyFile {
        FaultyFile { file, storage: self.clone() }
    }
}

impl Fault {
    fn error(self) -> io::Error {
        match self {
            Fault::Broken => io::Error::other("input/output error, simulated"),
            Fault::Full => io::Error::new(io::ErrorKind::StorageFull, "no space left, simulated"),
        }
    }
}

impl Storage for Faulty {
    type File = FaultyFile;

    fn names(&self) -> io::Result<Vec<String>> {
        self.memory.names()
    }

    fn create(&self, name: &str) -> io::Result<FaultyFile> {
        self.allow(Call::Create)?;
        self.memory.create(name).map(|file| self.wrap(file))
    }

    fn open(&self, name: &str) -> io::Result<FaultyFile> {
        self.allow(Call::Open)?;
        self.memory.open(name).map(|file| self.wrap(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.allow(Call::Rename)?;
        self.memory.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.allow(Call::Remove)?;
        self.memory.remove(name)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.allow(Call::SyncNames)?;
        self.memory.sync_names()
    }
}

impl StorageFile for FaultyFile {
    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.storage.allow(Call::Reserve)?;
        self.file.reserve(bytes)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        self.storage.allow(Call::Read)?;
        self.file.read_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self.storage.fault(Call::Write) {
            None => self.file.write_at(bytes, offset),
            Some(fault) => {
                let part = self.storage.with(|state| state.random.below(bytes.len() as u64 + 1));
                self.file.write_at(&bytes[..part as usize], offset)?;
                Err(fault.error())
            }
        }
    }

    fn is_linked(&self) -> io::Result<bool> {
        self.file.is_linked()
    }

    fn sync(&self) -> io::Result<()> {
        match self.storage.fault(Call::Sync) {
            None => self.file.sync(),
            Some(fault) => {
                self.storage.with(|state| self.file.fail_sync(&mut state.random));
                Err(fault.error())
            }
        }
    }
}
