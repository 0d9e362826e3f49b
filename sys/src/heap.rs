//! How the allocator keeps large blocks.
//!
//! Guarantees: after [`map_large_blocks`] each large block is a mapping of its own, so a table that grows
//! moves without a copy (mremap), and freed memory goes back to the kernel.
//!
//! Not handled here: small blocks, and C libraries other than glibc, whose allocators have their own rules.
//!
//! glibc begins with that rule. But when a large block is freed, it raises the threshold to its size: blocks
//! up to 32 MiB then stay in its arenas (mallopt(3), `M_MMAP_THRESHOLD`). A table that doubles leaves its
//! old halves there: each of 9,000 idle tunnels kept 870 to 1,110 bytes in twelve runs, and 700 to 750 in
//! six runs with the threshold fixed.

/// The size from which a block is large: glibc's initial threshold.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 128 * 1024;

/// Makes the allocator of the process keep large blocks as mappings of their own. Call it at the start,
/// before tables grow.
pub fn map_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call sets a number of the allocator under the allocator's own lock.
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
        // Larger than any free chunk of an arena, which malloc would use first.
        let blocks: Vec<_> = (0..8).map(|_| vec![1_u8; 4 << 20]).collect();
        // The header of a mapped block is two words at the start of a page.
        let header = 2 * size_of::<usize>();
        let offsets: Vec<_> = blocks.iter().map(|block| block.as_ptr() as usize % 4096).collect();
        assert_eq!(offsets, [header; 8]);
    }
}
