//! Teams: a forest of groups of users, each with quotas and rates that its users share.
//!
//! Guarantees: every parent exists, no team is its own ancestor, and a tree has a bounded depth.

use std::collections::{HashMap, HashSet};

use super::quota::{self, Owner, Quota, Rates};
use super::raw::{RawConfig, RawTeam};
use super::read::{Located, suggest};
use super::report::{Diagnostic, Report};
use super::settings::{QuotaItem, TeamName};

/// Most teams.
const TEAMS_MAX: usize = 10_000;

/// Most levels of a tree: a flow counts for each team above its user.
const LEVELS_MAX: usize = 8;

/// Users, and the teams below, that have quotas and rates together.
#[derive(Clone, Debug, PartialEq)]
pub struct Team {
    /// The name.
    pub name: Box<str>,
    /// The team of which this one is a part, as an index of [`super::Config::teams`]; less than its own.
    pub parent: Option<usize>,
    /// What all users of the team and of those below it may move together.
    pub quotas: Vec<Quota>,
    /// How fast.
    pub rates: Rates,
}

/// The raw teams by name, and how they are parts of each other.
struct Forest<'a> {
    /// Positions in [`RawConfig::teams`].
    by_name: HashMap<&'a str, usize>,
    /// The parent of each team; `None` also where it does not exist.
    parents: Vec<Option<usize>>,
    /// Each team with its level, from 1, behind its parent. Teams whose ancestors form a cycle are not in it.
    order: Vec<(usize, usize)>,
}

impl<'a> Forest<'a> {
    fn new(teams: &'a [RawTeam]) -> Forest<'a> {
        let by_name: HashMap<&str, usize> = teams.iter().map(|team| team.name.as_str()).zip(0..).collect();
        let parent = |team: &RawTeam| by_name.get(team.table.parent.written()?.as_str()).copied();
        let parents: Vec<Option<usize>> = teams.iter().map(parent).collect();
        let mut children = vec![Vec::new(); teams.len()];
        let mut order = Vec::new();
        for (team, parent) in parents.iter().enumerate() {
            match parent {
                Some(parent) => children[*parent].push(team),
                None => order.push((team, 1)),
            }
        }
        let mut next = 0;
        while let Some(&(team, level)) = order.get(next) {
            order.extend(children[team].iter().map(|child| (*child, level + 1)));
            next += 1;
        }
        Forest { by_name, parents, order }
    }

    /// The cycles of parents, each from one of its teams to its parent and on.
    fn cycles(&self) -> Vec<Vec<usize>> {
        let mut seen = vec![false; self.parents.len()];
        self.order.iter().for_each(|(team, _)| seen[*team] = true);
        let mut cycles = Vec::new();
        for start in 0..self.parents.len() {
            let (mut path, mut at) = (Vec::new(), Some(start));
            while let Some(team) = at.filter(|team| !seen[*team]) {
                seen[team] = true;
                path.push(team);
                at = self.parents[team];
            }
            let first = path.iter().position(|team| Some(*team) == at);
            cycles.extend(first.map(|first| path.split_off(first)));
        }
        cycles
    }

    /// `team` and its ancestors, up to the bound on levels.
    fn with_ancestors(&self, team: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(team), |team| self.parents[*team]).take(LEVELS_MAX)
    }
}

/// Reports teams that do not exist, or that do not form trees.
pub(super) fn check(raw: &RawConfig, report: &mut Report) {
    if let Some(team) = raw.teams.get(TEAMS_MAX) {
        report.error(Diagnostic::at(&team.span, format!("more than {TEAMS_MAX} teams")));
    }
    let forest = Forest::new(&raw.teams);
    let parents = raw.teams.iter().filter_map(|team| team.table.parent.written());
    let of_users = raw.users.iter().filter_map(|user| user.table.team.written());
    for reference in parents.chain(of_users) {
        if !forest.by_name.contains_key(reference.as_str()) {
            report.error(unknown_team(raw, reference));
        }
    }
    for cycle in forest.cycles() {
        report.error(cycle_diagnostic(raw, &cycle));
    }
    // What is below the first level too many is not reported again.
    for (team, _) in forest.order.iter().filter(|(_, level)| *level == LEVELS_MAX + 1) {
        let RawTeam { name, span, table } = &raw.teams[*team];
        let title = format!("team `{name}` is on level {} of its tree", LEVELS_MAX + 1);
        let span = table.parent.written().map_or(span, |parent| &parent.span);
        report.error(Diagnostic::at(span, title).label(format!("a tree has at most {LEVELS_MAX} levels")));
    }
    if raw.has_all_users {
        warn_empty_teams(raw, report);
    }
    warn_larger_quotas(raw, &forest, report);
}

/// The teams, each behind its parent. [`check`] must have found no error.
pub(super) fn resolve(raw: &RawConfig) -> Vec<Team> {
    let forest = Forest::new(&raw.teams);
    let mut index = vec![0; raw.teams.len()];
    forest.order.iter().zip(0..).for_each(|((team, _), position)| index[*team] = position);
    let resolve = |(team, _): &(usize, usize)| {
        let RawTeam { name, table, .. } = &raw.teams[*team];
        Team {
            name: name.as_str().into(),
            parent: forest.parents[*team].map(|parent| index[parent]),
            quotas: quota::resolve(&table.quota, &raw.quotas.zone),
            rates: Rates::new(&table.rate, &table.rate_up, &table.rate_down),
        }
    };
    forest.order.iter().map(resolve).collect()
}

fn unknown_team(raw: &RawConfig, reference: &Located<TeamName>) -> Diagnostic {
    let name = reference.as_str();
    let diagnostic = Diagnostic::at(&reference.span, format!("there is no team `{name}`"));
    let names: Vec<&str> = raw.teams.iter().map(|team| team.name.as_str()).collect();
    match names.is_empty() {
        true => diagnostic.help(format!("write a table [teams.{name}]")),
        false => suggest(diagnostic, name, &names),
    }
}

fn cycle_diagnostic(raw: &RawConfig, cycle: &[usize]) -> Diagnostic {
    let first = &raw.teams[cycle[0]];
    let mut names: Vec<&str> = cycle.iter().map(|team| raw.teams[*team].name.as_str()).collect();
    // A long cycle is cut; its end is the beginning.
    if names.len() > LEVELS_MAX {
        names.truncate(LEVELS_MAX);
        names.push("...");
    }
    names.push(&first.name);
    let span = first.table.parent.written().map_or(&first.span, |parent| &parent.span);
    let title = format!("team `{}` is part of itself", first.name);
    Diagnostic::at(span, title).label(names.join(" -> ")).help("remove one of these parents")
}

/// Warns of teams that nothing is part of.
fn warn_empty_teams(raw: &RawConfig, report: &mut Report) {
    let parents = raw.teams.iter().filter_map(|team| team.table.parent.written());
    let of_users = raw.users.iter().filter_map(|user| user.table.team.written());
    let used: HashSet<&str> = parents.chain(of_users).map(|name| name.as_str()).collect();
    for team in raw.teams.iter().filter(|team| !used.contains(team.name.as_str())) {
        let title = format!("team `{}` has no users and no teams", team.name);
        let help = format!("`team = \"{}\"` makes a user part of it", team.name);
        report.warning(Diagnostic::at(&team.span, title).help(help));
    }
}

/// Warns of quotas that are larger than the same quota of a team above.
fn warn_larger_quotas(raw: &RawConfig, forest: &Forest<'_>, report: &mut Report) {
    let mut of_teams: Vec<HashMap<String, &Located<QuotaItem>>> = Vec::with_capacity(raw.teams.len());
    for team in &raw.teams {
        of_teams.push(team.table.quota.0.iter().map(|item| (quota::key(item, raw), item)).collect());
    }
    let mut warn = |owner: Owner<'_>, items: &[Located<QuotaItem>], above: Option<usize>| {
        let Some(above) = above else { return };
        for item in items {
            let key = quota::key(item, raw);
            let smaller = forest.with_ancestors(above).find_map(|team| {
                let other = of_teams[team].get(&key)?;
                (other.limit.value < item.limit.value).then_some((team, *other))
            });
            if let Some((team, other)) = smaller {
                let name = &raw.teams[team].name;
                let title = format!("a quota of {owner} has no effect: team `{name}` has a smaller one");
                let diagnostic = Diagnostic::at(&item.limit.span, title);
                report.warning(diagnostic.related(&other.limit.span, "this one is used up first"));
            }
        }
    };
    for (team, position) in raw.teams.iter().zip(0..) {
        warn(Owner::Team(&team.name), &team.table.quota.0, forest.parents[position]);
    }
    for user in &raw.users {
        let team = user.table.team.written().and_then(|team| forest.by_name.get(team.as_str()));
        warn(Owner::User(&user.name), &user.table.quota.0, team.copied());
    }
}
