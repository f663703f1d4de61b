//! The one error type, its kinds, and what a caller should do about each.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::lease::Token;
use crate::resource::{FieldName, OwnerName, ResourceName};

/// A `Result` whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a lease is lost (R5, R8, R13, R16).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// Its time ran out. Nobody needs to have taken over.
    Expired,
    /// The resource has a newer token: another acquisition or a revocation.
    Superseded {
        /// The mark of the resource: the highest token issued or observed.
        by: Token,
    },
    /// It was released.
    Released,
}

impl std::fmt::Display for LossReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Expired => f.write_str("it expired"),
            Self::Superseded { by } => write!(f, "token {by} superseded it"),
            Self::Released => f.write_str("it was released"),
        }
    }
}

/// What went wrong, with what a caller needs in order to act on it.
///
/// [`Error::kind`] groups the variants by what to do; [`Error::is_retryable`]
/// says whether the same call can succeed if it is simply made again.
///
/// ```
/// use statepact::{Error, ErrorKind, Ttl};
/// use std::time::Duration;
///
/// let error = Ttl::try_from(Duration::ZERO).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidArgument);
/// assert!(!error.is_retryable());
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument breaks its limit; nothing changed (R27). Correct the call.
    #[error("invalid {argument}: {message}")]
    InvalidArgument {
        /// The argument's name.
        argument: &'static str,
        /// What is wrong with it, and the limit.
        message: String,
    },

    /// The resource does not exist (R24). Create it, by a write or by
    /// [`StateManager::lease`](crate::StateManager::lease).
    #[error(
        "resource `{resource}` does not exist: write to it or lease it through a manager to create it"
    )]
    ResourceNotFound {
        /// The resource.
        resource: ResourceName,
    },

    /// Another owner holds the lease (R4). Wait for it, or do something else.
    #[error("resource `{resource}` is leased to `{owner}` until {expires_at}")]
    LeaseNotAvailable {
        /// The resource.
        resource: ResourceName,
        /// Who holds it.
        owner: OwnerName,
        /// When the holder's lease expires unless it renews.
        expires_at: Timestamp,
    },

    /// A wait for a lease came to the end of its time; nothing is held.
    #[error(
        "timed out after {waited:?} waiting for resource `{resource}`, leased to `{owner}` until {expires_at}"
    )]
    WaitTimedOut {
        /// The resource.
        resource: ResourceName,
        /// Who held it when last looked at.
        owner: OwnerName,
        /// When that lease expires unless its holder renews.
        expires_at: Timestamp,
        /// How long the caller waited.
        waited: Duration,
    },

    /// The lease or token no longer gives ownership (R5, R8, R13, R16). Stop
    /// the work: never retry with this token (R19).
    #[error("lease on resource `{resource}` with token {token} is lost: {}", display_loss(*.reason, *.token))]
    LeaseLost {
        /// The resource that the lease or fence names.
        resource: ResourceName,
        /// The token that was refused.
        token: Token,
        /// Why.
        reason: LossReason,
    },

    /// The resource accepts only commits that carry a fence (R17).
    #[error("resource `{resource}` is fenced: a write to it must carry a fence")]
    FenceRequired {
        /// The resource.
        resource: ResourceName,
    },

    /// What the session read has changed since (R22). Run the session again.
    #[error("conflict on resource `{resource}`{}: it changed since the session read it; run the session again", display_field(.field.as_ref()))]
    Conflict {
        /// The resource.
        resource: ResourceName,
        /// The field, or `None` when the session depends on the whole resource.
        field: Option<FieldName>,
    },

    /// The store that is imported into holds something else under this name.
    /// Say how to merge, or import into an empty store.
    #[error("resource `{resource}` exists already and is not the same: say how to merge the two")]
    ResourceExists {
        /// The resource.
        resource: ResourceName,
    },

    /// The resource has used its last token, [`Token::MAX`] (R28).
    #[error("resource `{resource}` has no tokens left: its mark is {max}; use another resource name", max = Token::MAX)]
    TokensExhausted {
        /// The resource.
        resource: ResourceName,
    },

    /// A field holds something else than the type that was asked for.
    #[error("field `{field}` of resource `{resource}` does not fit the type asked for: {message}")]
    WrongType {
        /// The resource.
        resource: ResourceName,
        /// The field, or `*` when the whole state was read.
        field: String,
        /// What the deserializer said.
        message: String,
    },

    /// Events that were asked for have been pruned. Start again from the state.
    #[error(
        "history after {after} is gone: the oldest event kept is {oldest}; start again from the state"
    )]
    HistoryPruned {
        /// The sequence asked for.
        after: u64,
        /// The oldest sequence kept.
        oldest: u64,
    },

    /// Another process or thread has the store and did not let go in time;
    /// nothing changed. Try again, or look for a stopped process.
    #[error(
        "the store is busy: waited {waited:?} for {what}; try again, or look for a stopped process"
    )]
    Busy {
        /// What was waited for.
        what: &'static str,
        /// How long.
        waited: Duration,
    },

    /// The backend could not be reached; nothing changed. Try again.
    #[error("the backend is unavailable: {message}")]
    Unavailable {
        /// What failed.
        message: String,
    },

    /// The commit may or may not have happened (R26). Send it again with the
    /// same [`CommitId`](crate::CommitId), or read the state.
    #[error(
        "the outcome is unknown: {message}; read the state, or send a commit again with its id"
    )]
    OutcomeUnknown {
        /// What failed.
        message: String,
    },

    /// The store is damaged (R29). Restore it; nothing was guessed.
    #[error("the store is corrupt at {location}: {message}")]
    Corrupt {
        /// Where: a file and offset, or a table and key.
        location: String,
        /// What is wrong.
        message: String,
    },

    /// The storage refused: permission, space, a missing folder, a replaced
    /// file. Mend what the message says, and open the store again.
    #[error("{message}")]
    Storage {
        /// What was tried on which path, and what the system said.
        message: String,
    },
}

fn display_loss(reason: LossReason, token: Token) -> String {
    match reason {
        LossReason::Superseded { by } if by == token => "another owner has this token".to_owned(),
        reason => reason.to_string(),
    }
}

fn display_field(field: Option<&FieldName>) -> String {
    field
        .map(|field| format!(", field `{field}`"))
        .unwrap_or_default()
}

/// The kinds of [`Error`], by what a caller should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Correct the call.
    InvalidArgument,
    /// Create the resource.
    ResourceNotFound,
    /// Wait, or do something else.
    LeaseNotAvailable,
    /// The wait is over; decide whether to wait again.
    TimedOut,
    /// Stop the work.
    LeaseLost,
    /// Carry a fence.
    FenceRequired,
    /// Run the session again.
    Conflict,
    /// Say how to merge.
    ResourceExists,
    /// Use another resource name.
    TokensExhausted,
    /// Read it as the type that it is.
    WrongType,
    /// Start again from the state.
    HistoryPruned,
    /// Try again later.
    Busy,
    /// Try again later.
    Unavailable,
    /// Send the same commit again with its `CommitId`.
    OutcomeUnknown,
    /// Restore the store.
    Corrupt,
    /// Mend the storage.
    Storage,
}

impl ErrorKind {
    /// The kind's name in `snake_case`, as the command line's JSON prints it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::ResourceNotFound => "resource_not_found",
            Self::LeaseNotAvailable => "lease_not_available",
            Self::TimedOut => "timed_out",
            Self::LeaseLost => "lease_lost",
            Self::FenceRequired => "fence_required",
            Self::Conflict => "conflict",
            Self::ResourceExists => "resource_exists",
            Self::TokensExhausted => "tokens_exhausted",
            Self::WrongType => "wrong_type",
            Self::HistoryPruned => "history_pruned",
            Self::Busy => "busy",
            Self::Unavailable => "unavailable",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Corrupt => "corrupt",
            Self::Storage => "storage",
        }
    }
}

impl std::fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Error {
    /// The kind of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::InvalidArgument { .. } => ErrorKind::InvalidArgument,
            Self::ResourceNotFound { .. } => ErrorKind::ResourceNotFound,
            Self::LeaseNotAvailable { .. } => ErrorKind::LeaseNotAvailable,
            Self::WaitTimedOut { .. } => ErrorKind::TimedOut,
            Self::LeaseLost { .. } => ErrorKind::LeaseLost,
            Self::FenceRequired { .. } => ErrorKind::FenceRequired,
            Self::Conflict { .. } => ErrorKind::Conflict,
            Self::ResourceExists { .. } => ErrorKind::ResourceExists,
            Self::TokensExhausted { .. } => ErrorKind::TokensExhausted,
            Self::WrongType { .. } => ErrorKind::WrongType,
            Self::HistoryPruned { .. } => ErrorKind::HistoryPruned,
            Self::Busy { .. } => ErrorKind::Busy,
            Self::Unavailable { .. } => ErrorKind::Unavailable,
            Self::OutcomeUnknown { .. } => ErrorKind::OutcomeUnknown,
            Self::Corrupt { .. } => ErrorKind::Corrupt,
            Self::Storage { .. } => ErrorKind::Storage,
        }
    }

    /// Whether the same work, run again, can succeed without anything else
    /// being done: a conflict, a busy store, a backend out of reach. Never for
    /// a lost lease (R19), nor for an unknown outcome, which is safe to send
    /// again only with a [`CommitId`](crate::CommitId).
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::Conflict | ErrorKind::Busy | ErrorKind::Unavailable
        )
    }

    pub(crate) fn invalid(argument: &'static str, message: impl Into<String>) -> Self {
        Self::InvalidArgument {
            argument,
            message: message.into(),
        }
    }
}

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

#[cfg(test)]
mod tests;
