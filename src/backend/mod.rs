//! The [`Backend`] trait, its written contract, and the requests it takes.
//!
//! Callers use [`StateManager`](crate::StateManager) and
//! [`LeaseManager`](crate::LeaseManager); this module is for those who
//! implement a store or talk to one directly.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::clock::Timestamp;
use crate::error::{Error, LossReason, Result};
use crate::event::EventPage;
use crate::lease::{Lease, Token};
use crate::resource::{
    AgentName, CommitId, FieldName, MAX_COMMIT_BYTES, MAX_RESOURCES_PER_CALL, OwnerName,
    ResourceName, ResourceState, Ttl, Value,
};

#[cfg(feature = "embedded")]
pub mod embedded;
mod import;
pub mod memory;
mod open;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod waiters;

pub use import::{
    ExportPage, ExportRange, Exported, ImportHistory, ImportReport, ImportRequest, Merge,
};
pub use open::{names_server, open};
pub use waiters::Waiters;

/// A store of leases, fences and state.
///
/// # Contract
///
/// Every implementation gives the same outcome for the same sequence of calls
/// and clock (R30); the feature `conformance` has the suite that holds it to
/// that.
///
/// - **Atomicity.** Each call takes effect as one step or not at all. A call
///   that answers with an error has changed nothing, with one exception:
///   [`Error::OutcomeUnknown`] says that it may have happened (R20, R26).
/// - **Ordering.** Calls are linearizable: one that begins after another has
///   answered sees what the other did, through whatever handle or process.
/// - **Durability.** A change has reached stable storage when its call
///   answers, as far as the backend's documentation promises.
/// - **Time.** Only the backend's own clock decides what is live (R11), and
///   only liveness (R12).
/// - **Cancellation.** Dropping the future of a call leaves the call done
///   wholly or not at all (R25). An acquisition whose future was dropped
///   before it answered must not leave a new lease held with nobody behind
///   it: the implementation releases it.
/// - **Errors.** The kinds mean the same everywhere. A backend that cannot be
///   reached answers [`Error::Unavailable`] only when nothing can have
///   changed.
/// - **Rules.** What is granted and what refused is decided by
///   [`rules`](crate::rules), called or restated.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// The backend's own time (R11).
    async fn now(&self) -> Result<Timestamp>;

    /// Acquires the leases of all the request's resources, or none of them
    /// (R2 to R4, R24), in the request's order.
    ///
    /// # Errors
    /// [`Error::LeaseNotAvailable`], [`Error::ResourceNotFound`] (unless the
    /// request creates), [`Error::TokensExhausted`]; for several resources the
    /// first in the request's order that is refused.
    async fn acquire_all(&self, request: &AcquireRequest) -> Result<Vec<Lease>>;

    /// Extends a live lease to `now + ttl` (R5).
    ///
    /// # Errors
    /// [`Error::LeaseLost`] with the reason.
    async fn renew(&self, lease: &Lease, ttl: Ttl) -> Result<Lease>;

    /// Ends a live lease; whether it was live (R6).
    async fn release(&self, lease: &Lease) -> Result<bool>;

    /// Ends any lease of the resource and raises its mark by one; the new
    /// mark (R9).
    ///
    /// # Errors
    /// [`Error::ResourceNotFound`] when the resource does not exist and never
    /// had a token; [`Error::TokensExhausted`].
    async fn revoke(&self, resource: &ResourceName) -> Result<Token>;

    /// The mark and the lease of a resource, as the backend sees them now.
    async fn lease_status(&self, resource: &ResourceName) -> Result<LeaseStatus>;

    /// Reads resources from one snapshot; `None` for one that does not exist.
    async fn read(&self, resources: &[ResourceName]) -> Result<Vec<Option<ResourceState>>>;

    /// Checks the fences, then the reads, then writes, as one step (R13 to
    /// R18, R20, R22). A request whose id was committed before answers what
    /// it answered then (R26).
    ///
    /// # Errors
    /// In this order: [`Error::InvalidArgument`]; [`Error::LeaseLost`];
    /// [`Error::FenceRequired`]; [`Error::Conflict`].
    async fn commit(&self, request: &CommitRequest) -> Result<CommitReceipt>;

    /// The resources that exist and whose names begin with `prefix`, taken
    /// literally, ordered by the bytes of their names: at most `limit` of
    /// them, those after `after`.
    async fn list(
        &self,
        prefix: &str,
        after: Option<&ResourceName>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>>;

    /// Up to `limit` events with a sequence above `after`, oldest first.
    ///
    /// # Errors
    /// [`Error::HistoryPruned`] when events after `after` are gone already.
    async fn events(&self, after: u64, limit: usize) -> Result<EventPage>;

    /// Everything that the store holds of some resources, from one snapshot:
    /// also of those that were deleted or that have nothing but a mark.
    ///
    /// # Errors
    /// [`Error::Storage`] from a backend that cannot be copied from.
    async fn export(&self, range: &ExportRange) -> Result<ExportPage> {
        let _ = range;
        Err(Error::Storage {
            message: "this backend cannot be copied from".to_owned(),
        })
    }

    /// Takes over what another store held, as one step.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]; [`Error::ResourceExists`];
    /// [`Error::Storage`] from a backend that cannot be copied to.
    async fn import(&self, request: &ImportRequest) -> Result<ImportReport> {
        let _ = request;
        Err(Error::Storage {
            message: "this backend cannot be copied to".to_owned(),
        })
    }

    /// Verifies everything that the store holds, calling `progress` with the
    /// records verified so far.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the first damage that it finds.
    async fn check(&self, progress: &(dyn Fn(u64) + Send + Sync)) -> Result<CheckReport>;

    /// Who waits in this process for leases of this store. A backend that has
    /// it calls [`Waiters::lease_ended`] when it learns that one has ended;
    /// without it, callers that wait look now and then, in no order.
    fn waiters(&self) -> Option<&Waiters> {
        None
    }

    /// What is not as it should be with the store's surroundings, each in a
    /// sentence for a person: a server without persistence, a setting that
    /// could not be looked at.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Acquires the lease of one resource that exists (R2 to R4).
    ///
    /// # Errors
    /// As [`Backend::acquire_all`].
    async fn acquire(&self, resource: &ResourceName, owner: &OwnerName, ttl: Ttl) -> Result<Lease> {
        let request = AcquireRequest {
            resources: vec![resource.clone()],
            owner: owner.clone(),
            ttl,
            create: false,
        };
        let leases = self.acquire_all(&request).await?;
        leases.into_iter().next().ok_or_else(|| Error::Corrupt {
            location: format!("lease of `{resource}`"),
            message: "the backend granted no lease and no error".to_owned(),
        })
    }

    /// The mark of a resource; `None` if it never had a token (R7).
    async fn current_fence(&self, resource: &ResourceName) -> Result<Option<Token>> {
        Ok(self.lease_status(resource).await?.mark)
    }

    /// Fails when the resource has a newer token than the lease, and only
    /// then (R8).
    ///
    /// # Errors
    /// [`Error::LeaseLost`] with [`LossReason::Superseded`].
    async fn guard(&self, lease: &Lease) -> Result<()> {
        let mark = self.current_fence(&lease.resource).await?;
        crate::rules::guard(mark, &lease.resource, lease.token)
    }
}

/// What to acquire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcquireRequest {
    /// The resources, each at most once.
    pub resources: Vec<ResourceName>,
    /// Who will hold them.
    pub owner: OwnerName,
    /// For how long without renewal.
    pub ttl: Ttl,
    /// Whether to create the resources that do not exist (R24).
    pub create: bool,
}

impl AcquireRequest {
    /// Checks the limits that hold for every backend (R27).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when no resource is named, too many are, or
    /// one is named twice.
    pub fn validate(&self) -> Result<()> {
        check_distinct("resources", &self.resources)?;
        if self.resources.is_empty() {
            return Err(Error::invalid("resources", "none is named"));
        }
        Ok(())
    }
}

/// A token that a commit carries for the backend to check (R13).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The resource whose mark the token is held against. It need not be a
    /// resource that the commit touches.
    pub resource: ResourceName,
    /// The token.
    pub token: Token,
    /// Whether the lease must be live as well (R16).
    pub must_be_live: bool,
}

/// What must not have changed since the session read it (R22).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// A field: its version then, or `None` if it was absent.
    Field {
        /// The resource.
        resource: ResourceName,
        /// The field.
        field: FieldName,
        /// The field's version, or `None` if it was absent.
        version: Option<u64>,
    },
    /// A whole resource: its version then, or `None` if it did not exist.
    Resource {
        /// The resource.
        resource: ResourceName,
        /// The resource's version, or `None` if it did not exist.
        version: Option<u64>,
    },
}

impl Check {
    /// The resource that it names.
    pub fn resource(&self) -> &ResourceName {
        match self {
            Self::Field { resource, .. } | Self::Resource { resource, .. } => resource,
        }
    }
}

/// What to write to one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceWrite {
    /// The resource. It is created if it does not exist.
    pub resource: ResourceName,
    /// The change.
    pub change: Change,
    /// Sets whether writes must carry a fence from now on (R17); `None`
    /// leaves that as it is.
    pub fenced: Option<bool>,
}

/// A change of a resource's state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Writes some fields and, for `None`, deletes some. Deleting what is not
    /// there changes nothing and creates nothing.
    Fields(BTreeMap<FieldName, Option<Value>>),
    /// Writes the whole state: fields that are not named are deleted.
    Replace(BTreeMap<FieldName, Value>),
    /// Deletes the resource. Its mark, its version count and whether it is
    /// fenced outlive it (R1, R17).
    Delete,
}

/// A commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitRequest {
    /// Makes it safe to send the request again (R26).
    pub id: Option<CommitId>,
    /// Who writes, for the history.
    pub agent: AgentName,
    /// The tokens to check (R13), at most one for each resource.
    pub fences: Vec<Fence>,
    /// What must not have changed (R22).
    pub checks: Vec<Check>,
    /// What to write, at most once for each resource.
    pub writes: Vec<ResourceWrite>,
}

impl CommitRequest {
    /// Checks the limits that hold for every backend (R27).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when a resource is written or fenced twice,
    /// or when it names more than 1024 resources or writes more than 64 MiB.
    pub fn validate(&self) -> Result<()> {
        check_distinct("fences", self.fences.iter().map(|fence| &fence.resource))?;
        check_distinct("writes", self.writes.iter().map(|write| &write.resource))?;
        // A session checks many fields of one resource.
        let read: BTreeSet<_> = self.checks.iter().map(Check::resource).collect();
        check_distinct("checks", read)?;
        let bytes: usize = self.writes.iter().map(write_bytes).sum();
        if bytes > MAX_COMMIT_BYTES {
            return Err(Error::invalid(
                "writes",
                format!("{bytes} bytes in one commit; the limit is {MAX_COMMIT_BYTES}"),
            ));
        }
        Ok(())
    }

    /// A number that tells two requests apart that carry the same id by
    /// mistake: FNV-1a over what the request would do.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Fnv::default();
        hash.part(self.agent.as_str());
        for fence in &self.fences {
            hash.part(fence.resource.as_str());
            hash.part(&fence.token.to_string());
        }
        for write in &self.writes {
            hash.part(write.resource.as_str());
            hash.part(&format!("{:?}", write.fenced));
            match &write.change {
                Change::Fields(fields) => {
                    hash.part("fields");
                    for (field, value) in fields {
                        hash.part(field.as_str());
                        hash.part(value.as_ref().map_or("", Value::as_str));
                    }
                }
                Change::Replace(fields) => {
                    hash.part("replace");
                    for (field, value) in fields {
                        hash.part(field.as_str());
                        hash.part(value.as_str());
                    }
                }
                Change::Delete => hash.part("delete"),
            }
        }
        hash.0
    }
}

struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    /// Adds a text and a byte that no UTF-8 text contains.
    fn part(&mut self, text: &str) {
        for byte in text.bytes().chain([0xFF]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

fn write_bytes(write: &ResourceWrite) -> usize {
    let fields: usize = match &write.change {
        Change::Fields(fields) => fields
            .iter()
            .map(|(name, value)| {
                name.as_str().len() + value.as_ref().map_or(0, |value| value.as_str().len())
            })
            .sum(),
        Change::Replace(fields) => fields
            .iter()
            .map(|(name, value)| name.as_str().len() + value.as_str().len())
            .sum(),
        Change::Delete => 0,
    };
    fields + write.resource.as_str().len()
}

fn check_distinct<'a>(
    argument: &'static str,
    names: impl IntoIterator<Item = &'a ResourceName>,
) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Error::invalid(
                argument,
                format!("resource `{name}` is named twice"),
            ));
        }
    }
    if seen.len() > MAX_RESOURCES_PER_CALL {
        return Err(Error::invalid(
            argument,
            format!(
                "{} resources in one call; the limit is {MAX_RESOURCES_PER_CALL}",
                seen.len()
            ),
        ));
    }
    Ok(())
}

/// What a commit did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitReceipt {
    /// The sequence of the commit's event; that of the newest event before it
    /// when the commit changed nothing.
    pub sequence: u64,
    /// The version of each resource that it changed, in the request's order.
    pub versions: Vec<(ResourceName, u64)>,
}

/// What became of the lease that a backend stores for a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseState {
    /// It gives ownership.
    Live,
    /// Its time ran out.
    Expired,
    /// Its holder released it.
    Released,
    /// A newer token was observed, or an operator revoked it.
    Superseded,
}

impl LeaseState {
    /// Its name in `snake_case`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Expired => "expired",
            Self::Released => "released",
            Self::Superseded => "superseded",
        }
    }

    /// Why a lease in this state is lost; `None` for a live one.
    pub fn loss(self, mark: Token) -> Option<LossReason> {
        match self {
            Self::Live => None,
            Self::Expired => Some(LossReason::Expired),
            Self::Released => Some(LossReason::Released),
            Self::Superseded => Some(LossReason::Superseded { by: mark }),
        }
    }
}

/// The mark and the last lease of a resource, with the backend's time at which
/// they were looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseStatus {
    /// The mark (R7).
    pub mark: Option<Token>,
    /// The last lease that was granted, and what became of it.
    pub lease: Option<(Lease, LeaseState)>,
    /// The backend's time.
    pub now: Timestamp,
}

/// A resource in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceSummary {
    /// Its name.
    pub resource: ResourceName,
    /// Its version.
    pub version: u64,
    /// Whether writes to it must carry a fence (R17).
    pub fenced: bool,
    /// How many fields it has.
    pub fields: usize,
    /// Its mark and last lease.
    pub lease: LeaseStatus,
}

/// What a check of a store verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CheckReport {
    /// Resources that exist.
    pub resources: u64,
    /// Marks, those of deleted resources included.
    pub marks: u64,
    /// Leases, live or not.
    pub leases: u64,
    /// Events kept.
    pub events: u64,
}

/// A backend behind a shared handle.
pub type SharedBackend = Arc<dyn Backend>;
