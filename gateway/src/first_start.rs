//! The first start: an unconfigured gateway creates one user, so that it can be tried at once.
//!
//! Guarantees: only where there is neither a configuration file nor a user. The password is generated here
//! and exists nowhere else, unless it is saved in a file that only its owner can read.
//!
//! Not handled here: showing the password, and loading the configuration again.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use zeroize::Zeroizing;

use crate::config::{Config, ConfigErrors, FIRST_USER, LoadOptions, Origin};
use crate::users::{
    Credential, CredentialError, PasswordHash, UserFile, UserName, create, generate_password, quoted, write,
};

/// What the first user may reach: public addresses on the ports of the web, by any name. Networks this wide
/// open public addresses only.
const FIRST_ALLOW: [&str; 4] = ["0.0.0.0/0:80", "0.0.0.0/0:443", "[::/0]:80", "[::/0]:443"];

/// The file in the data directory where a password is saved that cannot be shown.
const PASSWORD_FILE: &str = "first-user.curlrc";

/// The user that the first start created.
#[derive(Debug)]
pub struct FirstUser {
    /// The name.
    pub name: UserName,
    /// The password, to be shown once.
    pub password: Zeroizing<String>,
    /// The user file.
    pub path: PathBuf,
}

impl FirstUser {
    /// Saves name and password in a file of `directory`, mode 0600, that `curl -K` reads. So the password is
    /// in no command line that others could see.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save_login(&self, directory: &Path) -> io::Result<PathBuf> {
        let login = Zeroizing::new(format!("{}:{}", self.name, self.password.as_str()));
        let text = Zeroizing::new(format!(
            "# The first user of Tollgate, for `curl -K`. Delete this once the password is kept elsewhere.\n\
             proxy-user = {}\n",
            Zeroizing::new(quoted(&login)).as_str()
        ));
        let path = directory.join(PASSWORD_FILE);
        write(&path, &text)?;
        Ok(path)
    }
}

/// Creates the first user if there is no configuration file and no user; else changes nothing.
///
/// # Errors
/// The configuration is wrong, or the file cannot be made.
pub fn first_start(options: &LoadOptions) -> Result<Option<FirstUser>, FirstStartError> {
    // `--allow` is for a user that may not exist yet.
    let config = Config::load(&LoadOptions { allow: Vec::new(), ..options.clone() })?;
    if config.origin != Origin::Embedded || !config.users.is_empty() {
        return Ok(None);
    }
    let name: UserName = FIRST_USER.parse().expect("FIRST_USER is a valid user name");
    let password = generate_password()?;
    let credential = Some(Credential::Password(PasswordHash::make(&password)?));
    let file = UserFile { credential, ..first_user_file() };
    let written = create(&config.users_directory, &name, &file.to_toml());
    let path = written
        .map_err(|error| FirstStartError::Write { directory: config.users_directory.clone(), error })?;
    Ok(Some(FirstUser { name, password, path }))
}

/// The first user's file, without a credential.
fn first_user_file() -> UserFile {
    let allow = FIRST_ALLOW.map(str::to_owned).to_vec();
    UserFile { allow, resolve_for_networks: true, ..UserFile::default() }
}

/// Why there is no first user.
#[derive(Debug, Error)]
pub enum FirstStartError {
    /// The configuration has these errors.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// No password could be generated.
    #[error(transparent)]
    Credential(#[from] CredentialError),
    /// The user file cannot be made.
    #[error("cannot make a user in {}: {error}", directory.display())]
    Write {
        /// The directory of user files.
        directory: PathBuf,
        /// The cause. No `source`: the message contains it already.
        error: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use policy::{Host, NameVerdict};

    use super::*;

    #[test]
    fn first_user_reaches_the_public_web_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tollgate.toml");
        std::fs::write(&path, "").unwrap();
        let draft = Some((directory.path().join("users.d/me.toml"), Some(first_user_file().to_toml())));
        let config =
            Config::load(&LoadOptions { path: Some(path), draft, ..LoadOptions::default() }).unwrap();
        let me = config.user(FIRST_USER).unwrap().index;
        let may = |address: &str, port: u16| {
            let address: IpAddr = address.parse().unwrap();
            let name = config.policy.judge_name(me, Host::Name("a.example"), port);
            let by_name = config.policy.judge_address(me, &name, address, port).is_allowed();
            let literal = config.policy.judge_name(me, Host::Address(address), port);
            assert_eq!(by_name, matches!(literal, NameVerdict::Judged(_)), "{address}:{port}");
            by_name
        };
        for (address, port) in [("93.184.215.14", 443), ("93.184.215.14", 80), ("2606:2800:21f::1", 443)] {
            assert!(may(address, port), "{address}:{port}");
        }
        for (address, port) in [
            ("93.184.215.14", 22),
            ("93.184.215.14", 8443),
            ("10.0.0.1", 443),
            ("127.0.0.1", 80),
            ("169.254.169.254", 80),
            ("::1", 443),
            ("fd00::1", 443),
            ("::ffff:10.0.0.1", 443),
        ] {
            assert!(!may(address, port), "{address}:{port}");
        }
    }

    #[test]
    fn configuration_file_prevents_a_first_user() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tollgate.toml");
        std::fs::write(&path, "").unwrap();
        assert!(first_start(&LoadOptions { path: Some(path), ..LoadOptions::default() }).unwrap().is_none());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
