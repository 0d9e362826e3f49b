//! Hosts and ports: spellings that have deceived proxies, and models for IPv4 and ports.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use proto::target::{Host, Name, Target, TargetError};

use crate::seeded;

fn render(result: Result<Target, TargetError>) -> String {
    match result {
        Ok(target @ Target { host: Host::Name(_), .. }) => format!("name {target}"),
        Ok(target @ Target { host: Host::Address(_), .. }) => format!("address {target}"),
        Err(error) => format!("{error:?}"),
    }
}

#[track_caller]
fn check(cases: &[(&str, &str)]) {
    for (authority, expected) in cases {
        let found = render(Target::parse_authority(authority.as_bytes()));
        assert_eq!(found, *expected, "authority {authority:?}");
    }
}

#[track_caller]
fn check_host(cases: &[(&str, &str)]) {
    for (host, expected) in cases {
        let found = match Host::parse(host.as_bytes()) {
            Ok(Host::Name(name)) => format!("name {name}"),
            Ok(Host::Address(address)) => format!("address {address}"),
            Err(error) => format!("{error:?}"),
        };
        assert_eq!(found, *expected, "host {host:?}");
    }
}

#[test]
fn authorities_are_parsed() {
    check(&[
        ("api.github.com:443", "name api.github.com:443"),
        ("API.GitHub.COM:443", "name api.github.com:443"),
        ("localhost:1", "name localhost:1"),
        ("_dmarc.example.com:25", "name _dmarc.example.com:25"),
        ("xn--bcher-kva.example:443", "name xn--bcher-kva.example:443"),
        ("r3---sn-4g5e6nsz.googlevideo.com:443", "name r3---sn-4g5e6nsz.googlevideo.com:443"),
        ("1password.com:443", "name 1password.com:443"),
        ("1.2.3.example:443", "name 1.2.3.example:443"),
        ("0xcafe.example:443", "name 0xcafe.example:443"),
        ("example.0xyz:443", "name example.0xyz:443"),
        ("1.1.1.1:53", "address 1.1.1.1:53"),
        ("0.0.0.0:80", "address 0.0.0.0:80"),
        ("[2001:DB8::1]:443", "address [2001:db8::1]:443"),
        ("[::]:65535", "address [::]:65535"),
    ]);
}

#[test]
fn names_have_one_strict_spelling() {
    check(&[
        (":443", "HostEmpty"),
        (".:443", "TrailingDot"),
        ("example.com.:443", "TrailingDot"),
        ("example.com..:443", "TrailingDot"),
        ("127.0.0.1.:443", "TrailingDot"),
        (".example.com:443", "LabelEmpty"),
        ("example..com:443", "LabelEmpty"),
        ("-example.com:443", "LabelHyphen"),
        ("example-.com:443", "LabelHyphen"),
        ("xn--:443", "LabelHyphen"),
        ("evil\0.allowed.com:443", "ByteForbidden(0)"),
        ("evil.com\r\nX: y:443", "BracketsMissing"),
        ("evil.com\r:443", "ByteForbidden(13)"),
        ("evil.com\n:443", "ByteForbidden(10)"),
        ("evil.com\t:443", "ByteForbidden(9)"),
        (" evil.com:443", "ByteForbidden(32)"),
        ("evil%2ecom:443", "ByteForbidden(37)"),
        ("*.example.com:443", "ByteForbidden(42)"),
        ("b\u{fc}cher.example:443", "NotAscii"),
        ("\u{430}pple.com:443", "NotAscii"),
        ("\u{ff11}27.0.0.1:443", "NotAscii"),
        ("example\u{3002}com:443", "NotAscii"),
        ("ok@evil.com:443", "UserForbidden"),
        ("user:secret@evil.com:443", "UserForbidden"),
        ("https://evil.com:443", "NotAuthority"),
        ("https://evil.com/", "NotAuthority"),
        ("/", "NotAuthority"),
        ("evil.com:443/path", "NotAuthority"),
        ("[example.com]:443", "NotIpv6"),
        ("[1.2.3.4]:443", "NotIpv6"),
        ("[]:443", "NotIpv6"),
    ]);
}

#[test]
fn name_lengths_are_bounded() {
    let label = |length: usize| "a".repeat(length);
    let name_253 = format!("{0}.{0}.{0}.{1}", label(63), label(61));
    let name_254 = format!("{0}.{0}.{0}.{1}", label(63), label(62));
    check(&[
        (&format!("{}.com:443", label(63)), &format!("name {}.com:443", label(63))),
        (&format!("{}.com:443", label(64)), "LabelTooLong"),
        (&format!("{name_253}:443"), &format!("name {name_253}:443")),
        (&format!("{name_254}:443"), "NameTooLong"),
        (&format!("{name_253}.:443"), "TrailingDot"),
        (&format!("{}:443", label(5000)), "NameTooLong"),
    ]);
    assert_eq!(Name::parse(name_253.as_bytes()).map(|name| name.as_str().len()), Ok(253));
}

#[test]
fn disguised_addresses_are_refused() {
    let ambiguous = [
        "0177.0.0.1",
        "127.0.0.01",
        "127.1",
        "127.0.1",
        "2130706433",
        "017700000001",
        "0x7f.1",
        "0X7F.1",
        "0x7f000001",
        "0x7f.0.0.0x1",
        "127.0.0.0x1",
        "127.0.0.0x",
        "0x",
        "0",
        "08",
        "256.1.1.1",
        "1.2.3.4.5",
        "1.2.3.4294967296",
        "99999999999999999999",
        "example.1",
        "example.0x1f",
    ];
    for host in ambiguous {
        check(&[(&format!("{host}:443"), "AmbiguousAddress")]);
        assert_eq!(Name::parse(host.as_bytes()), Err(TargetError::AmbiguousAddress), "name {host:?}");
    }
    assert_eq!(Name::parse(b"127.0.0.1"), Err(TargetError::AmbiguousAddress));
}

#[test]
fn ipv6_has_one_meaning() {
    check(&[
        ("[::ffff:127.0.0.1]:443", "address 127.0.0.1:443"),
        ("[::ffff:7f00:1]:443", "address 127.0.0.1:443"),
        ("[0:0:0:0:0:ffff:a9fe:a9fe]:80", "address 169.254.169.254:80"),
        ("[::127.0.0.1]:443", "address [::7f00:1]:443"),
        ("[64:ff9b::7f00:1]:443", "address [64:ff9b::7f00:1]:443"),
        ("[::ffff:0177.0.0.1]:443", "NotIpv6"),
        ("[::ffff:127.1]:443", "NotIpv6"),
        ("[fe80::1%eth0]:443", "ZoneForbidden"),
        ("[fe80::1%25eth0]:443", "ZoneForbidden"),
        ("[::1", "BracketNotClosed"),
        ("[::1:443", "BracketNotClosed"),
        ("[::1]", "PortMissing"),
        ("[::1]443", "PortInvalid"),
        ("[::1]]:443", "PortInvalid"),
        ("[[::1]]:443", "NotIpv6"),
        ("[::1]x:443", "PortInvalid"),
        ("[ ::1]:443", "NotIpv6"),
        ("[1::2::3]:443", "NotIpv6"),
        ("[12345::]:443", "NotIpv6"),
        ("::1:443", "BracketsMissing"),
        ("::ffff:127.0.0.1:443", "BracketsMissing"),
    ]);
}

#[test]
fn ports_are_decimal_and_in_range() {
    check(&[
        ("example.com:1", "name example.com:1"),
        ("example.com:65535", "name example.com:65535"),
        ("example.com", "PortMissing"),
        ("", "PortMissing"),
        ("1.2.3.4", "PortMissing"),
    ]);
    for port in [
        "",
        "0",
        "00",
        "0443",
        "65536",
        "99999",
        "100000",
        "4294967739",
        "-1",
        "+443",
        "443x",
        " 443",
        "443 ",
        "0x1bb",
        "4_3",
        "4.3",
        "\u{ff14}43",
    ] {
        check(&[(&format!("example.com:{port}"), "PortInvalid"), (&format!("[::1]:{port}"), "PortInvalid")]);
    }
}

#[test]
fn hosts_without_port_are_parsed() {
    check_host(&[
        ("Example.COM", "name example.com"),
        ("10.0.0.1", "address 10.0.0.1"),
        ("2001:db8::1", "address 2001:db8::1"),
        ("[2001:db8::1]", "address 2001:db8::1"),
        ("::ffff:10.0.0.1", "address 10.0.0.1"),
        ("", "HostEmpty"),
        ("example.com.", "TrailingDot"),
        ("example.com:443", "NotIpv6"),
        ("fe80::1%eth0", "NotIpv6"),
        ("[fe80::1%eth0]", "ZoneForbidden"),
        ("[2001:db8::1", "BracketNotClosed"),
        ("[2001:db8::1]:443", "BracketNotClosed"),
        ("[example.com]", "NotIpv6"),
        ("0x7f.1", "AmbiguousAddress"),
        ("evil\0.allowed.com", "ByteForbidden(0)"),
    ]);
}

#[test]
fn forbidden_bytes_are_refused_in_names() {
    for byte in 0..=u8::MAX {
        let allowed = byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let name = [b'a', byte, b'a'];
        assert_eq!(Name::parse(&name).is_ok(), allowed, "byte {byte:#04x}");
    }
}

#[test]
fn error_texts_name_remedy_without_raw_controls() {
    assert_eq!(
        TargetError::ByteForbidden(b'\n').to_string(),
        "the host name contains the byte '\\n': only letters, digits, '-', '_' and '.' are allowed"
    );
    assert_eq!(TargetError::TrailingDot.to_string(), "the host name ends with a dot: remove it");
    assert_eq!(TargetError::TrailingDot.status(), 400);
    assert_eq!(TargetError::TrailingDot.reply() as u8, 8);
}

#[test]
fn names_compare_by_their_text() {
    let name = |text: &str| Name::parse(text.as_bytes()).expect("a valid name");
    assert_eq!(name("A.example"), name("a.EXAMPLE"));
    assert_ne!(name("a.example"), name("a.example2"));
    assert_eq!(format!("{:?} {:>12}|", name("a.example"), name("a.example")), "\"a.example\"    a.example|");
}

/// `inet_aton` of most C libraries: 1 to 4 parts, each decimal, octal or hexadecimal; the last one fills the
/// remaining bytes.
fn inet_aton(text: &str) -> Option<Ipv4Addr> {
    let part = |text: &str| -> Option<u64> {
        let lower = text.to_ascii_lowercase();
        match (lower.strip_prefix("0x"), lower.strip_prefix('0')) {
            (Some(""), _) => Some(0),
            (Some(digits), _) => u64::from_str_radix(digits, 16).ok(),
            (None, Some(digits)) if !digits.is_empty() => u64::from_str_radix(digits, 8).ok(),
            _ => lower.parse().ok(),
        }
    };
    if text.contains(['+', '-']) {
        return None;
    }
    let parts: Vec<u64> = text.split('.').map(part).collect::<Option<_>>()?;
    let (last, leading) = parts.split_last()?;
    if leading.len() > 3 || leading.iter().any(|&part| part > 255) || *last >= 1 << (8 * (4 - leading.len()))
    {
        return None;
    }
    let high = leading.iter().enumerate().map(|(index, part)| part << (24 - 8 * index)).sum::<u64>();
    Some(Ipv4Addr::from(u32::try_from(high + last).ok()?))
}

fn number_like_host() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[0-9]{1,3}",
        "0[0-7]{0,4}",
        "0[xX][0-9a-fA-F]{0,4}",
        "[0-9]{8,11}",
        "[a-f0-9x]{1,3}",
        Just(String::new()),
    ];
    prop::collection::vec(part, 1..=5).prop_map(|parts| parts.join("."))
}

fn host_like_text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-zA-Z0-9._:@%/\\[\\]x\u{0}-]{0,40}",
        "\\[[0-9a-fA-F:.%]{0,40}\\]?(:[0-9+x-]{0,6})?",
        "([a-z0-9_-]{0,70}\\.){0,6}[a-z0-9-]{0,70}\\.?(:[0-9]{0,6})?",
        number_like_host().prop_map(|host| format!("{host}:443")),
    ]
}

proptest! {
    #![proptest_config(seeded(4096))]

    #[test]
    fn no_ipv4_spelling_is_ever_a_name(text in number_like_host()) {
        let parsed = Host::parse(text.as_bytes());
        if let Some(ipv4) = inet_aton(&text) {
            match parsed {
                Ok(Host::Address(address)) => prop_assert_eq!(address, IpAddr::V4(ipv4)),
                Ok(Host::Name(name)) => prop_assert!(false, "{} is taken for a name", name),
                Err(_) => {}
            }
        } else {
            prop_assert!(!matches!(parsed, Ok(Host::Address(_))), "{} is no address", text);
        }
    }

    #[test]
    fn accepted_targets_keep_every_guarantee(text in host_like_text()) {
        let Ok(target) = Target::parse_authority(text.as_bytes()) else { return Ok(()) };
        let display = target.to_string();
        prop_assert_eq!(Target::parse_authority(display.as_bytes()), Ok(target));
        match target.host {
            Host::Name(name) => {
                let name = name.as_str();
                prop_assert!((1..=253).contains(&name.len()));
                prop_assert!(name.split('.').all(|label| (1..=63).contains(&label.len())));
                prop_assert!(!name.bytes().any(|byte| byte.is_ascii_uppercase()));
                prop_assert_eq!(inet_aton(name), None);
                prop_assert_eq!(Host::parse(name.as_bytes()), Ok(target.host));
            }
            Host::Address(address) => prop_assert_eq!(address, address.to_canonical()),
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Target::parse_authority(&bytes);
        let _ = Host::parse(&bytes);
        let _ = Name::parse(&bytes);
    }

    #[test]
    fn ports_agree_with_the_decimal_model(port in "[0-9]{1,6}") {
        let model = port.parse::<u16>().ok().filter(|number| *number != 0 && number.to_string() == port);
        let parsed = Target::parse_authority(format!("a.example:{port}").as_bytes());
        prop_assert_eq!(parsed.ok().map(|target| target.port.get()), model);
    }

    #[test]
    fn addresses_round_trip_as_text(bits in any::<u128>(), v4 in any::<u32>(), port in 1u16..) {
        let v6 = Ipv6Addr::from(bits);
        let parsed = Target::parse_authority(format!("[{v6}]:{port}").as_bytes()).map(|target| target.host);
        prop_assert_eq!(parsed, Ok(Host::Address(IpAddr::V6(v6).to_canonical())));
        let v4 = Ipv4Addr::from(v4);
        let parsed = Target::parse_authority(format!("{v4}:{port}").as_bytes()).map(|target| target.host);
        prop_assert_eq!(parsed, Ok(Host::Address(IpAddr::V4(v4))));
    }
}
