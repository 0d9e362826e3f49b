//! What a start finds missing, as a message: what, how it is known, and the remedy.
//!
//! Guarantees: each loss names its file. Nothing is a loss where other files prove that it is complete.

use std::fmt;

use crate::journal::corruption::Corruption;

/// Something that the ledger had and lacks now. A start continues without it only with consent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Loss {
    /// Entries inside the journal.
    Entries(Damage),
    /// Entries at the journal's end.
    JournalEnd {
        /// The number of the first one.
        first_lsn: u64,
        /// The number of the last one, if it is known.
        last_lsn: Option<u64>,
    },
    /// The whole journal.
    Journal {
        /// The last entry that the databases have.
        reached: u64,
    },
    /// A segment is shorter than it was when it was created.
    Segment {
        /// Its number.
        segment: u64,
        /// Its length.
        bytes: u64,
        /// The length that it should have; 0 if it is not known.
        expected: u64,
    },
    /// Entries between the database and the journal, which begins too late.
    Between {
        /// The last entry of `ledger.db`; 0 if it has none.
        applied: u64,
        /// The first entry of the journal.
        first_lsn: u64,
    },
    /// A database is missing.
    Missing {
        /// Its file name.
        file: String,
        /// The last entry that it had.
        lsn: u64,
    },
    /// A database is older than the others require.
    Older {
        /// Its file name.
        file: String,
        /// The last entry that it has.
        found: u64,
        /// The last entry that it had.
        expected: u64,
        /// Why the journal does not complete it.
        cause: String,
    },
    /// A database belongs to another ledger.
    Foreign {
        /// Its file name.
        file: String,
        /// The gateway that it belongs to.
        found: u32,
        /// The gateway that it should belong to.
        expected: u32,
    },
    /// A database cannot be read, or contradicts itself.
    Damaged {
        /// Its file name.
        file: String,
        /// What is wrong.
        text: String,
    },
    /// The file with the gateway's number, and the journal, which has the number too.
    Identity {
        /// The gateways with entries in the database.
        gateways: Vec<u32>,
    },
}

impl Loss {
    /// Whether `ledger.db` cannot be used.
    pub(crate) fn makes_ledger_unusable(&self) -> bool {
        matches!(self, Loss::Foreign { file, .. } | Loss::Damaged { file, .. } if file == "ledger.db")
    }

    /// Whether it already reports entries missing from `ledger.db`, or makes unknown how far that had come.
    pub(crate) fn explains_missing_sums(&self) -> bool {
        match self {
            Loss::Missing { file, .. } | Loss::Older { file, .. } => file == "ledger.db",
            Loss::Between { .. } | Loss::Journal { .. } | Loss::JournalEnd { .. } => true,
            other => other.makes_ledger_unusable(),
        }
    }

    /// The numbers of the first and the last missing entry; 0 where no entry is missing, or the number is not
    /// known.
    pub(crate) fn lsns(&self) -> (u64, u64) {
        match self {
            Loss::Entries(damage) => (damage.first_lsn, damage.last_lsn),
            Loss::JournalEnd { first_lsn, last_lsn } => (*first_lsn, last_lsn.unwrap_or(0)),
            Loss::Journal { reached } => (reached + 1, 0),
            Loss::Between { applied, first_lsn } => (applied + 1, first_lsn - 1),
            Loss::Missing { lsn, .. } => (1, *lsn),
            Loss::Older { found, expected, .. } => (found + 1, *expected),
            Loss::Segment { .. } | Loss::Foreign { .. } | Loss::Damaged { .. } | Loss::Identity { .. } => {
                (0, 0)
            }
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Entries(damage) => damage.fmt(f),
            Loss::JournalEnd { first_lsn, last_lsn: Some(last_lsn) } => write!(
                f,
                "the journal's end is missing: the last run had written entries {first_lsn} to {last_lsn}, \
                 and no segment has them"
            ),
            Loss::JournalEnd { first_lsn, last_lsn: None } => write!(
                f,
                "the journal's end is missing: it ends before entry {}, which the databases have, and what \
                 the last run wrote from entry {first_lsn} on is lost",
                first_lsn - 1
            ),
            Loss::Journal { reached } => write!(
                f,
                "the journal is missing, and the last run did not end in order: what it wrote after entry \
                 {reached} is lost. A backup that an earlier version made looks the same"
            ),
            Loss::Segment { segment, bytes, expected: 0 } => {
                write!(f, "segment {segment} of the journal is cut short: it has {bytes} bytes")
            }
            Loss::Segment { segment, bytes, expected } => {
                write!(f, "segment {segment} of the journal is cut short: it has {bytes} bytes of {expected}")
            }
            Loss::Between { applied: 0, first_lsn } => write!(
                f,
                "ledger.db is missing, or is a new one: it has no entry, and the journal begins with entry \
                 {first_lsn}"
            ),
            Loss::Between { applied, first_lsn } => write!(
                f,
                "ledger.db is older than the journal: it ends with entry {applied}, and the journal begins \
                 with entry {first_lsn}"
            ),
            Loss::Missing { file, lsn } => {
                write!(f, "{file} is missing: it had the entries up to {lsn}")
            }
            Loss::Older { file, found, expected, cause } => {
                write!(f, "{file} is older: it ends with entry {found}, and had come to {expected}; {cause}")
            }
            Loss::Foreign { file, found, expected } => {
                write!(
                    f,
                    "{file} belongs to gateway {found:08x}, and `identity` or the journal say {expected:08x}"
                )
            }
            Loss::Damaged { file, text } => write!(f, "{file} is damaged: {text}"),
            Loss::Identity { gateways } => {
                let gateways: Vec<String> = gateways.iter().map(|gateway| format!("{gateway:08x}")).collect();
                write!(
                    f,
                    "`identity` and the journal are missing, and ledger.db is no backup: it has entries of \
                     gateway {}",
                    gateways.join(", ")
                )
            }
        }
    }
}

/// Everything that a start finds missing.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Losses(pub Vec<Loss>);

impl fmt::Display for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for loss in &self.0 {
            writeln!(f, "{loss}.")?;
        }
        f.write_str(
            "Nothing was changed. Put the file back, or restore a backup. `tollgate ledger repair` explains \
             what continuing without it means, and does it with --yes",
        )
    }
}

/// Entries inside the journal that had been written, some of them durable, and are lost.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Damage {
    /// The segment.
    pub segment: u64,
    /// The position of the damage in it, in bytes.
    pub at: u64,
    /// How many entries are lost.
    pub lost: u64,
    /// Their numbers.
    pub ranges: String,
    /// The number of the first one.
    pub first_lsn: u64,
    /// The number of the last one.
    pub last_lsn: u64,
    /// How many entries behind them are intact.
    pub salvaged: u64,
}

impl Damage {
    /// The damage that `corruption` is; `None` if nothing lost had been durable.
    pub(crate) fn from_corruption(corruption: &Corruption) -> Option<Damage> {
        let (first, last) = (corruption.lost.first()?, corruption.lost.last()?);
        let range = |(first, last): &(u64, u64)| format!("{first}-{last}");
        Some(Damage {
            segment: corruption.segment,
            at: corruption.at,
            lost: corruption.lost.iter().map(|(first, last)| last - first + 1).sum(),
            ranges: corruption.lost.iter().map(range).collect::<Vec<_>>().join(", "),
            first_lsn: first.0,
            last_lsn: last.1,
            salvaged: corruption.salvaged.len() as u64,
        })
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { segment, at, lost, ranges, salvaged, .. } = self;
        write!(
            f,
            "the journal is damaged in segment {segment} at byte {at}: {lost} entries that had been durable \
             are lost (numbers {ranges}); {salvaged} behind them are intact"
        )
    }
}
