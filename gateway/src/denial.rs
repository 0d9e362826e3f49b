//! Denials: why a request does not become a flow, in the terms of each protocol.
//!
//! Guarantees: status, SOCKS5 reply, `Proxy-Status` and log code are decided together, so that all protocols
//! report the same; 407 is for missing or wrong credentials only; the log gets more than the client: which
//! credentials failed and why, which resource was exhausted, which addresses were tried.

use std::borrow::Cow;
use std::net::IpAddr;

use policy::{AddressClass, MissingRule, Policy, Reason, Verdict};
use proto::denial::proxy_error;
use proto::http_forward::BodyError;
use proto::http_head::{RequestError, ResponseError};
use proto::socks5::{Reply, Socks5Error};
use proto::target::Target;
use sys::clock::WallNanos;
use sys::socket::ResourceExhausted;

use crate::authenticator::AuthError;
use crate::credit::QuotaMeter;
use crate::dial::DialError;
use crate::dns::ResolveError;
use crate::observe::stats::DenialKind;

/// The log code of credentials that cannot be parsed.
const CREDENTIALS_MALFORMED: &str = "credentials_malformed";

const CREDENTIALS_WRONG: &str = "The user or the password is wrong.";
const RESOLVES_ITSELF: &str = "The client asked for an address, to which rules by name do not apply. If it \
    resolved a name, have it send the name: `socks5h://` in place of `socks5://`.";
const NO_PORT_OR_DESCRIPTOR: &str = "The gateway has no port or descriptor left to dial with.";

/// Why a request is denied, for its client and for the log.
#[derive(Debug)]
pub(crate) struct Denial {
    /// The kind, by which it is counted; also its log code if no finer one exists.
    pub kind: DenialKind,
    /// The log code.
    pub code: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// The SOCKS5 reply.
    pub reply: Reply,
    /// The error type of `Proxy-Status` (RFC 9209).
    pub proxy_status: &'static str,
    /// One sentence for the user.
    pub text: Cow<'static, str>,
    /// The policy's reason, if the policy denied.
    pub reason: Option<Reason>,
    /// The rule that decided, if one did.
    pub rule: Option<Box<str>>,
    /// `Retry-After`, in seconds.
    pub retry_after_s: Option<u32>,
    /// Details for the log, withheld from the client.
    pub details: Box<DenialDetails>,
}

/// Details of a denial for the log, withheld from the client.
#[derive(Debug, Default)]
pub(crate) struct DenialDetails {
    /// The claimed user, if it was not proved.
    pub claimed: Option<Box<str>>,
    /// The requested target, while the user is not identified.
    pub target: Option<Target>,
    /// A hint for the operator; empty if there is none.
    pub hint: &'static str,
    /// The addresses that were dialled without success.
    pub tried: Vec<IpAddr>,
    /// The rule that admitted a request whose dial failed.
    pub rule: Box<str>,
    /// How long the lookup of the name took, in microseconds, if there was one.
    pub dns_us: Option<u32>,
    /// How long the dial took until it failed, in microseconds.
    pub connect_us: Option<u32>,
}

impl Denial {
    fn new(
        kind: DenialKind,
        (status, reply): (u16, Reply),
        proxy_status: &'static str,
        text: impl Into<Cow<'static, str>>,
    ) -> Denial {
        let (code, text, details) = (kind.as_str(), text.into(), Box::default());
        Denial {
            kind,
            code,
            status,
            reply,
            proxy_status,
            text,
            reason: None,
            rule: None,
            retry_after_s: None,
            details,
        }
    }

    /// Adds the user that the client claimed.
    pub(crate) fn with_claimed_user(mut self, user: &str) -> Denial {
        self.details.claimed = Some(user.into());
        self
    }

    /// Adds a hint for the log: the client may have resolved a name itself, for it requested an address that
    /// no network rule allows, and rules by name do not apply to addresses. A SOCKS5 reply has no text.
    pub(crate) fn with_name_hint(mut self) -> Denial {
        if self.reason == Some(Reason::NoRule(MissingRule::Network)) {
            self.details.hint = RESOLVES_ITSELF;
        }
        self
    }

    /// The text of the log line: the hint if there is one; else the sentence, where the code says less than
    /// it.
    pub(crate) fn log_text(&self) -> &str {
        if !self.details.hint.is_empty() {
            return self.details.hint;
        }
        let has_many_forms =
            matches!(self.kind, DenialKind::Malformed | DenialKind::Unsupported | DenialKind::Unreachable);
        if has_many_forms || self.code == CREDENTIALS_MALFORMED { &self.text } else { "" }
    }

    /// No credentials, where some are needed.
    pub(crate) fn credentials_missing() -> Denial {
        let text = "This gateway wants a user and a password or token.";
        Denial::unauthenticated("credentials_missing", text)
    }

    /// Malformed credentials, which count as wrong ones.
    pub(crate) fn credentials_malformed(error: &dyn std::error::Error) -> Denial {
        Denial::unauthenticated(CREDENTIALS_MALFORMED, format!("{error}."))
    }

    fn unauthenticated(code: &'static str, text: impl Into<Cow<'static, str>>) -> Denial {
        let codes = (407, Reply::NotAllowed);
        let denial = Denial::new(DenialKind::Unauthenticated, codes, proxy_error::HTTP_REQUEST_DENIED, text);
        Denial { code, ..denial }
    }

    /// The policy's verdict.
    pub(crate) fn policy(policy: &Policy, verdict: &Verdict) -> Denial {
        let proxy_status = match verdict.reason {
            Reason::OwnAddress | Reason::AddressForbidden(AddressClass::Own) => {
                proxy_error::PROXY_LOOP_DETECTED
            }
            Reason::AddressForbidden(_) => proxy_error::DESTINATION_IP_PROHIBITED,
            _ => proxy_error::HTTP_REQUEST_DENIED,
        };
        let kind = DenialKind::by_policy(verdict.reason).unwrap_or(DenialKind::Internal);
        let text = verdict.reason.to_string();
        let mut denial = Denial::new(kind, (403, Reply::NotAllowed), proxy_status, text);
        denial.code = verdict.reason.code();
        denial.reason = Some(verdict.reason);
        denial.rule = verdict.rule.map(|rule| policy.rule_text(rule).into());
        denial
    }

    /// The dialled connection leads back to the gateway, which the policy could not know before.
    pub(crate) fn own_address() -> Denial {
        let codes = (403, Reply::NotAllowed);
        let text = Reason::OwnAddress.to_string();
        Denial::new(DenialKind::OwnAddress, codes, proxy_error::PROXY_LOOP_DETECTED, text)
    }

    /// The user was removed or disabled during the request.
    pub(crate) fn revoked() -> Denial {
        let text = "The user was removed or disabled.";
        Denial { status: 403, ..Denial::unauthenticated("user_revoked", text) }
    }

    /// The connection ends without a response; it is counted and logged as `kind`.
    pub(crate) fn without_response(kind: DenialKind) -> Denial {
        let codes = (400, Reply::GeneralFailure);
        Denial::new(kind, codes, proxy_error::HTTP_REQUEST_ERROR, "")
    }

    /// The user has reached the limit of connections.
    pub(crate) fn connection_cap() -> Denial {
        let text = "The user has reached the limit of open connections.";
        let proxy_status = proxy_error::CONNECTION_LIMIT_REACHED;
        let denial = Denial::new(DenialKind::ConnectionCap, (429, Reply::NotAllowed), proxy_status, text);
        Denial { retry_after_s: Some(1), ..denial }
    }

    /// A quota of the user or of a team is spent.
    pub(crate) fn quota(quota: &QuotaMeter, now: WallNanos) -> Denial {
        let status = quota.status(now);
        let terms = quota.terms();
        let until = match status.period.end {
            WallNanos(u64::MAX) => "An operator can grant more".to_owned(),
            end => format!("The next period begins at {}", terms.calendar.text(end)),
        };
        let text =
            format!("Quota `{}` of {} is spent: {} bytes. {until}.", terms.key, terms.owner, status.total());
        let codes = (429, Reply::NotAllowed);
        let denial = Denial::new(DenialKind::QuotaExhausted, codes, proxy_error::HTTP_REQUEST_DENIED, text);
        let seconds = status.period.end.0.saturating_sub(now.0).div_ceil(1_000_000_000);
        let retry_after_s = (status.period.end.0 < u64::MAX).then_some(seconds);
        let rule = format!("quota {} of {}", terms.key, terms.owner).replace('`', "");
        Denial {
            rule: Some(rule.into()),
            retry_after_s: retry_after_s.and_then(|seconds| u32::try_from(seconds).ok()),
            ..denial
        }
    }

    /// A quota has less left than one message, and other flows may return a part of theirs.
    pub(crate) fn quota_busy() -> Denial {
        let text = "A quota has less left than this request needs.";
        let codes = (429, Reply::NotAllowed);
        let denial = Denial::new(DenialKind::QuotaExhausted, codes, proxy_error::HTTP_REQUEST_DENIED, text);
        Denial { retry_after_s: Some(1), ..denial }
    }

    /// The user has reached the limit of concurrent lookups.
    fn lookup_share() -> Denial {
        let text =
            "The user has as many names being looked up as one user may. Try again when some are found.";
        let proxy_status = proxy_error::CONNECTION_LIMIT_REACHED;
        let denial = Denial::new(DenialKind::LookupShare, (429, Reply::NotAllowed), proxy_status, text);
        Denial { retry_after_s: Some(1), ..denial }
    }

    /// A limit of the gateway is reached; `code` begins with `overload_`.
    pub(crate) fn overload(code: &'static str, text: &'static str) -> Denial {
        let codes = (503, Reply::GeneralFailure);
        let denial = Denial::new(DenialKind::Overload, codes, proxy_error::PROXY_INTERNAL_RESPONSE, text);
        Denial { code, retry_after_s: Some(1), ..denial }
    }

    /// The request was not complete in time.
    pub(crate) fn greeting_timeout() -> Denial {
        let text = "The request was not complete in time.";
        let codes = (408, Reply::GeneralFailure);
        Denial::new(DenialKind::GreetingTimeout, codes, proxy_error::HTTP_REQUEST_ERROR, text)
    }

    /// The client's bytes are no body as its head announced it.
    pub(crate) fn body_malformed(error: BodyError) -> Denial {
        let codes = (400, Reply::GeneralFailure);
        let text = format!("The request is malformed: {error}.");
        Denial::new(DenialKind::Malformed, codes, proxy_error::HTTP_REQUEST_ERROR, text)
    }

    /// The destination received the request, or a part of it, and did not respond.
    pub(crate) fn no_response() -> Denial {
        let text = "The destination closed the connection without an answer.";
        let codes = (502, Reply::GeneralFailure);
        Denial::new(DenialKind::Unreachable, codes, proxy_error::CONNECTION_TERMINATED, text)
    }

    /// The destination's response cannot be forwarded.
    pub(crate) fn response_malformed(error: ResponseError) -> Denial {
        let codes = (502, Reply::GeneralFailure);
        Denial::new(DenialKind::Unreachable, codes, error.proxy_status_error(), to_sentence(&error))
    }

    /// The destination's bytes are no body as its head announced it.
    pub(crate) fn response_body_malformed(error: BodyError) -> Denial {
        let codes = (502, Reply::GeneralFailure);
        let text = format!("The destination's answer is malformed: {error}.");
        Denial::new(DenialKind::Unreachable, codes, proxy_error::HTTP_PROTOCOL_ERROR, text)
    }

    /// The destination did not respond in time.
    pub(crate) fn response_timeout() -> Denial {
        let text = "The destination did not answer the request in time.";
        let codes = (504, Reply::GeneralFailure);
        Denial::new(DenialKind::Unreachable, codes, proxy_error::HTTP_RESPONSE_TIMEOUT, text)
    }

    /// The listener does not speak the client's protocol.
    pub(crate) fn unknown_protocol(hint: &'static str) -> Denial {
        let codes = (400, Reply::GeneralFailure);
        Denial::new(DenialKind::Malformed, codes, proxy_error::HTTP_REQUEST_ERROR, hint)
    }
}

impl From<RequestError> for Denial {
    fn from(error: RequestError) -> Denial {
        let status = error.status();
        let kind = if matches!(status, 405 | 501) { DenialKind::Unsupported } else { DenialKind::Malformed };
        let codes = (status, Reply::GeneralFailure);
        Denial::new(kind, codes, error.proxy_status_error(), format!("{error}."))
    }
}

impl From<Socks5Error> for Denial {
    fn from(error: Socks5Error) -> Denial {
        let kind = match error.reply() {
            Reply::CommandNotSupported => DenialKind::Unsupported,
            _ => DenialKind::Malformed,
        };
        Denial::new(kind, (400, error.reply()), proxy_error::HTTP_REQUEST_ERROR, format!("{error}."))
    }
}

impl From<AuthError> for Denial {
    fn from(error: AuthError) -> Denial {
        let proxy_status = proxy_error::HTTP_REQUEST_DENIED;
        match error {
            // A disabled user gets the same text as one with a wrong password.
            AuthError::Wrong => Denial::unauthenticated("credentials_wrong", CREDENTIALS_WRONG),
            AuthError::Disabled => Denial::unauthenticated("user_disabled", CREDENTIALS_WRONG),
            AuthError::Throttled { retry_after_s } => {
                let text = "Too many wrong passwords came from this address.";
                let denial = Denial::new(DenialKind::Throttled, (429, Reply::NotAllowed), proxy_status, text);
                Denial { retry_after_s: Some(retry_after_s), ..denial }
            }
            AuthError::Overloaded => {
                Denial::overload("overload_passwords", "Too many passwords are being checked.")
            }
        }
    }
}

impl From<ResolveError> for Denial {
    fn from(error: ResolveError) -> Denial {
        // Which name server failed is withheld from clients.
        let (codes, proxy_status, text) = match error {
            ResolveError::NotFound => {
                let text = "The destination's name does not exist or has no address.";
                ((502, Reply::HostUnreachable), proxy_error::DNS_ERROR, text)
            }
            ResolveError::Failed(_) => {
                let text = "The destination's name could not be looked up.";
                ((502, Reply::HostUnreachable), proxy_error::DNS_ERROR, text)
            }
            ResolveError::Timeout => {
                let text = "The destination's name was not found in time.";
                ((504, Reply::HostUnreachable), proxy_error::DNS_TIMEOUT, text)
            }
            ResolveError::Overloaded => {
                return Denial::overload("overload_names", "Too many names are being looked up.");
            }
            ResolveError::OverShare => return Denial::lookup_share(),
        };
        Denial::new(DenialKind::Dns, codes, proxy_status, text)
    }
}

impl From<DialError> for Denial {
    fn from(error: DialError) -> Denial {
        let denial = |kind, codes, proxy_status, text: &str| {
            Denial::new(kind, codes, proxy_status, format!("The destination {text}."))
        };
        match error {
            DialError::Refused => {
                let proxy_status = proxy_error::CONNECTION_REFUSED;
                let codes = (502, Reply::ConnectionRefused);
                denial(DenialKind::ConnectRefused, codes, proxy_status, "refused the connection")
            }
            DialError::Timeout => {
                let proxy_status = proxy_error::CONNECTION_TIMEOUT;
                denial(
                    DenialKind::ConnectTimeout,
                    (504, Reply::TtlExpired),
                    proxy_status,
                    "did not answer in time",
                )
            }
            DialError::Unreachable => {
                let proxy_status = proxy_error::DESTINATION_IP_UNROUTABLE;
                denial(
                    DenialKind::Unreachable,
                    (502, Reply::NetworkUnreachable),
                    proxy_status,
                    "cannot be reached",
                )
            }
            DialError::OwnAddress => Denial::own_address(),
            DialError::NoPort => Denial::overload("overload_ports", NO_PORT_OR_DESCRIPTOR),
            DialError::Exhausted(ResourceExhausted::Descriptors | ResourceExhausted::SystemDescriptors) => {
                Denial::overload("overload_descriptors", NO_PORT_OR_DESCRIPTOR)
            }
            DialError::Exhausted(ResourceExhausted::Buffers | ResourceExhausted::Memory) => {
                Denial::overload("overload_memory", NO_PORT_OR_DESCRIPTOR)
            }
            DialError::Failed(error) => {
                let proxy_status = proxy_error::CONNECTION_TERMINATED;
                let text = format!("cannot be reached: {error}");
                denial(DenialKind::Unreachable, (502, Reply::GeneralFailure), proxy_status, &text)
            }
        }
    }
}

/// An error as a sentence.
fn to_sentence(error: &dyn std::error::Error) -> String {
    let text = error.to_string();
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(characters).chain(['.']).collect()
}
