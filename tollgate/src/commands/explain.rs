//! `tollgate explain`: what the gateway would decide for a user and a destination, and why.
//!
//! Guarantees: the steps, verdicts and texts are the gateway's own (`gateway::explain`).
//!
//! Not handled here: whether the destination can be reached, and whether the user has a free permit; only the
//! running gateway knows that.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use gateway::config::{Config, User};
use gateway::explain::{Explanation, Judged, Outcome, explain};
use gateway::users::UserName;
use policy::{Policy, Remedy, Verdict};
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
    /// An address to judge instead of those that the gateway's resolver returns. May be repeated.
    #[arg(long, value_name = "IP")]
    address: Vec<IpAddr>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(context: &Context, options: &Options) -> anyhow::Result<ExitCode> {
    let config = context.load()?;
    let name = &options.user;
    let user = config.user(name).with_context(|| format!("there is no user `{name}`"))?;
    let report = DecisionReport::new(&config, user, options)?;
    if options.json {
        print_json(&report.json())?;
    } else {
        print(&report.text())?;
    }
    Ok(if report.outcome().allowed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every step of one decision, and its user.
struct DecisionReport<'a> {
    policy: &'a Policy,
    user: &'a User,
    target: &'a Target,
    explanation: Explanation,
    /// The outcome for a user that cannot log in.
    locked_out: Option<Outcome>,
}

impl<'a> DecisionReport<'a> {
    fn new(config: &'a Config, user: &'a User, options: &'a Options) -> anyhow::Result<DecisionReport<'a>> {
        let target = &options.to;
        let explanation = explain(config, user.index, target, &options.address)
            .context("the gateway's resolver cannot be started")?;
        let locked_out = user.disabled.then(Outcome::disabled_user);
        Ok(DecisionReport { policy: &config.policy, user, target, explanation, locked_out })
    }

    fn outcome(&self) -> &Outcome {
        self.locked_out.as_ref().unwrap_or(&self.explanation.outcome)
    }

    /// The rule that would help; none helps a user that cannot log in.
    fn remedy(&self) -> Option<&Remedy> {
        self.explanation.remedy.as_ref().filter(|_| self.locked_out.is_none())
    }

    fn text(&self) -> String {
        let name = match (&self.explanation.found, &self.target.host) {
            (None, _) => "the rules deny it, so it is not resolved",
            (Some(_), Host::Address(_)) => "none: only rules for networks apply to an address",
            (Some(_), Host::Name(_)) => "the rules let it be resolved; each address is then judged",
        };
        let mut rows = vec![
            vec!["user".to_owned(), self.user.name.to_string()],
            vec!["destination".to_owned(), self.target.to_string()],
            vec!["name".to_owned(), name.to_owned()],
        ];
        if let Some(Err(error)) = &self.explanation.found {
            rows.push(vec!["addresses".to_owned(), format!("none: {error}")]);
        }
        for Judged { address, class, verdict } in &self.explanation.addresses {
            let billed =
                if verdict.is_allowed() { format!(" Counts as {}.", verdict.class) } else { String::new() };
            let text = format!("{class}. {}{billed}", self.sentence(verdict));
            rows.push(vec![address.to_string(), text]);
        }
        let Outcome { allowed, reason, rule, dials, .. } = self.outcome();
        let outcome = if *allowed { "ALLOW" } else { "DENY" };
        let rule = rule.as_ref().map_or(String::new(), |rule| format!(" [{rule}]"));
        rows.push(vec!["decision".to_owned(), format!("{outcome}: {reason}{rule}")]);
        if !dials.is_empty() {
            let order: Vec<String> = dials.iter().map(SocketAddr::to_string).collect();
            rows.push(vec!["dials".to_owned(), order.join(", then ")]);
        }
        let remedy = self.remedy().map_or(String::new(), |remedy| self.remedy_text(remedy));
        table(&[], rows, &[]) + &remedy
    }

    fn remedy_text(&self, remedy: &Remedy) -> String {
        let user = &self.user.name;
        let introduction = match remedy.address {
            None => format!("With this rule added to `allow` of user `{user}`, it would be allowed:"),
            Some(_) => {
                format!("With this set, and `@NAME` added to `allow` of user `{user}`, it would be allowed:")
            }
        };
        let lines: Vec<String> = remedy.to_string().lines().map(|line| format!("  {line}\n")).collect();
        format!("\n{introduction}\n\n{}", lines.concat())
    }

    fn sentence(&self, verdict: &Verdict) -> String {
        let rule = verdict.rule.map_or(String::new(), |rule| format!(" [{}]", self.policy.rule_text(rule)));
        format!("{}{rule}", verdict.reason)
    }

    fn json(&self) -> Value {
        let address = |Judged { address, class, verdict }: &Judged| {
            json!({
                "address": address.to_string(),
                "address_class": class.as_str(),
                "allowed": verdict.is_allowed(),
                "class": verdict.class.as_str(),
                "code": verdict.reason.code(),
                "reason": verdict.reason.to_string(),
                "rule": verdict.rule.map(|rule| self.policy.rule_text(rule)),
            })
        };
        let is_name_denied = self.explanation.found.is_none();
        json!({
            "user": &*self.user.name,
            "host": self.target.host.to_string(),
            "port": self.target.port,
            "name": is_name_denied.then(|| decision(&self.explanation.outcome)),
            "addresses": self.explanation.addresses.iter().map(address).collect::<Vec<_>>(),
            "decision": decision(self.outcome()),
            "dials": self.outcome().dials.iter().map(SocketAddr::to_string).collect::<Vec<_>>(),
            "remedy": self.remedy().map(Remedy::to_string),
        })
    }
}

fn decision(Outcome { allowed, code, reason, rule, .. }: &Outcome) -> Value {
    json!({ "allowed": allowed, "code": code, "reason": reason, "rule": rule })
}

fn target(text: &str) -> Result<Target, String> {
    Target::parse_authority(text.as_bytes()).map_err(|error| error.to_string())
}
