//! The rules of ownership, fencing and transactions, R2 to R28, as pure
//! functions from stored records, a request and a time to an outcome and new
//! records. No I/O, no clock, no waiting.
//!
//! A backend loads the [`Records`] that an [`Op`] needs, calls [`decide`], and
//! stores the [`Effects`] in the same atomic step. An error has no effects:
//! every refusal changes nothing.

use std::collections::BTreeMap;

use crate::backend::{
    AcquireRequest, Change, Check, CommitReceipt, CommitRequest, Fence, ImportReport,
    ImportRequest, LeaseState, LeaseStatus, ResourceWrite,
};
use crate::clock::Timestamp;
use crate::error::{Error, LossReason, Result};
use crate::event::{Event, EventKind, ResourceChange};
use crate::lease::{Lease, Token};
use crate::resource::{
    CommitId, FieldState, MAX_STATE_BYTES, OwnerName, ResourceName, ResourceState, Ttl,
};

mod import;

/// A lease as it is stored. `expires_at` at the epoch says that it was
/// released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Who holds it.
    pub owner: OwnerName,
    /// Its token.
    pub token: Token,
    /// When it ends.
    pub expires_at: Timestamp,
    /// The time to live it was last granted for.
    pub ttl: Ttl,
}

impl LeaseRecord {
    fn to_lease(&self, resource: &ResourceName) -> Lease {
        Lease {
            resource: resource.clone(),
            owner: self.owner.clone(),
            token: self.token,
            expires_at: self.expires_at,
            ttl: self.ttl,
        }
    }

    fn is(&self, lease: &Lease) -> bool {
        self.owner == lease.owner && self.token == lease.token
    }
}

/// A resource as it is stored. One that was deleted keeps its version count
/// and whether it is fenced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceRecord {
    /// Whether it exists; otherwise it was deleted.
    pub exists: bool,
    /// Version, fields and whether it is fenced.
    pub state: ResourceState,
}

/// All that is stored of one resource, or as much of it as an [`Op`] needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Entry {
    /// The mark (R7).
    pub mark: Option<Token>,
    /// The last lease.
    pub lease: Option<LeaseRecord>,
    /// The state.
    pub resource: Option<ResourceRecord>,
}

impl Entry {
    fn existing(&self) -> Option<&ResourceState> {
        self.resource
            .as_ref()
            .filter(|record| record.exists)
            .map(|record| &record.state)
    }

    fn version(&self) -> u64 {
        self.resource
            .as_ref()
            .map_or(0, |record| record.state.version)
    }

    fn is_fenced(&self) -> bool {
        self.resource
            .as_ref()
            .is_some_and(|record| record.state.fenced)
    }
}

/// The outcome of a commit that was given an id, kept so that the request can
/// be sent again (R26).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredReceipt {
    /// [`CommitRequest::fingerprint`] of the request.
    pub fingerprint: u64,
    /// What it was answered.
    pub receipt: CommitReceipt,
}

/// What a decision is made on.
#[derive(Debug, Clone, Default)]
pub struct Records {
    /// The entries of the resources that the operation names; one that is
    /// missing here has nothing stored.
    pub entries: BTreeMap<ResourceName, Entry>,
    /// What is stored for the operation's commit id.
    pub receipt: Option<StoredReceipt>,
    /// The sequence of the newest event, 0 when there is none.
    pub newest: u64,
}

impl Records {
    fn entry(&self, resource: &ResourceName) -> &Entry {
        const NOTHING: &Entry = &Entry {
            mark: None,
            lease: None,
            resource: None,
        };
        self.entries.get(resource).unwrap_or(NOTHING)
    }
}

/// An operation that may change the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// R2, R3, R4, R24.
    Acquire(AcquireRequest),
    /// R5.
    Renew(Lease, Ttl),
    /// R6.
    Release(Lease),
    /// R9.
    Revoke(ResourceName),
    /// R13 to R18, R20 to R23, R26.
    Commit(CommitRequest),
    /// R1, for what comes from another store.
    Import(ImportRequest),
}

/// Which parts of an entry an operation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs {
    /// [`Entry::lease`]. The mark is always needed.
    pub lease: bool,
    /// [`Entry::resource`].
    pub resource: bool,
}

impl Op {
    /// The entries that [`decide`] will look at.
    pub fn needs(&self) -> BTreeMap<ResourceName, Needs> {
        let mut needs: BTreeMap<ResourceName, Needs> = BTreeMap::new();
        let mut need = |resource: &ResourceName, lease: bool, state: bool| {
            let of = needs.entry(resource.clone()).or_default();
            of.lease |= lease;
            of.resource |= state;
        };
        match self {
            Self::Acquire(request) => {
                for resource in &request.resources {
                    need(resource, true, true);
                }
            }
            Self::Renew(lease, _) | Self::Release(lease) => need(&lease.resource, true, false),
            Self::Revoke(resource) => need(resource, false, true),
            Self::Commit(request) => {
                for fence in &request.fences {
                    need(&fence.resource, fence.must_be_live, false);
                }
                for check in &request.checks {
                    need(check.resource(), false, true);
                }
                for write in &request.writes {
                    need(&write.resource, false, true);
                }
            }
            Self::Import(request) => {
                for exported in &request.entries {
                    need(&exported.resource, true, true);
                }
            }
        }
        needs
    }

    /// The commit id whose stored receipt [`decide`] will look at.
    pub fn commit_id(&self) -> Option<CommitId> {
        match self {
            Self::Commit(request) => request.id,
            _ => None,
        }
    }

    /// Checks the limits that hold for every backend (R27).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`].
    pub fn validate(&self) -> Result<()> {
        match self {
            Self::Acquire(request) => request.validate(),
            Self::Commit(request) => request.validate(),
            Self::Import(request) => request.validate(),
            Self::Renew(..) | Self::Release(_) | Self::Revoke(_) => Ok(()),
        }
    }
}

/// What an operation answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The leases acquired, in the request's order.
    Acquired(Vec<Lease>),
    /// The lease as renewed.
    Renewed(Lease),
    /// Whether the lease was live.
    Released(bool),
    /// The new mark.
    Revoked(Token),
    /// The commit's receipt.
    Committed(CommitReceipt),
    /// What the import did.
    Imported(ImportReport),
}

/// The records as they become. Nothing in it: the operation changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Effects {
    /// New marks.
    pub marks: Vec<(ResourceName, Token)>,
    /// New lease records.
    pub leases: Vec<(ResourceName, LeaseRecord)>,
    /// New resource records.
    pub resources: Vec<(ResourceName, ResourceRecord)>,
    /// Events to append; the first takes the sequence after
    /// [`Records::newest`].
    pub events: Vec<EventKind>,
    /// Events of another store to append as they are, after
    /// [`Effects::events`].
    pub copied: Vec<Event>,
    /// A receipt to keep.
    pub receipt: Option<(CommitId, StoredReceipt)>,
}

impl Effects {
    /// Whether there is nothing to store.
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
            && self.leases.is_empty()
            && self.resources.is_empty()
            && self.events.is_empty()
            && self.copied.is_empty()
            && self.receipt.is_none()
    }
}

/// Decides an operation.
///
/// # Errors
/// What the rule says that refuses it; then nothing is to be stored.
pub fn decide(op: &Op, records: &Records, now: Timestamp) -> Result<(Outcome, Effects)> {
    op.validate()?;
    match op {
        Op::Acquire(request) => acquire(request, records, now),
        Op::Renew(lease, ttl) => renew(lease, *ttl, records.entry(&lease.resource), now),
        Op::Release(lease) => Ok(release(lease, records.entry(&lease.resource), now)),
        Op::Revoke(resource) => revoke(resource, records.entry(resource)),
        Op::Commit(request) => commit(request, records, now),
        Op::Import(request) => import::import(request, records, now),
    }
}

/// Whether the stored lease of an entry gives ownership now.
fn is_live(entry: &Entry, now: Timestamp) -> bool {
    matches!(lease_state(entry, now), Some(LeaseState::Live))
}

fn lease_state(entry: &Entry, now: Timestamp) -> Option<LeaseState> {
    let lease = entry.lease.as_ref()?;
    Some(if entry.mark != Some(lease.token) {
        LeaseState::Superseded
    } else if lease.expires_at == Timestamp::EPOCH {
        LeaseState::Released
    } else if now < lease.expires_at {
        LeaseState::Live
    } else {
        LeaseState::Expired
    })
}

/// The mark and lease of a resource as a reader sees them (R7).
pub fn status(resource: &ResourceName, entry: &Entry, now: Timestamp) -> LeaseStatus {
    LeaseStatus {
        mark: entry.mark,
        lease: entry
            .lease
            .as_ref()
            .zip(lease_state(entry, now))
            .map(|(lease, state)| (lease.to_lease(resource), state)),
        now,
    }
}

/// R8: fails when the mark is above the token, and only then.
///
/// # Errors
/// [`Error::LeaseLost`] with [`LossReason::Superseded`].
pub fn guard(mark: Option<Token>, resource: &ResourceName, token: Token) -> Result<()> {
    match mark {
        Some(mark) if mark > token => {
            Err(lost(resource, token, LossReason::Superseded { by: mark }))
        }
        _ => Ok(()),
    }
}

/// Whether the events after `after` are all there, `oldest` being the sequence
/// of the oldest kept, or of the next one to come when none is.
///
/// # Errors
/// [`Error::HistoryPruned`].
pub fn check_history(after: u64, oldest: u64) -> Result<()> {
    if after.saturating_add(1) < oldest {
        Err(Error::HistoryPruned { after, oldest })
    } else {
        Ok(())
    }
}

/// The sequence of the oldest event to keep when it is time to prune: the
/// newest `history` events stay, and up to a tenth more until then, so that
/// pruning is done seldom and in one go.
pub fn prune_before(oldest: u64, newest: u64, history: u64) -> Option<u64> {
    let kept = (newest + 1).saturating_sub(oldest);
    (kept > history.saturating_add(history / 10)).then(|| newest.saturating_sub(history) + 1)
}

fn lost(resource: &ResourceName, token: Token, reason: LossReason) -> Error {
    Error::LeaseLost {
        resource: resource.clone(),
        token,
        reason,
    }
}

/// R28: the token after the mark.
fn next_token(resource: &ResourceName, mark: Option<Token>) -> Result<Token> {
    match mark {
        None => Ok(Token::MIN),
        Some(mark) => mark.next().ok_or_else(|| Error::TokensExhausted {
            resource: resource.clone(),
        }),
    }
}

fn acquire(
    request: &AcquireRequest,
    records: &Records,
    now: Timestamp,
) -> Result<(Outcome, Effects)> {
    let mut leases = Vec::with_capacity(request.resources.len());
    let mut effects = Effects::default();
    for resource in &request.resources {
        let entry = records.entry(resource);
        let lease = acquire_one(resource, request, entry, now, &mut effects)?;
        leases.push(lease.to_lease(resource));
        effects.leases.push((resource.clone(), lease));
    }
    Ok((Outcome::Acquired(leases), effects))
}

fn acquire_one(
    resource: &ResourceName,
    request: &AcquireRequest,
    entry: &Entry,
    now: Timestamp,
    effects: &mut Effects,
) -> Result<LeaseRecord> {
    let missing = entry.existing().is_none();
    if missing && !request.create {
        return Err(Error::ResourceNotFound {
            resource: resource.clone(),
        });
    }
    let until = now.plus(request.ttl.as_duration());
    let held = entry.lease.as_ref().filter(|_| is_live(entry, now));
    let lease = match held {
        Some(held) if held.owner == request.owner => LeaseRecord {
            // R3: extended, never shortened, and the token stays.
            expires_at: held.expires_at.max(until),
            ttl: request.ttl,
            ..held.clone()
        },
        Some(held) => {
            return Err(Error::LeaseNotAvailable {
                resource: resource.clone(),
                owner: held.owner.clone(),
                expires_at: held.expires_at,
            });
        }
        None => LeaseRecord {
            owner: request.owner.clone(),
            token: next_token(resource, entry.mark)?,
            expires_at: until,
            ttl: request.ttl,
        },
    };
    // R24: the state is created in the step that acquires.
    let created = missing.then(|| entry.version() + 1);
    if let Some(version) = created {
        let record = ResourceRecord {
            exists: true,
            state: ResourceState {
                version,
                fenced: entry.is_fenced(),
                fields: BTreeMap::new(),
            },
        };
        effects.resources.push((resource.clone(), record));
    }
    if held.is_none() {
        effects.marks.push((resource.clone(), lease.token));
    }
    // An extension is a renewal, which is not an event, unless it created.
    if held.is_none() || created.is_some() {
        effects.events.push(EventKind::Acquired {
            resource: resource.clone(),
            owner: lease.owner.clone(),
            token: lease.token,
            expires_at: lease.expires_at,
            ttl: lease.ttl,
            created,
        });
    }
    Ok(lease)
}

fn renew(lease: &Lease, ttl: Ttl, entry: &Entry, now: Timestamp) -> Result<(Outcome, Effects)> {
    guard(entry.mark, &lease.resource, lease.token)?;
    let reason = match (&entry.lease, lease_state(entry, now)) {
        (Some(stored), Some(state)) if stored.is(lease) => match state {
            LeaseState::Live => {
                let renewed = LeaseRecord {
                    expires_at: now.plus(ttl.as_duration()),
                    ttl,
                    ..stored.clone()
                };
                let outcome = Outcome::Renewed(renewed.to_lease(&lease.resource));
                let effects = Effects {
                    leases: vec![(lease.resource.clone(), renewed)],
                    ..Effects::default()
                };
                return Ok((outcome, effects));
            }
            LeaseState::Released => LossReason::Released,
            LeaseState::Expired | LeaseState::Superseded => LossReason::Expired,
        },
        // The same token in other hands: this lease comes from a life of the
        // store that a restored backup does not know (R15).
        (Some(stored), _) if stored.token == lease.token => {
            LossReason::Superseded { by: stored.token }
        }
        _ => LossReason::Expired,
    };
    Err(lost(&lease.resource, lease.token, reason))
}

fn release(lease: &Lease, entry: &Entry, now: Timestamp) -> (Outcome, Effects) {
    let stored = entry
        .lease
        .as_ref()
        .filter(|stored| stored.is(lease) && is_live(entry, now));
    let Some(stored) = stored else {
        return (Outcome::Released(false), Effects::default());
    };
    let ended = LeaseRecord {
        expires_at: Timestamp::EPOCH,
        ..stored.clone()
    };
    let effects = Effects {
        leases: vec![(lease.resource.clone(), ended)],
        events: vec![EventKind::Released {
            resource: lease.resource.clone(),
            owner: lease.owner.clone(),
            token: lease.token,
        }],
        ..Effects::default()
    };
    (Outcome::Released(true), effects)
}

fn revoke(resource: &ResourceName, entry: &Entry) -> Result<(Outcome, Effects)> {
    if entry.mark.is_none() && entry.existing().is_none() {
        return Err(Error::ResourceNotFound {
            resource: resource.clone(),
        });
    }
    // The stored lease stays as it is: its token is below the mark now.
    let mark = next_token(resource, entry.mark)?;
    let effects = Effects {
        marks: vec![(resource.clone(), mark)],
        events: vec![EventKind::Revoked {
            resource: resource.clone(),
            mark,
        }],
        ..Effects::default()
    };
    Ok((Outcome::Revoked(mark), effects))
}

fn commit(
    request: &CommitRequest,
    records: &Records,
    now: Timestamp,
) -> Result<(Outcome, Effects)> {
    if let Some(stored) = &records.receipt {
        // R26: the first outcome, whatever has happened since.
        if stored.fingerprint != request.fingerprint() {
            return Err(Error::invalid(
                "commit_id",
                "another commit was made with this id; use a new one",
            ));
        }
        return Ok((
            Outcome::Committed(stored.receipt.clone()),
            Effects::default(),
        ));
    }
    let mut effects = Effects::default();
    // R18: fences first.
    for fence in &request.fences {
        check_fence(fence, records.entry(&fence.resource), now, &mut effects)?;
    }
    if request.fences.is_empty() {
        // R17
        for write in &request.writes {
            if records.entry(&write.resource).is_fenced() {
                return Err(Error::FenceRequired {
                    resource: write.resource.clone(),
                });
            }
        }
    }
    for check in &request.checks {
        validate(check, records.entry(check.resource()))?;
    }
    let mut changes = Vec::new();
    for write in &request.writes {
        if let Some((record, change)) = apply(write, records.entry(&write.resource))? {
            effects.resources.push((write.resource.clone(), record));
            changes.push(change);
        }
    }
    let mut receipt = CommitReceipt {
        sequence: records.newest,
        versions: changes
            .iter()
            .map(|change| (change.resource.clone(), change.version))
            .collect(),
    };
    // A commit that changes nothing leaves no trace: it writes nothing.
    if !changes.is_empty() || !effects.marks.is_empty() {
        receipt.sequence += 1;
        effects.events.push(EventKind::Committed {
            agent: request.agent.clone(),
            id: request.id,
            fences: request
                .fences
                .iter()
                .map(|fence| (fence.resource.clone(), fence.token))
                .collect(),
            changes,
        });
        effects.receipt = request.id.map(|id| {
            let stored = StoredReceipt {
                fingerprint: request.fingerprint(),
                receipt: receipt.clone(),
            };
            (id, stored)
        });
    }
    Ok((Outcome::Committed(receipt), effects))
}

fn check_fence(fence: &Fence, entry: &Entry, now: Timestamp, effects: &mut Effects) -> Result<()> {
    // R13; R14: that a lease has expired is not looked at here.
    guard(entry.mark, &fence.resource, fence.token)?;
    let stored = entry.lease.as_ref().map(|lease| lease.token);
    if fence.must_be_live && !(is_live(entry, now) && stored == Some(fence.token)) {
        // R16
        return Err(lost(&fence.resource, fence.token, LossReason::Expired));
    }
    if entry.mark < Some(fence.token) {
        // R15
        effects.marks.push((fence.resource.clone(), fence.token));
    }
    Ok(())
}

/// R22
fn validate(check: &Check, entry: &Entry) -> Result<()> {
    let state = entry.existing();
    let (unchanged, field) = match check {
        Check::Field { field, version, .. } => {
            let current = state.and_then(|state| state.fields.get(field));
            (
                current.map(|current| current.version) == *version,
                Some(field),
            )
        }
        Check::Resource { version, .. } => (state.map(|state| state.version) == *version, None),
    };
    if unchanged {
        Ok(())
    } else {
        Err(Error::Conflict {
            resource: check.resource().clone(),
            field: field.cloned(),
        })
    }
}

/// The record that a write makes, and what to say of it in the history;
/// `None` when the write changes nothing.
fn apply(write: &ResourceWrite, entry: &Entry) -> Result<Option<(ResourceRecord, ResourceChange)>> {
    let before = entry.existing();
    let version = entry.version() + 1;
    let fenced = write.fenced.unwrap_or(entry.is_fenced());
    let mut fields = before.map(|state| state.fields.clone()).unwrap_or_default();
    let mut changed = Vec::new();
    let mut exists = true;
    match &write.change {
        Change::Fields(named) => {
            for (field, value) in named {
                match value {
                    Some(value) => {
                        let value = value.clone();
                        changed.push((field.clone(), Some(value.clone())));
                        fields.insert(field.clone(), FieldState { value, version });
                    }
                    None if fields.remove(field).is_some() => changed.push((field.clone(), None)),
                    None => {}
                }
            }
            let set_fence =
                write.fenced.is_some() && (before.is_none() || fenced != entry.is_fenced());
            if changed.is_empty() && !set_fence {
                return Ok(None);
            }
        }
        Change::Replace(named) => {
            for field in fields.keys().filter(|field| !named.contains_key(*field)) {
                changed.push((field.clone(), None));
            }
            if before.is_some()
                && named.is_empty()
                && changed.is_empty()
                && fenced == entry.is_fenced()
            {
                return Ok(None);
            }
            fields = named
                .iter()
                .map(|(field, value)| {
                    let value = value.clone();
                    changed.push((field.clone(), Some(value.clone())));
                    (field.clone(), FieldState { value, version })
                })
                .collect();
        }
        Change::Delete => {
            if before.is_none() {
                return Ok(None);
            }
            fields.clear();
            exists = false;
        }
    }
    let bytes: usize = fields
        .iter()
        .map(|(field, state)| field.as_str().len() + state.value.as_str().len())
        .sum();
    if bytes > MAX_STATE_BYTES {
        return Err(Error::invalid(
            "writes",
            format!(
                "resource `{}` would hold {bytes} bytes; the limit is {MAX_STATE_BYTES}",
                write.resource
            ),
        ));
    }
    let change = ResourceChange {
        resource: write.resource.clone(),
        version,
        deleted: !exists,
        fenced,
        fields: changed,
    };
    let state = ResourceState {
        version,
        fenced,
        fields,
    };
    Ok(Some((ResourceRecord { exists, state }, change)))
}

#[cfg(test)]
mod tests;
