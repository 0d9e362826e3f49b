//! Programs that fetch something in one command line, by every proxy method that they support, with
//! credentials and without.
//!
//! Guarantees: the arrived files are those of the server, and billed to the user. Without credentials a
//! program fails with its usual message, and nothing is billed.

use std::fs;
use std::path::Path;

use super::bill;
use super::gateway_to;
use super::proxy_method::ProxyMethod;
use super::services::{ProgramOutput, run, service};
use crate::harness::Gateway;

/// A program with its proxy settings, as its manual specifies.
struct CommandLine<'a> {
    /// `PROXY` stands for the proxy's URL, `SITE` for the server's, `CERTIFICATE` for the file of its
    /// certificate, `FOLDER` for an empty folder for the files, `LIBRARIES` for those of Python.
    line: &'a str,
    /// The fetched files, and the server's files that they must equal.
    files: &'a [(&'a str, &'a str)],
    /// The proxy methods that it supports, and its message for each without credentials.
    proxy_methods: &'a [(ProxyMethod, &'a str)],
}

impl CommandLine<'_> {
    fn check(&self) {
        for &(proxy_method, refusal) in self.proxy_methods {
            let mut gateway = gateway_to(format!("localhost:{}", proxy_method.port()));

            let folder = tempfile::tempdir().unwrap();
            self.run(&gateway, proxy_method, "ci:right-one@", folder.path()).success();
            let mut length = 0;
            for (name, original) in self.files {
                let original = fs::read(services_folder().join(original)).unwrap();
                let arrived = fs::read(folder.path().join(name)).unwrap();
                assert!(arrived == original, "{proxy_method:?}: {name} differs: {} bytes", arrived.len());
                length += original.len() as u64;
            }

            let folder = tempfile::tempdir().unwrap();
            let output = self.run(&gateway, proxy_method, "", folder.path());
            let text = String::from_utf8_lossy(&output.out).into_owned() + &output.err;
            let what = format!("{proxy_method:?}: {}\n--- expected\n{refusal}\n--- said\n{text}", self.line);
            assert!(output.code != Some(0) && text.contains(refusal), "{what}");

            let flow = ("ci", proxy_method.protocol(), "localhost", proxy_method.port());
            let (_, up, down) = bill::total(&mut gateway, flow);
            assert!(up > 0 && down > length, "{proxy_method:?}: {up} {down} {length}");
            bill::check_denials(&gateway);
        }
    }

    fn run(
        &self,
        gateway: &Gateway,
        proxy_method: ProxyMethod,
        credentials: &str,
        folder: &Path,
    ) -> ProgramOutput {
        let values = [
            ("PROXY", format!("{}://{credentials}{}", proxy_method.scheme(), gateway.listeners[0])),
            ("SITE", proxy_method.site()),
            ("CERTIFICATE", service("WEB_CERTIFICATE")),
            ("FOLDER", folder.display().to_string()),
            ("LIBRARIES", service("PYTHON_LIBRARIES")),
        ];
        let put =
            |word: &str| values.iter().fold(word.to_owned(), |word, (name, value)| word.replace(name, value));
        let words: Vec<String> = self.line.split_whitespace().map(put).collect();
        run(&words[0], &words[1..])
    }
}

/// The folder of all services.
fn services_folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/services"))
}

#[test]
#[ignore = "needs plain, web, wget: cargo xtask services"]
fn wget_fetches_a_file() {
    let line = "wget --no-config --no-verbose --tries=1 --timeout=60 --ca-certificate=CERTIFICATE
        -e use_proxy=on -e http_proxy=PROXY -e https_proxy=PROXY -P FOLDER SITE/page/99.js";
    let proxy_methods = [
        (ProxyMethod::Request, "ERROR 407: Proxy Authentication Required"),
        (ProxyMethod::Connect, "Proxy tunneling failed: Proxy Authentication Required"),
    ];
    CommandLine { line, files: &[("99.js", "plain/site/page/99.js")], proxy_methods: &proxy_methods }.check();
}

#[test]
#[ignore = "needs plain, web, apt-utils: cargo xtask services"]
fn apt_fetches_a_file() {
    let line = "/usr/lib/apt/apt-helper -o Acquire::http::Proxy=PROXY -o Acquire::https::Proxy=PROXY
        -o Acquire::https::CAInfo=CERTIFICATE -o Acquire::Retries=0 -o APT::Sandbox::User=
        download-file SITE/page/99.js FOLDER/99.js";
    let proxy_methods = [
        (ProxyMethod::Request, "407  Proxy Authentication Required"),
        (ProxyMethod::Connect, "Invalid response from proxy: HTTP/1.1 407 Proxy Authentication Required"),
        (ProxyMethod::Socks5, "greets back having not found a common authorization method"),
    ];
    CommandLine { line, files: &[("99.js", "plain/site/page/99.js")], proxy_methods: &proxy_methods }.check();
}

#[test]
#[ignore = "needs plain, web, python3-pip, PySocks: cargo xtask services"]
fn pip_fetches_a_wheel() {
    let line = "env PYTHONPATH=LIBRARIES /usr/bin/python3 -m pip --isolated --disable-pip-version-check
        --retries 0 --proxy PROXY --cert CERTIFICATE download --no-cache-dir --no-deps
        --only-binary :all: --index-url SITE/simple --dest FOLDER sample";
    let wheel = "sample-1.0-py3-none-any.whl";
    let original = format!("plain/site/simple/sample/{wheel}");
    // pip takes an unreadable index for an empty one, whatever the response was.
    let proxy_methods = [ProxyMethod::Request, ProxyMethod::Connect, ProxyMethod::Socks5]
        .map(|proxy_method| (proxy_method, "No matching distribution found for sample"));
    CommandLine { line, files: &[(wheel, &original)], proxy_methods: &proxy_methods }.check();
}

#[test]
#[ignore = "needs plain, web, npm: cargo xtask services"]
fn npm_installs_a_package_with_its_dependency() {
    let line = "/usr/bin/npm install --prefix FOLDER --cache FOLDER/cache --userconfig FOLDER/user
        --globalconfig FOLDER/global --registry SITE/npm/ --replace-registry-host always --proxy PROXY
        --https-proxy PROXY --noproxy= --cafile CERTIFICATE --fetch-retries 0 --no-audit --no-fund
        --no-update-notifier sample";
    let files = [
        ("node_modules/sample/content", "plain/site/npm/trees/sample/content"),
        ("node_modules/sample-part/content", "plain/site/npm/trees/sample-part/content"),
    ];
    let proxy_methods = [
        (ProxyMethod::Request, "407 Proxy Authentication Required - GET "),
        (ProxyMethod::Connect, "407 Proxy Authentication Required - GET "),
        (ProxyMethod::Socks5, "no accepted authentication type"),
    ];
    CommandLine { line, files: &files, proxy_methods: &proxy_methods }.check();
}

#[test]
#[ignore = "needs plain, web, git: cargo xtask services"]
fn git_clones_a_repository() {
    let line = "git -c http.proxy=PROXY -c http.sslCAInfo=CERTIFICATE clone --quiet SITE/git/sample.git
        FOLDER/clone";
    let proxy_methods = [
        (ProxyMethod::Request, "The requested URL returned error: 407"),
        // The rest of the message depends on the version of libcurl.
        (ProxyMethod::Connect, "407"),
        (ProxyMethod::Socks5, "No authentication method was acceptable"),
    ];
    CommandLine { line, files: &[("clone/content", "git/content")], proxy_methods: &proxy_methods }.check();
}
