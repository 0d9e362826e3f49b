//! A judgement: what the policy decides on one user's request, as a denial or as addresses to dial.
//!
//! Guarantees: admission and [`crate::explain`] judge here and nowhere else. So both decide the same for the
//! same policy, request and addresses. It needs no client, socket or thread.

use std::net::{IpAddr, SocketAddr};

use policy::{NameVerdict, Policy, UserIndex, Verdict};
use proto::target::{Host, Target};

use crate::denial::Denial;
use crate::dial::{DialError, alternate};

/// An address that may be dialled, and the verdict that allows it.
pub(crate) type Candidate = (SocketAddr, Verdict);

/// The addresses that may be dialled, in the order in which they were resolved.
#[derive(Debug)]
pub(crate) struct Candidates {
    pub(crate) first: Candidate,
    /// Empty for most names, and for requested addresses; an empty vector takes no memory.
    pub(crate) others: Vec<Candidate>,
}

impl Candidates {
    /// The addresses after the first.
    pub(crate) fn other_addresses(&self) -> Vec<SocketAddr> {
        self.others.iter().map(|(address, _)| *address).collect()
    }

    /// The addresses in the order of dialling.
    pub(crate) fn dial_order(&self) -> Vec<SocketAddr> {
        alternate(self.first.0, &self.other_addresses())
    }

    /// The verdict on one of them.
    pub(crate) fn verdict(&self, address: SocketAddr) -> Option<&Verdict> {
        let mut candidates = std::iter::once(&self.first).chain(&self.others);
        candidates.find(|(candidate, _)| *candidate == address).map(|(_, verdict)| verdict)
    }
}

/// One user's request, to be judged by the policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Judgement<'a> {
    pub(crate) policy: &'a Policy,
    /// An index of this policy.
    pub(crate) user: UserIndex,
    pub(crate) target: &'a Target,
}

impl<'a> Judgement<'a> {
    /// The target's host in the policy's terms.
    pub(crate) fn host(&self) -> policy::Host<'a> {
        match &self.target.host {
            Host::Name(name) => policy::Host::Name(name.as_str()),
            Host::Address(address) => policy::Host::Address(*address),
        }
    }

    /// Judges the requested host. A name that is denied here must not be resolved.
    ///
    /// # Errors
    /// A denial.
    pub(crate) fn judge_name(&self) -> Result<NameVerdict<'a>, Denial> {
        match self.policy.judge_name(self.user, self.host(), self.target.port.get()) {
            NameVerdict::Denied(verdict) => Err(Denial::policy(self.policy, &verdict)),
            verdict => Ok(verdict),
        }
    }

    /// Judges one address to which the name resolved, or which was requested.
    pub(crate) fn judge_address(&self, name_verdict: &NameVerdict<'_>, address: IpAddr) -> Verdict {
        self.policy.judge_address(self.user, name_verdict, address, self.target.port.get())
    }

    /// Judges each of the resolved addresses.
    ///
    /// # Errors
    /// A denial: none may be dialled. It concerns the first one.
    pub(crate) fn judge_addresses(
        &self,
        name_verdict: &NameVerdict<'_>,
        addresses: &[IpAddr],
    ) -> Result<Candidates, Denial> {
        let port = self.target.port.get();
        let mut denied = None;
        let mut allowed = addresses.iter().filter_map(|&address| {
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
        Err(denied
            .map_or_else(|| DialError::Unreachable.into(), |verdict| Denial::policy(self.policy, &verdict)))
    }
}
