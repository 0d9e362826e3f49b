//! A parsed request, and its head as it goes to the destination.
//!
//! It borrows nothing from the read buffer, so that a task can hold it over an await.

use policy::UserIndex;
use proto::credentials::basic_credentials;
use proto::http_forward::{Forward, Framing, RequestTraits};
use proto::http_head::{HeaderStorage, RequestError, RequestHead};
use proto::target::Target;

use crate::client::{Client, PresentedCredentials, ReplyProtocol};
use crate::context::Phase;
use crate::limits::DISCARDED_BODY_BYTES_MAX;
use crate::observe::log::PATH_BYTES_MAX;

/// A plain HTTP request that awaits its admission.
pub(crate) struct PendingRequest {
    pub(crate) target: Target,
    pub(crate) traits: RequestTraits,
    pub(crate) body: Framing,
    pub(crate) keeps_trailers: bool,
    /// The head for the destination.
    pub(crate) head: Vec<u8>,
    /// Bytes of the head as received.
    pub(crate) received: usize,
    /// The gateway is the last recipient (`Max-Forwards: 0` or `OPTIONS *`), and responds itself.
    pub(crate) targets_proxy: bool,
    /// The credentials that the request presents.
    pub(crate) credentials: PresentedCredentials,
    /// The user, once identified.
    pub(crate) user: Option<UserIndex>,
}

impl PendingRequest {
    /// Parses the head of `length` bytes that has arrived, and sets the client's reply protocol.
    ///
    /// # Errors
    /// What is malformed.
    pub(crate) fn read(client: &mut Client, length: usize) -> Result<PendingRequest, RequestError> {
        let closes = client.context.phase.get() != Phase::Serving;
        let (mut reply_protocol, mut path) = (client.reply_protocol, None);
        let keeps_path = client.snapshot().config.log.request_path;
        let bytes = &client.input.unread()[..length];
        let request =
            PendingRequest::parse(bytes, &client.context.via, closes, &mut reply_protocol, |full_path| {
                path = keeps_path.then(|| full_path[..full_path.floor_char_boundary(PATH_BYTES_MAX)].into());
            });
        (client.reply_protocol, client.path) = (reply_protocol, path);
        let request = request?;
        client.input.consume(length);
        Ok(request)
    }

    fn parse(
        bytes: &[u8],
        via: &str,
        closes: bool,
        reply_protocol: &mut ReplyProtocol,
        note_path: impl FnOnce(&str),
    ) -> Result<PendingRequest, RequestError> {
        let mut storage = HeaderStorage::new();
        let head = RequestHead::parse(bytes, &mut storage)?;
        reply_protocol.set_json(head.accepts_json());
        let forward = Forward::read(&head)?;
        note_path(forward.path());
        if forward.was_forwarded_by(via) {
            return Err(RequestError::Looped);
        }
        let mut traits = forward.traits();
        traits.keeps_alive &= !closes;
        let mut request = PendingRequest {
            target: forward.target,
            body: forward.body,
            keeps_trailers: forward.may_forward_trailers(),
            head: Vec::with_capacity(bytes.len() + 64),
            received: bytes.len(),
            targets_proxy: forward.targets_proxy(),
            credentials: forward.authorization.map(basic_credentials),
            user: None,
            traits,
        };
        forward.write(&mut request.head, via, !request.traits.keeps_alive);
        *reply_protocol = ReplyProtocol::Http {
            json: head.accepts_json(),
            is_head: request.traits.is_head(),
            closes: !request.traits.keeps_alive || request.discardable_body() > DISCARDED_BODY_BYTES_MAX,
        };
        Ok(request)
    }

    /// Bytes of the body to be discarded behind a denial; `u64::MAX` if the length is unknown, or if the
    /// client waits for `100 Continue` and may send no body.
    pub(crate) fn discardable_body(&self) -> u64 {
        match self.body {
            Framing::None => 0,
            Framing::Length(length) if !self.traits.expects_continue => length,
            _ => u64::MAX,
        }
    }
}
