//! User files: one for each user in `users.d`, written atomically.
//!
//! Guarantees: a file appears whole or not at all, and only its owner can read it. An edit keeps the rest of
//! a file as its author wrote it.
//!
//! Not handled here: whether a file's settings are valid (`config.rs`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use toml::de::DeTable;

use super::credential::{Credential, random_word};
use super::name::UserName;

/// The directory of user files: beside the configuration file, else in the data directory.
pub const USERS_DIRECTORY: &str = "users.d";

/// The contents of a user file; the settings are those of `[[user]]`.
#[derive(Clone, Debug, Default)]
pub struct UserFile {
    /// A password or token; `None` for a user that is identified by the source address alone.
    pub credential: Option<Credential>,
    /// Source networks.
    pub from: Vec<String>,
    /// Allowed destinations.
    pub allow: Vec<String>,
    /// Denied destinations.
    pub deny: Vec<String>,
    /// Whether any name may be resolved for the networks among the destinations.
    pub resolve_for_networks: bool,
    /// Bound on concurrent connections.
    pub connections: Option<u32>,
}

impl UserFile {
    /// The file's text.
    pub fn to_toml(&self) -> String {
        let mut text = String::from(
            "# A user of Tollgate. The name of the file is the user's name; the settings are those of\n\
             # [[user]], without its header. A running gateway takes a change up by `tollgate reload`.\n",
        );
        let mut line = |key: &str, value: &str| text.push_str(&format!("{key} = {value}\n"));
        if let Some(credential) = &self.credential {
            line(credential.key(), &quoted(&credential.to_text()));
        }
        for (key, list) in [("from", &self.from), ("allow", &self.allow), ("deny", &self.deny)] {
            if !list.is_empty() {
                let items: Vec<String> = list.iter().map(|item| quoted(item)).collect();
                line(key, &format!("[{}]", items.join(", ")));
            }
        }
        if self.resolve_for_networks {
            line("resolve_for_networks", "true");
        }
        if let Some(connections) = self.connections {
            line("connections", &connections.to_string());
        }
        text
    }
}

/// The path of a user's file.
pub fn path_of(users_directory: &Path, name: &UserName) -> PathBuf {
    users_directory.join(format!("{name}.toml"))
}

/// The right to change the files of a directory, until it is dropped: no other command changes them between a
/// read and the write.
#[derive(Debug)]
pub struct UsersLock {
    /// `None` where the file system has no locks.
    _directory: Option<File>,
}

/// Waits until no other command changes the user files of `users_directory`. The directory is made (mode
/// 0700) if it does not exist. An editor takes no such lock.
///
/// # Errors
/// The directory cannot be made or opened.
pub fn lock(users_directory: &Path) -> io::Result<UsersLock> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(users_directory)?;
    let directory = File::open(users_directory)?;
    // NFS does not lock directories; there only `replace` detects another change.
    Ok(UsersLock { _directory: directory.lock().is_ok().then_some(directory) })
}

/// Creates a user's file, and its directory (mode 0700) if there is none.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] if there is such a file; it is left unchanged.
pub fn create(users_directory: &Path, name: &UserName, text: &str) -> io::Result<PathBuf> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(users_directory)?;
    let path = path_of(users_directory, name);
    write_atomically(&path, text, |temporary| {
        // Unlike rename(2), link(2) never replaces a file that was just created.
        fs::hard_link(temporary, &path)?;
        fs::remove_file(temporary)
    })?;
    Ok(path)
}

/// Replaces the text of a user's file, or of the file that a symbolic link leads to.
///
/// # Errors
/// [`io::ErrorKind::ResourceBusy`] if the file no longer contains `before`; any other error of the file
/// system. The file is unchanged then.
pub fn replace(path: &Path, before: &str, text: &str) -> io::Result<()> {
    // A link stays a link: its target may be another gateway's file, too.
    let path = fs::canonicalize(path)?;
    write_atomically(&path, text, |temporary| {
        if fs::read_to_string(&path)? != before {
            let changed = "it was changed meanwhile, and stays as it is: try again";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, changed));
        }
        fs::rename(temporary, &path)
    })
}

/// Writes a file atomically, replacing what was there.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    write_atomically(path, text, |temporary| fs::rename(temporary, path))
}

/// Deletes a user's file.
///
/// # Errors
/// Any error of the file system.
pub fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    sync_directory(path)
}

/// A change of one key.
#[derive(Clone, Copy, Debug)]
pub enum Edit<'a> {
    /// Set this key to this value, as TOML writes it.
    Set(&'a str, &'a str),
    /// Delete this key.
    Remove(&'a str),
}

/// The text of a user file with some keys changed; comments, order and all else stay.
///
/// # Errors
/// The text is not TOML.
pub fn edited(text: &str, edits: &[Edit<'_>]) -> Result<String, toml::de::Error> {
    let mut text = text.to_owned();
    for edit in edits {
        let (Edit::Set(key, _) | Edit::Remove(key)) = *edit;
        let span = {
            let table = DeTable::parse(&text)?;
            let entry = table.get_ref().get_key_value(key);
            entry.map(|(key, value)| key.span().start..value.span().end)
        };
        match (*edit, span) {
            (Edit::Set(key, value), Some(span)) => text.replace_range(span, &format!("{key} = {value}")),
            (Edit::Set(key, value), None) => {
                if !text.is_empty() && !text.ends_with('\n') {
                    text.push('\n');
                }
                text.push_str(&format!("{key} = {value}\n"));
            }
            (Edit::Remove(_), Some(span)) => remove_entry(&mut text, span),
            (Edit::Remove(_), None) => {}
        }
    }
    Ok(text)
}

/// The text as a TOML basic string.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(control))),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// Deletes an entry, and its line if nothing else is on it.
fn remove_entry(text: &mut String, span: std::ops::Range<usize>) {
    let line_end = text[span.end..].find('\n').map_or(text.len(), |newline| span.end + newline + 1);
    let is_alone = text[span.end..line_end].trim().is_empty();
    text.replace_range(span.start..if is_alone { line_end } else { span.end }, "");
}

/// Writes a temporary file beside `path`, syncs it, gives it to `publish`, and syncs the directory. After a
/// power failure the old file or the new one exists, whole.
fn write_atomically(
    path: &Path,
    text: &str,
    publish: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // The name does not end with `.toml`, so a load ignores a leftover.
    let temporary = directory.join(format!(".{name}.{}", random_word(8)?.as_str()));
    let written = write_temporary(&temporary, directory, text).and_then(|()| publish(&temporary));
    if written.is_err() {
        // The first error is the one to report; the leftover is harmless.
        let _ = fs::remove_file(&temporary);
    }
    written?;
    sync_directory(path)
}

/// Makes the change of the directory entry `path` durable.
fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

fn write_temporary(temporary: &Path, directory: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary)?;
    file.write_all(text.as_bytes())?;
    // A file that root writes for a service must be readable by the service, which owns the directory.
    let owner = fs::metadata(directory)?;
    if file.metadata()?.uid() != owner.uid() {
        fchown(&file, Some(owner.uid()), Some(owner.gid()))?;
    }
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn file_is_created_once_for_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let users = directory.path().join("data/users.d");
        let name: UserName = "ci".parse().unwrap();
        let path = create(&users, &name, "a = 1\n").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&users).unwrap().permissions().mode() & 0o777, 0o700);

        let error = create(&users, &name, "a = 2\n").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a = 1\n");

        replace(&path, "a = 1\n", "a = 3\n").unwrap();
        let late = replace(&path, "a = 1\n", "a = 4\n").unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::ResourceBusy);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a = 3\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // Neither success nor failure leaves anything behind.
        assert_eq!(fs::read_dir(&users).unwrap().count(), 1);

        let link = users.join("link.toml");
        std::os::unix::fs::symlink("ci.toml", &link).unwrap();
        replace(&link, "a = 3\n", "a = 5\n").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "a = 5\n");
        fs::remove_file(link).unwrap();

        remove(&path).unwrap();
        assert_eq!(fs::read_dir(&users).unwrap().count(), 0);
        assert_eq!(remove(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn edits_keep_the_rest() {
        #[track_caller]
        fn check(text: &str, edits: &[Edit<'_>], expected: &str) {
            assert_eq!(edited(text, edits).unwrap(), expected);
        }
        let text = "# mine\ntoken = \"x\" # old\nallow = [\n  \"a\",\n]\n";
        check(text, &[Edit::Set("disabled", "true")], &format!("{text}disabled = true\n"));
        check("a = 1", &[Edit::Set("b", "2")], "a = 1\nb = 2\n");
        check(
            text,
            &[Edit::Remove("token"), Edit::Set("password", "\"y\"")],
            "# mine\n # old\nallow = [\n  \"a\",\n]\npassword = \"y\"\n",
        );
        check("token = \"x\"  \nb = 1\n", &[Edit::Remove("token")], "b = 1\n");
        check("b=1\n", &[Edit::Set("b", "2"), Edit::Remove("c")], "b = 2\n");
        check("", &[Edit::Set("b", "2")], "b = 2\n");
        assert!(edited("b = ", &[Edit::Remove("b")]).is_err());
    }

    #[test]
    fn written_file_reads_back() {
        let file = UserFile {
            credential: None,
            from: vec!["10.1.0.0/16".into()],
            allow: vec!["a\"b\\c\n".into(), "@github".into()],
            deny: vec![],
            resolve_for_networks: true,
            connections: Some(5),
        };
        let text = file.to_toml();
        let table = DeTable::parse(&text).unwrap();
        let allow = table.get_ref().get("allow").unwrap().get_ref().as_array().unwrap();
        assert_eq!(allow[0].get_ref().as_str(), Some("a\"b\\c\n"));
        assert!(table.get_ref().get("deny").is_none());
        assert!(text.ends_with("resolve_for_networks = true\nconnections = 5\n"));
    }
}
