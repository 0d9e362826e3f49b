//! Memory that outlives the process: a file in a shared mapping, as 64-bit atomic words.
//!
//! Guarantees: a stored word is in the file's pages however the process ends, also by SIGKILL, because the
//! pages belong to the kernel. The whole file is allocated before it is mapped, so no store finds the file
//! system full. Words are atomic, so any process may read at any time.
//!
//! Not handled here: the meaning of the words, and the order of the stores. (Release keeps the program's
//! order; a killed thread has executed every instruction before the one at which it was stopped, and none
//! after.)

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
#[cfg(not(any(loom, shuttle)))]
use std::slice;

use rustix::fs::{FallocateFlags, IFlags, fallocate, fstatfs, ioctl_getflags, ioctl_setflags};
use rustix::mm::{MapFlags, ProtFlags, mlock, mmap, munmap};

use crate::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a word.
pub const WORD_BYTES: usize = size_of::<u64>();

/// Words that this process stores and other processes may read.
#[derive(Debug)]
pub struct SharedWords(Words);

#[derive(Debug)]
enum Words {
    Mapped(Pages),
    /// Lost with the process: for tests and simulations.
    Heap(Box<[AtomicU64]>),
}

/// A read-only view of words that another process stores.
#[derive(Debug)]
pub struct SharedView(Pages);

/// A mapping, unmapped when it is dropped.
#[derive(Debug)]
struct Pages {
    start: NonNull<u64>,
    bytes: usize,
}

impl SharedWords {
    /// Maps `words` words of `file` after allocating them on disk (fallocate), with all pages present
    /// (`MAP_POPULATE`).
    ///
    /// # Errors
    /// `ENOSPC` on a full file system, `EOPNOTSUPP` where it has no fallocate.
    pub fn from_file(file: &File, words: usize) -> io::Result<SharedWords> {
        let bytes = words * WORD_BYTES;
        fallocate(file, FallocateFlags::empty(), 0, bytes as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        Ok(SharedWords(Words::Mapped(Pages::map(file, bytes, access, MapFlags::POPULATE)?)))
    }

    /// Words on the heap, without a file.
    pub fn in_memory(words: usize) -> SharedWords {
        SharedWords(Words::Heap((0..words).map(|_| AtomicU64::new(0)).collect()))
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU64] {
        match &self.0 {
            Words::Heap(words) => words,
            #[cfg(any(loom, shuttle))]
            Words::Mapped(_) => panic_on_mapped_words(),
            // SAFETY: the mapping is valid for reads and writes of `bytes` bytes until it is dropped, is
            // aligned to a page, and every access by this process goes through these atomics. Stores of other
            // processes into the file's pages race in whole words, which atomics permit.
            #[cfg(not(any(loom, shuttle)))]
            Words::Mapped(pages) => unsafe {
                slice::from_raw_parts(pages.start.as_ptr().cast::<AtomicU64>(), pages.bytes / WORD_BYTES)
            },
        }
    }

    /// A copy of the words. Under `shuttle` all of them are of one instant, as after a kill.
    pub fn snapshot(&self) -> Vec<u64> {
        self.words().iter().map(load).collect()
    }

    /// Locks the pages in memory (mlock), so that no store waits for swap.
    ///
    /// # Errors
    /// `ENOMEM` or `EPERM` beyond `RLIMIT_MEMLOCK`; the words stay usable.
    pub fn lock(&self) -> io::Result<()> {
        match &self.0 {
            Words::Mapped(pages) => pages.lock(),
            Words::Heap(_) => Ok(()),
        }
    }
}

/// Flags for opening a path of unknown type: open(2) follows no link, waits for no writer of a FIFO, and
/// makes no terminal the controlling one.
pub const SAFE_OPEN_FLAGS: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;

/// The errno of opening a symbolic link with these flags.
pub const SYMLINK_ERRNO: i32 = libc::ELOOP;

/// Extends the file to a length of `bytes` and allocates them on disk (fallocate). Without fallocate it sets
/// the length only, and a later write may fail with ENOSPC.
///
/// # Errors
/// `ENOSPC`.
pub fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Err(rustix::io::Errno::OPNOTSUPP) => file.set_len(bytes),
        other => Ok(other?),
    }
}

/// Prefetches `word`'s cache line. A hint: it changes only the time of the next access.
pub fn prefetch(word: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program sees, and writes nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(ptr::from_ref(word).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}

/// Whether `file` is on a tmpfs: in memory, and on no disk.
pub fn is_tmpfs(file: &File) -> bool {
    /// `statfs(2)`.
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    fstatfs(file).is_ok_and(|stat| stat.f_type as u64 == TMPFS_MAGIC)
}

/// Ensures that stores into a mapping of `file`, which is new and empty, need no further disk space once it
/// is allocated. On btrfs this turns copy-on-write off for the file.
///
/// # Errors
/// `Unsupported` on another copy-on-write or log-structured file system: it writes each page to a new block,
/// so that a store could fail, by SIGBUS, on a full disk.
pub fn disable_copy_on_write(file: &File) -> io::Result<()> {
    /// Source: `statfs(2)`, and the file systems' own code for those that it does not list.
    const BTRFS_MAGIC: u64 = 0x9123_683e;
    const COPY_ON_WRITE: [(u64, &str); 4] =
        [(0x2fc1_2fc1, "zfs"), (0xca45_1a4e, "bcachefs"), (0xf2f5_2010, "f2fs"), (0x3434, "nilfs")];
    // Only the 32 bits that `f_type` has on 32-bit machines.
    let fs_type = fstatfs(file)?.f_type as u64 & 0xffff_ffff;
    if fs_type == BTRFS_MAGIC {
        let flags = ioctl_getflags(file)?;
        return Ok(ioctl_setflags(file, flags | IFlags::NOCOW)?);
    }
    match COPY_ON_WRITE.iter().find(|(magic, _)| *magic == fs_type) {
        None => Ok(()),
        Some((_, name)) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("{name} writes pages to other places, so a count could fail where the disk is full"),
        )),
    }
}

#[cfg(not(shuttle))]
fn load(word: &AtomicU64) -> u64 {
    // Acquire pairs with the Release stores of the thread that owns the word.
    word.load(Ordering::Acquire)
}

#[cfg(shuttle)]
fn load(word: &AtomicU64) -> u64 {
    // SAFETY: this load is no scheduling point. shuttle runs one thread at a time, so no other thread stores
    // meanwhile.
    unsafe { word.raw_load() }
}

/// The atomics of model checkers are larger than a word and cannot overlay a mapping: models use the heap.
#[cfg(any(loom, shuttle))]
fn panic_on_mapped_words() -> ! {
    panic!("a model must use SharedWords::in_memory, not a mapped file")
}

impl SharedView {
    /// Maps the whole of `file`, for reading. No process may shorten the file meanwhile.
    ///
    /// # Errors
    /// The file cannot be mapped, or is empty.
    pub fn from_file(file: &File) -> io::Result<SharedView> {
        let bytes = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let bytes = bytes / WORD_BYTES * WORD_BYTES;
        Ok(SharedView(Pages::map(file, bytes, ProtFlags::READ, MapFlags::empty())?))
    }

    /// The number of words.
    pub fn len(&self) -> usize {
        self.0.bytes / WORD_BYTES
    }

    /// Whether it has no words.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The word at `index`. Panics beyond the end.
    pub fn word(&self, index: usize) -> u64 {
        assert!(index < self.len(), "word {index} of {}", self.len());
        // SAFETY: the index is within the mapping, which is readable until it is dropped and aligned to a
        // page. The atomic is only loaded, which a read-only page permits.
        let word = unsafe { &*self.0.start.as_ptr().add(index).cast::<std::sync::atomic::AtomicU64>() };
        // Acquire pairs with the Release stores of the process that owns the words.
        word.load(Ordering::Acquire)
    }
}

impl Pages {
    fn map(file: impl AsFd, bytes: usize, access: ProtFlags, more: MapFlags) -> io::Result<Pages> {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no other mapping.
        let start = unsafe { mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED | more, file, 0)? };
        let start = NonNull::new(start.cast()).expect("mmap without MAP_FIXED never returns address zero");
        Ok(Pages { start, bytes })
    }

    fn lock(&self) -> io::Result<()> {
        // SAFETY: the range is this mapping.
        unsafe { mlock(self.start.as_ptr().cast(), self.bytes)? };
        Ok(())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping, and no borrow of it outlives its owner.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

// SAFETY: the pages are only accessed as atomics, and the drop of the one owner unmaps them once.
unsafe impl Send for Pages {}
// SAFETY: as above: shared access is atomic.
unsafe impl Sync for Pages {}

#[cfg(all(test, not(loom)))]
mod tests {
    use tempfile::tempfile;

    use super::*;

    #[test]
    fn stored_words_reach_the_file_and_other_views() {
        let file = tempfile().unwrap();
        let words = SharedWords::from_file(&file, 1024).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 8192);
        let view = SharedView::from_file(&file).unwrap();
        assert_eq!(view.len(), 1024);
        words.words()[1023].store(0x0102_0304, Ordering::Release);
        assert_eq!(view.word(1023), 0x0102_0304);
        drop(words);
        let reopened = SharedWords::from_file(&file, 1024).unwrap();
        assert_eq!(reopened.words()[1023].load(Ordering::Acquire), 0x0102_0304);
    }

    #[test]
    #[should_panic(expected = "word 512 of 512")]
    fn word_beyond_the_view_panics() {
        let file = tempfile().unwrap();
        let _words = SharedWords::from_file(&file, 512).unwrap();
        SharedView::from_file(&file).unwrap().word(512);
    }

    #[test]
    fn empty_file_is_refused() {
        assert!(SharedView::from_file(&tempfile().unwrap()).is_err());
    }
}
