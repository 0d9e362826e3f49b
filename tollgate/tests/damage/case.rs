//! A case: a copy of a base that is damaged, started, used, stopped, started again, and accounted for.
//!
//! Promises: every command is asked for with the same patience, and a crash of any is a fault; what a refusal
//! left as it was is compared byte by byte. Leaves to others: the verdict on all that (`verdict`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::account::{Account, Line};
use crate::base::Base;
use crate::chance::Chance;
use crate::damage::{Damage, Kind};
use crate::part::{Part, all_files};
use crate::room::{Room, Said, Serving};
use crate::told;
use crate::verdict::{Evidence, Outcome};
use crate::visit::visit;

/// What is to be done.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) number: usize,
    pub(crate) base: usize,
    /// In this order, but that seals come last; none for a copy that must be as its base.
    pub(crate) damages: Vec<(Kind, Part)>,
}

/// What a case came to.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) outcome: Outcome,
    /// Why.
    pub(crate) text: String,
    /// What was done.
    pub(crate) damages: String,
    /// What `verify` said of the ledger before anybody had started it.
    pub(crate) was_known: bool,
    /// Everything that was said.
    pub(crate) story: String,
}

impl Report {
    /// Of a case in which the harness itself failed.
    pub(crate) fn broken() -> Report {
        Report {
            outcome: Outcome::Crash,
            text: "the harness panicked".to_owned(),
            damages: String::new(),
            was_known: false,
            story: String::new(),
        }
    }
}

/// New flows of each first session, and at most so many bytes in a direction of one.
const VISITS: u32 = 2;
const VISIT_BYTES_MAX: u64 = 20_000;
/// Refusals that are answered with a repair.
const REPAIRS_MAX: usize = 2;

/// Words of which a refusal has one, that says what can be done.
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

/// A case under way.
struct Course<'c> {
    room: Room,
    base: &'c Base,
    chance: Chance,
    damages: Vec<Damage>,
    evidence: Evidence,
    visits: Vec<(String, Line)>,
    was_known: bool,
    story: String,
}

impl Case {
    /// What it is, in a few words.
    pub(crate) fn name(&self, bases: &[Base]) -> String {
        let damages: Vec<String> =
            self.damages.iter().map(|(kind, part)| format!("{}: {}", part.name(), kind.name())).collect();
        let damages = if damages.is_empty() { "no damage".to_owned() } else { damages.join(", and ") };
        format!("{damages} ({})", bases[self.base].name)
    }

    /// Puts a damaged copy in `directory`, which is made; `None` if it cannot be damaged like that.
    pub(crate) fn prepare(
        &self,
        seed: u64,
        bases: &[Base],
        directory: PathBuf,
    ) -> Option<(Room, Vec<Damage>)> {
        let base = &bases[self.base];
        let other = &bases[(self.base + 1) % bases.len()];
        let mut chance = Chance::new(seed, self.number as u64 + (1 << 48));
        let room = Room::furnish(directory, Some(&base.now()));
        let mut damages = Vec::new();
        // A seal comes last, so that it does not hinder us.
        let mut wanted = self.damages.clone();
        wanted.sort_by_key(|(kind, _)| *kind == Kind::ReadOnly);
        for damage in wanted {
            damages.extend(Damage::inflict(damage, &room.directory, (base, other), &mut chance));
        }
        if damages.is_empty() && !self.damages.is_empty() {
            fs::remove_dir_all(&room.directory).unwrap();
            return None;
        }
        Some((room, damages))
    }

    /// Runs it in `directory`, which is made and stays.
    pub(crate) fn run(&self, seed: u64, bases: &[Base], directory: PathBuf) -> Option<Report> {
        let (room, damages) = self.prepare(seed, bases, directory)?;
        let mut course = Course {
            room,
            base: &bases[self.base],
            chance: Chance::new(seed, self.number as u64 + (1 << 49)),
            damages,
            evidence: Evidence::default(),
            visits: Vec::new(),
            was_known: false,
            story: String::new(),
        };
        course.go();
        course.unseal();
        let (outcome, text) = course.evidence.verdict();
        let texts = course
            .damages
            .iter()
            .map(|damage| format!("{} {} [{}]", damage.part.name(), damage.kind.name(), damage.text));
        let damages = texts.collect::<Vec<_>>().join("; ");
        Some(Report { outcome, text, damages, was_known: course.was_known, story: course.story })
    }
}

impl Course<'_> {
    fn go(&mut self) {
        let before = contents(&self.room.directory);
        self.was_known = !self.ask(&["ledger", "verify"]).is_success();
        self.compare("`verify`", &before);
        for is_first in [true, false] {
            if !self.session(is_first) {
                return;
            }
        }
        self.account_for();
    }

    /// From a start to a stop; with repairs, where the start is refused. `false` if it is refused for good.
    fn session(&mut self, is_first: bool) -> bool {
        let room = Room { directory: self.room.directory.clone() };
        for _ in 0..=REPAIRS_MAX {
            let before = contents(&room.directory);
            match room.serve(&[]) {
                Ok(serving) => {
                    self.serve(serving, is_first);
                    return true;
                }
                Err(said) => {
                    self.note("serve", &said);
                    if !self.refused(&said, &before) {
                        return false;
                    }
                }
            }
        }
        self.fault(Outcome::Untrue, "what was repaired is refused again".to_owned());
        false
    }

    fn serve(&mut self, serving: Serving<'_>, is_first: bool) {
        self.evidence.has_served = true;
        if is_first {
            for offset in 0..VISITS {
                self.visit(&serving, self.base.next_number + offset);
            }
            let expected = self.base.account.with(&self.visits);
            let (account, said) = Account::ask(&self.room);
            said.iter().for_each(|said| self.note("usage", said));
            let over = account.map(|account| account.against(&expected).over).unwrap_or_default();
            over.first()
                .into_iter()
                .for_each(|over| self.fault(Outcome::Over, format!("while serving: {over}")));
            self.ask(&["ledger", "verify"]);
        }
        let said = serving.stop();
        self.tell(&said);
        self.note("serve", &said);
        if !said.is_success() {
            self.evidence.told.push(format!("it did not stop in order: {}", said.status));
        }
        self.unseal();
        self.ask(&["ledger", "verify"]);
    }

    fn visit(&mut self, serving: &Serving<'_>, number: u32) {
        let mut bytes = || usize::try_from(self.chance.within(0..VISIT_BYTES_MAX)).unwrap();
        match visit(serving.listener, number, (bytes(), bytes())) {
            Ok(line) => self.visits.push(line),
            // Whoever is turned away knows.
            Err(error) => self.evidence.told_at_last.push(format!("a new flow was turned away: {error}")),
        }
    }

    /// Judges a refusal and follows its advice; whether there is hope.
    fn refused(&mut self, said: &Said, before: &BTreeMap<PathBuf, Vec<u8>>) -> bool {
        self.evidence.is_refused = true;
        // One that came behind that point, as where a file cannot be written, says nothing of the kind.
        if said.text().contains("Nothing was changed") {
            self.compare("the refusal", before);
        }
        self.judge_words(said);
        if self.unseal() {
            return true;
        }
        let before = contents(&self.room.directory);
        let described = self.ask(&["ledger", "repair"]);
        self.compare("`repair` without consent", &before);
        if described.is_success() {
            let text = format!("`repair` finds nothing: {}; and {}", described.text(), said.text());
            self.fault(Outcome::Untrue, text);
            return false;
        }
        let repaired = self.ask(&["ledger", "repair", "--yes"]);
        self.tell(&repaired);
        if !repaired.is_success() {
            self.judge_words(&repaired);
        }
        repaired.is_success()
    }

    fn judge_words(&mut self, said: &Said) {
        let text = said.text();
        let is_named =
            self.damages.iter().flat_map(|damage| damage.part.words()).any(|word| text.contains(word));
        let has_remedy = REMEDIES.iter().any(|remedy| text.contains(remedy));
        if !is_named || !has_remedy {
            let lacks = if is_named { "a remedy" } else { "what is damaged" };
            self.fault(Outcome::Vague, format!("without {lacks}: {text}"));
        }
    }

    /// Notes as a fault what is not as it was `before`.
    fn compare(&mut self, who: &str, before: &BTreeMap<PathBuf, Vec<u8>>) {
        let after = contents(&self.room.directory);
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
            self.fault(Outcome::Changed, format!("by {who}: {}", changed.join(", ")));
        }
    }

    fn unseal(&mut self) -> bool {
        let tree = &self.room.directory;
        self.damages.iter_mut().fold(false, |any, damage| damage.unseal(tree) | any)
    }

    /// Reads the bill, and what is said of it in the end.
    fn account_for(&mut self) {
        let (account, said) = Account::ask(&self.room);
        for said in &said {
            self.note("usage", said);
            self.evidence.told_at_last.extend(said.errors.lines().map(str::to_owned));
        }
        let verified = self.ask(&["ledger", "verify"]);
        self.evidence.is_alarmed = !verified.is_success();
        self.evidence.told_at_last.extend(news(&self.room, self.base, &verified));
        if told::has_more_to_come(&verified) {
            self.evidence.told_at_last.push("entries of the journal are not in the database".to_owned());
        }
        let expected = self.base.account.with(&self.visits);
        if let Some(account) = account {
            self.evidence.told_at_last.extend(account.remarks.iter().cloned());
            self.evidence.differences = Some(account.against(&expected));
        }
        let complaints = self.room.complaints();
        let complaints = complaints.iter().map(|line| told::normal(&self.room, line));
        self.evidence.told.extend(complaints.filter(|line| !self.base.usual.contains(line)));
        self.evidence.remains = self.damages.iter().any(|damage| damage.remains(&self.room.directory));
    }

    fn ask(&mut self, words: &[&str]) -> Said {
        let said = self.room.run(words);
        self.note(&words.join(" "), &said);
        said
    }

    /// Keeps what a command said, and notes as a fault if it crashed.
    fn note(&mut self, words: &str, said: &Said) {
        // An account that was given says nothing here that the differences do not.
        let text = if said.out.starts_with('{') { &said.errors } else { &said.text() };
        self.story += &format!("--- {words}: {}\n{text}", said.status);
        if said.is_crash() {
            self.fault(Outcome::Crash, format!("{words}: {}: {}", said.status, said.text()));
        }
        if said.is_late {
            self.fault(Outcome::Stuck, format!("{words}: {}", said.text()));
        }
    }

    fn tell(&mut self, said: &Said) {
        self.evidence.told.extend(news(&self.room, self.base, said));
    }

    fn fault(&mut self, outcome: Outcome, text: String) {
        self.evidence.faults.push((outcome, text));
    }
}

/// Lines that nobody says of the undamaged base.
fn news(room: &Room, base: &Base, said: &Said) -> Vec<String> {
    told::lines(room, said).into_iter().filter(|line| !base.usual.contains(line)).collect()
}

/// Every file but those that a start may touch: the lock, the index of SQLite's log, which is made anew, and
/// a log without contents, which whoever looks makes and removes.
fn contents(tree: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let is_kept = |path: &PathBuf| {
        let name = path.display().to_string();
        name != "data/LOCK" && !name.ends_with("-shm")
    };
    let files = all_files(tree).into_iter().filter(is_kept);
    let read = files.map(|path| (path.clone(), fs::read(tree.join(&path)).unwrap_or_default()));
    read.filter(|(path, bytes)| !bytes.is_empty() || !path.display().to_string().ends_with("-wal")).collect()
}
