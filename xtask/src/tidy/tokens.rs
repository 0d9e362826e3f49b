//! Rust code as a flat list of tokens, without comments and layout. A string is one token, so its contents
//! match no pattern; code inside macro calls has tokens like any other. A doc comment is an attribute whose
//! text is one literal.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// One token: an identifier, a literal, or a single character of punctuation or bracket.
#[derive(Clone)]
pub(super) struct Token {
    pub(super) text: String,
    /// Counted from 1.
    pub(super) line: usize,
}

/// The tokens of `code`, or `None` if its quotes or brackets do not match.
pub(super) fn lex(code: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    flatten(code.parse().ok()?, &mut tokens);
    Some(tokens)
}

/// Whether `tokens` begin with `pattern`.
pub(super) fn starts_with(tokens: &[Token], pattern: &[Token]) -> bool {
    tokens.len() >= pattern.len() && tokens.iter().zip(pattern).all(|(a, b)| a.text == b.text)
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    for tree in stream {
        let line = tree.span().start().line;
        let group = match tree {
            TokenTree::Group(group) => group,
            leaf => {
                tokens.push(Token { text: leaf.to_string(), line });
                continue;
            }
        };
        let (open, close) = match group.delimiter() {
            Delimiter::Parenthesis => ("(", ")"),
            Delimiter::Brace => ("{", "}"),
            Delimiter::Bracket => ("[", "]"),
            Delimiter::None => ("", ""),
        };
        tokens.push(Token { text: open.to_owned(), line });
        flatten(group.stream(), tokens);
        tokens.push(Token { text: close.to_owned(), line: group.span_close().start().line });
    }
}
