//! A scripted DNS server on loopback: UDP and TCP on one port, and a record of every query.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use hickory_resolver::proto::op::{Message, OpCode, ResponseCode};
use hickory_resolver::proto::rr::rdata::{CNAME, SOA};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};

/// What the server does with a query.
pub(super) enum Action {
    /// Addresses of the queried family, all with one TTL in seconds.
    Addresses(u32, Vec<IpAddr>),
    /// An alias: its target, its TTL, and what the target has.
    Alias(&'static str, u32, Box<Action>),
    /// The name exists, but not with this type; the zone's negative TTL in seconds.
    NoData(u32),
    NxDomain(u32),
    ServFail,
    /// Asks the client to retry over TCP.
    Truncated,
    /// Sends a forged answer with a wrong id and this address first.
    ForgedFirst(IpAddr, Box<Action>),
    Silence,
    /// Acts once the gate is open.
    Hold(Gate, Box<Action>),
}

/// Addresses with a TTL of 300 seconds.
pub(super) fn addresses(list: &[&str]) -> Action {
    Action::Addresses(300, list.iter().map(|text| text.parse().unwrap()).collect())
}

/// What held queries wait for.
#[derive(Clone, Default)]
pub(super) struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub(super) fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    pub(super) fn wait(&self) {
        drop(self.0.1.wait_while(self.0.0.lock().unwrap(), |open| !*open).unwrap());
    }
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Query {
    /// Repeats of a query have the same id.
    id: u16,
    pub(super) name: String,
    pub(super) family: RecordType,
    pub(super) tcp: bool,
}

type Script = dyn Fn(&Query) -> Action + Send + Sync;

#[derive(Clone)]
pub(super) struct NameServer {
    pub(super) address: SocketAddr,
    received: Arc<Mutex<Vec<Query>>>,
    script: Arc<Script>,
}

impl NameServer {
    /// Answers by `script`; its threads live as long as the test process.
    pub(super) fn start(script: impl Fn(&Query) -> Action + Send + Sync + 'static) -> NameServer {
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
            // The same port may be in use for TCP.
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()) {
                break (udp, tcp);
            }
        };
        let address = udp.local_addr().unwrap();
        let server = NameServer { address, received: Arc::default(), script: Arc::new(script) };
        let (by_udp, by_tcp) = (server.clone(), server.clone());
        thread::spawn(move || by_udp.serve_udp(&udp));
        thread::spawn(move || tcp.incoming().for_each(|stream| by_tcp.serve_tcp(stream.unwrap())));
        server
    }

    /// The queries so far, without repeats, as `A db.test tcp`, sorted.
    pub(super) fn queries(&self) -> Vec<String> {
        let mut queries = self.received.lock().unwrap().clone();
        queries.sort_by_key(|query| (query.id, query.tcp));
        queries.dedup();
        let text =
            |query: &Query| format!("{} {}{}", query.family, query.name, if query.tcp { " tcp" } else { "" });
        let mut texts: Vec<_> = queries.iter().map(text).collect();
        texts.sort();
        texts
    }

    fn serve_udp(&self, socket: &UdpSocket) {
        let mut buffer = [0; 4096];
        loop {
            let (count, client) = socket.recv_from(&mut buffer).unwrap();
            let socket = socket.try_clone().unwrap();
            self.answer(&buffer[..count], false, move |answer| {
                socket.send_to(answer, client).unwrap();
            });
        }
    }

    fn serve_tcp(&self, mut stream: std::net::TcpStream) {
        let mut length = [0; 2];
        while stream.read_exact(&mut length).is_ok() {
            let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
            stream.read_exact(&mut query).unwrap();
            let mut stream = stream.try_clone().unwrap();
            self.answer(&query, true, move |answer| {
                let length = u16::try_from(answer.len()).unwrap();
                stream.write_all(&[&length.to_be_bytes(), answer].concat()).unwrap();
            });
        }
    }

    /// Answers on a thread of its own, since some queries are held.
    fn answer(&self, query: &[u8], tcp: bool, mut send: impl FnMut(&[u8]) + Send + 'static) {
        let message = Message::from_vec(query).unwrap();
        let question = message.queries[0].clone();
        let query = Query {
            id: message.metadata.id,
            name: question.name().to_string(),
            family: question.query_type(),
            tcp,
        };
        self.received.lock().unwrap().push(query.clone());
        let action = (self.script)(&query);
        thread::spawn(move || {
            let mut answer = Message::response(query.id, OpCode::Query);
            answer.metadata.recursion_available = true;
            answer.add_query(question.clone());
            perform(action, question.name().clone(), answer, &mut send);
        });
    }
}

fn perform(action: Action, owner: Name, mut answer: Message, send: &mut impl FnMut(&[u8])) {
    match action {
        Action::Silence => return,
        Action::Hold(gate, action) => {
            gate.wait();
            return perform(*action, owner, answer, send);
        }
        Action::Alias(target, ttl, action) => {
            let target = Name::from_ascii(target).unwrap();
            answer.add_answer(Record::from_rdata(owner, ttl, RData::CNAME(CNAME(target.clone()))));
            return perform(*action, target, answer, send);
        }
        Action::ForgedFirst(address, action) => {
            let mut forged = answer.clone();
            forged.metadata.id ^= 1;
            perform(Action::Addresses(300, vec![address]), owner.clone(), forged, send);
            return perform(*action, owner, answer, send);
        }
        Action::Addresses(ttl, addresses) => {
            let record = |address: IpAddr| Record::from_rdata(owner.clone(), ttl, RData::from(address));
            answer.add_answers(addresses.into_iter().map(record));
        }
        Action::NoData(ttl) => drop(answer.add_authority(authority(ttl))),
        Action::NxDomain(ttl) => {
            answer.metadata.response_code = ResponseCode::NXDomain;
            answer.add_authority(authority(ttl));
        }
        Action::ServFail => answer.metadata.response_code = ResponseCode::ServFail,
        Action::Truncated => answer.metadata.truncation = true,
    }
    send(&answer.to_vec().unwrap());
}

/// The zone's SOA record, whose minimum is the negative TTL.
fn authority(ttl: u32) -> Record {
    let zone = Name::from_ascii("test.").unwrap();
    Record::from_rdata(zone.clone(), ttl, RData::SOA(SOA::new(zone.clone(), zone, 1, 60, 60, 60, ttl)))
}
