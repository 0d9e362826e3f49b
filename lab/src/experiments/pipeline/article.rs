//! The published program, where the user has built it: an executable that does the 100,000 requests once. It
//! is timed from its start to its exit, as our own processes are in `whole_requests_per_s`; its output is
//! discarded.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::work::REQUESTS;
use crate::kit::child::{Child, ChildSettings};
use crate::kit::disturbance::DisturbanceWatch;
use crate::kit::measurements::Numbers;
use crate::kit::usage;

/// Its name in the report.
pub(super) const ARTICLE: &str = "article";

/// Runs it once; returns its figures, and why they are contaminated.
///
/// # Errors
/// The program could not be started, or failed.
pub(super) fn run(program: &Path) -> Result<(Numbers, Vec<String>)> {
    let program = program.canonicalize().with_context(|| format!("finding {}", program.display()))?;
    let (watch, cpu_before) = (DisturbanceWatch::start(), usage::reaped_children_cpu());
    let started = Instant::now();
    let mut child = Child::start(&program, &[], &ChildSettings::default(), Path::new("/dev/null"))?;
    child.wait()?;
    let elapsed = started.elapsed();
    let cpu = usage::reaped_children_cpu().saturating_sub(cpu_before);
    Ok((numbers(elapsed, cpu), watch.finish().marks))
}

fn numbers(elapsed: Duration, cpu: Duration) -> Numbers {
    let requests = f64::from(REQUESTS);
    let rate = requests / elapsed.as_secs_f64();
    vec![
        ("requests_per_s", rate),
        ("cpu_us_per_request", cpu.as_secs_f64() * 1e6 / requests),
        ("whole_requests_per_s", rate),
    ]
}
