//! Grants and notices of a ledger, with those in entries that are not applied.

use sys::clock::WallNanos;

use super::{QueryError, SqliteUsage};
use crate::database::schema::integer;
use crate::database::{checksum, quotas};
use crate::quota::{Grant, Notice};

impl SqliteUsage {
    /// The account of the user with this name, present or earlier; `None` if it has none.
    pub fn account(&self, user: &str) -> Option<u32> {
        self.registry.accounts.find(user).and_then(|account| u32::try_from(account).ok())
    }

    /// The grants that count at `since` or later: those that end behind it, in the order in which they were
    /// given.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn grants(&self, since: WallNanos) -> Result<Vec<Grant>, QueryError> {
        let mut grants: Vec<Grant> = Vec::new();
        if quotas::exist(&self.connection)? {
            let mut select = self.connection.prepare("SELECT * FROM quota_grant")?;
            let mut rows = select.query([])?;
            while let Some(row) = rows.next()? {
                if self.row_checks.admits(checksum::is_intact(row)?) {
                    grants.push(quotas::grant(row)?);
                }
            }
        }
        for ahead in self.unapplied.grants() {
            if grants.iter().all(|grant| grant.id != ahead.id) {
                grants.push(ahead.clone());
            }
        }
        grants.retain(|grant| grant.until > since);
        grants.sort_by_key(|grant| (grant.at, grant.id));
        Ok(grants)
    }

    /// The notices of periods that began at `since` or later, in the order in which they were reached.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn notices(&self, since: WallNanos) -> Result<Vec<Notice>, QueryError> {
        let mut notices: Vec<Notice> = Vec::new();
        if quotas::exist(&self.connection)? {
            let mut select = self.connection.prepare("SELECT * FROM quota_notice WHERE period_ns >= ?1")?;
            let mut rows = select.query([integer(since.0)])?;
            while let Some(row) = rows.next()? {
                if self.row_checks.admits(checksum::is_intact(row)?) {
                    notices.push(quotas::notice(row)?);
                }
            }
        }
        for ahead in self.unapplied.notices().filter(|notice| notice.period_start >= since) {
            if notices.iter().all(|notice| notice.key() != ahead.key()) {
                notices.push(ahead.clone());
            }
        }
        notices.sort_by_key(|notice| notice.at);
        Ok(notices)
    }
}
