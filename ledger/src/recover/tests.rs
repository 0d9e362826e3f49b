//! Cases of a start's scan.

use super::*;
use crate::journal::segment;
use crate::storage::memory::Memory;

/// Without the loss, this start passed over the file, and the next one refused it.
#[test]
fn truncated_segment_is_a_loss_though_no_other_has_a_header() {
    let storage = Memory::default();
    storage.create(&segment::name(1)).expect("a disk in memory takes every file");
    storage.put_content(&segment::name(1), vec![0; 100]);
    let scan = scan(&storage, 1, Applied::default(), HashSet::new(), &[]).expect("the journal can be read");
    let losses = scan.losses(0, 0, &[]);
    assert!(matches!(losses[..], [Loss::Segment { segment: 1, bytes: 100, expected: 0 }]), "{losses:?}");
}
