//! A temporary change of a kernel setting under `/proc/sys`.
//!
//! Guarantees: the old value is back when the change is dropped, also after a panic or Ctrl-C. SIGKILL leaves
//! it changed.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// A changed setting; dropping it restores the old value.
#[derive(Debug)]
pub(crate) struct ChangedSetting {
    setting: PathBuf,
    before: String,
}

/// Writes `value` into `setting`.
///
/// # Errors
/// `ENOENT` where the kernel has no such setting, `EACCES` where only root may change it.
pub(crate) fn change(setting: &Path, value: &str) -> io::Result<ChangedSetting> {
    let before = fs::read_to_string(setting)?;
    fs::write(setting, value)?;
    Ok(ChangedSetting { setting: setting.to_owned(), before })
}

impl ChangedSetting {
    /// The value before the change, which the drop restores.
    pub(crate) fn before(&self) -> &str {
        self.before.trim()
    }
}

impl Drop for ChangedSetting {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.setting, &self.before) {
            let (setting, before) = (self.setting.display(), self.before());
            eprintln!("lab: {setting} was {before} and could not be restored: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_is_restored_also_after_a_panic() {
        let directory = tempfile::tempdir().expect("a temporary directory can be created");
        let setting = directory.path().join("setting");
        let now = || fs::read_to_string(&setting).expect("the file is there");
        fs::write(&setting, "65530\n").expect("the directory is ours");
        let run = std::panic::catch_unwind(|| {
            let changed = change(&setting, "100000").expect("the directory is ours");
            assert_eq!((now(), changed.before()), ("100000".to_owned(), "65530"));
            panic!("as an experiment may");
        });
        assert_eq!(run.expect_err("the closure panicked").downcast_ref(), Some(&"as an experiment may"));
        assert_eq!(now(), "65530\n");
    }

    #[test]
    fn missing_setting_is_not_created() {
        let directory = tempfile::tempdir().expect("a temporary directory can be created");
        let setting = directory.path().join("setting");
        assert!(change(&setting, "1").is_err());
        assert!(!setting.exists());
    }
}
