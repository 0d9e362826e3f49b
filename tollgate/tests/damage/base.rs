//! A base: a ledger with a history of kills and stops, as its last gateway left it; and its bill.
//!
//! Guarantees: the bill of the undamaged ledger is compared with what the gateways' calls returned, before
//! any case is compared with it. Each copy of an earlier state is of one moment. `damage` damages copies of
//! it.
//!
//! ```text
//!   now/      as the last gateway left it       older/      while that gateway served
//!   earlier/  behind a stop before it           recovered/  now, recovered: where the bill was read
//! ```

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::account::Account;
use crate::bill;
use crate::facts::Sent;
use crate::load::Load;
use crate::messages;
use crate::oracle::{self, Facts, Fate};
use crate::rng::Rng;
use crate::workspace::{REACTORS, RunningGateway, Workspace, copy_tree};

/// Bases differ in the numbers of their flows, so that a row of another base is recognized.
const NUMBERS_OF_A_BASE: u32 = 1_000_000;

/// The life of a base's last gateway.
#[derive(Clone, Copy, Debug)]
struct Plan {
    name: &'static str,
    lifetime: Duration,
    /// Between two passes of the load, so that a long life has not too many flows.
    pace: Duration,
    ending: Ending,
    /// Whether to make it look as if it died while it created a segment.
    leaves_new_segment: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Ending {
    Kill,
    Stop,
    /// A kill, and another one of the gateway that recovers: behind the sync of what it recovered.
    KillInRecovery,
}

const PLANS: [Plan; 4] = [
    // Long enough for the 5 s interim of each open flow.
    Plan::new("long", 6_500, 20, Ending::Kill),
    Plan { leaves_new_segment: true, ..Plan::new("busy", 1_200, 0, Ending::Kill) },
    Plan::new("stopped", 800, 5, Ending::Stop),
    Plan::new("recovering", 800, 5, Ending::KillInRecovery),
];

/// How long the earlier gateways live.
const LIFETIME_MS: std::ops::Range<u64> = 150..300;
/// When a state is copied, in percent of a gateway's life.
const OLDER_PERCENT: u32 = 80;

/// A ledger with its history, and its bill.
pub(crate) struct Base {
    pub(crate) name: &'static str,
    directory: PathBuf,
    /// The first number above those of its flows.
    pub(crate) next_number: u32,
    pub(crate) account: Account,
    /// Output lines of commands on the undamaged ledger.
    pub(crate) usual_lines: BTreeSet<String>,
}

/// Creates a base.
struct BaseBuilder<'m> {
    workspace: Workspace,
    audit_path: PathBuf,
    rng: &'m mut Rng,
    facts: Vec<Facts>,
    generation: usize,
    next_number: u32,
}

impl Plan {
    const fn new(name: &'static str, lifetime_ms: u64, pace_ms: u64, ending: Ending) -> Plan {
        let (lifetime, pace) = (Duration::from_millis(lifetime_ms), Duration::from_millis(pace_ms));
        Plan { name, lifetime, pace, ending, leaves_new_segment: false }
    }
}

impl Base {
    /// The number of bases.
    pub(crate) const COUNT: usize = PLANS.len();

    /// Creates base `number` in `directory`.
    ///
    /// # Errors
    /// The undamaged ledger is wrong already.
    pub(crate) fn make(seed: u64, number: usize, directory: &Path) -> Result<Base, String> {
        let plan = PLANS[number];
        let directory = directory.join(plan.name);
        let mut rng = Rng::new(seed, number as u64 + (1 << 40));
        let first = NUMBERS_OF_A_BASE * u32::try_from(number).unwrap();
        let mut builder = BaseBuilder {
            workspace: Workspace::create(directory.join("making"), None),
            audit_path: directory.join("witness"),
            rng: &mut rng,
            facts: Vec::new(),
            generation: 0,
            next_number: first,
        };
        builder.run_history(plan, &directory)?;
        let (facts, next_number) = (builder.facts, builder.next_number);
        // Under another name than its journal records, so that no copy finds this one's table.
        fs::rename(directory.join("making"), directory.join("now")).unwrap();
        if plan.leaves_new_segment {
            leave_new_segment(&directory.join("now/data/journal/segment-new"));
        }
        let base = Base {
            name: plan.name,
            directory,
            next_number,
            account: Account::default(),
            usual_lines: BTreeSet::new(),
        };
        base.with_judged_bill(&facts).map_err(|wrong| format!("base {}, undamaged: {wrong}", plan.name))
    }

    pub(crate) fn now(&self) -> PathBuf {
        self.directory.join("now")
    }

    pub(crate) fn older(&self) -> PathBuf {
        self.directory.join("older")
    }

    pub(crate) fn earlier(&self) -> PathBuf {
        self.directory.join("earlier")
    }

    /// Recovers the ledger, and judges its bill.
    fn with_judged_bill(mut self, facts: &[Facts]) -> Result<Base, String> {
        let workspace = Workspace::create(self.directory.join("recovered"), Some(&self.now()));
        self.usual_lines.extend(messages::lines(&workspace, &workspace.run(&["ledger", "verify"])));
        for _ in 0..2 {
            let gateway = workspace.serve(&[]).map_err(|output| output.text())?;
            self.usual_lines.extend(messages::lines(&workspace, &workspace.run(&["ledger", "verify"])));
            self.usual_lines.extend(messages::lines(&workspace, &gateway.stop()));
            let verified = workspace.run(&["ledger", "verify"]);
            if !verified.is_success() {
                return Err(verified.text());
            }
            self.usual_lines.extend(messages::lines(&workspace, &verified));
        }
        self.usual_lines
            .extend(workspace.log_warnings().iter().map(|line| messages::normalize(&workspace, line)));
        let rows = bill::read(&workspace.data()).map_err(|error| error.to_string())?;
        if let Some(finding) = oracle::judge(facts, &rows, REACTORS).first() {
            return Err(finding.clone());
        }
        let (account, output) = Account::query(&workspace);
        self.account = account.ok_or_else(|| output.map(|output| output.text()).join("\n"))?;
        let billed = self.account.total;
        let flows =
            (rows.len() as u64, rows.iter().map(|row| row.up).sum(), rows.iter().map(|row| row.down).sum());
        if (billed.flows, billed.up, billed.down) != flows || self.account.hosts.len() != rows.len() {
            return Err(format!("the rows add up to {flows:?}, and usage reports {billed:?}"));
        }
        Ok(self)
    }
}

impl BaseBuilder<'_> {
    fn run_history(&mut self, plan: Plan, directory: &Path) -> Result<(), String> {
        let short = |rng: &mut Rng| Duration::from_millis(rng.random_range(LIFETIME_MS));
        for ending in [Ending::Kill, Ending::Stop] {
            let lifetime = short(self.rng);
            self.generation(Plan { lifetime, ending, pace: Duration::ZERO, ..plan }, None)?;
        }
        keep_copy(&self.workspace, &directory.join("earlier"));
        let lifetime = short(self.rng);
        self.generation(Plan { lifetime, ending: Ending::Kill, pace: Duration::ZERO, ..plan }, None)?;
        self.generation(plan, Some(&directory.join("older")))?;
        if plan.ending == Ending::KillInRecovery {
            let environment = [("TOLLGATE_KILL_AT", "recover.synced:1")];
            return match self.workspace.serve(&environment) {
                Ok(_) => Err("the gateway did not die in its recovery".to_owned()),
                Err(_) => Ok(()),
            };
        }
        Ok(())
    }

    /// Runs one gateway under load, from its start to its end.
    fn generation(&mut self, plan: Plan, older: Option<&Path>) -> Result<(), String> {
        self.generation += 1;
        let workspace = Workspace { directory: self.workspace.directory.clone() };
        let audit_path = self.audit_path.display().to_string();
        let environment = [("TOLLGATE_SEND_AUDIT", audit_path.as_str())];
        let gateway = workspace.serve(&environment).map_err(|output| output.text())?;
        let listener = gateway.listener;
        let mut load = Load::new(self.next_number, self.rng);
        let run = RefCell::new(GatewayRun { gateway, plan, began: Instant::now(), older, has_ended: false });
        let settle_after = (plan.ending == Ending::Stop).then_some(plan.lifetime);
        load.run(
            listener,
            self.rng,
            || run.borrow_mut().is_over(),
            settle_after,
            || run.borrow().gateway.signal(Signal::TERM),
        );
        let stderr = workspace.stderr();
        if stderr.contains("panicked") {
            return Err(stderr);
        }
        self.record_flows(load, plan.ending == Ending::Stop)
    }

    /// Records the facts of a finished load's flows.
    fn record_flows(&mut self, load: Load, in_order: bool) -> Result<(), String> {
        let flows = load.into_flows();
        self.next_number += u32::try_from(flows.len()).unwrap();
        let sent = Sent::read(&self.audit_path)?;
        let fate = if in_order { Fate::Stopped } else { Fate::Killed };
        self.facts.extend(flows.iter().map(|flow| sent.facts(flow, self.generation, fate)));
        Ok(())
    }
}

/// A running gateway and its end.
struct GatewayRun<'c> {
    gateway: RunningGateway<'c>,
    plan: Plan,
    began: Instant,
    /// Where to put a copy when it is time.
    older: Option<&'c Path>,
    has_ended: bool,
}

impl GatewayRun<'_> {
    /// Whether the gateway has ended, by a kill or by the requested stop; called once in each pass of the
    /// load.
    fn is_over(&mut self) -> bool {
        thread::sleep(self.plan.pace);
        let elapsed = self.began.elapsed();
        if elapsed > self.plan.lifetime * OLDER_PERCENT / 100
            && let Some(older) = self.older.take()
        {
            self.gateway.signal(Signal::STOP);
            keep_copy(self.gateway.workspace(), older);
            self.gateway.signal(Signal::CONT);
        }
        if elapsed > self.plan.lifetime && self.plan.ending != Ending::Stop && !self.has_ended {
            self.gateway.signal(Signal::KILL);
            self.has_ended = true;
            let _ = self.gateway.child.wait();
        }
        self.has_ended || self.gateway.child.try_wait().unwrap().is_some()
    }
}

/// Writes half a segment of zeros to `path`, unless a gateway that died has left a file there: zeros are
/// written within a moment, which few kills hit.
fn leave_new_segment(path: &Path) {
    const WRITTEN_BYTES: usize = 128 * 1024;
    if !path.exists() {
        fs::write(path, vec![0; WRITTEN_BYTES]).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }
}

fn keep_copy(workspace: &Workspace, to: &Path) {
    for name in ["data", "table"] {
        fs::create_dir_all(to.join(name)).unwrap();
        copy_tree(&workspace.directory.join(name), &to.join(name)).unwrap();
    }
}
