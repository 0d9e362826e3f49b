//! Calls that a rule of the house forbids, each with where, why, and what to use instead.
//! Matched on tokens, so that neither line breaks nor macros hide a call. What clippy.toml bans by type is
//! not repeated here; what stands here is allowed in tests, which clippy cannot tell apart.

use crate::tidy::{
    Finding,
    source::Source,
    tokens::{self, Token},
    tree::Tree,
};

/// Token sequences that are not wanted in some crates outside tests.
pub(in crate::tidy) struct Ban {
    /// Rust code, read by the same lexer as the sources.
    pub(in crate::tidy) patterns: &'static [&'static str],
    pub(in crate::tidy) crates: &'static [&'static str],
    /// The one file that may, because it is what the others are told to use.
    pub(in crate::tidy) exempt_file: Option<&'static str>,
    pub(in crate::tidy) remedy: &'static str,
}

const ALL_CRATES: &[&str] =
    &["sys", "engine", "proto", "policy", "ledger", "gateway", "admin", "tollgate", "lab", "xtask"];
const PRODUCT: &[&str] = &["sys", "engine", "proto", "policy", "ledger", "gateway", "admin", "tollgate"];
const LIBRARIES: &[&str] = &["sys", "engine", "proto", "policy", "ledger", "gateway", "admin"];
const PURE: &[&str] = &["proto", "policy"];
const DATA_PLANE: &[&str] = &["engine", "gateway"];

pub(in crate::tidy) const BANS: [Ban; 9] = [
    Ban {
        patterns: &[
            "Instant::now",
            "SystemTime::now",
            "Timestamp::now",
            "Zoned::now",
            "clock_gettime",
            "Instant as",
            "SystemTime as",
        ],
        crates: PRODUCT,
        exempt_file: Some("sys/src/clock.rs"),
        remedy: "only `sys::clock` reads time, so that tests can own it: take `now` as an argument, \
                  or call `sys::clock::monotonic` (deadlines) or `sys::clock::wall` (records)",
    },
    Ban {
        patterns: &[
            "std::fs",
            "std::env",
            "std::process",
            "std::thread",
            "TcpStream",
            "TcpListener",
            "UdpSocket",
            "UnixStream",
            "Instant",
            "SystemTime",
            "getrandom",
            "RandomState",
        ],
        crates: PURE,
        exempt_file: None,
        remedy: "`proto` and `policy` are pure: take bytes, facts and `now` as arguments, and let the \
                  gateway touch the world",
    },
    Ban {
        patterns: &[".unwrap()"],
        crates: ALL_CRATES,
        exempt_file: None,
        remedy: "return the error, or use `expect` with the reason why it cannot happen",
    },
    Ban {
        patterns: &["println!", "eprintln!", "print!", "eprint!"],
        crates: LIBRARIES,
        exempt_file: None,
        remedy: "only the binaries speak to a terminal: return the value, or log it through `gateway::log`",
    },
    Ban {
        patterns: &["thread::sleep"],
        crates: DATA_PLANE,
        // A reload runs on the control side's thread, which has nothing else to do meanwhile.
        exempt_file: Some("gateway/src/server/reload.rs"),
        remedy: "a data-plane thread never sleeps outside its reactor: arm a timer, or wait on a condition \
                  with a deadline",
    },
    Ban {
        patterns: &[
            "unbounded",
            "unbounded_channel",
            "UnboundedSender",
            "UnboundedReceiver",
            "mpsc::channel()",
            "mpsc::channel::<",
        ],
        crates: ALL_CRATES,
        exempt_file: None,
        remedy: "every queue has a named bound and says who waits: use a bounded channel or `sys::ring`",
    },
    Ban {
        patterns: &["env::var", "env::vars", "env::var_os"],
        crates: LIBRARIES,
        exempt_file: None,
        remedy: "the environment is read in `tollgate` alone: take the value as an argument or a setting",
    },
    Ban {
        patterns: &["to_socket_addrs", "lookup_host"],
        crates: LIBRARIES,
        exempt_file: Some("gateway/src/dns/system.rs"),
        remedy: "asks the DNS while the thread waits, and its addresses escape the policy: use \
                  `gateway::resolve`",
    },
    Ban {
        patterns: &["process::exit"],
        crates: LIBRARIES,
        exempt_file: None,
        remedy: "it skips every destructor, the ledger's too: return an error and let `main` decide",
    },
];

/// Looks for every ban in every source.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for ban in &BANS {
        let applies = |source: &&Source| {
            // An example is a program of its own, and speaks to a terminal.
            let is_program = source.path.contains("/examples/");
            let is_exempt = is_program || ban.exempt_file == Some(source.path.as_str());
            ban.crates.contains(&source.crate_name()) && !is_exempt
        };
        for pattern in ban.patterns {
            let tokens = tokens::lex(pattern).expect("each pattern is Rust code, as the tests prove");
            for source in tree.sources.iter().filter(applies) {
                for line in lines_with(source, &tokens) {
                    findings.push(Finding::new(&source.path, line, format!("`{pattern}`: {}", ban.remedy)));
                }
            }
        }
    }
    findings
}

/// The lines outside tests where `pattern` begins, in the code or in a path that a `use` spells with braces.
fn lines_with(source: &Source, pattern: &[Token]) -> Vec<usize> {
    let streams = std::iter::once(&source.tokens).chain(&source.uses);
    let mut lines: Vec<usize> = streams
        .flat_map(|tokens| (0..tokens.len()).map(|at| &tokens[at..]))
        .filter(|rest| tokens::starts_with(rest, pattern))
        .map(|rest| rest[0].line)
        .filter(|line| !source.is_test_line(*line))
        .collect();
    lines.sort_unstable();
    lines.dedup();
    lines
}
