//! The text that every response quotes: a file of the user's, or one that the lab generates, which is the
//! same on every machine and has a `v` about as often as English has it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// The most bytes that a response quotes, as in the published program.
pub(super) const TEXT_BYTES_MAX: usize = 16_384;

/// The words of sentences; three of them have a `v`.
const WORDS: [&str; 32] = [
    "the", "server", "of", "requests", "and", "threads", "to", "wait", "in", "a", "queue", "that", "is",
    "never", "empty", "while", "for", "each", "answer", "it", "has", "to", "copy", "some", "text", "over",
    "again", "as", "on", "most", "days", "with",
];

/// Words of a line.
const WORDS_PER_LINE: usize = 14;

/// The text of `file`, or the lab's own, up to the last whole character within the bound.
///
/// # Errors
/// The file cannot be read, is empty, or is no text.
pub(super) fn read(file: Option<&Path>) -> Result<String> {
    let Some(file) = file else { return Ok(made()) };
    let mut text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    ensure!(!text.is_empty(), "{} is empty", file.display());
    text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
    Ok(text)
}

/// Words in an order with a period long enough: the high bits of a linear congruential generator with the
/// constants of Knuth's MMIX.
fn made() -> String {
    let mut text = String::with_capacity(TEXT_BYTES_MAX);
    let mut state: u64 = 1;
    for count in 1.. {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = WORDS[(state >> 59) as usize];
        if text.len() + word.len() >= TEXT_BYTES_MAX {
            break;
        }
        text.push_str(word);
        text.push(if count % WORDS_PER_LINE == 0 { '\n' } else { ' ' });
    }
    let rest = TEXT_BYTES_MAX - text.len();
    text.extend(std::iter::repeat_n('v', rest));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_text_fills_a_response() {
        let text = read(None).expect("no file is read");
        assert_eq!(text.len(), TEXT_BYTES_MAX);
        assert!(text.is_ascii());
        let share = text.matches('v').count() as f64 / text.len() as f64;
        assert!((0.005..0.03).contains(&share), "{share} of its letters are a v");
    }

    #[test]
    fn text_file_is_cut_at_a_character() {
        let directory = tempfile::tempdir().expect("a temporary directory can be created");
        let file = directory.path().join("text");
        let check = |text: &str, expected: Option<usize>| {
            fs::write(&file, text).expect("the directory is ours");
            assert_eq!(read(Some(&file)).ok().map(|text| text.len()), expected);
        };
        check("", None);
        check("vivid", Some(5));
        check(&"v".repeat(TEXT_BYTES_MAX + 1), Some(TEXT_BYTES_MAX));
        check(&format!("v{}", "\u{e9}".repeat(TEXT_BYTES_MAX)), Some(TEXT_BYTES_MAX - 1));
        assert!(read(Some(&directory.path().join("none"))).is_err());
    }
}
