//! The rules a second time, written for reading: what every call must answer.
//! It shares nothing with `crate::rules` but the types of the answers.

use std::collections::{BTreeMap, BTreeSet};

use crate::backend::{
    AcquireRequest, Change, Check, CheckReport, CommitReceipt, CommitRequest, LeaseState,
    LeaseStatus, ResourceSummary, ResourceWrite,
};
use crate::clock::Timestamp;
use crate::error::{Error, LossReason, Result};
use crate::event::{Event, EventKind, EventPage, ResourceChange};
use crate::lease::{Lease, Token};
use crate::resource::{FieldName, FieldState, OwnerName, ResourceName, ResourceState, Ttl, Value};

#[derive(Debug, Clone, Default)]
struct Thing {
    mark: u64,
    lease: Option<Held>,
    exists: bool,
    version: u64,
    fenced: bool,
    fields: BTreeMap<FieldName, (Value, u64)>,
}

#[derive(Debug, Clone)]
struct Held {
    owner: OwnerName,
    token: u64,
    /// `None` when it was released.
    until: Option<Timestamp>,
    ttl: Ttl,
}

/// A store, as the rules describe it.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) now: Timestamp,
    things: BTreeMap<ResourceName, Thing>,
    done: BTreeMap<u128, (CommitRequest, CommitReceipt)>,
    log: Vec<(Timestamp, EventKind)>,
}

fn lost(of: &ResourceName, token: u64, reason: LossReason) -> Result<Error> {
    Ok(Error::LeaseLost {
        resource: of.clone(),
        token: Token::new(token)?,
        reason,
    })
}

fn superseded(of: &ResourceName, token: u64, by: u64) -> Result<Error> {
    let by = Token::new(by)?;
    lost(of, token, LossReason::Superseded { by })
}

fn twice<'a>(names: impl IntoIterator<Item = &'a ResourceName>) -> bool {
    let mut seen = BTreeSet::new();
    !names.into_iter().all(|name| seen.insert(name))
}

impl Thing {
    fn holder(&self, now: Timestamp) -> Option<&Held> {
        self.lease
            .as_ref()
            .filter(|held| held.token == self.mark && held.until.is_some_and(|until| now < until))
    }

    fn lease(&self, of: &ResourceName) -> Result<Option<Lease>> {
        let Some(held) = &self.lease else {
            return Ok(None);
        };
        Ok(Some(Lease {
            resource: of.clone(),
            owner: held.owner.clone(),
            token: Token::new(held.token)?,
            expires_at: held.until.unwrap_or(Timestamp::EPOCH),
            ttl: held.ttl,
        }))
    }

    fn raise(&mut self, of: &ResourceName) -> Result<u64> {
        if self.mark == Token::MAX.get() {
            return Err(Error::TokensExhausted {
                resource: of.clone(),
            });
        }
        self.mark += 1;
        Ok(self.mark)
    }
}

impl Model {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            now,
            things: BTreeMap::new(),
            done: BTreeMap::new(),
            log: Vec::new(),
        }
    }

    fn thing(&self, of: &ResourceName) -> Thing {
        self.things.get(of).cloned().unwrap_or_default()
    }

    fn newest(&self) -> u64 {
        self.log.len() as u64
    }

    pub(super) fn acquire(&mut self, request: &AcquireRequest) -> Result<Vec<Lease>> {
        if request.resources.is_empty() || twice(&request.resources) {
            return Err(Error::invalid("resources", ""));
        }
        let mut leases = Vec::new();
        let (mut things, mut log) = (Vec::new(), Vec::new());
        for of in &request.resources {
            let mut thing = self.thing(of);
            if !thing.exists && !request.create {
                return Err(Error::ResourceNotFound {
                    resource: of.clone(),
                });
            }
            let until = self.now.plus(request.ttl.as_duration());
            let holder = thing.holder(self.now).cloned();
            let is_new = holder.is_none();
            let held = match holder {
                Some(held) if held.owner != request.owner => {
                    return Err(Error::LeaseNotAvailable {
                        resource: of.clone(),
                        owner: held.owner,
                        expires_at: held.until.unwrap_or_default(),
                    });
                }
                Some(held) => Held {
                    until: held.until.max(Some(until)),
                    ttl: request.ttl,
                    ..held
                },
                None => Held {
                    owner: request.owner.clone(),
                    token: thing.raise(of)?,
                    until: Some(until),
                    ttl: request.ttl,
                },
            };
            thing.lease = Some(held);
            let created = (!thing.exists).then(|| {
                thing.exists = true;
                thing.version += 1;
                thing.version
            });
            let lease = thing
                .lease(of)?
                .ok_or_else(|| Error::invalid("model", ""))?;
            if is_new || created.is_some() {
                log.push(EventKind::Acquired {
                    resource: of.clone(),
                    owner: lease.owner.clone(),
                    token: lease.token,
                    expires_at: lease.expires_at,
                    ttl: lease.ttl,
                    created,
                });
            }
            leases.push(lease);
            things.push((of.clone(), thing));
        }
        self.things.extend(things);
        self.log
            .extend(log.into_iter().map(|kind| (self.now, kind)));
        Ok(leases)
    }

    pub(super) fn renew(&mut self, lease: &Lease, ttl: Ttl) -> Result<Lease> {
        let (of, token) = (&lease.resource, lease.token.get());
        let mut thing = self.thing(of);
        if thing.mark > token {
            return Err(superseded(of, token, thing.mark)?);
        }
        let holder = thing.holder(self.now);
        if holder.is_some_and(|held| held.owner == lease.owner && held.token == token) {
            if let Some(held) = &mut thing.lease {
                held.until = Some(self.now.plus(ttl.as_duration()));
                held.ttl = ttl;
            }
            let renewed = thing.lease(of)?.ok_or_else(|| Error::invalid("model", ""));
            self.things.insert(of.clone(), thing);
            return renewed;
        }
        let reason = match &thing.lease {
            Some(held) if held.token != token => LossReason::Expired,
            Some(held) if held.owner != lease.owner => LossReason::Superseded { by: lease.token },
            Some(held) if held.until.is_none() => LossReason::Released,
            _ => LossReason::Expired,
        };
        Err(lost(of, token, reason)?)
    }

    pub(super) fn release(&mut self, lease: &Lease) -> bool {
        let mut thing = self.thing(&lease.resource);
        let is_it = thing
            .holder(self.now)
            .is_some_and(|held| held.owner == lease.owner && held.token == lease.token.get());
        if is_it {
            if let Some(held) = &mut thing.lease {
                held.until = None;
            }
            self.things.insert(lease.resource.clone(), thing);
            let kind = EventKind::Released {
                resource: lease.resource.clone(),
                owner: lease.owner.clone(),
                token: lease.token,
            };
            self.log.push((self.now, kind));
        }
        is_it
    }

    pub(super) fn revoke(&mut self, of: &ResourceName) -> Result<Token> {
        let mut thing = self.thing(of);
        if !thing.exists && thing.mark == 0 {
            return Err(Error::ResourceNotFound {
                resource: of.clone(),
            });
        }
        let mark = Token::new(thing.raise(of)?)?;
        self.things.insert(of.clone(), thing);
        let kind = EventKind::Revoked {
            resource: of.clone(),
            mark,
        };
        self.log.push((self.now, kind));
        Ok(mark)
    }

    pub(super) fn guard(&self, lease: &Lease) -> Result<()> {
        let mark = self.thing(&lease.resource).mark;
        if mark > lease.token.get() {
            return Err(superseded(&lease.resource, lease.token.get(), mark)?);
        }
        Ok(())
    }

    pub(super) fn commit(&mut self, request: &CommitRequest) -> Result<CommitReceipt> {
        if twice(request.fences.iter().map(|fence| &fence.resource)) {
            return Err(Error::invalid("fences", ""));
        }
        if twice(request.writes.iter().map(|write| &write.resource)) {
            return Err(Error::invalid("writes", ""));
        }
        if let Some((first, receipt)) = request.id.and_then(|id| self.done.get(&id.as_bits())) {
            if first == request {
                return Ok(receipt.clone());
            }
            return Err(Error::invalid("commit_id", ""));
        }
        // All of it is done to a copy, which takes the store's place at the end.
        let mut things = self.things.clone();
        let mut raised = false;
        for fence in &request.fences {
            let thing = things.entry(fence.resource.clone()).or_default();
            let token = fence.token.get();
            if thing.mark > token {
                return Err(superseded(&fence.resource, token, thing.mark)?);
            }
            let live = thing
                .holder(self.now)
                .is_some_and(|held| held.token == token);
            if fence.must_be_live && !live {
                return Err(lost(&fence.resource, token, LossReason::Expired)?);
            }
            raised |= thing.mark < token;
            thing.mark = token;
        }
        if request.fences.is_empty() {
            let fenced = request
                .writes
                .iter()
                .find(|write| self.thing(&write.resource).fenced);
            if let Some(write) = fenced {
                return Err(Error::FenceRequired {
                    resource: write.resource.clone(),
                });
            }
        }
        for check in &request.checks {
            self.check(check)?;
        }
        let mut changes = Vec::new();
        for write in &request.writes {
            let thing = things.entry(write.resource.clone()).or_default();
            changes.extend(change(thing, write));
        }
        let mut receipt = CommitReceipt {
            sequence: self.newest(),
            versions: changes
                .iter()
                .map(|change| (change.resource.clone(), change.version))
                .collect(),
        };
        if changes.is_empty() && !raised {
            return Ok(receipt);
        }
        receipt.sequence += 1;
        let fences = request.fences.iter();
        let kind = EventKind::Committed {
            agent: request.agent.clone(),
            id: request.id,
            fences: fences
                .map(|fence| (fence.resource.clone(), fence.token))
                .collect(),
            changes,
        };
        self.log.push((self.now, kind));
        self.things = things;
        if let Some(id) = request.id {
            self.done
                .insert(id.as_bits(), (request.clone(), receipt.clone()));
        }
        Ok(receipt)
    }

    fn check(&self, check: &Check) -> Result<()> {
        let thing = self.thing(check.resource());
        let (now, then, field) = match check {
            Check::Field { field, version, .. } => {
                let current = thing.fields.get(field).map(|(_, version)| *version);
                (current, *version, Some(field.clone()))
            }
            Check::Resource { version, .. } => {
                (thing.exists.then_some(thing.version), *version, None)
            }
        };
        if now == then {
            return Ok(());
        }
        Err(Error::Conflict {
            resource: check.resource().clone(),
            field,
        })
    }

    pub(super) fn status(&self, of: &ResourceName) -> Result<LeaseStatus> {
        let thing = self.thing(of);
        let state = match &thing.lease {
            Some(held) if held.token != thing.mark => LeaseState::Superseded,
            Some(Held { until: None, .. }) => LeaseState::Released,
            _ if thing.holder(self.now).is_some() => LeaseState::Live,
            _ => LeaseState::Expired,
        };
        Ok(LeaseStatus {
            mark: (thing.mark > 0)
                .then(|| Token::new(thing.mark))
                .transpose()?,
            lease: thing.lease(of)?.map(|lease| (lease, state)),
            now: self.now,
        })
    }

    pub(super) fn state(&self, of: &ResourceName) -> Option<ResourceState> {
        let thing = self.things.get(of).filter(|thing| thing.exists)?;
        let fields = thing.fields.iter().map(|(name, (value, version))| {
            let field = FieldState {
                value: value.clone(),
                version: *version,
            };
            (name.clone(), field)
        });
        Some(ResourceState {
            version: thing.version,
            fenced: thing.fenced,
            fields: fields.collect(),
        })
    }

    pub(super) fn list(
        &self,
        prefix: &str,
        after: Option<&ResourceName>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>> {
        self.things
            .iter()
            .filter(|(name, thing)| thing.exists && name.as_str().starts_with(prefix))
            .filter(|(name, _)| after.is_none_or(|after| *name > after))
            .take(limit)
            .map(|(name, thing)| {
                Ok(ResourceSummary {
                    resource: name.clone(),
                    version: thing.version,
                    fenced: thing.fenced,
                    fields: thing.fields.len(),
                    lease: self.status(name)?,
                })
            })
            .collect()
    }

    pub(super) fn events(&self, after: u64, limit: usize) -> EventPage {
        let events: Vec<Event> = (1..)
            .zip(&self.log)
            .filter(|(sequence, _)| *sequence > after)
            .take(limit)
            .map(|(sequence, (at, kind))| Event {
                sequence,
                at: *at,
                kind: kind.clone(),
            })
            .collect();
        EventPage {
            next_after: events.last().map_or(after, |event| event.sequence),
            events,
            newest: self.newest(),
        }
    }

    pub(super) fn report(&self) -> CheckReport {
        let count =
            |is: fn(&Thing) -> bool| self.things.values().filter(|thing| is(thing)).count() as u64;
        CheckReport {
            resources: count(|thing| thing.exists),
            marks: count(|thing| thing.mark > 0),
            leases: count(|thing| thing.lease.is_some()),
            events: self.newest(),
        }
    }
}

/// Changes a thing as a write says; what to log of it, if anything.
fn change(thing: &mut Thing, write: &ResourceWrite) -> Option<ResourceChange> {
    let version = thing.version + 1;
    let (existed, was_fenced) = (thing.exists, thing.fenced);
    let fenced = write.fenced.unwrap_or(was_fenced);
    let mut fields = Vec::new();
    let (changed, exists) = match &write.change {
        Change::Fields(named) => {
            for (name, value) in named {
                if let Some(value) = value {
                    thing.fields.insert(name.clone(), (value.clone(), version));
                } else if thing.fields.remove(name).is_none() {
                    continue;
                }
                fields.push((name.clone(), value.clone()));
            }
            let says = write.fenced.is_some() && (!existed || fenced != was_fenced);
            (!fields.is_empty() || says, true)
        }
        Change::Replace(named) => {
            let gone = thing
                .fields
                .keys()
                .filter(|name| !named.contains_key(*name));
            fields.extend(gone.map(|name| (name.clone(), None)));
            thing.fields.clear();
            for (name, value) in named {
                thing.fields.insert(name.clone(), (value.clone(), version));
                fields.push((name.clone(), Some(value.clone())));
            }
            (!existed || !fields.is_empty() || fenced != was_fenced, true)
        }
        Change::Delete => {
            thing.fields.clear();
            (existed, false)
        }
    };
    if !changed {
        return None;
    }
    thing.version = version;
    thing.fenced = fenced;
    thing.exists = exists;
    Some(ResourceChange {
        resource: write.resource.clone(),
        version,
        deleted: !exists,
        fenced,
        fields,
    })
}
