//! Numbering: a start and a reload have the ledger number users, sets and policy of their configuration.
//!
//! Guarantees: a ledger whose database fails delays a start or a reload by [`NUMBERS_WAIT_MAX`], and stops
//! none. A record that begins before the numbers come has 0, and the ledger finds the account by the user's
//! name.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use ledger::{Ledger, Names, UserNames};

use crate::config::{Config, User};
use crate::observe::log::{Level, Log};
use crate::snapshot::Snapshot;

/// How long to wait for the numbers, which take milliseconds.
const NUMBERS_WAIT_MAX: Duration = Duration::from_secs(1);

/// Requests the numbers of `snapshot`. What the ledger says of them goes to the log.
pub(crate) fn request(ledger: &Ledger, snapshot: &Arc<Snapshot>, log: &Log) {
    let (sender, receiver) = mpsc::sync_channel(1);
    let numbered = Arc::clone(snapshot);
    ledger.number(names(&snapshot.config), move |numbers| {
        for (account, number) in numbered.accounts().zip(&numbers.accounts) {
            account.set_number(*number);
        }
        numbered.numbers.store(&numbers.sets, numbers.policy);
        let _ = sender.send(numbers.notes);
    });
    let notes: Vec<String> = receiver.recv_timeout(NUMBERS_WAIT_MAX).unwrap_or_default();
    notes.iter().for_each(|note| log.write_message(Level::Warning, note, &[]));
}

fn names(config: &Config) -> Names {
    let user = |user: &User| UserNames {
        name: user.name.to_string(),
        former: user.former_names.iter().map(ToString::to_string).collect(),
        team: user.team_name.as_deref().unwrap_or_default().to_owned(),
    };
    Names {
        users: config.users.iter().map(user).collect(),
        sets: config.policy.sets().to_vec(),
        policy: config.policy.fingerprint(),
    }
}
