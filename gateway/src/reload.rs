//! Reloading: a new configuration put in the place of the one that runs.
//!
//! Promises: all or nothing: a listener that cannot be opened leaves everything as it was; connections,
//! queued ones too, are never lost to a reload, except those of users who are gone. Leaves to others: reading
//! and checking the new configuration (`config`).

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sys::clock;

use crate::config::Config;
use crate::server::{Gateway, Listening, StartError, listen};
use crate::worker::Order;

/// How long a reload waits for an address in use: a listener that was removed stays for a moment, for
/// handshakes that are under way.
const ADDRESS_PATIENCE: Duration = Duration::from_secs(1);

/// How often it looks meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// What a reload changed.
#[derive(Debug, Default)]
pub struct Changes {
    /// Listeners that were added, as configured.
    pub added: Vec<SocketAddr>,
    /// Listeners that were retired.
    pub removed: Vec<SocketAddr>,
    /// Tables whose changes take effect with the next start only.
    pub needs_restart: Vec<&'static str>,
}

impl Gateway {
    /// Puts `config` in place of the configuration that runs.
    ///
    /// # Errors
    /// A new listener cannot be opened; the old configuration stays in every respect.
    pub fn reload(&mut self, mut config: Config) -> Result<Changes, StartError> {
        self.free_retired();
        let added = self.listen_on_new(&config)?;
        let removed: Vec<SocketAddr> = {
            let stays = |address: &SocketAddr| config.listeners.iter().any(|l| l.address == *address);
            self.listening.keys().copied().filter(|address| !stays(address)).collect()
        };
        let changes = Changes {
            added: added.iter().map(|listening| listening.configured).collect(),
            removed: removed.clone(),
            needs_restart: needs_restart(self.config(), &config),
        };
        let stay = self.listening.iter().filter(|(configured, _)| !removed.contains(configured));
        let open = stay.map(|(_, bound)| *bound).chain(added.iter().map(|listening| listening.bound));
        config.own_also(open.chain([self.admin]));
        let next = Arc::new(self.snapshot.next(config));
        self.retired.push(std::mem::replace(&mut self.snapshot, next));
        self.reconfigure(added, &removed);
        self.stats.reloads.succeeded(clock::wall());
        Ok(changes)
    }

    fn listen_on_new(&self, config: &Config) -> Result<Vec<Listening>, StartError> {
        let listeners = config.listeners.iter().map(|listener| listener.address);
        let new = listeners.filter(|address| !self.listening.contains_key(address));
        new.map(|address| self.listen_patiently(config, address)).collect()
    }

    /// Listens on an address, which an earlier reload may just have removed.
    fn listen_patiently(&self, config: &Config, address: SocketAddr) -> Result<Listening, StartError> {
        let deadline = clock::monotonic() + ADDRESS_PATIENCE;
        loop {
            match listen(config, address, self.strategy, self.workers.len()) {
                Err(StartError::Listen { error, .. })
                    if error.kind() == ErrorKind::AddrInUse && clock::monotonic() < deadline =>
                {
                    thread::sleep(LOOK);
                }
                outcome => return outcome,
            }
        }
    }

    /// Orders every thread to run by the current snapshot, each with its own socket of every new listener.
    pub(crate) fn reconfigure(&mut self, added: Vec<Listening>, removed: &[SocketAddr]) {
        let mut added_by_thread: Vec<Vec<_>> = self.workers.iter().map(|_| Vec::new()).collect();
        for address in removed {
            self.listening.remove(address);
        }
        for Listening { configured, bound, sockets } in added {
            self.listening.insert(configured, bound);
            for (added, socket) in added_by_thread.iter_mut().zip(sockets) {
                added.push((configured, socket));
            }
        }
        for (worker, added) in self.workers.iter().zip(added_by_thread) {
            let snapshot = Arc::clone(&self.snapshot);
            worker.orders.send(Order::Reconfigure { snapshot, added, removed: removed.to_vec() });
        }
    }

    /// Frees the snapshots that no thread holds any more.
    fn free_retired(&mut self) {
        self.retired.retain(|snapshot| Arc::strong_count(snapshot) > 1);
    }
}

fn needs_restart(old: &Config, new: &Config) -> Vec<&'static str> {
    let changed = [
        ("[admin]", old.admin != new.admin),
        ("[accept]", old.accept != new.accept),
        ("[threads]", old.threads != new.threads),
        ("[dns]", old.dns != new.dns),
        ("[ledger]", old.ledger != new.ledger),
        ("[log]", old.log != new.log),
        ("[auth] hash_queue", old.auth.hash_queue != new.auth.hash_queue),
        ("[limits] handshakes", old.limits.handshakes != new.limits.handshakes),
    ];
    changed.into_iter().filter(|(_, changed)| *changed).map(|(table, _)| table).collect()
}
