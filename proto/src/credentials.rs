//! The user name and secret that a client presents, in any protocol.
//!
//! Guarantees: the name is printable text, both are bounded and not empty, the secret is wiped when dropped
//! and never printed.

mod basic;

use std::fmt;
use std::str;

use zeroize::Zeroizing;

pub use self::basic::basic_credentials;
use crate::limits::{SECRET_BYTES_MAX, USER_BYTES_MAX};

/// The claimed user of a client, with its proof.
#[derive(Debug)]
pub struct Credentials {
    /// The user's name: 1 to 255 bytes of text without control characters.
    pub user: String,
    /// The password or token: 1 to 255 bytes.
    pub secret: Secret,
}

impl Credentials {
    /// Checks and copies the two fields of a message.
    pub fn new(user: &[u8], secret: &[u8]) -> Result<Self, CredentialsError> {
        if user.is_empty() {
            return Err(CredentialsError::UserEmpty);
        }
        if user.len() > USER_BYTES_MAX {
            return Err(CredentialsError::UserTooLong);
        }
        let user = str::from_utf8(user).map_err(|_| CredentialsError::UserNotText)?;
        if user.chars().any(char::is_control) {
            return Err(CredentialsError::UserNotText);
        }
        if secret.is_empty() {
            return Err(CredentialsError::SecretEmpty);
        }
        if secret.len() > SECRET_BYTES_MAX {
            return Err(CredentialsError::SecretTooLong);
        }
        Ok(Self { user: user.to_owned(), secret: Secret(Zeroizing::new(secret.to_vec())) })
    }
}

/// A password or token. It lives on the heap, so that moving it leaves no copy behind, and is wiped when
/// dropped.
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// The bytes, for a comparison in constant time or a hash; never for a log.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(..)")
    }
}

/// Why credentials are malformed; always the client's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    /// An authentication scheme other than Basic.
    #[error("the proxy credentials are not in the Basic scheme")]
    SchemeUnknown,
    /// The text after the scheme is not base64 with padding (RFC 7617, RFC 4648 section 4).
    #[error("the proxy credentials are not valid base64")]
    NotBase64,
    /// More base64 than the longest user and password need.
    #[error(
        "the proxy credentials are too long: at most {USER_BYTES_MAX} bytes of user \
         and {SECRET_BYTES_MAX} of password"
    )]
    PairTooLong,
    /// There is no colon between user and password.
    #[error("the proxy credentials have no ':' between user and password")]
    ColonMissing,
    /// No user name.
    #[error("the user name is empty")]
    UserEmpty,
    /// More than 255 bytes of user name.
    #[error("the user name is longer than {USER_BYTES_MAX} bytes")]
    UserTooLong,
    /// The name is not UTF-8, or holds control characters.
    #[error("the user name is not printable UTF-8 text")]
    UserNotText,
    /// No password. RFC 1929 requires at least one byte, and no account has an empty one.
    #[error("the password is empty")]
    SecretEmpty,
    /// More than 255 bytes of password.
    #[error("the password is longer than {SECRET_BYTES_MAX} bytes")]
    SecretTooLong,
}

impl CredentialsError {
    /// The HTTP status: 407, the same as for wrong credentials.
    pub fn status(&self) -> u16 {
        407
    }
}
