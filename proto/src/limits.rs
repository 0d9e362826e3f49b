//! The size limits of a peer's input; each parser refuses longer input.

/// Bytes of an HTTP head, its closing empty line included: Node.js has the same limit for requests and
/// responses. Browsers and git send well under 1 KiB to open a tunnel. A request with cookies, or a response
/// with policies, may have several KiB.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Header lines in one head.
pub const HEADERS_MAX: usize = 128;

/// Items in all `Connection` headers of one head, empty ones included: the name of each header line is
/// compared with all of them. Clients and servers send five at most.
pub const CONNECTION_OPTIONS_MAX: usize = 32;

/// Digits of a chunk's size: below 2^60, which overflows no integer of 64 bits.
pub const CHUNK_SIZE_DIGITS_MAX: u8 = 15;

/// Bytes of chunk extensions in one body. Hardly any sender uses them, and each costs work without content.
pub const CHUNK_EXTENSION_BYTES_MAX: usize = 4 * 1024;

/// Bytes of the trailers behind one body.
pub const TRAILER_BYTES_MAX: usize = 4 * 1024;

/// Bytes of a host name without a trailing dot (RFC 1035, section 3.1: 255 on the wire).
pub const NAME_BYTES_MAX: usize = 253;

/// Bytes of one label of a host name (RFC 1035, section 2.3.4).
pub const LABEL_BYTES_MAX: usize = 63;

/// Bytes of a user name: the maximum of RFC 1929's length byte. HTTP has the same limit, so that all
/// credentials work over both protocols.
pub const USER_BYTES_MAX: usize = 255;

/// Bytes of a password or token; see [`USER_BYTES_MAX`].
pub const SECRET_BYTES_MAX: usize = 255;

/// Bytes of the longest message in a SOCKS5 handshake: the user and password of RFC 1929.
pub const SOCKS5_MESSAGE_BYTES_MAX: usize = 3 + USER_BYTES_MAX + SECRET_BYTES_MAX;

const LENGTH_BYTE_MAX: usize = u8::MAX as usize;
const SOCKS5_GREETING_BYTES_MAX: usize = 2 + LENGTH_BYTE_MAX;
const SOCKS5_REQUEST_BYTES_MAX: usize = 4 + 1 + LENGTH_BYTE_MAX + 2;

const _: () = assert!(NAME_BYTES_MAX <= LENGTH_BYTE_MAX);
const _: () = assert!(USER_BYTES_MAX <= LENGTH_BYTE_MAX && SECRET_BYTES_MAX <= LENGTH_BYTE_MAX);
const _: () = assert!(SOCKS5_MESSAGE_BYTES_MAX >= SOCKS5_GREETING_BYTES_MAX);
const _: () = assert!(SOCKS5_MESSAGE_BYTES_MAX >= SOCKS5_REQUEST_BYTES_MAX);
// One buffer of `HEAD_BYTES_MAX` fits the handshake of each protocol.
const _: () = assert!(HEAD_BYTES_MAX >= SOCKS5_MESSAGE_BYTES_MAX);
