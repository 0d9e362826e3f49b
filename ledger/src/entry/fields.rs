//! The fields at fixed places of an entry.

use sys::clock::WallNanos;

use crate::record::{Legs, MalformedRecord, Uncertain};

/// Bytes of an entry before its moment: length, kind, and close reason.
pub(super) const HEAD_BYTES: usize = 4;

pub(super) const IMPOSSIBLE_LENGTH: MalformedRecord = MalformedRecord("an entry of an impossible length");

/// Appends what each entry begins with.
pub(super) fn head(out: &mut Vec<u8>, bytes: usize, kind: u8, reason: u8, at: WallNanos) {
    let bytes = u16::try_from(bytes).expect("ENTRY_BYTES_MAX is less than 64 KiB");
    out.extend_from_slice(&bytes.to_le_bytes());
    out.extend_from_slice(&[kind, reason]);
    out.extend_from_slice(&at.0.to_le_bytes());
}

/// The fixed fields of an entry.
pub(super) struct Fixed<'a>(pub(super) &'a [u8]);

impl Fixed<'_> {
    pub(super) fn u64(&self, at: usize) -> Result<u64, MalformedRecord> {
        self.array(at).map(u64::from_le_bytes)
    }

    pub(super) fn u32(&self, at: usize) -> Result<u32, MalformedRecord> {
        self.array(at).map(u32::from_le_bytes)
    }

    /// The counts of a flow, at the same place in both versions.
    pub(super) fn legs(&self) -> Result<Legs, MalformedRecord> {
        let [client_rx, upstream_tx, upstream_rx, client_tx] = [12, 20, 28, 36].map(|at| self.u64(at));
        Ok(Legs {
            client_rx: client_rx?,
            upstream_tx: upstream_tx?,
            upstream_rx: upstream_rx?,
            client_tx: client_tx?,
        })
    }

    pub(super) fn uncertain(&self) -> Result<Uncertain, MalformedRecord> {
        Ok(Uncertain { up: self.u32(44)?, down: self.u32(48)? })
    }

    pub(super) fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], MalformedRecord> {
        self.0.get(at..).and_then(|bytes| bytes.first_chunk()).copied().ok_or(IMPOSSIBLE_LENGTH)
    }
}
