//! The counters of the process in the OpenMetrics text format, which Prometheus scrapes.
//!
//! Guarantees: every name begins with `tollgate_`, except the `process_` names that Prometheus defines. A
//! label has few values, all known at compile time or at the start: never a user or a host.

mod quotas;
mod requests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gateway::observe::stats::{
    CLOSE_REASONS, ClassStats, DURATION_BOUNDS_US, DenialKind, Durations, PROTOCOLS, ReactorStats, Stats,
    WorkerStats,
};
use ledger::{ReaderStatus, Status};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelValue, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use sys::pressure::{CpuTicks, ListenDrops, Pressure, Resource, Stall, StallLine, Throttling};
use sys::socket::ResourceExhausted;
use sys::thread::RunTime;

/// The counters and the ledger's state, read anew for each scrape.
pub(crate) struct MetricsSource {
    pub(crate) stats: Arc<Stats>,
    pub(crate) ledger_status: Box<dyn Fn() -> Status + Send + Sync>,
}

impl fmt::Debug for MetricsSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("MetricsSource").finish_non_exhaustive()
    }
}

impl Collector for MetricsSource {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        self.flows(&mut page)?;
        self.quotas(&mut page)?;
        self.threads(&mut page)?;
        self.log(&mut page)?;
        self.ledger(&mut page)?;
        self.control(&mut page)?;
        self.pressure(&mut page)?;
        process(&mut page, &self.stats)
    }
}

impl MetricsSource {
    fn flows(&self, page: &mut Page<'_>) -> fmt::Result {
        let sum = |read: &dyn Fn(&WorkerStats) -> u64| self.stats.sum(read);
        page.counters(
            "tollgate_connections",
            "Flows that began, by the client's protocol: tunnels, and runs of plain HTTP requests",
            PROTOCOLS.iter().map(|it| ([("protocol", it.as_str())], sum(&|worker| worker.opened_count(*it)))),
        )?;
        page.counters(
            "tollgate_closed",
            "Flows that ended, by reason",
            CLOSE_REASONS
                .iter()
                .map(|it| ([("reason", it.as_str())], sum(&|worker| worker.closed_count(*it)))),
        )?;
        page.counters(
            "tollgate_denied",
            "Connections that never became flows, by reason",
            DenialKind::ALL
                .iter()
                .map(|it| ([("reason", it.as_str())], sum(&|worker| worker.denied_count(*it)))),
        )?;
        self.requests(page)?;
        let legs = [
            (("client", "rx"), sum(&|worker| worker.bytes.client_rx.value())),
            (("upstream", "tx"), sum(&|worker| worker.bytes.upstream_tx.value())),
            (("upstream", "rx"), sum(&|worker| worker.bytes.upstream_rx.value())),
            (("client", "tx"), sum(&|worker| worker.bytes.client_tx.value())),
        ];
        page.counters(
            "tollgate_bytes",
            "Payload bytes of flows; upstream tx is billed as up, client tx as down",
            legs.map(|((leg, direction), bytes)| ([("leg", leg), ("direction", direction)], bytes)),
        )?;
        page.gauge(
            "tollgate_connections_active",
            "Flows relayed now, idle runs excepted",
            sum(&WorkerStats::flows_active),
        )?;
        page.gauge(
            "tollgate_handshakes_active",
            "Client connections between accept and relay now",
            sum(&|worker| worker.handshakes_active.value()),
        )?;
        page.gauge(
            "tollgate_sessions_resting",
            "Idle client connections now: between two plain HTTP requests",
            sum(&|worker| worker.sessions_idle.value()),
        )?;
        page.gauge(
            "tollgate_connections_closing",
            "Sockets of ended flows whose peers have not acknowledged all bytes yet",
            sum(&|worker| worker.connections_closing.value()),
        )?;
        page.counter(
            "tollgate_sessions_unkept",
            "Client connections closed after a plain HTTP response, because the idle limit was reached",
            sum(&|worker| worker.sessions_unkept.value()),
        )?;
        self.dials(page)?;
        page.durations(
            "tollgate_dns_duration_seconds",
            "Duration of name lookups that missed the cache",
            self.stats.workers.iter().map(|worker| &worker.dns),
        )?;
        page.durations(
            "tollgate_connect_duration_seconds",
            "Duration of dials, over all attempts of a dial together",
            self.stats.workers.iter().map(|worker| &worker.connect),
        )
    }

    fn dials(&self, page: &mut Page<'_>) -> fmt::Result {
        let sum = |read: fn(&WorkerStats) -> u64| self.stats.sum(read);
        page.gauge(
            "tollgate_dial_extra_attempts",
            "Connection attempts now that run beside another attempt of the same dial",
            sum(|it| it.dial_extras_active.value()),
        )?;
        page.counter(
            "tollgate_dial_extra_refused",
            "Times a dial delayed its next address, because the limit of parallel attempts was reached",
            sum(|it| it.dial_extras_refused.value()),
        )?;
        page.counter(
            "tollgate_dial_attempts_replaced",
            "Connection attempts that were closed for a newer one of the same dial",
            sum(|it| it.dial_attempts_replaced.value()),
        )
    }

    fn threads(&self, page: &mut Page<'_>) -> fmt::Result {
        let per_worker = |read: fn(&WorkerStats) -> u64| {
            let workers = self.stats.workers.iter().enumerate();
            workers.map(move |(index, worker)| ([("worker", index.to_string())], read(worker)))
        };
        page.gauges(
            "tollgate_worker_connections",
            "Flows relayed now, by thread",
            per_worker(WorkerStats::flows_active),
        )?;
        self.accepts(page)?;
        page.counters(
            "tollgate_reactor_turns",
            "Passes of the reactors' event loops",
            per_worker(|it| it.reactor.passes.value()),
        )?;
        page.counters(
            "tollgate_reactor_events",
            "Events that epoll reported",
            per_worker(|it| it.reactor.events.value()),
        )?;
        page.counters(
            "tollgate_task_panics",
            "Flows that ended by a panic",
            per_worker(|it| it.reactor.panics.value()),
        )?;
        let sum = |read: fn(&WorkerStats) -> u64| self.stats.sum(read);
        page.counter(
            "tollgate_splice_promotions",
            "Directions of flows that switched from copying to splicing",
            sum(|it| it.splice_promotions.value()),
        )?;
        page.counter(
            "tollgate_pipes_created",
            "Pipes created for splicing",
            sum(|it| it.pipes_created.value()),
        )?;
        page.gauge("tollgate_pipes_held", "Pipes that exist now", sum(|it| it.pipes_held.value()))?;
        page.counter(
            "tollgate_pipes_lent",
            "Times a direction of a flow acquired a pipe",
            sum(|it| it.pipes_lent.value()),
        )?;
        page.counter(
            "tollgate_pipes_emptied",
            "Pipes that were emptied into a buffer because a receiver had stalled",
            sum(|it| it.pipes_emptied.value()),
        )?;
        page.gauge(
            "tollgate_pending_bytes",
            "Bytes of buffers that now hold data for slow receivers",
            sum(|it| it.pending_bytes.value()),
        )
    }

    /// The accepted connections of each thread, and the balance between threads.
    fn accepts(&self, page: &mut Page<'_>) -> fmt::Result {
        let per_worker = |read: fn(&ReactorStats) -> u64| {
            let workers = self.stats.workers.iter().enumerate();
            workers.map(move |(index, worker)| ([("worker", index.to_string())], read(&worker.reactor)))
        };
        page.gauges(
            "tollgate_worker_clients",
            "Client connections now, by thread, idle and pending ones included",
            per_worker(|it| it.connections.value()),
        )?;
        page.gauge(
            "tollgate_worker_balance_ratio",
            "The most client connections of any thread, as a multiple of the mean",
            balance_ratio(self.stats.workers.iter().map(|worker| worker.reactor.connections.value())),
        )?;
        let workers = self.stats.workers.iter().enumerate();
        page.gauges(
            "tollgate_worker_lag_seconds",
            "Moving average of the duration of a pass of the event loop: a new event waits up to this long",
            workers.map(|(index, worker)| {
                ([("worker", index.to_string())], worker.reactor.pass_length().as_secs_f64())
            }),
        )?;
        page.counters("tollgate_accepted", "Connections accepted", per_worker(|it| it.accepts.value()))?;
        page.counters(
            "tollgate_accept_wakes",
            "Wakes for a listener",
            per_worker(|it| it.accept_wakes.value()),
        )?;
        page.counters(
            "tollgate_accept_empty",
            "Accepts that found no connection: another thread was faster",
            per_worker(|it| it.accepts_empty.value()),
        )?;
        page.counters(
            "tollgate_handed_over",
            "Connections accepted by the thread and served by another",
            per_worker(|it| it.handed_off.value()),
        )?;
        let workers = self.stats.workers.iter().enumerate();
        page.counters(
            "tollgate_accept_errors",
            "Accepts that failed because a resource was exhausted",
            workers.flat_map(|(index, worker)| {
                ResourceExhausted::ALL.map(|shortage| {
                    let labels = [("worker", index.to_string()), ("reason", shortage.as_str().to_owned())];
                    (labels, worker.reactor.exhausted[shortage as usize].value())
                })
            }),
        )
    }

    fn log(&self, page: &mut Page<'_>) -> fmt::Result {
        let stats = &self.stats;
        page.counter(
            "tollgate_log_dropped",
            "Log lines lost because the log writer could not keep up",
            stats.log_dropped(),
        )?;
        page.counter(
            "tollgate_log_left_out",
            "Log lines of refusals left out by sampling, for a source or user with many",
            stats.sum(|worker| worker.log_suppressed.value()),
        )?;
        page.counter(
            "tollgate_log_flows_left_out",
            "Flows that have ended without a log line, by `closes` and `sample` of `[log]`",
            stats.sum(|worker| worker.log_flows_left_out.value()),
        )?;
        page.counter(
            "tollgate_log_write_errors",
            "Failed attempts to write or open the log",
            stats.log_write_errors.load(Ordering::Relaxed),
        )
    }

    fn ledger(&self, page: &mut Page<'_>) -> fmt::Result {
        let stats = &self.stats;
        let ledger = (self.ledger_status)();
        page.counter("tollgate_ledger_records", "Flows applied to the ledger's database", ledger.records)?;
        page.gauge("tollgate_ledger_appended_lsn", "LSN of the journal's last entry", ledger.appended)?;
        page.gauge("tollgate_ledger_durable_lsn", "LSN up to which entries are durable", ledger.durable)?;
        page.gauge("tollgate_ledger_applied_lsn", "LSN up to which entries are applied", ledger.applied)?;
        page.counter(
            "tollgate_ledger_damaged_slots",
            "Slots of the live table found damaged",
            ledger.damaged,
        )?;
        page.gauge(
            "tollgate_ledger_accepted_losses",
            "Losses that operators have accepted since the ledger was created",
            ledger.accepted,
        )?;
        page.gauge(
            "tollgate_ledger_table_was_missing",
            "Whether the last run was killed and its live table was missing at the start",
            u64::from(ledger.table_was_missing),
        )?;
        page.gauge(
            "tollgate_ledger_table_is_missing",
            "Whether the live table was removed while it is in use",
            u64::from(ledger.table_is_missing),
        )?;
        page.counter(
            "tollgate_ledger_batches",
            "Transactions that applied entries to the ledger's database",
            ledger.batches,
        )?;
        page.gauge(
            "tollgate_ledger_lag_seconds",
            "Upper bound of the time that any ended flow has waited to be applied",
            ledger.lag.as_secs_f64(),
        )?;
        page.gauge(
            "tollgate_ledger_unflushed_records",
            "Ended flows that are not in the journal yet",
            ledger.waiting,
        )?;
        page.gauge(
            "tollgate_ledger_failing",
            "Whether the ledger cannot be written now",
            u64::from(ledger.failing.is_some()),
        )?;
        journal_readers(page, &ledger.readers)?;
        page.counter(
            "tollgate_ledger_full",
            "Flows refused because the live table was full or the journal failed",
            stats.sum(|it| it.ledger_full.value()),
        )
    }

    fn control(&self, page: &mut Page<'_>) -> fmt::Result {
        let stats = &self.stats;
        page.info("tollgate_build", "The program", [("version", stats.version)])?;
        page.gauge("tollgate_ready", "Whether every listener is bound", u64::from(stats.is_ready()))?;
        page.gauge("tollgate_draining", "Whether the gateway is stopping", u64::from(stats.is_draining()))?;
        let (succeeded, failed) = stats.reloads.counts();
        page.counters(
            "tollgate_config_reloads",
            "Loads of the configuration, the first included",
            [([("outcome", "success")], succeeded), ([("outcome", "failure")], failed)],
        )?;
        page.gauge(
            "tollgate_config_reload_success",
            "Whether the last load succeeded, so that the running configuration is the files' one",
            u64::from(stats.reloads.last_succeeded()),
        )?;
        page.gauge(
            "tollgate_config_reload_success_timestamp_seconds",
            "When the running configuration was loaded",
            seconds(stats.reloads.last_success().0),
        )?;
        self.jobs(page)
    }

    fn jobs(&self, page: &mut Page<'_>) -> fmt::Result {
        let pool = self.stats.pool.stats();
        page.gauge("tollgate_pool_permits", "Jobs that may run at the same time", pool.permits as u64)?;
        page.gauge("tollgate_pool_permits_held", "Jobs that run now", pool.held as u64)?;
        page.gauge("tollgate_pool_threads", "Threads of the job pool", pool.threads as u64)?;
        page.counter(
            "tollgate_pool_suspected",
            "Jobs that the monitor found blocked outside a declared wait",
            pool.suspected,
        )?;
        let per_class = |read: fn(&ClassStats) -> u64| {
            pool.classes.iter().map(move |class| ([("class", class.name)], read(class)))
        };
        page.gauges("tollgate_pool_queued", "Jobs that wait", per_class(|it| it.queued as u64))?;
        page.counters("tollgate_pool_finished", "Jobs that were run", per_class(|it| it.finished))?;
        page.counters(
            "tollgate_pool_refused",
            "Jobs that were refused because the queue was full or its wait too long",
            per_class(|it| it.refused_full + it.refused_late),
        )?;
        page.counters(
            "tollgate_pool_expired",
            "Jobs that were dropped because their deadline had passed",
            per_class(|it| it.expired),
        )?;
        page.counters("tollgate_pool_shed", "Jobs that were shed under overload", per_class(|it| it.shed))?;
        page.counters("tollgate_pool_panics", "Jobs that panicked", per_class(|it| it.panicked))
    }

    /// The waits of the reactor threads, as of the last second. Figures that the machine does not provide are
    /// left out.
    fn pressure(&self, page: &mut Page<'_>) -> fmt::Result {
        let Pressure { threads, stalls, ticks, drops, throttling, .. } = self.stats.pressure.read();
        let per_worker = |span: fn(&RunTime) -> Duration| {
            let runs = threads.iter().enumerate().filter_map(|(index, run)| Some((index, (*run)?.total)));
            runs.map(move |(index, run)| ([("worker", index.to_string())], span(&run).as_secs_f64()))
        };
        page.counters("tollgate_worker_cpu_seconds", "Time on a CPU", per_worker(|run| run.on_cpu))?;
        page.counters(
            "tollgate_worker_run_delay_seconds",
            "Time runnable and waiting for a CPU",
            per_worker(|run| run.delay),
        )?;
        let stalled = |line: fn(&Stall) -> Option<StallLine>| {
            let stalls = Resource::ALL.iter().zip(&stalls);
            let lines = stalls.filter_map(move |(resource, stall)| Some((resource, line(stall.as_ref()?)?)));
            lines.map(|(resource, line)| ([("resource", resource.as_str())], line.total.as_secs_f64()))
        };
        page.counters(
            "tollgate_pressure_some_seconds",
            "Time in which some task of the machine waited for the resource",
            stalled(|stall| Some(stall.some)),
        )?;
        page.counters(
            "tollgate_pressure_full_seconds",
            "Time in which every non-idle task of the machine waited for the resource",
            stalled(|stall| stall.full),
        )?;
        if let Some(ticks) = ticks {
            let seconds = ticks.total.steal as f64 / CpuTicks::PER_SECOND as f64;
            page.counter("tollgate_steal_seconds", "CPU time that the hypervisor withheld", seconds)?;
        }
        if let Some(ListenDrops { overflows, drops }) = drops.map(|it| it.total) {
            page.counter(
                "tollgate_listen_overflows",
                "Connections dropped at a full accept queue, of any program in this network namespace",
                overflows,
            )?;
            page.counter(
                "tollgate_listen_drops",
                "Connections that a listening socket dropped for any reason, full queues included",
                drops,
            )?;
        }
        let Some(Throttling { periods, throttled_periods, throttled }) = throttling.map(|it| it.total) else {
            return Ok(());
        };
        page.counter(
            "tollgate_cgroup_periods",
            "CPU quota periods of the process's control groups",
            periods,
        )?;
        page.counter(
            "tollgate_cgroup_throttled_periods",
            "Quota periods in which the quota was exhausted",
            throttled_periods,
        )?;
        page.counter(
            "tollgate_cgroup_throttled_seconds",
            "Time for which a quota throttled threads",
            throttled.as_secs_f64(),
        )
    }
}

/// The metrics that Prometheus defines for any process.
fn process(page: &mut Page<'_>, stats: &Stats) -> fmt::Result {
    page.gauge("process_start_time_seconds", "When the process started", seconds(stats.started.0))?;
    page.gauge("process_max_fds", "Limit of open descriptors", sys::limits::descriptor_limits().0)?;
    // Counting needs a descriptor (of /proc/self/fd). If none is left, only this figure is missing.
    match sys::limits::open_descriptors() {
        Ok(count) => page.gauge("process_open_fds", "Open descriptors", count),
        Err(_) => Ok(()),
    }
}

/// The greatest of `loads` as a multiple of their mean; 1 without load.
fn balance_ratio(loads: impl Iterator<Item = u64> + Clone) -> f64 {
    let (count, sum) = (loads.clone().count() as f64, loads.clone().sum::<u64>() as f64);
    let greatest = loads.max().unwrap_or(0) as f64;
    if sum == 0.0 { 1.0 } else { greatest * count / sum }
}

/// The further readers of the ledger's journal.
fn journal_readers(page: &mut Page<'_>, readers: &[ReaderStatus]) -> fmt::Result {
    let by_reader = |of: fn(&ReaderStatus) -> u64| {
        readers.iter().map(move |reader| ([("reader", reader.name.clone())], of(reader)))
    };
    page.gauges(
        "tollgate_ledger_reader_released_lsn",
        "LSN up to which a further reader of the journal holds nothing",
        by_reader(|reader| reader.released),
    )?;
    page.counters(
        "tollgate_ledger_reader_lapses",
        "Lapses of a further reader of the journal: entries were removed before it had them",
        by_reader(|reader| reader.lapses),
    )?;
    page.gauges(
        "tollgate_ledger_reader_missed_lsn",
        "LSN of the first entry that the reader missed in its last lapse, 0 without one",
        by_reader(|reader| reader.missed_from),
    )
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

/// The response to a scrape while it is written.
struct Page<'a>(DescriptorEncoder<'a>);

impl Page<'_> {
    fn begin(
        &mut self,
        name: &'static str,
        help: &str,
        kind: MetricType,
    ) -> Result<MetricEncoder<'_>, fmt::Error> {
        self.0.encode_descriptor(name, help, None, kind)
    }

    /// A monotonic total. The encoder adds `_total` to its name.
    fn counter(&mut self, name: &'static str, help: &str, value: impl EncodeCounterValue) -> fmt::Result {
        self.begin(name, help, MetricType::Counter)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    /// A counter with one sample for each set of labels.
    fn counters<V: EncodeLabelValue, C: EncodeCounterValue, const N: usize>(
        &mut self,
        name: &'static str,
        help: &str,
        samples: impl IntoIterator<Item = ([(&'static str, V); N], C)>,
    ) -> fmt::Result {
        let mut metric = self.begin(name, help, MetricType::Counter)?;
        samples.into_iter().try_for_each(|(labels, value)| {
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value, None)
        })
    }

    /// A value that goes up and down.
    fn gauge(&mut self, name: &'static str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        self.begin(name, help, MetricType::Gauge)?.encode_gauge(&value)
    }

    /// A gauge with one sample for each set of labels.
    fn gauges<L: EncodeLabelValue, V: EncodeGaugeValue, const N: usize>(
        &mut self,
        name: &'static str,
        help: &str,
        samples: impl IntoIterator<Item = ([(&'static str, L); N], V)>,
    ) -> fmt::Result {
        let mut metric = self.begin(name, help, MetricType::Gauge)?;
        samples
            .into_iter()
            .try_for_each(|(labels, value)| metric.encode_family(&labels)?.encode_gauge(&value))
    }

    /// Text as labels of a constant 1. The encoder adds `_info` to its name.
    fn info<const N: usize>(
        &mut self,
        name: &'static str,
        help: &str,
        labels: [(&'static str, &'static str); N],
    ) -> fmt::Result {
        self.begin(name, help, MetricType::Info)?.encode_info(&labels)
    }

    /// A histogram of durations, summed over `threads`.
    fn durations<'s>(
        &mut self,
        name: &'static str,
        help: &str,
        threads: impl Iterator<Item = &'s Durations>,
    ) -> fmt::Result {
        let bounds =
            DURATION_BOUNDS_US.map(|bound_us| bound_us as f64 / 1e6).into_iter().chain([f64::INFINITY]);
        let mut buckets: Vec<(f64, u64)> = bounds.map(|bound| (bound, 0)).collect();
        let mut sum_us = 0;
        for durations in threads {
            sum_us += durations.sum_us();
            for (bucket, count) in buckets.iter_mut().zip(durations.buckets()) {
                bucket.1 += count;
            }
        }
        let count = buckets.iter().map(|(_, count)| count).sum();
        let mut metric = self.begin(name, help, MetricType::Histogram)?;
        metric.encode_histogram::<NoLabelSet>(sum_us as f64 / 1e6, count, &buckets, None)
    }
}
