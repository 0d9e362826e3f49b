//! Delivers the password of the first user: shows it at a terminal, otherwise writes it to a file.
//!
//! Guarantees: a pipe, a file or the system's journal never gets the password. After a failed start nothing
//! is left, and the next start creates the user anew.

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use gateway::first_start::FirstUser;

/// The first user, and the file of the password if it is not shown.
pub(super) struct CredentialDelivery {
    user: FirstUser,
    /// The file that has the password; `None` if it is to be shown.
    file: Option<PathBuf>,
}

impl CredentialDelivery {
    /// Writes the password of `user` to a file, unless standard output is a terminal.
    ///
    /// # Errors
    /// The file cannot be written; then the user is removed again.
    pub(super) fn prepare(user: FirstUser, is_terminal: bool) -> anyhow::Result<CredentialDelivery> {
        let mut delivery = CredentialDelivery { user, file: None };
        if !is_terminal {
            // User files lie in a directory of the data directory.
            let data = delivery.user.path.ancestors().nth(2).unwrap_or(Path::new(""));
            let kept = delivery.user.save_login(data).inspect_err(|_| delivery.undo());
            delivery.file = Some(kept.with_context(|| {
                format!("cannot keep the password of the first user in {}", data.display())
            })?);
        }
        Ok(delivery)
    }

    /// Removes the user, whose password was not delivered.
    pub(super) fn undo(&self) {
        // A file that cannot be removed is reported by the next start, which finds a user.
        let _ = fs::remove_file(&self.user.path);
        if let Some(file) = &self.file {
            let _ = fs::remove_file(file);
        }
    }

    /// Prints the user's name, and a command to try it.
    pub(super) fn print(&self, out: &mut impl Write, proxy: SocketAddr) -> io::Result<()> {
        let FirstUser { name, password, path } = &self.user;
        write!(out, "\nMade the user `{name}` ({}). ", path.display())?;
        match &self.file {
            None => {
                writeln!(out, "The password is shown this once. Try:")?;
                writeln!(
                    out,
                    "\n  curl -x http://{name}:{}@{proxy} https://example.com/\n",
                    password.as_str()
                )?;
            }
            Some(file) => {
                let file = file.display();
                writeln!(out, "The password is in {file}, which its owner alone may read. Try:")?;
                writeln!(out, "\n  curl -K {file} -x http://{proxy} https://example.com/\n")?;
            }
        }
        writeln!(out, "and then: tollgate usage")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    use super::*;

    const PASSWORD: &str = "0123456789abcdefghjk";

    /// A user as the first start creates it, with its file.
    fn user() -> (TempDir, FirstUser) {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join("users.d/me.toml");
        fs::create_dir(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        let password = PASSWORD.to_owned().into();
        (data, FirstUser { name: "me".parse().unwrap(), password, path })
    }

    fn printed(delivery: &CredentialDelivery) -> String {
        let mut out = Vec::new();
        delivery.print(&mut out, "127.0.0.1:3128".parse().unwrap()).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// Regression: the first user's password was printed to standard output, which a service manager writes
    /// to its journal, permanently and for all readers of the journal.
    #[test]
    fn non_terminal_gets_the_name_of_a_file() {
        let (data, user) = user();
        let delivery = CredentialDelivery::prepare(user, false).unwrap();
        let file = data.path().join("first-user.curlrc");
        let text = printed(&delivery);
        assert!(!text.contains(PASSWORD), "{text}");
        assert!(text.contains(&format!("curl -K {} -x http://127.0.0.1:3128 ", file.display())), "{text}");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let kept = fs::read_to_string(&file).unwrap();
        assert!(kept.ends_with(&format!("\nproxy-user = \"me:{PASSWORD}\"\n")), "{kept}");
        delivery.undo();
        assert!(!file.exists() && fs::read_dir(data.path().join("users.d")).unwrap().next().is_none());
    }

    #[test]
    fn terminal_gets_the_password_and_no_file() {
        let (data, user) = user();
        let delivery = CredentialDelivery::prepare(user, true).unwrap();
        assert!(printed(&delivery).contains(&format!("curl -x http://me:{PASSWORD}@127.0.0.1:3128 ")));
        assert!(!data.path().join("first-user.curlrc").exists());
    }

    #[test]
    fn unwritable_password_file_undoes_the_user() {
        let (data, user) = user();
        let path = user.path.clone();
        fs::create_dir(data.path().join("first-user.curlrc")).unwrap();
        let error = CredentialDelivery::prepare(user, false).err().unwrap();
        assert!(error.to_string().starts_with("cannot keep the password of the first user in "), "{error}");
        assert!(!path.exists());
    }
}
