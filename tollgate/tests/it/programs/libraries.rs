//! Libraries of Python, JavaScript, Go and Java: each sends megabytes to an echo by every proxy method that
//! it supports, with credentials, without them, and where its address suffices.
//!
//! Guarantees: the same bytes come back. Each post is billed as one flow to its user, with its protocol and
//! its destination. Without credentials a library fails with its usual error, and nothing is billed.

use super::bill;
use super::proxy_method::ProxyMethod;
use super::services::{ProgramOutput, run, run_with, service};
use super::site::testdata;
use super::test_dir;
use crate::harness::{EVERY_CPU, Gateway};
use crate::peers::pattern;

const BODY_BYTES: usize = 3_000_017;

/// A program that posts its input; a proxy, a URL and a certificate are added to `command`.
struct Library<'a> {
    command: &'a [&'a str],
    /// The host in its SOCKS5 request: `localhost`, or its address where the library resolves names itself.
    socks5_host: &'static str,
    /// The proxy methods that it supports, and its message for each without credentials.
    proxy_methods: &'a [(ProxyMethod, &'a str)],
}

impl Library<'_> {
    /// Protocol, host and port of a flow in the ledger.
    fn flow(&self, proxy_method: ProxyMethod) -> (&'static str, &'static str, u16) {
        let host = if matches!(proxy_method, ProxyMethod::Socks5) { self.socks5_host } else { "localhost" };
        (proxy_method.protocol(), host, proxy_method.port())
    }

    /// Posts `body` with `credentials`, which end in an `@`.
    fn post(
        &self,
        gateway: &Gateway,
        proxy_method: ProxyMethod,
        credentials: &str,
        body: &[u8],
    ) -> ProgramOutput {
        let proxy = format!("{}://{credentials}{}", proxy_method.scheme(), gateway.listeners[0]);
        let (url, certificate) = (format!("{}/echo", proxy_method.site()), service("WEB_CERTIFICATE"));
        let words = [&self.command[1..], &[&*proxy, &*url, &*certificate]].concat();
        run_with(self.command[0], &words, body)
    }

    /// Posts by every method, and compares the bill.
    fn check(&self) {
        let body = pattern(12, BODY_BYTES);
        let destinations = ["PLAIN_PORT", "WEB_PORT"]
            .map(service)
            .map(|port| [format!("localhost:{port}"), format!("127.0.0.1:{port}")]);
        let dir = test_dir(&destinations.concat());
        dir.add_user("ci", "right-one", "--allow @local");
        let mut gateway = Gateway::start_in(dir);
        for &(proxy_method, refusal) in self.proxy_methods {
            let echo = self.post(&gateway, proxy_method, "ci:right-one@", &body).success();
            assert!(
                echo == body,
                "{:?}: {} bytes arrived, or other ones",
                self.flow(proxy_method),
                echo.len()
            );
            let output = self.post(&gateway, proxy_method, "", &body);
            let what =
                format!("{:?}\n--- expected\n{refusal}\n--- said\n{}", self.flow(proxy_method), output.err);
            assert!(output.code != Some(0) && output.err.contains(refusal), "{what}");
        }
        self.check_bill(&mut gateway, "ci");

        let mut gateway = Gateway::local(EVERY_CPU);
        for &(proxy_method, _) in self.proxy_methods {
            let echo = self.post(&gateway, proxy_method, "", &body).success();
            assert!(
                echo == body,
                "{:?}: {} bytes arrived, or other ones",
                self.flow(proxy_method),
                echo.len()
            );
        }
        self.check_bill(&mut gateway, "me");
    }

    /// Expects one flow for each method, and no other.
    fn check_bill(&self, gateway: &mut Gateway, user: &str) {
        let flows = bill::flows(gateway);
        for &(proxy_method, _) in self.proxy_methods {
            let wanted = self.flow(proxy_method);
            let is_wanted = |flow: &&ledger::query::FlowRow| {
                (&*flow.protocol, &*flow.host, flow.port) == wanted && flow.user == user && !flow.live
            };
            let found: Vec<_> = flows.iter().filter(is_wanted).collect();
            let bytes = BODY_BYTES as u64;
            assert!(
                found.len() == 1 && found[0].up > bytes && found[0].down > bytes,
                "{user} {wanted:?} {flows:#?}"
            );
        }
        assert_eq!(flows.len(), self.proxy_methods.len(), "{flows:#?}");
    }
}

/// `env` with the path of Python's libraries, Python, and a script.
fn python(script: &str) -> [String; 4] {
    let libraries = format!("PYTHONPATH={}", service("PYTHON_LIBRARIES"));
    ["env".to_owned(), libraries, "/usr/bin/python3".to_owned(), testdata(&format!("fetch/{script}"))]
}

fn check(command: &[String], proxy_methods: &[(ProxyMethod, &str)]) {
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    Library { command: &command, socks5_host: "localhost", proxy_methods }.check();
}

#[test]
#[ignore = "needs plain, web, python3-requests, PySocks: cargo xtask services"]
fn requests_get_through_the_proxy() {
    let proxy_methods = [
        (ProxyMethod::Request, "HTTPError: 407 Client Error: Proxy Authentication Required"),
        (ProxyMethod::Connect, "Tunnel connection failed: 407 Proxy Authentication Required"),
        (ProxyMethod::Socks5, "All offered SOCKS5 authentication methods were rejected"),
    ];
    check(&python("with_requests.py"), &proxy_methods);
}

#[test]
#[ignore = "needs plain, web, aiohttp: cargo xtask services"]
fn aiohttp_gets_through_the_proxy() {
    let proxy_methods = [
        (ProxyMethod::Request, "ClientResponseError: 407, message='Proxy Authentication Required'"),
        (ProxyMethod::Connect, "ClientHttpProxyError: 407, message='Proxy Authentication Required'"),
    ];
    check(&python("with_aiohttp.py"), &proxy_methods);
}

#[test]
#[ignore = "needs plain, web, PySocks: cargo xtask services"]
fn pysocks_gets_through_the_proxy() {
    let proxy_methods = [
        (ProxyMethod::Connect, "407: Proxy Authentication Required"),
        (ProxyMethod::Socks5, "All offered SOCKS5 authentication methods were rejected"),
    ];
    check(&python("with_pysocks.py"), &proxy_methods);
}

#[test]
#[ignore = "needs plain, web, nodejs, undici: cargo xtask services"]
fn undici_gets_through_the_proxy() {
    let proxy_methods = [
        (ProxyMethod::Request, "Proxy Authentication Required (407)"),
        (ProxyMethod::Connect, "Proxy response (407) !== 200 when HTTP Tunneling"),
    ];
    let libraries = format!("NODE_PATH={}", service("NODE_LIBRARIES"));
    let node = "/usr/bin/node".to_owned();
    check(&["env".to_owned(), libraries, node, testdata("fetch/with_undici.js")], &proxy_methods);
}

#[test]
#[ignore = "needs plain, web, golang-go: cargo xtask services"]
fn go_gets_through_the_proxy() {
    let proxy_methods = [
        (ProxyMethod::Request, "407 Proxy Authentication Required"),
        (ProxyMethod::Connect, "Proxy Authentication Required"),
        (ProxyMethod::Socks5, "no acceptable authentication methods"),
    ];
    let program = format!("{}/fetch", env!("CARGO_TARGET_TMPDIR"));
    super::golang::go(&["build", "-o", &program, &testdata("fetch/fetch.go")]).success();
    check(&[program], &proxy_methods);
}

/// Java sends credentials only after a challenge, and `Basic` for a tunnel only with this option.
fn check_java(client: &str, socks5_host: &'static str, proxy_methods: &[(ProxyMethod, &str)]) {
    let classes = format!("{}/java", env!("CARGO_TARGET_TMPDIR"));
    run("javac", &["-d", &classes, &testdata("fetch/Fetch.java")]).success();
    let option = "-Djdk.http.auth.tunneling.disabledSchemes=";
    // They halve the time of a program that runs for a second.
    let quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];
    let command = [&["java", option][..], &quick, &["-cp", &classes, "Fetch", client]].concat();
    Library { command: &command, socks5_host, proxy_methods }.check();
}

#[test]
#[ignore = "needs plain, web, default-jdk-headless: cargo xtask services"]
fn java_http_client_gets_through_the_proxy() {
    let proxy_methods =
        [(ProxyMethod::Request, "IOException: 407: "), (ProxyMethod::Connect, "IOException: 407: ")];
    check_java("HttpClient", "localhost", &proxy_methods);
}

#[test]
#[ignore = "needs plain, web, default-jdk-headless: cargo xtask services"]
fn java_http_url_connection_gets_through_the_proxy() {
    let proxy_methods = [
        (ProxyMethod::Request, "Server returned HTTP response code: 407"),
        (ProxyMethod::Connect, "Proxy returns \"HTTP/1.1 407 Proxy Authentication Required\""),
        (ProxyMethod::Socks5, "SOCKS : authentication failed"),
    ];
    check_java("HttpURLConnection", "127.0.0.1", &proxy_methods);
}
