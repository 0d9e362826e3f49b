//! nginx over TLS with a self-signed certificate for `localhost`: one page for a browser, the sample
//! repository of `git`, and the files of `plain`.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};

use super::{Endpoints, Instance, daemon::Daemon, git, nginx, plain, tool};

/// Text that a browser shows only if it ran the page's script.
const PAGE_TEXT: &str = "rendered by a browser";

/// Creates the certificate unless it exists, and writes the page and nginx's configuration.
pub(super) fn prepare(instance: &Instance) -> Result<Daemon> {
    if !Path::new(&instance.path("certificate.pem")).exists() {
        make_certificate(instance).context("making the certificate")?;
    }
    fs::create_dir_all(instance.path("pages"))?;
    fs::write(instance.path("pages/page.html"), page())?;
    nginx::prepare(instance, &server_block(instance)?)
}

/// The port, the certificate to trust, and the URLs of the page and the repository.
pub(super) fn endpoints(instance: &Instance) -> Result<Endpoints> {
    let origin = format!("https://localhost:{}", instance.port);
    Ok(vec![
        ("WEB_PORT", instance.port.to_string()),
        ("WEB_CERTIFICATE", instance.path("certificate.pem")),
        ("WEB_KEY", instance.path("key.pem")),
        ("PAGE_URL", format!("{origin}/page.html")),
        ("PAGE_TEXT", PAGE_TEXT.to_owned()),
        ("GIT_URL", format!("{origin}/git/sample.git")),
    ])
}

fn page() -> String {
    let (first, rest) = PAGE_TEXT.split_at(1);
    format!(
        "<!doctype html>\n<title>Sample</title>\n<p id=\"text\"></p>\n\
         <script>document.getElementById(\"text\").textContent = \"{first}\" + \"{rest}\";</script>\n"
    )
}

fn make_certificate(instance: &Instance) -> Result<()> {
    let names = "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1";
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
    command.args(["-days", "3650", "-subj", "/CN=localhost", "-addext", names]);
    command.args(["-keyout", &instance.path("key.pem"), "-out", &instance.path("certificate.pem")]);
    tool::run(&mut command)?;
    Ok(())
}

fn server_block(instance: &Instance) -> Result<String> {
    let (directory, port) = (instance.directory.display(), instance.port);
    let (repositories, site) = (git::nginx_location(instance)?, plain::nginx_locations(instance)?);
    Ok(format!(
        r#"
  access_log off;
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate "{directory}/certificate.pem";
    ssl_certificate_key "{directory}/key.pem";
    location = /page.html {{ root "{directory}/pages"; }}
{site}{repositories}  }}"#
    ))
}
