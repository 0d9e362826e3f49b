//! Golden bytes of every format: later versions must read what an earlier one wrote.
//!
//! Guarantees: a change of a format fails here. Such a change needs a new version number and a reader of the
//! old one, never another line in this file.

use sys::clock::WallNanos;
use sys::mapping::SharedWords;

use crate::entry::Entry;
use crate::journal::frame::{FRAME_HEADER_BYTES, FrameBuffer, FrameHeader};
use crate::journal::segment::{BLOCK_BYTES, HEADER_BYTES, SegmentHeader};
use crate::live_table::{LiveTable, PAGE_WORDS, SLOT_WORDS, SlotContents, TableHeader};
use crate::record::{Class, CloseReason, Flow, Legs, Protocol, Record, Uncertain};

const AT: WallNanos = WallNanos(0x1122_3344_5566_7788);

fn record(reason: CloseReason) -> Record {
    Record::new(&Flow {
        id: 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff,
        opened: WallNanos(0x0102_0304_0506_0708),
        closed: AT,
        user: "ci",
        host: "example.com",
        port: 443,
        address: Some("192.0.2.1".parse().unwrap()),
        client: "[2001:db8::1]:50000".parse().unwrap(),
        class: Class::Internal,
        protocol: Protocol::HttpConnect,
        rule: "rule",
        reason,
        legs: Legs { client_rx: 1, upstream_tx: 2, upstream_rx: 3, client_tx: 4 },
        uncertain: Uncertain { up: 5, down: 6 },
    })
}

fn entry(entry: Entry) -> Vec<u8> {
    let mut bytes = Vec::new();
    entry.write(&mut bytes);
    assert_eq!(Entry::read(&bytes), Ok((entry, bytes.len())));
    bytes
}

/// Compares bytes with hexadecimal digits, ignoring white space.
fn check(name: &str, bytes: &[u8], expected: &str) {
    let found: Vec<String> =
        bytes.chunks(16).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    let expected: Vec<&str> = expected.split_whitespace().collect();
    assert!(found == expected, "{name}, found:\n{}", found.join("\n"));
}

#[test]
fn entry_bytes_are_unchanged() {
    check("final", &entry(Entry::Final(record(CloseReason::Killed))), FINAL);
    check("interim", &entry(Entry::Interim(record(CloseReason::Fault))), INTERIM);
    check("run began", &entry(Entry::RunBegan { epoch: 7, at: AT }), RUN_BEGAN);
    check("gap", &entry(Entry::Gap { epoch: 7, at: AT, first_lsn: 8 }), GAP);
}

#[test]
fn frame_bytes_are_unchanged() {
    let mut frame = FrameBuffer::default();
    frame.clear();
    frame.push(&Entry::RunBegan { epoch: 7, at: AT });
    frame.push(&Entry::Gap { epoch: 7, at: AT, first_lsn: 8 });
    let header = frame.seal(|count, payload_bytes, payload_crc| FrameHeader {
        epoch: 7,
        count,
        segment: 9,
        first_lsn: 10,
        synced_lsn: 11,
        previous: 0x1213_1415_1617_1819,
        payload_bytes,
        payload_crc,
        written: AT,
    });
    assert_eq!(frame.bytes().len(), BLOCK_BYTES);
    let (whole, padding) = frame.bytes().split_at(FRAME_HEADER_BYTES + header.payload_bytes as usize);
    check("frame", whole, FRAME);
    assert!(padding.iter().all(|byte| *byte == 0));
    assert_eq!(FrameHeader::parse(frame.bytes(), 9), Some(header));
    assert_eq!(header.hash(), FRAME_HASH, "found {:#x}", header.hash());
}

#[test]
fn segment_header_bytes_are_unchanged() {
    let header = SegmentHeader {
        gateway: 1,
        number: 2,
        epoch: 3,
        first_lsn: 4,
        synced_lsn: 5,
        previous: 6,
        begun: AT,
        rewrites_to: 8,
        table: "/dev/shm/tollgate-00000001.live".to_owned(),
        boot: 0,
        bytes: 0,
    };
    let block = header.write();
    assert_eq!(block.len(), HEADER_BYTES);
    check("segment header", &block[..112], SEGMENT);
    assert!(block[112..HEADER_BYTES - 4].iter().all(|byte| *byte == 0));
    check("its checksum", &block[HEADER_BYTES - 4..], SEGMENT_CRC);
}

/// A flow in one slot, with a call in progress; then closed.
#[test]
fn live_table_bytes_are_unchanged() {
    let header = TableHeader { gateway: 1, epoch: 2, boot: 3 << 64 | 4, process: 5, regions: 1, slots: 2 };
    let table = LiveTable::create(SharedWords::in_memory(header.table_words()), header);
    let words = table.words();
    let bytes = |from: usize, count: usize| -> Vec<u8> {
        let word = |at: usize| words.words()[at].load(std::sync::atomic::Ordering::Acquire);
        (from..from + count).flat_map(|at| word(at).to_le_bytes()).collect()
    };
    table.note_alive(WallNanos(1_780_000_000_000_000_000));
    check("table header", &bytes(0, 9), TABLE);
    let region = table.regions().next().unwrap();
    let (slot, mut legs) = (region.slot(1), Legs::default());
    slot.open(record(CloseReason::Fault).identity(), 6);
    slot.counters(&mut legs).up().0.add(100);
    slot.counters(&mut legs).down().0.add(200);
    let start = PAGE_WORDS + SLOT_WORDS;
    let sent = slot.counters(&mut legs).up().1.around(50, || Ok(40));
    assert_eq!(sent.unwrap(), 40);
    slot.counters(&mut legs)
        .down()
        .1
        .around(30, || {
            check("live slot", &bytes(start, 20), LIVE);
            Ok(30)
        })
        .unwrap();
    slot.close(6, WallNanos(1_780_000_000_000_000_000), CloseReason::IdleTimeout);
    check("closing slot", &bytes(start, 8), CLOSING);
    assert!(matches!(slot.read(), SlotContents::Closing(_)));
    slot.free(6);
    check("free slot", &bytes(start, 1), FREE);
}

const FINAL: &str = "
    7d00010c887766554433221101000000
    00000000020000000000000003000000
    00000000040000000000000005000000
    06000000ffeeddccbbaa998877665544
    332211000807060504030201bb0150c3
    020100100402040b20010db800000000
    0000000000000001c000020163697275
    6c656578616d706c652e636f6d";
const INTERIM: &str = "
    7d000200887766554433221101000000
    00000000020000000000000003000000
    00000000040000000000000005000000
    06000000ffeeddccbbaa998877665544
    332211000807060504030201bb0150c3
    020100100402040b20010db800000000
    0000000000000001c000020163697275
    6c656578616d706c652e636f6d";
const RUN_BEGAN: &str = "10000300887766554433221107000000";
const GAP: &str = "
    18000400887766554433221107000000
    0800000000000000";
const FRAME: &str = "
    4652414d2fa4da570700000002000000
    09000000000000000a00000000000000
    0b000000000000001918171615141312
    280000001587b2228877665544332211
    10000300887766554433221107000000
    18000400887766554433221107000000
    0800000000000000";
const FRAME_HASH: u64 = 0x9beb_ea59_00c9_b653;
const SEGMENT: &str = "
    544f4c4c4a524e4c0100000001000000
    02000000000000000300000000000000
    04000000000000000500000000000000
    06000000000000008877665544332211
    08000000000000001f002f6465762f73
    686d2f746f6c6c676174652d30303030
    303030312e6c69766500000000000000";
const SEGMENT_CRC: &str = "bd68c618";
const TABLE: &str = "
    544f4c4c4c4956450100000005000000
    01000000020000000400000000000000
    03000000000000000100000000000000
    0200000000000000aa7417b500000000
    00c0bff80a483306";
const LIVE: &str = "
    fb881700000000003827000000000000
    00000000000000000631000000000000
    6a1d0000000000000c62000000000000
    18c40000000000000000000000000000
    49000000320d45c2ffeeddccbbaa9988
    77665544332211000807060504030201
    bb0150c3020100100402040b20010db8
    000000000000000000000001c0000201
    636972756c656578616d706c652e636f
    6d000000000000000000000000000000";
const CLOSING: &str = "
    929d1700000000003827000000000000
    6a1d0000000000000631000000000000
    6a1d0000000000000c62000000000000
    18c400000000000000c0bff80a483306";
const FREE: &str = "00741b0000000000";
