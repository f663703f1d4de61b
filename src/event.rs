//! The history of a store: one event for each change, in order.

use crate::clock::Timestamp;
use crate::lease::Token;
use crate::resource::{AgentName, CommitId, FieldName, OwnerName, ResourceName, Ttl, Value};

/// One change of a store, at its place in the store's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The position in the log: grows by one with each event, from 1.
    pub sequence: u64,
    /// When, on the backend's time line.
    pub at: Timestamp,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
///
/// Renewals are not events: a renewal changes when a lease ends, nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// A lease began, with a new token (R2).
    Acquired {
        /// The resource.
        resource: ResourceName,
        /// Who took it.
        owner: OwnerName,
        /// Its token.
        token: Token,
        /// When it expires unless renewed.
        expires_at: Timestamp,
        /// Its time to live.
        ttl: Ttl,
        /// The version of the resource, when this acquisition created it (R24).
        created: Option<u64>,
    },
    /// A lease was released by its holder (R6).
    Released {
        /// The resource.
        resource: ResourceName,
        /// Who had it.
        owner: OwnerName,
        /// Its token.
        token: Token,
    },
    /// An operator ended any lease and raised the mark (R9).
    Revoked {
        /// The resource.
        resource: ResourceName,
        /// The new mark.
        mark: Token,
    },
    /// A resource came from another store, without its history there.
    Imported {
        /// The resource.
        resource: ResourceName,
        /// Its mark from then on.
        mark: Option<Token>,
        /// Its version from then on; `None` when it has no state.
        version: Option<u64>,
    },
    /// State was written.
    Committed {
        /// Who wrote.
        agent: AgentName,
        /// The id that the caller gave the commit.
        id: Option<CommitId>,
        /// The fences that it carried: resource and token.
        fences: Vec<(ResourceName, Token)>,
        /// What it changed.
        changes: Vec<ResourceChange>,
    },
}

/// What a commit changed on one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceChange {
    /// The resource.
    pub resource: ResourceName,
    /// Its version after the commit.
    pub version: u64,
    /// Whether it was deleted.
    pub deleted: bool,
    /// Whether writes to it must carry a fence from then on (R17).
    pub fenced: bool,
    /// The fields written, with `None` for a field deleted.
    pub fields: Vec<(FieldName, Option<Value>)>,
}

impl EventKind {
    /// A short name in `snake_case`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Acquired { .. } => "acquired",
            Self::Released { .. } => "released",
            Self::Revoked { .. } => "revoked",
            Self::Imported { .. } => "imported",
            Self::Committed { .. } => "committed",
        }
    }

    /// Whether the event is about `resource`.
    pub fn concerns(&self, resource: &ResourceName) -> bool {
        match self {
            Self::Acquired { resource: of, .. }
            | Self::Released { resource: of, .. }
            | Self::Revoked { resource: of, .. }
            | Self::Imported { resource: of, .. } => of == resource,
            Self::Committed { changes, .. } => {
                changes.iter().any(|change| change.resource == *resource)
            }
        }
    }
}

/// A page of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventPage {
    /// The events, in order.
    pub events: Vec<Event>,
    /// The sequence to ask for next: that of the last event looked at, whether
    /// or not a filter let it through.
    pub next_after: u64,
    /// The sequence of the newest event of the store, 0 when there is none.
    pub newest: u64,
}

#[cfg(test)]
mod tests;
