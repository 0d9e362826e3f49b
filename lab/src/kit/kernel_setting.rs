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

/// A setting that has the wanted value until this is dropped, where that is permitted.
#[derive(Debug)]
pub(crate) struct HeldSetting {
    setting: PathBuf,
    wanted: &'static str,
    /// The change, if one was needed, or why there is none.
    changed: io::Result<Option<ChangedSetting>>,
}

/// Changes a setting to `wanted`. Changes nothing where the kernel has no such setting.
pub(crate) fn hold(setting: &Path, wanted: &'static str) -> HeldSetting {
    let changed = differs(setting, wanted).then(|| change(setting, wanted)).transpose();
    HeldSetting { setting: setting.to_owned(), wanted, changed }
}

impl HeldSetting {
    /// The value before, if it was changed.
    pub(crate) fn before(&self) -> Option<&str> {
        self.changed.as_ref().ok()?.as_ref().map(ChangedSetting::before)
    }

    /// The warning that the setting has another value, if so.
    pub(crate) fn warning(&self) -> Option<String> {
        let name = self.setting.file_name()?.to_string_lossy();
        let warning = match &self.changed {
            Ok(_) => format!("{name} is no longer {}: another program has changed it", self.wanted),
            Err(error) => format!("{name} is not {}, and cannot be changed: {error}", self.wanted),
        };
        differs(&self.setting, self.wanted).then_some(warning)
    }
}

fn differs(setting: &Path, wanted: &str) -> bool {
    fs::read_to_string(setting).is_ok_and(|text| text.trim() != wanted)
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
        let missing = hold(&setting, "0");
        assert_eq!((missing.before(), missing.warning()), (None, None));
        drop(missing);
        assert!(!setting.exists());
    }

    #[test]
    fn setting_is_held_until_dropped() {
        let directory = tempfile::tempdir().expect("a temporary directory can be created");
        let setting = directory.path().join("setting");
        let now = || fs::read_to_string(&setting).expect("the file is there");
        fs::write(&setting, "1\n").expect("the directory is ours");
        let held = hold(&setting, "0");
        assert_eq!((now().as_str(), held.before(), held.warning()), ("0", Some("1"), None));
        fs::write(&setting, "2\n").expect("the directory is ours");
        let warning = held.warning().expect("it has another value");
        assert!(warning.starts_with("setting is no longer 0"), "{warning}");
        drop(held);
        assert_eq!(now(), "1\n");
    }

    #[test]
    fn setting_with_the_wanted_value_is_not_written() {
        let directory = tempfile::tempdir().expect("a temporary directory can be created");
        let setting = directory.path().join("setting");
        fs::write(&setting, "0\n").expect("the directory is ours");
        drop(hold(&setting, "0"));
        assert_eq!(fs::read_to_string(&setting).expect("the file is there"), "0\n");
    }
}
