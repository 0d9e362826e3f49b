//! Stars over secrets: configuration texts as an error message may show them.
//!
//! Promises: a star takes the place of each byte, so that every span still points to the same text; a
//! password is hidden on a line that is no TOML at all. Leaves to others: which parsed values are secret.

use std::ops::Range;

/// A key that contains one of these is taken to hold a secret.
const SECRET_WORDS: [&str; 4] = ["pass", "token", "secret", "credential"];

/// `text` with stars over `spans`; the quotes around a span stay, and so do line ends.
pub(super) fn starred(text: &str, spans: &[Range<usize>]) -> String {
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

/// The values of all keys that sound secret, found in the text alone: it works where parsing failed.
pub(super) fn secret_assignments(text: &str) -> Vec<Range<usize>> {
    let lower = text.to_ascii_lowercase();
    let mut spans = Vec::new();
    for word in SECRET_WORDS {
        for (at, _) in lower.match_indices(word) {
            if begins_key(&text[..at]) {
                spans.push(value_after(text, at));
            }
        }
    }
    spans
}

/// Whether a word after `before` is part of a key: only key characters and an opening quote lie between it
/// and the start of a line, a comment, or an entry of an inline table.
fn begins_key(before: &str) -> bool {
    let key = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '"' | '\'');
    let before = before.trim_end_matches(key).trim_end_matches([' ', '\t']);
    before.is_empty() || before.ends_with(['\n', '{', ',', '#'])
}

/// The span of the value that belongs to the key around `at`, with its quotes.
fn value_after(text: &str, at: usize) -> Range<usize> {
    let key = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '"' | '\'');
    let rest = text[at..].trim_start_matches(key).trim_start_matches([' ', '\t', '=', ':']);
    let start = text.len() - rest.len();
    for quotes in ["\"\"\"", "'''"] {
        if let Some(inner) = rest.strip_prefix(quotes) {
            return start..inner.find(quotes).map_or(text.len(), |end| start + end + 2 * quotes.len());
        }
    }
    let line = start..start + rest.find('\n').unwrap_or(rest.len());
    match rest.chars().next() {
        Some(quote @ ('"' | '\'')) => {
            let inner = &text[line.start + 1..line.end];
            closing(inner, quote).map_or(line.clone(), |end| line.start..line.start + end + 2)
        }
        _ => line,
    }
}

/// Where the string that was opened by `quote` before `inner` ends.
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
        let starred = starred(text, &secret_assignments(text));
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
    }

    #[test]
    fn other_text_stays() {
        check("realm = \"the password gate\"", "realm = \"the password gate\"");
        check("[destinations.token]\nto = []", "[destinations.token]\nto = []");
    }
}
