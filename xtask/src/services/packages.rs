//! Debian packages: installs the missing ones with apt-get.
//!
//! Guarantees: quick if all are installed. The installation starts no daemon of a package. Where apt-get
//! cannot be used, the error names the packages to install by hand.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::tool;

/// A package and a path that exists if it is installed: a file of it, or, where the path contains a version,
/// the folder of the versions.
pub(super) struct Package {
    name: &'static str,
    installed_path: &'static str,
    /// Not every Debian release has it: skipped where apt does not know it.
    optional: bool,
}

const fn package(name: &'static str, installed_path: &'static str) -> Package {
    Package { name, installed_path, optional: false }
}

/// Programs that the ignored tests run or connect to.
pub(super) const PEERS: [Package; 22] = [
    package("apt-utils", "/usr/bin/apt-ftparchive"),
    package("chromium", "/usr/bin/chromium"),
    package("connect-proxy", "/usr/bin/connect-proxy"),
    package("curl", "/usr/bin/curl"),
    package("default-jdk-headless", "/usr/bin/javac"),
    package("fcgiwrap", "/usr/sbin/fcgiwrap"),
    package("git", "/usr/lib/git-core/git-http-backend"),
    package("golang-go", "/usr/bin/go"),
    package("iperf3", "/usr/bin/iperf3"),
    package("linux-perf", "/usr/bin/perf"),
    package("ncat", "/usr/bin/ncat"),
    package("nginx", "/usr/sbin/nginx"),
    package("nodejs", "/usr/bin/node"),
    package("npm", "/usr/bin/npm"),
    package("openssh-server", "/usr/sbin/sshd"),
    package("openssl", "/usr/bin/openssl"),
    package("postgresql", "/usr/lib/postgresql"),
    package("python3-pip", "/usr/lib/python3/dist-packages/pip"),
    package("python3-requests", "/usr/lib/python3/dist-packages/requests"),
    package("python3-websockets", "/usr/lib/python3/dist-packages/websockets"),
    package("redis-server", "/usr/bin/redis-server"),
    package("wget", "/usr/bin/wget"),
];

/// The proxies that the lab compares with.
pub(super) const RIVALS: [Package; 8] = [
    Package { name: "3proxy", installed_path: "/usr/bin/3proxy", optional: true },
    package("dante-server", "/usr/sbin/danted"),
    package("haproxy", "/usr/sbin/haproxy"),
    package("libnginx-mod-stream", "/usr/lib/nginx/modules/ngx_stream_module.so"),
    package("microsocks", "/usr/bin/microsocks"),
    package("nginx", "/usr/sbin/nginx"),
    package("squid", "/usr/sbin/squid"),
    package("tinyproxy", "/usr/bin/tinyproxy"),
];

/// Installs the missing packages of the list.
pub(super) fn install(packages: &[Package]) -> Result<()> {
    let missing: Vec<&Package> = packages.iter().filter(|p| !Path::new(p.installed_path).exists()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    if !rustix::process::geteuid().is_root() || !Path::new("/usr/bin/apt-get").exists() {
        bail!("missing: {0}; install them, on Debian by `apt-get install {0}` as root", names.join(" "));
    }
    let _start_policy = StartPolicy::install()?;
    // The package lists may be absent, or name files that the mirror has replaced. Fetch them only on
    // failure.
    if install_available(&missing).is_ok() {
        return Ok(());
    }
    println!("updating the package lists");
    tool::run(&mut apt_get(&["update"]))?;
    install_available(&missing)
}

fn install_available(missing: &[&Package]) -> Result<()> {
    let (available, unavailable): (Vec<&Package>, Vec<&Package>) =
        missing.iter().copied().partition(|package| !package.optional || is_available(package));
    for package in unavailable {
        println!("{} is not in this Debian release: skipped", package.name);
    }
    let names: Vec<&str> = available.iter().map(|package| package.name).collect();
    if names.is_empty() {
        return Ok(());
    }
    println!("installing {}", names.join(" "));
    tool::run(&mut apt_get(&[&["install", "--yes", "--no-install-recommends"], &names[..]].concat()))?;
    Ok(())
}

fn is_available(package: &Package) -> bool {
    let mut command = Command::new("apt-cache");
    command.args(["show", "--quiet", package.name]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn apt_get(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.arg("--quiet=2").args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Keeps Debian's maintainer scripts from starting daemons until it is dropped (deb-systemd-invoke(1),
/// invoke-rc.d(8)). An existing policy of the machine stays as it is.
struct StartPolicy {
    is_created: bool,
}

const POLICY: &str = "/usr/sbin/policy-rc.d";

impl StartPolicy {
    fn install() -> Result<StartPolicy> {
        let script = "#!/bin/sh\n# Forbids every action: see invoke-rc.d(8), exit code 101.\nexit 101\n";
        match fs::File::create_new(POLICY) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Ok(StartPolicy { is_created: false });
            }
            created => drop(created.with_context(|| format!("creating {POLICY}"))?),
        }
        let guard = StartPolicy { is_created: true };
        fs::write(POLICY, script)?;
        fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755))?;
        Ok(guard)
    }
}

impl Drop for StartPolicy {
    fn drop(&mut self) {
        if self.is_created
            && let Err(error) = fs::remove_file(POLICY)
        {
            eprintln!(
                "{POLICY} cannot be removed: {error}; remove it, as it keeps every daemon from starting"
            );
        }
    }
}
