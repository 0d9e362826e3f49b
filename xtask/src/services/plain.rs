//! nginx without TLS: files to fetch and to put, an echo, a page of many parts, the repositories of `git`,
//! and packages for apt, npm and pip. Its log has, for each request, what went over the wire. `web` serves
//! the same over TLS, uploads apart.

use std::{fmt::Write, fs, os::unix::fs::PermissionsExt, path::Path};

use anyhow::{Context, Result};

use super::{Endpoints, Instance, daemon::Daemon, debian, git, nginx, npm, python};

/// What a browser loads for one page, besides the page: scripts, which have odd numbers, and pictures.
const PARTS: usize = 100;
/// How much longer each part is than the one before it: no whole number of packets or buffers.
const PART_STEP_BYTES: usize = 997;

/// Answers with the body that it was sent. All of it is read first: what runs it does not read the answer
/// before it has passed the body on. `DIRECTORY` is the service's own.
const ECHO: &str = r#"#!/bin/sh
set -e
printf 'Content-Type: application/octet-stream\r\n\r\n'
body=$(mktemp "DIRECTORY/body-XXXXXX")
trap 'rm "$body"' EXIT
cat >"$body"
cat "$body"
"#;

/// Says, when all is loaded, how many parts have arrived, and how long they are together. The icon is a part
/// of every page, whether it asks for it or not.
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

/// Makes the files once, and writes nginx's configuration.
pub(super) fn prepare(instance: &Instance) -> Result<Daemon> {
    // Tests read their requests out of it: an old one would only keep them waiting.
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

/// Where it is, what it serves, and where it counts.
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
            // As wide as it is long; a picture that is not whole is none.
            writeln!(page, "<img src=\"{part}.svg\" onload=\"arrived({part}, this.naturalWidth)\">")?;
            let width = part * PART_STEP_BYTES;
            let name = "xmlns=\"http://www.w3.org/2000/svg\"";
            ("svg", format!("<svg {name} width=\"{width}\" height=\"1\"><!-- {filler} --></svg>\n"))
        };
        fs::write(instance.path(&format!("site/page/{part}.{kind}")), content)?;
    }
    Ok(fs::write(instance.path("site/page/parts.html"), page)?)
}

/// How another service's nginx serves what this one does by the same paths, uploads apart.
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
