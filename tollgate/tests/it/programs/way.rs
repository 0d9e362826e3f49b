//! How a program comes to a server through a proxy.

use super::services::service;

/// See the file's header.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// By a request in absolute form, to the server without TLS.
    Request,
    /// Through a tunnel by CONNECT, to the server with TLS.
    Connect,
    /// Through a tunnel by SOCKS5, to the server without TLS.
    Socks5,
}

impl Way {
    /// The scheme of the proxy's URL: the proxy resolves names.
    pub(crate) fn scheme(self) -> &'static str {
        match self {
            Way::Request | Way::Connect => "http",
            Way::Socks5 => "socks5h",
        }
    }

    /// What the ledger calls it.
    pub(crate) fn protocol(self) -> &'static str {
        match self {
            Way::Request => "http",
            Way::Connect => "http_connect",
            Way::Socks5 => "socks5",
        }
    }

    /// The server's port.
    pub(crate) fn port(self) -> u16 {
        let key = match self {
            Way::Request | Way::Socks5 => "PLAIN_PORT",
            Way::Connect => "WEB_PORT",
        };
        service(key).parse().expect("a port")
    }

    /// The server's URL, without a path.
    pub(crate) fn site(self) -> String {
        let scheme = match self {
            Way::Request | Way::Socks5 => "http",
            Way::Connect => "https",
        };
        format!("{scheme}://localhost:{}", self.port())
    }
}
