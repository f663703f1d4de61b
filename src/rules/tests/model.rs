//! The rules again, told in another way: by the history of each resource
//! rather than by records. The mark is the highest of all the tokens that
//! were ever given out or seen, a field is known by the number of the write
//! that made it. Names are small numbers.

use std::collections::{BTreeMap, BTreeSet};

/// Who holds what, under which token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) resource: u8,
    pub(super) owner: u8,
    pub(super) token: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fenced {
    pub(super) resource: u8,
    pub(super) token: u64,
    pub(super) live: bool,
}

/// What a session saw: the write that had made a field, or the count of the
/// resource's changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    Field(u8, u8, Option<u64>),
    Whole(u8, Option<u64>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Writing {
    Fields(BTreeMap<u8, Option<i32>>),
    Replace(BTreeMap<u8, i32>),
    Delete,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) resource: u8,
    pub(super) writing: Writing,
    pub(super) fenced: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    Expired,
    Released,
    Superseded(u64),
}

/// What a call answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// Token and end of each lease.
    Acquired(Vec<(u64, i64)>),
    Renewed(i64),
    Released(bool),
    Revoked(u64),
    /// The resources that changed.
    Committed(Vec<u8>),
    NotAvailable(u8, u8, i64),
    NotFound(u8),
    Lost(u8, u64, Why),
    FenceRequired(u8),
    Conflict(u8, Option<u8>),
    Exhausted(u8),
}

#[derive(Debug, Clone, Copy)]
struct Grant {
    held: Held,
    until: i64,
    released: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Thing {
    /// Every token issued, observed or made by a revocation.
    tokens: BTreeSet<u64>,
    /// The latest grant.
    grant: Option<Grant>,
    /// Value, and number of the write.
    pub(super) fields: Option<BTreeMap<u8, (i32, u64)>>,
    pub(super) changes: u64,
    pub(super) fenced: bool,
}

impl Thing {
    pub(super) fn mark(&self) -> Option<u64> {
        self.tokens.last().copied()
    }

    fn live(&self, now: i64) -> Option<Grant> {
        self.grant.filter(|grant| {
            !grant.released && now < grant.until && self.mark() == Some(grant.held.token)
        })
    }

    fn next(&self) -> Option<u64> {
        let next = self.mark().unwrap_or(0) + 1;
        i64::try_from(next).is_ok().then_some(next)
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    pub(super) things: BTreeMap<u8, Thing>,
    writes: u64,
}

impl Model {
    pub(super) fn thing(&mut self, resource: u8) -> &mut Thing {
        self.things.entry(resource).or_default()
    }

    pub(super) fn acquire(
        &mut self,
        resources: &[u8],
        owner: u8,
        ttl: i64,
        create: bool,
        now: i64,
    ) -> Answer {
        // All or none: what is refused is seen on a copy.
        let mut after = self.clone();
        let mut granted = Vec::new();
        for &resource in resources {
            let thing = after.thing(resource);
            if thing.fields.is_none() {
                if !create {
                    return Answer::NotFound(resource);
                }
                thing.fields = Some(BTreeMap::new());
                thing.changes += 1;
            }
            let (token, until) = match thing.live(now) {
                Some(grant) if grant.held.owner != owner => {
                    return Answer::NotAvailable(resource, grant.held.owner, grant.until);
                }
                Some(grant) => (grant.held.token, grant.until.max(now + ttl)),
                None => match thing.next() {
                    Some(token) => (token, now + ttl),
                    None => return Answer::Exhausted(resource),
                },
            };
            thing.tokens.insert(token);
            thing.grant = Some(Grant {
                held: Held {
                    resource,
                    owner,
                    token,
                },
                until,
                released: false,
            });
            granted.push((token, until));
        }
        *self = after;
        Answer::Acquired(granted)
    }

    pub(super) fn renew(&mut self, held: Held, ttl: i64, now: i64) -> Answer {
        let thing = self.thing(held.resource);
        let why = match (thing.mark(), thing.grant.as_mut()) {
            (Some(mark), _) if mark > held.token => Why::Superseded(mark),
            (_, Some(grant)) if grant.held == held && grant.released => Why::Released,
            (_, Some(grant)) if grant.held == held && now < grant.until => {
                grant.until = now + ttl;
                return Answer::Renewed(grant.until);
            }
            (_, Some(grant)) if grant.held.token == held.token && grant.held != held => {
                Why::Superseded(held.token)
            }
            _ => Why::Expired,
        };
        Answer::Lost(held.resource, held.token, why)
    }

    pub(super) fn release(&mut self, held: Held, now: i64) -> Answer {
        let thing = self.thing(held.resource);
        let live = thing.live(now).is_some_and(|grant| grant.held == held);
        if let Some(grant) = thing.grant.as_mut().filter(|_| live) {
            grant.released = true;
        }
        Answer::Released(live)
    }

    pub(super) fn revoke(&mut self, resource: u8) -> Answer {
        let thing = self.thing(resource);
        if thing.tokens.is_empty() && thing.fields.is_none() {
            return Answer::NotFound(resource);
        }
        match thing.next() {
            None => Answer::Exhausted(resource),
            Some(token) => {
                thing.tokens.insert(token);
                Answer::Revoked(token)
            }
        }
    }

    /// What a session sees of a field or, for `None`, of a resource.
    pub(super) fn see(&mut self, resource: u8, field: Option<u8>) -> Seen {
        let thing = self.thing(resource);
        match field {
            None => Seen::Whole(resource, thing.fields.as_ref().map(|_| thing.changes)),
            Some(field) => {
                let found = thing.fields.as_ref().and_then(|fields| fields.get(&field));
                Seen::Field(resource, field, found.map(|(_, write)| *write))
            }
        }
    }

    pub(super) fn commit(
        &mut self,
        fences: &[Fenced],
        seen: &[Seen],
        writes: &[Written],
        now: i64,
    ) -> Answer {
        for fence in fences {
            let thing = self.thing(fence.resource);
            let lost = |why| Answer::Lost(fence.resource, fence.token, why);
            if let Some(mark) = thing.mark().filter(|mark| fence.token < *mark) {
                return lost(Why::Superseded(mark));
            }
            let live = thing.live(now).map(|grant| grant.held.token);
            if fence.live && live != Some(fence.token) {
                return lost(Why::Expired);
            }
        }
        for write in writes {
            if fences.is_empty() && self.thing(write.resource).fenced {
                return Answer::FenceRequired(write.resource);
            }
        }
        for &saw in seen {
            let (resource, field) = match saw {
                Seen::Field(resource, field, _) => (resource, Some(field)),
                Seen::Whole(resource, _) => (resource, None),
            };
            if self.see(resource, field) != saw {
                return Answer::Conflict(resource, field);
            }
        }
        for fence in fences {
            self.thing(fence.resource).tokens.insert(fence.token);
        }
        let changed = writes.iter().filter(|write| self.write(write));
        Answer::Committed(changed.map(|write| write.resource).collect())
    }

    /// Whether the write changed anything.
    fn write(&mut self, write: &Written) -> bool {
        self.writes += 1;
        let number = self.writes;
        let thing = self.thing(write.resource);
        let before = thing.fields.clone();
        let fenced = write.fenced.unwrap_or(thing.fenced);
        let (after, sets) = match &write.writing {
            Writing::Delete => {
                if before.is_none() {
                    return false;
                }
                (None, false)
            }
            Writing::Replace(named) => {
                let fields = named.iter().map(|(name, value)| (*name, (*value, number)));
                (Some(fields.collect()), true)
            }
            Writing::Fields(named) => {
                let mut fields = before.clone().unwrap_or_default();
                for (name, value) in named {
                    match value {
                        Some(value) => fields.insert(*name, (*value, number)),
                        None => fields.remove(name),
                    };
                }
                let sets = write.fenced.is_some() || named.values().any(Option::is_some);
                (Some(fields), sets)
            }
        };
        let creates = before.is_none() && sets;
        let changes = before.is_some() && (after != before || fenced != thing.fenced);
        if creates || changes {
            thing.fields = after;
            thing.fenced = fenced;
            thing.changes += 1;
        }
        creates || changes
    }
}
