//! The Basic scheme of `Proxy-Authorization` (RFC 7617).
//!
//! Guarantees: the decoded secret is wiped from every buffer of this module.
//!
//! Not handled here: wiping the buffer that the head was read into.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use crate::credentials::{Credentials, CredentialsError};
use crate::limits::{SECRET_BYTES_MAX, USER_BYTES_MAX};

/// Bytes of the longest `user:secret`, rounded up to a multiple of 3: four base64 digits encode three bytes.
const PAIR_BYTES_MAX: usize = (USER_BYTES_MAX + 1 + SECRET_BYTES_MAX).next_multiple_of(3);

/// Decodes the value of a `Proxy-Authorization` header: `Basic`, in any case, and base64 with its padding.
pub fn basic_credentials(value: &[u8]) -> Result<Credentials, CredentialsError> {
    let space = value.iter().position(|&byte| byte == b' ').ok_or(CredentialsError::SchemeUnknown)?;
    let (scheme, encoded) = (&value[..space], value[space..].trim_ascii_start());
    if !scheme.eq_ignore_ascii_case(b"Basic") {
        return Err(CredentialsError::SchemeUnknown);
    }
    if encoded.len() > PAIR_BYTES_MAX / 3 * 4 {
        return Err(CredentialsError::PairTooLong);
    }
    let mut buffer = Zeroizing::new([0; PAIR_BYTES_MAX]);
    let length = STANDARD.decode_slice(encoded, &mut buffer[..]).map_err(|_| CredentialsError::NotBase64)?;
    let pair = &buffer[..length];
    // The first colon: a user name contains none, a password may.
    let colon = pair.iter().position(|&byte| byte == b':').ok_or(CredentialsError::ColonMissing)?;
    Credentials::new(&pair[..colon], &pair[colon + 1..])
}
