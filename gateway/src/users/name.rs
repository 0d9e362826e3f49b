//! User names: `[a-z0-9][a-z0-9._-]{0,63}`, which is safe in a path, a log line and a header.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

/// Longest user name in bytes. Ledger records and live slots reserve this much.
pub const USER_NAME_BYTES_MAX: usize = 64;

/// A user's name: `[a-z0-9][a-z0-9._-]{0,63}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserName(Box<str>);

impl FromStr for UserName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<UserName, NameError> {
        let first = text.bytes().next().ok_or(NameError::Empty)?;
        if text.len() > USER_NAME_BYTES_MAX {
            return Err(NameError::TooLong);
        }
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        match text.chars().find(|&c| !(c.is_ascii() && (plain(c as u8) || "._-".contains(c)))) {
            Some(character) => Err(NameError::Character(character)),
            None if !plain(first) => Err(NameError::First(char::from(first))),
            None => Ok(UserName(text.into())),
        }
    }
}

impl Deref for UserName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// Why a text is not a user name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Nothing at all.
    #[error("a user name cannot be empty")]
    Empty,
    /// More than [`USER_NAME_BYTES_MAX`] bytes.
    #[error("a user name has at most {USER_NAME_BYTES_MAX} characters")]
    TooLong,
    /// A character that a name cannot have.
    #[error("a user name consists of a-z, 0-9, '.', '_' and '-'; {0:?} is none of them")]
    Character(char),
    /// A dot, hyphen or underscore at the beginning.
    #[error("a user name begins with a letter or a digit, not with {0:?}")]
    First(char),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_strict() {
        let long = "a".repeat(USER_NAME_BYTES_MAX + 1);
        for good in ["a", "0", "ci", "a.b_c-d", "9-lives", &long[1..]] {
            assert_eq!(good.parse::<UserName>().unwrap().to_string(), good);
        }
        for (bad, error) in [
            ("", NameError::Empty),
            (&long, NameError::TooLong),
            ("Ci", NameError::Character('C')),
            ("a b", NameError::Character(' ')),
            ("a/b", NameError::Character('/')),
            ("a\0b", NameError::Character('\0')),
            ("a:b", NameError::Character(':')),
            ("é", NameError::Character('é')),
            ("..", NameError::First('.')),
            (".a", NameError::First('.')),
            ("-a", NameError::First('-')),
        ] {
            assert_eq!(bad.parse::<UserName>().unwrap_err(), error, "{bad:?}");
        }
    }
}
