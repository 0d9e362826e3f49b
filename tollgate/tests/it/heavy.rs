//! More bytes and connections than in the other tests: ignored by default, and for a run of their own.
//!
//! Guarantees: every byte is compared and billed, and no resource is left. The gateway has the default number
//! of threads. Two tests sleep for seconds before they measure, so that ledger and log are idle.

use crate::peers::Ingress;

mod bulk;
mod idle;
mod requests;
mod storm;
mod stripes;
mod stuck;

const CONNECT: Ingress = Ingress::Connect("127.0.0.1");
const SOCKS5: Ingress = Ingress::Socks5("127.0.0.1");
