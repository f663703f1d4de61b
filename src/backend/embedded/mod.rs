//! The embedded engine: one file, no server, several processes at once.
//!
//! [`Embedded`] is the store, [`Backend`] its asynchronous face, and its
//! methods ending in `_blocking` the other one: a blocking caller that finds
//! the engine idle commits on its own thread. Any number of processes of one
//! machine open the same file; `docs/design.md` says what it assumes of the
//! disk and the file system.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::memory::{DEFAULT_HISTORY, unexpected};
use super::{
    AcquireRequest, Backend, CheckReport, CommitReceipt, CommitRequest, ExportPage, ExportRange,
    Fence, ImportReport, ImportRequest, LeaseStatus, ResourceSummary, Waiters,
};
use crate::clock::{Clock, Monotonic, SystemClock, Timestamp};
use crate::error::{Error, Result};
use crate::event::EventPage;
use crate::lease::{Lease, Token};
use crate::random::{Random, SystemRandom};
use crate::resource::{AgentName, ResourceName, ResourceState, Ttl};
use crate::rules::{self, Op, Outcome};

mod codec;
mod engine;
mod failure;
mod group;
mod open;
mod rows;
mod seam;
mod tables;
mod time;
mod transaction;

pub use redb;
pub use seam::{StorageOp, StorageProbe, StoreFile};
pub use transaction::{ReadTransaction, Transaction};

use engine::{Engine, is_busy};
use group::Shared;
use tables::Snapshot;

/// How to open a store.
#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    create: bool,
    busy_timeout: Duration,
    history: u64,
    cache_bytes: usize,
    verify_up_to: u64,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    probe: Option<Arc<dyn StorageProbe>>,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            create: true,
            busy_timeout: Duration::from_secs(5),
            history: DEFAULT_HISTORY,
            cache_bytes: 32 << 20,
            verify_up_to: 16 << 20,
            clock: Arc::new(SystemClock),
            random: Arc::new(SystemRandom),
            probe: None,
        }
    }
}

impl EmbeddedOptions {
    /// The defaults: creates a missing store, waits 5 s for other processes,
    /// keeps 100,000 events, caches 32 MiB, verifies files up to 16 MiB.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether to make the store when there is no file. On by default.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// How long to wait for other processes before [`Error::Busy`]: 5 s by
    /// default.
    #[must_use]
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// How many events to keep, at least 1: 100,000 by default. A tenth more
    /// is kept until the next pruning. A commit id is remembered as long as
    /// its event (R26). Of several openings that write, the smallest number
    /// counts.
    #[must_use]
    pub fn history(mut self, events: u64) -> Self {
        // The newest event is where the store's sequence is kept.
        self.history = events.max(1);
        self
    }

    /// How much of the file to cache in memory, in bytes: 32 MiB by default.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: usize) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Files up to this many bytes are verified as a whole when they are
    /// opened by the first process: 16 MiB by default, 0 for never. In larger
    /// ones damage is found where it is read: each record has its checksum, and
    /// one that is not found is proven absent by its neighbours.
    #[must_use]
    pub fn verify_up_to(mut self, bytes: u64) -> Self {
        self.verify_up_to = bytes;
        self
    }

    /// The clock that store time follows (R11): the machine's by default.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Where the store's id comes from: the system's randomness by default.
    #[must_use]
    pub fn random(mut self, random: Arc<dyn Random>) -> Self {
        self.random = random;
        self
    }

    /// Watches, and can fail, every operation on the file.
    #[must_use]
    pub fn probe(mut self, probe: Arc<dyn StorageProbe>) -> Self {
        self.probe = Some(probe);
        self
    }

    /// Opens the store at `path`.
    ///
    /// # Errors
    /// [`Error::Storage`] when it is missing and not to be created, or the
    /// system refuses; [`Error::Corrupt`] when it is damaged, empty or not a
    /// store; [`Error::Busy`] when another process does not let go of it;
    /// [`Error::InvalidArgument`] when the path is not that of a file.
    pub async fn open(self, path: impl AsRef<Path>) -> Result<Embedded> {
        let path = path.as_ref().to_owned();
        off_the_runtime(move || self.open_blocking(path)).await
    }

    /// As [`EmbeddedOptions::open`], on this thread.
    ///
    /// # Errors
    /// As [`EmbeddedOptions::open`].
    pub fn open_blocking(self, path: impl AsRef<Path>) -> Result<Embedded> {
        let path = std::path::absolute(path.as_ref()).map_err(|error| {
            Error::invalid("store", format!("{}: {error}", path.as_ref().display()))
        })?;
        let engine = Arc::new(Engine::open(path, self)?);
        Ok(Embedded {
            shared: Arc::new(Shared { engine }),
        })
    }
}

/// Runs work that blocks where it does not hold up a runtime, if there is one.
async fn off_the_runtime<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => runtime.spawn_blocking(work).await.unwrap_or_else(|error| {
            Err(Error::Unavailable {
                message: format!("the runtime is shutting down: {error}"),
            })
        }),
        Err(_) => work(),
    }
}

/// A store in one file. Clones share it; the last of them closes it.
///
/// ```
/// use statepact::backend::embedded::Embedded;
/// use statepact::{FieldName, Ttl};
/// use std::time::Duration;
///
/// # let folder = tempfile::tempdir().unwrap();
/// let store = Embedded::open_blocking(folder.path().join("state.redb"))?;
/// let ttl = Ttl::try_from(Duration::from_secs(30))?;
/// let lease = store.lease_blocking(&"job-42".try_into()?, &"worker-a".try_into()?, ttl)?;
/// assert!(store.release_blocking(&lease)?);
/// # Ok::<_, statepact::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Embedded {
    shared: Arc<Shared>,
}

impl Embedded {
    /// Opens the store at `path`, or makes one there, with the default
    /// options.
    ///
    /// # Errors
    /// As [`EmbeddedOptions::open`].
    pub async fn open(path: impl AsRef<Path>) -> Result<Self> {
        EmbeddedOptions::new().open(path).await
    }

    /// As [`Embedded::open`], on this thread.
    ///
    /// # Errors
    /// As [`EmbeddedOptions::open`].
    pub fn open_blocking(path: impl AsRef<Path>) -> Result<Self> {
        EmbeddedOptions::new().open_blocking(path)
    }

    /// The path of the store's file, absolute.
    pub fn path(&self) -> &Path {
        &self.shared.engine.path
    }

    /// Acquires the lease of a resource, creating the resource if it is absent
    /// (R24), on this thread.
    ///
    /// # Errors
    /// As [`Backend::acquire_all`].
    pub fn lease_blocking(
        &self,
        resource: &ResourceName,
        owner: &crate::resource::OwnerName,
        ttl: Ttl,
    ) -> Result<Lease> {
        let request = AcquireRequest {
            resources: vec![resource.clone()],
            owner: owner.clone(),
            ttl,
            create: true,
        };
        let mut leases = self.acquire_all_blocking(&request)?;
        leases
            .pop()
            .ok_or_else(|| unexpected(&Outcome::Acquired(leases)))
    }

    /// [`Backend::acquire_all`] on this thread.
    ///
    /// # Errors
    /// As there.
    pub fn acquire_all_blocking(&self, request: &AcquireRequest) -> Result<Vec<Lease>> {
        leases(group::run_blocking(
            &self.shared,
            Op::Acquire(request.clone()),
        )?)
    }

    /// [`Backend::renew`] on this thread.
    ///
    /// # Errors
    /// As there.
    pub fn renew_blocking(&self, lease: &Lease, ttl: Ttl) -> Result<Lease> {
        renewed(group::run_blocking(
            &self.shared,
            Op::Renew(lease.clone(), ttl),
        )?)
    }

    /// [`Backend::release`] on this thread.
    ///
    /// # Errors
    /// As there.
    pub fn release_blocking(&self, lease: &Lease) -> Result<bool> {
        released(group::run_blocking(
            &self.shared,
            Op::Release(lease.clone()),
        )?)
    }

    /// [`Backend::commit`] on this thread.
    ///
    /// # Errors
    /// As there.
    pub fn commit_blocking(&self, request: &CommitRequest) -> Result<CommitReceipt> {
        committed(group::run_blocking(
            &self.shared,
            Op::Commit(request.clone()),
        )?)
    }

    /// [`Backend::lease_status`] on this thread.
    ///
    /// # Errors
    /// As there.
    pub fn lease_status_blocking(&self, resource: &ResourceName) -> Result<LeaseStatus> {
        let engine = &self.shared.engine;
        engine.read(engine.deadline(), |snapshot, now| {
            Ok(rules::status(resource, &snapshot.ownership(resource)?, now))
        })
    }

    /// [`Backend::guard`] on this thread.
    ///
    /// # Errors
    /// As there.
    pub fn guard_blocking(&self, lease: &Lease) -> Result<()> {
        let mark = self.lease_status_blocking(&lease.resource)?.mark;
        rules::guard(mark, &lease.resource, lease.token)
    }

    /// [`Backend::read`] on this thread.
    ///
    /// # Errors
    /// As there.
    pub fn read_blocking(&self, resources: &[ResourceName]) -> Result<Vec<Option<ResourceState>>> {
        let engine = &self.shared.engine;
        engine.read(engine.deadline(), |snapshot, _| {
            existing(snapshot, resources)
        })
    }

    /// Runs `work` on tables of the caller's own in this file, in the durable
    /// transaction that checks the fences (R13): a stale token changes nothing
    /// there either. On an error, nothing is committed.
    ///
    /// It has the store to itself until it returns, for all processes: keep it
    /// short, and call nothing of this store in it. It blocks the thread.
    ///
    /// ```
    /// use statepact::backend::embedded::{Embedded, redb::TableDefinition};
    /// # use statepact::{Error, Ttl};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let store = Embedded::open_blocking(folder.path().join("state.redb"))?;
    /// # let lease = store.lease_blocking(
    /// #     &"job".try_into()?, &"me".try_into()?, Ttl::from_millis(1000)?)?;
    /// const PAID: TableDefinition<&str, u64> = TableDefinition::new("paid");
    ///
    /// store.transact_with([lease.fence()], |txn| {
    ///     txn.open_table(PAID)?.insert("invoice-7", 1200)?;
    ///     Ok::<_, Box<dyn std::error::Error>>(())
    /// })
    /// # .unwrap();
    /// # Ok::<_, Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::LeaseLost`] for a stale token; what `work` returns; what a
    /// commit returns.
    pub fn transact_with<T, E: From<Error>>(
        &self,
        fences: impl IntoIterator<Item = Fence>,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let op = Op::Commit(CommitRequest {
            id: None,
            agent: AgentName::new("transact_with")?,
            fences: fences.into_iter().collect(),
            checks: Vec::new(),
            writes: Vec::new(),
        });
        op.validate()?;
        self.shared
            .engine
            .write_with(&op, |txn| work(&Transaction::new(txn)))
    }

    /// Runs `work` on a snapshot of the tables of the caller's own.
    ///
    /// # Errors
    /// What `work` returns; [`Error::Busy`], [`Error::Storage`].
    pub fn read_with<T, E: From<Error>>(
        &self,
        work: impl FnOnce(&ReadTransaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let engine = &self.shared.engine;
        let snapshot = engine.snapshot(engine.deadline())?;
        // A panic of the caller's closure is the caller's.
        work(&ReadTransaction::new(snapshot.transaction()))
    }

    /// Reads without holding up the runtime: at once if no other process is in
    /// the way, on another thread if one is.
    async fn read_async<T: Send + 'static>(
        &self,
        work: impl Fn(&Snapshot, Timestamp) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let engine = self.shared.engine.clone();
        if !engine.someone_waits() {
            match engine.read(Monotonic::from_millis(0), &work) {
                Err(error) if is_busy(&error) => {}
                answer => return answer,
            }
        }
        off_the_runtime(move || engine.read(engine.deadline(), work)).await
    }
}

fn existing(snapshot: &Snapshot, resources: &[ResourceName]) -> Result<Vec<Option<ResourceState>>> {
    resources
        .iter()
        .map(|resource| {
            let record = snapshot.resource(resource)?;
            Ok(record
                .filter(|record| record.exists)
                .map(|record| record.state))
        })
        .collect()
}

fn leases(outcome: Outcome) -> Result<Vec<Lease>> {
    match outcome {
        Outcome::Acquired(leases) => Ok(leases),
        other => Err(unexpected(&other)),
    }
}

fn renewed(outcome: Outcome) -> Result<Lease> {
    match outcome {
        Outcome::Renewed(lease) => Ok(lease),
        other => Err(unexpected(&other)),
    }
}

fn released(outcome: Outcome) -> Result<bool> {
    match outcome {
        Outcome::Released(was_live) => Ok(was_live),
        other => Err(unexpected(&other)),
    }
}

fn committed(outcome: Outcome) -> Result<CommitReceipt> {
    match outcome {
        Outcome::Committed(receipt) => Ok(receipt),
        other => Err(unexpected(&other)),
    }
}

#[async_trait]
impl Backend for Embedded {
    async fn now(&self) -> Result<Timestamp> {
        Ok(self.shared.engine.now())
    }

    async fn acquire_all(&self, request: &AcquireRequest) -> Result<Vec<Lease>> {
        leases(group::run_async(&self.shared, Op::Acquire(request.clone())).await?)
    }

    async fn renew(&self, lease: &Lease, ttl: Ttl) -> Result<Lease> {
        renewed(group::run_async(&self.shared, Op::Renew(lease.clone(), ttl)).await?)
    }

    async fn release(&self, lease: &Lease) -> Result<bool> {
        released(group::run_async(&self.shared, Op::Release(lease.clone())).await?)
    }

    async fn revoke(&self, resource: &ResourceName) -> Result<Token> {
        match group::run_async(&self.shared, Op::Revoke(resource.clone())).await? {
            Outcome::Revoked(mark) => Ok(mark),
            other => Err(unexpected(&other)),
        }
    }

    async fn lease_status(&self, resource: &ResourceName) -> Result<LeaseStatus> {
        let resource = resource.clone();
        self.read_async(move |snapshot, now| {
            Ok(rules::status(
                &resource,
                &snapshot.ownership(&resource)?,
                now,
            ))
        })
        .await
    }

    async fn read(&self, resources: &[ResourceName]) -> Result<Vec<Option<ResourceState>>> {
        let resources = resources.to_vec();
        self.read_async(move |snapshot, _| existing(snapshot, &resources))
            .await
    }

    async fn commit(&self, request: &CommitRequest) -> Result<CommitReceipt> {
        committed(group::run_async(&self.shared, Op::Commit(request.clone())).await?)
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&ResourceName>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>> {
        let (prefix, after) = (prefix.to_owned(), after.cloned());
        self.read_async(move |snapshot, now| snapshot.list(&prefix, after.as_ref(), limit, now))
            .await
    }

    async fn events(&self, after: u64, limit: usize) -> Result<EventPage> {
        self.read_async(move |snapshot, _| snapshot.events(after, limit))
            .await
    }

    fn waiters(&self) -> Option<&Waiters> {
        Some(&self.shared.engine.waiters)
    }

    async fn export(&self, range: &ExportRange) -> Result<ExportPage> {
        let range = range.clone();
        self.read_async(move |snapshot, as_of| {
            Ok(ExportPage {
                entries: snapshot.export(&range)?,
                as_of,
            })
        })
        .await
    }

    async fn import(&self, request: &ImportRequest) -> Result<ImportReport> {
        match group::run_async(&self.shared, Op::Import(request.clone())).await? {
            Outcome::Imported(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    async fn check(&self, progress: &(dyn Fn(u64) + Send + Sync)) -> Result<CheckReport> {
        let engine = self.shared.engine.clone();
        let (seen, mut steps) = tokio::sync::mpsc::unbounded_channel();
        let checking = off_the_runtime(move || {
            engine.check(&|records| {
                // Nobody listens any more when the future was dropped.
                let _ = seen.send(records);
            })
        });
        tokio::pin!(checking);
        loop {
            tokio::select! {
                biased;
                Some(records) = steps.recv() => progress(records),
                report = &mut checking => {
                    while let Ok(records) = steps.try_recv() {
                        progress(records);
                    }
                    return report;
                }
            }
        }
    }
}
