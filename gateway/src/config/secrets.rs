//! Masks secrets: configuration texts as an error message may show them.
//!
//! Guarantees: a star replaces each byte, so that every span still points to the same text. A password is
//! hidden even on a line that is not TOML.
//!
//! Not handled here: which parsed values are secret.

use std::ops::Range;

/// A key that contains one of these is assumed to hold a secret.
const SECRET_WORDS: [&str; 4] = ["pass", "token", "secret", "credential"];

/// The beginnings of a password's hash and of a token.
const SECRET_PREFIXES: [&str; 2] = ["$argon2", "tgt_"];

/// `text` with stars over `spans`; the quotes around a span stay, and so do line ends.
pub(super) fn masked(text: &str, spans: &[Range<usize>]) -> String {
    let mut hidden = vec![false; text.len()];
    for span in spans {
        hidden[within_quotes(text, span)].fill(true);
    }
    let mut shown = String::with_capacity(text.len());
    for (at, character) in text.char_indices() {
        if hidden[at] && character != '\n' {
            shown.extend(std::iter::repeat_n('*', character.len_utf8()));
        } else {
            shown.push(character);
        }
    }
    shown
}

/// The values of all keys that may be secret, and all hashes and tokens, found in the text alone. It works
/// where parsing failed, so it hides too much rather than too little.
pub(super) fn secret_assignments(text: &str) -> Vec<Range<usize>> {
    let lower = text.to_ascii_lowercase();
    let mut spans = Vec::new();
    for word in SECRET_WORDS {
        for (at, _) in lower.match_indices(word).filter(|(at, _)| is_key(text, *at)) {
            let value = value_after(text, at);
            // A comment, or the end of a table's header.
            if text[value.clone()]
                .trim_matches([' ', '\t', '\r', ']'])
                .chars()
                .next()
                .is_none_or(|c| c == '#')
            {
                spans.push(next_line(text, value.end));
            }
            spans.push(value);
        }
    }
    for prefix in SECRET_PREFIXES {
        spans.extend(text.match_indices(prefix).map(|(at, _)| at..end_of_word(text, at)));
    }
    spans
}

/// Whether the word at `at` is part of a key. It is not if it is in a string, or in a later part of a dotted
/// key that is a table's header, such as the name of a set.
fn is_key(text: &str, at: usize) -> bool {
    let line = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
    let before_key = text[line..at].trim_end_matches(in_key);
    let is_header = before_key.trim_start().starts_with('[');
    let is_later_part = text[line + before_key.len()..at].contains('.');
    !(is_header && is_later_part || is_in_string(&text[line..], at - line))
}

/// Whether `at` is in a string that ends on its line, other than a key in quotes.
fn is_in_string(text: &str, at: usize) -> bool {
    let line = &text[..text.find('\n').unwrap_or(text.len())];
    let mut from = 0;
    while let Some(open) = line[from..at].find(['"', '\'']).map(|open| from + open) {
        let quote = line[open..].chars().next().expect("a quote was found");
        let Some(close) = closing(&line[open + 1..], quote).map(|close| open + 1 + close) else {
            return false;
        };
        if at < close {
            return !line[close + 1..].trim_start().starts_with(['=', ':']);
        }
        from = close + 1;
    }
    false
}

fn in_key(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '"' | '\'')
}

/// Where the word at `at` ends: at a space, a quote or the line's end.
fn end_of_word(text: &str, at: usize) -> usize {
    text[at..].find(['"', '\'', ' ', '\t', '\r', '\n']).map_or(text.len(), |end| at + end)
}

/// The next line after `at` that is not blank: it may hold a value that the key's line lacks.
fn next_line(text: &str, at: usize) -> Range<usize> {
    let behind = text[at..].find('\n').map_or(text.len(), |newline| at + newline);
    let start = text.len() - text[behind..].trim_start().len();
    start..text[start..].find('\n').map_or(text.len(), |newline| start + newline)
}

/// The span of the value that belongs to the key around `at`, with its quotes.
fn value_after(text: &str, at: usize) -> Range<usize> {
    let after_key = text[at..].trim_start_matches(in_key).trim_start_matches([' ', '\t', '=', ':']);
    let start = text.len() - after_key.len();
    for quotes in ["\"\"\"", "'''"] {
        if let Some(inner) = after_key.strip_prefix(quotes) {
            return start..inner.find(quotes).map_or(text.len(), |end| start + end + 2 * quotes.len());
        }
    }
    let line = start..start + after_key.find('\n').unwrap_or(after_key.len());
    match after_key.chars().next() {
        Some(quote @ ('"' | '\'')) => {
            let inner = &text[line.start + 1..line.end];
            // A comment or another entry may follow. Anything else is part of the intended value.
            let is_whole =
                |end: &usize| inner[end + 1..].trim().chars().next().is_none_or(|next| "#,}]".contains(next));
            let end = closing(inner, quote).filter(is_whole);
            end.map_or(line.clone(), |end| line.start..line.start + end + 2)
        }
        _ => line,
    }
}

/// Where the string ends that `quote` opened before `inner`.
fn closing(inner: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, character) in inner.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' if quote == '"' => escaped = true,
            _ if character == quote => return Some(at),
            _ => {}
        }
    }
    None
}

fn within_quotes(text: &str, span: &Range<usize>) -> Range<usize> {
    let inside = |quotes: &str| {
        let slice = &text[span.clone()];
        let quoted = slice.len() >= 2 * quotes.len() && slice.starts_with(quotes) && slice.ends_with(quotes);
        quoted.then(|| span.start + quotes.len()..span.end - quotes.len())
    };
    ["\"\"\"", "'''", "\"", "'"].into_iter().find_map(inside).unwrap_or_else(|| span.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, shown: &str) {
        let starred = masked(text, &secret_assignments(text));
        assert_eq!(starred, shown);
        assert_eq!(starred.len(), text.len());
    }

    #[test]
    fn values_of_secret_keys_are_hidden() {
        check("password = \"hunter2\"\nname = \"ci\"", "password = \"*******\"\nname = \"ci\"");
        check("token='a b'  # x", "token='***'  # x");
        check(
            "{ name = \"ci\", password = \"p\", from = [] }",
            "{ name = \"ci\", password = \"*\", from = [] }",
        );
        check("\"my_password\" = \"a\\\"b\" # c", "\"my_password\" = \"****\" # c");
        check("user.PASSWORD = \"é\"", "user.PASSWORD = \"**\"");
    }

    #[test]
    fn broken_lines_are_hidden_to_their_end() {
        check("password = hunter2\nname = 1", "password = *******\nname = 1");
        check("password: hunter2", "password: *******");
        check("password hunter2", "password *******");
        check("password = \"hunter2\nname = 1", "password = ********\nname = 1");
        check("pass = \"\"\"a\nb\"\"\" c", "pass = \"\"\"*\n*\"\"\" c");
        check("pass = '''a\nb", "pass = ****\n*");
        check("password =", "password =");
        check("password", "password");
        check("password = \"a\" \"hunter2\"", "password = \"***********\"");
        check("password =\n\n\"hunter2\"\nname = 1", "password =\n\n\"*******\"\nname = 1");
        check("password = # see below\n\"hunter2\"", "password = ***********\n\"*******\"");
        check("name = \"bob\" password = \"hunter2\"", "name = \"bob\" password = \"*******\"");
        check("allow = [] password = \"hunter2\"", "allow = [] password = \"*******\"");
        check("[password]\nx = \"hunter2", "[password*\n************");
        check("x = \"a password = hunter2", "x = \"a password = *******");
    }

    #[test]
    fn hashes_and_tokens_are_hidden_everywhere() {
        check("x = \"$argon2id$v=19$m=8\" # y", "x = \"******************\" # y");
        check("key: tgt_abc, z", "key: ******** z");
    }

    #[test]
    fn other_text_stays() {
        check("realm = \"the password gate\"", "realm = \"the password gate\"");
        check("[destinations.token]\nto = []", "[destinations.token]\nto = []");
    }

    #[test]
    fn any_text_keeps_its_length_and_its_lines() {
        const PARTS: [&str; 8] = ["password", "\"", "'", "= ", "\n", "[", "é.", "# tgt_"];
        for number in 0..PARTS.len().pow(5) {
            let text: String =
                (0..5).map(|position| PARTS[number / PARTS.len().pow(position) % PARTS.len()]).collect();
            let shown = masked(&text, &secret_assignments(&text));
            assert_eq!((shown.len(), shown.lines().count()), (text.len(), text.lines().count()), "{text:?}");
        }
    }
}
