//! Reads which flows hold a slot of the live table, independently of the product (docs/ledger-format.md,
//! section 2).
//!
//! Guarantees: a flow that holds a slot from before the call until its end is found, and one that holds none
//! is not, also while the gateway runs.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use crate::flow::number_of_client;

const HEADER_BYTES: usize = 4096;
const SLOT_BYTES: usize = 512;
/// Each of the first words holds its value times this factor.
const CODE: u64 = 251;
const STATE_BITS: u64 = 3;
const LIVE: u64 = 1;
const CLOSING: u64 = 2;
/// Offsets in a slot: the flags of the identity, and the client's address.
const FLAGS: usize = 80 + 40;
const ADDRESS: usize = 80 + 44;
const CLIENT_IS_IPV6: u8 = 16;

/// The numbers of the flows that hold a slot in the tables in `directory`, of which there is one while a
/// gateway serves.
///
/// # Errors
/// Those of reading the files.
pub(crate) fn holders(directory: &Path) -> io::Result<HashSet<u32>> {
    let mut holders = HashSet::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "live") {
            let bytes = fs::read(path)?;
            let slots = bytes.get(HEADER_BYTES..).unwrap_or_default();
            holders.extend(slots.chunks_exact(SLOT_BYTES).filter_map(holder));
        }
    }
    Ok(holders)
}

/// The flow in a slot. The state precedes the identity that it covers, so `fs::read` copies it first.
fn holder(slot: &[u8]) -> Option<u32> {
    let word = u64::from_le_bytes(slot[..8].try_into().expect("eight bytes"));
    let state = (word / CODE) & STATE_BITS;
    if word % CODE != 0 || !(state == LIVE || state == CLOSING) || slot[FLAGS] & CLIENT_IS_IPV6 != 0 {
        return None;
    }
    let address: [u8; 4] = slot[ADDRESS..ADDRESS + 4].try_into().expect("four bytes");
    number_of_client(Ipv4Addr::from(address).into())
}
