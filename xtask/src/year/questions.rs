//! Questions to a ledger, and how long `tollgate usage` takes for each.
//!
//! Guarantees: each question is asked once before it is timed, so that its pages are in the kernel's cache.
//! Not handled here: a verdict. The lines beyond [`TARGET`] are marked, and no time makes the run fail.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

/// What a question may take.
const TARGET: Duration = Duration::from_millis(100);

const TIMES: usize = 5;

/// The exit code of a command line that the product does not know.
const WRONG_USAGE: i32 = 2;

/// The questions: a name, and the arguments of `tollgate usage`. Words in braces stand for what the ledger
/// has: the heaviest user and host, a user and a host of the middle, the middle day and its month.
const QUESTIONS: [(&str, &str); 20] = [
    ("users", "--by user"),
    ("sets", "--by set"),
    ("classes", "--by class"),
    ("months", "--by month"),
    ("days", "--by day"),
    ("quarter-hours", "--by quarter"),
    ("hosts", "--by host"),
    ("a user's months", "--by month --user {user}"),
    ("a user's days", "--by day --user {user}"),
    ("a user's quarter-hours", "--by quarter --user {user}"),
    ("a user's hosts", "--by host --user {user}"),
    ("the heaviest user's hosts", "--by host --user {heaviest-user}"),
    ("a host's users", "--by user --host {host}"),
    ("the heaviest host's users", "--by user --host {heaviest-host}"),
    ("a day's users", "--by user --since {day} --until {day}"),
    ("a day's quarter-hours", "--by quarter --since {day} --until {day}"),
    ("a day's hosts", "--by host --since {day} --until {day}"),
    ("a month's users", "--by user --since {month}-01 --until {month}-28"),
    ("a month's hosts", "--by host --since {month}-01 --until {month}-28"),
    ("users since a moment", "--by user --since {day}T10:07:31Z"),
];

/// Asks the ledger in `directory`, and prints a table.
pub(super) fn ask(root: &Path, directory: &Path) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--bin", "tollgate"]).current_dir(root);
    if !cargo.status().context("running cargo")?.success() {
        bail!("the product was not built: see the output above");
    }
    let gateway = Gateway::for_ledger(root, directory)?;
    let words = gateway.words()?;
    println!("{:<28} {:>9} {:>17} {:>9}   tollgate usage ...", "", "median ms", "all", "lines");
    for (name, template) in QUESTIONS {
        let mut arguments = template.to_owned();
        words.iter().for_each(|(word, text)| arguments = arguments.replace(word, text));
        if !gateway.has_keys(&arguments)? {
            println!("{name:<28} this version has no such key");
            continue;
        }
        let lines = gateway.output(&arguments)?.lines().count();
        let mut times = (0..TIMES).map(|_| gateway.time(&arguments)).collect::<Result<Vec<_>>>()?;
        times.sort();
        let (median, spread) = (times[TIMES / 2], times[0].as_millis()..=times[TIMES - 1].as_millis());
        let mark = if median > TARGET { '!' } else { ' ' };
        let spread = format!("{} to {}", spread.start(), spread.end());
        println!("{name:<28} {mark}{:>8} {spread:>17} {lines:>9}   {arguments}", median.as_millis());
    }
    Ok(())
}

/// The product, with a configuration that names the ledger.
struct Gateway {
    program: PathBuf,
    configuration: PathBuf,
}

impl Gateway {
    fn for_ledger(root: &Path, directory: &Path) -> Result<Gateway> {
        let directory = fs::canonicalize(directory).with_context(|| directory.display().to_string())?;
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let configuration = target.join("year.toml");
        fs::write(&configuration, format!("[ledger]\ndirectory = {:?}\n", directory.display().to_string()))?;
        Ok(Gateway { program: target.join("release/tollgate"), configuration })
    }

    fn usage(&self, arguments: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("usage").arg("--config").arg(&self.configuration).args(arguments.split(' '));
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        command
    }

    fn output(&self, arguments: &str) -> Result<String> {
        let output = self.usage(arguments).output()?;
        if !output.status.success() {
            let text = String::from_utf8_lossy(&output.stderr);
            bail!("`tollgate usage {arguments}` failed: {text}{}", String::from_utf8_lossy(&output.stdout));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Whether the version knows the keys after `--by`.
    fn has_keys(&self, arguments: &str) -> Result<bool> {
        let key = arguments.split(' ').nth(1).unwrap_or_default();
        let status = self.usage(&format!("--by {key} --until 1970-01-01")).output()?.status;
        Ok(status.code() != Some(WRONG_USAGE))
    }

    fn time(&self, arguments: &str) -> Result<Duration> {
        let start = Instant::now();
        let output = self.output(arguments)?;
        let taken = start.elapsed();
        drop(output);
        Ok(taken)
    }

    /// The texts for the words of [`QUESTIONS`].
    fn words(&self) -> Result<BTreeMap<&'static str, String>> {
        let keys = |arguments: &str| -> Result<Vec<String>> {
            let output = self.output(&format!("{arguments} --csv"))?;
            let keys = output.lines().skip(1).filter_map(|line| line.split(',').next());
            let keys: Vec<String> = keys.map(str::to_owned).collect();
            if keys.is_empty() {
                bail!("the ledger has no flows");
            }
            Ok(keys)
        };
        let days = keys("--by day")?;
        let day = days[days.len() / 2].clone();
        let users = keys(&format!("--by user --since {day} --until {day}"))?;
        let hosts = keys(&format!("--by host --since {day} --until {day}"))?;
        let middle = |keys: &[String]| keys[keys.len() / 2].clone();
        Ok(BTreeMap::from([
            ("{user}", middle(&users)),
            ("{heaviest-user}", users[0].clone()),
            ("{host}", middle(&hosts)),
            ("{heaviest-host}", hosts[0].clone()),
            ("{month}", day[.."2025-01".len()].to_owned()),
            ("{day}", day),
        ]))
    }
}
