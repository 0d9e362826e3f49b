//! SOCKS5 messages as bytes in hexadecimal: at every split, followed by other messages, and every fault.

use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;
use proto::socks5::{
    Greeting, Method, Reply, SOCKS4_REFUSED, Socks5Error, greeting, request, user_password, write_method,
    write_password_status, write_reply,
};
use proto::target::{Host, Target};

use crate::seeded;

/// Bytes from text: hexadecimal pairs, and literal words in quotes.
fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, part) in text.split('\'').enumerate() {
        if index % 2 == 1 {
            bytes.extend_from_slice(part.as_bytes());
            continue;
        }
        let pair = |pair: &str| u8::from_str_radix(pair, 16).expect("a hexadecimal pair");
        bytes.extend(part.split_whitespace().map(pair));
    }
    bytes
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")
}

/// One line for a result: `more`, the message and its length, or the error and the reply to the client.
fn render<T>(result: Result<Option<(T, usize)>, Socks5Error>, describe: impl Fn(T) -> String) -> String {
    match result {
        Ok(None) => "more".to_owned(),
        Ok(Some((message, consumed))) => format!("{} in {consumed}", describe(message)),
        Err(error) => {
            let mut refusal = Vec::new();
            error.write_refusal(&mut refusal);
            format!("{error:?} -> {}", hexadecimal(&refusal))
        }
    }
}

fn read_greeting(buffer: &[u8]) -> String {
    render(greeting(buffer), |Greeting { offers_no_authentication, offers_user_password }| {
        format!("nothing={offers_no_authentication} password={offers_user_password}")
    })
}

fn read_user_password(buffer: &[u8]) -> String {
    render(user_password(buffer), |credentials| match credentials {
        Some(credentials) => format!("{} / {}", credentials.user, credentials.secret.expose().escape_ascii()),
        None => "no credentials".to_owned(),
    })
}

fn read_request(buffer: &[u8]) -> String {
    render(request(buffer), |target| match target.host {
        Host::Name(_) => format!("name {target}"),
        Host::Address(_) => format!("address {target}"),
    })
}

/// Whole, split at every byte, and followed by another message: the result is the same, or `more` before it.
#[track_caller]
fn check(read: fn(&[u8]) -> String, message: &str, expected: &str) {
    let message = bytes(message);
    assert_eq!(read(&message), expected, "{}", hexadecimal(&message));
    let mut has_result = false;
    for length in 0..=message.len() {
        let found = read(&message[..length]);
        has_result |= found != "more";
        assert!(found == if has_result { expected } else { "more" }, "{found} after {length} bytes");
    }
    if expected != "more" {
        let followed = [&message[..], b"\x05\x01\x00\x16\x03"].concat();
        assert_eq!(read(&followed), expected, "pipelined");
    }
}

#[test]
fn greetings_list_methods() {
    let check = |message: &str, expected: &str| check(read_greeting, message, expected);
    check("", "more");
    check("05", "more");
    check("05 02 00", "more");
    check("05 01 00", "nothing=true password=false in 3");
    check("05 01 02", "nothing=false password=true in 3");
    check("05 02 00 02", "nothing=true password=true in 4");
    check("05 03 01 80 fe", "nothing=false password=false in 5");
    check("05 04 02 02 00 00", "nothing=true password=true in 6");
    check("05 01 ff", "nothing=false password=false in 3");
    check(&format!("05 ff {}", "03 ".repeat(254) + "02"), "nothing=false password=true in 257");
    check("05 00", "MethodsMissing -> 05 ff");
    check("04 01 00 50 7f 00 00 01 00", "GreetingVersion(4) -> ");
    check("47 45 54", "GreetingVersion(71) -> ");
    check("00", "GreetingVersion(0) -> ");
}

#[test]
fn user_password_messages_are_read() {
    let check = |message: &str, expected: &str| check(read_user_password, message, expected);
    check("", "more");
    check("01", "more");
    check("01 02 'ci'", "more");
    check("01 02 'ci' 06 'secre'", "more");
    check("01 02 'ci' 06 'secret'", "ci / secret in 11");
    check("01 03 'a:b' 01 00", "a:b / \\x00 in 7");
    check("05 02 'ci' 06 'secret'", "PasswordVersion(5) -> 01 01");
    check("00", "PasswordVersion(0) -> 01 01");
    check("01 00 06 'secret'", "Credentials(UserEmpty) -> 01 01");
    check("01 04 'duke' 00", "no credentials in 7");
    check("01 02 ff fe 00", "no credentials in 5");
    check("01 00 00", "no credentials in 3");
    check("01 03 'c' 0a 'i' 01 78", "Credentials(UserNotText) -> 01 01");
    check("01 02 ff fe 01 78", "Credentials(UserNotText) -> 01 01");
    let (user, secret) = ("u".repeat(255), "s".repeat(255));
    check(&format!("01 ff '{user}' ff '{secret}'"), &format!("{user} / {secret} in 513"));
}

#[test]
fn requests_carry_a_target() {
    let check = |message: &str, expected: &str| check(read_request, message, expected);
    check("", "more");
    check("05 01 00", "more");
    check("05 01 00 01 0a 00 00 01 01", "more");
    check("05 01 00 01 0a 00 00 01 01 bb", "address 10.0.0.1:443 in 10");
    check("05 01 00 03 0b 'Example.COM' 01 bb", "name example.com:443 in 18");
    check(
        "05 01 00 04 20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 01 00 50",
        "address [2001:db8::1]:80 in 22",
    );
    check("05 01 00 04 00 00 00 00 00 00 00 00 00 00 ff ff 7f 00 00 01 00 50", "address 127.0.0.1:80 in 22");
    check("05 01 00 03 09 '127.0.0.1' 00 50", "address 127.0.0.1:80 in 16");
    check("05 01 00 03 03 '::1' 00 50", "address [::1]:80 in 10");
    check("05 01 00 03 05 '[::1]' 00 50", "address [::1]:80 in 12");
    let name = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "a".repeat(61));
    check(&format!("05 01 00 03 fd '{name}' ff ff"), &format!("name {name}:65535 in 260"));
}

#[test]
fn bad_requests_get_their_reply_code() {
    let refusal_bytes = |reply: &str| format!("05 {reply} 00 01 00 00 00 00 00 00");
    for (message, error, reply) in [
        ("04 01", "RequestVersion(4)", "01"),
        ("01 02 'ci'", "RequestVersion(1)", "01"),
        ("05 00", "CommandUnsupported(0)", "07"),
        ("05 02 00 01 0a 00 00 01 01 bb", "CommandUnsupported(2)", "07"),
        ("05 03 00 01 00 00 00 00 00 00", "CommandUnsupported(3)", "07"),
        ("05 f0 00", "CommandUnsupported(240)", "07"),
        ("05 01 01", "ReservedNotZero(1)", "01"),
        ("05 01 00 00", "AddressTypeUnknown(0)", "08"),
        ("05 01 00 02", "AddressTypeUnknown(2)", "08"),
        ("05 01 00 05", "AddressTypeUnknown(5)", "08"),
        ("05 01 00 ff", "AddressTypeUnknown(255)", "08"),
        ("05 01 00 01 0a 00 00 01 00 00", "Target(PortInvalid)", "08"),
        ("05 01 00 03 00 01 bb", "Target(HostEmpty)", "08"),
        ("05 01 00 03 11 'evil' 00 '.allowed.com' 01 bb", "Target(ByteForbidden(0))", "08"),
        ("05 01 00 03 0c 'example.com.' 01 bb", "Target(TrailingDot)", "08"),
        ("05 01 00 03 0a '0177.0.0.1' 01 bb", "Target(AmbiguousAddress)", "08"),
        ("05 01 00 03 0a '2130706433' 01 bb", "Target(AmbiguousAddress)", "08"),
        ("05 01 00 03 06 '0x7f.1' 01 bb", "Target(AmbiguousAddress)", "08"),
        ("05 01 00 03 0d '[example.com]' 01 bb", "Target(NotIpv6)", "08"),
        ("05 01 00 03 0f 'example.com:443' 01 bb", "Target(NotIpv6)", "08"),
        ("05 01 00 03 0a 'ok@evil.de' 01 bb", "Target(UserForbidden)", "08"),
        ("05 01 00 03 0d 'evil.com' 0d 0a 'x:y' 01 bb", "Target(NotIpv6)", "08"),
        ("05 01 00 03 0a 'evil.com' 0d 0a 01 bb", "Target(ByteForbidden(13))", "08"),
        ("05 01 00 03 04 c3 bc '.x' 01 bb", "Target(NotAscii)", "08"),
    ] {
        check(read_request, message, &format!("{error} -> {}", refusal_bytes(reply)));
    }
    let long = format!("05 01 00 03 ff '{}' 01 bb", "a".repeat(255));
    check(read_request, &long, &format!("Target(NameTooLong) -> {}", refusal_bytes("08")));
    let label = format!("05 01 00 03 40 '{}' 01 bb", "a".repeat(64));
    check(read_request, &label, &format!("Target(LabelTooLong) -> {}", refusal_bytes("08")));
}

#[test]
fn pipelined_messages_are_read_one_by_one() {
    let stream = bytes("05 01 02 01 02 'ci' 01 'x' 05 01 00 03 01 'a' 00 50 'early data'");
    let (_, first) = greeting(&stream).expect("valid").expect("whole");
    let (_, second) = user_password(&stream[first..]).expect("valid").expect("whole");
    let (target, third) = request(&stream[first + second..]).expect("valid").expect("whole");
    assert_eq!(target.to_string(), "a:80");
    assert_eq!(&stream[first + second + third..], b"early data");
}

#[track_caller]
fn check_written(write: impl Fn(&mut Vec<u8>), expected: &str) {
    let mut out = vec![0xaa];
    write(&mut out);
    assert_eq!(hexadecimal(&out), format!("aa {expected}"));
}

#[test]
fn replies_are_written_byte_for_byte() {
    check_written(|out| write_method(out, Method::NoAuthentication), "05 00");
    check_written(|out| write_method(out, Method::UserPassword), "05 02");
    check_written(|out| write_method(out, Method::Unacceptable), "05 ff");
    check_written(|out| write_password_status(out, true), "01 00");
    check_written(|out| write_password_status(out, false), "01 01");
    let bound = |text: &str| Some(text.parse::<SocketAddr>().expect("a socket address"));
    check_written(|out| write_reply(out, Reply::Succeeded, None), "05 00 00 01 00 00 00 00 00 00");
    check_written(
        |out| write_reply(out, Reply::Succeeded, bound("192.0.2.1:443")),
        "05 00 00 01 c0 00 02 01 01 bb",
    );
    check_written(
        |out| write_reply(out, Reply::Succeeded, bound("[::ffff:192.0.2.1]:443")),
        "05 00 00 01 c0 00 02 01 01 bb",
    );
    check_written(
        |out| write_reply(out, Reply::Succeeded, bound("[2001:db8::1]:80")),
        "05 00 00 04 20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 01 00 50",
    );
    assert_eq!(hexadecimal(&SOCKS4_REFUSED), "00 5b 00 00 00 00 00 00");
}

#[test]
fn reply_codes_match_rfc_1928() {
    let replies = [
        Reply::Succeeded,
        Reply::GeneralFailure,
        Reply::NotAllowed,
        Reply::NetworkUnreachable,
        Reply::HostUnreachable,
        Reply::ConnectionRefused,
        Reply::TtlExpired,
        Reply::CommandNotSupported,
        Reply::AddressTypeNotSupported,
    ];
    for (number, reply) in replies.into_iter().enumerate() {
        assert_eq!(reply as usize, number);
    }
}

#[test]
fn debug_output_hides_the_password() {
    let message = bytes("01 02 'ci' 06 'secret'");
    let debug = format!("{:?}", user_password(&message));
    assert!(debug.contains("Secret(..)") && !debug.contains("secret\"") && !debug.contains("115"), "{debug}");
}

/// Encodes a request for any target, as a client does.
fn encode(target: &Target) -> Vec<u8> {
    let mut message = bytes("05 01 00");
    match target.host {
        Host::Address(IpAddr::V4(address)) => {
            message.push(1);
            message.extend_from_slice(&address.octets());
        }
        Host::Address(IpAddr::V6(address)) => {
            message.push(4);
            message.extend_from_slice(&address.octets());
        }
        Host::Name(name) => {
            message.extend_from_slice(&[3, name.as_bytes().len() as u8]);
            message.extend_from_slice(name.as_bytes());
        }
    }
    message.extend_from_slice(&target.port.get().to_be_bytes());
    message
}

fn any_target() -> impl Strategy<Value = Target> {
    let host = prop_oneof![
        "([a-z0-9_]{1,12}\\.){0,3}[a-z]{1,12}".prop_map(|text| Host::parse(text.as_bytes()).expect("a name")),
        any::<IpAddr>().prop_map(Host::from),
    ];
    (host, 1u16..).prop_map(|(host, port)| Target { host, port: port.try_into().expect("not zero") })
}

/// Bytes that pass the first checks often enough to reach the later ones.
fn any_message() -> impl Strategy<Value = Vec<u8>> {
    let start = prop_oneof![
        Just(vec![]),
        Just(vec![5]),
        Just(vec![1]),
        Just(vec![5, 1, 0, 1]),
        Just(vec![5, 1, 0, 3]),
        Just(vec![5, 1, 0, 4]),
        (1u8..20).prop_map(|length| vec![5, 1, 0, 3, length]),
    ];
    let rest = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        "[a-z0-9.:\\[\\]-]{0,40}".prop_map(String::into_bytes),
    ];
    (start, rest).prop_map(|(start, rest)| [start, rest].concat())
}

proptest! {
    #![proptest_config(seeded(2048))]

    #[test]
    fn requests_round_trip(target in any_target(), behind in prop::collection::vec(any::<u8>(), 0..8)) {
        let message = encode(&target);
        let followed = [&message[..], &behind].concat();
        prop_assert_eq!(request(&followed), Ok(Some((target, message.len()))));
    }

    #[test]
    fn replies_read_as_requests_do(address in any::<IpAddr>(), port in 1u16..) {
        // Requests and replies have the same layout, and reply 1 is the number of CONNECT.
        let mut out = Vec::new();
        write_reply(&mut out, Reply::GeneralFailure, Some(SocketAddr::new(address, port)));
        let target = Target { host: Host::from(address), port: port.try_into().expect("not zero") };
        prop_assert_eq!(request(&out), Ok(Some((target, out.len()))));
    }

    #[test]
    fn prefix_never_contradicts_the_whole_message(message in any_message()) {
        for read in [read_greeting, read_user_password, read_request] {
            let whole = read(&message);
            for length in 0..message.len() {
                let early = read(&message[..length]);
                let agrees = early == "more" || early == whole;
                prop_assert!(agrees, "{} after {} bytes, then {}", early, length, whole);
            }
        }
    }
}
