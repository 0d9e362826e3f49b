//! speedscope (MIT licence), a trace viewer: its parser shows whether it can read a trace. The npm package is
//! unpacked and not run; a browser opens its page.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::tool;

const RELEASE: &str = "speedscope@1.25.0";

/// Downloads the package into `directory`, unless it exists; returns the path of its page.
pub(super) fn unpack(directory: &Path) -> Result<PathBuf> {
    let page = directory.join("package/dist/release/index.html");
    if !page.exists() {
        fs::create_dir_all(directory)?;
        let mut pack = Command::new("npm");
        pack.args(["pack", "--silent", RELEASE]).current_dir(directory);
        // npm verifies the registry's checksum, and prints the archive's name.
        let archive = tool::run(&mut pack)?;
        let mut unpack = Command::new("tar");
        unpack.args(["--extract", "--file", archive.trim()]).current_dir(directory);
        tool::run(&mut unpack)?;
    }
    page.canonicalize().with_context(|| format!("{RELEASE} has no {}", page.display()))
}
