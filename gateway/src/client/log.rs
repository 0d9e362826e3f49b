//! The records of a client's connection: for its flow, and for the log line of a denial.

use ledger::record::{Class, CloseReason, Flow, Legs, Protocol, Record, Uncertain};
use proto::target::{Host, Target};
use sys::clock::{self, WallNanos};

use super::{Client, Route};
use crate::denial::Denial;
use crate::observe::log::{Decision, Details, Event, EventKind, LineSubject, NO_SAMPLING};
use crate::observe::stats::DenialKind;
use crate::text_format::AddressText;

/// The fields of a record that tell its user: the name, and the numbers that only a flow of the ledger needs.
#[derive(Clone, Copy, Default)]
struct UserFields<'a> {
    user: &'a str,
    account: u32,
    policy: u32,
}

impl Client {
    /// The record of the current request, routed by `route`.
    pub(crate) fn record(&self, route: &Route<'_>) -> Record {
        let target = self.request.as_ref().map(|request| &request.target);
        let Some(request) = &self.request else {
            return self.record_of(UserFields::default(), target, route);
        };
        let snapshot = self.snapshot();
        let account = snapshot.account(request.user);
        let (user, policy) = (account.name(), snapshot.numbers.version());
        self.record_of(UserFields { user, account: account.number(), policy }, target, route)
    }

    fn record_of(&self, fields: UserFields<'_>, target: Option<&Target>, route: &Route<'_>) -> Record {
        let literal;
        let (host, port) = match target {
            Some(target) => match &target.host {
                Host::Name(name) => (name.as_str(), target.port.get()),
                Host::Address(address) => {
                    literal = AddressText::new(*address);
                    (literal.as_str(), target.port.get())
                }
            },
            None => ("", 0),
        };
        Record::new(&Flow {
            id: self.id,
            opened: self.accepted,
            closed: WallNanos(0),
            account: fields.account,
            policy: fields.policy,
            set: route.set,
            user: fields.user,
            host,
            port,
            address: route.address,
            client: self.info.peer,
            class: route.class,
            // The log reads `Event::protocol` instead; the ledger has admitted flows only, whose protocol is
            // known.
            protocol: self.protocol.unwrap_or(Protocol::HttpConnect),
            rule: route.rule,
            reason: CloseReason::Fault,
            requests: 0,
            legs: Legs::default(),
            uncertain: Uncertain { up: 0, down: 0 },
        })
    }

    /// Counts a denial, and logs it unless the line limiter suppresses the line.
    pub(crate) fn log_denial(&mut self, denial: &Denial) {
        self.context.stats.denied(denial.kind);
        let subject = match &self.request {
            Some(request) => LineSubject::User(self.snapshot().account(request.user).name()),
            None => LineSubject::Source(self.info.peer.ip()),
        };
        if !self.context.meter.borrow_mut().admits_line(subject, denial.code) {
            return;
        }
        let details = &denial.details;
        let event = Event {
            kind: EventKind::Decision,
            at: clock::wall(),
            record: self.denied_record(denial),
            is_claimed: self.request.is_none() && details.claimed.is_some(),
            protocol: self.protocol,
            listener: self.info.address,
            decision: if denial.kind.is_failure() { Decision::Failed } else { Decision::Deny },
            reason: denial.code,
            dns_us: details.dns_us,
            connect_us: details.connect_us,
            request: None,
            sample: NO_SAMPLING,
        };
        let path = self.path.as_deref().unwrap_or_default();
        let details = Details { tried: &details.tried, text: denial.log_text(), path };
        self.context.meter.borrow_mut().deny(&event, &details);
    }

    /// Logs that the client closed before a response.
    pub(crate) fn log_abandoned(&mut self) {
        self.log_denial(&Denial::without_response(DenialKind::ClientGone));
    }

    /// The record of a denied request; its user is the claimed one where none was proved.
    fn denied_record(&self, denial: &Denial) -> Record {
        let details = &denial.details;
        let user = match &self.request {
            Some(request) => self.snapshot().account(request.user).name(),
            None => details.claimed.as_deref().unwrap_or_default(),
        };
        let target = self.request.map(|request| request.target).or(details.target);
        let rule = denial.rule.as_deref().unwrap_or(&details.rule);
        let route = Route { address: None, rule, class: Class::External, set: 0 };
        self.record_of(UserFields { user, ..UserFields::default() }, target.as_ref(), &route)
    }
}
