//! The planted violations, and beside each the near misses that are allowed.
//!
//! Rust code in a literal is harmless: the rules on code see one token. The rules on text do match inside a
//! literal, so their words are written in two parts.

use super::Case;

pub(super) fn cases() -> Vec<Case> {
    [
        shape(),
        text(),
        language(),
        names(),
        arrows(),
        calls(),
        unsafe_code(),
        lint_reasons(),
        manifests(),
        named_tests(),
        documents(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn case(rule: &'static str, files: &[(&'static str, &str)], expected: &[&'static str]) -> Case {
    let files = files.iter().map(|(path, text)| (*path, (*text).to_owned())).collect();
    Case { rule, files, expected: expected.to_vec() }
}

/// One file of the engine.
fn code(rule: &'static str, text: &str, expected: &[&'static str]) -> Case {
    case(rule, &[("engine/src/a.rs", text)], expected)
}

fn shape() -> Vec<Case> {
    let function = |lines: usize| format!("//! A.\nfn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2));
    let test_function = function(100).replace("fn", "#[test]\nfn");
    let file = |lines: usize| {
        let tests = "#[cfg(test)]\nmod tests {\n\n\n\n}\n";
        format!("//! A.\n{}{tests}", "const N: u8 = 0;\n".repeat(lines - 1))
    };
    let line = |characters: usize| format!("//! {}\n", "é".repeat(characters - 4));
    let row = format!("//! | {} |\n", "x".repeat(120));
    vec![
        code("parses", "//! A.\nfn broken( {\n", &["engine/src/a.rs:"]),
        code("header", "//! What it is.\n", &[]),
        code("header", "use std::io;\n", &["engine/src/a.rs:1: open with `//!`"]),
        code("header", "\n//! Late.\n", &["engine/src/a.rs:1: open"]),
        code("header", "//!\n//! Late.\n", &["engine/src/a.rs:1: open"]),
        code("function_length", &function(70), &[]),
        code("function_length", &function(71), &["engine/src/a.rs:2: `long` has 71 lines, at most 70"]),
        code("function_length", &test_function, &[]),
        case("function_length", &[("engine/tests/a.rs", &function(71))], &[]),
        code("file_length", &file(600), &[]),
        code("file_length", &file(601), &["engine/src/a.rs:1: 601 lines outside tests, at most 600"]),
        code("line_length", &line(110), &[]),
        code("line_length", &line(111), &["engine/src/a.rs:1: 111 characters, at most 110"]),
        code("line_length", &row, &[]),
        case("line_length", &[("README.md", &line(200)), ("Cargo.toml", &line(200))], &[]),
    ]
}

/// A glossary with one retired word and one retired name.
const GLOSSARY: &str = concat!(
    "# Glossary\n\n## Words\n\nRefused: `nob",
    "ody`.\n\n## Terms\n\n| term | meaning | retired |\n|---|---|---|\n",
    "| listener | a listening address | `Doorway` |\n"
);

fn language() -> Vec<Case> {
    let with = |path: &'static str, text: &str| {
        vec![("docs/glossary.md", GLOSSARY.to_owned()), (path, text.to_owned())]
    };
    let words = |path, text: &str, finds: &[&'static str]| Case {
        rule: "retired_words",
        files: with(path, text),
        expected: finds.to_vec(),
    };
    let word = concat!("Nob", "ody");
    let comment = format!("//! A.\n// {word} waits.\nfn {word}s() {{}}\n");
    let literal = format!("//! A.\nconst A: &str = \"see {word}\";\n");
    let function = format!("//! A.\nfn asks_{}() {{}}\n", word.to_ascii_lowercase());
    let names = |text: &str, finds: &[&'static str]| Case {
        rule: "retired_names",
        files: with("engine/src/a.rs", text),
        expected: finds.to_vec(),
    };
    vec![
        words("engine/src/a.rs", &comment, &["engine/src/a.rs:2: `Nob"]),
        words("engine/src/a.rs", &literal, &["engine/src/a.rs:2: `Nob"]),
        words("engine/src/a.rs", &function, &["engine/src/a.rs:2: `nob"]),
        words("README.md", &format!("One.\n{word} is here.\n"), &["README.md:2: `Nob"]),
        words("policy/testdata/a.toml", &format!("# {word}\n"), &[]),
        names(
            "//! A.\nstruct Doorway;\n",
            &["engine/src/a.rs:2: `Doorway` is retired: the term is `listener`"],
        ),
        names("//! A.\n// Doorway\nstruct Doorways;\n", &[]),
    ]
}

fn arrows() -> Vec<Case> {
    let drawing = concat!(
        "//! A.\n//! Modules, each above those that it may use:\n",
        "//! ```text\n//!   high\n//!   low\n//! ```\n"
    );
    let root = format!("{drawing}mod high;\nmod low;\n");
    let upward = "//! A.\nuse crate::high::X;\n";
    let in_tests = "//! A.\n#[cfg(test)]\nmod tests {\n    use crate::high::X;\n}\n";
    let downward = "//! A.\nuse super::low::Y;\n";
    let bare = "//! A.\nmod high;\n";
    let unnamed = format!("{drawing}mod high;\nmod low;\nmod third;\n");
    vec![
        case("module_arrows", &[("sys/src/lib.rs", &root), ("sys/src/high.rs", downward)], &[]),
        case(
            "module_arrows",
            &[("sys/src/lib.rs", &root), ("sys/src/high.rs", "//! A.\n"), ("sys/src/low.rs", upward)],
            &["sys/src/low.rs:2: `low` must not use `high`"],
        ),
        case("module_arrows", &[("sys/src/lib.rs", &root), ("sys/src/low.rs", in_tests)], &[]),
        case("module_arrows", &[("sys/src/lib.rs", bare)], &["sys/src/lib.rs:1: draw the modules"]),
        case(
            "module_arrows",
            &[("sys/src/lib.rs", &unnamed), ("sys/src/third.rs", "//! A.\n")],
            &["sys/src/lib.rs:1: `third` is not in the drawing"],
        ),
        case(
            "module_circles",
            &[("sys/src/high.rs", downward), ("sys/src/low.rs", upward)],
            &["sys/src/high.rs:2: `high` and `low` use each other", "sys/src/low.rs:2: `low` and `high`"],
        ),
        case("module_circles", &[("sys/src/high.rs", downward), ("sys/src/low.rs", in_tests)], &[]),
        case(
            "module_circles",
            &[
                ("sys/src/high.rs", "//! A.\nuse self::part::X;\n"),
                ("sys/src/high/part.rs", "//! A.\nuse super::Y;\n"),
            ],
            &[],
        ),
    ]
}

fn text() -> Vec<Case> {
    let postponed =
        concat!("One.\nTO", "DO: two, fix", "me\nFIX", "ME three\nmy_TO", "DO_list TO", "DOS noTO", "DO\n");
    let paths = concat!("see /ho", "me/me, not example/ho", "me/ nor $x{y}/ho", "me/\n(/ro", "ot/x)\n");
    let hosts = concat!("https://index.crates", ".io/x\nmy-crates", ".ion\n");
    vec![
        case(
            "whitespace",
            &[("a.md", "One.\nTwo. \n\t\nThree.\r\n"), ("b.md", "No end"), ("empty.md", "")],
            &["a.md:2: remove", "a.md:3: remove", "a.md:4: remove", "b.md:1: end the last line"],
        ),
        case("whitespace", &[("fuzz/seeds/a", "x \r\n "), ("policy/testdata/b", "x ")], &[]),
        case("postponed_work", &[("a.md", postponed)], &["a.md:2: `TO", "a.md:3: `FIX"]),
        case("machine_path", &[("a.md", paths)], &["a.md:1: `/ho", "a.md:2: `/ro"]),
        case(
            "registry_host",
            &[("a.md", hosts), ("Cargo.lock", hosts), ("fuzz/Cargo.lock", hosts)],
            &["a.md:1: `crates"],
        ),
    ]
}

fn names() -> Vec<Case> {
    let declares = "//! A.\nmod used;\n#[cfg(test)]\nmod tests;\nmod inline {}\n";
    vec![
        case(
            "module_name",
            &[("engine/src/utils.rs", "//! A.\n"), ("engine/src/common/pool.rs", "//! A.\n")],
            &["engine/src/utils.rs:1: `utils` is vague", "engine/src/common/pool.rs:1: `common` is"],
        ),
        case(
            "module_name",
            &[("engine/src/accept/mod.rs", "//! A.\nmod types {}\nmod r#typesetter;\n")],
            &["engine/src/accept/mod.rs:1: `mod.rs`", "engine/src/accept/mod.rs:2: `types` is vague"],
        ),
        case(
            "dead_file",
            &[
                ("engine/src/lib.rs", declares),
                ("engine/src/used.rs", declares),
                ("engine/src/used/used.rs", "//! A.\n"),
                ("engine/src/used/tests.rs", "//! A.\n"),
                ("engine/src/used/inline.rs", "//! A.\n"),
                ("engine/src/tests.rs", "//! A.\n"),
                ("engine/tests/it.rs", "//! A.\n"),
                ("engine/tests/it/case.rs", "//! A.\n"),
            ],
            &["engine/src/used/inline.rs:1: no `mod`", "engine/tests/it/case.rs:1: no `mod`"],
        ),
        // The root of a cargo target that is a folder is its `main.rs`.
        case(
            "dead_file",
            &[
                ("tollgate/tests/it/main.rs", "//! A.\nmod curl;\n"),
                ("tollgate/tests/it/curl.rs", "//! A.\n"),
            ],
            &[],
        ),
    ]
}

fn calls() -> Vec<Case> {
    let clock = "//! A.\nfn f() {\n    Instant\n        ::now();\n}\n";
    let words = "//! A: Instant::now().\n// .unwrap()\nconst S: &str = \"Instant::now() .unwrap()\";\n";
    let not_tests =
        "//! A.\n#[cfg(not(test))]\nfn f() { x.unwrap() }\n#[cfg(any(test, unix))]\nfn g() { x.unwrap() }\n";
    let tests = r"//! A.
#[cfg(all(test, unix))]
mod t { fn f() { x.unwrap() } }
#[test]
fn g() { x.unwrap() }
impl A {
    #[cfg(test)]
    fn f() { x.unwrap() }
}
#[cfg(loom)]
mod l { fn f() { x.unwrap() } }
";
    vec![
        code("banned_call", clock, &["engine/src/a.rs:3: `Instant::now`: only `sys::clock` reads time"]),
        case("banned_call", &[("sys/src/kernel/linux.rs", clock), ("lab/src/a.rs", clock)], &[]),
        code("banned_call", words, &[]),
        code("banned_call", not_tests, &["engine/src/a.rs:3: `.unwrap()`", "engine/src/a.rs:5: `.unwrap()`"]),
        code("banned_call", tests, &[]),
        // A module that is declared for tests makes its file and its submodules tests.
        case(
            "banned_call",
            &[
                ("engine/src/lib.rs", "//! A.\n#[cfg(test)]\nmod model;\n"),
                ("engine/src/model.rs", "//! A.\nmod part;\nfn f() { x.unwrap() }\n"),
                ("engine/src/model/part.rs", "//! A.\nfn f() { x.unwrap() }\n"),
                ("engine/src/models.rs", "//! A.\nfn f() { x.unwrap() }\n"),
            ],
            &["engine/src/models.rs:2: `.unwrap()`"],
        ),
        // An import in braces counts as the whole path.
        case(
            "banned_call",
            &[("proto/src/a.rs", "//! A.\nuse std::{\n    fmt,\n    fs::{self, File},\n};\n")],
            &["proto/src/a.rs:2: `std::fs`: `proto` and `policy` are pure"],
        ),
    ]
}

fn unsafe_code() -> Vec<Case> {
    let without_reason =
        "//! A.\nfn f() {\n    // SAFETY: of another statement.\n    g();\n    unsafe { h() }\n}\n";
    let empty = "//! A.\nfn f() {\n    // SAFETY:\n    unsafe { h() }\n}\n";
    let with_reason = r"//! A.
// SAFETY: the pointer is owned.
unsafe impl Send for A {}
/// Does.
///
/// # Safety
/// The caller owns it.
#[inline]
pub unsafe fn g() {}
fn f() {
    // SAFETY: it is open,
    // and stays so.
    let x = longer
        .call(unsafe { h() });
}
";
    let forbids = "//! A.\n\n#![forbid(unsafe_code)]\n#![allow(dead_code)]\n";
    vec![
        case(
            "unsafe_outside_sys",
            &[
                ("lab/src/a.rs", "//! A: unsafe.\n// unsafe\nfn f() { unsafe { g() } }\n"),
                ("sys/src/a.rs", with_reason),
            ],
            &["lab/src/a.rs:3: `unsafe` outside `sys`"],
        ),
        case(
            "unsafe_outside_sys",
            &[("engine/tests/a.rs", "//! A.\nunsafe fn f() {}\n")],
            &["engine/tests/a.rs:2: `unsafe`"],
        ),
        case("unsafe_forbidden", &[("engine/src/lib.rs", forbids), ("sys/src/lib.rs", "//! A.\n")], &[]),
        case(
            "unsafe_forbidden",
            &[
                ("engine/src/lib.rs", "//! A.\n#![allow(dead_code)]\n#![forbid(unsafe_code)]\n"),
                ("lab/src/main.rs", "//! A.\n"),
                ("lab/src/load.rs", "//! A.\n"),
            ],
            &["engine/src/lib.rs:1: write `#![forbid(unsafe_code)]`", "lab/src/main.rs:1: write"],
        ),
        case("unsafe_reason", &[("sys/src/a.rs", with_reason)], &[]),
        case(
            "unsafe_reason",
            &[("sys/src/a.rs", without_reason)],
            &["sys/src/a.rs:5: add a comment `// SAFETY:`"],
        ),
        case("unsafe_reason", &[("sys/src/a.rs", empty)], &["sys/src/a.rs:4: add a comment"]),
    ]
}

fn lint_reasons() -> Vec<Case> {
    vec![
        code(
            "lint_reason",
            "//! A.\n\n#[allow(dead_code)]\nfn f() {}\n",
            &["engine/src/a.rs:3: an exception without"],
        ),
        code("lint_reason", "//! A.\n#![expect(dead_code)]\n", &["engine/src/a.rs:2: an exception"]),
        code(
            "lint_reason",
            "//! A.\n/// Docs.\n#[allow(dead_code)]\nfn f() {}\n",
            &["engine/src/a.rs:3: an"],
        ),
        code("lint_reason", "//! A.\n#[expect(dead_code, reason = \"used by loom\")]\nfn f() {}\n", &[]),
        code("lint_reason", "//! A.\n// Used by loom.\n#[allow(dead_code)]\nfn f() {}\n", &[]),
        code("lint_reason", "//! A.\n#[allow(dead_code)] // Used by loom.\nfn f() {}\n", &[]),
    ]
}

fn manifests() -> Vec<Case> {
    let workspace = "[workspace.dependencies]\nsys = { path = \"sys\" }\nlibc = \"1\"\ntoml = \"1\"\n";
    vec![
        case(
            "crate_dependencies",
            &[("engine/Cargo.toml", "[dependencies]\nsys = {}\nlibc = {}\n[dev-dependencies]\nproto = {}\n")],
            &["engine/Cargo.toml:5: `engine` must not depend on `proto`"],
        ),
        case(
            "crate_dependencies",
            &[("sys/Cargo.toml", "[target.'cfg(unix)'.dependencies]\nengine = { path = \"../engine\" }\n")],
            &["sys/Cargo.toml:2: `sys` must not depend on `engine`"],
        ),
        case(
            "crate_dependencies",
            &[("extra/Cargo.toml", ""), ("fuzz/Cargo.toml", "")],
            &["extra/Cargo.toml:1: `extra` is not drawn"],
        ),
        case(
            "pure_crates",
            &[(
                "policy/Cargo.toml",
                "[dependencies]\nipnet = \"2\"\ntokio = \"1\"\n[dev-dependencies]\nlibc = \"1\"\n",
            )],
            &["policy/Cargo.toml:3: `tokio` does I/O"],
        ),
        case(
            "dead_dependency",
            &[
                ("Cargo.toml", workspace),
                (
                    "lab/Cargo.toml",
                    "[dependencies]\nsys.workspace = true\nlibc.workspace = true\nserde-x = \"1\"\n",
                ),
                ("lab/src/a.rs", "//! A: libc.\nfn f() { sys::f(\"libc\", serde_x::g()) }\n"),
                ("sys/src/a.rs", "//! A.\nuse libc::c_int;\n"),
            ],
            &[
                "lab/Cargo.toml:3: no code of this crate uses `libc`",
                "Cargo.toml:4: no crate depends on `toml`",
            ],
        ),
        case("architecture", &[("Cargo.toml", workspace)], &[]),
        case(
            "architecture",
            &[("Cargo.toml", workspace), ("ARCHITECTURE.md", "- `libc`: for the gaps. Not toml-edit.\n")],
            &["Cargo.toml:4: `toml` has no line in ARCHITECTURE.md"],
        ),
        case("architecture", &[("ARCHITECTURE.md", &"A line.\n".repeat(150))], &[]),
        case(
            "architecture",
            &[("ARCHITECTURE.md", &"A line.\n".repeat(151))],
            &["ARCHITECTURE.md:151: 151 lines"],
        ),
    ]
}

fn documents() -> Vec<Case> {
    let words = |count: usize| "a ".repeat(count / 2 - 1) + "ab\n";
    let wide = words(112);
    let exempt = format!("# {wide}| {wide}```text\n{wide}```\n[a](b) {wide}{wide}");
    let named = "`engine/src/a.rs`, `engine/src`, `engine/src/b.rs`, `a/b.rs` and `engine/src/*`\n\
                 ```sh\n`engine/src/c.rs`\n```\n";
    let files = [("docs/a.md", named), ("engine/src/a.rs", "//! A.\n"), ("engine/Cargo.toml", "")];
    vec![
        case("document_width", &[("docs/a.md", &words(110)), ("a.txt", &wide)], &[]),
        case("document_width", &[("docs/a.md", &exempt)], &["docs/a.md:7: 112 characters, at most 110"]),
        case("document_paths", &files, &["docs/a.md:1: `engine/src/b.rs` does not exist"]),
    ]
}

fn named_tests() -> Vec<Case> {
    let tests = "//! A.\n#[test]\nfn it_holds() {}\nfn helper() {}\n";
    let inline = "//! A.\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn it_fits() {}\n}\n";
    let rows = "| a | `tollgate::requests::it_holds`, `engine::slab::tests::it_fits` |\n\
                | b | `tollgate::requests::it_held` and `tollgate::it_holds::x` |\n\
                | c | `tollgate::requests::helper` `a::b` `Relay::new::x` |\nIn prose: `no::such::test`.\n";
    let files = [
        ("docs/a.md", rows),
        ("README.md", rows),
        ("tollgate/tests/it/requests.rs", tests),
        ("engine/src/slab.rs", inline),
    ];
    let expected = [
        "docs/a.md:2: `tollgate::requests::it_held` is no test",
        "docs/a.md:2: `tollgate::it_holds::x` is no test",
        "docs/a.md:3: `tollgate::requests::helper` is no test",
    ];
    vec![case("named_tests", &files, &expected)]
}
