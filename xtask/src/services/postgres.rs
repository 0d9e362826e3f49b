//! PostgreSQL with a cluster of its own; the role `postgres` needs no password on loopback.
//!
//! PostgreSQL refuses to run as root. In that case it runs as the account of Debian's package, and the
//! cluster is in the system's temporary folder, since that account may lack access to the workspace.

use std::{
    fs,
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::Signal;

use super::{Endpoints, Instance, daemon::Daemon, tool};

/// A file in the service's folder with the path of a cluster that is elsewhere.
const CLUSTER_PATH_FILE: &str = "cluster-path";

/// Creates the cluster unless it exists.
pub(super) fn prepare(instance: &Instance) -> Result<Daemon> {
    let programs = programs()?;
    let account = Account::for_server()?;
    let cluster = cluster_directory(instance, &account)?;
    if !cluster.join("PG_VERSION").exists() {
        let mut initdb = account.command(&programs.join("initdb"));
        initdb.args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync", "--pgdata"]);
        tool::run(initdb.arg(&cluster))?;
    }
    let mut command = account.command(&programs.join("postgres"));
    command.arg("-D").arg(&cluster).args(["-p", &instance.port.to_string()]);
    command.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
    // The lab compares synced inserts, and opens a connection for each row in flight.
    command.args(["-c", "fsync=on", "-c", "max_connections=300"]);
    // SIGINT is the fast shutdown: it does not wait for clients to disconnect.
    Ok(Daemon { command, is_ready, stop_signal: Signal::INT })
}

/// The values for `psql -h 127.0.0.1`.
pub(super) fn endpoints(instance: &Instance) -> Result<Endpoints> {
    Ok(vec![
        ("POSTGRES_PORT", instance.port.to_string()),
        ("POSTGRES_USER", "postgres".to_owned()),
        ("POSTGRES_DATABASE", "postgres".to_owned()),
    ])
}

/// Removes the cluster if `prepare` created it outside the service's folder.
pub(super) fn remove_cluster(directory: &Path) -> Result<()> {
    let path_file = directory.join(CLUSTER_PATH_FILE);
    let Ok(path) = fs::read_to_string(&path_file) else { return Ok(()) };
    if Path::new(&path).exists() {
        fs::remove_dir_all(&path).with_context(|| format!("removing {path}"))?;
    }
    Ok(fs::remove_file(path_file)?)
}

/// Checked by `pg_isready`: the server accepts connections before it executes queries.
fn is_ready(instance: &Instance) -> bool {
    let mut command = Command::new("pg_isready");
    command.args(["--quiet", "--host=127.0.0.1", &format!("--port={}", instance.port)]);
    command.status().is_ok_and(|status| status.success())
}

/// The programs of the newest version: Debian installs them by major version, outside PATH.
fn programs() -> Result<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").context("listing /usr/lib/postgresql")?;
    let newest = versions
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|version| Path::new(&format!("/usr/lib/postgresql/{version}/bin/initdb")).exists())
        .max()
        .ok_or_else(|| anyhow!("no server below /usr/lib/postgresql: install `postgresql`"))?;
    Ok(PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin")))
}

fn cluster_directory(instance: &Instance, account: &Account) -> Result<PathBuf> {
    let Account::Other { user, group } = *account else { return Ok(instance.directory.join("cluster")) };
    let path_file = instance.directory.join(CLUSTER_PATH_FILE);
    if let Ok(path) = fs::read_to_string(&path_file)
        && Path::new(&path).exists()
    {
        return Ok(PathBuf::from(path));
    }
    let path = std::env::temp_dir().join(format!("tollgate-postgres-{}", std::process::id()));
    fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
    chown(&path, Some(user), Some(group))?;
    fs::write(path_file, path.as_os_str().as_encoded_bytes())?;
    Ok(path)
}

/// The account that runs the server.
enum Account {
    Current,
    Other { user: u32, group: u32 },
}

impl Account {
    fn for_server() -> Result<Account> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Account::Current);
        }
        let accounts = fs::read_to_string("/etc/passwd")?;
        let line = accounts.lines().find_map(|line| line.strip_prefix("postgres:"));
        let fields: Vec<&str> = line.context("no account `postgres` in /etc/passwd")?.split(':').collect();
        let [_, user, group, ..] = fields[..] else {
            bail!("/etc/passwd: the line of `postgres` is damaged")
        };
        Ok(Account::Other { user: user.parse()?, group: group.parse()? })
    }

    /// Starts in `/`, since the account may lack access to the current folder.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir("/");
        if let Account::Other { user, group } = *self {
            command.uid(user).gid(group);
        }
        command
    }
}
