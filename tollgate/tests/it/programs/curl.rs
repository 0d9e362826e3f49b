//! curl: pages through every kind of tunnel, and every denial as a user sees it.

use std::net::TcpListener;

use ledger::query::FlowRow;

use super::bill;
use super::services::{ProgramOutput, run, service};
use super::test_dir;
use crate::harness::{EVERY_CPU, Gateway};

/// `ci` may reach the page, and a port without a listener; `outsider` may reach the same names, but not by an
/// internal set, and "everything".
fn start(closed: u16) -> Gateway {
    let web = service("WEB_PORT");
    let dir = test_dir(&[format!("localhost:{web}"), format!("127.0.0.1:{closed}")]);
    dir.add_user("ci", "right-one", "--allow @local --deny denied.example:443");
    dir.add_user("outsider", "right-one", &format!("--allow localhost:{web} --allow 0.0.0.0/0"));
    Gateway::start_in(dir)
}

/// Runs curl with the words of `line`, in which `PROXY` and `PAGE` stand for an address and a URL.
fn curl(gateway: &Gateway, line: &str) -> ProgramOutput {
    let (proxy, page) = (gateway.listeners[0].to_string(), service("PAGE_URL"));
    let line = line.replace("PROXY", &proxy).replace("PAGE", &page);
    let certificate = service("WEB_CERTIFICATE");
    let mut arguments = vec!["-q", "--silent", "--show-error", "--max-time", "60", "--cacert", &certificate];
    arguments.extend(line.split(' '));
    run("curl", &arguments)
}

fn a_closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
#[ignore = "needs web, curl: cargo xtask services"]
fn pages_load_through_every_kind_of_tunnel() {
    let mut gateway = start(a_closed_port());
    let direct = curl(&gateway, "PAGE").success();
    for line in [
        "-p -x http://ci:right-one@PROXY PAGE",
        "--proxy http://PROXY --proxy-user ci:right-one PAGE",
        "--proxy http://PROXY --proxy-user ci:right-one --proxy-anyauth PAGE",
        "--socks5-hostname PROXY --proxy-user ci:right-one PAGE",
        "-x socks5h://ci:right-one@PROXY PAGE",
    ] {
        let page = curl(&gateway, line).success();
        assert_eq!(page, direct, "curl {line}");
    }
    gateway.stop();
    let (flows, up, down) = gateway.usage_of("ci");
    assert_eq!(flows, 5);
    assert!(down > 5 * direct.len() as u64, "{up} {down}");
}

#[test]
#[ignore = "needs web, curl: cargo xtask services"]
fn client_without_credentials_is_known_by_address() {
    let mut gateway = Gateway::local(EVERY_CPU);
    let direct = curl(&gateway, "PAGE").success();
    for line in ["-p -x http://PROXY PAGE", "--socks5-hostname PROXY PAGE", "--socks5 PROXY PAGE"] {
        assert_eq!(curl(&gateway, line).success(), direct, "curl {line}");
    }
    let flows = bill::flows(&mut gateway);
    let billed = |protocol: &str, host: &str| {
        let is_it = |flow: &&FlowRow| (&*flow.protocol, &*flow.host, &*flow.user) == (protocol, host, "me");
        flows.iter().filter(is_it).filter(|flow| flow.down > direct.len() as u64).count()
    };
    // In the last one curl resolves the name itself.
    let counts = [("http_connect", "localhost"), ("socks5", "localhost"), ("socks5", "127.0.0.1")]
        .map(|(p, h)| billed(p, h));
    assert_eq!((flows.len(), counts), (3, [1, 1, 1]), "{flows:#?}");
}

#[test]
#[ignore = "needs web, curl: cargo xtask services"]
fn denials_state_their_reason() {
    let closed = a_closed_port();
    let mut gateway = start(closed);
    let check = |line: &str, expected: &[&str]| {
        let output = curl(&gateway, &format!("-v -p {line}"));
        assert_ne!(output.code, Some(0), "curl {line} succeeded");
        for part in expected {
            assert!(output.err.contains(part), "curl {line}\n--- expected\n{part}\n--- said\n{}", output.err);
        }
    };
    let challenge = "< Proxy-Authenticate: Basic realm=\"tollgate\"";
    check("-x http://PROXY PAGE", &["< HTTP/1.1 407 ", challenge, "< X-Request-Id: "]);
    check("-x http://ci:wrong-one@PROXY PAGE", &["< HTTP/1.1 407 ", challenge]);
    check("-x http://ghost:right-one@PROXY PAGE", &["< HTTP/1.1 407 ", challenge]);
    check(
        "-x http://ci:right-one@PROXY https://denied.example/",
        &[
            "< HTTP/1.1 403 ",
            "< Proxy-Status: tollgate; error=http_request_denied; ",
            "; details=\"user:ci/deny[0] denied.example:443\"",
        ],
    );
    let unknown = ["< HTTP/1.1 403 ", "< Proxy-Status: tollgate; error=http_request_denied"];
    check("-x http://ci:right-one@PROXY https://unknown.example/", &unknown);
    // A private address behind an allowed public name, and one that only the rule for everything allows.
    let prohibited = ["< HTTP/1.1 403 ", "< Proxy-Status: tollgate; error=destination_ip_prohibited"];
    check("-x http://outsider:right-one@PROXY PAGE", &prohibited);
    check("-x http://outsider:right-one@PROXY https://127.0.0.1:1/", &prohibited);
    check("-x http://outsider:right-one@PROXY https://169.254.169.254/", &prohibited);
    check("-x http://outsider:right-one@PROXY https://[::ffff:127.0.0.1]:1/", &prohibited);
    let refused = ["< HTTP/1.1 502 ", "< Proxy-Status: tollgate; error=connection_refused"];
    check(&format!("-x http://ci:right-one@PROXY https://127.0.0.1:{closed}/"), &refused);
    gateway.stop();
    for user in ["ci", "outsider"] {
        assert_eq!(gateway.usage_of(user).0, 0, "{user}");
    }
    let decisions = gateway.events("decision");
    assert!(
        decisions.len() >= 10 && decisions.iter().all(|line| line["decision"] != "allow"),
        "{decisions:#?}"
    );
    let failed = decisions.iter().filter(|line| line["decision"] == "failed").count();
    assert_eq!(failed, 1, "a dial that fails is no denial: {decisions:#?}");
}

#[test]
#[ignore = "needs curl: cargo xtask services"]
fn socks5_denials_have_specific_reply_codes() {
    let closed = a_closed_port();
    let mut gateway = start(closed);
    // 97 is CURLE_PROXY; the reply codes are those of RFC 1928.
    for (line, text) in [
        ("-x socks5h://PROXY PAGE", "No authentication method was acceptable"),
        ("-x socks5h://ci:wrong-one@PROXY PAGE", "User was rejected by the SOCKS5 server"),
        ("-x socks5h://ci:right-one@PROXY https://denied.example/", "(2)"),
        ("-x socks5h://outsider:right-one@PROXY PAGE", "(2)"),
        (&format!("-x socks5h://ci:right-one@PROXY https://127.0.0.1:{closed}/"), "(5)"),
    ] {
        let output = curl(&gateway, line);
        assert_eq!(output.code, Some(97), "curl {line}: {}", output.err);
        assert!(output.err.contains(text), "curl {line}: {}", output.err);
    }
    gateway.stop();
    let decisions = gateway.events("decision");
    assert_eq!(decisions.len(), 5, "{decisions:#?}");
    assert_eq!(gateway.usage_of("ci").0, 0);
}
