//! The bytes of grants and notices, which a program that does not know them skips.
//!
//! Guarantees: what is read is what may be appended.
//!
//! | offset | bytes | grant, kind 128                        | notice, kind 129                 |
//! |-------:|------:|----------------------------------------|----------------------------------|
//! |      4 |     8 | given at                               | reached at                       |
//! |     12 |     8 | id (16 bytes)                          | the period's beginning           |
//! |     20 |     8 |                                        | used                             |
//! |     28 |     8 | bytes                                  | limit                            |
//! |     36 |     4 | from (8 bytes)                         | account                          |
//! |     40 |     4 |                                        | percent, bytes of team, quota, 0 |
//! |     44 |     8 | until                                  | team, quota                      |
//! |     52 |     4 | account                                |                                  |
//! |     56 |     4 | bytes of team, quota, author, reason   |                                  |
//! |     60 |     . | team, quota, author, reason            |                                  |

use sys::clock::WallNanos;

use super::fields::{Fixed, HEAD_BYTES, IMPOSSIBLE_LENGTH, head};
use super::{ENTRY_BYTES_MAX, SkippedEntry};
use crate::quota::{
    AUTHOR_BYTES_MAX, AppendError, Grant, Notice, Owner, QUOTA_BYTES_MAX, REASON_BYTES_MAX, TEAM_BYTES_MAX,
};
use crate::record::MalformedRecord;

pub(super) const GRANT: u8 = 128;
pub(super) const NOTICE: u8 = 129;

/// Bytes of a grant before its texts.
const GRANT_BYTES: usize = 60;
/// Bytes of a notice before its texts.
const NOTICE_BYTES: usize = 44;

const _: () = assert!(
    GRANT_BYTES + TEAM_BYTES_MAX + QUOTA_BYTES_MAX + AUTHOR_BYTES_MAX + REASON_BYTES_MAX <= ENTRY_BYTES_MAX
);
const _: () = assert!(REASON_BYTES_MAX <= u8::MAX as usize, "an entry has lengths in one byte each");

/// A grant as an entry has it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GrantEntry(SkippedEntry);

impl GrantEntry {
    /// The entry of `grant`.
    ///
    /// # Errors
    /// It cannot be appended.
    pub(crate) fn new(grant: &Grant) -> Result<GrantEntry, AppendError> {
        grant.check()?;
        let Grant { id, at, owner, quota, bytes, from, until, author, reason } = grant;
        let (account, team) = owner.parts();
        let texts = [team, quota, author, reason];
        let mut out = Vec::new();
        head(&mut out, GRANT_BYTES + texts.map(str::len).iter().sum::<usize>(), GRANT, 0, *at);
        out.extend_from_slice(&id.to_le_bytes());
        [*bytes, from.0, until.0].iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        out.extend_from_slice(&account.to_le_bytes());
        out.extend(texts.map(|text| text.len() as u8));
        texts.iter().for_each(|text| out.extend_from_slice(text.as_bytes()));
        Ok(GrantEntry(SkippedEntry::new(&out).expect("an entry with all bounds fits")))
    }

    /// The grant.
    pub fn grant(&self) -> Grant {
        read_grant(self.bytes()).expect("an entry is checked when it is made").0
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The entry in `bytes`, and the length of its known part.
    pub(super) fn read(bytes: &[u8]) -> Result<(GrantEntry, usize), MalformedRecord> {
        let (grant, length) = read_grant(bytes)?;
        Ok((GrantEntry::new(&grant).map_err(|_| NOT_APPENDED)?, length))
    }
}

/// A notice as an entry has it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NoticeEntry(SkippedEntry);

impl NoticeEntry {
    /// The entry of `notice`.
    ///
    /// # Errors
    /// It cannot be appended.
    pub(crate) fn new(notice: &Notice) -> Result<NoticeEntry, AppendError> {
        notice.check()?;
        let Notice { at, owner, quota, period_start, percent, used, limit } = notice;
        let (account, team) = owner.parts();
        let mut out = Vec::new();
        head(&mut out, NOTICE_BYTES + team.len() + quota.len(), NOTICE, 0, *at);
        [period_start.0, *used, *limit]
            .iter()
            .for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        out.extend_from_slice(&account.to_le_bytes());
        out.extend_from_slice(&[*percent, team.len() as u8, quota.len() as u8, 0]);
        [team, quota].iter().for_each(|text| out.extend_from_slice(text.as_bytes()));
        Ok(NoticeEntry(SkippedEntry::new(&out).expect("an entry with all bounds fits")))
    }

    /// The notice.
    pub fn notice(&self) -> Notice {
        read_notice(self.bytes()).expect("an entry is checked when it is made").0
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// The entry in `bytes`, and the length of its known part.
    pub(super) fn read(bytes: &[u8]) -> Result<(NoticeEntry, usize), MalformedRecord> {
        let (notice, length) = read_notice(bytes)?;
        Ok((NoticeEntry::new(&notice).map_err(|_| NOT_APPENDED)?, length))
    }
}

const NOT_APPENDED: MalformedRecord = MalformedRecord("a record of a quota that no program appends");

fn read_grant(entry: &[u8]) -> Result<(Grant, usize), MalformedRecord> {
    let fields = checked_fields(entry)?;
    let moment = |at| fields.u64(at).map(WallNanos);
    let ([team, quota, author, reason], length) = texts(entry, GRANT_BYTES, fields.array(56)?)?;
    let grant = Grant {
        id: u128::from_le_bytes(fields.array(12)?),
        at: moment(HEAD_BYTES)?,
        owner: owner(fields.u32(52)?, team)?,
        quota: quota.to_owned(),
        bytes: fields.u64(28)?,
        from: moment(36)?,
        until: moment(44)?,
        author: author.to_owned(),
        reason: reason.to_owned(),
    };
    Ok((grant, length))
}

fn read_notice(entry: &[u8]) -> Result<(Notice, usize), MalformedRecord> {
    let fields = checked_fields(entry)?;
    let moment = |at| fields.u64(at).map(WallNanos);
    let [percent, team_bytes, quota_bytes, 0] = fields.array(40)? else { return Err(NOT_APPENDED) };
    let ([team, quota], length) = texts(entry, NOTICE_BYTES, [team_bytes, quota_bytes])?;
    let notice = Notice {
        at: moment(HEAD_BYTES)?,
        owner: owner(fields.u32(36)?, team)?,
        quota: quota.to_owned(),
        period_start: moment(12)?,
        percent,
        used: fields.u64(20)?,
        limit: fields.u64(28)?,
    };
    Ok((notice, length))
}

/// The fields of an entry, whose close reason is none.
fn checked_fields(entry: &[u8]) -> Result<Fixed<'_>, MalformedRecord> {
    let fields = Fixed(entry);
    match fields.array(HEAD_BYTES - 1)? {
        [0] => Ok(fields),
        [_] => Err(NOT_APPENDED),
    }
}

fn owner(account: u32, team: &str) -> Result<Owner, MalformedRecord> {
    let is_one = (account == 0) != team.is_empty();
    is_one.then(|| Owner::from_parts(account, team)).ok_or(NOT_APPENDED)
}

/// The texts from `at` on, which have these `lengths`, and where they end.
fn texts<const N: usize>(
    entry: &[u8],
    at: usize,
    lengths: [u8; N],
) -> Result<([&str; N], usize), MalformedRecord> {
    let (mut texts, mut end) = ([""; N], at);
    for (text, length) in texts.iter_mut().zip(lengths) {
        let bytes = entry.get(end..end + usize::from(length)).ok_or(IMPOSSIBLE_LENGTH)?;
        *text = str::from_utf8(bytes).map_err(|_| MalformedRecord("a text that is not UTF-8"))?;
        end += usize::from(length);
    }
    Ok((texts, end))
}
