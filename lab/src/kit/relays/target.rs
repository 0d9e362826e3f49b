//! The relays by name, as the command line, tables and files call them.

/// What connections go through.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Nothing: what the machine and the load reach without a relay
    Direct,
    /// Threads that relay and do nothing else: the floor of every relay of short connections
    BareRelay,
    /// Threads that splice and do nothing else: the floor of every relay that splices
    BareSplice,
    /// Threads that splice, and check a limit when a connection begins
    BareQuota,
    /// The gateway itself
    Tollgate,
    /// The same with quotas and rates of its user
    TollgateLimited,
    /// HAProxy in TCP mode
    Haproxy,
    /// nginx: its stream module for tunnels, its http module for requests
    Nginx,
    /// Squid, without a cache
    Squid,
    /// tinyproxy: CONNECT
    Tinyproxy,
    /// 3proxy: CONNECT and SOCKS5
    #[value(name = "3proxy")]
    ThreeProxy,
    /// Dante's server: SOCKS5
    Dante,
    /// microsocks: SOCKS5
    Microsocks,
    /// g3proxy: CONNECT and SOCKS5
    G3proxy,
}

impl Target {
    pub(crate) const ALL: [Self; 14] = [
        Self::Direct,
        Self::BareRelay,
        Self::BareSplice,
        Self::BareQuota,
        Self::Tollgate,
        Self::TollgateLimited,
        Self::Haproxy,
        Self::Nginx,
        Self::Squid,
        Self::Tinyproxy,
        Self::ThreeProxy,
        Self::Dante,
        Self::Microsocks,
        Self::G3proxy,
    ];

    /// The name in tables and files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::BareRelay => "bare-relay",
            Self::BareSplice => "bare-splice",
            Self::BareQuota => "bare-quota",
            Self::Tollgate => "tollgate",
            Self::TollgateLimited => "tollgate-limited",
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
            Self::Squid => "squid",
            Self::Tinyproxy => "tinyproxy",
            Self::ThreeProxy => "3proxy",
            Self::Dante => "dante",
            Self::Microsocks => "microsocks",
            Self::G3proxy => "g3proxy",
        }
    }
}
