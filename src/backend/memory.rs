//! A store in memory: for tests, and for work inside one process.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::{
    AcquireRequest, Backend, CheckReport, CommitReceipt, CommitRequest, ExportPage, ExportRange,
    Exported, ImportReport, ImportRequest, LeaseStatus, ResourceSummary, Waiters,
};
use crate::clock::{Clock, Monotonic, SystemClock, Timestamp};
use crate::error::{Error, Result};
use crate::event::{Event, EventPage};
use crate::lease::{Lease, Token};
use crate::resource::{CommitId, ResourceName, ResourceState, Ttl};
use crate::rules::{self, Effects, Entry, Op, Outcome, Records, StoredReceipt};

/// How many events a store keeps unless told otherwise.
pub const DEFAULT_HISTORY: u64 = 100_000;

/// A store in memory. Clones share it; it is gone with the last of them.
///
/// ```
/// use statepact::backend::memory::Memory;
/// use statepact::LeaseManager;
/// use std::{sync::Arc, time::Duration};
///
/// # block_on(async {
/// let leases = LeaseManager::new(Arc::new(Memory::new()), Duration::from_secs(30))?;
/// let lease = leases.acquire_or_create("job-42", "worker-a").await?;
/// assert_eq!(lease.token.get(), 1);
/// # Ok::<_, statepact::Error>(()) });
/// # fn block_on<F: Future<Output = statepact::Result<()>>>(f: F) {
/// #     tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(f).unwrap();
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Memory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Arc<dyn Clock>,
    start: (Timestamp, Monotonic),
    history: u64,
    waiters: Waiters,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<ResourceName, Entry>,
    receipts: BTreeMap<CommitId, StoredReceipt>,
    /// Commit ids in the order of their events, to be forgotten with them.
    receipt_order: VecDeque<(u64, CommitId)>,
    events: VecDeque<Event>,
    newest: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Memory {
    /// An empty store on the machine's clock.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// An empty store on another clock, such as a test's.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self::with_clock_and_history(clock, DEFAULT_HISTORY)
    }

    /// An empty store that keeps the newest `history` events.
    pub fn with_clock_and_history(clock: Arc<dyn Clock>, history: u64) -> Self {
        let start = (clock.wall(), clock.monotonic());
        Self {
            shared: Arc::new(Shared {
                clock,
                start,
                history,
                waiters: Waiters::new(),
                state: Mutex::default(),
            }),
        }
    }

    fn time(&self) -> Timestamp {
        let (wall, monotonic) = self.shared.start;
        wall.plus(self.shared.clock.monotonic().since(monotonic))
    }

    /// The state stays whole even if a holder of the lock panicked: effects
    /// are applied by [`State::apply`] alone, which does not fail half way.
    fn state(&self) -> MutexGuard<'_, State> {
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, op: &Op) -> Result<Outcome> {
        let mut state = self.state();
        // Read under the lock, so that times grow in the order of the events.
        let now = self.time();
        let records = state.load(op);
        let (outcome, effects) = rules::decide(op, &records, now)?;
        state.apply(effects, now, self.shared.history);
        Ok(outcome)
    }
}

impl State {
    fn load(&self, op: &Op) -> Records {
        let mut entries = BTreeMap::new();
        for (resource, needs) in op.needs() {
            if let Some(entry) = self.entries.get(&resource) {
                let entry = Entry {
                    mark: entry.mark,
                    lease: entry.lease.clone().filter(|_| needs.lease),
                    resource: needs.resource.then(|| entry.resource.clone()).flatten(),
                };
                entries.insert(resource, entry);
            }
        }
        Records {
            entries,
            receipt: op
                .commit_id()
                .and_then(|id| self.receipts.get(&id).cloned()),
            newest: self.newest,
        }
    }

    fn apply(&mut self, effects: Effects, at: Timestamp, history: u64) {
        for (resource, mark) in effects.marks {
            self.entries.entry(resource).or_default().mark = Some(mark);
        }
        for (resource, lease) in effects.leases {
            self.entries.entry(resource).or_default().lease = Some(lease);
        }
        for (resource, record) in effects.resources {
            self.entries.entry(resource).or_default().resource = Some(record);
        }
        for kind in effects.events {
            self.newest += 1;
            self.events.push_back(Event {
                sequence: self.newest,
                at,
                kind,
            });
        }
        for event in effects.copied {
            self.newest = event.sequence;
            self.events.push_back(event);
        }
        if let Some((id, receipt)) = effects.receipt {
            self.receipts.insert(id, receipt);
            self.receipt_order.push_back((self.newest, id));
        }
        let oldest = self.oldest();
        let Some(keep_from) = rules::prune_before(oldest, self.newest, history) else {
            return;
        };
        self.events.retain(|event| event.sequence >= keep_from);
        while let Some((sequence, id)) = self.receipt_order.front() {
            if *sequence >= keep_from {
                break;
            }
            self.receipts.remove(id);
            self.receipt_order.pop_front();
        }
    }

    /// The sequence of the oldest event kept, or of the next one to come.
    fn oldest(&self) -> u64 {
        self.events
            .front()
            .map_or(self.newest + 1, |event| event.sequence)
    }
}

/// The answer of an operation that [`rules::decide`] answers in another shape
/// than its own: a fault of this crate, reported and not hidden.
pub(crate) fn unexpected(outcome: &Outcome) -> Error {
    Error::Corrupt {
        location: "rules".to_owned(),
        message: format!("an operation was answered with {outcome:?}"),
    }
}

#[async_trait]
impl Backend for Memory {
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
            Outcome::Released(was_live) => {
                self.shared.waiters.lease_ended(&lease.resource);
                Ok(was_live)
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn revoke(&self, resource: &ResourceName) -> Result<Token> {
        match self.run(&Op::Revoke(resource.clone()))? {
            Outcome::Revoked(mark) => {
                self.shared.waiters.lease_ended(resource);
                Ok(mark)
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn lease_status(&self, resource: &ResourceName) -> Result<LeaseStatus> {
        let state = self.state();
        let entry = state.entries.get(resource).cloned().unwrap_or_default();
        Ok(rules::status(resource, &entry, self.time()))
    }

    async fn read(&self, resources: &[ResourceName]) -> Result<Vec<Option<ResourceState>>> {
        let state = self.state();
        Ok(resources
            .iter()
            .map(|resource| {
                let record = state.entries.get(resource)?.resource.as_ref()?;
                record.exists.then(|| record.state.clone())
            })
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
        let state = self.state();
        let now = self.time();
        let from = match after {
            Some(after) if after.as_str() >= prefix => Bound::Excluded(after.as_str()),
            _ => Bound::Included(prefix),
        };
        Ok(state
            .entries
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(resource, _)| resource.as_str().starts_with(prefix))
            .filter_map(|(resource, entry)| {
                let record = entry.resource.as_ref().filter(|record| record.exists)?;
                Some(ResourceSummary {
                    resource: resource.clone(),
                    version: record.state.version,
                    fenced: record.state.fenced,
                    fields: record.state.fields.len(),
                    lease: rules::status(resource, entry, now),
                })
            })
            .take(limit)
            .collect())
    }

    async fn events(&self, after: u64, limit: usize) -> Result<EventPage> {
        let state = self.state();
        rules::check_history(after, state.oldest())?;
        let events: Vec<Event> = state
            .events
            .iter()
            .skip_while(|event| event.sequence <= after)
            .take(limit)
            .cloned()
            .collect();
        Ok(EventPage {
            next_after: events.last().map_or(after, |event| event.sequence),
            events,
            newest: state.newest,
        })
    }

    fn waiters(&self) -> Option<&Waiters> {
        Some(&self.shared.waiters)
    }

    async fn export(&self, range: &ExportRange) -> Result<ExportPage> {
        let state = self.state();
        let exported = |(resource, entry): (&ResourceName, &Entry)| Exported {
            resource: resource.clone(),
            entry: entry.clone(),
        };
        let entries = match range {
            ExportRange::After { after, limit } => {
                let from = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                state
                    .entries
                    .range::<ResourceName, _>((from, Bound::Unbounded))
                    .take(*limit)
                    .map(exported)
                    .collect()
            }
            ExportRange::Of(names) => names
                .iter()
                .filter_map(|name| state.entries.get_key_value(name))
                .map(exported)
                .collect(),
        };
        Ok(ExportPage {
            entries,
            as_of: self.time(),
        })
    }

    async fn import(&self, request: &ImportRequest) -> Result<ImportReport> {
        match self.run(&Op::Import(request.clone()))? {
            Outcome::Imported(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    async fn check(&self, progress: &(dyn Fn(u64) + Send + Sync)) -> Result<CheckReport> {
        let state = self.state();
        let mut report = CheckReport {
            events: state.events.len() as u64,
            ..CheckReport::default()
        };
        for entry in state.entries.values() {
            report.resources += u64::from(entry.resource.as_ref().is_some_and(|r| r.exists));
            report.marks += u64::from(entry.mark.is_some());
            report.leases += u64::from(entry.lease.is_some());
        }
        progress(report.resources + report.marks + report.leases + report.events);
        Ok(report)
    }
}

#[cfg(test)]
mod tests;
