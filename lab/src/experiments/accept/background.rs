//! Work that is repeated beside a load.
//!
//! Guarantees: it has ended when the load has.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

/// Does `work`, and meanwhile `again` once after each span of `every`.
pub(super) fn run_beside<T>(every: Duration, mut again: impl FnMut() + Send, work: impl FnOnce() -> T) -> T {
    let (ended, is_ended) = sync_channel::<()>(0);
    thread::scope(|scope| {
        scope.spawn(move || {
            while is_ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                again();
            }
        });
        let done = work();
        drop(ended);
        done
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn background_work_repeats_until_the_load_ends() {
        let (times, seen) = channel();
        let again = move || times.send(()).expect("the thread ends before the receiver is dropped");
        let two = run_beside(Duration::from_millis(1), again, || [seen.recv(), seen.recv()]);
        assert_eq!(two, [Ok(()), Ok(())]);
        // The receiver is gone, so this loop ends too.
        seen.iter().for_each(drop);
    }
}
