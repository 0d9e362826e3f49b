//! The experiments: each has its plan, its cases and its verdicts, uses the kit, and does not know the
//! others.

pub(crate) mod accept;
pub(crate) mod inserts;
pub(crate) mod overload;
pub(crate) mod pipeline;
pub(crate) mod quota;
pub(crate) mod relay;
pub(crate) mod timers;

use crate::kit::presentation::Presentation;

/// The presentations of all experiments.
const PRESENTATIONS: [&Presentation; 7] = [
    &accept::PRESENTATION,
    &inserts::PRESENTATION,
    &overload::PRESENTATION,
    &pipeline::PRESENTATION,
    &quota::PRESENTATION,
    &relay::PRESENTATION,
    &timers::PRESENTATION,
];

/// The presentation of an experiment by its name.
pub(crate) fn presentation(experiment: &str) -> Option<&'static Presentation> {
    PRESENTATIONS.into_iter().find(|presentation| presentation.experiment == experiment)
}
