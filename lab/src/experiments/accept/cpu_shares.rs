//! What a gateway's CPU time goes to, as far as accept strategies differ: accepting, sleeping and waking,
//! locks; the remainder is serving.
//!
//! Guarantees: the frame nearest to the leaf that has a purpose decides.

use crate::kit::flame::Palette;
use crate::kit::measurements::{Numbers, Row, Run};
use crate::kit::stacks::{Profile, Stack, matches};

/// The purposes of a flame graph; their order is that of `MARKS`, and serving is what none of them marks.
pub(super) const PALETTE: Palette = Palette {
    title: "lab accept: where CPU time goes",
    purposes: &[
        ("accepting", "accepting connections"),
        ("waits", "sleeping and waking"),
        ("locking", "waiting for locks"),
        ("work", "serving connections"),
    ],
    purpose_of: purpose,
};

const SERVING: usize = 3;

/// Frames that determine a purpose by themselves: whole names, or with `*` for any part.
const MARKS: [&[&str]; SERVING] = [
    &["*accept4*", "inet_csk_accept", "inet_accept", "*engine::accept::*", "*::Listener*::accept*"],
    &["*epoll_pwait*", "*epoll_wait*", "ep_poll", "ep_send_events", "*::Notifier*::wake*", "eventfd_*"],
    &["*spin_lock_slowpath*", "*futex*", "*mutex_lock*"],
];

fn purpose(stack: &Stack) -> usize {
    let purpose_of_name =
        |name: &str| MARKS.iter().position(|patterns| patterns.iter().any(|pattern| matches(name, pattern)));
    stack.frames.iter().rev().find_map(|frame| purpose_of_name(&frame.name)).unwrap_or(SERVING)
}

/// A gateway's shares as a row of the report.
pub(super) fn row(profile: &Profile) -> Row {
    let run = Run { round: 0, marks: Vec::new(), numbers: numbers(profile) };
    Row { part: "cpu-shares", target: profile.name.clone(), runs: vec![run] }
}

/// The shares in percent of all samples.
fn numbers(profile: &Profile) -> Numbers {
    let samples = |counts: &dyn Fn(&Stack) -> bool| {
        profile.stacks.iter().filter(|stack| counts(stack)).map(|stack| stack.samples).sum::<u64>() as f64
    };
    let all = samples(&|_| true);
    let percent = |index| 100.0 * samples(&|stack: &Stack| purpose(stack) == index) / all.max(1.0);
    vec![
        ("accepting_percent", percent(0)),
        ("sleeping_and_waking_percent", percent(1)),
        ("waiting_for_locks_percent", percent(2)),
        ("serving_percent", percent(SERVING)),
        ("samples", all),
    ]
}

#[cfg(test)]
mod tests {
    use std::any::type_name_of_val;

    use super::*;

    fn stack(frames: &str, samples: u64) -> Stack {
        Stack::new(false, frames.split(' '), samples)
    }

    /// A pattern whose function was renamed would silently count its time as serving.
    #[test]
    fn patterns_match_functions_of_the_engine() {
        let check = |name: &str, expected| assert_eq!(purpose(&stack(name, 1)), expected, "{name}");
        check(type_name_of_val(&engine::accept::listen), 0);
        check(type_name_of_val(&sys::socket::Listener::accept), 0);
        check(type_name_of_val(&engine::inbox::Notifier::wake), 1);
    }

    #[test]
    fn frame_nearest_to_the_leaf_decides_the_purpose() {
        let check = |frames: &str, expected| assert_eq!(purpose(&stack(frames, 1)), expected, "{frames}");
        let reactor = "start_thread <gateway::worker::Worker>::run";
        let inside = |frames: &str| format!("{reactor} {frames}");
        check(&inside("<engine::accept::acceptor::Acceptor>::accept __libc_accept4 do_accept"), 0);
        check(&inside("<engine::reactor::Reactor>::poll epoll_pwait2 ep_poll schedule"), 1);
        check(&inside("accept4 inet_csk_accept native_queued_spin_lock_slowpath"), 2);
        check(&inside("<gateway::relay::table::Relays>::run recv tcp_recvmsg"), SERVING);
    }

    #[test]
    fn shares_are_percent_of_all_samples() {
        let stacks = vec![stack("accept4", 10), stack("epoll_pwait2 ep_poll", 30), stack("recv", 60)];
        let numbers = numbers(&Profile { name: "shared".to_owned(), stacks });
        let values: Vec<f64> = numbers.iter().map(|number| number.1).collect();
        assert_eq!(values, [10.0, 30.0, 0.0, 60.0, 100.0]);
    }
}
