//! Messages while descriptors or memory for sockets are exhausted.
//!
//! Guarantees: an episode has two messages, in the log and on standard error. The first names the limit and
//! the remedy, the last the number of failed accepts. `/readyz` (crate `admin`) reports the shortage for as
//! long as it lasts.

use gateway::observe::log::{Level, Value};
use gateway::server::Gateway;
use sys::clock;
use sys::socket::ResourceExhausted;

use crate::console::Console;

/// The reported shortage, if it has not ended.
#[derive(Default)]
pub(super) struct ReportedShortages {
    /// The resource that is exhausted in the current episode.
    shortage: Option<ResourceExhausted>,
    /// Failed accepts at the end of the previous episode.
    failed_before: u64,
}

/// Reports the begin and the end of an episode.
pub(super) fn report(gateway: &Gateway, reported: &mut ReportedShortages, console: &Console) {
    let (stats, log) = (gateway.stats(), gateway.log());
    match (reported.shortage, stats.shortage(clock::monotonic())) {
        (None, Some(shortage)) => {
            let text = format!("{shortage}: new connections wait");
            let mut fields = vec![("remedy", Value::Text(remedy(shortage)))];
            let mut message = text.clone();
            if shortage == ResourceExhausted::Descriptors {
                let limit = sys::limits::descriptor_limits().0;
                fields.insert(0, ("limit", limit.into()));
                message += &format!(" (limit of descriptors: {limit})");
            }
            log.write_message(Level::Error, &text, &fields);
            console.print_line(format!("{message}: {}", remedy(shortage)));
            reported.shortage = Some(shortage);
        }
        (Some(shortage), None) => {
            let accepts = stats.failed_accepts() - reported.failed_before;
            let text = format!("new connections are accepted again; {} were used up", shortage.as_str());
            log.write_message(Level::Info, &text, &[("accepts_failed", accepts.into())]);
            console.print_line(format!("{text}, and {accepts} accepts failed"));
            reported.shortage = None;
        }
        _ => {}
    }
    if reported.shortage.is_none() {
        reported.failed_before = stats.failed_accepts();
    }
}

fn remedy(shortage: ResourceExhausted) -> &'static str {
    match shortage {
        ResourceExhausted::Descriptors => {
            "raise LimitNOFILE of the service (ulimit -n), or lower `connections` of `[limits]`; \
             `tollgate doctor` says how many are needed"
        }
        ResourceExhausted::SystemDescriptors => "raise the machine's limit: sysctl fs.file-max",
        ResourceExhausted::Buffers | ResourceExhausted::Memory => {
            "give the machine or its cgroup more memory, or lower `connections` of `[limits]`"
        }
    }
}
