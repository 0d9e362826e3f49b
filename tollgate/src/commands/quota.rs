//! `tollgate quota`: what is left of quotas, and grants.
//!
//! Guarantees: a running gateway answers for itself, to the byte. Without one the ledger answers, and the
//! last bytes of a killed gateway, which are in its live table alone, are missing. A grant is on stable
//! storage when the command ends with exit code 0, with its author and its reason; none is ever changed or
//! removed.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use gateway::config::settings::byte_size;
use gateway::credit::quota_meter::Owner;
use gateway::server::Gateway;
use gateway::server::quotas::{GrantRequest, QuotaReport, quotas_of};
use serde_json::{Value, json};

use super::usage::bytes;
use super::{Context, print, print_json, table};
use crate::control::{self, Command as ControlCommand, Outcome};

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    list: ListOptions,
}

#[derive(Args)]
struct ListOptions {
    /// The quotas of this user, and of the teams above it.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// The quotas of this team.
    #[arg(long, value_name = "NAME", conflicts_with = "user")]
    team: Option<String>,
    /// Print JSON with exact bytes.
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Add bytes to the present period of a quota. The ledger records the grant with its author and reason.
    Grant(GrantOptions),
}

#[derive(Args)]
struct GrantOptions {
    /// The user, or with --team the team.
    name: String,
    /// The bytes, with their unit: 5GB, 500MiB.
    #[arg(value_parser = size)]
    size: u64,
    /// NAME is a team.
    #[arg(long)]
    team: bool,
    /// The quota, or the beginning of its name, as `tollgate quota` prints it: day, day/external/up. Needed
    /// where there are several.
    #[arg(long = "for", value_name = "QUOTA", default_value = "")]
    quota: String,
    /// The reason, for the record.
    #[arg(long)]
    reason: String,
    /// The author, for the record; by default the account that runs the command.
    #[arg(long)]
    author: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn size(text: &str) -> Result<u64, String> {
    let size = byte_size(text).filter(|size| size.0 > 0);
    size.map(|size| size.0).ok_or_else(|| "expected a size such as 5GB or 500MiB".to_owned())
}

pub(crate) fn run(context: &Context, options: Options) -> anyhow::Result<ExitCode> {
    let config = context.load()?;
    let directory = std::path::absolute(&config.ledger.directory)?;
    match options.command {
        Some(Command::Grant(options)) => grant_by(&directory, options)?,
        None => {
            let owners = owners(&config, &options.list)?;
            let rows = match control::request(&directory, &ControlCommand::Quotas)? {
                Some(Outcome { is_done: true, text }) => serde_json::from_str(&text)?,
                Some(Outcome { text, .. }) => bail!("the gateway refused: {text}"),
                None => quotas_of(config)?.iter().map(as_json).collect(),
            };
            list(rows, owners.as_deref(), options.list.json)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The owners whose quotas are requested, as kind and name; `None` for all.
fn owners(
    config: &gateway::config::Config,
    options: &ListOptions,
) -> anyhow::Result<Option<Vec<(&'static str, String)>>> {
    if let Some(name) = &options.team {
        if !config.teams.iter().any(|team| *team.name == **name) {
            bail!("there is no team `{name}`");
        }
        return Ok(Some(vec![("team", name.clone())]));
    }
    let Some(name) = &options.user else { return Ok(None) };
    let user = config.user(name).with_context(|| format!("there is no user `{name}`"))?;
    let mut owners = vec![("user", name.clone())];
    let mut team = user.team;
    while let Some(above) = team.map(|team| &config.teams[team]) {
        owners.push(("team", above.name.to_string()));
        team = above.parent;
    }
    Ok(Some(owners))
}

fn list(rows: Vec<Value>, owners: Option<&[(&'static str, String)]>, as_json: bool) -> anyhow::Result<()> {
    let is_requested =
        |row: &Value| owners.is_none_or(|owners| owners.iter().any(|(kind, name)| row[*kind] == json!(name)));
    let rows: Vec<Value> = rows.into_iter().filter(is_requested).collect();
    if as_json {
        return Ok(print_json(&json!({ "quotas": rows }))?);
    }
    if rows.is_empty() {
        return Ok(print("no quotas\n")?);
    }
    let header = ["owner", "quota", "limit", "granted", "used", "left", "next period", "state"];
    Ok(print(&table(&header, rows.iter().map(cells).collect(), &[2, 3, 4, 5]))?)
}

fn cells(row: &Value) -> Vec<String> {
    let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let size = |key: &str| bytes(row[key].as_u64().unwrap_or_default());
    let owner = match row["team"].as_str() {
        Some(team) => format!("team {team}"),
        None => format!("user {}", text("user")),
    };
    let next = text("period_end");
    vec![
        owner,
        text("quota"),
        size("limit"),
        size("granted"),
        size("used"),
        size("left"),
        if next.is_empty() { "never".to_owned() } else { next },
        text("state"),
    ]
}

fn as_json(report: &QuotaReport) -> Value {
    let QuotaReport { owner, key, status, period_start, period_end } = report;
    let (kind, name) = match owner {
        Owner::User(name) => ("user", name),
        Owner::Team(name) => ("team", name),
    };
    let state = match status.is_known {
        false => "unknown",
        true if status.used >= status.total() => "exhausted",
        true => "open",
    };
    let moment = |text: &str| if text.is_empty() { Value::Null } else { json!(text) };
    json!({
        kind: name, "quota": key, "limit": status.limit, "granted": status.granted, "used": status.used,
        "left": status.total().saturating_sub(status.used), "percent": status.percent(),
        "period_start": moment(period_start), "period_end": moment(period_end), "state": state,
    })
}

fn grant_by(directory: &Path, options: GrantOptions) -> anyhow::Result<()> {
    let GrantOptions { name, size, team, quota, reason, author, json: as_json } = options;
    let author = author.unwrap_or_else(super::ledger::account);
    let kind = if team { "team" } else { "user" };
    let request = json!({ kind: name, "quota": quota, "bytes": size, "author": author, "reason": reason });
    let outcome = control::request(directory, &ControlCommand::Grant(request.to_string()))?;
    let outcome = outcome.with_context(|| {
        let shown = directory.display();
        format!("no gateway serves with the ledger in {shown}: a grant needs a running gateway")
    })?;
    if !outcome.is_done {
        bail!("{}", outcome.text);
    }
    let row: Value = serde_json::from_str(&outcome.text)?;
    if as_json {
        return Ok(print_json(&row)?);
    }
    let left = bytes(row["left"].as_u64().unwrap_or_default());
    let text = format!(
        "granted {} to {kind} {name}, quota {}: {left} are left until {}\n",
        bytes(size),
        row["quota"].as_str().unwrap_or_default(),
        row["period_end"].as_str().unwrap_or("they are used"),
    );
    Ok(print(&text)?)
}

/// Answers `tollgate quota` for a running gateway.
pub(super) fn state(gateway: &Gateway) -> Outcome {
    let rows: Vec<Value> = gateway.quotas().iter().map(as_json).collect();
    Outcome { is_done: true, text: json!(rows).to_string() }
}

/// Answers `tollgate quota grant` for a running gateway.
pub(super) fn grant(gateway: &Gateway, request: &str) -> Outcome {
    let outcome = parse_grant(request).and_then(|request| gateway.grant(&request));
    match outcome {
        Ok(report) => Outcome { is_done: true, text: as_json(&report).to_string() },
        Err(text) => Outcome { is_done: false, text },
    }
}

fn parse_grant(request: &str) -> Result<GrantRequest, String> {
    let value: Value = serde_json::from_str(request).map_err(|error| format!("the request: {error}"))?;
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let owner = match (value["user"].as_str(), value["team"].as_str()) {
        (Some(user), None) => Owner::User(user.into()),
        (None, Some(team)) => Owner::Team(team.into()),
        _ => return Err("the request names neither a user nor a team".to_owned()),
    };
    let bytes = value["bytes"].as_u64().filter(|bytes| *bytes > 0).ok_or("the request has no bytes")?;
    Ok(GrantRequest { owner, key: text("quota"), bytes, author: text("author"), reason: text("reason") })
}
