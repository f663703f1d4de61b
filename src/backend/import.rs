//! What is moved from one store to another.

use std::collections::BTreeSet;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::resource::{MAX_RESOURCES_PER_CALL, ResourceName};
use crate::rules::Entry;

/// Everything that a store holds of one resource: also of one that was
/// deleted, whose mark outlives it (R1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// The resource.
    pub resource: ResourceName,
    /// Mark, lease and state.
    pub entry: Entry,
}

/// What to export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExportRange {
    /// Up to `limit` resources, those after `after` in the order of the bytes
    /// of their names.
    After {
        /// The last name of the page before; `None` for the first page.
        after: Option<ResourceName>,
        /// How many.
        limit: usize,
    },
    /// These. One of which nothing is stored is left out.
    Of(Vec<ResourceName>),
}

/// A page of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportPage {
    /// What is exported, ordered by the bytes of the names.
    pub entries: Vec<Exported>,
    /// The store's time when it was read: leases have the time left that they
    /// had then.
    pub as_of: Timestamp,
}

/// What becomes of a resource that both stores hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Merge {
    /// The import is refused, unless the two are the same.
    #[default]
    Refuse,
    /// The state with the higher version stays, and of two with one version
    /// that of the store that is imported into.
    Newer,
}

/// What of the history comes with an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportHistory {
    /// Each resource that changes gets an event of its own,
    /// [`EventKind::Imported`](crate::event::EventKind::Imported).
    Note,
    /// These events, as they are: they go on where the log ends, without a
    /// gap, or begin an empty log.
    Append(Vec<Event>),
}

/// What to import, as one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportRequest {
    /// The resources, each at most once.
    pub entries: Vec<Exported>,
    /// [`ExportPage::as_of`] of the page that they come from.
    pub as_of: Timestamp,
    /// What becomes of those that are there already.
    pub merge: Merge,
    /// What of the history comes with them.
    pub history: ImportHistory,
}

impl ImportRequest {
    /// Checks the limits that hold for every backend.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when a resource is named twice, a lease has a
    /// token above the mark, or there are more than 1024 resources or events.
    pub fn validate(&self) -> Result<()> {
        let events = match &self.history {
            ImportHistory::Note => 0,
            ImportHistory::Append(events) => events.len(),
        };
        for (argument, count) in [("entries", self.entries.len()), ("history", events)] {
            if count > MAX_RESOURCES_PER_CALL {
                return Err(Error::invalid(
                    argument,
                    format!("{count} in one call; the limit is {MAX_RESOURCES_PER_CALL}"),
                ));
            }
        }
        let mut seen = BTreeSet::new();
        for Exported { resource, entry } in &self.entries {
            if !seen.insert(resource) {
                return Err(Error::invalid(
                    "entries",
                    format!("resource `{resource}` is named twice"),
                ));
            }
            // No store holds that, and one that took it over could issue the
            // token again (R1).
            if entry.mark < entry.lease.as_ref().map(|lease| lease.token) {
                return Err(Error::invalid(
                    "entries",
                    format!("the lease of resource `{resource}` has a token above its mark"),
                ));
            }
        }
        Ok(())
    }
}

/// What an import did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImportReport {
    /// The resources of which something changed.
    pub changed: u64,
    /// The events added.
    pub events: u64,
}
