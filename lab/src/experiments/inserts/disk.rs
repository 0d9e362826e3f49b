//! The speed of the disk itself beside each case: `fdatasync` of a page that was zeroed and synced before, so
//! that neither its size nor its location changes. Virtual disks vary by a factor of a hundred within
//! minutes, and no figure of a store that syncs means anything without this one.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;

use crate::kit::measurements::Numbers;

const PAGE: [u8; 4_096] = [0; 4_096];

/// Syncs of one measurement.
const SYNCS: usize = 9;

/// Longer syncs count as this one: an hour.
const SYNC_NS_MAX: u64 = 3_600_000_000_000;

#[derive(Debug)]
pub(super) struct Disk {
    file: File,
}

impl Disk {
    pub(super) fn open(directory: &Path) -> Result<Self> {
        let path = directory.join("page");
        let file = File::create_new(&path).with_context(|| format!("creating {}", path.display()))?;
        file.write_all_at(&PAGE, 0)?;
        file.sync_all()?;
        Ok(Self { file })
    }

    /// Measures the median and the longest sync.
    pub(super) fn time_sync(&self) -> Result<Numbers> {
        let mut times = Histogram::<u64>::new_with_bounds(1, SYNC_NS_MAX, 3)
            .context("the histogram's bounds are valid")?;
        for _ in 0..SYNCS {
            let started = Instant::now();
            self.file.write_all_at(&PAGE, 0)?;
            self.file.sync_data()?;
            times.saturating_record(u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1_000.0;
        Ok(vec![
            ("raw_fdatasync_p50_us", microseconds(times.value_at_quantile(0.5))),
            ("raw_fdatasync_max_us", microseconds(times.max())),
        ])
    }
}
