//! What the ledger has of the users of a round.

use serde_json::Value;

use crate::gateway::Gateway;
use crate::plan::Plan;

/// The bytes of a user, up and down.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Bill {
    pub(crate) billed: (u64, u64),
    /// Bytes of calls that a kill interrupted.
    pub(crate) uncertain: (u64, u64),
    /// Flows that are open.
    pub(crate) live: u64,
}

impl Bill {
    /// What counts as used.
    pub(crate) fn used(&self) -> (u64, u64) {
        (self.billed.0 + self.uncertain.0, self.billed.1 + self.uncertain.1)
    }
}

/// The bills of the users of `plan`, in their order.
///
/// # Errors
/// The ledger cannot be read, or has lost something.
pub(crate) fn read(gateway: &Gateway, plan: &Plan) -> Result<Vec<Bill>, String> {
    let usage = gateway.usage(&["--json", "--by", "user"])?;
    let rows = usage["rows"].as_array().expect("the command prints rows");
    let bill = |name: &str| {
        let row = rows.iter().find(|row| row["user"] == name);
        row.map_or_else(Bill::default, |row| Bill {
            billed: (number(row, "up"), number(row, "down")),
            uncertain: (number(row, "uncertain_up"), number(row, "uncertain_down")),
            live: number(row, "live"),
        })
    };
    Ok(plan.users.iter().map(|user| bill(&user.name)).collect())
}

fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().expect("a sum is a number")
}
