//! A fixture machine for tests: files of `/proc` and `/sys` in a temporary directory.

use super::root::ProcRoot;

/// A machine on which no limit is near: `== path` before each file's text. 200 mappings are in use.
const AMPLE: &str = include_str!("../../testdata/ample-machine.txt");

/// A machine on which no limit is near (see [`AMPLE`]).
pub(crate) fn ample() -> Machine {
    let machine = Machine::new(&[]);
    for file in AMPLE.split("== ").skip(1) {
        let (path, text) = file.split_once('\n').unwrap();
        machine.write(path, text);
    }
    machine.write("proc/self/maps", &"7f0-7f1 rw-p 00000000 00:00 0\n".repeat(200));
    machine
}

/// A directory with files of `/proc` and `/sys`; dropping it deletes them.
pub(crate) struct Machine(tempfile::TempDir);

impl Machine {
    pub(crate) fn new(files: &[(&str, &str)]) -> Machine {
        let machine = Machine(tempfile::tempdir().unwrap());
        files.iter().for_each(|(path, text)| machine.write(path, text));
        machine
    }

    pub(crate) fn root(&self) -> ProcRoot {
        ProcRoot::at(self.0.path())
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Sets a row of `/proc/self/limits`, soft and hard.
    pub(crate) fn write_rlimit(&self, row: &str, limit: u64) {
        let text = self.root().read_text("proc/self/limits").unwrap();
        let lines = text.lines().map(|line| match line.starts_with(row) {
            true => format!("{row} {limit} {limit} units\n"),
            false => format!("{line}\n"),
        });
        self.write("proc/self/limits", &lines.collect::<String>());
    }

    pub(crate) fn replace(&self, path: &str, from: &str, to: &str) {
        let text = self.root().read_text(path).unwrap();
        assert!(text.contains(from), "{path} has no {from:?}");
        self.write(path, &text.replace(from, to));
    }

    pub(crate) fn remove(&self, path: &str) {
        std::fs::remove_file(self.0.path().join(path)).unwrap();
    }
}
