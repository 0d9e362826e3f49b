//! A small Python package index with one package, as a wheel and as a source distribution.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
    process::Command,
};

use anyhow::Result;

use super::{Instance, tool};

/// Bytes of content of each distribution.
const CONTENT_BYTES: u64 = 3_000_017;

const SETUP: &str = "from setuptools import setup\n\
    setup(name='sample', version='1.0', packages=['sample'], package_data={'sample': ['content']})\n";

/// Creates the index in the folder `site/simple` of a web server, unless it exists.
pub(super) fn make(instance: &Instance) -> Result<()> {
    if Path::new(&instance.path("site/simple")).exists() {
        return Ok(());
    }
    let (source, draft) = (instance.path("sample"), instance.path("simple-draft"));
    fs::create_dir_all(format!("{source}/sample"))?;
    fs::create_dir_all(format!("{draft}/sample"))?;
    fs::write(format!("{source}/setup.py"), SETUP)?;
    fs::write(format!("{source}/MANIFEST.in"), "include sample/content\n")?;
    fs::write(format!("{source}/sample/__init__.py"), "")?;
    let mut random = File::open("/dev/urandom")?.take(CONTENT_BYTES);
    io::copy(&mut random, &mut File::create(format!("{source}/sample/content"))?)?;
    for kind in ["bdist_wheel", "sdist"] {
        let mut command = Command::new("/usr/bin/python3");
        let into = format!("--dist-dir={draft}/sample");
        command.args(["setup.py", "--quiet", kind, &into]).current_dir(&source);
        tool::run(&mut command)?;
    }
    fs::create_dir_all(instance.path("site"))?;
    // Renamed last, so that an interrupted run leaves no incomplete index.
    Ok(fs::rename(draft, instance.path("site/simple"))?)
}
