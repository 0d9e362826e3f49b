//! nginx as a service: the common part of its configurations, with which it writes only to its own folder.

use std::{fs, process::Command};

use anyhow::Result;

use super::{Instance, daemon::Daemon};

/// Writes the configuration with `servers` as lines of its `http` block; returns the command.
pub(super) fn prepare(instance: &Instance, servers: &str) -> Result<Daemon> {
    fs::write(instance.path("nginx.conf"), configuration(instance, servers))?;
    let mut command = Command::new("/usr/sbin/nginx");
    command.args(["-p", &instance.path(""), "-e", "stderr", "-c", &instance.path("nginx.conf")]);
    Ok(Daemon::new(command))
}

fn configuration(instance: &Instance, servers: &str) -> String {
    let directory = instance.directory.display();
    // Started as root, nginx would switch to an account that may lack access to the folder.
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    format!(
        r#"{user}
daemon off;
worker_processes 1;
pid "{directory}/nginx.pid";
error_log stderr;
events {{ worker_connections 512; }}
http {{
  types {{ text/html html; text/javascript js; image/svg+xml svg; }}
  client_body_temp_path "{directory}/body";
  fastcgi_temp_path "{directory}/fastcgi";
  proxy_temp_path "{directory}/proxy";
  scgi_temp_path "{directory}/scgi";
  uwsgi_temp_path "{directory}/uwsgi";{servers}
}}
"#
    )
}
