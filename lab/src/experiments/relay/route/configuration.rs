//! The configurations under which forward proxies compete: one listener, one origin, logging really on.
//!
//! Guarantees: each proxy has what its own manual recommends for the job, and no proxy has to do less than
//! another.
//!
//! Equal for all: as many threads or workers as given CPUs, one log line per request to a file, connections
//! to the origin kept where the clients keep theirs, and closed where they do not. What a proxy does beyond
//! that, or not at all, stays: nginx has its only origin in its configuration, so it neither judges nor
//! resolves what the request names; nginx and Squid buffer their logs; Tollgate decides and bills each
//! request.

use crate::kit::load::Persistence;

use super::super::configuration::{nginx_head, squid_with};
use super::Route;
use crate::kit::relays::config::{ConfigInputs, TUNNELS_MAX, USER, UserLimits, tollgate_tables};

/// Connections to the origin that a worker may keep: those of all clients, since the kernel distributes them.
const KEPT_MAX: u32 = 1_000;

/// Requests on one connection; more than any experiment has.
const REQUESTS_MAX: u32 = 100_000_000;

/// Tollgate: a `mixed` listener, a user known by address, policy, metering, close log and ledger on.
pub(crate) fn tollgate(inputs: &ConfigInputs<'_, Route>, limits: &UserLimits) -> String {
    let Route { via, origin, .. } = inputs.listen;
    format!(
        r#"[[listener]]
address = "{via}"
kind = "mixed"

[[user]]
name = "{USER}"
from = ["127.0.0.1/32"]
allow = ["{origin}"]
connections = {TUNNELS_MAX}
{}{}{}"#,
        limits.of_user,
        tollgate_tables(inputs),
        limits.of_team,
    )
}

/// nginx: the http module, one worker per CPU with its own listening socket, a buffered access log. It
/// accepts the absolute form as any server must, and forwards the request to the one origin.
pub(crate) fn nginx(inputs: &ConfigInputs<'_, Route>) -> String {
    let directory = inputs.directory.display();
    let Route { via, origin, persistence } = inputs.listen;
    // Without these nginx speaks HTTP/1.0 to the origin and requests a close.
    let kept = match persistence {
        Persistence::KeepAlive => "proxy_http_version 1.1;\n            proxy_set_header Connection \"\";",
        Persistence::Close => "",
    };
    let keep = match persistence {
        Persistence::KeepAlive => {
            format!("keepalive {KEPT_MAX};\n        keepalive_requests {REQUESTS_MAX};")
        }
        Persistence::Close => String::new(),
    };
    let folders = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let folders: String =
        folders.iter().map(|name| format!("    {name}_temp_path {directory}/{name};\n")).collect();
    format!(
        r#"{head}http {{
    log_format lab '$remote_addr [$time_local] "$request" $status $bytes_sent $request_length $request_time '
                   '$upstream_addr $upstream_bytes_sent $upstream_bytes_received';
    access_log {directory}/connections.log lab buffer=64k flush=1s;
    keepalive_requests {REQUESTS_MAX};
{folders}    upstream origin {{
        server {origin};
        {keep}
    }}
    server {{
        listen {via} reuseport backlog=4096;
        location / {{
            proxy_pass http://origin;
            proxy_set_header Host $http_host;
            proxy_connect_timeout 5s;
            {kept}
        }}
    }}
}}
"#,
        head = nginx_head(inputs),
    )
}

/// Squid: connections to the origin kept where the clients keep theirs.
pub(crate) fn squid(inputs: &ConfigInputs<'_, Route>) -> String {
    let Route { via, origin, persistence } = inputs.listen;
    let kept = match persistence {
        Persistence::KeepAlive => "on",
        Persistence::Close => "off",
    };
    let access = format!(
        "client_persistent_connections {kept}\n\
         server_persistent_connections {kept}\n\
         acl origin dst {}\n\
         acl origin_port port {}\n\
         http_access allow localhost origin origin_port\n",
        origin.ip(),
        origin.port(),
    );
    squid_with(inputs, *via, &access)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::path::Path;

    use super::*;

    fn text_of(persistence: Persistence, write: impl Fn(&ConfigInputs<'_, Route>) -> String) -> String {
        let end = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let upstream = Route { via: end(22_000), origin: end(22_000), persistence };
        let listen = Route { via: end(21_000), ..upstream.clone() };
        let directory = Path::new("/tmp/lab");
        write(&ConfigInputs {
            listen: &listen,
            upstream: &upstream,
            admin: end(23_000),
            threads: 2,
            directory,
        })
    }

    fn check(text: &str, expected: &[&str], absent: &[&str]) {
        for line in expected {
            assert!(text.contains(line), "{line:?} is missing from:\n{text}");
        }
        for line in absent {
            assert!(!text.contains(line), "{line:?} is in:\n{text}");
        }
    }

    #[test]
    fn tollgate_config_knows_its_user_by_source() {
        let text = text_of(Persistence::KeepAlive, |inputs| tollgate(inputs, &UserLimits::default()));
        let listener = "[[listener]]\naddress = \"127.0.0.1:21000\"\nkind = \"mixed\"\n";
        let user = "name = \"lab\"\nfrom = [\"127.0.0.1/32\"]\nallow = [\"127.0.0.1:22000\"]\n";
        check(&text, &[listener, user, "to = \"/tmp/lab/connections.log\"", "reactors = 2\n"], &["forward"]);
    }

    #[test]
    fn nginx_config_keeps_connections_as_clients_do() {
        let both = ["listen 127.0.0.1:21000 reuseport", "server 127.0.0.1:22000;", "lab buffer=64k"];
        let keeping =
            ["        keepalive 1000;", "proxy_http_version 1.1;", "proxy_set_header Connection \"\";"];
        let text = text_of(Persistence::KeepAlive, nginx);
        check(&text, &[&both[..], &keeping[..]].concat(), &["load_module"]);
        check(&text_of(Persistence::Close, nginx), &both, &keeping);
    }

    #[test]
    fn squid_config_keeps_only_connections() {
        let both = ["http_port 127.0.0.1:21000", "cache deny all\n", "port 22000\n", "dst 127.0.0.1\n"];
        let log = "access_log stdio:/tmp/lab/connections.${process_number}.log squid\n";
        let text = text_of(Persistence::KeepAlive, squid);
        check(&text, &[&both[..], &[log, "server_persistent_connections on\n"]].concat(), &["cache_dir"]);
        let text = text_of(Persistence::Close, squid);
        check(&text, &[&both[..], &["server_persistent_connections off\n"]].concat(), &[]);
    }
}
