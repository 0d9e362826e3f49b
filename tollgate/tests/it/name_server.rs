//! A name server on loopback: it answers queries for given names, ignores others, and records each queried
//! name.
//!
//! Guarantees: a query is recorded before its answer is sent.
//!
//! Not handled here: TCP, and types other than A and AAAA.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;

/// The type of a record with an IPv4 address, and of one with an IPv6 address (RFC 1035, RFC 3596).
const TYPE_A: [u8; 2] = [0, 1];
const TYPE_AAAA: [u8; 2] = [0, 28];

/// A name server for A and AAAA over UDP. Its thread lives as long as the test's process.
pub(crate) struct NameServer {
    pub(crate) address: SocketAddr,
    queried: Arc<Mutex<BTreeSet<String>>>,
}

impl NameServer {
    /// Answers with the addresses that `addresses` returns for a name: a name with an empty list does not
    /// exist, and a query for a name with `None` gets no answer.
    pub(crate) fn start<A>(addresses: impl Fn(&str) -> A + Send + 'static) -> NameServer
    where
        A: Into<Option<Vec<IpAddr>>>,
    {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let queried = Arc::new(Mutex::new(BTreeSet::new()));
        let record = Arc::clone(&queried);
        thread::spawn(move || serve(&socket, |name| addresses(name).into(), &record));
        NameServer { address, queried }
    }

    /// The configuration of a gateway that queries this server.
    pub(crate) fn configuration(&self) -> String {
        format!("[dns]\nservers = [\"{}\"]\n", self.address)
    }

    /// Each queried name, once, in small letters.
    pub(crate) fn queried(&self) -> BTreeSet<String> {
        self.queried.lock().unwrap().clone()
    }

    /// From now on names without a list do not exist, also for earlier queries.
    pub(crate) fn speak(&self) {
        UdpSocket::bind("127.0.0.1:0").unwrap().send_to(&[], self.address).unwrap();
    }
}

fn serve(
    socket: &UdpSocket,
    addresses: impl Fn(&str) -> Option<Vec<IpAddr>>,
    record: &Mutex<BTreeSet<String>>,
) {
    let (mut query, mut is_silent, mut unanswered) = ([0; 512], true, Vec::new());
    while let Ok((count, client)) = socket.recv_from(&mut query) {
        // `NameServer::speak` sends an empty datagram.
        is_silent &= count > 0;
        if let Some((name, end)) = question(&query[..count]) {
            record.lock().unwrap().insert(name.clone());
            unanswered.push((name, query[..end].to_vec(), client));
        }
        unanswered.retain(|(name, query, client)| {
            let found = addresses(name).or_else(|| (!is_silent).then(Vec::new));
            let Some(found) = found else { return true };
            // A client that has its answer already may have closed its socket.
            let _ = socket.send_to(&answer(query, &found), client);
            false
        });
    }
}

/// The name of the only question of a query, and where the question ends (RFC 1035 section 4.1).
fn question(query: &[u8]) -> Option<(String, usize)> {
    let (mut labels, mut at) = (Vec::new(), 12);
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        labels.push(str::from_utf8(query.get(at..at + length)?).ok()?.to_ascii_lowercase());
        at += length;
    }
    query.get(at..at + 4)?;
    Some((labels.join("."), at + 4))
}

/// The answer to a query that ends with its question.
fn answer(query: &[u8], addresses: &[IpAddr]) -> Vec<u8> {
    let kind = [query[query.len() - 4], query[query.len() - 3]];
    let records: Vec<Vec<u8>> = addresses
        .iter()
        .filter_map(|address| match address {
            IpAddr::V4(address) if kind == TYPE_A => Some(address.octets().to_vec()),
            IpAddr::V6(address) if kind == TYPE_AAAA => Some(address.octets().to_vec()),
            _ => None,
        })
        .collect();
    let mut answer = query.to_vec();
    // A response by a recursive server; 3 is NXDOMAIN.
    answer[2..4].copy_from_slice(&[0x81, if addresses.is_empty() { 0x83 } else { 0x80 }]);
    answer[4..12].copy_from_slice(&[0, 1, 0, u8::try_from(records.len()).unwrap(), 0, 0, 0, 0]);
    for record in records {
        // The owner is the name at byte 12; then type, class IN, a TTL of 60 s, and the address.
        answer.extend([0xc0, 12]);
        answer.extend(kind);
        answer.extend([0, 1, 0, 0, 0, 60, 0, u8::try_from(record.len()).unwrap()]);
        answer.extend(record);
    }
    answer
}
