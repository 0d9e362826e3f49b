//! The allocator: where large blocks are.
//!
//! Guarantees: behind [`map_large_blocks`] a large block is a mapping of its own, so a table that grows moves
//! without a copy, and what it leaves goes back to the kernel. Leaves out: small blocks, and C libraries
//! other than glibc, whose allocators have their own rules.
//!
//! glibc begins so, and then takes each size that was freed once for one that is freed often: up to 32 MiB it
//! keeps such blocks in its arenas (mallopt(3), `M_MMAP_THRESHOLD`). A table that doubles leaves its old
//! halves there: each of 9,000 idle tunnels kept 870 to 1,110 bytes in twelve runs, and 700 to 750 in six
//! without that.

/// Bytes of a block from which on it is large: where glibc begins.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 128 * 1024;

/// Has the allocator of the process keep large blocks as mappings of their own. To be called at the start,
/// before tables grow.
pub fn map_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call sets a number of the allocator's under the allocator's own lock.
    unsafe {
        // It fails only for a value above 32 MiB.
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    #[test]
    fn large_blocks_stay_mappings_after_frees() {
        map_large_blocks();
        drop(std::hint::black_box(vec![1_u8; 8 << 20]));
        // Larger than what is free in an arena, which is used first.
        let blocks: Vec<_> = (0..8).map(|_| vec![1_u8; 4 << 20]).collect();
        // The header of a mapped block is two words at the start of a page.
        let header = 2 * size_of::<usize>();
        let offsets: Vec<_> = blocks.iter().map(|block| block.as_ptr() as usize % 4096).collect();
        assert_eq!(offsets, [header; 8]);
    }
}
