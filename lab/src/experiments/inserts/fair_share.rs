//! What hogs leave of the CPUs, and what a store makes of it: two numbers for each run beside hogs.
//!
//! With W threads of the store that want to run, K hogs and C CPUs, a fair scheduler gives each of them a CPU
//! while there are enough, and C / (W + K) of one when there are not. So the store has W * min(1, C / (W +
//! K)) CPUs; without hogs it had W * min(1, C / W). The share is the quotient: 1 while every thread has a
//! CPU, and W / (W + K) where the store alone fills all CPUs. W is the writers, and for ours also the
//! ledger's threads that compute, which makes the share larger and the claim harder to keep.

use super::target::Target;
use crate::kit::measurements::Row;

/// The first number of every run.
const RATE: &str = "inserts_per_s";

/// The name of the number beside `FAIR`: rows per second as a part of those without hogs in the same round.
pub(super) const KEPT: &str = "kept_percent";
pub(super) const FAIR: &str = "fair_share_percent";

/// The part that a fair scheduler leaves of what a store had without hogs.
pub(super) fn share(threads: usize, hogs: usize, cpus: usize) -> f64 {
    let for_each = |threads: usize| (cpus as f64 / threads.max(1) as f64).min(1.0);
    for_each(threads + hogs) / for_each(threads)
}

/// The family and the hogs of a part that is named after them.
fn hogs_of(part: &str) -> Option<(&str, usize)> {
    let (family, hogs) = part.rsplit_once('-')?;
    ["hogs", "pinned", "siblings", "one-per-cpu"].contains(&family).then_some(())?;
    Some((family, hogs.parse().ok()?))
}

/// Adds the two numbers to every run that has its counterpart without hogs in the same round. `writers` is
/// how many a part has.
pub(super) fn add_shares(rows: &mut [Row], cpus: usize, writers: impl Fn(&str) -> usize) {
    let is_base = |row: &&Row| hogs_of(row.part).is_some_and(|part| part.1 == 0);
    let bases: Vec<Row> = rows.iter().filter(is_base).cloned().collect();
    for row in rows {
        let Some((family, hogs)) = hogs_of(row.part) else { continue };
        let is_its = |base: &&Row| hogs_of(base.part).is_some_and(|part| part.0 == family);
        let Some(base) = bases.iter().filter(is_its).find(|base| base.target == row.target) else {
            continue;
        };
        let threads = writers(family) + Target::named(&row.target).map_or(0, Target::own_threads);
        let fair = share(threads, hogs, cpus) * 100.0;
        let (rates, wholes) = (row.samples(RATE), base.samples(RATE));
        for (run, (round, rate)) in row.runs.iter_mut().zip(rates) {
            let whole = wholes.iter().find(|whole| whole.0 == round && whole.1.value > 0.0);
            let Some((_, whole)) = whole else { continue };
            run.numbers.splice(1..1, [(KEPT, rate.value * 100.0 / whole.value), (FAIR, fair)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::measurements::Run;

    #[test]
    fn share_is_that_of_a_fair_scheduler() {
        let check = |threads, hogs, cpus, expected: f64| {
            let actual = share(threads, hogs, cpus);
            assert!((actual - expected).abs() < 1e-9, "{threads} {hogs} {cpus}: {actual}");
        };
        check(4, 0, 2, 1.0);
        check(4, 4, 2, 0.5);
        check(5, 16, 2, 5.0 / 21.0);
        check(4, 4, 8, 1.0);
        check(4, 5, 8, 8.0 / 9.0);
        check(4, 12, 8, 0.5);
    }

    #[test]
    fn shares_compare_runs_of_one_round() {
        let row = |part, rates: &[(usize, f64)]| Row {
            part,
            target: "latch".to_owned(),
            runs: rates
                .iter()
                .map(|&(round, rate)| Run {
                    round,
                    marks: Vec::new(),
                    numbers: vec![(RATE, rate), ("refusals", 0.0)],
                })
                .collect(),
        };
        let mut rows = vec![row("hogs-0", &[(0, 100.0), (1, 200.0)]), row("hogs-4", &[(1, 50.0), (2, 10.0)])];
        add_shares(&mut rows, 2, |_| 4);
        assert_eq!(rows[1].series(KEPT), [25.0]);
        assert_eq!(rows[1].series(FAIR), [50.0]);
        assert_eq!(rows[0].series(KEPT), [100.0, 100.0]);
    }
}
