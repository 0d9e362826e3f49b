//! The experiments: each has its plan, its cases and its verdicts, uses the kit, and knows no other
//! experiment.

pub(crate) mod accept;
pub(crate) mod inserts;
pub(crate) mod overload;
pub(crate) mod pipeline;
pub(crate) mod relay;
pub(crate) mod timers;
