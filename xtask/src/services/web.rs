//! nginx over TLS with a self-signed certificate for `localhost`: one page for a browser, and the sample
//! repository of `git`.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};

use super::{Endpoints, Place, daemon, daemon::Daemon, tool};

/// What a browser shows only if it ran the page's script.
const PAGE_TEXT: &str = "rendered by a browser";

/// Makes the certificate once, and writes the page and nginx's configuration.
pub(super) fn prepare(place: &Place) -> Result<Daemon> {
    let git = place.directory.with_file_name("git");
    let git_port = daemon::running(&git)?.context("the service `git` must run before `web`")?;
    if !Path::new(&place.path("certificate.pem")).exists() {
        make_certificate(place).context("making the certificate")?;
    }
    fs::create_dir_all(place.path("pages"))?;
    fs::write(place.path("pages/page.html"), page())?;
    fs::write(place.path("nginx.conf"), configuration(place, &git.join("projects"), git_port))?;
    let mut command = Command::new("/usr/sbin/nginx");
    command.args(["-p", &place.path(""), "-e", "stderr", "-c", &place.path("nginx.conf")]);
    Ok(Daemon::new(command))
}

/// Where the page and the repository are, and which certificate to trust.
pub(super) fn endpoints(place: &Place) -> Result<Endpoints> {
    let origin = format!("https://localhost:{}", place.port);
    Ok(vec![
        ("WEB_PORT", place.port.to_string()),
        ("WEB_CERTIFICATE", place.path("certificate.pem")),
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

fn make_certificate(place: &Place) -> Result<()> {
    let names = "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1";
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
    command.args(["-days", "3650", "-subj", "/CN=localhost", "-addext", names]);
    command.args(["-keyout", &place.path("key.pem"), "-out", &place.path("certificate.pem")]);
    tool::run(&mut command)?;
    Ok(())
}

fn configuration(place: &Place, projects: &Path, git_port: u16) -> String {
    let (directory, port, projects) = (place.directory.display(), place.port, projects.display());
    // As root nginx would drop to an account that may not be able to enter the folder.
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    format!(
        r#"{user}
daemon off;
worker_processes 1;
pid "{directory}/nginx.pid";
error_log stderr;
events {{ worker_connections 512; }}
http {{
  access_log off;
  types {{ text/html html; }}
  client_body_temp_path "{directory}/body";
  fastcgi_temp_path "{directory}/fastcgi";
  proxy_temp_path "{directory}/proxy";
  scgi_temp_path "{directory}/scgi";
  uwsgi_temp_path "{directory}/uwsgi";
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate "{directory}/certificate.pem";
    ssl_certificate_key "{directory}/key.pem";
    location / {{ root "{directory}/pages"; }}
    location ~ ^/git(/.*)$ {{
      client_max_body_size 0;
      fastcgi_pass 127.0.0.1:{git_port};
      fastcgi_param SCRIPT_FILENAME /usr/lib/git-core/git-http-backend;
      fastcgi_param GIT_PROJECT_ROOT "{projects}";
      fastcgi_param GIT_HTTP_EXPORT_ALL "";
      fastcgi_param PATH_INFO $1;
      fastcgi_param QUERY_STRING $query_string;
      fastcgi_param REQUEST_METHOD $request_method;
      fastcgi_param CONTENT_TYPE $content_type;
      fastcgi_param CONTENT_LENGTH $content_length;
    }}
  }}
}}
"#
    )
}
