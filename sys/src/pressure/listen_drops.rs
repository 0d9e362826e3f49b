//! Connections that found no room to wait at a listening socket.
//!
//! Promises: two numbers of `/proc/net/netstat`. Leaves to others: whose socket it was, which the kernel does
//! not tell here.

use crate::limits::ProcRoot;

/// Connections lost at listening sockets since the network namespace began, of all its programs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ListenDrops {
    /// The queue of connections that wait to be accepted was full: the client's first packet, or the last one
    /// of its handshake, was dropped, and it tries again after a second (`ListenOverflows`).
    pub overflows: u64,
    /// These, and those dropped for another reason, such as no memory (`ListenDrops`).
    pub drops: u64,
}

impl ListenDrops {
    /// The drops of the network namespace of the machine at `root` that this process is in.
    pub fn read(root: &ProcRoot) -> Option<ListenDrops> {
        ListenDrops::parse(&root.text(ListenDrops::PATH).ok()?)
    }

    pub(super) const PATH: &str = "/proc/net/netstat";

    /// Two lines that begin with `TcpExt:` (proc_net(5)): names, and the numbers under them.
    pub(super) fn parse(text: &str) -> Option<ListenDrops> {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
        let (names, numbers) = (lines.next()?, lines.next()?);
        let column = |column_name: &str| {
            let index = names.split(' ').position(|name| name == column_name)?;
            numbers.split(' ').nth(index)?.parse().ok()
        };
        Some(ListenDrops { overflows: column("ListenOverflows")?, drops: column("ListenDrops")? })
    }

    /// What was added since `earlier`.
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
