//! What ends a command early, and the exit status that says so.

use std::io;

use serde_json::{Map, Value as Json, json};
use statepact::{Error, ErrorKind, LossReason};

/// The exit statuses, as `statepact --help` lists them.
pub(crate) mod status {
    /// Something that has no status of its own.
    pub(crate) const OTHER: u8 = 1;
    /// The command line is wrong, or an argument breaks its limit.
    pub(crate) const USAGE: u8 = 2;
    /// Another owner holds the lease.
    pub(crate) const NOT_AVAILABLE: u8 = 3;
    /// The lease is lost, or the token is stale.
    pub(crate) const LEASE_LOST: u8 = 4;
    /// What was read has changed since.
    pub(crate) const CONFLICT: u8 = 5;
    /// The store is busy or out of reach, or a wait came to its end.
    pub(crate) const BUSY: u8 = 6;
    /// The store is damaged.
    pub(crate) const CORRUPT: u8 = 7;
}

/// Why a command ends without having done what it was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub(crate) status: u8,
    /// What to say; nothing when it has been said, or nobody listens.
    pub(crate) report: Option<Report>,
}

/// An error as it is printed.
#[derive(Debug)]
pub(crate) struct Report {
    /// The kind in `snake_case`.
    pub(crate) kind: &'static str,
    /// One line.
    pub(crate) message: String,
    /// What a program needs to act on it.
    pub(crate) detail: Map<String, Json>,
}

impl Failure {
    pub(crate) fn new(status: u8, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            report: Some(Report {
                kind,
                message: message.into(),
                detail: Map::new(),
            }),
        }
    }

    /// Ends with a status and no further word.
    pub(crate) fn silent(status: u8) -> Self {
        Self {
            status,
            report: None,
        }
    }

    /// An argument that breaks its limit.
    pub(crate) fn argument(argument: &str, message: impl std::fmt::Display) -> Self {
        Self::new(
            status::USAGE,
            ErrorKind::InvalidArgument.as_str(),
            format!("invalid {argument}: {message}"),
        )
        .with("argument", argument)
    }

    /// The storage refused.
    pub(crate) fn storage(message: impl Into<String>) -> Self {
        Self::new(status::OTHER, ErrorKind::Storage.as_str(), message)
    }

    /// Adds a detail.
    pub(crate) fn with(mut self, key: &str, value: impl Into<Json>) -> Self {
        if let Some(report) = &mut self.report {
            report.detail.insert(key.to_owned(), value.into());
        }
        self
    }

    /// Adds what led to it.
    pub(crate) fn because(mut self, cause: &str) -> Self {
        if let Some(report) = &mut self.report {
            report.message.push_str("; ");
            report.message.push_str(cause);
        }
        self.with("cause", cause)
    }

    /// What writing to standard output failed with. A reader that went away
    /// (`statepact ls | head -1`) has all that it wanted.
    pub(crate) fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::silent(0);
        }
        Self::new(
            status::OTHER,
            "output",
            format!("cannot write to standard output: {error}"),
        )
    }
}

fn status_of(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::InvalidArgument => status::USAGE,
        ErrorKind::LeaseNotAvailable => status::NOT_AVAILABLE,
        ErrorKind::LeaseLost => status::LEASE_LOST,
        ErrorKind::Conflict => status::CONFLICT,
        ErrorKind::Busy | ErrorKind::Unavailable | ErrorKind::TimedOut => status::BUSY,
        ErrorKind::Corrupt => status::CORRUPT,
        _ => status::OTHER,
    }
}

/// What to do next, where the library's words leave that to the program.
fn next_step(error: &Error) -> &'static str {
    match error {
        Error::LeaseNotAvailable { .. } => "; wait for it with --wait",
        Error::Busy { .. } => ", or raise --busy-timeout",
        Error::FenceRequired { .. } => ", on the command line --fence TOKEN",
        Error::ResourceExists { .. } => " with --merge",
        Error::Corrupt { message, .. } if !message.contains("restore") => {
            "; restore the store from a copy that is whole"
        }
        _ => "",
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let kind = error.kind();
        let message = match &error {
            // The library's words name its own calls.
            Error::ResourceNotFound { resource } => format!(
                "resource `{resource}` does not exist: `statepact set` or `lease acquire` creates it"
            ),
            error => format!("{error}{}", next_step(error)),
        };
        let failure = Self::new(status_of(kind), kind.as_str(), message);
        match &error {
            Error::InvalidArgument { argument, .. } => failure.with("argument", *argument),
            Error::ResourceNotFound { resource }
            | Error::FenceRequired { resource }
            | Error::ResourceExists { resource }
            | Error::TokensExhausted { resource } => failure.with("resource", resource.as_str()),
            Error::LeaseNotAvailable {
                resource,
                owner,
                expires_at,
            } => failure
                .with("resource", resource.as_str())
                .with("owner", owner.as_str())
                .with("expires_at", expires_at.to_string()),
            Error::WaitTimedOut {
                resource,
                owner,
                expires_at,
                waited,
            } => failure
                .with("resource", resource.as_str())
                .with("owner", owner.as_str())
                .with("expires_at", expires_at.to_string())
                .with("waited_seconds", waited.as_secs_f64()),
            Error::LeaseLost {
                resource,
                token,
                reason,
            } => with_reason(
                failure
                    .with("resource", resource.as_str())
                    .with("token", token.get()),
                *reason,
            ),
            Error::Conflict { resource, field } => failure
                .with("resource", resource.as_str())
                .with("field", json!(field.as_ref().map(AsRef::<str>::as_ref))),
            Error::WrongType {
                resource, field, ..
            } => failure
                .with("resource", resource.as_str())
                .with("field", field.as_str()),
            Error::HistoryPruned { after, oldest } => {
                failure.with("after", *after).with("oldest", *oldest)
            }
            Error::Busy { waited, .. } => failure.with("waited_seconds", waited.as_secs_f64()),
            Error::Corrupt { location, .. } => failure.with("location", location.as_str()),
            _ => failure,
        }
    }
}

fn with_reason(failure: Failure, reason: LossReason) -> Failure {
    match reason {
        LossReason::Expired => failure.with("reason", "expired"),
        LossReason::Released => failure.with("reason", "released"),
        LossReason::Superseded { by } => failure
            .with("reason", "superseded")
            .with("superseded_by", by.get()),
        _ => failure,
    }
}
