//! Forbidden calls, each with the crates where it is forbidden, the reason, and the replacement.
//!
//! The check matches tokens, so that neither line breaks nor macros hide a call. These calls are allowed in
//! tests, which clippy cannot distinguish; calls that are forbidden in tests too are in clippy.toml.

use crate::tidy::{
    Finding,
    source::Source,
    tokens::{self, Token},
    tree::Tree,
};

/// Token sequences that are forbidden in some crates outside tests.
pub(in crate::tidy) struct Ban {
    /// Rust code, for the lexer that also reads the sources.
    pub(in crate::tidy) patterns: &'static [&'static str],
    pub(in crate::tidy) crates: &'static [&'static str],
    /// Files that may use them: those that implement the replacement, or that run on other threads.
    pub(in crate::tidy) exempt_files: &'static [&'static str],
    pub(in crate::tidy) remedy: &'static str,
}

const ALL_CRATES: &[&str] =
    &["sys", "engine", "proto", "policy", "ledger", "gateway", "admin", "tollgate", "lab", "xtask"];
const PRODUCT: &[&str] = &["sys", "engine", "proto", "policy", "ledger", "gateway", "admin", "tollgate"];
const LIBRARIES: &[&str] = &["sys", "engine", "proto", "policy", "ledger", "gateway", "admin"];
const PURE: &[&str] = &["proto", "policy"];
const DATA_PLANE: &[&str] = &["engine", "gateway"];

pub(in crate::tidy) const BANS: [Ban; 10] = [
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
        exempt_files: &["sys/src/kernel/linux.rs"],
        remedy: "only `sys::clock` reads time, so that tests can control it: take `now` as an argument, \
                 or call `sys::clock::monotonic` (deadlines) or `sys::clock::wall` (records)",
    },
    Ban {
        patterns: &["kernel::clock"],
        crates: PRODUCT,
        exempt_files: &["sys/src/clock.rs"],
        remedy: "only `sys::clock` reads time, so that tests can control it: take `now` as an argument, \
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
        exempt_files: &[],
        remedy: "`proto` and `policy` are pure: take bytes, facts and `now` as arguments, and leave I/O to \
                 the gateway",
    },
    Ban {
        patterns: &[".unwrap()"],
        crates: ALL_CRATES,
        exempt_files: &[],
        remedy: "return the error, or use `expect` with the invariant that excludes it",
    },
    Ban {
        patterns: &["println!", "eprintln!", "print!", "eprint!"],
        crates: LIBRARIES,
        exempt_files: &[],
        remedy: "only the binaries print to a terminal: return the value, or log it through `gateway::log`",
    },
    Ban {
        patterns: &["thread::sleep"],
        crates: DATA_PLANE,
        // A reload, and the load of a configuration, run on a thread that has no other work meanwhile.
        exempt_files: &["gateway/src/server/reload.rs", "gateway/src/config/source.rs"],
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
        exempt_files: &[],
        remedy: "every queue has a named bound and a defined behaviour when it is full: use a bounded \
                 channel or `sys::ring`",
    },
    Ban {
        patterns: &["env::var", "env::vars", "env::var_os"],
        crates: LIBRARIES,
        exempt_files: &[],
        remedy: "only `tollgate` reads the environment: take the value as an argument or a setting",
    },
    Ban {
        patterns: &["to_socket_addrs", "lookup_host"],
        crates: LIBRARIES,
        exempt_files: &["gateway/src/dns/system.rs"],
        remedy: "it blocks the thread on DNS, and its addresses bypass the policy: use `gateway::dns`",
    },
    Ban {
        patterns: &["process::exit"],
        crates: LIBRARIES,
        exempt_files: &[],
        remedy: "it skips every destructor, also the ledger's: return an error and let `main` exit",
    },
];

/// The findings of every ban in every source.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for ban in &BANS {
        let applies = |source: &&Source| {
            // An example is a program of its own and prints to a terminal.
            let is_program = source.path.contains("/examples/");
            let is_exempt = is_program || ban.exempt_files.contains(&source.path.as_str());
            ban.crates.contains(&source.crate_name()) && !is_exempt
        };
        for pattern in ban.patterns {
            let tokens = tokens::lex(pattern).expect("each pattern is valid Rust, as a test proves");
            for source in tree.sources.iter().filter(applies) {
                for line in lines_with(source, &tokens) {
                    findings.push(Finding::new(&source.path, line, format!("`{pattern}`: {}", ban.remedy)));
                }
            }
        }
    }
    findings
}

/// The lines outside tests where `pattern` begins, in the code or in an expanded path of a `use` with braces.
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
