//! A judgement: what the policy says of one user's request, as a refusal or as addresses to dial.
//!
//! Guarantees: admission and [`crate::explain`] judge here and nowhere else, so that both say the same of the
//! same policy, request and addresses; it needs no client, socket or thread. Leaves out who the user is
//! (`auth`), resolving (`resolve`), limits (`account`) and dialling (`dial`, which also has the order).

use std::net::{IpAddr, SocketAddr};

use policy::{NameVerdict, Policy, UserIndex, Verdict};
use proto::target::{Host, Target};

use crate::denial::Denial;
use crate::dial::{DialError, alternate};

/// An address that may be dialled, and the verdict that allows it.
pub(crate) type Candidate = (SocketAddr, Verdict);

/// The addresses that may be dialled, in the order in which they were found.
#[derive(Debug)]
pub(crate) struct Candidates {
    pub(crate) first: Candidate,
    /// A vector that is empty, as for most names, and for addresses, takes no memory.
    pub(crate) others: Vec<Candidate>,
}

impl Candidates {
    /// The addresses after the first.
    pub(crate) fn other_addresses(&self) -> Vec<SocketAddr> {
        self.others.iter().map(|(address, _)| *address).collect()
    }

    /// The addresses in the order in which they are dialled.
    pub(crate) fn dial_order(&self) -> Vec<SocketAddr> {
        alternate(self.first.0, &self.other_addresses())
    }

    /// The verdict on one of them.
    pub(crate) fn verdict(&self, address: SocketAddr) -> Option<&Verdict> {
        let mut candidates = std::iter::once(&self.first).chain(&self.others);
        candidates.find(|(candidate, _)| *candidate == address).map(|(_, verdict)| verdict)
    }
}

/// One user's request before the policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judgement<'a> {
    pub(crate) policy: &'a Policy,
    /// An index of this policy.
    pub(crate) user: UserIndex,
    pub(crate) target: &'a Target,
}

impl<'a> Judgement<'a> {
    /// Where to, in the policy's terms.
    pub(crate) fn host(&self) -> policy::Host<'a> {
        match &self.target.host {
            Host::Name(name) => policy::Host::Name(name.as_str()),
            Host::Address(address) => policy::Host::Address(*address),
        }
    }

    /// Judges what was asked for. A name that is refused here must not be resolved.
    ///
    /// # Errors
    /// A refusal.
    pub(crate) fn judge_name(&self) -> Result<NameVerdict<'a>, Denial> {
        match self.policy.judge_name(self.user, self.host(), self.target.port.get()) {
            NameVerdict::Denied(verdict) => Err(Denial::policy(self.policy, &verdict)),
            verdict => Ok(verdict),
        }
    }

    /// Judges one address to which the name leads, or which was asked for.
    pub(crate) fn judge_address(&self, name_verdict: &NameVerdict<'_>, address: IpAddr) -> Verdict {
        self.policy.judge_address(self.user, name_verdict, address, self.target.port.get())
    }

    /// Judges each of the addresses that were found.
    ///
    /// # Errors
    /// A refusal: none may be dialled. It is about the first one.
    pub(crate) fn judge_addresses(
        &self,
        name_verdict: &NameVerdict<'_>,
        found: &[IpAddr],
    ) -> Result<Candidates, Denial> {
        let port = self.target.port.get();
        let mut denied = None;
        let mut allowed = found.iter().filter_map(|&address| {
            let verdict = self.judge_address(name_verdict, address);
            if !verdict.is_allowed() {
                denied.get_or_insert(verdict);
                return None;
            }
            Some((SocketAddr::new(address, port), verdict))
        });
        if let Some(first) = allowed.next() {
            return Ok(Candidates { first, others: allowed.collect() });
        }
        Err(denied.map_or_else(|| DialError::Unreachable.into(), |it| Denial::policy(self.policy, &it)))
    }
}
