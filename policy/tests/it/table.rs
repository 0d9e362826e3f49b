//! The harness of all table tests: files of `input => expected`. A failure shows every differing line in its
//! correct form.

use std::fmt::Write as _;
use std::path::Path;

/// Runs every case of a file in `testdata/`. `#` begins a comment line. Lines without ` => ` are context,
/// which is passed with the cases that follow; a line that begins with `==` clears the context.
pub(crate) fn check(file: &str, run: impl Fn(&str, &[String]) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut context = Vec::new();
    let mut cases = 0;
    let mut failures = String::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((input, expected)) = line.split_once(" => ") else {
            if line.starts_with("==") {
                context.clear();
            } else {
                context.push(line.to_owned());
            }
            continue;
        };
        cases += 1;
        let got = run(input.trim_end(), &context);
        if got != expected.trim() {
            writeln!(failures, "{file}:{number}\n- {line}\n+ {} => {got}", input.trim_end())
                .expect("a String");
        }
    }
    assert!(cases > 0, "{file} has no cases");
    assert!(failures.is_empty(), "\n{failures}");
}

/// Replaces `\0`, `\t`, `\n`, `\s` (a space), `\\` and `\u{..}` by their characters; `\e` is the empty text.
pub(crate) fn unescape(text: &str) -> String {
    let mut characters = text.chars();
    let mut unescaped = String::new();
    while let Some(character) = characters.next() {
        if character != '\\' {
            unescaped.push(character);
            continue;
        }
        match characters.next().expect("a character after the backslash") {
            '0' => unescaped.push('\0'),
            't' => unescaped.push('\t'),
            'n' => unescaped.push('\n'),
            'r' => unescaped.push('\r'),
            's' => unescaped.push(' '),
            '\\' => unescaped.push('\\'),
            'e' => {}
            'u' => {
                let digits: String = characters.by_ref().skip(1).take_while(|digit| *digit != '}').collect();
                let code = u32::from_str_radix(&digits, 16).expect("hexadecimal digits");
                unescaped.push(char::from_u32(code).expect("a character"));
            }
            other => panic!("\\{other} is no escape"),
        }
    }
    unescaped
}
