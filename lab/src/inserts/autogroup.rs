//! The scheduler's automatic groups, which are off while hogs compete. Each session is a group by itself,
//! and with groups on the hogs together weigh as much as the lab: the same run then shows something else.
//! Promises: the setting is as it was when the experiment ends, also by a panic or by Ctrl-C; a kill that
//! no process can answer leaves it off. Leaves to others: what is said where it cannot be changed.

use std::fs;
use std::path::{Path, PathBuf};

const SETTING: &str = "/proc/sys/kernel/sched_autogroup_enabled";

/// Off, until it is dropped.
#[derive(Debug)]
pub(super) struct Autogroup {
    setting: PathBuf,
    /// What to restore; `None` where nothing was changed.
    before: Option<String>,
}

impl Autogroup {
    /// Switches it off where that is permitted.
    pub(super) fn off() -> Self {
        Self::off_in(Path::new(SETTING))
    }

    fn off_in(setting: &Path) -> Self {
        let before = fs::read_to_string(setting).ok().filter(|text| text.trim() != "0");
        let before = before.filter(|_| fs::write(setting, "0").is_ok());
        Self { setting: setting.to_owned(), before }
    }

    /// What it was, if it was changed.
    pub(super) fn before(&self) -> Option<&str> {
        self.before.as_deref().map(str::trim)
    }

    /// Why verdicts beside hogs mean nothing here, if they do.
    pub(super) fn objection(&self) -> Option<&'static str> {
        // A kernel without the setting has no groups.
        let is_on = fs::read_to_string(&self.setting).is_ok_and(|text| text.trim() != "0");
        is_on.then_some("sched_autogroup_enabled is not 0, and only root may change it")
    }
}

impl Drop for Autogroup {
    fn drop(&mut self) {
        let Some(before) = &self.before else { return };
        if let Err(error) = fs::write(&self.setting, before) {
            let (setting, before) = (self.setting.display(), before.trim());
            eprintln!("lab: {setting} was {before} and could not be restored: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_before_also_after_a_panic() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let setting = directory.path().join("setting");
        let now = || fs::read_to_string(&setting).expect("the file is there");
        fs::write(&setting, "1\n").expect("the directory is ours");
        let run = std::panic::catch_unwind(|| {
            let autogroup = Autogroup::off_in(&setting);
            let told = (now(), autogroup.before().map(str::to_owned), autogroup.objection());
            assert_eq!(told, ("0".to_owned(), Some("1".to_owned()), None));
            panic!("as an experiment may");
        });
        assert_eq!(run.expect_err("it panicked").downcast_ref(), Some(&"as an experiment may"));
        assert_eq!(now(), "1\n");
    }

    #[test]
    fn what_is_off_stays_off_and_what_is_missing_is_no_objection() {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let setting = directory.path().join("setting");
        let missing = Autogroup::off_in(&setting);
        assert_eq!((missing.before(), missing.objection()), (None, None));
        drop(missing);
        assert!(!setting.exists());
        fs::write(&setting, "0\n").expect("the directory is ours");
        drop(Autogroup::off_in(&setting));
        assert_eq!(fs::read_to_string(&setting).expect("the file is there"), "0\n");
    }
}
