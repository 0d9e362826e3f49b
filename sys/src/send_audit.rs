//! The send audit of kill tests: the bytes that send calls took, in memory that outlives the process.
//!
//! Guarantees: with the feature `crash` and after `open`, each stream socket has an entry of its own in a
//! shared file mapping, never reused. The entry states before each send call how many bytes may be sent by
//! its end, and right after it how many are. Pages of a shared mapping belong to the kernel, so SIGKILL
//! loses none of them. Without the feature an `Entry` has no size and does nothing.
//!
//! Not handled here: the bill of these bytes; the kill test compares it with the audit.
//!
//! ```text
//!   line 0       magic | entries made | capacity | -
//!   line n       role and ports | peer's address (2) | own address (2) | attempted | sent | -
//! ```
//!
//! A line is eight words of 64 bits, in the machine's order. Stores around a call, by the one thread that
//! owns the socket: `attempted = sent + length`, call, `sent += returned`, `attempted = sent`.

#[cfg(not(feature = "crash"))]
pub(crate) use disabled::Entry;
#[cfg(feature = "crash")]
pub(crate) use enabled::Entry;
#[cfg(feature = "crash")]
pub use enabled::{AuditEntry, Role, open, read};

#[cfg(not(feature = "crash"))]
mod disabled {
    use std::io;
    use std::net::SocketAddr;
    use std::os::fd::AsFd;

    /// An entry of no size: only the ledger counts sent bytes.
    #[derive(Debug)]
    pub(crate) struct Entry;

    const _: () = assert!(size_of::<Entry>() == 0, "a socket of the product is only a descriptor");

    impl Entry {
        #[inline(always)]
        pub(crate) fn accepted(_socket: impl AsFd, _peer: SocketAddr) -> Entry {
            Entry
        }

        #[inline(always)]
        pub(crate) fn connected(_socket: impl AsFd, _peer: SocketAddr) -> Entry {
            Entry
        }

        #[inline(always)]
        pub(crate) fn record_send(
            &self,
            _length: usize,
            call: impl FnOnce() -> io::Result<usize>,
        ) -> io::Result<usize> {
            call()
        }
    }
}

#[cfg(feature = "crash")]
mod enabled {
    use std::fs::File;
    use std::io;
    use std::net::{IpAddr, Ipv6Addr, SocketAddr};
    use std::os::fd::{AsFd, AsRawFd};
    use std::path::Path;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use crate::crash;

    /// "TOLLWIT1".
    const MAGIC: u64 = 0x3154_4957_4c4c_4f54;
    /// The most sockets of one process: 64 MiB of a sparse file.
    const ENTRIES_MAX: usize = 1 << 20;
    const LINE_BYTES: usize = size_of::<Line>();
    const FILE_BYTES: usize = (ENTRIES_MAX + 1) * LINE_BYTES;

    type Line = [AtomicU64; 8];

    const ENTRY_COUNT: usize = 1;
    const CAPACITY: usize = 2;
    const ROLE_AND_PORTS: usize = 0;
    const PEER: usize = 1;
    const LOCAL: usize = 3;
    const ATTEMPTED: usize = 5;
    const SENT: usize = 6;

    static LINES: OnceLock<&'static [Line]> = OnceLock::new();

    /// The origin of a socket.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub enum Role {
        /// From accept: the peer is a client.
        Accepted = 1,
        /// From connect: the peer is a destination.
        Connected = 2,
    }

    /// An entry, as read from the file.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub struct AuditEntry {
        /// The origin of the socket.
        pub role: Role,
        /// The peer's address.
        pub peer: SocketAddr,
        /// This end's address.
        pub local: SocketAddr,
        /// Bytes sent if the interrupted call took all of its bytes: sent <= attempted.
        pub attempted: u64,
        /// Bytes that send calls returned.
        pub sent: u64,
    }

    /// A socket's line number in the file; 0 without an audit.
    #[derive(Debug)]
    pub(crate) struct Entry(u32);

    /// Starts the audit of this process in the file at `path`, which is truncated. Once per process, before
    /// its first socket.
    ///
    /// # Errors
    /// Those of the file, and `AlreadyExists` at the second call.
    pub fn open(path: &Path) -> io::Result<()> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        file.set_len(FILE_BYTES as u64)?;
        let lines = map(&file)?;
        lines[0][CAPACITY].store(ENTRIES_MAX as u64, Ordering::Relaxed);
        lines[0][ROLE_AND_PORTS].store(MAGIC, Ordering::Release);
        LINES.set(lines).map_err(|_| io::ErrorKind::AlreadyExists.into())
    }

    /// The entries in the file at `path`, in the order of their creation.
    ///
    /// # Errors
    /// Those of the file, and `InvalidData` for a file of another kind, or one whose capacity was exceeded.
    pub fn read(path: &Path) -> io::Result<Vec<AuditEntry>> {
        let file = File::options().read(true).write(true).open(path)?;
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
        if file.metadata()?.len() != FILE_BYTES as u64 {
            return Err(invalid("the file does not have the size of a send audit"));
        }
        let lines = map(&file)?;
        // The audited process is dead and writes no more.
        let word = |line: &Line, at: usize| line[at].load(Ordering::Acquire);
        if word(&lines[0], ROLE_AND_PORTS) != MAGIC {
            return Err(invalid("the file is not a send audit"));
        }
        let count = usize::try_from(word(&lines[0], ENTRY_COUNT)).unwrap_or(usize::MAX);
        if count > ENTRIES_MAX {
            return Err(invalid("the process had more sockets than the send audit has lines"));
        }
        let seen = lines[1..=count].iter().filter_map(AuditEntry::parse).collect();
        // SAFETY: `lines` is the mapping of `FILE_BYTES` that `map` made here; the result borrows none of it.
        unsafe { libc::munmap(lines.as_ptr().cast_mut().cast(), FILE_BYTES) };
        Ok(seen)
    }

    /// Maps the file, which has `FILE_BYTES`. The caller unmaps it, or the mapping lasts for the process.
    fn map(file: &File) -> io::Result<&'static [Line]> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, placed by the kernel, overlaps no other mapping.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), FILE_BYTES, access, kind, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping is that long, aligned to a page, readable and writable, and any bits are valid
        // atomics. Only `read` unmaps, and only its own mapping. No process shortens the file.
        Ok(unsafe { std::slice::from_raw_parts(start.cast::<Line>(), ENTRIES_MAX + 1) })
    }

    impl Entry {
        pub(crate) fn accepted(socket: impl AsFd, peer: SocketAddr) -> Entry {
            Entry::new(socket, peer, Role::Accepted)
        }

        pub(crate) fn connected(socket: impl AsFd, peer: SocketAddr) -> Entry {
            Entry::new(socket, peer, Role::Connected)
        }

        fn new(socket: impl AsFd, peer: SocketAddr, role: Role) -> Entry {
            let Some(lines) = LINES.get() else { return Entry(0) };
            let local = rustix::net::getsockname(socket).ok().and_then(|local| local.try_into().ok());
            let number = lines[0][ENTRY_COUNT].fetch_add(1, Ordering::Relaxed) + 1;
            // Beyond the capacity a socket has no entry; the reader sees it by the count.
            let Some(line) = usize::try_from(number).ok().and_then(|number| lines.get(number)) else {
                return Entry(0);
            };
            let local: SocketAddr = local.unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)));
            store_ip(line, PEER, peer.ip());
            store_ip(line, LOCAL, local.ip());
            let role_and_ports = role as u64 | u64::from(peer.port()) << 16 | u64::from(local.port()) << 32;
            line[ROLE_AND_PORTS].store(role_and_ports, Ordering::Release);
            Entry(u32::try_from(number).unwrap_or(0))
        }

        /// Executes a send `call` of at most `bytes_max` bytes, and records how many it returns.
        pub(crate) fn record_send(
            &self,
            bytes_max: usize,
            call: impl FnOnce() -> io::Result<usize>,
        ) -> io::Result<usize> {
            let line = LINES.get().filter(|_| self.0 != 0).map(|lines| &lines[self.0 as usize]);
            // Release keeps the stores in order. The reader opens the file after the process is dead.
            let store = |at: usize, bytes: u64| {
                if let Some(line) = line {
                    line[at].store(bytes, Ordering::Release);
                }
            };
            let before = line.map_or(0, |line| line[SENT].load(Ordering::Relaxed));
            store(ATTEMPTED, before + bytes_max as u64);
            crash::point("send.before");
            let returned = call();
            crash::point("send.returned");
            let after = before + returned.as_ref().map_or(0, |&bytes_sent| bytes_sent as u64);
            store(SENT, after);
            store(ATTEMPTED, after);
            crash::point("send.counted");
            returned
        }
    }

    impl AuditEntry {
        /// Parses a line; `None` for one that was not written completely.
        fn parse(line: &Line) -> Option<AuditEntry> {
            let word = |at: usize| line[at].load(Ordering::Acquire);
            let role_and_ports = word(ROLE_AND_PORTS);
            let role = match role_and_ports & 0xffff {
                1 => Role::Accepted,
                2 => Role::Connected,
                _ => return None,
            };
            let ip = |at: usize| {
                let bits = u128::from(word(at)) << 64 | u128::from(word(at + 1));
                Ipv6Addr::from(bits).to_canonical()
            };
            let (peer_port, local_port) = ((role_and_ports >> 16) as u16, (role_and_ports >> 32) as u16);
            Some(AuditEntry {
                role,
                peer: SocketAddr::new(ip(PEER), peer_port),
                local: SocketAddr::new(ip(LOCAL), local_port),
                attempted: word(ATTEMPTED),
                sent: word(SENT),
            })
        }
    }

    fn store_ip(line: &Line, at: usize, ip: IpAddr) {
        let bits = match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
            IpAddr::V6(ip) => ip.to_bits(),
        };
        line[at].store((bits >> 64) as u64, Ordering::Relaxed);
        line[at + 1].store(bits as u64, Ordering::Relaxed);
    }

    const _: () = assert!(LINE_BYTES == 64, "one cache line for each socket");
}
