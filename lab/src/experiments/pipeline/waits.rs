//! The wait of each request: 100,000 requests wait 18,920 ms in 200 sleeps, and yield 49,800 times.

use std::thread;
use std::time::Duration;

/// What a request does between its two computations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    Nothing,
    /// Lets other threads run first.
    Yield,
    /// As for a disk or another server.
    Sleep(Duration),
}

impl Wait {
    /// The wait of request `request`.
    pub(super) fn of_request(request: u32) -> Self {
        match request {
            _ if request.is_multiple_of(10_000) => Self::Sleep(Duration::from_secs(1)),
            _ if request.is_multiple_of(1_000) => Self::Sleep(Duration::from_millis(88)),
            _ if request.is_multiple_of(500) => Self::Sleep(Duration::from_millis(10)),
            _ if request.is_multiple_of(2) => Self::Yield,
            _ => Self::Nothing,
        }
    }

    /// The planned duration; zero for a yield.
    pub(super) fn planned(self) -> Duration {
        match self {
            Self::Sleep(time) => time,
            Self::Nothing | Self::Yield => Duration::ZERO,
        }
    }

    /// Waits as plain programs do: on the calling thread, which does nothing else meanwhile.
    pub(super) fn hold_thread(self) {
        match self {
            Self::Nothing => {}
            Self::Yield => thread::yield_now(),
            Self::Sleep(time) => thread::sleep(time),
        }
    }

    /// The same wait, divided by `divisor`.
    pub(super) fn shortened(self, divisor: u32) -> Self {
        match self {
            Self::Sleep(time) => Self::Sleep(time / divisor),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_number_decides_its_wait() {
        let check = |request, expected| assert_eq!(Wait::of_request(request), expected, "{request}");
        check(0, Wait::Sleep(Duration::from_secs(1)));
        check(90_000, Wait::Sleep(Duration::from_secs(1)));
        check(91_000, Wait::Sleep(Duration::from_millis(88)));
        check(91_500, Wait::Sleep(Duration::from_millis(10)));
        check(91_502, Wait::Yield);
        check(91_503, Wait::Nothing);
    }

    #[test]
    fn waits_add_up_to_the_definition() {
        let waits = || (0..100_000).map(Wait::of_request);
        assert_eq!(waits().map(Wait::planned).sum::<Duration>(), Duration::from_millis(18_920));
        assert_eq!(waits().filter(|&wait| wait == Wait::Yield).count(), 49_800);
    }
}
