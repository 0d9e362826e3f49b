//! The prose of a file: what a person reads in it, apart from code.

/// A piece of prose on one line, counted from 1.
#[derive(Debug, PartialEq)]
pub(super) struct Prose<'a> {
    pub(super) line: usize,
    pub(super) text: &'a str,
}

/// Every line of a document.
pub(super) fn of_text(text: &str) -> Vec<Prose<'_>> {
    (1..).zip(text.lines()).map(|(line, text)| Prose { line, text }).collect()
}

/// The comments and string literals of a Rust file that compiles.
pub(super) fn of_rust(text: &str) -> Vec<Prose<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let (is_prose, length) = piece(rest, text[..at].chars().next_back());
        if is_prose {
            let first = text[..at].matches('\n').count() + 1;
            let lines = (first..).zip(rest[..length].split('\n'));
            found.extend(lines.map(|(line, text)| Prose { line, text }));
        }
        at += length;
    }
    found
}

/// Whether the next piece is prose, and its length in bytes. `before` is the character in front of it.
fn piece(rest: &str, before: Option<char>) -> (bool, usize) {
    let first = rest.chars().next().expect("a piece begins before the end");
    if rest.starts_with("//") {
        return (true, rest.find('\n').unwrap_or(rest.len()));
    }
    let is_inside_word = before.is_some_and(|character| character.is_alphanumeric() || character == '_');
    if !is_inside_word && let Some(length) = raw_string(rest) {
        return (true, length);
    }
    match first {
        '"' => (true, 1 + quoted(&rest[1..], '"')),
        '\'' if is_character(rest) => (false, 1 + quoted(&rest[1..], '\'')),
        other => (false, other.len_utf8()),
    }
}

/// The length of the raw string that `rest` begins with.
fn raw_string(rest: &str) -> Option<usize> {
    let body = rest.strip_prefix("br").or_else(|| rest.strip_prefix('r'))?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let body = body[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", &"#".repeat(hashes));
    let length = body.find(&end)? + end.len();
    Some(rest.len() - body.len() + length)
}

/// The length up to and with the closing `quote`.
fn quoted(rest: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, character) in rest.char_indices() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            other if other == quote => return at + other.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// Whether a quote begins a character, and not a lifetime.
fn is_character(rest: &str) -> bool {
    let mut characters = rest.chars().skip(1);
    match characters.next() {
        Some('\\') => true,
        Some(_) => characters.next() == Some('\''),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_strings_are_prose() {
        let code = concat!(
            "//! One.\nfn f<'a>(x: &'a str) { // two \"x\"\n",
            "    g('\"', '\\'', \"th\\\"ree\nfour\", r#\"fi\"ve\"#, her\"no\"); }\n",
        );
        let found: Vec<(usize, &str)> = of_rust(code).iter().map(|it| (it.line, it.text)).collect();
        let expected = [
            (1, "//! One."),
            (2, "// two \"x\""),
            (3, "\"th\\\"ree"),
            (4, "four\""),
            (4, "r#\"fi\"ve\"#"),
            (4, "\"no\""),
        ];
        assert_eq!(found, expected);
    }
}
