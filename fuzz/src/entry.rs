//! The invariants of journal entries: what is read is written again as the same bytes, and what is written is
//! read again as the same entry.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ledger::entry::Entry;
use ledger::fuzzing::{consent, has_key_of, read_entry, write_entry};
use ledger::limits::{HOST_BYTES_MAX, IDENTITY_BYTES_MAX, RULE_BYTES_MAX, USER_BYTES_MAX};
use ledger::record::{Class, CloseReason, Flow, Legs, Protocol, Record, Uncertain};
use sys::clock::WallNanos;

use crate::choices::Choices;

/// Bytes of an entry at most.
const ENTRY_BYTES_MAX: usize = 512;

/// Bytes of an identity before its addresses and texts.
const FIXED_BYTES: usize = 44;

/// Bytes of a consent's texts at most.
const AUTHOR_BYTES_MAX: usize = 64;
const WHAT_BYTES_MAX: usize = 288;

/// The input as an entry, and entries that are made from it.
pub fn entry(data: &[u8]) {
    assert_read(data);
    assert_old_is_read(data);
    let mut choices = Choices::new(data);
    while !choices.is_empty() {
        let texts = [choices.text(), choices.text(), choices.text()];
        assert_record_of(&flow(&mut choices, &texts));
        let [author, what, _] = texts;
        assert_consent(&mut choices, &author, &what);
    }
}

/// An entry that is read is written as the same bytes, but for fields behind it, which may be skipped.
fn assert_read(bytes: &[u8]) {
    let read = read_entry(bytes, false);
    assert!(has_key_of(bytes, false, read.as_ref().ok().map(|(entry, length)| (entry, *length))));
    let Ok((entry, length)) = read else { return };
    assert!(length <= bytes.len());
    assert_eq!(read_entry(&bytes[..length], false), Ok((entry, length)));
    assert!(read_entry(&bytes[..length - 1], false).is_err());
    let known = bytes_of(&entry);
    let (mut expected, mut fields) = (bytes[..known.len()].to_vec(), &bytes[known.len()..length]);
    expected[..2].copy_from_slice(&known[..2]);
    clear_ignored(&mut expected);
    assert_eq!(known, expected);
    while let [tag, value_bytes, rest @ ..] = fields {
        assert!(*tag >= 128);
        fields = &rest[usize::from(*value_bytes)..];
    }
    assert!(fields.is_empty());
    if let Entry::Final(record) | Entry::Interim(record) = &entry {
        assert_packed_again(record);
    }
    assert_reread(&entry);
}

/// An entry of version 1 that is read can be written, and read again.
fn assert_old_is_read(bytes: &[u8]) {
    let read = read_entry(bytes, true);
    assert!(has_key_of(bytes, true, read.as_ref().ok().map(|(entry, length)| (entry, *length))));
    let Ok((entry, length)) = read else { return };
    assert_eq!(read_entry(&bytes[..length], true), Ok((entry, length)));
    assert!(read_entry(&bytes[..length - 1], true).is_err());
    assert_reread(&entry);
}

/// The bytes of an entry as this version writes them; as they are, if it cannot read them.
pub(crate) fn rewritten(entry: &[u8], is_old: bool) -> Vec<u8> {
    match read_entry(entry, is_old) {
        Ok((read, length)) if length == entry.len() => bytes_of(&read),
        _ => entry.to_vec(),
    }
}

/// Clears the bytes that an entry has and a reader ignores.
fn clear_ignored(entry: &mut [u8]) {
    const FINAL: u8 = 1;
    const CONSENT: u8 = 6;
    const SKIPPED_FROM: u8 = 128;
    if (FINAL + 1..SKIPPED_FROM).contains(&entry[2]) {
        entry[3] = 0;
    }
    if entry[2] == CONSENT {
        entry[35] = 0;
    }
}

/// Packing the flow of a record gives the same record, except for what only a packer decides: flags, and the
/// form of addresses.
fn assert_packed_again(record: &Record) {
    let flow = record.flow();
    assert!(flow.user.len() <= USER_BYTES_MAX);
    assert!(flow.rule.len() <= RULE_BYTES_MAX);
    assert!(flow.host.len() <= HOST_BYTES_MAX);
    let again = Record::new(&flow);
    assert!(!again.identity().is_cut());
    assert_eq!(again.flow(), canonical(&flow));
    assert_eq!(again.identity().id(), record.identity().id());
}

/// `flow` with its addresses as a record has them.
fn canonical<'a>(flow: &Flow<'a>) -> Flow<'a> {
    let client = SocketAddr::new(flow.client.ip().to_canonical(), flow.client.port());
    Flow { client, address: flow.address.map(|address| address.to_canonical()), ..*flow }
}

/// A flow of any numbers, with `texts`.
pub(crate) fn flow<'a>(choices: &mut Choices<'_>, texts: &'a [String; 3]) -> Flow<'a> {
    let [user, host, rule] = texts;
    let [class, protocol, reason] = choices.array();
    let protocols = [Protocol::HttpConnect, Protocol::Socks5, Protocol::Forward, Protocol::Http];
    let mut count = || choices.near(0);
    let legs = Legs { client_rx: count(), upstream_tx: count(), upstream_rx: count(), client_tx: count() };
    let (opened, closed) = (WallNanos(count()), WallNanos(count()));
    Flow {
        id: u128::from_le_bytes(choices.array()),
        opened,
        closed,
        account: u32::from_le_bytes(choices.array()),
        policy: u32::from_le_bytes(choices.array()),
        set: u16::from_le_bytes(choices.array()),
        user,
        host,
        port: u16::from_le_bytes(choices.array()),
        address: choices.flag().then(|| address(choices)),
        client: SocketAddr::new(address(choices), u16::from_le_bytes(choices.array())),
        class: if class & 1 == 0 { Class::External } else { Class::Internal },
        protocol: protocols[usize::from(protocol) % protocols.len()],
        rule,
        reason: CloseReason::ALL[usize::from(reason) % CloseReason::ALL.len()],
        requests: u64::from(choices.byte()),
        legs,
        uncertain: Uncertain {
            up: u32::from_le_bytes(choices.array()),
            down: u32::from_le_bytes(choices.array()),
        },
    }
}

fn address(choices: &mut Choices<'_>) -> IpAddr {
    match choices.below(3) {
        0 => Ipv4Addr::from(choices.array::<4>()).into(),
        1 => Ipv6Addr::from(choices.array::<16>()).into(),
        _ => Ipv4Addr::from(choices.array::<4>()).to_ipv6_mapped().into(),
    }
}

/// A record has all of its flow, but for texts beyond their bounds, which it says are cut.
fn assert_record_of(flow: &Flow<'_>) {
    let record = Record::new(flow);
    let packed = record.flow();
    let address_bytes = |address: IpAddr| if address.is_ipv4() { 4 } else { 16 };
    let others = address_bytes(packed.client.ip()) + packed.address.map_or(0, address_bytes);
    let room = IDENTITY_BYTES_MAX - FIXED_BYTES - others - packed.user.len() - packed.host.len();
    let texts = [
        (flow.user, packed.user, USER_BYTES_MAX),
        (flow.host, packed.host, HOST_BYTES_MAX),
        (flow.rule, packed.rule, RULE_BYTES_MAX.min(room)),
    ];
    for (text, kept, bytes_max) in texts {
        assert_cut(text, kept, bytes_max);
    }
    let is_cut = texts.iter().any(|(text, kept, _)| text.len() > kept.len());
    assert_eq!(record.identity().is_cut(), is_cut);
    let Flow { user, host, rule, .. } = packed;
    assert_eq!(packed, canonical(&Flow { user, host, rule, ..*flow }));
    assert_reread(&Entry::Final(record));
    assert_reread(&Entry::Interim(Record::new(&Flow { reason: CloseReason::Fault, ..*flow })));
}

/// `kept` is the longest prefix of `text` within the bound that ends at a character's border.
fn assert_cut(text: &str, kept: &str, bytes_max: usize) {
    assert!(text.starts_with(kept) && kept.len() <= bytes_max);
    let next = text[kept.len()..].chars().next();
    assert!(next.is_none_or(|next| kept.len() + next.len_utf8() > bytes_max));
}

/// A consent shows no control character, which would change a terminal.
fn assert_consent(choices: &mut Choices<'_>, author: &str, what: &str) {
    let (at, lsns) = (WallNanos(choices.near(0)), (choices.near(1), choices.near(1)));
    let consent = consent(at, lsns, author, what);
    let plain = |text: &str| text.replace(char::is_control, " ");
    assert_cut(&plain(author), consent.author(), AUTHOR_BYTES_MAX);
    assert_cut(&plain(what), consent.what(), WHAT_BYTES_MAX);
    assert_eq!((consent.at, consent.first_lsn, consent.last_lsn), (at, lsns.0, lsns.1));
    assert_reread(&Entry::Accepted(consent));
}

/// A written entry is read again, also where other bytes follow.
fn assert_reread(entry: &Entry) {
    let mut bytes = bytes_of(entry);
    let length = bytes.len();
    assert!(length <= ENTRY_BYTES_MAX);
    bytes.extend_from_slice(&[0xff; 3]);
    assert_eq!(read_entry(&bytes, false), Ok((*entry, length)));
    assert!(has_key_of(&bytes, false, Some((entry, length))));
}

pub(crate) fn bytes_of(entry: &Entry) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_entry(entry, &mut bytes);
    bytes
}
