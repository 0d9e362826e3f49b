//! A case: a copy of a base that is damaged, started, used, stopped, started again, and accounted for.
//!
//! Guarantees: every command has the same time limit, and a crash of any is a fault. After a refusal the
//! files are compared byte by byte. `verdict` judges the evidence.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::account::{Account, Line};
use crate::base::Base;
use crate::damage::{Damage, Kind};
use crate::messages;
use crate::new_flow::new_flow;
use crate::part::{Part, all_files};
use crate::rng::Rng;
use crate::verdict::{Evidence, Outcome};
use crate::workspace::{CommandOutput, RunningGateway, Workspace};

/// What a case does.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) number: usize,
    pub(crate) base: usize,
    /// Applied in this order, but seals last; empty for a copy that must be equal to its base.
    pub(crate) damages: Vec<(Kind, Part)>,
}

/// The result of a case.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) outcome: Outcome,
    /// The reason for the outcome.
    pub(crate) text: String,
    /// The damage that was done.
    pub(crate) damages: String,
    /// Whether `verify` found a problem before the first start.
    pub(crate) was_known: bool,
    /// The output of all commands.
    pub(crate) transcript: String,
}

impl Report {
    /// A case in which the harness itself failed.
    pub(crate) fn broken() -> Report {
        Report {
            outcome: Outcome::Crash,
            text: "the harness panicked".to_owned(),
            damages: String::new(),
            was_known: false,
            transcript: String::new(),
        }
    }
}

/// New flows in a first session, and the most bytes in a direction of one.
const NEW_FLOWS: u32 = 2;
const NEW_FLOW_BYTES_MAX: u64 = 20_000;
/// Refusals that are followed by a repair.
const REPAIRS_MAX: usize = 2;

/// A refusal must contain one of these words: they name a remedy.
const REMEDIES: [&str; 12] = [
    "repair",
    "restore",
    "put ",
    "Put ",
    "remove",
    "Remove",
    "backup",
    "replace",
    "move",
    "permission",
    "chattr",
    "stop ",
];

/// A case in progress.
struct CaseRun<'c> {
    workspace: Workspace,
    base: &'c Base,
    rng: Rng,
    damages: Vec<Damage>,
    evidence: Evidence,
    new_flows: Vec<(String, Line)>,
    was_known: bool,
    transcript: String,
}

impl Case {
    /// Its name in a few words.
    pub(crate) fn name(&self, bases: &[Base]) -> String {
        let damages: Vec<String> =
            self.damages.iter().map(|(kind, part)| format!("{}: {}", part.name(), kind.name())).collect();
        let damages = if damages.is_empty() { "no damage".to_owned() } else { damages.join(", and ") };
        format!("{damages} ({})", bases[self.base].name)
    }

    /// Creates a damaged copy in `directory`; `None` if the damage is not possible.
    pub(crate) fn prepare(
        &self,
        seed: u64,
        bases: &[Base],
        directory: PathBuf,
    ) -> Option<(Workspace, Vec<Damage>)> {
        let base = &bases[self.base];
        let other = &bases[(self.base + 1) % bases.len()];
        let mut rng = Rng::new(seed, self.number as u64 + (1 << 48));
        let workspace = Workspace::create(directory, Some(&base.now()));
        let mut damages = Vec::new();
        // Seals come last, so that they do not hinder other damage.
        let mut wanted = self.damages.clone();
        wanted.sort_by_key(|(kind, _)| *kind == Kind::ReadOnly);
        for damage in wanted {
            damages.extend(Damage::inflict(damage, &workspace.directory, (base, other), &mut rng));
        }
        if damages.is_empty() && !self.damages.is_empty() {
            fs::remove_dir_all(&workspace.directory).unwrap();
            return None;
        }
        Some((workspace, damages))
    }

    /// Runs the case in `directory`, which is created and kept.
    pub(crate) fn run(&self, seed: u64, bases: &[Base], directory: PathBuf) -> Option<Report> {
        let (workspace, damages) = self.prepare(seed, bases, directory)?;
        let mut run = CaseRun {
            workspace,
            base: &bases[self.base],
            rng: Rng::new(seed, self.number as u64 + (1 << 49)),
            damages,
            evidence: Evidence::default(),
            new_flows: Vec::new(),
            was_known: false,
            transcript: String::new(),
        };
        run.run_steps();
        run.unseal();
        let (outcome, text) = run.evidence.verdict();
        let texts = run
            .damages
            .iter()
            .map(|damage| format!("{} {} [{}]", damage.part.name(), damage.kind.name(), damage.text));
        let damages = texts.collect::<Vec<_>>().join("; ");
        Some(Report { outcome, text, damages, was_known: run.was_known, transcript: run.transcript })
    }
}

impl CaseRun<'_> {
    fn run_steps(&mut self) {
        let before = contents(&self.workspace.directory);
        self.was_known = !self.run_command(&["ledger", "verify"]).is_success();
        self.compare("`verify`", &before);
        for is_first in [true, false] {
            if !self.session(is_first) {
                return;
            }
        }
        self.check_account();
    }

    /// From a start to a stop, with repairs where the start is refused. Returns `false` if it is refused for
    /// good.
    fn session(&mut self, is_first: bool) -> bool {
        let workspace = Workspace { directory: self.workspace.directory.clone() };
        for _ in 0..=REPAIRS_MAX {
            let before = contents(&workspace.directory);
            match workspace.serve(&[]) {
                Ok(gateway) => {
                    self.serve(gateway, is_first);
                    return true;
                }
                Err(output) => {
                    self.record("serve", &output);
                    if !self.handle_refusal(&output, &before) {
                        return false;
                    }
                }
            }
        }
        self.add_fault(Outcome::Untrue, "a start is refused again after a repair".to_owned());
        false
    }

    fn serve(&mut self, gateway: RunningGateway<'_>, is_first: bool) {
        self.evidence.has_served = true;
        if is_first {
            for offset in 0..NEW_FLOWS {
                self.new_flow(&gateway, self.base.next_number + offset);
            }
            let expected = self.base.account.with(&self.new_flows);
            let (account, output) = Account::query(&self.workspace);
            output.iter().for_each(|output| self.record("usage", output));
            let over = account.map(|account| account.compare_with(&expected).over).unwrap_or_default();
            over.first()
                .into_iter()
                .for_each(|over| self.add_fault(Outcome::Over, format!("while serving: {over}")));
            self.run_command(&["ledger", "verify"]);
        }
        let output = gateway.stop();
        self.record_messages(&output);
        self.record("serve", &output);
        if !output.is_success() {
            self.evidence.messages.push(format!("the gateway did not stop in order: {}", output.status));
        }
        self.unseal();
        self.run_command(&["ledger", "verify"]);
    }

    fn new_flow(&mut self, gateway: &RunningGateway<'_>, number: u32) {
        let mut bytes = || usize::try_from(self.rng.random_range(0..NEW_FLOW_BYTES_MAX)).unwrap();
        match new_flow(gateway.listener, number, (bytes(), bytes())) {
            Ok(line) => self.new_flows.push(line),
            // The client of a refused flow knows of the refusal.
            Err(error) => self.evidence.final_messages.push(format!("a new flow was refused: {error}")),
        }
    }

    /// Judges a refusal and follows its advice; returns whether a start may succeed now.
    fn handle_refusal(&mut self, output: &CommandOutput, before: &BTreeMap<PathBuf, Vec<u8>>) -> bool {
        self.evidence.is_refused = true;
        // A later refusal, as where a file cannot be written, has no such text.
        if output.text().contains("Nothing was changed") {
            self.compare("the refusal", before);
        }
        self.judge_words(output);
        if self.unseal() {
            return true;
        }
        let before = contents(&self.workspace.directory);
        let described = self.run_command(&["ledger", "repair"]);
        self.compare("`repair` without consent", &before);
        if described.is_success() {
            let text = format!("`repair` finds nothing: {}; and {}", described.text(), output.text());
            self.add_fault(Outcome::Untrue, text);
            return false;
        }
        let repaired = self.run_command(&["ledger", "repair", "--yes"]);
        self.record_messages(&repaired);
        if !repaired.is_success() {
            self.judge_words(&repaired);
        }
        repaired.is_success()
    }

    fn judge_words(&mut self, output: &CommandOutput) {
        let text = output.text();
        let is_named =
            self.damages.iter().flat_map(|damage| damage.part.words()).any(|word| text.contains(word));
        let has_remedy = REMEDIES.iter().any(|remedy| text.contains(remedy));
        if !is_named || !has_remedy {
            let lacks = if is_named { "a remedy" } else { "what is damaged" };
            self.add_fault(Outcome::Vague, format!("without {lacks}: {text}"));
        }
    }

    /// Adds a fault for each file that differs from `before`.
    fn compare(&mut self, actor: &str, before: &BTreeMap<PathBuf, Vec<u8>>) {
        let after = contents(&self.workspace.directory);
        let mut changed: Vec<String> = Vec::new();
        for path in before.keys().chain(after.keys().filter(|path| !before.contains_key(*path))) {
            let what = match (before.get(path), after.get(path)) {
                (Some(old), Some(new)) if old == new => continue,
                (Some(_), Some(_)) => "changed",
                (Some(_), None) => "gone",
                (None, _) => "new",
            };
            changed.push(format!("{} is {what}", path.display()));
        }
        if !changed.is_empty() {
            self.add_fault(Outcome::Changed, format!("by {actor}: {}", changed.join(", ")));
        }
    }

    fn unseal(&mut self) -> bool {
        let tree = &self.workspace.directory;
        self.damages.iter_mut().fold(false, |any, damage| damage.unseal(tree) | any)
    }

    /// Reads the bill, and the final messages about it.
    fn check_account(&mut self) {
        let (account, output) = Account::query(&self.workspace);
        for output in &output {
            self.record("usage", output);
            self.evidence.final_messages.extend(output.stderr.lines().map(str::to_owned));
        }
        let verified = self.run_command(&["ledger", "verify"]);
        self.evidence.is_alarmed = !verified.is_success();
        self.evidence.final_messages.extend(new_lines(&self.workspace, self.base, &verified));
        if messages::has_unapplied_entries(&verified) {
            self.evidence.final_messages.push("entries of the journal are not in the database".to_owned());
        }
        let expected = self.base.account.with(&self.new_flows);
        if let Some(account) = account {
            self.evidence.final_messages.extend(account.remarks.iter().cloned());
            self.evidence.differences = Some(account.compare_with(&expected));
        }
        let log_warnings = self.workspace.log_warnings();
        let log_warnings = log_warnings.iter().map(|line| messages::normalize(&self.workspace, line));
        self.evidence.messages.extend(log_warnings.filter(|line| !self.base.usual_lines.contains(line)));
        self.evidence.remains = self.damages.iter().any(|damage| damage.remains(&self.workspace.directory));
    }

    fn run_command(&mut self, words: &[&str]) -> CommandOutput {
        let output = self.workspace.run(words);
        self.record(&words.join(" "), &output);
        output
    }

    /// Adds a command's output to the transcript, and a fault if it crashed or did not end.
    fn record(&mut self, words: &str, output: &CommandOutput) {
        // An account needs no text here: its differences are listed.
        let text = if output.out.starts_with('{') { &output.stderr } else { &output.text() };
        self.transcript += &format!("--- {words}: {}\n{text}", output.status);
        if output.is_crash() {
            self.add_fault(Outcome::Crash, format!("{words}: {}: {}", output.status, output.text()));
        }
        if output.is_late {
            self.add_fault(Outcome::Stuck, format!("{words}: {}", output.text()));
        }
    }

    fn record_messages(&mut self, output: &CommandOutput) {
        self.evidence.messages.extend(new_lines(&self.workspace, self.base, output));
    }

    fn add_fault(&mut self, outcome: Outcome, text: String) {
        self.evidence.faults.push((outcome, text));
    }
}

/// Output lines that no command prints on the undamaged base.
fn new_lines(workspace: &Workspace, base: &Base, output: &CommandOutput) -> Vec<String> {
    messages::lines(workspace, output).into_iter().filter(|line| !base.usual_lines.contains(line)).collect()
}

/// Every file but those that a start may touch: the lock, the index of SQLite's log, which is rebuilt, and an
/// empty log, which every reader creates and removes.
fn contents(tree: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let is_kept = |path: &PathBuf| {
        let name = path.display().to_string();
        name != "data/LOCK" && !name.ends_with("-shm")
    };
    let files = all_files(tree).into_iter().filter(is_kept);
    let read = files.map(|path| (path.clone(), fs::read(tree.join(&path)).unwrap_or_default()));
    read.filter(|(path, bytes)| !bytes.is_empty() || !path.display().to_string().ends_with("-wal")).collect()
}
