//! nginx as a service: what every configuration of it needs, so that it writes below its own folder alone.

use std::{fs, process::Command};

use anyhow::Result;

use super::{Instance, daemon::Daemon};

/// Writes the configuration with `servers`, the lines of its `http` block, and says how to start it.
pub(super) fn prepare(instance: &Instance, servers: &str) -> Result<Daemon> {
    fs::write(instance.path("nginx.conf"), configuration(instance, servers))?;
    let mut command = Command::new("/usr/sbin/nginx");
    command.args(["-p", &instance.path(""), "-e", "stderr", "-c", &instance.path("nginx.conf")]);
    Ok(Daemon::new(command))
}

fn configuration(instance: &Instance, servers: &str) -> String {
    let directory = instance.directory.display();
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
