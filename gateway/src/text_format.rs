//! Writes numbers and addresses as text, for what is written for every flow: the record's host and the log's
//! lines.
//!
//! Guarantees: the text is that of `Display`. `Display` itself is avoided: its formatter takes several times
//! as long as the digits.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The longest address: an IPv6 one that ends in the words of an IPv4 one.
const ADDRESS_BYTES_MAX: usize = "ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255".len();

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// A buffer to which text is appended.
pub(crate) trait PutText {
    /// Appends these bytes.
    fn put(&mut self, bytes: &[u8]);

    /// Appends a number.
    fn put_number(&mut self, number: impl itoa::Integer) {
        self.put(itoa::Buffer::new().format(number).as_bytes());
    }

    /// Appends the three last digits of a number: a fraction.
    fn put_thousandths(&mut self, number: u64) {
        let digit = |by: u64| DIGITS[(number / by % 10) as usize];
        self.put(&[digit(100), digit(10), digit(1)]);
    }

    /// Appends all 32 hexadecimal digits of a number.
    fn put_hex(&mut self, number: u128) {
        let digit = |index: usize| DIGITS[(number >> (4 * index)) as usize & 0xf];
        self.put(&std::array::from_fn::<u8, 32, _>(|at| digit(31 - at)));
    }

    /// Appends an address.
    fn put_address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.put_v4(address),
            IpAddr::V6(address) => {
                let mut buffer = [0; ADDRESS_BYTES_MAX];
                let mut remaining = &mut buffer[..];
                write!(remaining, "{address}").expect("the longest address fits");
                let length = ADDRESS_BYTES_MAX - remaining.len();
                self.put(&buffer[..length]);
            }
        }
    }

    /// Appends an IPv4 address.
    fn put_v4(&mut self, address: Ipv4Addr) {
        let [first, others @ ..] = address.octets();
        self.put_number(first);
        for octet in others {
            self.put(b".");
            self.put_number(octet);
        }
    }

    /// Appends an address and a port.
    fn put_socket_address(&mut self, address: SocketAddr) {
        match address {
            SocketAddr::V4(address) => self.put_v4(*address.ip()),
            SocketAddr::V6(address) => {
                self.put(b"[");
                self.put_address(IpAddr::V6(*address.ip()));
                if address.scope_id() != 0 {
                    self.put(b"%");
                    self.put_number(address.scope_id());
                }
                self.put(b"]");
            }
        }
        self.put(b":");
        self.put_number(address.port());
    }
}

impl PutText for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// The text of an address, without an allocation.
pub(crate) struct AddressText {
    bytes: [u8; ADDRESS_BYTES_MAX],
    /// <= ADDRESS_BYTES_MAX
    length: usize,
}

impl AddressText {
    /// The text of this address.
    pub(crate) fn new(address: IpAddr) -> AddressText {
        let mut literal = AddressText { bytes: [0; ADDRESS_BYTES_MAX], length: 0 };
        literal.put_address(address);
        literal
    }

    /// The text.
    pub(crate) fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.length]).expect("an address is ASCII")
    }
}

impl PutText for AddressText {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.length..][..bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV6;

    use proptest::prelude::*;

    use super::*;

    fn text(put: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut text = Vec::new();
        put(&mut text);
        String::from_utf8(text).unwrap()
    }

    fn check(address: IpAddr, port: u16, scope: u32) {
        assert_eq!(AddressText::new(address).as_str(), address.to_string());
        let with_port = match address {
            IpAddr::V4(_) => SocketAddr::new(address, port),
            IpAddr::V6(address) => SocketAddrV6::new(address, port, 0, scope).into(),
        };
        assert_eq!(text(|text| text.put_socket_address(with_port)), with_port.to_string());
    }

    #[test]
    fn odd_addresses_match_display() {
        for text in ["0.0.0.0", "255.255.255.255", "::", "1:2:3:4:5:6:7:8", "::ffff:255.255.255.255"] {
            check(text.parse().unwrap(), 0, 0);
        }
        check([0xffffu16; 8].into(), u16::MAX, u32::MAX);
    }

    proptest! {
        #[test]
        fn addresses_match_display(
            v4: [u8; 4], v6: [u8; 16], port: u16, scope in 0..3_u32,
        ) {
            check(v4.into(), port, scope);
            check(v6.into(), port, scope);
        }

        #[test]
        fn numbers_match_display(number: u64, id: u128) {
            assert_eq!(text(|text| text.put_number(number)), number.to_string());
            assert_eq!(text(|text| text.put_thousandths(number)), format!("{:03}", number % 1_000));
            assert_eq!(text(|text| text.put_hex(id)), format!("{id:032x}"));
        }
    }
}
