//! Steps of the wall clock under the timer service. This test runs its own binary with a preloaded library
//! whose wall clock steps by an hour, forward and back, while timers are armed (`clock_step/wall.c`).
//!
//! Guarantees: the test fails unless it observes the steps. No timer fires early, all fire, and none waits
//! for a step. The time comes from the standard library, so that the clock under test does not judge itself.
//!
//! Not handled here: how late a timer may be without steps.
//!
//! Clock readings have to go through the C library, for which rustix needs a configuration flag:
//!
//! `RUSTFLAGS="--cfg rustix_use_libc" cargo test -p engine --target-dir target/libc --test clock_step`

#![cfg(rustix_use_libc)]
#![forbid(unsafe_code)]

use std::mem::ManuallyDrop;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use engine::timer::{Next, Service, Settings, Slack, Timers};
use sys::clock::{monotonic, wall};

const HOUR: Duration = Duration::from_secs(3600);
/// Longer than any machine delays a timer, and much shorter than a step.
const LATE_MAX: Duration = Duration::from_secs(30);
/// How many steps to observe in each direction.
const STEPS: usize = 6;
/// Between two batches of timers; shorter than the time between steps.
const PAUSE: Duration = Duration::from_millis(20);
/// Some of each batch end before the next step, and some only after the third.
const SPANS_MS: [u64; 6] = [0, 1, 20, 90, 180, 320];

#[test]
fn wall_clock_steps_change_nothing() {
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wall.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clock_step/wall.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
    assert!(compiler.args([&library, &source]).status().unwrap().success());
    let mut itself = Command::new(std::env::current_exe().unwrap());
    itself.args(["--ignored", "--exact", "timers_fire_while_the_wall_clock_steps", "--nocapture"]);
    let output = itself.env("LD_PRELOAD", &library).output().unwrap();
    let output_text =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{}\n{output_text}", output.status);
    assert!(output_text.contains("1 passed"), "{output_text}");
    println!("{output_text}");
}

#[test]
#[ignore = "the other test runs it, where the wall clock steps"]
fn timers_fire_while_the_wall_clock_steps() {
    let log = Arc::new(TimerLog::default());
    let in_callback = Arc::clone(&log);
    let settings = Settings { threads: 2, ..Settings::default() };
    let service = Service::start(&settings, move |_, tag| in_callback.fire(tag)).unwrap();
    // Never dropped if the test fails: its threads may wait for a step.
    let service = ManuallyDrop::new(service);
    let steps = arm_through_steps(service.timers(), &log);
    assert!(steps.forward >= STEPS && steps.back >= STEPS, "the wall clock does not step: {steps:?}");
    let end = Instant::now() + LATE_MAX;
    while let Some(text) = log.unfinished() {
        assert!(Instant::now() < end, "it waits for a step: {text}, {steps:?}");
        thread::sleep(Duration::from_millis(1));
    }
    println!("{steps:?}, {:?}", service.timers().stats());
    let timers = log.0.lock().unwrap();
    assert!(timers.iter().all(|timer| !timer.is_early && timer.fired == timer.expected), "{timers:?}");
    println!("at most {:?} late", timers.iter().map(|timer| timer.late).max());
}

/// Observed steps of about an hour.
#[derive(Debug, Default)]
struct Steps {
    forward: usize,
    back: usize,
}

impl Steps {
    /// The wall clock advanced by `wall_nanos` while `passed` went by.
    fn observe(&mut self, wall_nanos: i128, passed: Duration) {
        let step = wall_nanos - passed.as_nanos() as i128;
        self.forward += usize::from(step > HOUR.as_nanos() as i128 / 2);
        self.back += usize::from(step < -(HOUR.as_nanos() as i128) / 2);
    }
}

/// Arms batch after batch, until the wall clock has stepped often enough in both directions.
fn arm_through_steps(timers: &Timers, log: &TimerLog) -> Steps {
    let (mut steps, begin) = (Steps::default(), Instant::now());
    while (steps.forward < STEPS || steps.back < STEPS) && begin.elapsed() < LATE_MAX {
        let before = (wall(), Instant::now());
        for span in SPANS_MS.map(Duration::from_millis) {
            for slack in [Slack::Tick, Slack::Fine] {
                log.arm(timers, span, slack);
            }
        }
        thread::sleep(PAUSE);
        steps.observe(i128::from(wall().0) - i128::from(before.0.0), before.1.elapsed());
    }
    steps
}

/// The expected and observed firing of each timer, by tag.
#[derive(Default)]
struct TimerLog(Mutex<Vec<Timer>>);

#[derive(Debug)]
struct Timer {
    due: Instant,
    late: Duration,
    is_early: bool,
    fired: u32,
    /// How often it has to fire: some are rearmed.
    expected: u32,
}

impl TimerLog {
    fn arm(&self, timers: &Timers, span: Duration, slack: Slack) {
        // Read first, so that it is not after the deadline.
        let due = Instant::now() + span;
        let mut log = self.0.lock().unwrap();
        let tag = log.len();
        let expected = 1 + u32::from(tag.is_multiple_of(5));
        log.push(Timer { due, late: Duration::ZERO, is_early: false, fired: 0, expected });
        timers.arm(monotonic() + span, slack, tag as u64).unwrap();
    }

    fn fire(&self, tag: u64) -> Next {
        let now = Instant::now();
        let timer = &mut self.0.lock().unwrap()[tag as usize];
        timer.is_early |= now < timer.due;
        timer.late = timer.late.max(now.saturating_duration_since(timer.due));
        timer.fired += 1;
        if timer.fired >= timer.expected {
            return Next::Done;
        }
        let span = Duration::from_millis(150);
        timer.due = now + span;
        Next::Again(monotonic() + span)
    }

    /// A timer that has not fired often enough yet.
    fn unfinished(&self) -> Option<String> {
        let timers = self.0.lock().unwrap();
        timers.iter().find(|timer| timer.fired < timer.expected).map(|timer| format!("{timer:?}"))
    }
}
