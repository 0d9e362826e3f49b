//! An explanation: each step of the decision on a request, without the request.
//!
//! Guarantees: the gateway's own code makes each step. `judgement` judges, the configured resolver looks the
//! name up, and `dial` orders the addresses.
//!
//! Not handled here: what only a running gateway knows. That is cached names, kept connections to a
//! destination, ports that the kernel chose for listeners, destinations that `serve --allow` added, and
//! limits.

use std::io;
use std::net::{IpAddr, SocketAddr};

use policy::{AddressClass, Policy, Remedy, UserIndex, Verdict};
use proto::target::{Host, Target};
use tokio::time::timeout;

use crate::admission::judgement::Judgement;
use crate::authenticator::AuthError;
use crate::config::Config;
use crate::denial::Denial;
use crate::dns::{Answer, DNS_GRACE, ResolveError, ResolveSettings, Resolver};
use crate::jobs;
use crate::own_address::leads_back;

/// The steps and the outcome of one decision.
#[derive(Debug)]
pub struct Explanation {
    /// What the requested host resolved to; `None` if it was denied before that.
    pub found: Option<Result<Vec<IpAddr>, ResolveError>>,
    /// Each resolved address, judged.
    pub addresses: Vec<Judged>,
    /// The result.
    pub outcome: Outcome,
    /// What would allow a request that a missing rule denies.
    pub remedy: Option<Remedy>,
}

/// An address and its verdict.
#[derive(Clone, Copy, Debug)]
pub struct Judged {
    /// The address.
    pub address: IpAddr,
    /// Its class; the gateway's own listeners are known.
    pub class: AddressClass,
    /// The verdict.
    pub verdict: Verdict,
}

/// What the gateway would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Whether it would dial.
    pub allowed: bool,
    /// The reason as the log writes it.
    pub code: &'static str,
    /// The reason as the client would receive it.
    pub reason: String,
    /// The rule that decided, if one did.
    pub rule: Option<String>,
    /// The addresses that it would dial, in this order, until one connects.
    pub dials: Vec<SocketAddr>,
}

impl Outcome {
    /// The outcome of each request of a disabled user.
    pub fn disabled_user() -> Outcome {
        Outcome {
            allowed: false,
            code: Denial::from(AuthError::Disabled).code,
            reason: "The user is disabled: every credential is refused.".to_owned(),
            rule: None,
            dials: Vec::new(),
        }
    }
}

/// Explains what a gateway with `config` would decide about `target` for one of its users. The name is
/// resolved unless `addresses` are given instead.
///
/// # Errors
/// No thread or descriptor is available for the lookup.
pub fn explain(
    config: &Config,
    user: UserIndex,
    target: &Target,
    addresses: &[IpAddr],
) -> io::Result<Explanation> {
    explain_by(config, user, target, |name| match addresses {
        [] => look_up(config, name),
        given => Ok(Answer::from_addresses(given).ok_or(ResolveError::NotFound)),
    })
}

/// Explains with `look_up` as the resolver, which is called at most once.
fn explain_by(
    config: &Config,
    user: UserIndex,
    target: &Target,
    look_up: impl FnOnce(&str) -> io::Result<Result<Answer, ResolveError>>,
) -> io::Result<Explanation> {
    let judgement = Judgement { policy: &config.policy, user, target };
    let name_verdict = match judgement.judge_name() {
        Ok(verdict) => verdict,
        Err(denial) => return Ok(denied(&judgement, denial, None)),
    };
    let found = match &target.host {
        Host::Address(address) => Ok(vec![*address]),
        Host::Name(name) => look_up(name.as_str())?.map(|answer| answer.addresses().to_vec()),
    };
    let found = match found {
        Ok(found) => found,
        Err(error) => {
            let denial = Denial::from(error.clone());
            return Ok(Explanation { found: Some(Err(error)), ..denied(&judgement, denial, None) });
        }
    };
    let judged = |&address: &IpAddr| Judged {
        address,
        class: config.policy.address_class(address, target.port.get()),
        verdict: judgement.judge_address(&name_verdict, address),
    };
    let addresses = found.iter().map(judged).collect();
    let explanation = match judgement.judge_addresses(&name_verdict, &found) {
        Err(denial) => denied(&judgement, denial, found.first().copied()),
        Ok(candidates) => {
            let (_, verdict) = candidates.first;
            let dials = without_own_addresses(&config.policy, candidates.dial_order())?;
            if dials.is_empty() {
                let denied = denied(&judgement, Denial::own_address(), found.first().copied());
                return Ok(Explanation { found: Some(Ok(found)), addresses, ..denied });
            }
            let outcome = Outcome {
                allowed: true,
                code: verdict.reason.code(),
                reason: verdict.reason.to_string(),
                rule: verdict.rule.map(|rule| config.policy.rule_text(rule).to_owned()),
                dials,
            };
            Explanation { found: None, addresses: Vec::new(), outcome, remedy: None }
        }
    };
    Ok(Explanation { found: Some(Ok(found)), addresses, ..explanation })
}

/// Ends with a denial, which concerns `address` if one was judged.
fn denied(judgement: &Judgement<'_>, denial: Denial, address: Option<IpAddr>) -> Explanation {
    let port = judgement.target.port.get();
    let remedy = denial.reason.and_then(|reason| Remedy::for_denial(reason, judgement.host(), port, address));
    let outcome = Outcome {
        allowed: false,
        code: denial.code,
        reason: denial.text.into_owned(),
        rule: denial.rule.map(Into::into),
        dials: Vec::new(),
    };
    Explanation { found: None, addresses: Vec::new(), outcome, remedy }
}

/// The addresses of `dials` that do not lead back to the gateway: one that does is rejected once connected.
fn without_own_addresses(policy: &Policy, dials: Vec<SocketAddr>) -> io::Result<Vec<SocketAddr>> {
    let unless_own = |address| match leads_back(policy, address) {
        Ok(true) => None,
        Ok(false) => Some(Ok(address)),
        Err(error) => Some(Err(error)),
    };
    dials.into_iter().filter_map(unless_own).collect()
}

/// Resolves by the configuration, as a connection would.
fn look_up(config: &Config, name: &str) -> io::Result<Result<Answer, ResolveError>> {
    // In system mode names are looked up on the pool; no password is.
    let pool = jobs::start(1)?;
    let (resolver, _thread) = Resolver::start(ResolveSettings::from(&config.dns), &pool)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let deadline = resolver.deadline() + DNS_GRACE;
    let lookup = runtime.block_on(async { timeout(deadline, resolver.lookup(name)).await });
    Ok(lookup.unwrap_or(Err(ResolveError::Timeout)))
}

#[cfg(test)]
mod tests;
