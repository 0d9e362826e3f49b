//! A frame: a request or its answer on the wire.
//!
//! Guarantees: a frame is 16 to 64 bytes; an incomplete frame is distinguished from a wrong one.
//!
//! ```text
//!   0      4            12                 length
//!   | length | id of the call | payload ... |       integers are little-endian
//! ```

use anyhow::{Result, bail};

const HEADER_BYTES: usize = 12;
pub(super) const FRAME_BYTES_MIN: usize = 16;
pub(super) const FRAME_BYTES_MAX: usize = 64;

/// The text from which payloads are cut.
const TEXT: &[u8; FRAME_BYTES_MAX - HEADER_BYTES] = b"The quick brown fox jumps over the lazy dog, 0123456";

/// A frame that has arrived.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Frame<'a> {
    pub(super) id: u64,
    pub(super) payload: &'a [u8],
}

impl Frame<'_> {
    /// Its length on the wire.
    pub(super) fn bytes(&self) -> usize {
        HEADER_BYTES + self.payload.len()
    }

    pub(super) fn write(&self, output: &mut Vec<u8>) {
        output.extend_from_slice(&(self.bytes() as u32).to_le_bytes());
        output.extend_from_slice(&self.id.to_le_bytes());
        output.extend_from_slice(self.payload);
    }
}

/// The frame at the beginning of `bytes`; `None` while it is incomplete.
///
/// # Errors
/// No frame has that length.
pub(super) fn first(bytes: &[u8]) -> Result<Option<Frame<'_>>> {
    let Some((header, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let (length, id) = header.split_at(4);
    let length = u32::from_le_bytes(length.try_into().expect("a length has 4 bytes")) as usize;
    let id = u64::from_le_bytes(id.try_into().expect("an id has 8 bytes"));
    if !(FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&length) {
        bail!("a frame of {length} bytes");
    }
    Ok(bytes.get(HEADER_BYTES..length).map(|payload| Frame { id, payload }))
}

/// The payload of the call of that number: frames of all lengths alternate.
pub(super) fn payload(number: u64) -> &'static [u8] {
    const LENGTHS: u64 = (FRAME_BYTES_MAX - FRAME_BYTES_MIN + 1) as u64;
    &TEXT[..FRAME_BYTES_MIN - HEADER_BYTES + (number % LENGTHS) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_is_read_once_it_is_complete() {
        for number in 0..100 {
            let frame = Frame { id: number << 32 | 7, payload: payload(number) };
            let mut bytes = Vec::new();
            frame.write(&mut bytes);
            assert!((FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&bytes.len()));
            assert_eq!(bytes.len(), frame.bytes());
            for cut in 0..bytes.len() {
                assert_eq!(first(&bytes[..cut]).expect("the length is fine"), None, "{cut}");
            }
            bytes.push(0);
            assert_eq!(first(&bytes).expect("the length is fine"), Some(frame));
        }
    }

    #[test]
    fn frame_of_invalid_length_is_an_error() {
        for length in [0, 15, 65, u32::MAX] {
            let mut bytes = vec![0; FRAME_BYTES_MAX];
            bytes[..4].copy_from_slice(&length.to_le_bytes());
            assert!(first(&bytes).is_err(), "{length}");
        }
    }
}
