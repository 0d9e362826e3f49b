//! Reloading: replacing the running configuration.
//!
//! Guarantees: a reload takes effect whole or not at all: a listener that cannot be opened leaves everything
//! as it was. No connection is lost, pending ones included, except those of removed users.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use sys::clock;

use super::{BoundListener, Gateway, StartError, listen, numbering};
use crate::config::settings::{Accept, Admin, Dns, Ledger, LogTarget, Threads};
use crate::config::{Config, Listener, User};
use crate::users::UserName;
use crate::worker::command::Command;

/// How long a reload waits for an address in use: a removed listener stays open for a moment, for handshakes
/// in its queue.
const ADDRESS_WAIT_MAX: Duration = Duration::from_secs(1);

/// How long a reload that adds quotas waits for the threads to draw on them, which takes milliseconds.
const ADOPTION_WAIT_MAX: Duration = Duration::from_secs(1);

/// How often it retries meanwhile.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Listener ids wrap here; by then the first ones have been removed.
const LISTENER_IDS_MAX: u32 = 1 << 28;

const _: () = assert!((LISTENER_IDS_MAX as usize) <= crate::token::INDEX_COUNT);

/// What a reload changed.
#[derive(Debug, Default)]
pub struct Changes {
    /// Added users, in the order of the configuration.
    pub users_added: Vec<UserName>,
    /// Removed users.
    pub users_removed: Vec<UserName>,
    /// Users with changed settings; changes of destination sets do not count.
    pub users_changed: Vec<UserName>,
    /// Added listeners, as configured.
    pub added: Vec<SocketAddr>,
    /// Retired listeners.
    pub removed: Vec<SocketAddr>,
    /// Tables and settings that differ from those of the start, and take effect with a start only.
    pub needs_restart: Vec<&'static str>,
}

impl Gateway {
    /// Replaces the running configuration by `config`.
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
        let (before, after) = (&self.snapshot.config.users, &config.users);
        let (users_added, users_changed) = new_and_changed(before, after);
        let changes = Changes {
            users_added,
            users_removed: new_and_changed(after, before).0,
            users_changed,
            added: added.iter().map(|listener| listener.configured).collect(),
            removed: removed.clone(),
            needs_restart: self.restart_only.differing(&config),
        };
        let remaining = self.listening.iter().filter(|(configured, _)| !removed.contains(configured));
        let open = remaining.map(|(_, bound)| *bound).chain(added.iter().map(|listener| listener.bound));
        config.add_own_addresses(open.chain([self.admin]));
        self.log.configure(&config.log);
        let next = Arc::new(self.snapshot.next(config));
        numbering::request(&self.ledger, &next, &self.log);
        self.retired.push(std::mem::replace(&mut self.snapshot, next));
        let adopted = self.reconfigure(added, &removed);
        self.settle_quotas(&adopted);
        self.stats.reloads.succeeded(clock::wall());
        Ok(changes)
    }

    fn listen_on_new(&mut self, config: &Config) -> Result<Vec<BoundListener>, StartError> {
        let is_new = |listener: &&Listener| !self.listening.contains_key(&listener.address);
        let new: Vec<_> = config.listeners.iter().filter(is_new).collect();
        new.into_iter().map(|listener| self.listen_with_retry(config, listener)).collect()
    }

    /// Binds an address, which an earlier reload may just have released.
    fn listen_with_retry(
        &mut self,
        config: &Config,
        listener: &Listener,
    ) -> Result<BoundListener, StartError> {
        let deadline = clock::monotonic() + ADDRESS_WAIT_MAX;
        let listener_id = self.next_listener_id;
        self.next_listener_id =
            listener_id.checked_add(1).filter(|next| *next < LISTENER_IDS_MAX).unwrap_or(0);
        loop {
            match listen(config, listener, self.strategy, self.workers.len(), listener_id) {
                Err(StartError::Listen { error, .. })
                    if error.kind() == ErrorKind::AddrInUse && clock::monotonic() < deadline =>
                {
                    thread::sleep(POLL_INTERVAL);
                }
                outcome => return outcome.map_err(StartError::explained),
            }
        }
    }

    /// Sends every thread the current snapshot, with its handle of every new listener.
    /// The returned channel is disconnected once all threads serve by it.
    pub(crate) fn reconfigure(
        &mut self,
        added: Vec<BoundListener>,
        removed: &[SocketAddr],
    ) -> Receiver<Infallible> {
        let mut added_by_thread: Vec<Vec<_>> = self.workers.iter().map(|_| Vec::new()).collect();
        for address in removed {
            self.listening.remove(address);
        }
        for BoundListener { configured, bound, handles } in added {
            self.listening.insert(configured, bound);
            for (added, handle) in added_by_thread.iter_mut().zip(handles) {
                added.push((configured, handle));
            }
        }
        let (sender, receiver) = mpsc::sync_channel(0);
        for (worker, added) in self.workers.iter().zip(added_by_thread) {
            let (snapshot, removed, adopted) = (Arc::clone(&self.snapshot), removed.to_vec(), sender.clone());
            worker.commands.send(Command::Reconfigure { snapshot, added, removed, adopted });
        }
        receiver
    }

    /// Has the quotas hold that this configuration has added: once all threads draw on them, as `adopted`
    /// tells, what was counted before is journaled, and read with what the ledger had.
    fn settle_quotas(&self, adopted: &Receiver<Infallible>) {
        if self.snapshot.credit.unsettled(clock::steady_wall()).next().is_none() {
            return;
        }
        // A thread that is stuck draws on nothing meanwhile.
        let _ = adopted.recv_timeout(ADOPTION_WAIT_MAX);
        self.settle_new();
    }

    /// Frees the snapshots that no thread holds any more.
    fn free_retired(&mut self) {
        self.retired.retain(|snapshot| Arc::strong_count(snapshot) > 1);
    }
}

/// The users of `after` that are not in `before`, and those that are and differ.
fn new_and_changed(before: &[User], after: &[User]) -> (Vec<UserName>, Vec<UserName>) {
    let known: HashMap<&str, &User> = before.iter().map(|user| (&*user.name, user)).collect();
    let (mut new, mut changed) = (Vec::new(), Vec::new());
    for user in after {
        match known.get(&*user.name) {
            None => new.push(user.name.clone()),
            Some(known) if !known.is_written_as(user) => changed.push(user.name.clone()),
            Some(_) => {}
        }
    }
    (new, changed)
}

/// The settings that take effect with a start only.
#[derive(Debug)]
pub(crate) struct RestartOnly {
    admin: Admin,
    accept: Accept,
    threads: Threads,
    dns: Dns,
    ledger: Ledger,
    log: LogTarget,
    hash_queue: u32,
    handshakes: u32,
}

impl RestartOnly {
    /// Those of `config`.
    pub(crate) fn of(config: &Config) -> RestartOnly {
        RestartOnly {
            admin: config.admin.clone(),
            accept: config.accept.clone(),
            threads: config.threads.clone(),
            dns: config.dns.clone(),
            ledger: config.ledger.clone(),
            log: config.log.to.clone(),
            hash_queue: config.auth.hash_queue,
            handshakes: config.limits.handshakes,
        }
    }

    /// The tables and settings in which `config` differs.
    fn differing(&self, config: &Config) -> Vec<&'static str> {
        let changed = [
            ("[admin]", self.admin != config.admin),
            ("[accept]", self.accept != config.accept),
            ("[threads]", self.threads != config.threads),
            ("[dns]", self.dns != config.dns),
            ("[ledger]", self.ledger != config.ledger),
            ("[log] to", self.log != config.log.to),
            ("[auth] hash_queue", self.hash_queue != config.auth.hash_queue),
            ("[limits] handshakes", self.handshakes != config.limits.handshakes),
        ];
        changed.into_iter().filter(|(_, changed)| *changed).map(|(table, _)| table).collect()
    }
}
