//! More bytes and connections than the other tests move: for a run of their own, one at a time.

use crate::programs::gateway;

mod bulk;
mod idle;
mod storm;
mod tunnel;
