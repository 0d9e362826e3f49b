//! `tollgate doctor`: on this machine, and under limits that are lowered for its process alone.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use super::TestDir;

const LIMITS: [&str; 23] = [
    "descriptors",
    "open files",
    "threads",
    "thread ids",
    "threads of the user",
    "threads of the cgroup",
    "mappings",
    "address space",
    "private memory",
    "main stack",
    "committed memory",
    "memory",
    "memory of the cgroup",
    "locked memory",
    "accept queue",
    "SYN queue",
    "ports to one address",
    "tracked flows",
    "TCP buffers",
    "orphaned connections",
    "TIME_WAIT",
    "pipe pages",
    "epoll watches",
];

fn test_dir(connections: u32) -> TestDir {
    TestDir::new(&[("tollgate.toml", &format!("[limits]\nconnections = {connections}\n"))])
}

/// Runs `tollgate` after a line of shell that lowers its limits.
fn under(dir: &TestDir, lowered: &str, arguments: &str) -> Command {
    let mut command = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_tollgate");
    command.args(["-c", &format!("{lowered} && exec {program} {arguments}")]).current_dir(dir.path(""));
    command
}

fn document(output: &Output) -> (Option<i32>, Value) {
    let text = String::from_utf8_lossy(&output.stdout);
    let value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}\n{text}{}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), value)
}

#[test]
fn every_limit_is_reported() {
    let dir = test_dir(10);
    let (_, report) = dir.json("doctor --json");
    let limits = report["limits"].as_array().unwrap();
    let names: Vec<&str> = limits.iter().map(|limit| limit["what"].as_str().unwrap()).collect();
    assert_eq!(names, LIMITS);
    for limit in limits {
        assert!(limit["needed"].is_u64() && limit["error"].is_string(), "{limit}");
        let is_bounded = limit["available"].is_u64();
        assert!(!is_bounded || limit["command"].is_string(), "{limit}");
    }
    let text = dir.run("doctor").out;
    for name in names {
        assert!(text.contains(name), "{text}");
    }
    assert!(text.contains("more threads may be started") && text.contains("50 % in `top`"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 110 || line.starts_with("  to r")), "{text}");
}

#[test]
fn cpus_are_reported() {
    let (_, report) = test_dir(10).json("doctor --json");
    let cpu = &report["cpu"];
    let cores = cpu["cores"].as_array().unwrap();
    let in_cores: usize = cores.iter().map(|core| core.as_array().unwrap().len()).sum();
    assert_eq!(cpu["allowed"], in_cores);
    assert!(cpu["effective"].as_u64().unwrap() <= cpu["allowed"].as_u64().unwrap());
    let has_siblings = in_cores > cores.len();
    assert!(has_siblings || cpu["sibling_yield"].is_null());
    assert!(!cpu["sentences"].as_array().unwrap().is_empty());
    let mappings_each = report["threads"]["mappings_each"].as_f64().unwrap();
    assert!((1.0..=8.0).contains(&mappings_each), "{mappings_each}");
}

#[test]
fn failing_load_is_code_1_with_a_remedy() {
    let dir = test_dir(1_000_000);
    let output = under(&dir, "ulimit -n 256", "doctor --json").output().unwrap();
    let (code, report) = document(&output);
    assert_eq!((code, &report["carried"]), (Some(1), &Value::Bool(false)));
    let first = &report["first"];
    assert_eq!(
        (&first["what"], &first["bound"], &first["state"]),
        (&"descriptors".into(), &256.into(), &"fails".into())
    );
    assert!(first["error"].as_str().unwrap().contains("EMFILE"), "{first}");
    assert!(first["command"].as_str().unwrap().contains("ulimit -n 2097152"), "{first}");
    let output = under(&dir, "ulimit -n 256", "doctor").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("First: descriptors (RLIMIT_NOFILE 256)"), "{text}");
}

#[test]
fn small_address_space_is_reported() {
    let output = under(&test_dir(10), "ulimit -v 150000", "doctor --json").output().unwrap();
    let (code, report) = document(&output);
    assert_eq!((code, &report["first"]["what"]), (Some(1), &"address space".into()));
    assert_eq!(report["first"]["bound"], 150_000 * 1024);
    assert_eq!(report["threads"]["budget_limit"], "RLIMIT_AS");
}

#[test]
fn user_thread_limit_binds_without_root() {
    /// The uid of an unprivileged account on most systems, which usually has no process.
    const UNUSED_UID: u32 = 65_534;
    let dir = test_dir(10);
    // The option is -u in bash, and -p in dash.
    let mut command = under(&dir, "{ ulimit -u 12 2>/dev/null || ulimit -p 12; }", "doctor --json");
    if sys::limits::effective_uid() == 0 {
        fs::set_permissions(dir.path(""), fs::Permissions::from_mode(0o755)).unwrap();
        command.uid(UNUSED_UID);
    }
    let output = match command.output() {
        Ok(output) if !output.stdout.is_empty() => output,
        other => {
            println!("skipped: another user may not run the program here: {other:?}");
            return;
        }
    };
    let (code, report) = document(&output);
    let limits = report["limits"].as_array().unwrap();
    let limit = limits.iter().find(|limit| limit["what"] == "threads of the user").unwrap();
    assert_eq!((code, &limit["state"], &limit["bound"]), (Some(1), &"fails".into(), &12.into()), "{limit}");
    assert_eq!(limit["exempt"], Value::Null);
    assert_eq!(report["threads"]["budget_limit"], "RLIMIT_NPROC");
}

/// A control group of one test; dropping it removes the group.
struct Group(PathBuf);

impl Group {
    /// Creates a group with `file` beside this process's own; the error says why there is none.
    fn new(name: &str, controller: &str, file: &str) -> Result<Group, String> {
        let version_1 = Path::new("/sys/fs/cgroup").join(controller);
        let parents = [version_1, PathBuf::from("/sys/fs/cgroup/unified"), PathBuf::from("/sys/fs/cgroup")];
        let mut why = "no control groups".to_owned();
        for parent in parents {
            let group = Group(parent.join(format!("tollgate-test-{name}-{}", std::process::id())));
            match fs::create_dir(&group.0) {
                Ok(()) if group.0.join(file).exists() => return Ok(group),
                Ok(()) => why = format!("{} has no {file}", group.0.display()),
                Err(error) => why = format!("{}: {error}", group.0.display()),
            }
        }
        Err(why)
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.0.join(file), text).unwrap();
    }

    /// A shell command that moves its process into the group.
    fn entered(&self) -> String {
        format!("echo $$ > {}", self.0.join("cgroup.procs").display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just ended may still be a member (EBUSY).
        while fs::remove_dir(&self.0).is_err_and(|error| error.raw_os_error() == Some(16)) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn cgroup_thread_limit_is_reported_with_its_file() {
    let group = match Group::new("pids", "pids", "pids.max") {
        Ok(group) => group,
        Err(why) => return println!("skipped: {why}"),
    };
    group.write("pids.max", "14");
    let dir = test_dir(10);
    let (code, report) = document(&under(&dir, &group.entered(), "doctor --json").output().unwrap());
    let first = &report["first"];
    let place = group.0.join("pids.max").display().to_string();
    assert_eq!((code, &first["what"]), (Some(1), &"threads of the cgroup".into()), "{first}");
    assert_eq!(
        (&first["bound"], &first["in_use"], &first["place"]),
        (&14.into(), &1.into(), &place.clone().into())
    );
    assert_eq!(first["command"], format!("echo 64 > {place}"));
    assert_eq!(
        (&report["threads"]["budget"], &report["threads"]["budget_limit"]),
        (&10.into(), &"pids.max".into())
    );
}

#[test]
fn cpu_quota_bounds_the_reactors() {
    let group =
        match Group::new("cpu", "cpu", "cpu.cfs_quota_us").or_else(|_| Group::new("cpu", "cpu", "cpu.max")) {
            Ok(group) => group,
            Err(why) => return println!("skipped: {why}"),
        };
    if group.0.join("cpu.max").exists() {
        group.write("cpu.max", "150000 100000");
    } else {
        group.write("cpu.cfs_quota_us", "150000");
    }
    let dir = test_dir(10);
    let (_, report) = document(&under(&dir, &group.entered(), "doctor --json").output().unwrap());
    assert_eq!(report["cpu"]["quota_cpus"], 1.5);
    assert_eq!((&report["cpu"]["effective"], &report["load"]["reactors"]), (&1.into(), &1.into()));
    let place = report["cpu"]["quota_place"].as_str().unwrap();
    assert!(place.starts_with(&group.0.display().to_string()), "{place}");
}

/// Restores the limit on drop: it is the machine's own.
struct Mappings(String);

impl Mappings {
    const PATH: &str = "/proc/sys/vm/max_map_count";

    fn lowered(to: &str) -> Mappings {
        let before = Mappings(fs::read_to_string(Mappings::PATH).unwrap());
        fs::write(Mappings::PATH, to).unwrap();
        before
    }
}

impl Drop for Mappings {
    fn drop(&mut self) {
        fs::write(Mappings::PATH, &self.0).unwrap();
    }
}

#[test]
#[ignore = "needs root, and lowers vm.max_map_count of the machine for a moment: cargo xtask services"]
fn too_few_mappings_are_reported() {
    let _lowered = Mappings::lowered("300");
    let (code, report) = test_dir(10).json("doctor --json");
    assert_eq!((code, &report["first"]["what"]), (1, &"mappings".into()));
    assert_eq!(report["first"]["command"], "sysctl -w vm.max_map_count=512");
}

#[test]
fn serve_prints_the_first_limit_in_one_line() {
    let printed = |connections: u32| {
        let quiet = "[[listener]]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n";
        let settings = format!("{quiet}[threads]\nreactors = 1\n[limits]\nconnections = {connections}\n");
        let dir = TestDir::new(&[("tollgate.toml", &settings)]);
        let mut serve = under(&dir, "ulimit -n 6000", "serve");
        serve.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut serve = serve.spawn().unwrap();
        let mut lines = BufReader::new(serve.stdout.take().unwrap()).lines().map_while(Result::ok);
        let is_limit_line = |line: &String| line.contains("first limit: ") || line.contains("warning: ");
        let line = lines.find(is_limit_line);
        let id = rustix::process::Pid::from_child(&serve);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        // Reads all output until the end.
        lines.for_each(drop);
        assert!(serve.wait().unwrap().success());
        line.unwrap_or_else(|| panic!("{connections} connections: the line is missing"))
    };
    let line = printed(9_000);
    assert!(line.trim_start().starts_with("warning: descriptors (RLIMIT_NOFILE 6000) at "), "{line}");
    assert!(
        line.ends_with("connections of the 9,000 configured: ulimit -n 32768 # systemd: LimitNOFILE=32768"),
        "{line}"
    );
    let line = printed(100);
    // Without root the RLIMIT_MEMLOCK may be too small for the live table, which is reported first.
    assert!(
        line.trim_start().starts_with("first limit: descriptors (RLIMIT_NOFILE 6000) at ")
            || line.contains("RLIMIT_MEMLOCK"),
        "{line}"
    );
}
