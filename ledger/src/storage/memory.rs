//! Storage in memory that can lose power: then each unsynced sector survives or not, as a seed decides.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard};

use super::{Storage, StorageFile};
use crate::random::Random;

/// Bytes that a disk writes atomically.
const SECTOR_BYTES: usize = 512;

/// A disk in memory. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Arc<Mutex<Disk>>);

#[derive(Debug, Default)]
struct Disk {
    names: BTreeMap<String, usize>,
    /// The names after a power failure; some later changes may survive too.
    durable_names: BTreeMap<String, usize>,
    files: Vec<Content>,
}

#[derive(Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    durable: Vec<u8>,
    /// Writes since the last sync, in their order.
    unsynced: Vec<(usize, Vec<u8>)>,
}

/// A file of [`Memory`].
#[derive(Clone, Debug)]
pub(crate) struct MemoryFile {
    disk: Memory,
    index: usize,
}

impl Memory {
    /// The disk after a power failure. Earlier handles belong to the old disk.
    pub(crate) fn after_power_failure(&self, random: &mut Random) -> Memory {
        let disk = self.lock();
        // File systems journal directories: of the changes a prefix survives. Here it is all or none.
        let names = if random.chance(50) { &disk.names } else { &disk.durable_names };
        let files = disk.files.iter().map(|content| {
            let mut durable = content.durable.clone();
            for (offset, bytes) in &content.unsynced {
                // Pages are written in any order, and a page of several sectors may be torn.
                let all = random.chance(40);
                for (sector, part) in bytes.chunks(SECTOR_BYTES).enumerate() {
                    if all || random.chance(50) {
                        put(&mut durable, offset + sector * SECTOR_BYTES, part);
                    }
                }
            }
            Content { bytes: durable.clone(), durable, unsynced: Vec::new() }
        });
        let (names, files) = (names.clone(), files.collect());
        Memory(Arc::new(Mutex::new(Disk { durable_names: names.clone(), names, files })))
    }

    /// The disk as another process finds it after a kill: the kernel has every write.
    pub(crate) fn after_kill(&self) -> Memory {
        self.clone()
    }

    /// Another disk with the same contents, all of them durable.
    pub(crate) fn copy(&self) -> Memory {
        let disk = self.lock();
        let whole = |content: &Content| Content {
            bytes: content.bytes.clone(),
            durable: content.bytes.clone(),
            unsynced: Vec::new(),
        };
        let files = disk.files.iter().map(whole).collect();
        let names = disk.names.clone();
        Memory(Arc::new(Mutex::new(Disk { durable_names: names.clone(), names, files })))
    }

    /// Flips bit `bit` of file `name`, in the synced and the unsynced contents.
    pub(crate) fn flip(&self, name: &str, bit: usize) {
        let mut disk = self.lock();
        let index = disk.names[name];
        let content = &mut disk.files[index];
        for bytes in [&mut content.bytes, &mut content.durable] {
            if let Some(byte) = bytes.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
        }
    }

    /// The bytes of file `name`.
    pub(crate) fn content(&self, name: &str) -> Option<Vec<u8>> {
        let disk = self.lock();
        disk.names.get(name).map(|index| disk.files[*index].bytes.clone())
    }

    /// Replaces the bytes of the existing file `name`.
    pub(crate) fn put_content(&self, name: &str, bytes: Vec<u8>) {
        let mut disk = self.lock();
        let index = disk.names[name];
        disk.files[index] = Content { durable: bytes.clone(), bytes, unsynced: Vec::new() };
    }

    fn lock(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("no thread panics while it holds the lock")
    }

    fn file(&self, index: usize) -> MemoryFile {
        MemoryFile { disk: self.clone(), index }
    }
}

fn put(content: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if content.len() < offset + bytes.len() {
        content.resize(offset + bytes.len(), 0);
    }
    content[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn absent() -> io::Error {
    ErrorKind::NotFound.into()
}

impl Storage for Memory {
    type File = MemoryFile;

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.lock().names.keys().cloned().collect())
    }

    fn create(&self, name: &str) -> io::Result<MemoryFile> {
        let mut disk = self.lock();
        disk.files.push(Content::default());
        let index = disk.files.len() - 1;
        disk.names.insert(name.to_owned(), index);
        Ok(self.file(index))
    }

    fn open(&self, name: &str) -> io::Result<MemoryFile> {
        self.lock().names.get(name).map(|index| self.file(*index)).ok_or_else(absent)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.lock();
        let index = disk.names.remove(from).ok_or_else(absent)?;
        disk.names.insert(to.to_owned(), index);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.lock().names.remove(name).map(drop).ok_or_else(absent)
    }

    fn sync_names(&self) -> io::Result<()> {
        let mut disk = self.lock();
        disk.durable_names = disk.names.clone();
        Ok(())
    }
}

impl StorageFile for MemoryFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.disk.lock().files[self.index].bytes.len() as u64)
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let content = &mut disk.files[self.index].bytes;
        let length = content.len().max(bytes as usize);
        content.resize(length, 0);
        Ok(())
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let disk = self.disk.lock();
        let content = &disk.files[self.index].bytes;
        let start = (offset as usize).min(content.len());
        let count = bytes.len().min(content.len() - start);
        bytes[..count].copy_from_slice(&content[start..start + count]);
        Ok(count)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let content = &mut disk.files[self.index];
        put(&mut content.bytes, offset as usize, bytes);
        content.unsynced.push((offset as usize, bytes.to_vec()));
        Ok(())
    }

    fn is_linked(&self) -> io::Result<bool> {
        Ok(self.disk.lock().names.values().any(|index| *index == self.index))
    }

    fn sync(&self) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let content = &mut disk.files[self.index];
        for (offset, bytes) in std::mem::take(&mut content.unsynced) {
            put(&mut content.durable, offset, &bytes);
        }
        let length = content.bytes.len();
        content.durable.resize(length, 0);
        Ok(())
    }
}

impl MemoryFile {
    /// Simulates a failed sync: each write since the last successful one is on the disk or lost, and no later
    /// sync writes it.
    pub(crate) fn fail_sync(&self, random: &mut Random) {
        let mut disk = self.disk.lock();
        let content = &mut disk.files[self.index];
        for (offset, bytes) in std::mem::take(&mut content.unsynced) {
            if random.chance(50) {
                put(&mut content.durable, offset, &bytes);
            }
        }
    }
}
