//! The table of all rules. A new rule is a line here, a check in a file of this folder, and a planted
//! violation in `tests.rs`, which refuses a rule without one.

pub(super) mod calls;
mod crates;
mod evidence;
mod modules;
mod reasons;
mod shape;
mod unsafe_code;
mod words;

use super::Rule;

pub(super) const RULES: [Rule; 21] = [
    Rule { name: "parses", check: shape::parses },
    Rule { name: "header", check: shape::header },
    Rule { name: "file_length", check: shape::file_length },
    Rule { name: "function_length", check: shape::function_length },
    Rule { name: "line_length", check: shape::line_length },
    Rule { name: "whitespace", check: words::whitespace },
    Rule { name: "postponed_work", check: words::postponed_work },
    Rule { name: "machine_path", check: words::machine_path },
    Rule { name: "registry_host", check: words::registry_host },
    Rule { name: "module_name", check: modules::name },
    Rule { name: "dead_file", check: modules::dead_file },
    Rule { name: "banned_call", check: calls::check },
    Rule { name: "unsafe_place", check: unsafe_code::place },
    Rule { name: "unsafe_forbidden", check: unsafe_code::forbidden },
    Rule { name: "unsafe_reason", check: unsafe_code::reason },
    Rule { name: "lint_reason", check: reasons::check },
    Rule { name: "crate_arrows", check: crates::arrows },
    Rule { name: "pure_crates", check: crates::pure },
    Rule { name: "dead_dependency", check: crates::dead_dependency },
    Rule { name: "architecture", check: crates::architecture },
    Rule { name: "named_tests", check: evidence::named_tests },
];
