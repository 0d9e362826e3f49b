//! The witness of a kill test: what outgoing calls returned, kept where it outlives the process.
//!
//! Promises: with the feature `crash` and after `open`, each stream socket has an entry of its own in a
//! shared file mapping, never used again; before each outgoing call it says how many bytes may be gone by the
//! call's end, right after it how many are. Pages of a shared mapping belong to the kernel, so SIGKILL takes
//! nothing of them. Without the feature an [`Entry`] has no size and does nothing. Leaves to others: what the
//! bytes are billed as (that is what the witness is to be compared with).
//!
//! ```text
//!   line 0       magic | entries made | entries that fit | -
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
pub use enabled::{Role, Seen, open, read};

#[cfg(not(feature = "crash"))]
mod disabled {
    use std::io;
    use std::net::SocketAddr;
    use std::os::fd::AsFd;

    /// Nothing: what is sent is counted by the ledger alone.
    #[derive(Debug)]
    pub(crate) struct Entry;

    const _: () = assert!(size_of::<Entry>() == 0, "a product's socket is a descriptor and nothing else");

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
    /// Sockets of one process: 64 MiB of a file that is sparse.
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

    /// How a socket came to be.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub enum Role {
        /// By accept: the peer is a client.
        Accepted = 1,
        /// By connect: the peer is a destination.
        Connected = 2,
    }

    /// An entry as a reader finds it.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub struct Seen {
        /// How the socket came to be.
        pub role: Role,
        /// The other end.
        pub peer: SocketAddr,
        /// This end.
        pub local: SocketAddr,
        /// Bytes that are sent if the call that was under way took all: sent <= attempted.
        pub attempted: u64,
        /// Bytes that calls returned.
        pub sent: u64,
    }

    /// A socket's place in the file: the number of its line; 0 where nobody looks.
    #[derive(Debug)]
    pub(crate) struct Entry(u32);

    /// Begins to keep what this process sends in the file at `path`, which is made anew. Once per process,
    /// before its first socket.
    ///
    /// # Errors
    /// The file's, and `AlreadyExists` at the second call.
    pub fn open(path: &Path) -> io::Result<()> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        file.set_len(FILE_BYTES as u64)?;
        let lines = map(&file)?;
        lines[0][CAPACITY].store(ENTRIES_MAX as u64, Ordering::Relaxed);
        lines[0][ROLE_AND_PORTS].store(MAGIC, Ordering::Release);
        LINES.set(lines).map_err(|_| io::ErrorKind::AlreadyExists.into())
    }

    /// The entries in the file at `path`, in the order of their making.
    ///
    /// # Errors
    /// The file's, and `InvalidData` where it is no witness, or one that had not room for all.
    pub fn read(path: &Path) -> io::Result<Vec<Seen>> {
        let file = File::options().read(true).write(true).open(path)?;
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text.to_owned());
        if file.metadata()?.len() != FILE_BYTES as u64 {
            return Err(invalid("not the size of a witness"));
        }
        let lines = map(&file)?;
        // Nobody writes any more: the process is dead.
        let word = |line: &Line, at: usize| line[at].load(Ordering::Acquire);
        if word(&lines[0], ROLE_AND_PORTS) != MAGIC {
            return Err(invalid("not a witness"));
        }
        let count = usize::try_from(word(&lines[0], ENTRY_COUNT)).unwrap_or(usize::MAX);
        if count > ENTRIES_MAX {
            return Err(invalid("more sockets than the witness has room for"));
        }
        let seen = lines[1..=count].iter().filter_map(Seen::parse).collect();
        // SAFETY: `lines` is the mapping of that many bytes that `map` made here; the result borrows nothing.
        unsafe { libc::munmap(lines.as_ptr().cast_mut().cast(), FILE_BYTES) };
        Ok(seen)
    }

    /// Maps the file, which has `FILE_BYTES`, until somebody unmaps it.
    fn map(file: &File) -> io::Result<&'static [Line]> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, placed by the kernel, overlaps nothing of ours.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), FILE_BYTES, access, kind, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping is that long, aligned to a page, readable and writable, and any bits are valid
        // atomics. Only `read` unmaps, the mapping that it made. The file is not made shorter by anybody.
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
            // One who finds no room has no entry; the count tells the reader.
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

        /// Makes an outgoing `call` of `length` bytes, which returns how many were taken, and keeps that.
        pub(crate) fn record_send(
            &self,
            bytes_max: usize,
            call: impl FnOnce() -> io::Result<usize>,
        ) -> io::Result<usize> {
            let line = LINES.get().filter(|_| self.0 != 0).map(|lines| &lines[self.0 as usize]);
            // Release keeps the stores in their order; a kill is seen by who reads the file, after it.
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

    impl Seen {
        /// What a line says, if its maker came to its end.
        fn parse(line: &Line) -> Option<Seen> {
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
            Some(Seen {
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

    const _: () = assert!(LINE_BYTES == 64, "one line of the cache for each socket");
}
