//! TCP ports of this machine: those for outgoing connections, and why a bind to one fails.
//!
//! An outgoing connection takes its local port from `net.ipv4.ip_local_port_range`, and keeps it for a minute
//! after its end if it closed first (TIME_WAIT). Until then no listener can bind that port, not even with
//! `SO_REUSEADDR`: the other socket would need that option, too. The kernel never assigns the ports in
//! `ip_local_reserved_ports` (Linux, `Documentation/networking/ip-sysctl.rst`).

use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;

use super::root::{ProcRoot, malformed};

const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// The state of a listening socket in `/proc/net/tcp` (Linux' `net/tcp_states.h`).
const LISTEN: &str = "0A";

/// The local ports that the kernel assigns to outgoing connections.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalPorts {
    range: RangeInclusive<u16>,
    /// In the kernel's form: sorted, and without overlaps.
    reserved: Vec<RangeInclusive<u16>>,
}

impl LocalPorts {
    /// Reads the ports of the machine at `root`.
    ///
    /// # Errors
    /// The range cannot be read, or is malformed.
    pub fn read(root: &ProcRoot) -> io::Result<LocalPorts> {
        let range = root.read_numbers(RANGE, 2)?;
        let port = |number: u64| u16::try_from(number).ok();
        let (Some(first), Some(last)) = (port(range[0]), port(range[1])) else {
            return Err(malformed(RANGE.as_ref(), &format!("{} {}", range[0], range[1])));
        };
        if first > last {
            return Err(malformed(RANGE.as_ref(), &format!("{first} {last}")));
        }
        // `8080,9000-9100`; the file is empty where no port is reserved.
        let reserved = root.read_text(RESERVED).unwrap_or_default();
        let spans = reserved.trim().split(',').filter_map(|span| {
            let (low, high) = span.split_once('-').unwrap_or((span, span));
            Some(low.parse().ok()?..=high.parse().ok()?)
        });
        Ok(LocalPorts { range: first..=last, reserved: spans.collect() })
    }

    /// The number of these ports.
    pub fn count(&self) -> u64 {
        let (first, last) = (*self.range.start(), *self.range.end());
        let within = |span: &RangeInclusive<u16>| (*span.start()).max(first)..=(*span.end()).min(last);
        let reserved: usize = self.reserved.iter().map(|span| within(span).count()).sum();
        (self.range.clone().count() as u64).saturating_sub(reserved as u64)
    }

    /// The range as text: `32768-60999`.
    pub fn range(&self) -> String {
        format!("{}-{}", self.range.start(), self.range.end())
    }

    /// Whether the kernel may assign `port` to an outgoing connection.
    pub fn contains(&self, port: u16) -> bool {
        self.range.contains(&port) && !self.reserved.iter().any(|span| span.contains(&port))
    }

    /// The command that reserves `ports`, besides the ports that are reserved already.
    pub fn reservation(&self, ports: &[u16]) -> String {
        let written = |span: &RangeInclusive<u16>| match (span.start(), span.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        };
        let spans: Vec<String> =
            self.reserved.iter().map(written).chain(ports.iter().map(u16::to_string)).collect();
        format!("sysctl -w net.ipv4.ip_local_reserved_ports={}", spans.join(","))
    }
}

/// The `error` of a bind to `address`; for `EADDRINUSE` with the cause that `/proc` shows.
pub fn explain_bind_error(address: SocketAddr, error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::AddrInUse {
        return error;
    }
    let root = ProcRoot::machine();
    match is_listened_on(&root, address.port()) {
        Ok(is_listened_on) => {
            let cause = bind_error_cause(&root, address.port(), is_listened_on);
            io::Error::new(error.kind(), format!("{error}: {cause}"))
        }
        Err(_) => error,
    }
}

fn bind_error_cause(root: &ProcRoot, port: u16, is_listened_on: bool) -> String {
    if is_listened_on {
        return format!(
            "a process listens on this port: stop it, or choose another port; \
             `ss -ltnp 'sport = :{port}'` names it"
        );
    }
    let time_wait = "no process listens on this port: a connection that left from it holds it, for a minute \
                     after its end (TIME_WAIT)";
    match LocalPorts::read(root) {
        Ok(ports) if ports.contains(port) => format!(
            "{time_wait}. It lies in net.ipv4.ip_local_port_range ({}); to keep it for listeners: {}",
            ports.range(),
            ports.reservation(&[port])
        ),
        _ => time_wait.to_owned(),
    }
}

/// Whether a socket listens on `port`, on any address.
fn is_listened_on(root: &ProcRoot, port: u16) -> io::Result<bool> {
    // Fields: number, local address, remote address, state, and more. The machine may lack IPv6.
    let table = root.read_text("/proc/net/tcp")? + &root.read_text("/proc/net/tcp6").unwrap_or_default();
    let suffix = format!(":{port:04X}");
    Ok(table.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&suffix)) && fields.nth(1) == Some(LISTEN)
    }))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::fixture::Machine;
    use super::*;

    const HEADER: &str = "  sl  local_address rem_address   st tx_queue rx_queue\n";

    #[test]
    fn reserved_ports_are_not_local_ports() {
        let files = [(&RANGE[1..], "1024\t65535\n"), (&RESERVED[1..], "80,8080,9000-9100\n")];
        let ports = LocalPorts::read(&Machine::new(&files).root()).unwrap();
        assert_eq!(ports.count(), 65_535 - 1024 + 1 - 1 - 101);
        assert!(ports.contains(3128) && ports.contains(9101));
        assert!(
            !ports.contains(80) && !ports.contains(8080) && !ports.contains(9000) && !ports.contains(9100)
        );
        let command = "sysctl -w net.ipv4.ip_local_reserved_ports=80,8080,9000-9100,3128,9128";
        assert_eq!(ports.reservation(&[3128, 9128]), command);
        let ports = LocalPorts::read(&Machine::new(&files[..1]).root()).unwrap();
        assert_eq!(ports.reservation(&[3128]), "sysctl -w net.ipv4.ip_local_reserved_ports=3128");
    }

    #[test]
    fn bind_error_tells_listener_from_time_wait() {
        let listens = "   0: 0100007F:0C38 00000000:0000 0A 00000000:00000000\n";
        let waits = "   1: 0100007F:0C39 0100007F:9C40 06 00000000:00000000\n";
        let machine = Machine::new(&[
            ("proc/net/tcp", &format!("{HEADER}{listens}{waits}")),
            (&RANGE[1..], "1024 65535"),
        ]);
        let cause =
            |port| bind_error_cause(&machine.root(), port, is_listened_on(&machine.root(), port).unwrap());
        assert_eq!(
            cause(3128),
            "a process listens on this port: stop it, or choose another port; \
             `ss -ltnp 'sport = :3128'` names it"
        );
        let text = cause(3129);
        assert!(
            text.starts_with("no process listens on this port: a connection that left from it"),
            "{text}"
        );
        assert!(text.ends_with("net.ipv4.ip_local_reserved_ports=3129"), "{text}");
        assert!(text.contains("ip_local_port_range (1024-65535)"), "{text}");
        machine.write(&RANGE[1..], "32768 60999");
        assert!(
            cause(3129).ends_with("(TIME_WAIT)"),
            "a reservation is proposed only for a port of the range"
        );
    }
}
