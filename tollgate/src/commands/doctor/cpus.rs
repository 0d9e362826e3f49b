//! The CPUs: how many are effectively available, and what takes them away.
//!
//! Guarantees: the sentences follow from the fields of [`Cpus`] alone.

use std::io;
use std::time::Duration;

use serde_json::{Value, json};
use sys::limits::cgroup::{Membership, Quota};
use sys::limits::cpus::{allowed_cpus, cores};
use sys::limits::{self, ProcRoot};
use sys::pressure::{CpuTicks, Resource, Stall, Throttling};

use super::probe::SmtScaling;
use crate::commands::counted;

/// A larger share of steal is reported as a loss.
const STEAL_SHARE_MAX: f64 = 0.02;

/// A longer wait of tasks for a resource, in percent of the last 10 s, is reported as a loss.
const STALL_PERCENT_MAX: f64 = 20.0;

/// The CPUs of this process.
#[derive(Clone, Debug, Default)]
pub(super) struct Cpus {
    /// CPUs that the process may use, by core.
    pub(super) cores: Vec<Vec<usize>>,
    pub(super) quota: Option<Quota>,
    /// Why a part of the quota could not be read.
    pub(super) quota_error: Option<String>,
    /// The count that the runtime derives from affinity and quota: the number of reactor threads, unless
    /// configured otherwise.
    pub(super) effective: usize,
    pub(super) siblings: Option<SmtScaling>,
    /// Since boot.
    pub(super) ticks: Option<CpuTicks>,
    pub(super) stalls: [Option<Stall>; Resource::ALL.len()],
    pub(super) throttling: Option<Throttling>,
}

impl Cpus {
    /// Reads all but the siblings' scaling.
    pub(super) fn read(root: &ProcRoot) -> Cpus {
        let quota: io::Result<Option<Quota>> = Membership::read(root).cpu_quota();
        let (quota, quota_error) = match quota {
            Ok(quota) => (quota, None),
            Err(error) => (None, Some(error.to_string())),
        };
        Cpus {
            cores: cores(root, &allowed_cpus()),
            quota,
            quota_error,
            effective: limits::cpus(),
            siblings: None,
            ticks: CpuTicks::read(root),
            stalls: Resource::ALL.map(|resource| Stall::read(root, resource)),
            throttling: Throttling::read(root),
        }
    }

    fn count(&self) -> usize {
        self.cores.iter().map(Vec::len).sum()
    }

    fn has_siblings(&self) -> bool {
        self.cores.iter().any(|core| core.len() >= 2)
    }

    /// The throughput of all CPUs together, in cores: a core with a second CPU counts as much as its two
    /// siblings achieve together.
    fn capacity(&self) -> Option<f64> {
        let siblings = self.siblings?.on_one_core;
        Some(self.cores.iter().map(|core| if core.len() >= 2 { siblings } else { 1.0 }).sum())
    }

    /// The text below the table, a sentence for each fact.
    pub(super) fn sentences(&self) -> Vec<String> {
        let mut sentences = vec![self.fifty_percent()];
        if let Some(Quota { cpus, file }) = &self.quota {
            sentences.push(format!(
                "The control group's quota is {cpus:.2} CPUs' time ({}): a process that has used it up stops \
                 until the next period, even if CPUs are idle. With `[threads] reactors = 0` the gateway \
                 starts {}.",
                file.display(),
                counted(self.effective as u64, "reactor thread"),
            ));
        }
        if let Some(error) = &self.quota_error {
            sentences.push(format!("The control group's quota is unknown: {error}."));
        }
        sentences.extend(self.losses());
        sentences
    }

    /// What 50 % in `top` means on these cores.
    fn fifty_percent(&self) -> String {
        let (count, cores) = (self.count(), self.cores.len());
        let names = format!("{} on {}", counted(count as u64, "CPU"), counted(cores as u64, "core"));
        match (self.has_siblings(), self.capacity()) {
            (false, _) => format!(
                "{names}, one on each core: 50 % in `top` is half of the capacity (a hypervisor may hide \
                 that CPUs share a core)."
            ),
            (true, Some(capacity)) => {
                // The scheduler fills a core's second CPU only once every core has a busy one.
                let half = (count as f64 / 2.0).min(cores as f64);
                let on_one_core = self.siblings.map_or(0.0, |siblings| siblings.on_one_core);
                format!(
                    "{names}: two busy siblings do {on_one_core:.2} times the work of one (measured), so \
                     all CPUs are worth {capacity:.1} cores, and 50 % in `top`, {half:.0} busy CPUs on as \
                     many cores, is {:.0} % of the capacity.",
                    (half / capacity * 100.0).min(100.0),
                )
            }
            (true, None) => format!(
                "{names}: the throughput of two busy siblings could not be measured; often it is 1.2 to 1.3 \
                 times that of one, and 50 % in `top` is then about 80 % of the capacity."
            ),
        }
    }

    /// What takes CPUs away, above the noise.
    fn losses(&self) -> Vec<String> {
        let mut losses = Vec::new();
        let steal_share = self.ticks.map_or(0.0, CpuTicks::steal_share);
        if steal_share > STEAL_SHARE_MAX {
            losses.push(format!(
                "The hypervisor withheld {:.1} % of the CPUs since boot.",
                steal_share * 100.0
            ));
        }
        for (resource, stall) in Resource::ALL.iter().zip(&self.stalls) {
            let percent = stall.map_or(0.0, |stall| stall.some.last_10_s_percent);
            if percent > STALL_PERCENT_MAX {
                let name = resource.as_str();
                losses.push(format!(
                    "In the last 10 s tasks waited for {name} during {percent:.0} % of the time."
                ));
            }
        }
        if let Some(Throttling { periods, throttled_periods, throttled }) = self.throttling
            && throttled > Duration::ZERO
        {
            losses.push(format!(
                "The quota stopped this control group in {throttled_periods} of {periods} periods, for \
                 {:.1} s in all.",
                throttled.as_secs_f64()
            ));
        }
        losses
    }

    pub(super) fn json(&self) -> Value {
        let stalls = Resource::ALL.iter().zip(&self.stalls).map(|(resource, stall)| {
            let stall = stall.map(|stall| {
                json!({
                    "some_last_10_s_percent": stall.some.last_10_s_percent,
                    "some_s": stall.some.total.as_secs_f64(),
                    "full_last_10_s_percent": stall.full.map(|full| full.last_10_s_percent),
                    "full_s": stall.full.map(|full| full.total.as_secs_f64()),
                })
            });
            (resource.as_str().to_owned(), stall.unwrap_or(Value::Null))
        });
        json!({
            "allowed": self.count(),
            "cores": self.cores,
            "effective": self.effective,
            "quota_cpus": self.quota.as_ref().map(|quota| quota.cpus),
            "quota_place": self.quota.as_ref().map(|quota| quota.file.display().to_string()),
            "quota_trouble": self.quota_error,
            "sibling_yield": self.siblings.map(|siblings| siblings.on_one_core),
            "two_core_yield": self.siblings.and_then(|siblings| siblings.on_two_cores),
            "capacity_cores": self.capacity(),
            "steal_share_since_boot": self.ticks.map(CpuTicks::steal_share),
            "pressure": Value::from_iter(stalls.collect::<Vec<_>>()),
            "throttling": self.throttling.map(|it| json!({
                "periods": it.periods,
                "throttled_periods": it.throttled_periods,
                "throttled_s": it.throttled.as_secs_f64(),
            })),
            "sentences": self.sentences(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::pressure::StallLine;

    #[track_caller]
    fn check(cpus: &Cpus, expected: &[&str]) {
        let sentences = cpus.sentences();
        assert_eq!(sentences.len(), expected.len(), "{sentences:#?}");
        for (sentence, words) in sentences.iter().zip(expected) {
            assert!(sentence.contains(words), "{sentence:?} lacks {words:?}");
        }
    }

    fn siblings(cores: usize) -> Vec<Vec<usize>> {
        (0..cores).map(|core| vec![core, core + cores]).collect()
    }

    #[test]
    fn fifty_percent_is_explained_in_numbers() {
        let cpus_with = |cores: Vec<Vec<usize>>, on_one_core: Option<f64>| Cpus {
            cores,
            siblings: on_one_core.map(|on_one_core| SmtScaling { on_one_core, on_two_cores: None }),
            ..Cpus::default()
        };
        check(
            &cpus_with(vec![vec![0], vec![1]], None),
            &["2 CPUs on 2 cores, one on each core: 50 % in `top` is half"],
        );
        check(&cpus_with(vec![vec![0]], None), &["1 CPU on 1 core"]);
        check(
            &cpus_with(siblings(4), Some(1.25)),
            &["worth 5.0 cores, and 50 % in `top`, 4 busy CPUs on as many cores, is 80 %"],
        );
        check(&cpus_with(siblings(4), Some(2.0)), &["is 50 % of the capacity"]);
        check(&cpus_with(siblings(4), None), &["could not be measured"]);
        let mixed = vec![vec![0, 1], vec![2]];
        check(&cpus_with(mixed, Some(1.2)), &["3 CPUs on 2 cores: two busy siblings do 1.20 times"]);
    }

    #[test]
    fn cpu_losses_above_noise_are_reported() {
        let cores = vec![vec![0], vec![1]];
        let stall = |percent| {
            let some = StallLine { last_10_s_percent: percent, total: Duration::ZERO };
            Some(Stall { some, full: None })
        };
        let quiet = Cpus {
            cores,
            ticks: Some(CpuTicks { busy: 500, idle: 490, steal: 10 }),
            stalls: [stall(19.0), None, None],
            throttling: Some(Throttling::default()),
            effective: 2,
            ..Cpus::default()
        };
        check(&quiet, &["half"]);
        let loud = Cpus {
            ticks: Some(CpuTicks { busy: 500, idle: 400, steal: 100 }),
            stalls: [stall(21.0), None, stall(99.4)],
            throttling: Some(Throttling {
                periods: 10,
                throttled_periods: 4,
                throttled: Duration::from_millis(1500),
            }),
            quota: Some(Quota { cpus: 1.5, file: "/sys/fs/cgroup/x/cpu.max".into() }),
            quota_error: Some("no /proc".into()),
            ..quiet
        };
        let expected = [
            "half",
            "1.50 CPUs' time (/sys/fs/cgroup/x/cpu.max)",
            "no /proc",
            "withheld 10.0 %",
            "waited for cpu during 21 %",
            "waited for memory during 99 %",
            "in 4 of 10 periods, for 1.5 s",
        ];
        check(&loud, &expected);
    }
}
