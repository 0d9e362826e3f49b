//! The request parser against two others: a model with plain string functions, and `httparse` alone. It must
//! accept exactly what the model accepts, and no input that `httparse` refuses or reads differently.

use proptest::prelude::*;
use proptest::sample::select;
use proto::http_connect::Connect;
use proto::http_head::{HeaderStorage, RequestHead};
use proto::limits::HEADERS_MAX;
use proto::target::{Host, Target};

use crate::mutation::mutated;
use crate::seeded;

/// The target and credentials of a CONNECT, by our rules; `None` for any other input.
fn model(head: &str) -> Option<(Target, Option<String>)> {
    let lines: Vec<&str> = head.strip_suffix("\r\n\r\n")?.split("\r\n").collect();
    if lines.iter().any(|line| line.is_empty() || line.contains(['\r', '\n'])) {
        return None;
    }
    let [method, authority, version] = lines[0].split(' ').collect::<Vec<_>>()[..] else { return None };
    if method != "CONNECT" || !["HTTP/1.0", "HTTP/1.1"].contains(&version) || lines.len() - 1 > HEADERS_MAX {
        return None;
    }
    let target = Target::parse_authority(authority.as_bytes()).ok()?;
    let headers: Vec<(String, &str)> = lines[1..].iter().map(|line| header(line)).collect::<Option<_>>()?;
    let values = |name: &str| -> Vec<&str> {
        headers.iter().filter(|header| header.0 == name).map(|header| header.1).collect()
    };
    let host_is_valid = match values("host")[..] {
        [] => true,
        [host] => {
            let with_port = Target::parse_authority(host.as_bytes());
            let has_brackets = host.starts_with('[') || !host.contains(':');
            with_port == Ok(target)
                || with_port.is_err() && has_brackets && Host::parse(host.as_bytes()) == Ok(target.host)
        }
        _ => false,
    };
    let body_is_absent =
        matches!(values("content-length")[..], [] | ["0"]) && values("transfer-encoding").is_empty();
    let authorization = match values("proxy-authorization")[..] {
        [] => None,
        [value] => Some(value.to_owned()),
        _ => return None,
    };
    (host_is_valid && body_is_absent).then_some((target, authorization))
}

fn header(line: &str) -> Option<(String, &str)> {
    let (name, value) = line.split_once(':')?;
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let is_text = |byte: u8| byte == b'\t' || byte >= b' ' && byte != 0x7f;
    let is_valid = !name.is_empty() && name.bytes().all(is_token) && value.bytes().all(is_text);
    is_valid.then(|| (name.to_ascii_lowercase(), value.trim_matches([' ', '\t'])))
}

fn parse_with_proto(head: &str) -> Option<(Target, Option<String>)> {
    let mut storage = HeaderStorage::new();
    let head = RequestHead::parse(head.as_bytes(), &mut storage).ok().filter(RequestHead::is_connect)?;
    let connect = Connect::read(&head).ok()?;
    let authorization = connect.authorization.map(|value| String::from_utf8_lossy(value).into_owned());
    Some((connect.target, authorization))
}

fn header_line() -> impl Strategy<Value = String> {
    let name = select(vec![
        "Host",
        "hOST",
        "Content-Length",
        "Transfer-Encoding",
        "Proxy-Authorization",
        "Accept",
        "X-Y",
        "Hos",
        "Hosts",
    ]);
    let value = select(vec![
        "a.example:443",
        "a.example",
        "A.example:443",
        "b.example",
        "0",
        "5",
        "chunked",
        "Basic eA==",
        "",
        "x\ty",
    ]);
    let colon = select(vec![": ", ":", ": \t", " :", "::"]);
    let end = prop_oneof![20 => Just(""), 1 => Just(" "), 1 => Just("\t")];
    (name, colon, value, end).prop_map(|(name, colon, value, end)| [name, colon, value, end, "\r\n"].concat())
}

fn head() -> impl Strategy<Value = String> {
    let target = prop_oneof![
        8 => Just("a.example:443"),
        1 => select(vec!["a.example", "A.EXAMPLE:443", "[::1]:443", "127.1:443", "/", "*"]),
    ];
    let version =
        prop_oneof![8 => Just("HTTP/1.1"), 1 => select(vec!["HTTP/1.0", "HTTP/2.0", "http/1.1", ""])];
    (target, version, prop::collection::vec(header_line(), 0..4)).prop_map(|(target, version, headers)| {
        format!("CONNECT {target} {version}\r\n{}\r\n", headers.concat())
    })
}

/// Texts that an attacker or a broken client would insert.
const INSERTIONS: [&str; 16] = [
    "\r", "\n", "\r\n", "\r\n\r\n", "\n ", "\0", " ", "\t", ":", ",", "x", "0", "\x7f", "\u{fc}", "HTTP/1.1",
    "Host: z",
];

fn mutated_head() -> impl Strategy<Value = String> {
    mutated(head(), &INSERTIONS)
}

proptest! {
    #![proptest_config(seeded(16_384))]

    #[test]
    fn parser_accepts_exactly_what_the_model_accepts(head in mutated_head()) {
        prop_assert_eq!(parse_with_proto(&head), model(&head));
    }

    #[test]
    fn parser_never_contradicts_httparse(head in mutated_head()) {
        let mut storage = HeaderStorage::new();
        let Ok(parsed) = RequestHead::parse(head.as_bytes(), &mut storage) else { return Ok(()) };
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut oracle = httparse::Request::new(&mut headers);
        prop_assert_eq!(oracle.parse(head.as_bytes()), Ok(httparse::Status::Complete(head.len())));
        prop_assert_eq!(oracle.method, Some(parsed.method));
        if let (true, Ok(connect)) = (parsed.is_connect(), Connect::read(&parsed)) {
            let authority = oracle.path.expect("a complete request has a target");
            prop_assert_eq!(Target::parse_authority(authority.as_bytes()), Ok(connect.target));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = RequestHead::parse(&bytes, &mut HeaderStorage::new());
        bytes.extend_from_slice(b"\r\n\r\n");
        let _ = RequestHead::parse(&bytes, &mut HeaderStorage::new());
    }
}

/// The property above would also hold for a parser that refuses everything.
#[test]
fn generator_reaches_both_outcomes() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::new(seeded(1));
    let strategy = mutated_head();
    let heads = (0..2000).map(|_| strategy.new_tree(&mut runner).expect("no filter rejects").current());
    let (accepted, refused): (Vec<_>, Vec<_>) = heads.partition(|head| parse_with_proto(head).is_some());
    assert!(accepted.len() > 100 && refused.len() > 100, "{} and {}", accepted.len(), refused.len());
}
