//! The relays that are installed on this machine, and why the others are skipped.
//!
//! Guarantees: a program is run for its version and for nothing else.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::squid;
use super::target::Target;
use crate::kit::child;
use crate::kit::measurements::Skipped;
use crate::kit::rounds::RoundTarget;

/// The directories of nginx modules: those of Debian and its descendants, then of others.
const NGINX_MODULES: [&str; 3] =
    ["/usr/lib/nginx/modules", "/usr/lib64/nginx/modules", "/usr/share/nginx/modules"];

/// An installed relay.
#[derive(Clone, Debug)]
pub(crate) struct InstalledTarget {
    pub(crate) target: Target,
    pub(crate) version: String,
    pub(crate) program: PathBuf,
    /// nginx's stream module, where it is not built in.
    pub(crate) module: Option<PathBuf>,
}

impl RoundTarget for InstalledTarget {
    fn name(&self) -> &'static str {
        self.target.name()
    }
}

impl InstalledTarget {
    /// Whether the program lies where Cargo puts builds without optimisation.
    pub(crate) fn is_unoptimised(&self) -> bool {
        self.target == Target::Tollgate && self.program.components().any(|part| part.as_os_str() == "debug")
    }
}

/// Finds the installed relays of `wanted`, and why the others are skipped; `without` names relays to skip.
/// `tollgate` defaults to the executable beside this one.
///
/// # Errors
/// The gateway is wanted and missing: without it, minutes of the others prove nothing.
pub(crate) fn find(
    wanted: &[Target],
    tollgate: Option<&Path>,
    without: &[Target],
) -> Result<(Vec<InstalledTarget>, Vec<Skipped>)> {
    let (mut found, mut skipped) = (Vec::new(), Vec::new());
    for &target in wanted {
        match find_one(target, tollgate, without) {
            Ok(installed) => found.push(installed),
            Err(error) if target == Target::Tollgate && !without.contains(&target) => return Err(error),
            Err(error) => {
                skipped.push(Skipped { name: target.name().to_owned(), reason: format!("{error:#}") });
            }
        }
    }
    Ok((found, skipped))
}

fn find_one(target: Target, tollgate: Option<&Path>, without: &[Target]) -> Result<InstalledTarget> {
    ensure!(!without.contains(&target), "skipped by --without");
    match target {
        Target::Direct => {
            Ok(InstalledTarget { target, version: String::new(), program: PathBuf::new(), module: None })
        }
        // A command of the lab.
        Target::BareRelay | Target::BareSplice | Target::BareQuota => {
            let program = child::own_program()?;
            Ok(InstalledTarget { target, version: String::new(), program, module: None })
        }
        Target::Tollgate => find_tollgate(tollgate),
        // The same program, whose version is reported once.
        Target::TollgateLimited => {
            Ok(InstalledTarget { target, version: String::new(), ..find_tollgate(tollgate)? })
        }
        Target::Haproxy => find_by_name(target, &["haproxy"], Some("-v")),
        Target::Nginx => find_nginx(),
        Target::Squid => find_squid(),
        Target::Tinyproxy => find_by_name(target, &["tinyproxy"], Some("-v")),
        Target::ThreeProxy => find_by_name(target, &["3proxy"], None),
        // Debian's name for the program differs from upstream's.
        Target::Dante => find_by_name(target, &["danted", "sockd"], Some("-v")),
        Target::Microsocks => find_by_name(target, &["microsocks"], None),
        Target::G3proxy => find_by_name(target, &["g3proxy"], Some("-V")),
    }
}

fn find_tollgate(path: Option<&Path>) -> Result<InstalledTarget> {
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
    Ok(InstalledTarget { target: Target::Tollgate, version, program, module: None })
}

/// Finds a program under one of its names. `version_flag` makes it print its version, if it can.
fn find_by_name(target: Target, names: &[&str], version_flag: Option<&str>) -> Result<InstalledTarget> {
    let program = names.iter().find_map(|name| on_path(name).ok()).context("it is not installed")?;
    let version = match version_flag {
        Some(version_flag) => first_line(Command::new(&program).arg(version_flag))?,
        None => "unknown version".to_owned(),
    };
    Ok(InstalledTarget { target, version, program, module: None })
}

fn find_nginx() -> Result<InstalledTarget> {
    let program = on_path("nginx")?;
    let output = Command::new(&program).arg("-V").output()?;
    let built_with = String::from_utf8_lossy(&output.stderr).into_owned();
    let version = built_with.lines().next().unwrap_or_default().to_owned();
    let words: Vec<&str> = built_with.split_whitespace().collect();
    if words.contains(&"--with-stream") {
        return Ok(InstalledTarget { target: Target::Nginx, version, program, module: None });
    }
    let module = NGINX_MODULES.map(|folder| Path::new(folder).join("ngx_stream_module.so"));
    let module = module.into_iter().find(|module| module.is_file());
    let module = module.context("nginx is installed without its stream module (libnginx-mod-stream)")?;
    Ok(InstalledTarget { target: Target::Nginx, version, program, module: Some(module) })
}

fn find_squid() -> Result<InstalledTarget> {
    let program = on_path("squid")?;
    let version = first_line(Command::new(&program).arg("-v"))?;
    let version = if squid::can_run_workers() { version } else { format!("{version}, with one worker only") };
    Ok(InstalledTarget { target: Target::Squid, version, program, module: None })
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
    fn missing_tollgate_is_an_error_with_the_remedy() {
        let find = |without: &[Target]| {
            let wanted = [Target::Direct, Target::Tollgate, Target::Haproxy];
            find(&wanted, Some(Path::new("/nonexistent/tollgate")), without)
        };
        let error = find(&[Target::Haproxy, Target::Squid]).expect_err("the gateway is wanted").to_string();
        assert!(error.contains("cargo build --release") && error.contains("--tollgate"), "{error}");
        let (found, skipped) = find(&[Target::Tollgate, Target::Haproxy]).expect("the gateway is skipped");
        assert_eq!(found.iter().map(|installed| installed.target).collect::<Vec<_>>(), [Target::Direct]);
        let unwanted =
            |name: &str| Skipped { name: name.to_owned(), reason: "skipped by --without".to_owned() };
        assert_eq!(skipped, ["tollgate", "haproxy"].map(unwanted));
    }
}
