//! Migrations that are killed at random moments, several times each, and completed by the start after that.
//!
//! A child, which is this test's program again, starts on a copy of a ledger of an earlier version until it
//! is killed. Whatever the moments are, each byte is billed once then.
//!
//! `TOLLGATE_MIGRATION_KILLS=10000` asks for more kills than the few of each run, `TOLLGATE_SEED` for other
//! ones. The seed decides on moments, and not on what a process has done by then.
//!
//! A program of its own: a child has the locks of its parent until it begins. Tests in one process with this
//! one would meet them.

#![forbid(unsafe_code)]

#[path = "../ledger/earlier.rs"]
mod earlier;
#[path = "../ledger/fixture.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod fixture;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use ledger::Ledger;
use ledger::SqliteUsage;
use ledger::query::{Filter, GroupBy, Usage};
use sys::clock;

use earlier::{expected, unpacked, usage};
use fixture::{Fixture, close_ledger, copy_files, settings};

const NAMES: [&str; 2] = ["version-1-stopped", "version-1-killed"];
const KILLS: u64 = 20;
/// Kills of one migration at most.
const KILLS_MAX: u64 = 6;
/// The variable with the directory of a child.
const CHILD: &str = "TOLLGATE_MIGRATION_CHILD";

#[test]
fn killed_migration_bills_each_byte_once() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let (kills, mut random) = (number("TOLLGATE_MIGRATION_KILLS").unwrap_or(KILLS), Random(0));
    random.0 = number("TOLLGATE_SEED").unwrap_or(1);
    let ledgers = NAMES.map(unpacked);
    let spans = [0, 1].map(|index| span(&ledgers[index]));
    let (mut killed, mut migrations, mut ended) = (0, 0, 0);
    while killed < kills {
        let index = usize::from(random.below(2) == 1);
        let fixture = copied(&ledgers[index]);
        for _ in 0..=random.below(KILLS_MAX) {
            let moment = Duration::from_nanos(random.below(spans[index]));
            if !run_child(&fixture, Some(moment)) {
                ended += 1;
                break;
            }
            killed += 1;
        }
        fixture.restart();
        check(&fixture, NAMES[index]);
        migrations += 1;
    }
    println!("{migrations} migrations: {killed} starts were killed, and {ended} ended before that");
}

/// What the earlier version had billed, by user, hour, day and month.
fn check(fixture: &Fixture, name: &str) {
    let before = expected(name);
    assert_eq!(usage(fixture), before);
    let reader = SqliteUsage::open(&fixture.directory()).unwrap();
    type Key = fn(&str, &str) -> String;
    let groups: [(GroupBy, Key); 4] = [
        (GroupBy::User, |_, user| user.to_owned()),
        (GroupBy::Hour, |hour, _| hour.to_owned()),
        (GroupBy::Day, |hour, _| hour[..10].to_owned()),
        (GroupBy::Month, |hour, _| hour[..7].to_owned()),
    ];
    for (group, key) in groups {
        let mut sums: BTreeMap<String, [u64; 5]> = BTreeMap::new();
        for line in before.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let sum = sums.entry(key(fields[0], fields[1])).or_default();
            sum.iter_mut().zip(&fields[3..]).for_each(|(sum, more)| *sum += more.parse::<u64>().unwrap());
        }
        let rows = reader.rows(&Filter::default(), &[group]).unwrap().rows;
        let found = rows.iter().map(|row| {
            (row.keys[0].clone(), [row.flows, row.up, row.down, row.uncertain_up, row.uncertain_down])
        });
        assert_eq!(found.collect::<BTreeMap<_, _>>(), sums, "{group:?}");
    }
}

/// Nanoseconds that a child takes for a whole migration, and somewhat more.
fn span(ledger: &Fixture) -> u64 {
    let fixture = copied(ledger);
    let began = clock::monotonic();
    assert!(!run_child(&fixture, None));
    let took = u64::try_from(clock::monotonic().since(began).as_nanos()).unwrap();
    took + took / 8
}

fn copied(ledger: &Fixture) -> Fixture {
    let fixture = Fixture::new();
    copy_files(&ledger.directory(), &fixture.directory());
    copy_files(&ledger.tables(), &fixture.tables());
    fixture
}

/// Starts on the files of `fixture` in a process of its own, which is killed after a time; whether it was
/// before it ended.
fn run_child(fixture: &Fixture, killed_after: Option<Duration>) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(CHILD, fixture.0.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    if let Some(after) = killed_after {
        // Any moment will do: none is waited for.
        std::thread::sleep(after);
        let _ = child.kill();
    }
    let output = child.wait_with_output().unwrap();
    let is_killed = output.status.signal() == Some(9);
    assert!(is_killed || output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    is_killed
}

#[test]
#[ignore = "the process that another test starts and kills"]
fn child() {
    let Some(root) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let (ledger, writers) = Ledger::open(&settings(&root, 1, 64)).unwrap();
    close_ledger(ledger, writers);
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}
