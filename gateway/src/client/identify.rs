//! The user of a client: by its credentials, or by its source address if it presented none.

use std::rc::Rc;

use policy::UserIndex;

use super::{Client, HandshakeError, PresentedCredentials};
use crate::authenticator::AuthError;
use crate::denial::Denial;
use crate::limits::AUTH_FAILURES_MAX;

impl Client {
    /// The user that `presented` proves, or that the client's address belongs to if nothing was presented.
    ///
    /// # Errors
    /// A denial.
    pub(crate) async fn authenticate(
        &self,
        presented: PresentedCredentials,
    ) -> Result<UserIndex, HandshakeError> {
        let (authenticator, source) = (&self.context.authenticator, self.info.peer.ip());
        match presented {
            Some(Ok(credentials)) => {
                let verified = authenticator.verify(self.snapshot(), &credentials, source).await;
                Ok(verified.map_err(|error| Denial::from(error).with_claimed_user(&credentials.user))?)
            }
            Some(Err(error)) => Err(Denial::credentials_malformed(&error).into()),
            None => {
                let user = authenticator.user_of_source(self.snapshot(), source);
                Ok(user.ok_or_else(Denial::credentials_missing)?)
            }
        }
    }

    /// Counts a request that did not prove its user: the connection ends with the response to the last of
    /// [`AUTH_FAILURES_MAX`] in a row.
    pub(crate) fn count_auth_failure(&mut self) {
        self.info.auth_failures += 1;
        if self.info.auth_failures >= AUTH_FAILURES_MAX {
            self.reply_protocol.set_close();
        }
    }

    /// Notes that a request has proved its user.
    pub(crate) fn reset_auth_failures(&mut self) {
        self.info.auth_failures = 0;
    }

    /// Whether the client was sent a 407, and no byte of another request has arrived.
    pub(crate) fn is_between_requests(&self) -> bool {
        self.info.auth_failures > 0 && self.input.unread().is_empty()
    }

    /// Moves the connection to the current configuration, and returns the index there of the user with index
    /// `user` in the previous one.
    ///
    /// # Errors
    /// The user was removed or disabled, or has other credentials.
    pub(crate) fn revalidate(&mut self, user: UserIndex) -> Result<UserIndex, HandshakeError> {
        let previous_snapshot = Rc::clone(&self.info.snapshot);
        self.use_current_snapshot();
        if Rc::ptr_eq(&previous_snapshot, &self.info.snapshot) {
            return Ok(user);
        }
        let previous = &previous_snapshot.config.users[user.as_usize()];
        match self.snapshot().config.user(&previous.name).filter(|current| !current.disabled) {
            Some(current) if current.credential == previous.credential => Ok(current.index),
            Some(_) => Err(Denial::from(AuthError::Wrong).with_claimed_user(&previous.name).into()),
            None => Err(Denial::revoked().with_claimed_user(&previous.name).into()),
        }
    }
}
