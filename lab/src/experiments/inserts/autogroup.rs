//! Switches the scheduler's automatic groups off while hogs compete. With groups each session weighs as much
//! as any other, however many threads it has, and the same run shows something else.
//!
//! Guarantees: the setting is as before when the experiment ends (`kernel_setting.rs`).

use std::fs;
use std::path::{Path, PathBuf};

use crate::kit::kernel_setting::{self, ChangedSetting};

const SETTING: &str = "/proc/sys/kernel/sched_autogroup_enabled";

/// Off until it is dropped.
#[derive(Debug)]
pub(super) struct Autogroup {
    setting: PathBuf,
    /// `None` where nothing had to be changed, or could be.
    changed: Option<ChangedSetting>,
}

impl Autogroup {
    /// Switches the groups off where that is permitted.
    pub(super) fn off() -> Self {
        Self::off_in(Path::new(SETTING))
    }

    fn off_in(setting: &Path) -> Self {
        let changed = is_on(setting).then(|| kernel_setting::change(setting, "0").ok()).flatten();
        Self { setting: setting.to_owned(), changed }
    }

    /// The value before, if it was changed.
    pub(super) fn before(&self) -> Option<&str> {
        self.changed.as_ref().map(ChangedSetting::before)
    }

    /// The warning that verdicts beside hogs mean nothing here, if so.
    pub(super) fn warning(&self) -> Option<&'static str> {
        is_on(&self.setting).then_some("sched_autogroup_enabled is not 0, and only root may change it")
    }
}

/// A kernel without the setting has no groups.
fn is_on(setting: &Path) -> bool {
    fs::read_to_string(setting).is_ok_and(|text| text.trim() != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn autogroup_is_off_until_dropped() {
        let directory = tempfile::tempdir().expect("a temporary directory can be created");
        let setting = directory.path().join("setting");
        let now = || fs::read_to_string(&setting).expect("the file is there");
        fs::write(&setting, "1\n").expect("the directory is ours");
        let autogroup = Autogroup::off_in(&setting);
        assert_eq!((now().as_str(), autogroup.before(), autogroup.warning()), ("0", Some("1"), None));
        drop(autogroup);
        assert_eq!(now(), "1\n");
    }

    #[test]
    fn autogroup_off_or_missing_changes_nothing() {
        let directory = tempfile::tempdir().expect("a temporary directory can be created");
        let setting = directory.path().join("setting");
        let missing = Autogroup::off_in(&setting);
        assert_eq!((missing.before(), missing.warning()), (None, None));
        drop(missing);
        assert!(!setting.exists());
        fs::write(&setting, "0\n").expect("the directory is ours");
        drop(Autogroup::off_in(&setting));
        assert_eq!(fs::read_to_string(&setting).expect("the file is there"), "0\n");
    }
}
