//! The built `lab` from the outside: each experiment runs at its smallest, reports all of its verdicts, and
//! leaves nothing behind. No test asserts figures.

mod accept;
mod inserts;
mod overload;
mod pipeline;
mod quota;
mod relay;
mod timers;
