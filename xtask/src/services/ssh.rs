//! sshd with its own configuration and keys; the current user logs in with a generated key.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};

use super::{Endpoints, Instance, daemon::Daemon, tool};

/// The chroot of sshd's unprivileged process. The path is compiled into Debian's sshd, which refuses to start
/// without it. systemd creates it for the service; in a container it is missing.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";

/// Creates the keys of host and user unless they exist, and writes sshd's configuration.
pub(super) fn prepare(instance: &Instance) -> Result<Daemon> {
    if rustix::process::geteuid().is_root() {
        fs::create_dir_all(PRIVILEGE_SEPARATION).with_context(|| PRIVILEGE_SEPARATION)?;
    }
    for name in ["host_key", "user_key"] {
        if !Path::new(&instance.path(name)).exists() {
            make_key(&instance.path(name)).with_context(|| format!("making {name}"))?;
        }
    }
    let host_key = fs::read_to_string(instance.path("host_key.pub"))?;
    fs::write(instance.path("known_hosts"), format!("[127.0.0.1]:{} {host_key}", instance.port))?;
    fs::write(instance.path("sshd_config"), configuration(instance))?;
    let mut command = Command::new("/usr/sbin/sshd");
    command.args(["-D", "-e", "-f", &instance.path("sshd_config")]);
    Ok(Daemon::new(command))
}

/// The values with which a client logs in to 127.0.0.1 without a prompt.
pub(super) fn endpoints(instance: &Instance) -> Result<Endpoints> {
    Ok(vec![
        ("SSH_PORT", instance.port.to_string()),
        ("SSH_USER", user()?),
        ("SSH_KEY", instance.path("user_key")),
        ("SSH_KNOWN_HOSTS", instance.path("known_hosts")),
    ])
}

fn configuration(instance: &Instance) -> String {
    // StrictModes would refuse a key file below a world-writable folder, such as /tmp.
    format!(
        r#"ListenAddress 127.0.0.1:{port}
HostKey "{directory}/host_key"
AuthorizedKeysFile "{directory}/user_key.pub"
AuthenticationMethods publickey
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PidFile none
"#,
        port = instance.port,
        directory = instance.directory.display()
    )
}

fn make_key(path: &str) -> Result<()> {
    let mut command = Command::new("ssh-keygen");
    command.args(["-q", "-t", "ed25519", "-N", "", "-C", "sample", "-f", path]);
    tool::run(&mut command)?;
    Ok(())
}

fn user() -> Result<String> {
    let name = tool::run(Command::new("id").args(["--user", "--name"]))?;
    Ok(name.trim().to_owned())
}
