//! `tollgate user`: manages users and their files.
//!
//! Guarantees: a file is written or removed only if the configuration stays valid. A secret is printed once,
//! when it is generated, and only its hash is stored. An irreversible change needs confirmation. A running
//! gateway takes a change up by `reload`.

mod confirmation;

use std::io::{self, BufRead, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use gateway::config::{Config, ConfigErrors, Ingress, LoadOptions, Origin, User};
use gateway::users::{
    self, Credential, Edit, PASSWORD_BYTES_MAX, PasswordHash, TokenHash, UserFile, UserName, UsersLock,
};
use ipnet::IpNet;
use policy::rules::Rule;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use self::confirmation::Confirmation;
use super::{Context, print, print_json, table};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Add a user. Without --password-stdin, --token or --from a password is generated and printed once.
    Add(AddOptions),
    /// List the users.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Refuse a user from the next reload on, cut their open connections, and keep the name reserved.
    Disable {
        /// The user.
        name: UserName,
    },
    /// Admit a disabled user again, from the next reload on.
    Enable {
        /// The user.
        name: UserName,
    },
    /// Remove a user's file, and cut their open connections at the next reload. The ledger keeps their usage.
    Remove {
        /// The user.
        name: UserName,
        #[command(flatten)]
        confirmation: Confirmation,
    },
    /// Give a user a new password or token. Without options a password is generated and printed once.
    Passwd {
        /// The user.
        name: UserName,
        #[command(flatten)]
        secret: SecretOptions,
        #[command(flatten)]
        confirmation: Confirmation,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub(crate) struct AddOptions {
    /// The user: a-z, 0-9, '.', '_' and '-'.
    name: UserName,
    /// A destination that the user may reach: HOST:PORT, *.HOST, NETWORK:PORT, @SET. May be repeated.
    #[arg(long, value_name = "DEST")]
    allow: Vec<Rule>,
    /// A destination that the user may not reach, even if a rule allows it. May be repeated.
    #[arg(long, value_name = "DEST")]
    deny: Vec<Rule>,
    /// Resolve any name for the networks that the user may reach; the name servers then see every name.
    #[arg(long)]
    resolve_for_networks: bool,
    /// A network whose connections belong to this user without credentials. May be repeated.
    #[arg(long, value_name = "CIDR", value_parser = gateway::config::settings::network)]
    from: Vec<IpNet>,
    /// The user's connections at the same time, at most.
    #[arg(long, value_name = "N")]
    connections: Option<u32>,
    #[command(flatten)]
    secret: SecretOptions,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct SecretOptions {
    /// Read the password from standard input: one line.
    #[arg(long)]
    password_stdin: bool,
    /// Generate a token, for a program, instead of a password.
    #[arg(long)]
    token: bool,
}

pub(crate) fn run(context: &Context, command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Add(options) => add(context, options)?,
        Command::List { json } => list(&context.load()?, *json)?,
        Command::Disable { name } => disable(context, name)?,
        Command::Enable { name } => enable(context, name)?,
        Command::Remove { name, confirmation } => remove(context, name, confirmation)?,
        Command::Passwd { name, secret, confirmation, json } => {
            passwd(context, name, secret, confirmation, *json)?
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn add(context: &Context, options: &AddOptions) -> anyhow::Result<()> {
    let load_options = context.load_options()?;
    let config = Config::load(&load_options)?;
    let name = &options.name;
    if let Some(user) = config.user(name) {
        bail!("user `{name}` exists, in {}", defining_file(&config, user));
    }
    let wants_secret = options.secret.password_stdin || options.secret.token || options.from.is_empty();
    let secret = wants_secret.then(|| Secret::make(&options.secret)).transpose()?;
    let texts = |rules: &[Rule]| rules.iter().map(Rule::to_string).collect();
    let file = UserFile {
        credential: secret.as_ref().map(|secret| secret.credential.clone()),
        from: options.from.iter().map(IpNet::to_string).collect(),
        allow: texts(&options.allow),
        deny: texts(&options.deny),
        resolve_for_networks: options.resolve_for_networks,
        connections: options.connections,
    };
    let path = users::path_of(&config.users_directory, name);
    let _lock = lock(&config)?;
    check_draft(load_options, &path, Some(file.to_toml()))?;
    users::create(&config.users_directory, name, &file.to_toml())
        .with_context(|| format!("cannot write {}", path.display()))?;
    print_result(&config, name, &path, secret.as_ref(), options.json)?;
    Ok(())
}

fn passwd(
    context: &Context,
    name: &UserName,
    options: &SecretOptions,
    confirmation: &Confirmation,
    json: bool,
) -> anyhow::Result<()> {
    let load_options = context.load_options()?;
    let config = Config::load(&load_options)?;
    let user = find_user(&config, name)?;
    if user.file.is_some() && matches!(user.credential, Some(Credential::Token(_))) && !options.token {
        confirmation.require(&format!(
            "user `{name}` has a token, and its clients are refused once a password replaces it \
             (--token makes a new token)"
        ))?;
    }
    let secret = Secret::make(options)?;
    let key = secret.credential.key();
    let hash = users::quoted(&secret.credential.to_text());
    let Some(path) = &user.file else {
        let file = defining_file(&config, user);
        let mut lines =
            secret.shown.as_ref().map_or(String::new(), |secret| format!("{key}: {}\n", secret.as_str()));
        lines.push_str(&format!("Put this into the [[user]] table of `{name}` in {file}:\n{key} = {hash}\n"));
        return Ok(print(&lines)?);
    };
    let other = if key == "password" { "token" } else { "password" };
    change(load_options, &config, path, &[Edit::Remove(other), Edit::Set(key, &hash)])?;
    print_result(&config, name, path, Some(&secret), json)?;
    Ok(())
}

fn disable(context: &Context, name: &UserName) -> anyhow::Result<()> {
    let load_options = context.load_options()?;
    let config = Config::load(&load_options)?;
    let path = own_file(&config, name, "write `disabled = true` there")?;
    change(load_options, &config, path, &[Edit::Set("disabled", "true")])?;
    let text = format!("user {name} is disabled, in {}\n{RELOAD_HINT}", path.display());
    Ok(print(&text)?)
}

fn enable(context: &Context, name: &UserName) -> anyhow::Result<()> {
    let load_options = context.load_options()?;
    let config = Config::load(&load_options)?;
    let path = own_file(&config, name, "remove `disabled = true` there")?;
    change(load_options, &config, path, &[Edit::Remove("disabled")])?;
    let text = format!("user {name} is enabled, in {}\n{RELOAD_HINT}", path.display());
    Ok(print(&text)?)
}

fn remove(context: &Context, name: &UserName, confirmation: &Confirmation) -> anyhow::Result<()> {
    let load_options = context.load_options()?;
    let config = Config::load(&load_options)?;
    let path = own_file(&config, name, "remove the `[[user]]` table there")?;
    check_draft(load_options, path, None)?;
    confirmation.require(&format!(
        "{} is deleted for good, with the rules and the credential of user `{name}` \
         (`tollgate user disable {name}` keeps them)",
        path.display()
    ))?;
    let _lock = lock(&config)?;
    users::remove(path).with_context(|| format!("cannot remove {}", path.display()))?;
    let text = format!(
        "user {name} is removed\n\
         The ledger keeps what {name} used; a new user of this name would continue it, and until the\n\
         gateway has reloaded, also the open connections of {name}.\n{RELOAD_HINT}"
    );
    Ok(print(&text)?)
}

fn list(config: &Config, json: bool) -> anyhow::Result<()> {
    if json {
        let users: Vec<Value> = config.users.iter().map(|user| user_json(config, user)).collect();
        return Ok(print_json(&json!(users))?);
    }
    let row = |user: &User| {
        vec![
            user.name.to_string(),
            if user.disabled { "disabled" } else { "active" }.to_owned(),
            known_by(user).join(", "),
            user.connections_max.to_string(),
            listed(&user.allow),
            listed(&user.deny),
            defining_file(config, user),
        ]
    };
    let header = ["user", "state", "known by", "connections", "allow", "deny", "file"];
    let rows = config.users.iter().map(row).collect();
    Ok(print(&table(&header, rows, &[3]))?)
}

/// A new secret: its stored form, and the text to print once, unless the user chose it.
struct Secret {
    credential: Credential,
    shown: Option<Zeroizing<String>>,
}

impl Secret {
    fn make(options: &SecretOptions) -> anyhow::Result<Secret> {
        if options.token {
            let token = users::generate_token()?;
            let credential = Credential::Token(TokenHash::make(&token)?);
            return Ok(Secret { credential, shown: Some(token) });
        }
        if options.password_stdin {
            let password = read_password(io::stdin().lock(), io::stdin().is_terminal())?;
            let credential = Credential::Password(PasswordHash::make(&password)?);
            return Ok(Secret { credential, shown: None });
        }
        let password = users::generate_password()?;
        let credential = Credential::Password(PasswordHash::make(&password)?);
        Ok(Secret { credential, shown: Some(password) })
    }
}

/// Reads one line; more input is an error, except at a terminal.
fn read_password(mut input: impl BufRead, terminal: bool) -> anyhow::Result<Zeroizing<String>> {
    // Allocated at its final size, so that no growth leaves a copy behind.
    let mut line = Zeroizing::new(Vec::with_capacity(PASSWORD_BYTES_MAX + 3));
    (&mut input).take(PASSWORD_BYTES_MAX as u64 + 2).read_until(b'\n', &mut line)?;
    if !terminal && line.ends_with(b"\n") && input.read(&mut [0])? > 0 {
        bail!("standard input has more than one line: the password is one line");
    }
    let text = std::str::from_utf8(&line).context("the password is not UTF-8 text")?;
    let text = text.strip_suffix('\n').map_or(text, |text| text.strip_suffix('\r').unwrap_or(text));
    Ok(Zeroizing::new(text.to_owned()))
}

fn find_user<'a>(config: &'a Config, name: &UserName) -> anyhow::Result<&'a User> {
    config.user(name).with_context(|| format!("there is no user `{name}`"))
}

/// The file of a user; for a user of the configuration file the error says what to edit there.
fn own_file<'a>(config: &'a Config, name: &UserName, instead: &str) -> anyhow::Result<&'a Path> {
    let user = find_user(config, name)?;
    let file = user.file.as_deref();
    file.with_context(|| format!("user `{name}` is defined in {}: {instead}", defining_file(config, user)))
}

/// Waits for other commands that change users. Two that read, check and write concurrently would each undo
/// the other's change, and both report success.
fn lock(config: &Config) -> anyhow::Result<UsersLock> {
    let directory = &config.users_directory;
    users::lock(directory).with_context(|| format!("cannot open {}", directory.display()))
}

/// Edits a user file, if the configuration stays valid.
fn change(load_options: LoadOptions, config: &Config, path: &Path, edits: &[Edit<'_>]) -> anyhow::Result<()> {
    let _lock = lock(config)?;
    let before = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let text = users::edited(&before, edits)?;
    check_draft(load_options, path, Some(text.clone()))?;
    users::replace(path, &before, &text).with_context(|| format!("cannot write {}", path.display()))
}

/// The configuration was valid before, so an error is due to the command: exit code 1, not 78.
fn check_draft(load_options: LoadOptions, path: &Path, text: Option<String>) -> anyhow::Result<()> {
    let draft = Some((path.to_owned(), text));
    match Config::load(&LoadOptions { draft, ..load_options }) {
        Ok(_) => Ok(()),
        Err(ConfigErrors(findings)) => {
            let errors = findings.render(gateway::config::Severity::Error, false);
            bail!("nothing was changed, because the configuration would be invalid:\n{errors}")
        }
    }
}

const RELOAD_HINT: &str =
    "To apply this to a running gateway: tollgate reload (with the same --config, if any)\n";

/// Prints the file, and the secret, which cannot be shown again.
fn print_result(
    config: &Config,
    name: &UserName,
    path: &Path,
    secret: Option<&Secret>,
    json: bool,
) -> io::Result<()> {
    let shown = secret.and_then(|secret| Some((secret.credential.key(), secret.shown.as_ref()?)));
    if json {
        let mut value = json!({ "user": &**name, "file": path.display().to_string() });
        if let Some((key, secret)) = shown {
            value[key] = json!(secret.as_str());
        }
        return print_json(&value);
    }
    let mut text = format!("user {name}, in {}\n", path.display());
    if let Some((key, secret)) = shown {
        text.push_str(&format!("{key}: {} (shown this once; only its hash is kept)\n", secret.as_str()));
        if let Some(address) = proxy_address(config) {
            text.push_str(&format!("proxy: http://{name}:{}@{address}\n", secret.as_str()));
        }
    }
    text.push_str(RELOAD_HINT);
    print(&text)
}

/// The address of the gateway for a client on this machine.
fn proxy_address(config: &Config) -> Option<String> {
    let is_http = |ingress: &Ingress| matches!(ingress, Ingress::Mixed | Ingress::Http);
    let listener = config.listeners.iter().find(|listener| is_http(&listener.ingress))?;
    let mut address = listener.address;
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    Some(address.to_string())
}

fn user_json(config: &Config, user: &User) -> Value {
    json!({
        "user": &*user.name,
        "disabled": user.disabled,
        "credential": user.credential.as_ref().map(Credential::key),
        "from": user.from.iter().map(IpNet::to_string).collect::<Vec<_>>(),
        "allow": user.allow,
        "deny": user.deny,
        "connections": user.connections_max,
        "file": defining_file(config, user),
    })
}

fn known_by(user: &User) -> Vec<String> {
    let credential = user.credential.iter().map(|credential| credential.key().to_owned());
    credential.chain(user.from.iter().map(IpNet::to_string)).collect()
}

/// The first rules of a list, and the number of the others.
fn listed(rules: &[String]) -> String {
    const SHOWN_MAX: usize = 3;
    match rules.len().checked_sub(SHOWN_MAX) {
        Some(rest @ 1..) => format!("{} and {rest} more", rules[..SHOWN_MAX].join(", ")),
        _ => rules.join(", "),
    }
}

/// The file that defines a user.
fn defining_file(config: &Config, user: &User) -> String {
    let path: Option<&PathBuf> = user.file.as_ref().or(match &config.origin {
        Origin::File(path) => Some(path),
        Origin::Embedded => None,
    });
    path.map_or(String::new(), |path| path.display().to_string())
}
