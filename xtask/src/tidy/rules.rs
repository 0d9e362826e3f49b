//! The table of all rules. A new rule is a line here, a check in a file of this folder, and a planted
//! violation in `tests/cases.rs`: a test fails for a rule without one.

mod arrows;
pub(super) mod calls;
mod crates;
mod documents;
mod language;
mod lint_reasons;
mod modules;
mod named_tests;
mod shape;
mod text;
mod unsafe_code;

use super::Rule;

pub(super) const RULES: [Rule; 27] = [
    Rule { name: "parses", check: shape::parses },
    Rule { name: "header", check: shape::header },
    Rule { name: "file_length", check: shape::file_length },
    Rule { name: "function_length", check: shape::function_length },
    Rule { name: "line_length", check: shape::line_length },
    Rule { name: "whitespace", check: text::whitespace },
    Rule { name: "postponed_work", check: text::postponed_work },
    Rule { name: "machine_path", check: text::machine_path },
    Rule { name: "registry_host", check: text::registry_host },
    Rule { name: "retired_words", check: language::words },
    Rule { name: "retired_names", check: language::names },
    Rule { name: "module_name", check: modules::name },
    Rule { name: "dead_file", check: modules::dead_file },
    Rule { name: "banned_call", check: calls::check },
    Rule { name: "unsafe_outside_sys", check: unsafe_code::outside_sys },
    Rule { name: "unsafe_forbidden", check: unsafe_code::forbid_attribute },
    Rule { name: "unsafe_reason", check: unsafe_code::reason },
    Rule { name: "lint_reason", check: lint_reasons::check },
    Rule { name: "crate_dependencies", check: crates::dependency_direction },
    Rule { name: "module_arrows", check: arrows::drawn },
    Rule { name: "module_circles", check: arrows::circles },
    Rule { name: "pure_crates", check: crates::pure_crates },
    Rule { name: "dead_dependency", check: crates::dead_dependency },
    Rule { name: "architecture", check: crates::architecture_document },
    Rule { name: "named_tests", check: named_tests::check },
    Rule { name: "document_width", check: documents::width },
    Rule { name: "document_paths", check: documents::paths },
];
