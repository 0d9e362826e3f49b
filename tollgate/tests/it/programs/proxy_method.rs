//! How a program reaches a server through a proxy.

use super::services::service;

/// A request form or a tunnel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ProxyMethod {
    /// By a request in absolute form, to the server without TLS.
    Request,
    /// Through a tunnel by CONNECT, to the server with TLS.
    Connect,
    /// Through a tunnel by SOCKS5, to the server without TLS.
    Socks5,
}

impl ProxyMethod {
    /// The scheme of the proxy's URL: the proxy resolves names.
    pub(crate) fn scheme(self) -> &'static str {
        match self {
            ProxyMethod::Request | ProxyMethod::Connect => "http",
            ProxyMethod::Socks5 => "socks5h",
        }
    }

    /// The protocol's name in the ledger.
    pub(crate) fn protocol(self) -> &'static str {
        match self {
            ProxyMethod::Request => "http",
            ProxyMethod::Connect => "http_connect",
            ProxyMethod::Socks5 => "socks5",
        }
    }

    /// The server's port.
    pub(crate) fn port(self) -> u16 {
        let key = match self {
            ProxyMethod::Request | ProxyMethod::Socks5 => "PLAIN_PORT",
            ProxyMethod::Connect => "WEB_PORT",
        };
        service(key).parse().expect("a port")
    }

    /// The server's URL, without a path.
    pub(crate) fn site(self) -> String {
        let scheme = match self {
            ProxyMethod::Request | ProxyMethod::Socks5 => "http",
            ProxyMethod::Connect => "https",
        };
        format!("{scheme}://localhost:{}", self.port())
    }
}
