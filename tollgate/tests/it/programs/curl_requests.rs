//! curl: plain requests of every kind, with credentials at first and without.

use std::fs;
use std::net::TcpListener;

use super::services::{ProgramOutput, run_with, service};
use super::site::{Entry, Site, connections};
use crate::peers::pattern;

/// More than curl sends without waiting for `100 Continue`.
const BODY_BYTES: usize = 3_000_017;

/// Runs curl with the words of `line`, in which `PROXY`, `SITE`, `FILE` and `FOLDER` stand for an address, a
/// URL, a file's name there and a folder of this machine.
fn curl(site: &Site, folder: &str, line: &str, input: &[u8]) -> ProgramOutput {
    let (proxy, url, file) = (site.tap.address().to_string(), site.url(""), site.new_file("curl"));
    let words = [("PROXY", proxy), ("SITE/", url), ("FILE", file), ("FOLDER", folder.to_owned())];
    let line = words.iter().fold(line.to_owned(), |line, (word, value)| line.replace(word, value));
    let mut arguments = vec!["-q", "--silent", "--show-error", "--max-time", "60"];
    arguments.extend(line.split(' '));
    run_with("curl", &arguments, input)
}

fn methods(entries: &[Entry]) -> Vec<(&str, u16)> {
    entries.iter().map(|entry| (entry.method.as_str(), entry.status)).collect()
}

#[test]
#[ignore = "needs plain, curl: cargo xtask services"]
fn every_kind_of_request_is_forwarded() {
    let site = Site::start();
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().display().to_string();
    let body = pattern(8, BODY_BYTES);
    fs::write(dir.path().join("body"), &body).unwrap();
    let through = |line: &str, input: &[u8]| {
        curl(&site, &folder, &format!("-x http://ci:right-one@PROXY {line}"), input)
    };
    let check = |line: &str, expected: &[u8]| {
        let response = through(line, &body).success();
        assert!(response == expected, "curl {line}: {} bytes arrived, or other ones", response.len());
    };
    let (page, part) = (site.file("page/parts.html"), site.file("page/77.js"));
    check("SITE/page/parts.html", &page);
    check("-0 SITE/page/parts.html", &page);
    check("-H Connection:close SITE/page/parts.html", &page);
    check("-r 1000-1999 SITE/page/77.js", &part[1000..2000]);
    check("--data-binary @- -H Content-Type:application/octet-stream SITE/echo", &body);
    check("--data-binary @- -H Transfer-Encoding:chunked SITE/echo", &body);
    check("--data-binary @- -0 SITE/echo", &body);
    check("--data small SITE/echo", b"small");
    check("-T FOLDER/body SITE/FILE", b"");
    check("SITE/FILE", &body);
    check("-T - -H Expect:100-continue SITE/FILE", b"");
    check("-T - -H Expect: SITE/FILE", b"");
    check("-0 SITE/FILE", &body);
    let head = String::from_utf8(through("-I SITE/FILE", b"").success()).unwrap();
    assert!(head.contains(&format!("Content-Length: {BODY_BYTES}\r\n")), "{head}");
    check("-X DELETE SITE/FILE", b"");
    let expected = [
        &[("GET", 200); 3][..],
        &[("GET", 206)],
        &[("POST", 200); 4],
        &[
            ("PUT", 201),
            ("GET", 200),
            ("PUT", 204),
            ("PUT", 204),
            ("GET", 200),
            ("HEAD", 200),
            ("DELETE", 204),
        ],
    ];
    assert_eq!(methods(&site.finish()), expected.concat());
}

#[test]
#[ignore = "needs plain, curl: cargo xtask services"]
fn upload_waits_for_100_continue() {
    let site = Site::start();
    let body = pattern(9, BODY_BYTES);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("body"), &body).unwrap();
    let folder = dir.path().display().to_string();
    for source in ["-", "FOLDER/body"] {
        let line = format!("-v -T {source} -x http://ci:right-one@PROXY -H Expect:100-continue SITE/FILE");
        let output = curl(&site, &folder, &line, &body);
        let count = output.err.matches("< HTTP/1.1 100 Continue").count();
        assert_eq!((output.code, count), (Some(0), 1), "{}", output.err);
        assert!(curl(&site, "", "-x http://ci:right-one@PROXY SITE/FILE", b"").success() == body);
    }
    // Refused before a byte of the body was sent.
    let line =
        "-v -T - -x http://PROXY -H Expect:100-continue -w %{stderr}uploaded=%{size_upload}; SITE/FILE";
    let output = curl(&site, "", line, &body);
    assert!(
        output.err.contains("< HTTP/1.1 407 ") && !output.err.contains(" 100 Continue"),
        "{}",
        output.err
    );
    assert!(output.err.contains("uploaded=0;"), "{}", output.err);
    assert_eq!(curl(&site, "", "-x http://ci:right-one@PROXY -X DELETE SITE/FILE", b"").code, Some(0));
    assert_eq!(site.finish().len(), 5);
}

#[test]
#[ignore = "needs plain, curl: cargo xtask services"]
fn many_urls_use_one_connection_or_a_few() {
    for (option, accepted_max) in [("--no-parallel", 1), ("--parallel --parallel-max 5", 5)] {
        let site = Site::start();
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().display().to_string();
        let line = format!("{option} -x http://ci:right-one@PROXY SITE/page/[1-99:2].js -o FOLDER/#1.js");
        curl(&site, &folder, &line, b"").success();
        for number in (1..=99).step_by(2) {
            let name = format!("{number}.js");
            assert!(
                fs::read(dir.path().join(&name)).unwrap() == site.file(&format!("page/{name}")),
                "{name}"
            );
        }
        let accepted = site.tap.accepted();
        let entries = site.finish();
        assert_eq!(entries.len(), 50);
        assert!(accepted <= accepted_max && connections(&entries) as u64 <= accepted_max, "{accepted}");
    }
}

#[test]
#[ignore = "needs plain, curl: cargo xtask services"]
fn credentials_after_407_use_the_same_connection() {
    let site = Site::start();
    let body = pattern(10, BODY_BYTES);
    let options = "-v --proxy-anyauth --proxy-user ci:right-one -x http://PROXY";
    let output = curl(&site, "", &format!("{options} SITE/page/1.js SITE/page/3.js"), b"");
    let expected = [site.file("page/1.js"), site.file("page/3.js")].concat();
    assert!(output.err.contains("< HTTP/1.1 407 "), "{}", output.err);
    assert!(output.success() == expected);
    assert_eq!(site.tap.accepted(), 1);
    let output = curl(&site, "", &format!("{options} --data-binary @- SITE/echo"), &body);
    assert!(output.err.contains("< HTTP/1.1 407 "), "{}", output.err);
    assert!(output.success() == body);
    assert_eq!(methods(&site.finish()), [("GET", 200), ("GET", 200), ("POST", 200)]);
}

#[test]
#[ignore = "needs plain, curl: cargo xtask services"]
fn refused_requests_state_their_reason() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let site = Site::start();
    let check = |line: &str, expected: &[&str]| {
        let output = curl(&site, "", &format!("-v {line}"), b"");
        assert_eq!(output.code, Some(0), "curl succeeds with any response: {}", output.err);
        for part in expected {
            assert!(output.err.contains(part), "curl {line}\n--- expected\n{part}\n--- said\n{}", output.err);
        }
    };
    let challenge = "< Proxy-Authenticate: Basic realm=\"tollgate\"";
    check("-x http://PROXY SITE/page/1.js", &["< HTTP/1.1 407 ", challenge, "< X-Request-Id: "]);
    check("-x http://ci:wrong-one@PROXY SITE/page/1.js", &["< HTTP/1.1 407 ", challenge]);
    let denied = ["< HTTP/1.1 403 ", "< Proxy-Status: tollgate; error=http_request_denied"];
    check("-x http://ci:right-one@PROXY http://denied.example/", &denied);
    check(&format!("-x http://ci:right-one@PROXY http://localhost:{closed}/"), &denied);
    check("-x http://ci:right-one@PROXY SITE/nowhere", &["< HTTP/1.1 404 ", "< Via: 1.1 tollgate-"]);
    let entries = site.finish();
    assert_eq!(methods(&entries), [("GET", 404)], "{}", service("PLAIN_LOG"));
}
