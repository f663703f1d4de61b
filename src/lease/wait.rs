//! Waiting for a lease.

use std::time::Duration;

use crate::backend::{AcquireRequest, Backend};
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

/// Acquires, waiting for other holders as `wait` says. The holder's expiry is
/// looked forward to, and a release is found by polling.
///
/// # Errors
/// [`Error::LeaseNotAvailable`] without a wait, [`Error::WaitTimedOut`] at the
/// end of one; then nothing is held: no attempt begins after the wait is over.
pub(crate) async fn acquire_waiting(
    backend: &dyn Backend,
    clock: &dyn Clock,
    random: &dyn Random,
    request: &AcquireRequest,
    wait: Wait,
) -> Result<Granted> {
    let start = clock.monotonic();
    loop {
        let sent = clock.monotonic();
        let refusal = match backend.acquire_all(request).await {
            Ok(leases) => return Ok(Granted { leases, sent }),
            Err(refusal @ Error::LeaseNotAvailable { .. }) => refusal,
            Err(error) => return Err(error),
        };
        let Error::LeaseNotAvailable {
            resource,
            owner,
            expires_at,
        } = refusal.clone()
        else {
            return Err(refusal);
        };
        let waited = clock.monotonic().since(start);
        let left = match wait {
            Wait::No => return Err(refusal),
            Wait::AtMost(longest) => longest.saturating_sub(waited),
            Wait::Forever => Duration::MAX,
        };
        if left.is_zero() {
            return Err(match wait {
                Wait::AtMost(longest) if longest.is_zero() => refusal,
                _ => Error::WaitTimedOut {
                    resource,
                    owner,
                    expires_at,
                    waited,
                },
            });
        }
        let (shortest, longest) = POLL_MS;
        let poll = Duration::from_millis(shortest + random.next_u64() % (longest - shortest));
        let until_expiry = expires_at
            .since(backend.now().await?)
            .max(Duration::from_millis(1));
        clock.sleep(poll.min(until_expiry).min(left)).await;
        // A waiter whose time is over takes nothing any more, even if the
        // lease has become free in this instant.
        if let Wait::AtMost(longest) = wait {
            let waited = clock.monotonic().since(start);
            if waited >= longest {
                return Err(Error::WaitTimedOut {
                    resource,
                    owner,
                    expires_at,
                    waited,
                });
            }
        }
    }
}
