//! Randomness, injected: commit ids, owner names and jitter come from here.

use std::fmt;
use std::sync::Mutex;

/// A source of random numbers.
pub trait Random: fmt::Debug + Send + Sync + 'static {
    /// 64 random bits.
    fn next_u64(&self) -> u64;
}

/// The operating system's randomness.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn next_u64(&self) -> u64 {
        #[expect(
            clippy::disallowed_methods,
            reason = "the one place where the system's randomness is asked for"
        )]
        let bits = getrandom::u64();
        bits.unwrap_or_else(|_| fastrand::u64(..))
    }
}

/// A repeatable sequence, for tests.
#[derive(Debug)]
pub struct SeededRandom(Mutex<fastrand::Rng>);

impl SeededRandom {
    /// The sequence that `seed` names.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(fastrand::Rng::with_seed(seed)))
    }
}

impl Random for SeededRandom {
    fn next_u64(&self) -> u64 {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .u64(..)
    }
}

#[cfg(test)]
mod tests;
