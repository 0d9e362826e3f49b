//! Who can compete on this machine: the relays that are installed, and why the others are not here.
//! Promises: each is asked for its version and for nothing else. Leaves to others: their configurations, and
//! running them (`running.rs`).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::squid;
use super::target::Kind;
use crate::kit::measurements::Skipped;

/// Where nginx modules lie, as Debian and its descendants, then others, install them.
const NGINX_MODULES: [&str; 3] =
    ["/usr/lib/nginx/modules", "/usr/lib64/nginx/modules", "/usr/share/nginx/modules"];

/// An installed relay.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    pub(crate) kind: Kind,
    pub(crate) version: String,
    pub(crate) program: PathBuf,
    /// nginx's stream module, where it is not built in.
    pub(crate) module: Option<PathBuf>,
}

impl Contender {
    /// Whether it lies where Cargo puts builds without optimisation.
    pub(crate) fn is_unoptimised(&self) -> bool {
        self.kind == Kind::Tollgate && self.program.components().any(|part| part.as_os_str() == "debug")
    }
}

/// Finds those of `wanted` that can compete here, and says why the others cannot or, being among `without`,
/// must not. `tollgate` defaults to the executable beside this one.
///
/// # Errors
/// The gateway is wanted and not there: without it, minutes of the others say nothing.
pub(crate) fn find(
    wanted: &[Kind],
    tollgate: Option<&Path>,
    without: &[Kind],
) -> Result<(Vec<Contender>, Vec<Skipped>)> {
    let (mut found, mut skipped) = (Vec::new(), Vec::new());
    for &kind in wanted {
        match find_one(kind, tollgate, without) {
            Ok(contender) => found.push(contender),
            Err(error) if kind == Kind::Tollgate && !without.contains(&kind) => return Err(error),
            Err(error) => {
                skipped.push(Skipped { name: kind.name().to_owned(), reason: format!("{error:#}") });
            }
        }
    }
    Ok((found, skipped))
}

fn find_one(kind: Kind, tollgate: Option<&Path>, without: &[Kind]) -> Result<Contender> {
    ensure!(!without.contains(&kind), "it was not wanted");
    match kind {
        Kind::Direct => Ok(Contender { kind, version: String::new(), program: PathBuf::new(), module: None }),
        Kind::Tollgate => find_tollgate(tollgate),
        Kind::Haproxy => find_by_name(kind, &["haproxy"], Some("-v")),
        Kind::Nginx => find_nginx(),
        Kind::Squid => find_squid(),
        Kind::Tinyproxy => find_by_name(kind, &["tinyproxy"], Some("-v")),
        Kind::ThreeProxy => find_by_name(kind, &["3proxy"], None),
        // Debian calls it otherwise than its makers.
        Kind::Dante => find_by_name(kind, &["danted", "sockd"], Some("-v")),
        Kind::Microsocks => find_by_name(kind, &["microsocks"], None),
        Kind::G3proxy => find_by_name(kind, &["g3proxy"], Some("-V")),
    }
}

fn find_tollgate(path: Option<&Path>) -> Result<Contender> {
    let program = match path {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()?.with_file_name("tollgate"),
    };
    if !program.is_file() {
        bail!(
            "there is no {}: build it with `cargo build --release`, or name it with --tollgate",
            program.display()
        );
    }
    let version = first_line(Command::new(&program).arg("--version"))?;
    Ok(Contender { kind: Kind::Tollgate, version, program, module: None })
}

/// Finds a program under one of its names. `asks` is how it is asked for its version, if it can be.
fn find_by_name(kind: Kind, names: &[&str], asks: Option<&str>) -> Result<Contender> {
    let program = names.iter().find_map(|name| on_path(name).ok()).context("it is not installed")?;
    let version = match asks {
        Some(asks) => first_line(Command::new(&program).arg(asks))?,
        None => "it does not tell".to_owned(),
    };
    Ok(Contender { kind, version, program, module: None })
}

fn find_nginx() -> Result<Contender> {
    let program = on_path("nginx")?;
    let output = Command::new(&program).arg("-V").output()?;
    let built_with = String::from_utf8_lossy(&output.stderr).into_owned();
    let version = built_with.lines().next().unwrap_or_default().to_owned();
    let words: Vec<&str> = built_with.split_whitespace().collect();
    if words.contains(&"--with-stream") {
        return Ok(Contender { kind: Kind::Nginx, version, program, module: None });
    }
    let module = NGINX_MODULES.map(|folder| Path::new(folder).join("ngx_stream_module.so"));
    let module = module.into_iter().find(|module| module.is_file());
    let module = module.context("nginx is installed without its stream module (libnginx-mod-stream)")?;
    Ok(Contender { kind: Kind::Nginx, version, program, module: Some(module) })
}

fn find_squid() -> Result<Contender> {
    let program = on_path("squid")?;
    let version = first_line(Command::new(&program).arg("-v"))?;
    let version = if squid::may_share_work() { version } else { format!("{version}, with one worker only") };
    Ok(Contender { kind: Kind::Squid, version, program, module: None })
}

/// Administrators' programs are often not on a user's path.
fn on_path(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let candidates = std::env::split_paths(&path).chain(usual).map(|folder| folder.join(name));
    candidates.into_iter().find(|program| program.is_file()).context("it is not installed")
}

fn first_line(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tollgate_is_an_error_with_the_remedy_unless_it_is_not_wanted() {
        let find = |without: &[Kind]| {
            let wanted = [Kind::Direct, Kind::Tollgate, Kind::Haproxy];
            find(&wanted, Some(Path::new("/nonexistent/tollgate")), without)
        };
        let error = find(&[Kind::Haproxy, Kind::Squid]).expect_err("it is wanted").to_string();
        assert!(error.contains("cargo build --release") && error.contains("--tollgate"), "{error}");
        let (found, skipped) = find(&[Kind::Tollgate, Kind::Haproxy]).expect("it is not wanted");
        assert_eq!(found.iter().map(|contender| contender.kind).collect::<Vec<_>>(), [Kind::Direct]);
        let unwanted = |name: &str| Skipped { name: name.to_owned(), reason: "it was not wanted".to_owned() };
        assert_eq!(skipped, ["tollgate", "haproxy"].map(unwanted));
    }
}
