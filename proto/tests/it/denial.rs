//! Denials byte for byte, and the proof that no quoted text can break out of its field.

use proptest::prelude::*;
use proto::denial::{DenialResponse, proxy_error, reason_phrase, write_denial};
use proto::http_connect::write_established;

use crate::seeded;

const FORBIDDEN: DenialResponse<'static> = DenialResponse {
    status: 403,
    title: "Forbidden",
    reason: "User ci may not reach example.com:443.",
    proxy_status_error: Some(proxy_error::HTTP_REQUEST_DENIED),
    rule: Some("user:ci/deny[0] *.example.com"),
    request_id: "0192f3a1-7c00",
    retry_after_s: None,
    challenge: None,
    json: false,
    date: None,
    closes: true,
    head_only: false,
};

fn written(denial: &DenialResponse<'_>) -> String {
    let mut out = b"before".to_vec();
    write_denial(&mut out, denial);
    let text = String::from_utf8(out).expect("a denial is UTF-8");
    text.strip_prefix("before").expect("a writer appends").to_owned()
}

#[test]
fn established_response_has_no_framing() {
    let mut out = Vec::new();
    write_established(&mut out);
    assert_eq!(out, b"HTTP/1.1 200 Connection established\r\n\r\n");
}

#[test]
fn denial_as_text() {
    let expected = "HTTP/1.1 403 Forbidden\r\n\
         Content-Type: text/plain; charset=utf-8\r\n\
         Content-Length: 115\r\n\
         Connection: close\r\n\
         Cache-Control: no-store\r\n\
         Proxy-Status: tollgate; error=http_request_denied; details=\"user:ci/deny[0] *.example.com\"\r\n\
         X-Request-Id: 0192f3a1-7c00\r\n\
         \r\n\
         403 Forbidden\n\
         User ci may not reach example.com:443.\n\
         rule: user:ci/deny[0] *.example.com\n\
         request id: 0192f3a1-7c00\n";
    assert_eq!(written(&FORBIDDEN), expected);
}

#[test]
fn denial_on_a_kept_alive_connection() {
    let date = Some("Sun, 06 Nov 1994 08:49:37 GMT");
    let expected = "HTTP/1.1 403 Forbidden\r\n\
         Content-Type: text/plain; charset=utf-8\r\n\
         Content-Length: 115\r\n\
         Cache-Control: no-store\r\n\
         Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
         Proxy-Status: tollgate; error=http_request_denied; details=\"user:ci/deny[0] *.example.com\"\r\n\
         X-Request-Id: 0192f3a1-7c00\r\n\
         \r\n";
    assert_eq!(written(&DenialResponse { date, closes: false, head_only: true, ..FORBIDDEN }), expected);
}

#[test]
fn denial_as_json() {
    let expected = "HTTP/1.1 429 Too Many Requests\r\n\
         Content-Type: application/json\r\n\
         Content-Length: 163\r\n\
         Connection: close\r\n\
         Cache-Control: no-store\r\n\
         Proxy-Status: tollgate; error=connection_limit_reached\r\n\
         X-Request-Id: 0192f3a1-7c00\r\n\
         Retry-After: 30\r\n\
         \r\n\
         {\"status\":429,\"title\":\"Too Many Requests\",\"reason\":\"500 connections are open.\",\
         \"error\":\"connection_limit_reached\",\"request_id\":\"0192f3a1-7c00\",\"retry_after_s\":30}\n";
    let denial = DenialResponse {
        status: 429,
        title: reason_phrase(429),
        reason: "500 connections are open.",
        proxy_status_error: Some(proxy_error::CONNECTION_LIMIT_REACHED),
        rule: None,
        retry_after_s: Some(30),
        json: true,
        ..FORBIDDEN
    };
    assert_eq!(written(&denial), expected);
}

#[test]
fn status_407_and_405_carry_required_headers() {
    let challenge = written(&DenialResponse {
        status: 407,
        title: reason_phrase(407),
        proxy_status_error: None,
        rule: None,
        challenge: Some("tollgate"),
        ..FORBIDDEN
    });
    assert!(challenge.starts_with("HTTP/1.1 407 Proxy Authentication Required\r\n"));
    assert!(challenge.contains("\r\nProxy-Authenticate: Basic realm=\"tollgate\", charset=\"UTF-8\"\r\n"));
    assert!(challenge.contains("\r\nProxy-Status: tollgate\r\n"));
    assert!(!written(&FORBIDDEN).contains("Proxy-Authenticate"));
    let status_405 = written(&DenialResponse { status: 405, title: reason_phrase(405), ..FORBIDDEN });
    assert!(status_405.contains("\r\nAllow: CONNECT, GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n"));
}

#[test]
fn hostile_texts_cannot_break_out_of_quotes() {
    let hostile_rule = "a\"; x=\\\"\r\nSet-Cookie: y\0\u{fc}\t";
    let text = written(&DenialResponse {
        title: "Bad\r\nX: y",
        reason: "line\r\nrule: forged",
        proxy_status_error: Some("dns_error; x\r\n"),
        rule: Some(hostile_rule),
        request_id: "id\r\n\r\nbody",
        ..FORBIDDEN
    });
    let expected = "HTTP/1.1 403 Bad%0d%0aX: y\r\n\
         Content-Type: text/plain; charset=utf-8\r\n\
         Content-Length: LENGTH\r\n\
         Connection: close\r\n\
         Cache-Control: no-store\r\n\
         Proxy-Status: tollgate; error=dns_errorx; \
         details=\"a\\\"; x=\\\\\\\"%0d%0aSet-Cookie: y%00%c3%bc%09\"\r\n\
         X-Request-Id: id%0d%0a%0d%0abody\r\n\
         \r\n\
         403 Bad  X: y\n\
         line  rule: forged\n\
         rule: a\"; x=\\\"  Set-Cookie: y \u{fc} \n\
         request id: id    body\n";
    let length = expected.split("\r\n\r\n").nth(1).expect("a body").len();
    assert_eq!(text, expected.replace("LENGTH", &length.to_string()));
}

#[test]
fn every_ascii_character_round_trips_in_json() {
    for byte in 0..0x80u8 {
        let reason = format!("<{}>", char::from(byte));
        let text = written(&DenialResponse { reason: &reason, json: true, ..FORBIDDEN });
        let (_, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        let body: serde_json::Value = serde_json::from_str(body).expect("valid JSON");
        assert_eq!(body["reason"], reason, "byte {byte:#04x}");
    }
}

#[test]
fn reason_phrases_cover_the_gateways_statuses() {
    for status in [400, 403, 405, 407, 408, 414, 417, 429, 431, 500, 501, 502, 503, 504, 505, 508] {
        assert!(!reason_phrase(status).is_empty(), "{status}");
    }
    // A proxy never says 421 (RFC 9110, section 15.5.20).
    assert_eq!((reason_phrase(299), reason_phrase(421)), ("", ""));
}

#[test]
#[should_panic(expected = "a denial is an error")]
fn success_status_is_refused_as_denial() {
    write_denial(&mut Vec::new(), &DenialResponse { status: 200, ..FORBIDDEN });
}

/// The unescaped content of an sf-string at the beginning of `text`, and the text after its closing quote.
fn sf_string(text: &str) -> Option<(String, &str)> {
    let mut characters = text.strip_prefix('"')?.chars();
    let mut inside = String::new();
    loop {
        match characters.next()? {
            '"' => return Some((inside, characters.as_str())),
            '\\' => inside.push(characters.next().filter(|escaped| matches!(escaped, '"' | '\\'))?),
            visible @ ' '..='~' => inside.push(visible),
            _ => return None,
        }
    }
}

proptest! {
    #![proptest_config(seeded(1024))]

    #[test]
    fn any_text_gives_one_well_formed_response(
        title in any::<String>(), reason in any::<String>(), rule in any::<String>(), id in any::<String>(),
        error in "[ -~\r\n]{0,12}", challenge in proptest::option::of("[ -~\r\n]{0,12}"),
        json in any::<bool>(),
    ) {
        let denial = DenialResponse {
            title: &title, reason: &reason, proxy_status_error: Some(&error), rule: Some(&rule),
            request_id: &id, challenge: challenge.as_deref(), json, ..FORBIDDEN
        };
        let text = written(&denial);
        let mut headers = [httparse::EMPTY_HEADER; 16];
        let mut response = httparse::Response::new(&mut headers);
        let head_bytes = response.parse(text.as_bytes()).expect("a valid head").unwrap();
        let body = &text[head_bytes..];
        prop_assert_eq!(response.headers.len(), 6 + usize::from(challenge.is_some()));
        let value = |name: &str| {
            let header = response.headers.iter().find(|header| header.name == name).expect("present");
            std::str::from_utf8(header.value).expect("ASCII").to_owned()
        };
        prop_assert_eq!(value("Content-Length"), body.len().to_string());
        let status = value("Proxy-Status");
        let details = &status[status.find("details=").expect("a rule is given") + "details=".len()..];
        let (inside, rest) = sf_string(details).expect("an sf-string");
        prop_assert_eq!(rest, "");
        if rule.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            prop_assert_eq!(inside, rule.clone());
        }
        if json {
            let body: serde_json::Value = serde_json::from_str(body).expect("valid JSON");
            prop_assert_eq!(body["title"].as_str(), Some(title.as_str()));
            prop_assert_eq!(body["reason"].as_str(), Some(reason.as_str()));
            prop_assert_eq!(body["rule"].as_str(), Some(rule.as_str()));
            prop_assert_eq!(body["error"].as_str(), Some(error.as_str()));
            prop_assert_eq!(body["request_id"].as_str(), Some(id.as_str()));
        } else {
            prop_assert_eq!(body.matches('\n').count(), 4);
        }
    }
}
