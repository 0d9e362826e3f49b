//! Golden bytes of every format, in the files of `golden/`: later versions must read what an earlier one
//! wrote.
//!
//! Guarantees: a change of a format fails here. Such a change needs a new version number, a directory of new
//! files, and a reader of the old ones, which never change.

use std::path::Path;
use std::sync::atomic::Ordering;

use sys::clock::WallNanos;
use sys::mapping::SharedWords;

use crate::consent::Consent;
use crate::entry::{Entry, EntryVersion, GrantEntry, NoticeEntry, TableFinding};
use crate::journal::frame::{FRAME_HEADER_BYTES, FrameBuffer, FrameHeader};
use crate::journal::segment::{BLOCK_BYTES, HEADER_BYTES, SegmentHeader};
use crate::live_table::{LiveTable, PAGE_WORDS, SLOT_WORDS, SlotContents, SlotLayout, TableHeader};
use crate::quota::{Grant, Notice, Owner};
use crate::record::{Class, CloseReason, Flow, Legs, Protocol, Record, Uncertain};

const AT: WallNanos = WallNanos(0x1122_3344_5566_7788);

/// A flow, as version 1 knows it.
const FLOW_1: Flow<'_> = Flow {
    id: 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff,
    opened: WallNanos(0x0102_0304_0506_0708),
    closed: AT,
    account: 0,
    policy: 0,
    set: 0,
    user: "ci",
    host: "example.com",
    port: 443,
    address: Some(std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1))),
    client: std::net::SocketAddr::new(
        std::net::IpAddr::V6(std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
        50_000,
    ),
    class: Class::Internal,
    protocol: Protocol::HttpConnect,
    rule: "rule",
    reason: CloseReason::Killed,
    requests: 0,
    legs: Legs { client_rx: 1, upstream_tx: 2, upstream_rx: 3, client_tx: 4 },
    uncertain: Uncertain { up: 5, down: 6 },
};

fn final_1() -> Record {
    Record::new(&FLOW_1)
}

fn interim_1() -> Record {
    Record::new(&Flow { reason: CloseReason::Fault, ..FLOW_1 })
}

fn final_2() -> Record {
    let (account, policy, set) = (0x0a0b_0c0d, 0x1a1b_1c1d, 0x2a2b);
    Record::new(&Flow { account, policy, set, requests: 7, ..FLOW_1 })
}

fn grant() -> Grant {
    Grant {
        id: 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff,
        at: AT,
        owner: Owner::Team("web".to_owned()),
        quota: "month".to_owned(),
        bytes: 8,
        from: WallNanos(9),
        until: WallNanos(10),
        author: "root".to_owned(),
        reason: "release".to_owned(),
    }
}

fn notice() -> Notice {
    Notice {
        at: AT,
        owner: Owner::User(0x0a0b_0c0d),
        quota: "month".to_owned(),
        period_start: WallNanos(8),
        percent: 80,
        used: 9,
        limit: 10,
    }
}

/// The digits of a file, in lines of 16 bytes.
fn golden(version: u32, name: &str) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("src/golden/version-{version}"));
    std::fs::read_to_string(directory.join(format!("{name}.hex"))).unwrap_or_default()
}

fn golden_bytes(version: u32, name: &str) -> Vec<u8> {
    let digits: String = golden(version, name).split_whitespace().collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

/// Compares bytes with the file `name` of version 2.
fn check(name: &str, bytes: &[u8]) {
    check_version(2, name, bytes);
}

fn check_version(version: u32, name: &str, bytes: &[u8]) {
    let line = |line: &[u8]| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n";
    let found: String = bytes.chunks(16).map(line).collect();
    assert!(found == golden(version, name), "{name}, found:\n{found}");
}

#[test]
fn entry_bytes_are_unchanged() {
    let entries = [
        ("final", Entry::Final(final_2())),
        ("interim", Entry::Interim(interim_1())),
        ("run-began", Entry::RunBegan { epoch: 7, at: AT, run: 8 << 64 | 9, table: TableFinding::Found }),
        ("gap", Entry::Gap { epoch: 7, at: AT, first_lsn: 8 }),
        ("run-ended", Entry::RunEnded { epoch: 7, at: AT }),
        ("edge", Entry::Edge { epoch: 7, at: AT }),
        ("grant", Entry::Granted(GrantEntry::new(&grant()).unwrap())),
        ("notice", Entry::Noticed(NoticeEntry::new(&notice()).unwrap())),
        ("consent", Entry::Accepted(Consent::new(7, AT, (8, 9), "root", "entries 8 to 9 are lost"))),
    ];
    for (name, entry) in entries {
        let mut bytes = Vec::new();
        entry.write(&mut bytes);
        assert_eq!(Entry::read(&bytes, EntryVersion::V2), Ok((entry, bytes.len())));
        check(name, &bytes);
    }
}

#[test]
fn entries_of_version_1_are_read() {
    let began = Entry::RunBegan { epoch: 7, at: AT, run: 0, table: TableFinding::None };
    let entries = [
        ("final", Entry::Final(final_1())),
        ("interim", Entry::Interim(interim_1())),
        ("run-began", began),
        ("gap", Entry::Gap { epoch: 7, at: AT, first_lsn: 8 }),
    ];
    for (name, entry) in entries {
        let bytes = golden_bytes(1, name);
        assert_eq!(Entry::read(&bytes, EntryVersion::V1), Ok((entry, bytes.len())), "{name}");
    }
    let frame = golden_bytes(1, "frame");
    let header = FrameHeader::parse(&frame, 9).unwrap();
    assert_eq!((header.version, header.hash()), (EntryVersion::V1, 0x9beb_ea59_00c9_b653));
    let mut entries = Vec::new();
    header.entries(&frame[FRAME_HEADER_BYTES..], &mut entries).unwrap();
    assert_eq!(entries, [began, Entry::Gap { epoch: 7, at: AT, first_lsn: 8 }]);
}

#[test]
fn frame_bytes_are_unchanged() {
    let mut frame = FrameBuffer::default();
    frame.clear();
    frame.push(&Entry::RunEnded { epoch: 7, at: AT });
    frame.push(&Entry::Gap { epoch: 7, at: AT, first_lsn: 8 });
    let header = frame.seal(|count, payload_bytes, payload_crc| FrameHeader {
        version: EntryVersion::V2,
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
    check("frame", whole);
    assert!(padding.iter().all(|byte| *byte == 0));
    assert_eq!(FrameHeader::parse(frame.bytes(), 9), Some(header));
    check("frame-hash", &header.hash().to_le_bytes());
}

/// The header of both versions, but for the run.
fn segment_header() -> SegmentHeader {
    SegmentHeader {
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
        run: 0,
    }
}

#[test]
fn segment_header_bytes_are_unchanged() {
    let header = SegmentHeader { boot: 9 << 64 | 10, bytes: 1 << 20, run: 11 << 64 | 12, ..segment_header() };
    let block = header.write();
    assert_eq!(block.len(), HEADER_BYTES);
    let (path_end, known) = (1104, 1144);
    check("segment-header", &block[..112]);
    assert!(block[112..path_end].iter().all(|byte| *byte == 0));
    check("segment-header-behind-the-path", &block[path_end..known]);
    assert!(block[known..HEADER_BYTES - 4].iter().all(|byte| *byte == 0));
    check("segment-header-checksum", &block[HEADER_BYTES - 4..]);
}

#[test]
fn segment_header_of_version_1_is_read() {
    let mut block = golden_bytes(1, "segment-header");
    block.resize(HEADER_BYTES - 4, 0);
    block.extend(golden_bytes(1, "segment-header-checksum"));
    assert_eq!(SegmentHeader::parse(&block), Some(segment_header()));
}

/// A flow in one slot, with a call in progress; then closed.
#[test]
fn live_table_bytes_are_unchanged() {
    let header =
        TableHeader { gateway: 1, epoch: 2, boot: 3 << 64 | 4, process: 5, regions: 1, slots: 2, run: 6 };
    let table = LiveTable::create(SharedWords::in_memory(header.table_words()), header);
    let words = table.words();
    let bytes = |from: usize, count: usize| -> Vec<u8> {
        let word = |at: usize| words.words()[at].load(Ordering::Acquire);
        (from..from + count).flat_map(|at| word(at).to_le_bytes()).collect()
    };
    table.note_alive(WallNanos(1_780_000_000_000_000_000));
    check_version(3, "table-header", &bytes(0, 14));
    let region = table.regions().next().unwrap();
    let (slot, mut legs) = (region.slot(1), Legs::default());
    slot.open(final_2().identity(), 6);
    slot.store_requests(7);
    slot.counters(&mut legs).up().0.add(100);
    slot.counters(&mut legs).down().0.add(200);
    let start = PAGE_WORDS + SLOT_WORDS;
    let sent = slot.counters(&mut legs).up().1.around(50, || Ok(40));
    assert_eq!(sent.unwrap(), 40);
    slot.counters(&mut legs)
        .down()
        .1
        .around(30, || {
            check("live-slot", &bytes(start, 22));
            Ok(30)
        })
        .unwrap();
    slot.close(6, WallNanos(1_780_000_000_000_000_000), CloseReason::IdleTimeout);
    check("closing-slot", &bytes(start, 9));
    slot.close(6, WallNanos(1_780_000_000_000_000_000), CloseReason::QuotaExhausted);
    check_version(3, "closing-slot", &bytes(start, 9));
    assert!(matches!(slot.read(), SlotContents::Closing(_)));
    slot.free(6);
    check("free-slot", &bytes(start, 1));
}

/// The words of a golden file.
fn golden_words(version: u32, name: &str) -> Vec<u64> {
    let bytes = golden_bytes(version, name);
    bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Version 3 changed the number alone: a program that knows version 2 refuses what it would misread.
#[test]
fn live_table_of_version_2_is_read() {
    let words = golden_words(2, "table-header");
    let word = |at: usize| words.get(at).copied().unwrap_or(0);
    let expected =
        TableHeader { gateway: 1, epoch: 2, boot: 3 << 64 | 4, process: 5, regions: 1, slots: 2, run: 6 };
    assert_eq!(TableHeader::parse(word), Ok((expected, SlotLayout::V2)));
}

#[test]
fn live_table_of_version_1_is_read() {
    let words = |name: &str| golden_words(1, name);
    let word = |words: Vec<u64>| move |at: usize| words.get(at).copied().unwrap_or(0);
    let (header, layout) = TableHeader::parse(word(words("table-header"))).unwrap();
    let expected =
        TableHeader { gateway: 1, epoch: 2, boot: 3 << 64 | 4, process: 5, regions: 1, slots: 2, run: 0 };
    assert_eq!((header, layout), (expected, SlotLayout::V1));
    let legs = Legs { client_rx: 100, upstream_tx: 40, upstream_rx: 200, client_tx: 0 };
    let live = Record::from_parts(*final_1().identity(), WallNanos(0), CloseReason::Killed, legs);
    let live = live.with_uncertain(Uncertain { up: 0, down: 30 });
    let found = SlotContents::from_words(layout, word(words("live-slot")));
    assert_eq!(found, SlotContents::Live(live));
    let mut closing = words("closing-slot");
    closing.extend_from_slice(&words("live-slot")[8..]);
    let SlotContents::Closing(closed) = SlotContents::from_words(layout, word(closing)) else { panic!() };
    let flow = closed.flow();
    assert_eq!(flow.reason, CloseReason::IdleTimeout);
    assert_eq!((flow.legs.client_tx, flow.closed), (30, WallNanos(1_780_000_000_000_000_000)));
    let free = SlotContents::from_words(layout, word(words("free-slot")));
    assert_eq!(free, SlotContents::Nothing);
}
