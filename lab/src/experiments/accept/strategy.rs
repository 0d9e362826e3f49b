//! The accept strategies (`engine::accept`) by the engine's names, as the command line and the report have
//! them.

/// How the connections of a listening address reach threads.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
#[value(rename_all = "snake_case")]
pub(crate) enum Strategy {
    /// One socket, and a connection wakes every sleeping thread: the herd
    Shared,
    /// One socket, watched by the thread that holds a mutex
    Mutex,
    /// One socket, and a connection wakes the first sleeping thread
    Exclusive,
    /// A socket for each thread, and the kernel picks one by a hash
    ReusePort,
    /// One socket, and the woken thread gives the connection to the least loaded of three
    Handoff,
}

impl Strategy {
    pub(super) const ALL: [Self; 5] =
        [Self::Shared, Self::Mutex, Self::Exclusive, Self::ReusePort, Self::Handoff];

    /// The gateway's own choice, where nothing is configured.
    pub(super) const DEFAULT: Self = Self::Mutex;

    /// The name on the command line and in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Mutex => "mutex",
            Self::Exclusive => "exclusive",
            Self::ReusePort => "reuse_port",
            Self::Handoff => "handoff",
        }
    }

    /// The value of `[accept] strategy`: a gateway accepts those that its documents do not offer from the lab
    /// only.
    pub(super) fn setting(self) -> &'static str {
        match self {
            Self::Shared => "lab:shared",
            Self::Exclusive => "lab:exclusive",
            Self::Mutex | Self::ReusePort | Self::Handoff => self.name(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn strategies_have_the_names_of_the_engine() {
        let ours: Vec<&str> = Strategy::ALL.iter().map(|strategy| strategy.name()).collect();
        let engines: Vec<&str> = engine::accept::STRATEGIES.iter().map(|strategy| strategy.name()).collect();
        assert_eq!(ours, engines);
        for strategy in Strategy::ALL {
            assert_eq!(Strategy::from_str(strategy.name(), false), Ok(strategy));
        }
    }

    #[test]
    fn default_strategy_is_the_documented_one() {
        let settings = include_str!("../../../../docs/settings.md");
        let row = settings
            .lines()
            .find(|line| line.starts_with("| `strategy` |"))
            .expect("`strategy` is documented as a setting");
        let default = format!("| `\"{}\"` |", Strategy::DEFAULT.name());
        assert!(row.contains(&default), "{row}");
    }
}
