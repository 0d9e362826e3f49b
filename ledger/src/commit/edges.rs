//! Edges: when a quarter-hour begins, the committer journals all that was counted before, and then an entry
//! that says so.
//!
//! Guarantees: what a flow was counted before the beginning of an [`Entry::Edge`]'s round is in front of the
//! edge, whether the flow is open, or has ended and waits for its final. Behind the edge, up to the next one,
//! no entry of the run has an earlier moment.
//!
//! ```text
//!   a quarter-hour begins --> a round over all slots --> edge
//! ```
//!
//! An edge is a bound for moments too. A flow that ended before it by the clock of its reactor thread, and
//! whose final comes behind it, gets the moment of the edge.

use std::time::Duration;

use sys::clock::WallNanos;

use super::round::{Round, RoundProgress, has_space};
use super::sweep::Sweep;
use crate::database::month::QUARTER_NS;
use crate::entry::Entry;
use crate::flow_writer::FlowDrain;
use crate::journal::frame::FrameBuffer;
use crate::limits::{COMMIT_PAUSE, EDGE_REACH, INTERIM_PAUSE_MAX};
use crate::live_table::InterimMoment;
use crate::status::LedgerState;

const QUARTER: u64 = QUARTER_NS.cast_unsigned();
const _: () = assert!(
    EDGE_REACH.as_nanos() >= 2 * QUARTER as u128,
    "the last edge may be that old when the clock goes back"
);

/// A visit later than this behind an edge finds more bytes of the new quarter-hour than of the one before.
/// Its interim has the moment at which it is counted.
const LATE_AFTER: Duration = INTERIM_PAUSE_MAX;

/// The edges of a run.
pub(super) struct Edges {
    epoch: u32,
    /// The moment of the last edge; at first the beginning of the quarter-hour in which the run began.
    last: WallNanos,
    /// When the next round begins.
    due: WallNanos,
    round: Option<EdgeRound>,
}

/// The round for the edge of a moment.
struct EdgeRound {
    at: WallNanos,
    /// What is visited until then belongs to the quarter-hour before.
    late_at: WallNanos,
    slots: Round,
}

impl Edges {
    /// The edges of run `epoch`, which begins now.
    pub(super) fn new(epoch: u32, now: WallNanos) -> Edges {
        Edges { epoch, last: beginning(now), due: next(now), round: None }
    }

    /// No round begins by the clock: a simulation begins them itself.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn without_clock(epoch: u32) -> Edges {
        Edges { epoch, last: WallNanos(0), due: WallNanos(u64::MAX), round: None }
    }

    /// How long until a pass is due: for the next edge, or for an ended flow that is not in its ring yet.
    pub(super) fn pause(&self, now: WallNanos) -> Duration {
        match self.round {
            Some(_) => COMMIT_PAUSE,
            None => Duration::from_nanos(self.due.0.saturating_sub(now.0)),
        }
    }

    /// Begins a round if a quarter-hour has begun since the last edge. After a pause over several there is
    /// one edge, the last. A clock that went back far gets an edge of an earlier moment: otherwise all flows
    /// would count in a quarter-hour that may be days ahead.
    pub(super) fn begin_if_due(&mut self, now: WallNanos, drains: &[FlowDrain]) {
        let went_back = now.0.saturating_add(QUARTER) < self.last.0;
        if self.round.is_none() && (now >= self.due || went_back) {
            self.due = next(now);
            let at = beginning(now);
            self.begin(at, WallNanos(at.0.saturating_add(LATE_AFTER.as_nanos() as u64)), drains);
        }
    }

    /// Begins the round for the edge at this moment. What is visited after `late_at` has the moment of its
    /// visit.
    pub(super) fn begin(&mut self, at: WallNanos, late_at: WallNanos, drains: &[FlowDrain]) {
        let late_at = if at > self.last { late_at } else { WallNanos(0) };
        self.round = Some(EdgeRound { at, late_at, slots: Round::new(drains) });
    }

    /// Whether a round is under way.
    pub(super) fn is_running(&self) -> bool {
        self.round.is_some()
    }

    /// The moment before which no further entry may be.
    pub(super) fn earliest(&self) -> WallNanos {
        self.last
    }

    /// The moment of an interim of `slot` in a drain's region.
    pub(super) fn moment(&self, drain: usize, slot: u32, now: WallNanos) -> InterimMoment {
        let unvisited = self.round.as_ref().filter(|round| round.slots.is_unvisited(drain, slot));
        InterimMoment { now: now.max(self.last), edge: unvisited.and_then(|round| round.edge(now)) }
    }

    /// Visits slots; behind the last one, and the finals of those that had ended, appends the edge and ends
    /// the round. Returns whether the frame is too full for that.
    pub(super) fn visit(
        &mut self,
        now: WallNanos,
        drains: &[FlowDrain],
        sweeps: &mut [Sweep],
        frame: &mut FrameBuffer,
        bytes_max: usize,
        shared: &LedgerState,
    ) -> bool {
        let Some(round) = &mut self.round else { return false };
        let moment = InterimMoment { now: now.max(self.last), edge: round.edge(now) };
        match round.slots.visit(|_, _| moment, drains, sweeps, (&mut *frame, bytes_max), shared) {
            RoundProgress::CutShort => return true,
            RoundProgress::AwaitsFinals => return !has_space(frame, bytes_max),
            RoundProgress::Complete => {}
        }
        if !has_space(frame, bytes_max) {
            return true;
        }
        frame.push(&Entry::Edge { epoch: self.epoch, at: round.at });
        self.last = round.at;
        self.round = None;
        false
    }
}

impl EdgeRound {
    /// The edge in front of which flows are counted now, if their bytes belong to the quarter-hour before it.
    /// A failing disk may stop a round for hours.
    fn edge(&self, now: WallNanos) -> Option<WallNanos> {
        (now <= self.late_at).then_some(self.at)
    }
}

/// The beginning of the quarter-hour behind this moment.
fn next(now: WallNanos) -> WallNanos {
    WallNanos(beginning(now).0.saturating_add(QUARTER))
}

/// The beginning of the quarter-hour that has this moment.
fn beginning(now: WallNanos) -> WallNanos {
    WallNanos(now.0 - now.0 % QUARTER)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sys::mapping::SharedWords;

    use super::super::barrier::Barrier;
    use super::*;
    use crate::entry::EntryVersion;
    use crate::flow_writer::{self, FlowWriter};
    use crate::journal::frame::FRAME_HEADER_BYTES;
    use crate::limits::ENTRY_BYTES_MAX;
    use crate::live_table::{CommitIntent, LiveTable, Region, TableHeader};
    use crate::record::tests::FLOW;
    use crate::record::{CloseReason, Flow, Identity};

    const MINUTE: u64 = 60_000_000_000;
    const SECOND: u64 = 1_000_000_000;
    /// The beginning of some hour.
    const HOUR: u64 = 480_000 * 60 * MINUTE;
    const FRAME_BYTES: usize = 1 << 20;

    /// A committer's slots and edges, with one reactor thread.
    struct Committing {
        edges: Edges,
        barrier: Barrier,
        /// The number of the next entry.
        next_lsn: u64,
        region: Region,
        drains: Vec<FlowDrain>,
        sweeps: Vec<Sweep>,
        shared: Arc<LedgerState>,
    }

    impl Committing {
        fn begin(now: u64) -> (Committing, FlowWriter) {
            let header =
                TableHeader { gateway: 7, epoch: 1, boot: 1, process: 1, regions: 1, slots: 8, run: 1 };
            let table = LiveTable::create(SharedWords::in_memory(header.table_words()), header);
            let region = table.regions().next().expect("the table has one region");
            let shared = Arc::new(LedgerState::new(0));
            let (drain, writer) = flow_writer::pair(&region, &shared);
            let edges = Edges::new(1, WallNanos(now));
            let (barrier, next_lsn) = (Barrier::default(), 1);
            let (drains, sweeps) = (vec![drain], vec![Sweep::new()]);
            (Committing { edges, barrier, next_lsn, region, drains, sweeps, shared }, writer)
        }

        /// A pass, in which at most `finals` ended flows are taken from the ring; returns its entries.
        fn pass(&mut self, now: u64, finals: usize) -> Vec<Entry> {
            self.pass_within(now, finals, FRAME_BYTES)
        }

        /// The same, with a frame of at most `bytes_max`.
        fn pass_within(&mut self, now: u64, finals: usize, bytes_max: usize) -> Vec<Entry> {
            let Self { edges, barrier, next_lsn, drains, sweeps, shared, .. } = self;
            let mut frame = FrameBuffer::default();
            frame.clear();
            edges.begin_if_due(WallNanos(now), drains);
            barrier.begin_if_requested(&shared.barriers, drains);
            let ended = CommitIntent::Final { earliest: edges.earliest() };
            drains[0].take_closed(finals, |region, slot| {
                sweeps[0].journal(region, slot, ended, &mut frame, shared).expect("the flow has ended");
            });
            edges.visit(WallNanos(now), drains, sweeps, &mut frame, bytes_max, shared);
            let space = (&mut frame, bytes_max, *next_lsn);
            barrier.visit((WallNanos(now), edges), drains, sweeps, space, shared);
            *next_lsn += u64::from(frame.count());
            entries(&frame)
        }
    }

    fn entries(frame: &FrameBuffer) -> Vec<Entry> {
        let mut bytes = &frame.bytes()[FRAME_HEADER_BYTES..];
        let mut entries = Vec::new();
        while !bytes.is_empty() {
            let (entry, length) = Entry::read(bytes, EntryVersion::V2).expect("the frame was just written");
            entries.push(entry);
            bytes = &bytes[length..];
        }
        entries
    }

    fn identity(id: u128, opened: u64) -> Identity {
        Identity::new(&Flow { id, opened: WallNanos(opened), ..FLOW })
    }

    /// Each entry: `e` of an edge, `i` of an interim, `f` of a final, and the seconds of its moment since
    /// `HOUR`.
    fn shown(entries: &[Entry]) -> Vec<String> {
        let seconds = |at: WallNanos| (at.0 as i64 - HOUR as i64).div_euclid(SECOND as i64);
        let show = |entry: &Entry| match entry {
            Entry::Edge { at, .. } => format!("e{}", seconds(*at)),
            Entry::Interim(record) => format!("i{}", seconds(record.flow().closed)),
            Entry::Final(record) => format!("f{}", seconds(record.flow().closed)),
            other => format!("{other:?}"),
        };
        entries.iter().map(show).collect()
    }

    /// An open flow moves a byte before each pass of a run that begins a minute past the hour.
    #[test]
    fn edges_follow_the_clock() {
        #[track_caller]
        fn check(passes: &[(u64, &[&str])]) {
            let (mut committing, mut writer) = Committing::begin(HOUR + MINUTE);
            let mut flow = writer.open(&identity(1, HOUR + MINUTE)).expect("a slot is free");
            for (now, expected) in passes {
                writer.counters(&mut flow).up().1.around(1, || Ok(1)).expect("the call took all");
                let found = shown(&committing.pass(*now, 8));
                assert_eq!(
                    found,
                    *expected,
                    "{} s past the hour",
                    (*now as i64 - HOUR as i64) / SECOND as i64
                );
            }
        }
        let at = |minute: u64, second: u64| HOUR + minute * MINUTE + second * SECOND;
        // In time: the bytes belong to the quarter-hour before.
        check(&[
            (at(14, 59), &[]),
            (at(15, 0), &["i899", "e900"]),
            (at(29, 59), &[]),
            (at(30, 5), &["i1799", "e1800"]),
        ]);
        // Late, as after a failure of the disk: the bytes count when they are counted.
        check(&[(at(15, 6), &["i906", "e900"])]);
        // Several quarter-hours are missed, as by a suspended machine, or a clock that steps forward.
        check(&[
            (at(60 * 24 * 3 + 47, 0), &["i262020", "e261900"]),
            (at(60 * 24 * 3 + 60, 0), &["i262799", "e262800"]),
        ]);
        // A short step back waits for the clock; then nothing has an earlier moment than the edge.
        check(&[
            (at(15, 0), &["i899", "e900"]),
            (at(5, 0), &[]),
            (at(15, 1), &[]),
            (at(30, 0), &["i1799", "e1800"]),
        ]);
        // A long one gets an edge of an earlier moment, and from there on edges as ever.
        check(&[
            (at(45, 0), &["i2699", "e2700"]),
            (at(20, 0), &["i2700", "e900"]),
            (at(29, 59), &[]),
            (at(30, 1), &["i1799", "e1800"]),
        ]);
    }

    #[test]
    fn moment_is_not_shortly_before_the_last_edge() {
        let (mut committing, mut writer) = Committing::begin(HOUR + MINUTE);
        committing.pass(HOUR + 15 * MINUTE, 8);
        let flow = writer.open(&identity(1, HOUR + 14 * MINUTE)).expect("a slot is free");
        let now = WallNanos(HOUR + 14 * MINUTE);
        let edge = WallNanos(HOUR + 15 * MINUTE);
        assert_eq!(committing.edges.moment(0, 0, now), InterimMoment { now: edge, edge: None });
        writer.close(flow, now, CloseReason::ClientClosed);
        assert_eq!(shown(&committing.pass(now.0, 8)), ["f900"]);
        // By a clock for which an edge of an earlier moment follows.
        let flow = writer.open(&identity(2, HOUR + 14 * MINUTE)).expect("a slot is free");
        writer.close(flow, WallNanos(HOUR - 60 * MINUTE), CloseReason::ClientClosed);
        assert_eq!(shown(&committing.pass(now.0, 8)), ["f-3600"]);
    }

    /// A failing disk once stopped a round between two frames: what came later was dated back.
    #[test]
    fn visit_after_a_stop_does_not_date_back() {
        let (mut committing, mut writer) = Committing::begin(HOUR + MINUTE);
        for id in 0..2 {
            let mut flow = writer.open(&identity(id, HOUR + MINUTE)).expect("a slot is free");
            writer.counters(&mut flow).up().1.around(1, || Ok(1)).expect("the call took all");
        }
        let now = HOUR + 15 * MINUTE;
        let one = FRAME_HEADER_BYTES + ENTRY_BYTES_MAX;
        assert_eq!(shown(&committing.pass_within(now, 8, one)), ["i899"]);
        assert_eq!(shown(&committing.pass(now + 10 * MINUTE, 8)), ["i1500", "e900"]);
    }

    /// It is opened before its slot is visited.
    #[test]
    fn flow_opened_behind_the_edge_counts_behind_it() {
        let (mut committing, mut writer) = Committing::begin(HOUR + MINUTE);
        let mut flow = writer.open(&identity(1, HOUR + 15 * MINUTE)).expect("a slot is free");
        writer.counters(&mut flow).down().1.around(1, || Ok(1)).expect("the call took all");
        assert_eq!(shown(&committing.pass(HOUR + 15 * MINUTE + SECOND, 8)), ["i901", "e900"]);
    }

    /// An edge was once written while flows that had ended before it waited: their bytes were behind it. A
    /// frame takes fewer finals than wait here.
    #[test]
    fn edge_waits_for_the_finals_of_ended_flows() {
        let (mut committing, mut writer) = Committing::begin(HOUR + MINUTE);
        for id in 0..3 {
            let flow = writer.open(&identity(id, HOUR + MINUTE)).expect("a slot is free");
            writer.close(flow, WallNanos(HOUR + 2 * MINUTE), CloseReason::ClientClosed);
        }
        let now = HOUR + 15 * MINUTE;
        assert_eq!(shown(&committing.pass(now, 2)), ["f120", "f120"]);
        assert_eq!(committing.edges.pause(WallNanos(now)), COMMIT_PAUSE);
        assert_eq!(shown(&committing.pass(now + SECOND, 2)), ["f120", "e900"]);
    }

    /// Requested in the pass in which the edge begins, with frames of one entry: what is counted behind the
    /// edge's visit of a slot comes behind the edge, and the barrier has all that was counted before it.
    #[test]
    fn barrier_beside_an_edge_leaves_the_edge_as_it_is() {
        let (mut committing, mut writer) = Committing::begin(HOUR + MINUTE);
        let mut flows: Vec<_> =
            (0..2).map(|id| writer.open(&identity(id, HOUR + MINUTE)).expect("a slot is free")).collect();
        let mut move_both = |writer: &mut FlowWriter| {
            for flow in &mut flows {
                writer.counters(flow).up().1.around(1, || Ok(1)).expect("the call took all");
            }
        };
        move_both(&mut writer);
        let now = HOUR + 15 * MINUTE;
        let reply = committing.shared.barriers.put(()).expect("none waits");
        let one = FRAME_HEADER_BYTES + ENTRY_BYTES_MAX;
        assert_eq!(shown(&committing.pass_within(now, 8, one)), ["i899"]);
        move_both(&mut writer);
        assert_eq!(shown(&committing.pass(now + SECOND, 8)), ["i899", "e900", "i901"]);
        committing.barrier.answer(3);
        assert!(reply.try_recv().is_err(), "its last entry is not visible yet");
        committing.barrier.answer(4);
        assert!(reply.try_recv().is_ok());
    }

    /// The same for a flow that its reactor thread has ended, and whose hint is not in the ring yet; and for
    /// the next one in its slot, which begins behind the edge and takes nothing from it.
    #[test]
    fn edge_waits_for_an_ended_flow_outside_its_ring() {
        let (mut committing, mut writer) = Committing::begin(HOUR + MINUTE);
        let mut flow = writer.open(&identity(1, HOUR + MINUTE)).expect("a slot is free");
        writer.counters(&mut flow).up().1.around(1, || Ok(1)).expect("the call took all");
        // The first step of `FlowWriter::close`.
        let (now, region) = (HOUR + 15 * MINUTE, committing.region.clone());
        region.slot(0).close(0, WallNanos(now - SECOND), CloseReason::ClientClosed);
        assert!(committing.pass(now, 8).is_empty());
        writer.close(flow, WallNanos(now - SECOND), CloseReason::ClientClosed);
        assert_eq!(shown(&committing.pass(now + SECOND, 8)), ["f899", "e900"]);
        region.slot(0).free(0);
        let flow = writer.open(&identity(2, now + SECOND)).expect("a slot is free");
        assert_eq!(shown(&committing.pass(now + 15 * MINUTE, 8)), ["e1800"]);
        writer.close(flow, WallNanos(now + 16 * MINUTE), CloseReason::ClientClosed);
        assert_eq!(shown(&committing.pass(now + 30 * MINUTE, 8)), ["f1860", "e2700"]);
    }
}
