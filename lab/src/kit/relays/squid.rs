//! Peculiarities of Squid: started as root it becomes another user, which must own its directory; several
//! workers exchange messages through sockets in a directory of that user, under a name that the machine's
//! other Squids must not have.
//!
//! Guarantees: no file of it remains.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The user that Squid becomes, as Debian and its descendants, then others, build it.
const USERS: [&str; 2] = ["proxy", "squid"];

/// The directory of the sockets between the workers of one Squid.
const SOCKET_DIRECTORY: &str = "/var/run/squid";

/// The directory of their shared memory.
const SHARED_MEMORY: &str = "/dev/shm";

/// Whether several workers can reach each other here; a single one needs no sockets.
pub(super) fn can_run_workers() -> bool {
    let owner = fs::metadata(SOCKET_DIRECTORY).map(|directory| directory.uid()).ok();
    rustix::process::geteuid().is_root() && owner.is_some() && owner == user().map(|user| user.id)
}

/// As many workers as threads, where several can work.
pub(crate) fn workers(threads: usize) -> usize {
    if can_run_workers() { threads } else { 1 }
}

/// The log of one worker: each writes its own, and `number` stands for the worker's.
pub(crate) fn log(directory: &Path, number: &str) -> PathBuf {
    directory.join(format!("connections.{number}.log"))
}

/// The logs of all workers.
pub(super) fn logs(directory: &Path, threads: usize) -> Vec<PathBuf> {
    (1..=workers(threads)).map(|number| log(directory, &number.to_string())).collect()
}

/// Lets the user that Squid becomes write into its directory, and reach it.
///
/// # Errors
/// There is no such user, or the lab may not change the directory's owner.
pub(super) fn chown_directory(directory: &Path) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let user = user().context("this machine has no user that Squid could become")?;
    chown(directory, Some(user.id), Some(user.group))?;
    // The lab's own directory becomes searchable, but not readable.
    let parent = directory.parent().context("the directory of Squid has no parent directory")?;
    fs::set_permissions(parent, fs::Permissions::from_mode(0o711))?;
    Ok(())
}

/// The service name of the workers: the letters and digits of the directory's name, which is unique.
pub(super) fn service(directory: &Path) -> String {
    let name = directory.file_name().map(|name| name.to_string_lossy().into_owned());
    let letters = name.unwrap_or_default().chars().filter(char::is_ascii_alphanumeric).collect::<String>();
    format!("lab{}{letters}", std::process::id())
}

/// The files that Squid leaves outside of its directory; removed when dropped.
#[derive(Debug)]
pub(super) struct LeftoverFiles {
    prefix: String,
}

impl LeftoverFiles {
    pub(super) fn of(directory: &Path) -> Self {
        Self { prefix: format!("{}-", service(directory)) }
    }
}

impl Drop for LeftoverFiles {
    fn drop(&mut self) {
        let entries = [SOCKET_DIRECTORY, SHARED_MEMORY]
            .into_iter()
            .filter_map(|directory| fs::read_dir(directory).ok());
        let is_ours = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&self.prefix);
        for entry in entries.flatten().flatten().filter(is_ours) {
            // A file that cannot be removed is a few bytes under a name of no further use.
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct User {
    id: u32,
    group: u32,
}

fn user() -> Option<User> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    USERS.iter().find_map(|name| parse_user(&users, name))
}

/// A line of passwd(5): name, password, id, group, and more, between colons.
fn parse_user(users: &str, name: &str) -> Option<User> {
    let line = users.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let mut fields = line.split(':').skip(1);
    Some(User { id: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_found_by_the_whole_name() {
        let users = "root:x:0:0:root:/root:/bin/sh\nproxyd:x:12:12::/:\nproxy:x:13:14:proxy:/bin:/no\n";
        assert_eq!(parse_user(users, "proxy"), Some(User { id: 13, group: 14 }));
        assert_eq!(parse_user(users, "squid"), None);
        assert_eq!(parse_user("proxy:x\n", "proxy"), None);
    }

    #[test]
    fn service_name_has_letters_and_digits_only() {
        let name = service(Path::new("/tmp/lab-x/.tmp1_aB"));
        assert!(name.ends_with("tmp1aB") && name.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{name}");
    }
}
