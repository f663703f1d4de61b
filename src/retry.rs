//! When to run a piece of work again.

use std::time::Duration;

use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::random::Random;

/// How often, and after what pauses, work is run again that failed with an
/// error that [`Error::is_retryable`]. A lost lease is not (R19).
///
/// The pause after the *n*th failure is random between zero and `base · 2ⁿ`,
/// at most `longest` ("full jitter"), so that sessions that collided once do not
/// collide again.
///
/// ```
/// use statepact::RetryPolicy;
/// use std::time::Duration;
///
/// let patient = RetryPolicy::default().attempts(50).within(Duration::from_secs(60));
/// # let _ = patient;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    attempts: u32,
    within: Duration,
    base: Duration,
    longest: Duration,
}

impl Default for RetryPolicy {
    /// 20 attempts within 30 s, with pauses from 5 ms to 1 s.
    fn default() -> Self {
        Self {
            attempts: 20,
            within: Duration::from_secs(30),
            base: Duration::from_millis(5),
            longest: Duration::from_secs(1),
        }
    }
}

impl RetryPolicy {
    /// One attempt, no retry.
    pub fn none() -> Self {
        Self::default().attempts(1)
    }

    /// At most this many attempts, the first included; 0 counts as 1.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// No attempt begins later than this after the first.
    #[must_use]
    pub fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    /// The pauses: `base` doubles with each attempt, up to `longest`.
    #[must_use]
    pub fn pauses(mut self, base: Duration, longest: Duration) -> Self {
        self.base = base;
        self.longest = longest;
        self
    }

    /// The longest pause after `failures` failures.
    fn ceiling(&self, failures: u32) -> Duration {
        let doubled = self
            .base
            .saturating_mul(1_u32.checked_shl(failures.min(31)).unwrap_or(u32::MAX));
        doubled.min(self.longest)
    }
}

/// Counts the attempts of one piece of work.
#[derive(Debug)]
pub(crate) struct Attempts<'a> {
    policy: RetryPolicy,
    clock: &'a dyn Clock,
    random: &'a dyn Random,
    start: crate::clock::Monotonic,
    failures: u32,
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(policy: RetryPolicy, clock: &'a dyn Clock, random: &'a dyn Random) -> Self {
        Self {
            policy,
            clock,
            random,
            start: clock.monotonic(),
            failures: 0,
        }
    }

    /// Pauses after a failure that is worth another attempt; gives the error
    /// back when it is not.
    pub(crate) async fn after(&mut self, error: Error) -> Result<()> {
        self.failures += 1;
        if !error.is_retryable() || self.failures >= self.policy.attempts {
            return Err(error);
        }
        let ceiling = self.policy.ceiling(self.failures);
        let nanos = u64::try_from(ceiling.as_nanos()).unwrap_or(u64::MAX);
        let pause = match nanos.checked_add(1) {
            Some(range) => Duration::from_nanos(self.random.next_u64() % range),
            None => ceiling,
        };
        let spent = self.clock.monotonic().since(self.start);
        if spent.saturating_add(pause) > self.policy.within {
            return Err(error);
        }
        self.clock.sleep(pause).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
