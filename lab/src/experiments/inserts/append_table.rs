//! The end of a table in memory: the last page, to which every row is appended, and the pages before it. Rows
//! have sequential ids and are in their order. The stores `latch`, `ticket` and `turnstile` differ in how
//! writers reach it.

use std::collections::VecDeque;

use super::row::{ROW_BYTES, Row};

const PAGE_BYTES: usize = 8_192;

/// A page's header: its number and that of the page before it.
const HEADER_BYTES: usize = 16;

const ROWS_PER_PAGE: usize = (PAGE_BYTES - HEADER_BYTES) / ROW_BYTES;

/// Pages in memory, 32 MiB; then the oldest becomes the new end, as a buffer pool reuses written pages.
const PAGES_MAX: usize = 4_096;

/// A table that grows at its end.
#[derive(Debug)]
pub(super) struct AppendTable {
    pages: VecDeque<Page>,
    rows: u64,
}

#[derive(Debug)]
struct Page {
    /// The page's number, and that of the page before it: the link by which a reader traverses the table.
    header: [u64; 2],
    /// 0 <= filled <= ROWS_PER_PAGE
    filled: usize,
    rows: Box<[[u8; ROW_BYTES]; ROWS_PER_PAGE]>,
}

impl AppendTable {
    pub(super) fn new() -> Self {
        Self { pages: VecDeque::from([Page::new()]), rows: 0 }
    }

    /// Gives the row its id, and appends it.
    pub(super) fn append(&mut self, row: &Row) {
        if self.last().filled == ROWS_PER_PAGE {
            self.link();
        }
        self.rows += 1;
        let id = self.rows;
        let page = self.last();
        row.encode(id, &mut page.rows[page.filled]);
        page.filled += 1;
    }

    fn last(&mut self) -> &mut Page {
        self.pages.back_mut().expect("a table has at least one page")
    }

    fn link(&mut self) {
        let [previous, _] = self.last().header;
        let oldest = if self.pages.len() < PAGES_MAX { None } else { self.pages.pop_front() };
        let page = oldest.unwrap_or_else(Page::new);
        self.pages.push_back(Page { header: [previous + 1, previous], filled: 0, ..page });
    }
}

impl Page {
    fn new() -> Self {
        Self { header: [0; 2], filled: 0, rows: Box::new([[0; ROW_BYTES]; ROWS_PER_PAGE]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(bytes: &[u8; ROW_BYTES]) -> u64 {
        u64::from_le_bytes(*bytes.first_chunk().expect("a row has 80 bytes"))
    }

    #[test]
    fn ids_are_sequential_across_reused_pages() {
        let mut table = AppendTable::new();
        let row = Row { at_ns: 1, writer: 2, guid: 3 };
        let count = ROWS_PER_PAGE * (PAGES_MAX + 2) + 5;
        for _ in 0..count {
            table.append(&row);
        }
        assert_eq!(table.pages.len(), PAGES_MAX);
        let last = table.last();
        assert_eq!(last.filled, 5);
        assert_eq!(id(&last.rows[4]), count as u64);
        let headers: Vec<[u64; 2]> = table.pages.iter().map(|page| page.header).collect();
        assert!(headers.windows(2).all(|pair| pair[0][0] == pair[1][1]), "each page names the one before it");
    }
}
