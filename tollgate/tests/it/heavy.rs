//! More bytes and connections than the other tests move: ignored by default, and for a run of their own.
//! Promises: every byte is compared and billed, and nothing stays behind; the gateway has as many threads as
//! a user's. Two of them rest for seconds before they measure, so that ledger and log are done.

use crate::peers::Ingress;

mod bulk;
mod idle;
mod requests;
mod storm;
mod stripes;
mod stuck;

const CONNECT: Ingress = Ingress::Connect("127.0.0.1");
const SOCKS5: Ingress = Ingress::Socks5("127.0.0.1");
