//! The checks that cases are made of. None panics: a failed check ends its
//! case with what was expected and what came.

use std::fmt::Debug;

use super::report::Failure;
use crate::error::{Error, LossReason};
use crate::lease::Token;
use crate::resource::FieldName;

/// How a case ends before its end.
#[derive(Debug)]
pub(super) enum Stop {
    Failed(Failure),
    Skipped(String),
}

/// What a case answers.
pub(super) type Verdict<T = ()> = Result<T, Stop>;

impl From<Error> for Stop {
    #[track_caller]
    fn from(error: Error) -> Self {
        Self::Failed(Failure::new("a call", "success", format!("{error:?}")))
    }
}

impl From<super::FixtureError> for Stop {
    #[track_caller]
    fn from(error: super::FixtureError) -> Self {
        Self::Failed(Failure::new("the fixture", "a store", error.to_string()))
    }
}

impl From<tokio::task::JoinError> for Stop {
    #[track_caller]
    fn from(error: tokio::task::JoinError) -> Self {
        Self::Failed(panicked(error))
    }
}

#[track_caller]
pub(super) fn panicked(error: tokio::task::JoinError) -> Failure {
    let found = match error.try_into_panic() {
        Ok(panic) => {
            let message = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied());
            format!("a panic: {}", message.unwrap_or("without a message"))
        }
        Err(error) => format!("{error}"),
    };
    Failure::new("a task of the case", "an end without a panic", found)
}

#[track_caller]
pub(super) fn failed<T>(
    what: impl Into<String>,
    expected: impl Into<String>,
    found: impl Into<String>,
) -> Verdict<T> {
    Err(Stop::Failed(Failure::new(what, expected, found)))
}

pub(super) fn skipped<T>(reason: impl Into<String>) -> Verdict<T> {
    Err(Stop::Skipped(reason.into()))
}

#[track_caller]
pub(super) fn expect(what: &str, holds: bool) -> Verdict {
    if holds {
        Ok(())
    } else {
        failed(what, "that it is so", "it is not")
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "what is expected is mostly made in place"
)]
#[track_caller]
pub(super) fn expect_eq<T: PartialEq<U> + Debug, U: Debug>(
    what: &str,
    found: T,
    expected: U,
) -> Verdict {
    if found == expected {
        Ok(())
    } else {
        failed(what, format!("{expected:?}"), format!("{found:?}"))
    }
}

/// Something that ought to be there.
#[track_caller]
pub(super) fn expect_some<T>(what: &str, found: Option<T>) -> Verdict<T> {
    match found {
        Some(found) => Ok(found),
        None => failed(what, "something", "nothing"),
    }
}

/// The one thing in a list.
#[track_caller]
pub(super) fn expect_one<T: Debug>(what: &str, found: Vec<T>) -> Verdict<T> {
    match <[T; 1]>::try_from(found) {
        Ok([one]) => Ok(one),
        Err(found) => failed(what, "one", format!("{found:?}")),
    }
}

/// The two things in a list.
#[track_caller]
pub(super) fn expect_two<T: Debug>(what: &str, found: Vec<T>) -> Verdict<(T, T)> {
    match <[T; 2]>::try_from(found) {
        Ok([one, two]) => Ok((one, two)),
        Err(found) => failed(what, "two", format!("{found:?}")),
    }
}

#[track_caller]
fn expect_error<T: Debug>(
    what: &str,
    expected: &str,
    found: Result<T, Error>,
    is: impl FnOnce(&Error) -> bool,
) -> Verdict {
    match found {
        Err(error) if is(&error) => Ok(()),
        other => failed(what, expected, format!("{other:?}")),
    }
}

#[track_caller]
pub(super) fn expect_lost<T: Debug>(
    what: &str,
    found: Result<T, Error>,
    of: &str,
    with: Token,
    why: LossReason,
) -> Verdict {
    let expected = format!("LeaseLost of `{of}`, token {with}, {why:?}");
    expect_error(what, &expected, found, |error| {
        matches!(error, Error::LeaseLost { resource, token, reason }
            if resource.as_str() == of && *token == with && *reason == why)
            && !error.is_retryable()
    })
}

#[track_caller]
pub(super) fn expect_conflict<T: Debug>(
    what: &str,
    found: Result<T, Error>,
    of: &str,
    on: Option<&str>,
) -> Verdict {
    let expected = format!("Conflict on `{of}`, field {on:?}, retryable");
    expect_error(what, &expected, found, |error| {
        matches!(error, Error::Conflict { resource, field }
            if resource.as_str() == of && field.as_ref().map(FieldName::as_str) == on)
            && error.is_retryable()
    })
}

#[track_caller]
pub(super) fn expect_held<T: Debug>(
    what: &str,
    found: Result<T, Error>,
    by: &crate::Lease,
) -> Verdict {
    let expected = format!(
        "LeaseNotAvailable of `{}`, held by `{}` until {}",
        by.resource, by.owner, by.expires_at
    );
    expect_error(what, &expected, found, |error| {
        matches!(error, Error::LeaseNotAvailable { resource, owner, expires_at }
            if *resource == by.resource && *owner == by.owner && *expires_at == by.expires_at)
    })
}

#[track_caller]
pub(super) fn expect_not_found<T: Debug>(what: &str, found: Result<T, Error>, of: &str) -> Verdict {
    let expected = format!("ResourceNotFound of `{of}`");
    expect_error(
        what,
        &expected,
        found,
        |error| matches!(error, Error::ResourceNotFound { resource } if resource.as_str() == of),
    )
}

#[track_caller]
pub(super) fn expect_fence_required<T: Debug>(
    what: &str,
    found: Result<T, Error>,
    of: &str,
) -> Verdict {
    let expected = format!("FenceRequired of `{of}`");
    expect_error(
        what,
        &expected,
        found,
        |error| matches!(error, Error::FenceRequired { resource } if resource.as_str() == of),
    )
}

#[track_caller]
pub(super) fn expect_exhausted<T: Debug>(what: &str, found: Result<T, Error>, of: &str) -> Verdict {
    let expected = format!("TokensExhausted of `{of}`");
    expect_error(
        what,
        &expected,
        found,
        |error| matches!(error, Error::TokensExhausted { resource } if resource.as_str() == of),
    )
}

#[track_caller]
pub(super) fn expect_invalid<T: Debug>(
    what: &str,
    found: Result<T, Error>,
    names: &str,
) -> Verdict {
    let expected = format!("InvalidArgument that names `{names}`");
    expect_error(
        what,
        &expected,
        found,
        |error| matches!(error, Error::InvalidArgument { argument, .. } if *argument == names),
    )
}

#[track_caller]
pub(super) fn expect_pruned<T: Debug>(what: &str, found: Result<T, Error>, asked: u64) -> Verdict {
    let expected = format!("HistoryPruned after {asked}");
    expect_error(what, &expected, found, |error| {
        matches!(error, Error::HistoryPruned { after, oldest }
            if *after == asked && *oldest > asked + 1)
    })
}
