//! nginx without TLS: files to download and to upload, an echo, a page of many parts, the repositories of
//! `git`, and packages for apt, npm and pip. Its log has each request's bytes on the wire. `web` serves the
//! same over TLS, without uploads.

use std::{fmt::Write, fs, os::unix::fs::PermissionsExt, path::Path};

use anyhow::{Context, Result};

use super::{Endpoints, Instance, daemon::Daemon, debian, git, nginx, npm, python};

/// Files that a browser loads for the page: scripts with odd numbers, pictures with even ones.
const PARTS: usize = 100;
/// By how much each part is longer than the one before: no multiple of a packet or buffer size.
const PART_STEP_BYTES: usize = 997;

/// A CGI program that responds with the request's body. It reads the whole body first, because fcgiwrap reads
/// no output before it has written all input. `DIRECTORY` is the service's folder.
const ECHO: &str = r#"#!/bin/sh
set -e
printf 'Content-Type: application/octet-stream\r\n\r\n'
body=$(mktemp "DIRECTORY/body-XXXXXX")
trap 'rm "$body"' EXIT
cat >"$body"
cat "$body"
"#;

/// Shows the number of loaded parts and their total length once all are loaded. The empty icon keeps browsers
/// from requesting `/favicon.ico`.
const PAGE_HEAD: &str = r#"<!doctype html>
<title>Parts</title>
<link rel="icon" href="data:,">
<p id="text"></p>
<script>
const parts = new Map();
const arrived = (part, length) => parts.set(part, length);
const sum = () => [...parts.values()].reduce((sum, length) => sum + length, 0);
onload = () => document.getElementById("text").textContent = `${parts.size} parts, ${sum()} long`;
</script>
"#;

/// Creates the files that do not exist, and writes nginx's configuration.
pub(super) fn prepare(instance: &Instance) -> Result<Daemon> {
    // Tests search this log for their requests: lines of earlier runs would only slow them down.
    let _ = fs::remove_file(instance.path("requests"));
    make_page(instance).context("making the page")?;
    debian::make(instance).context("making the packages for apt")?;
    python::make(instance).context("making the packages for pip")?;
    npm::make(instance).context("making the packages for npm")?;
    fs::create_dir_all(instance.path("site/files"))?;
    fs::write(instance.path("echo"), ECHO.replace("DIRECTORY", &instance.directory.display().to_string()))?;
    fs::set_permissions(instance.path("echo"), fs::Permissions::from_mode(0o755))?;
    nginx::prepare(instance, &server_block(instance)?)
}

/// The port, the folder that it serves, its log, and the number of parts.
pub(super) fn endpoints(instance: &Instance) -> Result<Endpoints> {
    Ok(vec![
        ("PLAIN_PORT", instance.port.to_string()),
        ("PLAIN_SITE", instance.path("site")),
        ("PLAIN_LOG", instance.path("requests")),
        ("PLAIN_PARTS", PARTS.to_string()),
    ])
}

fn make_page(instance: &Instance) -> Result<()> {
    fs::create_dir_all(instance.path("site/page"))?;
    let mut page = PAGE_HEAD.to_owned();
    for part in 1..=PARTS {
        let filler = "f".repeat(part * PART_STEP_BYTES);
        let (kind, content) = if part % 2 == 1 {
            writeln!(page, "<script src=\"{part}.js\"></script>")?;
            ("js", format!("arrived({part}, \"{filler}\".length);\n"))
        } else {
            // The width encodes the length; a browser does not show a truncated SVG.
            writeln!(page, "<img src=\"{part}.svg\" onload=\"arrived({part}, this.naturalWidth)\">")?;
            let width = part * PART_STEP_BYTES;
            let name = "xmlns=\"http://www.w3.org/2000/svg\"";
            ("svg", format!("<svg {name} width=\"{width}\" height=\"1\"><!-- {filler} --></svg>\n"))
        };
        fs::write(instance.path(&format!("site/page/{part}.{kind}")), content)?;
    }
    Ok(fs::write(instance.path("site/page/parts.html"), page)?)
}

/// The nginx lines with which another service serves the same paths, without uploads.
pub(super) fn nginx_locations(web: &Instance) -> Result<String> {
    let directory = web.directory.with_file_name("plain");
    let site = format!("    root \"{}/site\";\n    autoindex on;\n", directory.display());
    Ok(site + &echo_location(&directory, web)?)
}

fn echo_location(directory: &Path, web: &Instance) -> Result<String> {
    let (directory, backend) = (directory.display(), git::cgi_backend(web)?);
    Ok(format!(
        r#"    location = /echo {{
      client_max_body_size 0;
{backend}      fastcgi_param SCRIPT_FILENAME "{directory}/echo";
    }}
"#
    ))
}

fn server_block(instance: &Instance) -> Result<String> {
    let (directory, port) = (instance.directory.display(), instance.port);
    let (repositories, echo) =
        (git::nginx_location(instance)?, echo_location(&instance.directory, instance)?);
    Ok(format!(
        r#"
  log_format wire "$http_via $connection $status $request_length $bytes_sent $request_method $request_uri";
  access_log "{directory}/requests" wire;
  server {{
    listen 127.0.0.1:{port};
    root "{directory}/site";
    autoindex on;
    location /files/ {{
      client_max_body_size 0;
      dav_methods PUT DELETE;
    }}
{echo}{repositories}  }}"#
    ))
}
