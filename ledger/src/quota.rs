//! Records of quotas: credit that an operator added, and thresholds that were reached.
//!
//! Guarantees: a record whose texts are beyond their bounds is refused before it is journaled.
//! Not handled here: what a quota is, and what it permits (the gateway).

use sys::clock::WallNanos;
use thiserror::Error;

/// Bytes of a quota's key.
pub const QUOTA_BYTES_MAX: usize = 100;

/// Bytes of a team's name in a record of a quota.
pub const TEAM_BYTES_MAX: usize = 64;

/// Bytes of a grant's author.
pub const AUTHOR_BYTES_MAX: usize = 64;

/// Bytes of a grant's reason.
pub const REASON_BYTES_MAX: usize = 200;

/// The user or the team that has a quota.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Owner {
    /// The user with this account, which is not 0.
    User(u32),
    /// The team with this name, which is not empty and has at most [`TEAM_BYTES_MAX`] bytes.
    Team(String),
}

/// Credit that an operator added to a quota.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Grant {
    /// Unique forever: a grant that is appended again is the same one.
    pub id: u128,
    /// When it was given.
    pub at: WallNanos,
    /// The user or the team that has the quota.
    pub owner: Owner,
    /// The quota's key, at most [`QUOTA_BYTES_MAX`] bytes.
    pub quota: String,
    /// The bytes that it adds; the database has at most 2^63 - 1.
    pub bytes: u64,
    /// It counts from this moment on...
    pub from: WallNanos,
    /// ...and before this one.
    pub until: WallNanos,
    /// Its author, at most [`AUTHOR_BYTES_MAX`] bytes without a control character.
    pub author: String,
    /// The reason for it, at most [`REASON_BYTES_MAX`] bytes without a control character.
    pub reason: String,
}

/// A threshold of a quota that was reached in a period. There is one for each owner, quota, period and
/// percentage: a later one is the same.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Notice {
    /// When it was reached.
    pub at: WallNanos,
    /// The user or the team that has the quota.
    pub owner: Owner,
    /// The quota's key, at most [`QUOTA_BYTES_MAX`] bytes.
    pub quota: String,
    /// When the period began.
    pub period_start: WallNanos,
    /// The threshold, in percent of the limit.
    pub percent: u8,
    /// The bytes that were used by then; the database has at most 2^63 - 1.
    pub used: u64,
    /// The limit in bytes, with the grants of that moment; the database has at most 2^63 - 1.
    pub limit: u64,
}

/// Why a grant or a notice was not appended, or may not have been.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum AppendError {
    /// A text is beyond its bound.
    #[error("the {field} has {found} bytes, and {bound} are permitted")]
    TooLong {
        /// The text.
        field: &'static str,
        /// Its bytes.
        found: usize,
        /// The bytes that are permitted.
        bound: usize,
    },
    /// A text that is shown on terminals has a control character.
    #[error("the {0} has a control character")]
    ControlCharacter(&'static str),
    /// The owner is account 0, or a team without a name.
    #[error("the owner has no account or no name")]
    NoOwner,
    /// Too many requests wait for the journal, which fails or is behind.
    #[error("too many requests wait for the journal")]
    Busy,
    /// The journal has not confirmed it in time. It may still be written: append the same one again.
    #[error("the journal has not confirmed it in time, and may still write it")]
    Unconfirmed,
}

impl Owner {
    fn check(&self) -> Result<(), AppendError> {
        match self {
            Owner::User(0) => Err(AppendError::NoOwner),
            Owner::Team(team) if team.is_empty() => Err(AppendError::NoOwner),
            Owner::Team(team) => check_length("team", team, TEAM_BYTES_MAX),
            Owner::User(_) => Ok(()),
        }
    }

    /// The account, 0 for a team's; and the team's name, empty for a user's.
    pub(crate) fn parts(&self) -> (u32, &str) {
        match self {
            Owner::User(account) => (*account, ""),
            Owner::Team(team) => (0, team),
        }
    }

    /// The owner with these parts.
    pub(crate) fn from_parts(account: u32, team: &str) -> Owner {
        if account > 0 { Owner::User(account) } else { Owner::Team(team.to_owned()) }
    }
}

impl Grant {
    /// Checks that it can be appended.
    pub(crate) fn check(&self) -> Result<(), AppendError> {
        self.owner.check()?;
        check_length("quota's key", &self.quota, QUOTA_BYTES_MAX)?;
        for (field, text, bound) in
            [("author", &self.author, AUTHOR_BYTES_MAX), ("reason", &self.reason, REASON_BYTES_MAX)]
        {
            check_length(field, text, bound)?;
            if text.contains(char::is_control) {
                return Err(AppendError::ControlCharacter(field));
            }
        }
        Ok(())
    }
}

impl Notice {
    /// Checks that it can be appended.
    pub(crate) fn check(&self) -> Result<(), AppendError> {
        self.owner.check()?;
        check_length("quota's key", &self.quota, QUOTA_BYTES_MAX)
    }

    /// What no other notice has.
    pub(crate) fn key(&self) -> (&Owner, &str, WallNanos, u8) {
        (&self.owner, &self.quota, self.period_start, self.percent)
    }
}

fn check_length(field: &'static str, text: &str, bound: usize) -> Result<(), AppendError> {
    let found = text.len();
    if found <= bound { Ok(()) } else { Err(AppendError::TooLong { field, found, bound }) }
}
