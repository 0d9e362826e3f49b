//! The details of a line besides its flow: a text, addresses, a path; packed into a bounded buffer.
//!
//! Guarantees: packing allocates nothing, and touches no more of the buffer than it uses. What does not fit
//! is cut: a text between two characters, the list between two addresses.

use std::net::IpAddr;

/// Size of the buffer. The longest list of addresses takes 272 bytes, and the longest text of a denial some
/// 200; a path takes what these leave.
const DETAIL_BYTES_MAX: usize = 320;

/// Bytes of a path that are logged.
pub(crate) const PATH_BYTES_MAX: usize = 256;

/// The details of an event; empty parts are omitted from the line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Details<'a> {
    /// The addresses that were dialled in vain.
    pub tried: &'a [IpAddr],
    /// The text that the client received, if the code alone does not imply it.
    pub text: &'a str,
    /// The path of a plain HTTP request, without its query.
    pub path: &'a str,
}

/// Details as a slot of the ring holds them: first the addresses, then the text, then the path.
#[derive(Clone, Copy)]
pub(super) struct PackedDetails {
    /// tried + text + path <= DETAIL_BYTES_MAX, the bytes of each part.
    tried: u16,
    text: u16,
    path: u16,
    bytes: [u8; DETAIL_BYTES_MAX],
}

impl PackedDetails {
    /// No details.
    pub(super) fn blank() -> PackedDetails {
        PackedDetails { tried: 0, text: 0, path: 0, bytes: [0; DETAIL_BYTES_MAX] }
    }

    /// Stores `details`, as far as they fit.
    pub(super) fn pack(&mut self, details: &Details<'_>) {
        let mut length = 0;
        for address in details.tried {
            length += self.put_address(length, *address);
        }
        self.tried = length as u16;
        self.text = self.put_text(length, details.text) as u16;
        length += usize::from(self.text);
        self.path = self.put_text(length, details.path) as u16;
    }

    /// The addresses that were tried.
    pub(super) fn tried(&self) -> impl Iterator<Item = IpAddr> {
        let mut remaining = &self.bytes[..usize::from(self.tried)];
        std::iter::from_fn(move || {
            let (&octets, tail) = remaining.split_first()?;
            let (octets, tail) = tail.split_at(usize::from(octets));
            remaining = tail;
            match <[u8; 4]>::try_from(octets) {
                Ok(octets) => Some(octets.into()),
                Err(_) => <[u8; 16]>::try_from(octets).ok().map(IpAddr::from),
            }
        })
    }

    /// The text.
    pub(super) fn text(&self) -> &str {
        self.part(self.tried, self.text)
    }

    /// The path.
    pub(super) fn path(&self) -> &str {
        self.part(self.tried + self.text, self.path)
    }

    fn part(&self, start: u16, length: u16) -> &str {
        let start = usize::from(start);
        let bytes = &self.bytes[start..start + usize::from(length)];
        std::str::from_utf8(bytes).expect("`put_text` cuts between characters")
    }

    /// Appends the address with its length before it; returns the bytes used, 0 if it does not fit.
    fn put_address(&mut self, at: usize, address: IpAddr) -> usize {
        match address {
            IpAddr::V4(address) => self.put(at, &[&[4], &address.octets()[..]]),
            IpAddr::V6(address) => self.put(at, &[&[16], &address.octets()[..]]),
        }
    }

    fn put_text(&mut self, at: usize, text: &str) -> usize {
        let text = &text[..text.floor_char_boundary(DETAIL_BYTES_MAX - at)];
        self.put(at, &[text.as_bytes()])
    }

    fn put(&mut self, at: usize, parts: &[&[u8]]) -> usize {
        let length = parts.iter().map(|part| part.len()).sum();
        let Some(space) = self.bytes[at..].get_mut(..length) else { return 0 };
        let mut start = 0;
        for part in parts {
            space[start..start + part.len()].copy_from_slice(part);
            start += part.len();
        }
        length
    }
}

const _: () = assert!(DETAIL_BYTES_MAX <= u16::MAX as usize);
const _: () = assert!(crate::limits::ADDRESSES_MAX * 17 <= DETAIL_BYTES_MAX, "the longest list fits");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packing_keeps_what_fits_and_cuts_the_rest(
            tried in prop::collection::vec(any::<IpAddr>(), 0..=crate::limits::ADDRESSES_MAX),
            text in ".{0,200}",
            path in ".{0,400}",
            earlier in ".{0,320}",
        ) {
            let mut packed = PackedDetails::blank();
            packed.pack(&Details { text: &earlier, ..Details::default() });
            packed.pack(&Details { tried: &tried, text: &text, path: &path });
            prop_assert_eq!(packed.tried().collect::<Vec<_>>(), tried);
            prop_assert!(text.starts_with(packed.text()));
            prop_assert!(path.starts_with(packed.path()));
            let used = usize::from(packed.tried + packed.text + packed.path);
            let cut = packed.text().len() + packed.path().len() < text.len() + path.len();
            prop_assert!(!cut || used > DETAIL_BYTES_MAX - 4, "only what does not fit is cut");
        }
    }
}
