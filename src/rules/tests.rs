//! The rules, one small test each, named after the rule.
//!
//! Rules that are not decided in this module are tested elsewhere: R10 and the
//! limits of tokens with [`Lease`]; R11 with each backend's clock; R19 with
//! [`Error`] and the retry policy; R20 (durability), R25 and R29 with the
//! embedded engine; R21 with sessions; R27 with names, values and requests;
//! R30 in the conformance suite.

mod fencing;
mod history;
mod import;
mod leases;
mod model;
mod properties;
mod transactions;
mod writes;

use super::*;
use crate::resource::{AgentName, FieldName, Value};

fn res(name: &str) -> ResourceName {
    ResourceName::new(name).unwrap()
}

fn owner(name: &str) -> OwnerName {
    OwnerName::new(name).unwrap()
}

fn field(name: &str) -> FieldName {
    FieldName::new(name).unwrap()
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn ttl(millis: u64) -> Ttl {
    Ttl::from_millis(millis).unwrap()
}

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn json(text: &str) -> Value {
    Value::parse(text).unwrap()
}

fn lease(resource: &str, by: &str, number: u64) -> Lease {
    Lease {
        resource: res(resource),
        owner: owner(by),
        token: token(number),
        expires_at: at(0),
        ttl: ttl(100),
    }
}

fn fence(resource: &str, number: u64) -> Fence {
    lease(resource, "whoever", number).fence()
}

fn live_fence(resource: &str, number: u64) -> Fence {
    Fence {
        must_be_live: true,
        ..fence(resource, number)
    }
}

/// A write of the field `x`.
fn write(resource: &str, value: &str) -> ResourceWrite {
    fields(resource, &[("x", Some(value))])
}

fn fields(resource: &str, named: &[(&str, Option<&str>)]) -> ResourceWrite {
    let named = named
        .iter()
        .map(|(name, value)| (field(name), value.map(json)))
        .collect();
    change(resource, Change::Fields(named))
}

fn replace(resource: &str, named: &[(&str, &str)]) -> ResourceWrite {
    let named = named
        .iter()
        .map(|(name, value)| (field(name), json(value)))
        .collect();
    change(resource, Change::Replace(named))
}

fn delete(resource: &str) -> ResourceWrite {
    change(resource, Change::Delete)
}

fn set_fenced(resource: &str, fenced: bool) -> ResourceWrite {
    ResourceWrite {
        fenced: Some(fenced),
        ..fields(resource, &[])
    }
}

fn change(resource: &str, change: Change) -> ResourceWrite {
    ResourceWrite {
        resource: res(resource),
        change,
        fenced: None,
    }
}

fn check(resource: &str, name: &str, version: Option<u64>) -> Check {
    Check::Field {
        resource: res(resource),
        field: field(name),
        version,
    }
}

fn check_whole(resource: &str, version: Option<u64>) -> Check {
    Check::Resource {
        resource: res(resource),
        version,
    }
}

fn commit_of(
    fences: impl Into<Vec<Fence>>,
    checks: impl Into<Vec<Check>>,
    writes: impl Into<Vec<ResourceWrite>>,
) -> CommitRequest {
    CommitRequest {
        id: None,
        agent: AgentName::new("agent").unwrap(),
        fences: fences.into(),
        checks: checks.into(),
        writes: writes.into(),
    }
}

fn acquire_of(resources: &[&str], by: &str, millis: u64, create: bool) -> Op {
    Op::Acquire(AcquireRequest {
        resources: resources.iter().map(|name| res(name)).collect(),
        owner: owner(by),
        ttl: ttl(millis),
        create,
    })
}

/// A store of the simplest kind: it loads what an operation says that it
/// needs, and stores the effects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Store {
    entries: BTreeMap<ResourceName, Entry>,
    receipts: BTreeMap<CommitId, StoredReceipt>,
    events: Vec<EventKind>,
}

impl Store {
    fn load(&self, op: &Op) -> Records {
        let entry = |resource: ResourceName, needs: Needs| {
            let stored = self.entries.get(&resource)?;
            let entry = Entry {
                mark: stored.mark,
                lease: stored.lease.clone().filter(|_| needs.lease),
                resource: stored.resource.clone().filter(|_| needs.resource),
            };
            Some((resource, entry))
        };
        Records {
            entries: op
                .needs()
                .into_iter()
                .filter_map(|(resource, needs)| entry(resource, needs))
                .collect(),
            receipt: op
                .commit_id()
                .and_then(|id| self.receipts.get(&id).cloned()),
            newest: self.events.len() as u64,
        }
    }

    fn decide(&self, op: &Op, now: i64) -> Result<(Outcome, Effects)> {
        decide(op, &self.load(op), at(now))
    }

    fn run(&mut self, op: &Op, now: i64) -> Result<Outcome> {
        let (outcome, effects) = self.decide(op, now)?;
        self.apply(effects);
        Ok(outcome)
    }

    fn apply(&mut self, effects: Effects) {
        for (resource, mark) in effects.marks {
            self.entries.entry(resource).or_default().mark = Some(mark);
        }
        for (resource, lease) in effects.leases {
            self.entries.entry(resource).or_default().lease = Some(lease);
        }
        for (resource, record) in effects.resources {
            self.entries.entry(resource).or_default().resource = Some(record);
        }
        self.events.extend(effects.events);
        self.events
            .extend(effects.copied.into_iter().map(|event| event.kind));
        self.receipts.extend(effects.receipt);
    }

    fn try_acquire(&mut self, resource: &str, by: &str, millis: u64, now: i64) -> Result<Lease> {
        match self.run(&acquire_of(&[resource], by, millis, true), now)? {
            Outcome::Acquired(leases) => Ok(leases.into_iter().next().unwrap()),
            other => panic!("{other:?}"),
        }
    }

    /// Acquires for 100 ms, creating the resource.
    fn acquire(&mut self, resource: &str, by: &str, now: i64) -> Lease {
        self.try_acquire(resource, by, 100, now).unwrap()
    }

    fn renew(&mut self, lease: &Lease, millis: u64, now: i64) -> Result<Lease> {
        match self.run(&Op::Renew(lease.clone(), ttl(millis)), now)? {
            Outcome::Renewed(lease) => Ok(lease),
            other => panic!("{other:?}"),
        }
    }

    fn release(&mut self, lease: &Lease, now: i64) -> bool {
        match self.run(&Op::Release(lease.clone()), now) {
            Ok(Outcome::Released(was_live)) => was_live,
            other => panic!("{other:?}"),
        }
    }

    fn revoke(&mut self, resource: &str) -> Result<u64> {
        match self.run(&Op::Revoke(res(resource)), 0)? {
            Outcome::Revoked(mark) => Ok(mark.get()),
            other => panic!("{other:?}"),
        }
    }

    fn commit_at(&mut self, request: &CommitRequest, now: i64) -> Result<CommitReceipt> {
        match self.run(&Op::Commit(request.clone()), now)? {
            Outcome::Committed(receipt) => Ok(receipt),
            other => panic!("{other:?}"),
        }
    }

    fn commit(
        &mut self,
        fences: impl Into<Vec<Fence>>,
        checks: impl Into<Vec<Check>>,
        writes: impl Into<Vec<ResourceWrite>>,
    ) -> Result<CommitReceipt> {
        self.commit_at(&commit_of(fences, checks, writes), 0)
    }

    /// A commit of writes alone, which is granted.
    fn put(&mut self, writes: impl Into<Vec<ResourceWrite>>) -> CommitReceipt {
        self.commit([], [], writes).unwrap()
    }

    fn mark(&self, resource: &str) -> Option<u64> {
        self.entries.get(&res(resource))?.mark.map(Token::get)
    }

    /// What a reader sees.
    fn state(&self, resource: &str) -> Option<&ResourceState> {
        self.entries.get(&res(resource))?.existing()
    }

    fn value(&self, resource: &str, name: &str) -> Option<&str> {
        let field = self.state(resource)?.fields.get(name)?;
        Some(field.value.as_str())
    }

    fn lease_state(&self, resource: &str, now: i64) -> Option<LeaseState> {
        let entry = self.entries.get(&res(resource))?;
        status(&res(resource), entry, at(now))
            .lease
            .map(|(_, state)| state)
    }
}

/// Errors are compared by all that they say.
#[track_caller]
fn assert_refused<T: std::fmt::Debug>(answer: Result<T>, expected: &Error) {
    match answer {
        Ok(granted) => panic!("granted {granted:?} instead of {expected:?}"),
        Err(error) => assert_eq!(format!("{error:?}"), format!("{expected:?}")),
    }
}

#[track_caller]
fn assert_invalid<T: std::fmt::Debug>(answer: Result<T>, named: &str, says: &str) {
    match answer {
        Err(Error::InvalidArgument { argument, message }) => {
            assert_eq!(argument, named);
            assert!(message.contains(says), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

fn lost_lease(resource: &str, number: u64, reason: LossReason) -> Error {
    lost(&res(resource), token(number), reason)
}

fn superseded(resource: &str, number: u64, by: u64) -> Error {
    lost_lease(resource, number, LossReason::Superseded { by: token(by) })
}

fn conflict(resource: &str, name: Option<&str>) -> Error {
    Error::Conflict {
        resource: res(resource),
        field: name.map(field),
    }
}
