//! `tollgate explain`: what the gateway would decide for a user and a destination, and why.
//!
//! Promises: the steps, the judgement and the words of the gateway itself. Leaves to others: judging (crate
//! `policy`); whether the destination answers, and whether the user has a connection left, which only the
//! running gateway knows.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use gateway::config::User;
use gateway::users::UserName;
use policy::{AddressClass, NameVerdict, Policy, Remedy, Verdict};
use proto::target::{Host, Target};
use serde_json::{Value, json};

use super::{Context, print, print_json, table};

#[derive(Args)]
pub(crate) struct Options {
    /// The user.
    #[arg(long, value_name = "NAME")]
    user: UserName,
    /// The destination.
    #[arg(long, value_name = "HOST:PORT", value_parser = target)]
    to: Target,
    /// An address to judge instead of those that the system resolver gives. May be repeated.
    #[arg(long, value_name = "IP")]
    address: Vec<IpAddr>,
    /// Print for a program.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(context: &Context, options: &Options) -> anyhow::Result<ExitCode> {
    let config = context.load()?;
    let name = &options.user;
    let user = config.user(name).with_context(|| format!("there is no user `{name}`"))?;
    let explanation = Explanation::of(&config.policy, user, options);
    let allowed = explanation.decision().allowed;
    if options.json {
        print_json(&explanation.json())?;
    } else {
        print(&explanation.text())?;
    }
    Ok(if allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every step of one decision.
struct Explanation<'a> {
    policy: &'a Policy,
    user: &'a User,
    target: &'a Target,
    name: NameVerdict<'a>,
    /// What the name resolves to; the reason if it does not, none if it need not.
    resolved: Option<io::Result<Vec<IpAddr>>>,
    addresses: Vec<Judged>,
}

/// One address and its verdict.
struct Judged {
    address: IpAddr,
    class: AddressClass,
    verdict: Verdict,
}

/// What comes of it all.
struct Decision {
    allowed: bool,
    code: &'static str,
    reason: String,
    rule: Option<String>,
}

impl<'a> Explanation<'a> {
    /// Goes the way of `connection.rs`: the name, its addresses, each address.
    fn of(policy: &'a Policy, user: &'a User, options: &'a Options) -> Explanation<'a> {
        let target = &options.to;
        let port = target.port.get();
        let host = match &target.host {
            Host::Name(name) => policy::Host::Name(name.as_str()),
            Host::Address(address) => policy::Host::Address(*address),
        };
        let name = policy.judge_name(user.index, host, port);
        let resolved = match (&name, &target.host) {
            (NameVerdict::Denied(_), _) => None,
            (NameVerdict::Judged(_), Host::Address(address)) => Some(Ok(vec![*address])),
            (NameVerdict::Judged(_), Host::Name(_)) if !options.address.is_empty() => {
                Some(Ok(options.address.clone()))
            }
            (NameVerdict::Judged(_), Host::Name(name)) => Some(resolve(name.as_str(), port)),
        };
        let judge = |&address: &IpAddr| Judged {
            address,
            class: policy.address_class(address, port),
            verdict: policy.judge_address(user.index, &name, address, port),
        };
        let found = resolved.as_ref().and_then(|resolved| resolved.as_ref().ok());
        let addresses = found.map_or(Vec::new(), |addresses| addresses.iter().map(judge).collect());
        Explanation { policy, user, target, name, resolved, addresses }
    }

    fn decision(&self) -> Decision {
        if self.user.disabled {
            let reason = "The user is disabled: every credential is refused.".to_owned();
            return Decision { allowed: false, code: "unauthenticated", reason, rule: None };
        }
        if let NameVerdict::Denied(verdict) = &self.name {
            return self.decided(verdict);
        }
        if let Some(Err(error)) = &self.resolved {
            let reason = format!("The destination's name cannot be used: {error}.");
            return Decision { allowed: false, code: "dns", reason, rule: None };
        }
        let verdicts = || self.addresses.iter().map(|judged| &judged.verdict);
        let verdict = verdicts().find(|verdict| verdict.is_allowed()).or_else(|| verdicts().next());
        verdict.map_or_else(
            || {
                let reason = "The destination's name has no address.".to_owned();
                Decision { allowed: false, code: "dns", reason, rule: None }
            },
            |verdict| self.decided(verdict),
        )
    }

    /// What would allow that which is denied.
    fn remedy(&self) -> Option<Remedy> {
        let port = self.target.port.get();
        let host = match &self.target.host {
            Host::Name(name) => policy::Host::Name(name.as_str()),
            Host::Address(address) => policy::Host::Address(*address),
        };
        let (reason, address) = match (&self.name, self.addresses.first()) {
            _ if self.user.disabled || self.decision().allowed => return None,
            (NameVerdict::Denied(verdict), _) => (verdict.reason, None),
            (NameVerdict::Judged(_), first) => (first?.verdict.reason, Some(first?.address)),
        };
        Remedy::of(reason, host, port, address)
    }

    fn decided(&self, verdict: &Verdict) -> Decision {
        Decision {
            allowed: verdict.is_allowed(),
            code: verdict.reason.code(),
            reason: verdict.reason.to_string(),
            rule: verdict.rule.map(|rule| self.policy.rule_text(rule).to_owned()),
        }
    }

    fn text(&self) -> String {
        let name = match &self.name {
            NameVerdict::Denied(_) => "denied: it is not resolved".into(),
            NameVerdict::Judged(_) if matches!(self.target.host, Host::Address(_)) => {
                "an address: rules by name do not count".into()
            }
            NameVerdict::Judged(_) => "may be resolved; each address is judged".into(),
        };
        let mut rows = vec![
            vec!["user".to_owned(), self.user.name.to_string()],
            vec!["destination".to_owned(), self.target.to_string()],
            vec!["name".to_owned(), name],
        ];
        if let Some(Err(error)) = &self.resolved {
            rows.push(vec!["addresses".to_owned(), format!("none: {error}")]);
        }
        for Judged { address, class, verdict } in &self.addresses {
            let billed =
                if verdict.is_allowed() { format!(" Counts as {}.", verdict.class) } else { String::new() };
            let text = format!("{class}. {}{billed}", self.sentence(verdict));
            rows.push(vec![address.to_string(), text]);
        }
        let Decision { allowed, reason, rule, .. } = self.decision();
        let outcome = if allowed { "ALLOW" } else { "DENY" };
        let rule = rule.map_or(String::new(), |rule| format!(" [{rule}]"));
        rows.push(vec!["decision".to_owned(), format!("{outcome}: {reason}{rule}")]);
        table(&[], rows, &[]) + &self.remedy().map_or(String::new(), |remedy| self.told_remedy(&remedy))
    }

    fn told_remedy(&self, remedy: &Remedy) -> String {
        let user = &self.user.name;
        let place = match remedy.address {
            None => format!("This in the table of user `{user}` would allow it:"),
            Some(_) => format!("This set, with `@NAME` in `allow` of user `{user}`, would allow it:"),
        };
        let lines: Vec<String> = remedy.to_string().lines().map(|line| format!("  {line}\n")).collect();
        format!("\n{place}\n\n{}", lines.concat())
    }

    fn sentence(&self, verdict: &Verdict) -> String {
        let rule = verdict.rule.map_or(String::new(), |rule| format!(" [{}]", self.policy.rule_text(rule)));
        format!("{}{rule}", verdict.reason)
    }

    fn json(&self) -> Value {
        let verdict = |verdict: &Verdict| {
            json!({
                "allowed": verdict.is_allowed(),
                "code": verdict.reason.code(),
                "reason": verdict.reason.to_string(),
                "rule": verdict.rule.map(|rule| self.policy.rule_text(rule)),
            })
        };
        let address = |judged: &Judged| {
            let mut value = verdict(&judged.verdict);
            value["address"] = json!(judged.address.to_string());
            value["address_class"] = json!(judged.class.to_string());
            value["class"] = json!(judged.verdict.class.as_str());
            value
        };
        let Decision { allowed, code, reason, rule } = self.decision();
        json!({
            "user": &*self.user.name,
            "host": self.target.host.to_string(),
            "port": self.target.port,
            "name": match &self.name {
                NameVerdict::Denied(denied) => verdict(denied),
                NameVerdict::Judged(_) => Value::Null,
            },
            "addresses": self.addresses.iter().map(address).collect::<Vec<_>>(),
            "decision": { "allowed": allowed, "code": code, "reason": reason, "rule": rule },
            "remedy": self.remedy().map(|remedy| remedy.to_string()),
        })
    }
}

fn resolve(name: &str, port: u16) -> io::Result<Vec<IpAddr>> {
    let mut addresses: Vec<IpAddr> = (name, port).to_socket_addrs()?.map(|address| address.ip()).collect();
    addresses.dedup();
    Ok(addresses)
}

fn target(text: &str) -> Result<Target, String> {
    Target::parse_authority(text.as_bytes()).map_err(|error| error.to_string())
}
