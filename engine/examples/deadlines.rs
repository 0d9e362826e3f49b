//! Deadlines for a client on the engine: threads make calls, some of which are never answered. A thread with
//! its own loop keeps connections that may be idle for a while and no longer.
//!
//! ```text
//!   cargo run -p engine --example deadlines
//! ```

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use engine::timer::{Cancel, LazyDeadline, Next, Service, Settings, Slack, Timers};
use sys::clock::monotonic;

const CALLERS: u64 = 4;
const CALLS: u64 = 50_000;
/// One call in so many is never answered.
const UNANSWERED_EVERY: u64 = 10_000;
const CALL_DEADLINE: Duration = Duration::from_millis(200);
const IDLE_MAX: Duration = Duration::from_millis(100);

fn main() -> io::Result<()> {
    let expired = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&expired);
    let settings = Settings { locals: 1, ..Settings::default() };
    // The callback gets the tag of the timer, and should notify another thread; here it counts.
    let service = Service::start(&settings, move |_timers, call| {
        println!("call {call} was not answered within {CALL_DEADLINE:?}");
        counted.fetch_add(1, Ordering::Relaxed);
        Next::Done
    })?;

    let timers = service.timers();
    let cancelled: u64 = thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS).map(|caller| scope.spawn(move || call(timers, caller))).collect();
        callers.into_iter().map(|caller| caller.join().expect("callers do not panic")).sum()
    });
    keep_a_connection(timers);
    thread::sleep(CALL_DEADLINE);
    println!("{cancelled} calls were answered in time, {} were not", expired.load(Ordering::Relaxed));
    println!("{:?}", timers.stats());
    println!("{} timers were armed at the end", service.shutdown());
    Ok(())
}

/// Makes calls; returns how many were answered in time.
fn call(timers: &Timers, caller: u64) -> u64 {
    let mut answered = 0;
    for number in 1..=CALLS {
        let call = caller * CALLS + number;
        let deadline = monotonic() + CALL_DEADLINE;
        let timer = timers.arm(deadline, Slack::Tick, call).expect("few calls are pending at a time");
        // The answer comes at once, if it comes.
        if !number.is_multiple_of(UNANSWERED_EVERY) {
            // Anything but `Cancelled`: the deadline passed first, and the answer is useless.
            answered += u64::from(timers.cancel(timer) == Cancel::Cancelled);
        }
    }
    answered
}

/// A loop with its own timers: traffic extends the idle deadline by a store, and the timer checks it only
/// when it fires.
fn keep_a_connection(timers: &Timers) {
    let loop_thread = thread::current();
    let mut local = timers.attach(move || loop_thread.unpark()).expect("the settings allow one local end");
    let idle_until = LazyDeadline::new(monotonic() + IDLE_MAX);
    local.arm(idle_until.until(), Slack::Fine, 0).expect("it is the first timer");
    let (mut checks, mut messages) = (0, 0);
    loop {
        local.fire_due(monotonic(), |_, _| {
            checks += 1;
            idle_until.check(monotonic())
        });
        if local.armed() == 0 {
            break;
        }
        if messages < 1_000 {
            messages += 1;
            idle_until.extend(monotonic() + IDLE_MAX);
            thread::sleep(Duration::from_micros(200));
        } else if let Some(due) = local.park() {
            thread::park_timeout(due.since(monotonic()));
        }
    }
    println!(
        "after {messages} messages the connection was idle for {IDLE_MAX:?}; its timer checked {checks} times"
    );
}
