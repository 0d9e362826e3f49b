//! The policy: which user may reach which target. Pure functions, without sockets, clock, files or
//! randomness.
//!
//! A [`Builder`] compiles a [`Policy`] once from users, sets of destinations and the gateway's own listeners;
//! then all threads read it. Each flow needs two decisions: [`Policy::judge_name`] before the name is
//! resolved, and [`Policy::judge_address`] for each address that may be dialled.
//!
//! # How a decision is made
//!
//! 1. **Default deny.** A target without a matching allow rule is denied.
//! 2. **Deny beats allow.** A deny rule that matches the name or the address decides, however wide it is and
//!    however narrow an allow rule is. Classes do not matter to deny rules. A network in a deny rule also
//!    matches the IPv6 addresses that embed an address of it (NAT64, 6to4, Teredo, IPv4-compatible).
//! 3. **Names match on label borders.** `x` matches `x`; `*.x` matches any depth below `x` and not `x`. Names
//!    are compared in one canonical spelling; any other is refused before the rules are checked.
//! 4. **Rules by name match names only.** For a literal address only rules for addresses and networks count,
//!    in allow lists and in deny lists. An IPv4-mapped IPv6 address is the IPv4 address.
//! 5. **Name and address must both be allowed.** A rule by name admits the addresses to which the name
//!    resolves only if their class allows it:
//!
//!    | class of the address | rule by name | in an internal set | in a set that opens it | network rule |
//!    |---|---|---|---|---|
//!    | public | yes | yes | yes | yes |
//!    | private, CGNAT, loopback | no | yes | yes | if all of the network is non-public |
//!    | link-local, reserved | no | no | yes | if all of the network is non-public |
//!    | metadata service | no | no | if exactly this one | if it is exactly this one address |
//!    | multicast, broadcast, unspecified | no | no | no | no |
//!    | our own listener | no | no | no | no |
//!
//!    The addresses of a set ([`SetRules::addresses`]) are open to the set's names only: not to the names of
//!    other sets, and not to literal addresses. In a deny list they have no effect.
//!
//!    So `0.0.0.0/0` and `::/0` open public addresses only, `10.0.0.0/8` opens private ones, `127.0.0.1:5432`
//!    opens one loopback port, `169.254.0.0/16` opens no metadata service. A rule for an address is a network
//!    rule. An IPv6 network contains IPv6 addresses only, an IPv4 network IPv4 ones.
//! 6. **Only a name that a rule allows is resolved**, because the DNS query itself sends the name out. Where
//!    a rule allows the name and does not admit a resolved address, a network rule may. For all other names a
//!    network rule matches literal addresses only, unless the user may resolve names for network rules
//!    ([`UserRules::resolve_for_networks`]): then any name is resolved on the ports of network rules.
//! 7. **The narrowest rule is reported and billed**: a rule by name before a network rule, the longest name,
//!    the longest prefix, then the user's own rules before their sets, then the order in the configuration.
//! 8. **The bill follows the rule.** A flow has the declared class of the rule's set; without a declaration a
//!    public address is external and any other internal. It counts as a flow of that set.
//!
//! An address that embeds another one has the class of the embedded one (see [`mod@address`]). Every address
//! of a DNS answer is judged by itself: in a mixed answer only the admitted ones may be dialled.
//!
//! Not handled here: aliases (CNAME) on the way to an address, and network-specific NAT64 prefixes in global
//! space; such a prefix needs a deny rule.
//!
//! Modules, each above those that it may use:
//!
//! ```text
//!   builder
//!   decide
//!   fingerprint
//!   list remedy
//!   rules
//!   host own verdict
//!   address ports ranges
//! ```

#![forbid(unsafe_code)]

pub mod address;
mod builder;
mod decide;
mod fingerprint;
pub mod host;
mod list;
mod own;
mod ports;
mod ranges;
mod remedy;
pub mod rules;
mod verdict;

pub use address::{AddressClass, classify};
pub use builder::{BuildError, Builder, ListKind, Location, Mistake, Owner};
pub use decide::{NameMatch, NameVerdict, Policy, UserIndex};
pub use fingerprint::Fingerprint;
pub use host::Host;
pub use list::{RULES_MAX, SetClass, SetRules, UserRules};
pub use remedy::Remedy;
pub use rules::{Rule, RuleError};
pub use verdict::{BillingClass, MissingRule, Outcome, Reason, RuleId, Verdict};
