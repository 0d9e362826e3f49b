//! Connections that the kernel dropped at listening sockets: two numbers of `/proc/net/netstat`.
//!
//! Not handled here: which socket dropped them; this file does not state it.

use crate::limits::ProcRoot;

/// Connections lost at listening sockets since the network namespace began, of all its programs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ListenDrops {
    /// Drops because the accept queue was full: the kernel drops the client's SYN or the last ACK of its
    /// handshake, and the client retransmits after a second (`ListenOverflows`).
    pub overflows: u64,
    /// All drops: these, and those for another reason, such as lack of memory (`ListenDrops`).
    pub drops: u64,
}

impl ListenDrops {
    /// Reads the drops of this process's network namespace on the machine at `root`.
    pub fn read(root: &ProcRoot) -> Option<ListenDrops> {
        ListenDrops::parse(&root.read_text(ListenDrops::PATH).ok()?)
    }

    pub(super) const PATH: &str = "/proc/net/netstat";

    /// Parses two lines that begin with `TcpExt:` (proc_net(5)): the names, and the numbers under them.
    pub(super) fn parse(text: &str) -> Option<ListenDrops> {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
        let (names, numbers) = (lines.next()?, lines.next()?);
        let column = |column_name: &str| {
            let index = names.split(' ').position(|name| name == column_name)?;
            numbers.split(' ').nth(index)?.parse().ok()
        };
        Some(ListenDrops { overflows: column("ListenOverflows")?, drops: column("ListenDrops")? })
    }

    /// The growth since `earlier`.
    pub fn since(self, earlier: ListenDrops) -> ListenDrops {
        ListenDrops {
            overflows: self.overflows.saturating_sub(earlier.overflows),
            drops: self.drops.saturating_sub(earlier.drops),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn drops_are_found_by_column_name() {
        let text = "TcpExt: SyncookiesSent ListenOverflows ListenDrops TCPHPHits\nTcpExt: 1 20 30 4\n\
                    IpExt: ListenOverflows\nIpExt: 7\n";
        assert_eq!(ListenDrops::parse(text), Some(ListenDrops { overflows: 20, drops: 30 }));
        let without = ["", "TcpExt: ListenOverflows\n", "TcpExt: ListenOverflows ListenDrops\nTcpExt: 1\n"];
        for bad in without {
            assert_eq!(ListenDrops::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn this_machine_reports_listen_drops() {
        assert!(ListenDrops::read(&ProcRoot::machine()).is_some());
    }
}
