//! The built `lab pipeline` from the outside: strategies in processes of their own, a process that reaches a
//! thread limit, an interrupted run. No test asserts figures.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal};
use serde_json::Value;

const LAB: &str = env!("CARGO_BIN_EXE_lab");

fn lab(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(LAB);
    command.arg("pipeline").args(arguments).env("TMPDIR", directory).current_dir(directory);
    command
}

fn run(directory: &Path, arguments: &[&str]) -> Output {
    lab(directory, arguments).output().expect("the lab was built with this test")
}

fn names(list: &Value, key: &str) -> Vec<String> {
    let list = list.as_array().cloned().unwrap_or_default();
    list.iter().filter_map(|entry| entry[key].as_str().map(str::to_owned)).collect()
}

fn case<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["rows"].as_array().expect("a report has rows");
    rows.iter().find(|row| row["case"] == name).unwrap_or_else(|| panic!("{name} is not in {report}"))
}

#[test]
fn every_strategy_reports_the_same_controls() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let [json, html] = ["r.json", "r.html"].map(|name| directory.path().join(name));
    let files = [json.display().to_string(), html.display().to_string()];
    // 600 requests wait a second, 10 ms, and 298 yields.
    let only = "sequential,io-aware,event";
    let arguments =
        ["--quick", "--requests", "600", "--only", only, "--json", &files[0], "--html", &files[1]];
    let output = run(directory.path(), &arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let progress = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}{progress}");
    assert!(text.contains("requests_per_s") && text.contains("decides nothing"), "{text}");
    assert!(progress.contains("event-all, round 1"), "{progress}");

    let report = std::fs::read_to_string(json).expect("--json writes a file");
    let report: Value = serde_json::from_str(&report).expect("the file is JSON");
    assert_eq!(report["experiment"], "pipeline");
    assert!(case(&report, "work/steps-1-and-3-of-a-request")["us"]["median"].as_f64() > Some(0.0));
    for strategy in ["sequential", "io-aware", "event-1000", "event-all"] {
        let figures = case(&report, &format!("requests/{strategy}"));
        for number in ["requests_per_s", "share_of_bound", "threads_peak", "cpu_us_per_request"] {
            assert!(figures[number]["median"].as_f64() > Some(0.0), "{number} in {figures}");
        }
        let controls = case(&report, &format!("controls/{strategy}"));
        for (number, expected) in [("requests", 600.0), ("waits_ms", 1_010.0), ("yields", 298.0)] {
            assert_eq!(controls[number]["median"].as_f64(), Some(expected), "{number} in {controls}");
        }
    }
    let verdicts = report["verdicts"].as_array().expect("a report has verdicts");
    let controls = verdicts.iter().find(|verdict| verdict["name"] == "controls-equal");
    assert_eq!(controls.map(|verdict| &verdict["value"]), Some(&Value::from(0.0)));
    let mut reported = names(&report["verdicts"], "name");
    reported.extend(names(&report["left_out"], "name"));
    assert_eq!(reported.len(), 7, "{reported:?}");
    let html = std::fs::read_to_string(html).expect("--html writes a file");
    assert!(html.starts_with("<!doctype html>") && html.contains("<svg"));
}

/// A process that may have 16 GiB of addresses cannot create 100,000 threads of 256 MiB each. Half a stack is
/// left over at its limit: threads that have not ended need memory, and abort a process that has none. So
/// does a C library with arenas, which takes each request's memory from the kernel once no arena fits.
#[test]
fn process_reports_its_thread_limit_and_stays() {
    const STACK_BYTES: u64 = 256 << 20;
    const ADDRESSES_KB: u64 = (64 * STACK_BYTES + STACK_BYTES / 2) / 1024;
    for extra in ["", " --living"] {
        let script = format!("ulimit -v {ADDRESSES_KB}; exec {LAB} create-threads --threads 100000{extra}");
        let mut process = Command::new("sh")
            .args(["-c", &script])
            .env("RUST_MIN_STACK", STACK_BYTES.to_string())
            .env("MALLOC_ARENA_MAX", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh can be started");
        let mut input = process.stdin.take().expect("the output is piped");
        let mut lines =
            BufReader::new(process.stdout.take().expect("the output is piped")).lines().map_while(Result::ok);
        assert_eq!(lines.next().as_deref(), Some("ready"));
        writeln!(input, "go").expect("the process reads its input");
        let words = lines.next().expect("the process reports its failure");
        let (created, reason) =
            words.strip_prefix("died after ").and_then(|it| it.split_once(": ")).expect("so");
        assert!((1..100_000).contains(&created.parse().unwrap_or(0)), "{words}");
        assert!(reason.contains("os error 11") || reason.contains("os error 12"), "{words}");
        assert!(matches!(process.try_wait(), Ok(None)), "the process stays");
        drop(input);
        assert!(process.wait().expect("the child can be awaited").success());
    }
}

#[test]
fn process_without_a_limit_reports_success() {
    let mut process = Command::new(LAB)
        .args(["create-threads", "--threads", "20"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the lab was built with this test");
    process
        .stdin
        .take()
        .expect("the output is piped")
        .write_all(b"go\n")
        .expect("the process reads its input");
    let output = process.wait_with_output().expect("the child can be awaited");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ready\nlived\n");
}

#[test]
fn interrupted_run_leaves_nothing_behind() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let arguments = ["--only", "sequential"];
    let mut lab = lab(directory.path(), &arguments).stderr(Stdio::piped()).spawn().expect("the lab is built");
    let mut progress = BufReader::new(lab.stderr.take().expect("the output is piped")).lines();
    assert!(progress.by_ref().map_while(Result::ok).any(|line| line.contains("sequential, round 1")));
    rustix::process::kill_process(Pid::from_child(&lab), Signal::INT).expect("the process runs");
    let last = progress.map_while(Result::ok).last();
    assert_eq!(lab.wait().expect("the child can be awaited").code(), Some(130), "{last:?}");
    assert_eq!(last.as_deref(), Some("lab: interrupted"));
    let left: Vec<_> = std::fs::read_dir(directory.path()).expect("the directory still exists").collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The viewer lists the threads that it found in the file.
#[test]
#[ignore = "needs speedscope, chromium: cargo xtask services"]
fn trace_viewer_reads_the_trace() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    let path = |name| directory.path().join(name).display().to_string();
    let trace = path("trace.json");
    let arguments = ["--quick", "--requests", "600", "--only", "io-aware", "--trace", &trace];
    let output = run(directory.path(), &arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let trace = std::fs::read_to_string(trace).expect("--trace writes a file");
    let document = viewed(directory.path(), &trace);
    let events: Value = serde_json::from_str(&trace).expect("the file is JSON");
    let events = events["traceEvents"].as_array().expect("a trace has events");
    let threads: Vec<_> = events.iter().filter(|event| event["name"] == "thread_name").collect();
    assert!(threads.len() >= 2, "{events:?}");
    for thread in threads {
        let title = format!(", {} (tid {})\"", thread["args"]["name"].as_str().unwrap_or(""), thread["tid"]);
        assert!(document.contains(&title), "no {title} in {document}");
    }
}

/// The document of the viewer's page when it has read `trace`.
fn viewed(directory: &Path, trace: &str) -> String {
    let path = |name| directory.join(name).display().to_string();
    // The page runs a script that is named in its address, as speedscope's own command does it.
    let literal = serde_json::to_string(trace).expect("text is JSON");
    let script = format!("speedscope.loadFileFromBase64('trace.json', btoa({literal}));");
    std::fs::write(path("trace.js"), script).expect("the directory is writable");
    let url = format!("file://{}#localProfilePath={}", service("TRACE_VIEWER"), path("trace.js"));
    let profile = format!("--user-data-dir={}", path("profile"));
    // The viewer reports an unreadable file in a dialog, for whose answer a browser without a screen waits
    // for ever.
    let browser = Command::new("timeout")
        .args([
            "60",
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ])
        // What it draws needs WebGL, which a machine without a screen has in software alone.
        .args(["--enable-unsafe-swiftshader", "--virtual-time-budget=20000", "--dump-dom"])
        .args([&profile, &url])
        .output()
        .expect("chromium is installed");
    assert!(browser.status.success(), "{}", String::from_utf8_lossy(&browser.stderr));
    String::from_utf8_lossy(&browser.stdout).into_owned()
}

/// A value that `cargo xtask services` wrote about a service.
fn service(key: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target/services.env");
    let lines = std::fs::read_to_string(&path).expect("`cargo xtask services` has written it");
    let value = lines.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("{} has no {key}", path.display())).to_owned()
}

#[test]
fn wrong_arguments_are_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory can be created");
    for arguments in [["--only", "everything"], ["--rounds", "0"], ["--requests", "100001"]] {
        let output = run(directory.path(), &arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
    let output = run(directory.path(), &["--text", "no such file"]);
    assert_eq!(output.status.code(), Some(1));
}
