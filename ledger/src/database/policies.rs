//! The versions of the policy: a number for each, ascending.
//!
//! Guarantees: a number is on stable storage before any row has it, and stands for one policy.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension};

use super::checksum;
use super::details::{DetailKind, DetailTables};

/// A hash of the rules of all users.
pub(crate) type PolicyHash = [u8; 32];

/// The hash of a version that only entries tell.
const UNKNOWN: PolicyHash = [0; 32];

/// The last version of the policy: a number, and the hash of its rules.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct PolicyVersion {
    pub(crate) version: i64,
    pub(crate) hash: PolicyHash,
}

impl PolicyVersion {
    /// Reads the last version; number 0 if there is none.
    pub(crate) fn read(connection: &Connection) -> rusqlite::Result<PolicyVersion> {
        let mut select = connection.prepare("SELECT * FROM policy ORDER BY version DESC LIMIT 1")?;
        let last = select.query_row([], |row| {
            checksum::check(row, "policy")?;
            Ok(PolicyVersion { version: row.get("version")?, hash: row.get("hash")? })
        });
        Ok(last.optional()?.unwrap_or_default())
    }

    /// The version of the policy with this hash: this one, or the next one.
    pub(crate) fn number(self, hash: PolicyHash) -> PolicyVersion {
        if self.hash == hash && self.version > 0 {
            self
        } else {
            PolicyVersion { version: self.version + 1, hash }
        }
    }

    /// A later version, of which only the number is known.
    pub(crate) fn unknown(version: i64) -> PolicyVersion {
        PolicyVersion { version, hash: UNKNOWN }
    }

    /// Stores the last version in the details of `file`, if it is later than this one.
    pub(crate) fn learn(&mut self, connection: &Connection, file: &Connection) -> rusqlite::Result<()> {
        for table in DetailTables::read(file)?.of(DetailKind::Flow).filter(|table| !table.is_hourly) {
            let select = format!("SELECT ifnull(max(policy), 0) FROM {}", table.name);
            let last: i64 = file.query_row(&select, [], |row| row.get(0))?;
            if last > self.version {
                *self = PolicyVersion::unknown(last);
                self.put(connection, 0)?;
            }
        }
        Ok(())
    }

    /// Stores the version, which is in use since `since_ns`.
    pub(crate) fn put(self, connection: &Connection, since_ns: i64) -> rusqlite::Result<()> {
        let values =
            [ValueRef::Integer(self.version), ValueRef::Blob(&self.hash), ValueRef::Integer(since_ns)];
        checksum::put(connection, "INSERT INTO policy VALUES (?1, ?2, ?3, ?4)", &values)
    }
}
