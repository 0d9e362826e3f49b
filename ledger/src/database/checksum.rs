//! The checksum at the end of each row.
//!
//! SQLite's own checks cover the structure of a page, not a flipped bit in a number. Its checksumming VFS is
//! not part of the bundled build, and would not detect rows that a program wrote wrongly. So the last stored
//! column of each table, `crc`, is the CRC-32C of those before it.
//!
//! Guarantees: any change of up to three bits in a row's values is found where the row is checked.
//! Not handled here: missing rows, which the sums reveal (`verify`).

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ErrorCode, Row, Statement, ffi};

/// The capacity for a row's checksummed bytes; a longer row grows it once.
const ROW_BYTES: usize = 768;

/// Executes `sql` with `values` and their checksum as parameters.
pub(crate) fn put(connection: &Connection, sql: &str, values: &[ValueRef<'_>]) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(sql)?;
    run(&mut statement, values.iter().copied())
}

/// Executes `statement` with `values` and their checksum as parameters.
pub(crate) fn run<'a>(
    statement: &mut Statement<'_>,
    mut values: impl Iterator<Item = ValueRef<'a>>,
) -> rusqlite::Result<()> {
    let mut bytes = Vec::with_capacity(ROW_BYTES);
    let mut parameter = 1;
    // Faster than a loop, since most values come from several arrays.
    values.try_for_each(|value| {
        append(&mut bytes, value);
        parameter += 1;
        statement.raw_bind_parameter(parameter - 1, ToSqlOutput::Borrowed(value))
    })?;
    statement.raw_bind_parameter(parameter, crc32c::crc32c(&bytes))?;
    statement.raw_execute()?;
    Ok(())
}

/// Whether the row's `crc` is the checksum of the columns before it.
pub(crate) fn is_intact(row: &Row<'_>) -> rusqlite::Result<bool> {
    is_intact_before(row, row.as_ref().column_index("crc")?)
}

/// The same, where column `crc` has the number `columns`: for millions of rows.
pub(super) fn is_intact_before(row: &Row<'_>, columns: usize) -> rusqlite::Result<bool> {
    Checker::new(0, columns).is_intact(row)
}

/// Compares the checksums of many rows, with one buffer for all.
pub(crate) struct Checker {
    first: usize,
    crc: usize,
    bytes: Vec<u8>,
    integers: Vec<i64>,
}

impl Checker {
    /// A checker for rows whose columns begin at number `first`, and whose `crc` has the number `crc`.
    pub(crate) fn new(first: usize, crc: usize) -> Checker {
        Checker { first, crc, bytes: Vec::with_capacity(ROW_BYTES), integers: Vec::new() }
    }

    /// Whether the row's `crc` is the checksum of the columns before it.
    pub(crate) fn is_intact(&mut self, row: &Row<'_>) -> rusqlite::Result<bool> {
        // A damaged row may have no checksum at all.
        let ValueRef::Integer(expected) = row.get_ref(self.crc)? else { return Ok(false) };
        self.bytes.clear();
        self.integers.clear();
        for column in self.first..self.crc {
            let value = row.get_ref(column)?;
            append(&mut self.bytes, value);
            self.integers.push(if let ValueRef::Integer(integer) = value { integer } else { 0 });
        }
        Ok(i64::from(crc32c::crc32c(&self.bytes)) == expected)
    }

    /// The columns of the row that was checked last, 0 for those that are no integers: SQLite is slower.
    pub(crate) fn integers(&self) -> &[i64] {
        &self.integers
    }

    /// Refuses a damaged row, so that nothing is computed from it.
    pub(crate) fn check(&mut self, row: &Row<'_>, table: &str) -> rusqlite::Result<()> {
        refuse_unless(self.is_intact(row)?, table)
    }
}

/// Refuses a damaged row, so that nothing is computed from it.
pub(crate) fn check(row: &Row<'_>, table: &str) -> rusqlite::Result<()> {
    refuse_unless(is_intact(row)?, table)
}

fn refuse_unless(is_intact: bool, table: &str) -> rusqlite::Result<()> {
    if is_intact {
        return Ok(());
    }
    let text = format!("a row of `{table}` is damaged: its checksum does not match");
    Err(rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CORRUPT), Some(text)))
}

/// Whether an error says that a row or the file is damaged.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt)
}

/// Refuses a table with a damaged row.
pub(crate) fn check_all(connection: &Connection, table: &str) -> rusqlite::Result<()> {
    let mut select = connection.prepare(&format!("SELECT * FROM {table}"))?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        check(row, table)?;
    }
    Ok(())
}

/// Appends the kind and the length of each value too, so that no two rows have the same bytes.
fn append(row: &mut Vec<u8>, value: ValueRef<'_>) {
    let mut long = |kind: u8, bytes: &[u8]| {
        row.push(kind);
        row.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        row.extend_from_slice(bytes);
    };
    match value {
        ValueRef::Null => row.push(0),
        ValueRef::Integer(number) => {
            row.push(1);
            row.extend_from_slice(&number.to_le_bytes());
        }
        ValueRef::Real(number) => long(2, &number.to_bits().to_le_bytes()),
        ValueRef::Text(text) => long(3, text),
        ValueRef::Blob(blob) => long(4, blob),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum<'a>(values: impl IntoIterator<Item = ValueRef<'a>>) -> u32 {
        let mut bytes = Vec::new();
        values.into_iter().for_each(|value| append(&mut bytes, value));
        crc32c::crc32c(&bytes)
    }

    #[test]
    fn bit_flips_and_moved_borders_change_checksum() {
        let text = *b"example.com";
        let sum = |text: &[u8], number: i64| {
            checksum([ValueRef::Text(text), ValueRef::Integer(number), ValueRef::Null])
        };
        let whole = sum(&text, 77);
        for bit in 0..text.len() * 8 {
            let mut flipped = text;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(sum(&flipped, 77), whole);
        }
        for bit in 0..64 {
            assert_ne!(sum(&text, 77 ^ (1 << bit)), whole);
        }
        let pair = |a: &'static [u8], b| checksum([ValueRef::Text(a), ValueRef::Text(b)]);
        assert_ne!(pair(b"ab", b"c"), pair(b"a", b"bc"));
        assert_ne!(checksum([ValueRef::Text(b"a")]), checksum([ValueRef::Blob(b"a")]));
    }
}
