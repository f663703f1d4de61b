//! Waiting for a lease.

use std::time::Duration;

use crate::backend::{AcquireRequest, Backend, LeaseStatus};
use crate::clock::{Clock, Monotonic};
use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::random::Random;

/// How long to wait for leases that somebody else holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Wait {
    /// Not at all: one attempt.
    #[default]
    No,
    /// At most this long.
    AtMost(Duration),
    /// Until they are free.
    Forever,
}

/// Leases that were granted.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) leases: Vec<Lease>,
    /// The local clock before the request was sent that was granted: from
    /// there the holder counts its time.
    pub(crate) sent: Monotonic,
}

impl Granted {
    /// The lease of a request for one resource.
    pub(crate) fn first(self) -> Result<Lease> {
        self.leases
            .into_iter()
            .next()
            .ok_or_else(|| Error::Corrupt {
                location: "backend".to_owned(),
                message: "it granted no lease and no error".to_owned(),
            })
    }
}

/// The shortest and the longest time between two attempts; the jitter between
/// them keeps waiters from moving in step.
const POLL_MS: (u64, u64) = (50, 250);

/// Acquires, waiting for other holders as `wait` says: in the order of arrival
/// among the callers of this process, woken when a lease is known to have
/// ended, and looking now and then for what nobody told. A backend that cannot
/// be reached for a while does not end a wait that has begun.
///
/// # Errors
/// [`Error::LeaseNotAvailable`] without a wait, [`Error::WaitTimedOut`] at the
/// end of one; then nothing is held: no attempt begins after the wait is over.
/// Where the last attempt had no answer, its error is that of the wait.
pub(crate) async fn acquire_waiting(
    backend: &dyn Backend,
    clock: &dyn Clock,
    random: &dyn Random,
    request: &AcquireRequest,
    wait: Wait,
) -> Result<Granted> {
    let longest = match wait {
        Wait::No => Duration::ZERO,
        Wait::AtMost(longest) => longest,
        Wait::Forever => Duration::MAX,
    };
    if longest.is_zero() {
        let sent = clock.monotonic();
        let leases = backend.acquire_all(request).await?;
        return Ok(Granted { leases, sent });
    }
    request.validate()?;
    let start = clock.monotonic();
    let mut place = backend
        .waiters()
        .map(|waiters| waiters.join(&request.resources));
    if let Some(place) = &mut place {
        tokio::select! {
            biased;
            () = place.turn() => {}
            () = clock.sleep(longest) => {
                let waited = clock.monotonic().since(start);
                return Err(behind_others(backend, request, waited).await);
            }
        }
    }
    let mut has_begun = false;
    loop {
        let sent = clock.monotonic();
        let refused = match backend.acquire_all(request).await {
            Ok(leases) => return Ok(Granted { leases, sent }),
            Err(refused) => refused,
        };
        let until_expiry = match &refused {
            Error::LeaseNotAvailable { expires_at, .. } => {
                has_begun = true;
                backend.now().await.map_or(Duration::MAX, |now| {
                    expires_at.since(now).max(Duration::from_millis(1))
                })
            }
            // A server that restarts ends no wait that it has begun. Should an
            // attempt without an answer have been granted, the next one finds
            // that lease again: it has the same owner (R3).
            error if has_begun && may_pass(error) => Duration::MAX,
            _ => return Err(refused),
        };
        let (shortest, most) = POLL_MS;
        let poll = Duration::from_millis(shortest + random.next_u64() % (most - shortest));
        let left = longest.saturating_sub(clock.monotonic().since(start));
        let nap = clock.sleep(poll.min(until_expiry).min(left));
        match &place {
            Some(place) => tokio::select! {
                () = place.lease_ended() => {}
                () = nap => {}
            },
            None => nap.await,
        }
        // A waiter whose time is over takes nothing any more, even if the
        // lease has become free in this instant.
        let waited = clock.monotonic().since(start);
        if waited >= longest {
            return Err(match refused {
                Error::LeaseNotAvailable {
                    resource,
                    owner,
                    expires_at,
                } => Error::WaitTimedOut {
                    resource,
                    owner,
                    expires_at,
                    waited,
                },
                other => other,
            });
        }
    }
}

/// Whether a later attempt may go better.
fn may_pass(error: &Error) -> bool {
    matches!(
        error,
        Error::Unavailable { .. } | Error::OutcomeUnknown { .. } | Error::Busy { .. }
    )
}

/// The error of a caller whose time was over before its turn came.
async fn behind_others(backend: &dyn Backend, request: &AcquireRequest, waited: Duration) -> Error {
    for resource in &request.resources {
        match backend.lease_status(resource).await {
            Ok(LeaseStatus {
                lease: Some((lease, _)),
                ..
            }) => {
                return Error::WaitTimedOut {
                    resource: lease.resource,
                    owner: lease.owner,
                    expires_at: lease.expires_at,
                    waited,
                };
            }
            Ok(_) => {}
            Err(error) => return error,
        }
    }
    Error::Busy {
        what: "the callers of this process that came first",
        waited,
    }
}

#[cfg(test)]
mod tests;
