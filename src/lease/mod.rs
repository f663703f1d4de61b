//! Leases and tokens, and the [`LeaseManager`] that takes, renews and holds
//! leases.

mod hold;
mod manager;
mod wait;

pub use hold::{HeldLease, Hold};
pub use manager::LeaseManager;
pub(crate) use wait::{Granted, Wait, acquire_waiting};

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::backend::Fence;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::resource::{OwnerName, ResourceName, Ttl};

/// A fencing token: a positive integer that grows with every change of owner
/// of its resource, 1 to `i64::MAX` (R1, R27).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Token(u64);

impl Token {
    /// The first token of a resource.
    pub const MIN: Self = Self(1);
    /// The last token of a resource: `i64::MAX`.
    pub const MAX: Self = Self(i64::MAX as u64);

    /// The token with this number.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless it is 1 to `i64::MAX`.
    pub fn new(number: u64) -> Result<Self> {
        if (Self::MIN.0..=Self::MAX.0).contains(&number) {
            Ok(Self(number))
        } else {
            Err(Error::invalid(
                "token",
                format!("{number} is outside 1 to {}", Self::MAX.0),
            ))
        }
    }

    /// Its number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// The token after this one, if there is one (R28).
    pub(crate) fn next(self) -> Option<Self> {
        (self < Self::MAX).then(|| Self(self.0 + 1))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl TryFrom<u64> for Token {
    type Error = Error;
    fn try_from(number: u64) -> Result<Self> {
        Self::new(number)
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> Self {
        token.0
    }
}

/// Ownership of a resource for a time.
///
/// What this value says was true when the backend answered. Only the backend
/// knows whether it still is ([`LeaseManager::guard`]), and only a fence in
/// the commit ([`Lease::fence`]) makes a write safe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// The resource.
    pub resource: ResourceName,
    /// Who holds it.
    pub owner: OwnerName,
    /// The fencing token.
    pub token: Token,
    /// When it expires, on the backend's time line (R11).
    pub expires_at: Timestamp,
    /// The time to live it was last acquired or renewed for, in milliseconds.
    pub ttl: Ttl,
}

impl Lease {
    /// Whether the lease has expired at `now`: local and optimistic, never the
    /// authority (R10).
    pub fn is_expired(&self, now: Timestamp) -> bool {
        now >= self.expires_at
    }

    /// The fence that a commit carries for this lease (R13).
    pub fn fence(&self) -> Fence {
        Fence {
            resource: self.resource.clone(),
            token: self.token,
            must_be_live: false,
        }
    }
}

#[cfg(test)]
mod tests;
