//! A backend as another crate would write it, on the public interface alone:
//! it keeps its records its own way, and leaves every decision to
//! [`statepact::rules`]. `tests/suite.rs` holds it to the contract.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use statepact::backend::{
    AcquireRequest, Backend, CheckReport, CommitReceipt, CommitRequest, LeaseStatus,
    ResourceSummary,
};
use statepact::clock::{Clock, Monotonic};
use statepact::event::{Event, EventPage};
use statepact::rules::{self, Entry, Op, Outcome, Records, StoredReceipt};
use statepact::{
    CommitId, Error, Lease, ResourceName, ResourceState, Result, Timestamp, Token, Ttl,
};

/// A store that keeps everything in one table behind a lock, for as long as
/// it lives. Clones share it.
#[derive(Clone)]
pub struct Toy {
    clock: Arc<dyn Clock>,
    start: (Timestamp, Monotonic),
    table: Arc<Mutex<Table>>,
}

#[derive(Default)]
struct Table {
    rows: HashMap<ResourceName, Entry>,
    receipts: HashMap<CommitId, StoredReceipt>,
    log: Vec<Event>,
}

impl fmt::Debug for Toy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Toy").finish_non_exhaustive()
    }
}

impl Toy {
    /// An empty store whose time follows `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            start: (clock.wall(), clock.monotonic()),
            clock,
            table: Arc::default(),
        }
    }

    fn time(&self) -> Timestamp {
        let (wall, monotonic) = self.start;
        wall.plus(self.clock.monotonic().since(monotonic))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads what an operation needs, has it decided, and stores the effects,
    /// all under the lock: one atomic step.
    fn run(&self, op: &Op) -> Result<Outcome> {
        let mut table = self.table();
        let now = self.time();
        let records = Records {
            entries: op
                .needs()
                .into_keys()
                .filter_map(|name| Some((name.clone(), table.rows.get(&name)?.clone())))
                .collect(),
            receipt: op
                .commit_id()
                .and_then(|id| table.receipts.get(&id).cloned()),
            newest: table.newest(),
        };
        let (outcome, effects) = rules::decide(op, &records, now)?;
        for (name, mark) in effects.marks {
            table.rows.entry(name).or_default().mark = Some(mark);
        }
        for (name, lease) in effects.leases {
            table.rows.entry(name).or_default().lease = Some(lease);
        }
        for (name, resource) in effects.resources {
            table.rows.entry(name).or_default().resource = Some(resource);
        }
        for kind in effects.events {
            let sequence = table.newest() + 1;
            table.log.push(Event {
                sequence,
                at: now,
                kind,
            });
        }
        table.receipts.extend(effects.receipt);
        Ok(outcome)
    }
}

impl Table {
    fn newest(&self) -> u64 {
        self.log.last().map_or(0, |event| event.sequence)
    }

    fn state(&self, of: &ResourceName) -> Option<&ResourceState> {
        let record = self.rows.get(of)?.resource.as_ref()?;
        record.exists.then_some(&record.state)
    }

    fn status(&self, of: &ResourceName, now: Timestamp) -> LeaseStatus {
        let entry = self.rows.get(of).cloned().unwrap_or_default();
        rules::status(of, &entry, now)
    }
}

fn unexpected(outcome: &Outcome) -> Error {
    Error::Corrupt {
        location: "Toy".to_owned(),
        message: format!("an operation was answered with {outcome:?}"),
    }
}

#[async_trait]
impl Backend for Toy {
    async fn now(&self) -> Result<Timestamp> {
        Ok(self.time())
    }

    async fn acquire_all(&self, request: &AcquireRequest) -> Result<Vec<Lease>> {
        match self.run(&Op::Acquire(request.clone()))? {
            Outcome::Acquired(leases) => Ok(leases),
            other => Err(unexpected(&other)),
        }
    }

    async fn renew(&self, lease: &Lease, ttl: Ttl) -> Result<Lease> {
        match self.run(&Op::Renew(lease.clone(), ttl))? {
            Outcome::Renewed(lease) => Ok(lease),
            other => Err(unexpected(&other)),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<bool> {
        match self.run(&Op::Release(lease.clone()))? {
            Outcome::Released(was_live) => Ok(was_live),
            other => Err(unexpected(&other)),
        }
    }

    async fn revoke(&self, resource: &ResourceName) -> Result<Token> {
        match self.run(&Op::Revoke(resource.clone()))? {
            Outcome::Revoked(mark) => Ok(mark),
            other => Err(unexpected(&other)),
        }
    }

    async fn lease_status(&self, resource: &ResourceName) -> Result<LeaseStatus> {
        Ok(self.table().status(resource, self.time()))
    }

    async fn read(&self, resources: &[ResourceName]) -> Result<Vec<Option<ResourceState>>> {
        let table = self.table();
        Ok(resources
            .iter()
            .map(|of| table.state(of).cloned())
            .collect())
    }

    async fn commit(&self, request: &CommitRequest) -> Result<CommitReceipt> {
        match self.run(&Op::Commit(request.clone()))? {
            Outcome::Committed(receipt) => Ok(receipt),
            other => Err(unexpected(&other)),
        }
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&ResourceName>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>> {
        let table = self.table();
        let now = self.time();
        let mut names: Vec<&ResourceName> = table
            .rows
            .keys()
            .filter(|name| name.as_str().starts_with(prefix))
            .filter(|name| after.is_none_or(|after| *name > after))
            .collect();
        names.sort();
        Ok(names
            .into_iter()
            .filter_map(|name| {
                let state = table.state(name)?;
                Some(ResourceSummary {
                    resource: name.clone(),
                    version: state.version,
                    fenced: state.fenced,
                    fields: state.fields.len(),
                    lease: table.status(name, now),
                })
            })
            .take(limit)
            .collect())
    }

    async fn events(&self, after: u64, limit: usize) -> Result<EventPage> {
        let table = self.table();
        let events: Vec<Event> = table
            .log
            .iter()
            .filter(|event| event.sequence > after)
            .take(limit)
            .cloned()
            .collect();
        Ok(EventPage {
            next_after: events.last().map_or(after, |event| event.sequence),
            events,
            newest: table.newest(),
        })
    }

    async fn check(&self, progress: &(dyn Fn(u64) + Send + Sync)) -> Result<CheckReport> {
        let table = self.table();
        let count =
            |has: fn(&Entry) -> bool| table.rows.values().filter(|entry| has(entry)).count() as u64;
        let report = CheckReport {
            resources: count(|entry| entry.resource.as_ref().is_some_and(|row| row.exists)),
            marks: count(|entry| entry.mark.is_some()),
            leases: count(|entry| entry.lease.is_some()),
            events: table.log.len() as u64,
        };
        progress(report.resources + report.marks + report.leases + report.events);
        Ok(report)
    }
}
