//! The blocks of a Markdown page: paragraphs, list items and tables, each with its section.

use std::ops::Range;

/// The line behind which the table of all verdicts stands.
const VERDICTS: &str = "<!-- verdicts -->";

/// A block, by its position in the page.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Block {
    /// The title of its section; empty in front of the first one.
    pub(super) section: String,
    pub(super) content: Content,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    /// A paragraph or a list item.
    Prose(Range<usize>),
    /// The lines of a table.
    Table(Vec<Range<usize>>),
    /// The table of verdicts; empty where none stands there yet.
    Verdicts(Range<usize>),
}

/// The blocks of a page in order, without headings and code.
pub(super) fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut section = String::new();
    // Whether the next line belongs to the last block.
    let mut is_open = false;
    let mut is_code = false;
    let mut at = 0;
    for line in page.split_inclusive('\n') {
        let (start, end) = (at, at + line.trim_end().len());
        at += line.len();
        let text = line.trim();
        if text.starts_with("```") {
            (is_code, is_open) = (!is_code, false);
        } else if is_code || text.is_empty() {
            is_open = false;
        } else if text.starts_with('#') {
            (section, is_open) = (text.trim_start_matches('#').trim().to_owned(), false);
        } else {
            let is_continued = is_open && !text.starts_with("- ");
            let last = blocks.last_mut().filter(|_| is_continued);
            if !last.is_some_and(|block| block.extend(start..end, text)) {
                blocks.push(Block { section: section.clone(), content: Content::new(start..end, text, at) });
            }
            is_open = true;
        }
    }
    blocks
}

impl Content {
    /// The block that begins with a line; the next line begins at `next`.
    fn new(line: Range<usize>, text: &str, next: usize) -> Self {
        match text {
            VERDICTS => Self::Verdicts(next..next),
            _ if text.starts_with('|') => Self::Table(vec![line]),
            _ => Self::Prose(line),
        }
    }
}

impl Block {
    /// Adds a line; `false` where the line begins another block.
    fn extend(&mut self, line: Range<usize>, text: &str) -> bool {
        let is_row = text.starts_with('|');
        match &mut self.content {
            Content::Prose(range) if !is_row => range.end = line.end,
            Content::Table(lines) if is_row => lines.push(line),
            Content::Verdicts(range) if is_row => range.end = line.end + 1,
            _ => return false,
        }
        true
    }
}

/// The cells of a table's line, by their positions in the page, without the spaces around them.
pub(super) fn cells(page: &str, line: Range<usize>) -> Vec<Range<usize>> {
    let text = &page[line.clone()];
    let mut cells = Vec::new();
    let mut at = line.start;
    for cell in text.split_inclusive('|') {
        let inside = cell.trim_end_matches('|');
        let start = at + inside.len() - inside.trim_start().len();
        cells.push(start..start + inside.trim().len());
        at += cell.len();
    }
    // A line begins and ends with a bar.
    cells.drain(..1.min(cells.len()));
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# Title

One
two.

## Method

- item
  more
- next

```sh
| no table
```
| a | b |
|---|---|
| 1 |  |
<!-- verdicts -->
| x |

Last
";

    #[test]
    fn page_is_paragraphs_items_and_tables() {
        let text = |range: &Range<usize>| PAGE[range.clone()].to_owned();
        let found: Vec<(String, Vec<String>)> = blocks(PAGE)
            .iter()
            .map(|block| {
                let texts = match &block.content {
                    Content::Prose(range) | Content::Verdicts(range) => vec![text(range)],
                    Content::Table(lines) => lines.iter().map(text).collect(),
                };
                (block.section.clone(), texts)
            })
            .collect();
        let expected: [(&str, &[&str]); 6] = [
            ("Title", &["One\ntwo."]),
            ("Method", &["- item\n  more"]),
            ("Method", &["- next"]),
            ("Method", &["| a | b |", "|---|---|", "| 1 |  |"]),
            ("Method", &["| x |\n"]),
            ("Method", &["Last"]),
        ];
        let expected = expected
            .map(|(section, texts)| (section.to_owned(), texts.iter().map(ToString::to_string).collect()));
        assert_eq!(found, expected);
    }

    #[test]
    fn cells_are_trimmed() {
        let line = "| a | b c |  |";
        let found: Vec<&str> = cells(line, 0..line.len()).into_iter().map(|cell| &line[cell]).collect();
        assert_eq!(found, ["a", "b c", ""]);
    }
}
