//! The current time as HTTP writes it (RFC 9110, section 5.6.7).
//!
//! Guarantees: calendar arithmetic at most once a second.

use std::cell::{Cell, RefCell};

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use sys::clock::{self, WallNanos};

/// A thread's text of the current second.
#[derive(Default)]
pub(crate) struct HttpDate {
    second: Cell<u64>,
    text: RefCell<String>,
}

impl HttpDate {
    /// Calls `write` with the current time.
    pub(crate) fn with<T>(&self, write: impl FnOnce(&str) -> T) -> T {
        self.at(clock::wall());
        write(&self.text.borrow())
    }

    fn at(&self, now: WallNanos) {
        const NANOS_PER_SECOND: u64 = 1_000_000_000;
        let second = now.0 / NANOS_PER_SECOND;
        if self.second.replace(second) == second {
            return;
        }
        let time = i64::try_from(second).ok().and_then(|second| Timestamp::from_second(second).ok());
        let time = time.unwrap_or(Timestamp::UNIX_EPOCH);
        let text = DateTimePrinter::new().timestamp_to_rfc9110_string(&time);
        self.text.replace(text.expect("the year has four digits until 9999"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_is_written_as_imf_fixdate() {
        let date = HttpDate::default();
        // The example of RFC 9110, section 5.6.7.
        date.at(WallNanos(784_111_777_999_999_999));
        assert_eq!(*date.text.borrow(), "Sun, 06 Nov 1994 08:49:37 GMT");
        date.at(WallNanos(784_111_778_000_000_000));
        assert_eq!(*date.text.borrow(), "Sun, 06 Nov 1994 08:49:38 GMT");
        date.with(|now| assert!(now.ends_with(" GMT") && now.len() == 29, "{now}"));
    }
}
