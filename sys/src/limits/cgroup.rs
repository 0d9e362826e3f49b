//! Control groups: the groups that limit this process, and their limits.
//!
//! Guarantees: version 1, version 2 and hybrid machines. A group's ancestors limit it too, so the tightest
//! limit of all visible groups wins.
//!
//! Not handled here: ancestors outside the container, which are invisible from inside it.

use std::io;
use std::path::{Component, Path, PathBuf};

use super::root::{ProcRoot, malformed, parse_number};

/// The most groups that are read, from our own up to the mount.
const GROUPS_MAX: usize = 64;

/// The resource that a group limits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Controller {
    /// The number of tasks (threads).
    Pids,
    /// Memory.
    Memory,
    /// CPU time.
    Cpu,
}

impl Controller {
    fn as_str(self) -> &'static str {
        match self {
            Controller::Pids => "pids",
            Controller::Memory => "memory",
            Controller::Cpu => "cpu",
        }
    }
}

/// A group of this process, or an ancestor of one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Group {
    /// The directory of its files, below the root.
    pub directory: PathBuf,
    /// Whether it belongs to the unified hierarchy (version 2).
    pub is_unified: bool,
}

/// The group files of `/proc` for this process, read once and used for several lookups.
#[derive(Debug)]
pub struct Membership<'a> {
    root: &'a ProcRoot,
    /// `/proc/self/cgroup` and `/proc/self/mountinfo`.
    files: io::Result<(String, String)>,
}

impl Membership<'_> {
    /// Reads the files that name the groups. An error is returned by the lookups.
    pub fn read(root: &ProcRoot) -> Membership<'_> {
        let own = root.read_text("/proc/self/cgroup");
        let files = own.and_then(|own| Ok((own, root.read_text("/proc/self/mountinfo")?)));
        Membership { root, files }
    }

    /// The groups that limit this process by `controller`: its own first, then its ancestors. Empty where the
    /// controller is not in use.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn groups(&self, controller: Controller) -> io::Result<Vec<Group>> {
        let (own, mounts) = match &self.files {
            Ok(files) => files,
            Err(error) => return Err(io::Error::new(error.kind(), error.to_string())),
        };
        let Some((path, is_unified)) = own_path(own, controller) else { return Ok(Vec::new()) };
        let mut mounts = mounts.lines().filter_map(Mount::parse);
        let Some(mount) = mounts.find(|mount| mount.serves(controller, is_unified)) else {
            return Ok(Vec::new());
        };
        let directory = mount.directory_of(&path);
        let visible = directory.ancestors().take_while(|directory| directory.starts_with(&mount.point));
        let group = |directory: &Path| Group { directory: directory.to_owned(), is_unified };
        Ok(visible.take(GROUPS_MAX).map(group).collect())
    }

    /// The limit of the group with the least headroom for further tasks.
    pub fn tasks(&self) -> TightestBound {
        self.tightest(Controller::Pids, |root, group| {
            let file = group.directory.join("pids.max");
            let Some(bound) = read_bound(root, &file)? else { return Ok(None) };
            Ok(Some((bound, root.read_number(group.directory.join("pids.current"))?, file)))
        })
    }

    /// The limit of the group with the least headroom for further memory, in bytes. Inactive file cache does
    /// not count as used: the kernel reclaims it first.
    pub fn memory(&self) -> TightestBound {
        self.tightest(Controller::Memory, |root, group| {
            let (bound_file, used_file, cache) = match group.is_unified {
                true => ("memory.max", "memory.current", "inactive_file "),
                false => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
            };
            let file = group.directory.join(bound_file);
            let Some(bound) = read_bound(root, &file)? else { return Ok(None) };
            let used = root.read_number(group.directory.join(used_file))?;
            let stat = root.read_text(group.directory.join("memory.stat")).unwrap_or_default();
            let droppable = stat.lines().find_map(|line| parse_number(line.strip_prefix(cache)?.trim()));
            Ok(Some((bound, used.saturating_sub(droppable.unwrap_or(0)), file)))
        })
    }

    fn tightest(
        &self,
        controller: Controller,
        headroom: impl Fn(&ProcRoot, &Group) -> io::Result<Option<Headroom>>,
    ) -> TightestBound {
        let groups = match self.groups(controller) {
            Ok(groups) => groups,
            Err(error) => return TightestBound { bound: None, error: Some(error.to_string()) },
        };
        let mut found = TightestBound::default();
        let free = |(bound, used, _): &Headroom| bound.saturating_sub(*used);
        for group in groups {
            match headroom(self.root, &group) {
                Ok(Some(headroom))
                    if found.bound.as_ref().is_none_or(|best| free(&headroom) < free(best)) =>
                {
                    found.bound = Some(headroom);
                }
                Ok(_) => {}
                Err(error) => found.error = Some(error.to_string()),
            }
        }
        found
    }

    /// The tightest quota of CPU time; `None` without any.
    ///
    /// # Errors
    /// A file is malformed; the quota is unknown then.
    pub fn cpu_quota(&self) -> io::Result<Option<Quota>> {
        let mut tightest: Option<Quota> = None;
        for group in self.groups(Controller::Cpu)? {
            let file = group.directory.join(if group.is_unified { "cpu.max" } else { "cpu.cfs_quota_us" });
            let Some(cpus) = read_quota(self.root, &group, &file)? else { continue };
            if tightest.as_ref().is_none_or(|best| cpus < best.cpus) {
                tightest = Some(Quota { cpus, file });
            }
        }
        Ok(tightest)
    }
}

/// Our path in the hierarchy of `controller`, and whether that is the unified one: from
/// `/proc/self/cgroup`, whose lines are `number:controllers:path` (cgroups(7)).
fn own_path(text: &str, controller: Controller) -> Option<(PathBuf, bool)> {
    let mut unified = None;
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        if controllers.split(',').any(|name| name == controller.as_str()) {
            return Some((path.into(), false));
        }
        if number == "0" && controllers.is_empty() {
            unified = Some((path.into(), true));
        }
    }
    unified
}

/// A line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
struct Mount<'a> {
    /// The mounted group: not `/` in a container without a cgroup namespace.
    group: PathBuf,
    point: PathBuf,
    kind: &'a str,
    options: &'a str,
}

impl Mount<'_> {
    fn parse(line: &str) -> Option<Mount<'_>> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let (group, point) = (unescape(before.next()?), unescape(before.next()?));
        let mut after = after.split(' ');
        let (kind, options) = (after.next()?, after.nth(1).unwrap_or(""));
        Some(Mount { group, point, kind, options })
    }

    fn serves(&self, controller: Controller, is_unified: bool) -> bool {
        match self.kind {
            "cgroup2" => is_unified,
            "cgroup" => !is_unified && self.options.split(',').any(|option| option == controller.as_str()),
            _ => false,
        }
    }

    /// The directory of the group `path`. A path outside the mounted group, or with `..`, is invisible from
    /// here; the mounted group is then its nearest visible ancestor.
    fn directory_of(&self, path: &Path) -> PathBuf {
        let climbs = path.components().any(|part| part == Component::ParentDir);
        match path.strip_prefix(&self.group) {
            Ok(below) if !climbs && below != Path::new("") => self.point.join(below),
            _ => self.point.clone(),
        }
    }
}

/// Decodes octal escapes: mountinfo writes a blank as `\040`.
fn unescape(text: &str) -> PathBuf {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or("").to_owned();
    for part in parts {
        match part.get(..3).and_then(|octal| u8::from_str_radix(octal, 8).ok()) {
            Some(byte) => {
                plain.push(char::from(byte));
                plain.push_str(&part[3..]);
            }
            None => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain.into()
}

/// The tightest limit of a controller.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TightestBound {
    /// The limit, its use, and the file that states the limit; `None` where no group has one.
    pub bound: Option<(u64, u64, PathBuf)>,
    /// A file that could not be read or parsed: its limit may be tighter.
    pub error: Option<String>,
}

/// A limit of at least this many bytes means unlimited: version 1 writes the greatest number of whole
/// pages.
const UNBOUNDED_MIN: u64 = 1 << 62;

fn read_bound(root: &ProcRoot, file: &Path) -> io::Result<Option<u64>> {
    // The root group has no such file.
    let text = match root.read_text(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    match (text.trim(), parse_number(text.trim())) {
        ("max", _) => Ok(None),
        (_, Some(bound)) => Ok((bound < UNBOUNDED_MIN).then_some(bound)),
        (_, None) => Err(malformed(file, &text)),
    }
}

/// A group's limit, its use, and the file that states the limit.
type Headroom = (u64, u64, PathBuf);

/// A quota of CPU time.
#[derive(Clone, Debug, PartialEq)]
pub struct Quota {
    /// CPU time per second that the group may use, in CPUs: 1.5 is one and a half.
    pub cpus: f64,
    /// The file that states the quota.
    pub file: PathBuf,
}

/// Version 2 has `quota period` in one file, version 1 in two; `max` or -1 is without quota.
fn read_quota(root: &ProcRoot, group: &Group, file: &Path) -> io::Result<Option<f64>> {
    let text = match root.read_text(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut words = text.split_whitespace();
    let quota = match words.next() {
        Some("max" | "-1") => return Ok(None),
        word => word.and_then(parse_number),
    };
    let period = match group.is_unified {
        true => words.next().and_then(parse_number),
        false => Some(root.read_number(group.directory.join("cpu.cfs_period_us"))?),
    };
    match (quota, period) {
        (Some(quota), Some(period)) if period > 0 => Ok(Some(quota as f64 / period as f64)),
        _ => Err(malformed(file, &text)),
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
