//! Client libraries from PyPI and npm that Debian lacks or has in old releases: one folder for each language,
//! which an environment variable names to its interpreter.
//!
//! Guarantees: a second run installs nothing while the list and the interpreter are the same. Only prebuilt
//! packages are installed.
//! Not handled here: the versions of indirect dependencies, which pip and npm choose.

use std::{fs, io::ErrorKind, path::Path, process::Command};

use anyhow::{Context, Result};

use super::{Endpoints, tool};

/// Debian 12 has aiohttp and grpcio of 2022.
const PYTHON: [&str; 3] = ["aiohttp==3.14.5", "grpcio==1.85.3", "PySocks==1.7.1"];

/// Later releases need a newer Node.js than Debian 12 has.
const NODE: [&str; 1] = ["undici@6.29.1"];

/// Installs the libraries below `directory`; returns the values for `PYTHONPATH` and `NODE_PATH`.
pub(super) fn install(directory: &Path) -> Result<Endpoints> {
    let (python, node) = (directory.join("python"), directory.join("node"));
    let release = tool::run(Command::new("/usr/bin/python3").arg("--version"))?;
    install_once(&python, &format!("{release}{PYTHON:?}"), |folder| {
        let mut pip = Command::new("/usr/bin/python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
        pip.args(["--root-user-action=ignore", "--only-binary=:all:", "--target"]).arg(folder).args(PYTHON);
        pip
    })?;
    install_once(&node, &format!("{NODE:?}"), |folder| {
        let mut npm = Command::new("/usr/bin/npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]);
        npm.arg(folder).args(NODE);
        npm
    })?;
    let modules = node.join("node_modules");
    Ok(vec![
        ("PYTHON_LIBRARIES", python.display().to_string()),
        ("NODE_LIBRARIES", modules.display().to_string()),
    ])
}

/// Empties `folder` and runs the command of `installer`, unless it was done before for the same `list`.
fn install_once(folder: &Path, list: &str, installer: impl FnOnce(&Path) -> Command) -> Result<()> {
    let marker = folder.join("installed");
    if fs::read_to_string(&marker).is_ok_and(|installed| installed == list) {
        return Ok(());
    }
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("removing {}", folder.display()));
        }
        _ => fs::create_dir_all(folder)?,
    }
    tool::run(&mut installer(folder))?;
    // Written last, so that an interrupted run starts over.
    fs::write(&marker, list).with_context(|| format!("writing {}", marker.display()))
}
