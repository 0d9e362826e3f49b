//! Verdicts: the result of a decision, for the gateway, the user and the bill.
//!
//! Guarantees: every verdict has its reason, and the rule if one matched. A reason has one sentence for a
//! person and one code for logs and metrics.

use std::fmt;

use crate::address::AddressClass;

/// The decision on one user, host, port and, once resolved, address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the flow is allowed.
    pub outcome: Outcome,
    /// The reason.
    pub reason: Reason,
    /// The rule that allowed or denied; for a denial without a deny rule, the nearest allow rule.
    pub rule: Option<RuleId>,
    /// The billing class: the class of the set that allowed the flow, otherwise external for a public address
    /// and internal for any other.
    pub class: BillingClass,
}

impl Verdict {
    /// Whether the outcome is [`Outcome::Allow`].
    pub fn is_allowed(&self) -> bool {
        self.outcome == Outcome::Allow
    }
}

/// Whether a flow is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Allowed.
    Allow,
    /// Denied.
    Deny,
}

/// The id of a rule in the policy that made the verdict; [`crate::Policy::rule_text`] returns its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RuleId {
    pub(crate) list: u32,
    /// The rule's position in its list.
    pub(crate) index: u32,
}

/// The class of a flow on the bill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BillingClass {
    /// Traffic to the outside, which the company pays for.
    External,
    /// Traffic inside the company.
    Internal,
}

impl BillingClass {
    /// The class in logs, reports and queries.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::External => "external",
            Self::Internal => "internal",
        }
    }

    /// The billing class of an address without a set's class.
    pub(crate) fn of_address(class: AddressClass) -> Self {
        if class == AddressClass::Public { Self::External } else { Self::Internal }
    }
}

impl fmt::Display for BillingClass {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// The reason of a verdict. `Display` is one sentence for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A rule allows it.
    Allowed,
    /// A deny rule matches the name or the address; no allow rule can override it.
    DeniedByRule,
    /// No rule allows it; a rule of this kind would be needed.
    NoRule(MissingRule),
    /// An allow rule matches the name or the address, but does not open an address of this class.
    AddressForbidden(AddressClass),
    /// The gateway itself listens there.
    OwnAddress,
    /// The name is not in canonical form, so that a deny rule could miss it.
    MalformedName,
}

/// The kind of rule that would be needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MissingRule {
    /// A rule by name, or a network rule that contains the address.
    NameOrNetwork,
    /// A rule by name.
    Name,
    /// A rule by name, or the user's permission to resolve names for network rules: a network rule for the
    /// port exists, but it matches literal addresses only.
    NameOrResolving,
    /// A rule for an address or a network: the target is a literal address, which rules by name do not match.
    Network,
    /// A rule for this port: the host is allowed on another one.
    Port,
}

impl Reason {
    /// The reason in logs and metrics, in snake case. These names are stable.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::DeniedByRule => "denied_by_rule",
            Self::NoRule(MissingRule::NameOrNetwork | MissingRule::Name | MissingRule::Network) => "no_rule",
            Self::NoRule(MissingRule::NameOrResolving) => "no_rule_for_name",
            Self::NoRule(MissingRule::Port) => "no_rule_for_port",
            Self::AddressForbidden(class) => match class {
                AddressClass::Public => "public_address",
                AddressClass::Private => "private_address",
                AddressClass::Cgnat => "cgnat_address",
                AddressClass::Loopback => "loopback_address",
                AddressClass::LinkLocal => "link_local_address",
                AddressClass::Reserved => "reserved_address",
                AddressClass::Metadata => "metadata_address",
                AddressClass::Multicast => "multicast_address",
                AddressClass::Unspecified => "unspecified_address",
                AddressClass::Own => "own_address",
            },
            Self::OwnAddress => "own_address",
            Self::MalformedName => "malformed_name",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Allowed => "A rule allows this destination.",
            Self::DeniedByRule => "A deny rule forbids this destination.",
            Self::NoRule(MissingRule::NameOrNetwork) => {
                "No rule allows this destination; \
                 a rule for its name, or a network rule that holds its address, would be needed."
            }
            Self::NoRule(MissingRule::Name) => {
                "No rule allows this destination; a rule for its name would be needed."
            }
            Self::NoRule(MissingRule::NameOrResolving) => {
                "No rule allows this name, and a network rule matches literal addresses only; \
                 a rule for the name, or resolve_for_networks = true for the user, would be needed."
            }
            Self::NoRule(MissingRule::Network) => {
                "No rule allows this address; a rule for the address or its network would be needed, \
                 because rules by name do not apply to an address."
            }
            Self::NoRule(MissingRule::Port) => {
                "This destination is allowed on another port, but not on this one."
            }
            Self::AddressForbidden(class) => return write_forbidden(*class, formatter),
            Self::OwnAddress => "This address is the gateway's own; no rule opens it.",
            Self::MalformedName => "The name is not a plain host name; no rule can apply to it.",
        })
    }
}

fn write_forbidden(class: AddressClass, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
    use AddressClass::{
        Cgnat, LinkLocal, Loopback, Metadata, Multicast, Own, Private, Public, Reserved, Unspecified,
    };
    let kind = match class {
        Public => "a public address",
        Private => "a private address",
        Cgnat => "a carrier-grade NAT address",
        Loopback => "a loopback address",
        LinkLocal => "a link-local address",
        Reserved => "a reserved address",
        Metadata => "a cloud metadata or host service",
        Multicast => "a multicast or broadcast address",
        Unspecified => "an unspecified address",
        Own => "the gateway's own address",
    };
    let remedy = match class {
        Public | Private | Cgnat | Loopback => {
            "a rule by name in a set of class internal, a set with to = [NAME] and addresses = [NETWORK], \
             or a network rule that lies wholly in non-public space, would open it"
        }
        LinkLocal | Reserved => {
            "only a set with to = [NAME] and addresses = [NETWORK], or a network rule that lies wholly in \
             non-public space, would open it"
        }
        Metadata => {
            "only a rule for exactly this address, or a set with to = [NAME] and addresses = [THIS ADDRESS], \
             would open it"
        }
        Multicast | Unspecified | Own => "no rule opens it",
    };
    write!(formatter, "The destination is {kind}; {remedy}.")
}
