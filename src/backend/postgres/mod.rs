//! A store in PostgreSQL, shared by a fleet.
//!
//! [`Postgres`] is the store. A write is one transaction of two round trips, a
//! read one statement. Nothing is kept in a session: it works through a pooler
//! that gives each transaction another server connection.
//!
//! The tables live in a schema of their own. A transaction of the user's own
//! is protected by `statepact_check_fence(resource, token)` in that schema:
//!
//! ```sql
//! BEGIN;
//! SELECT statepact.statepact_check_fence('job-42', 7);
//! UPDATE invoices SET paid = true WHERE id = 7;
//! COMMIT;
//! ```
//!
//! It raises the SQLSTATE `SP001` when the token is below the mark (R13);
//! otherwise no newer token is issued until that transaction ends.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::memory::unexpected;
use super::{
    AcquireRequest, Backend, CheckReport, CommitReceipt, CommitRequest, ExportPage, ExportRange,
    ImportReport, ImportRequest, LeaseStatus, ResourceSummary, Waiters,
};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::error::{Error, Result};
use crate::event::EventPage;
use crate::lease::{Lease, Token};
use crate::resource::{ResourceName, ResourceState, Ttl};
use crate::rules::{Op, Outcome};

mod codec;
mod connection;
mod effects;
mod failure;
mod listen;
mod options;
mod read;
mod schema;
mod sql;
mod store;
mod tls;
mod write;

pub use options::PostgresOptions;

use store::Store;
use write::Answer;

/// A store in PostgreSQL. Clones share its pool of connections.
///
/// ```no_run
/// use statepact::backend::postgres::Postgres;
/// use statepact::LeaseManager;
/// use std::{sync::Arc, time::Duration};
///
/// # async fn work() -> statepact::Result<()> {
/// let store = Postgres::open("postgres://app:secret@db.example/app").await?;
/// let leases = LeaseManager::new(Arc::new(store), Duration::from_secs(30))?;
/// let lease = leases.acquire_or_create("job-42", "worker-a").await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Postgres {
    store: Arc<Store>,
}

impl Postgres {
    /// Opens the store at `url` with the default options, and makes its tables
    /// where there are none.
    ///
    /// # Errors
    /// As [`PostgresOptions::open`].
    pub async fn open(url: &str) -> Result<Self> {
        PostgresOptions::new().open(url).await
    }

    async fn connect(url: &str, options: PostgresOptions) -> Result<Self> {
        runtime()?;
        let store = Arc::new(Store::open(url, options).await?);
        Ok(Self { store })
    }

    /// Runs a write in a task of its own: it ends its transaction whatever
    /// becomes of the caller's future (R25).
    async fn run(&self, op: Op) -> Result<Outcome> {
        op.validate()?;
        let runtime = runtime()?;
        let (reply, answer) = oneshot::channel();
        let mut waiting = Waiting {
            store: self.store.clone(),
            runtime: runtime.clone(),
            answer,
        };
        let store = self.store.clone();
        runtime.spawn(async move {
            let answer = store.write(&op, || reply.is_closed()).await;
            if let Err(unsent) = reply.send(answer) {
                give_back(&store, unsent.fresh).await;
            }
        });
        match (&mut waiting.answer).await {
            Ok(answer) => answer.result,
            Err(_) => Err(Error::OutcomeUnknown {
                message: "the runtime was shut down meanwhile".to_owned(),
            }),
        }
    }
}

fn runtime() -> Result<tokio::runtime::Handle> {
    tokio::runtime::Handle::try_current().map_err(|error| Error::Unavailable {
        message: format!("PostgreSQL is talked to from a Tokio runtime: {error}"),
    })
}

/// Releases what was granted to a future that was dropped before it saw it.
struct Waiting {
    store: Arc<Store>,
    runtime: tokio::runtime::Handle,
    answer: oneshot::Receiver<Answer>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(answer) = self.answer.try_recv()
            && !answer.fresh.is_empty()
        {
            let store = self.store.clone();
            self.runtime
                .spawn(async move { give_back(&store, answer.fresh).await });
        }
    }
}

/// How often a lease with nobody behind it is tried to release, and the pause
/// between; after that its ttl ends it.
const GIVE_BACK: (usize, std::time::Duration) = (10, std::time::Duration::from_millis(200));

async fn give_back(store: &Store, leases: Vec<Lease>) {
    for lease in leases {
        let op = Op::Release(lease);
        for _ in 0..GIVE_BACK.0 {
            match store.write(&op, || false).await.result {
                Err(error)
                    if error.is_retryable() || matches!(error, Error::OutcomeUnknown { .. }) =>
                {
                    SystemClock.sleep(GIVE_BACK.1).await;
                }
                _ => break,
            }
        }
    }
}

#[async_trait]
impl Backend for Postgres {
    async fn now(&self) -> Result<Timestamp> {
        self.store.now().await
    }

    async fn acquire_all(&self, request: &AcquireRequest) -> Result<Vec<Lease>> {
        match self.run(Op::Acquire(request.clone())).await? {
            Outcome::Acquired(leases) => Ok(leases),
            other => Err(unexpected(&other)),
        }
    }

    async fn renew(&self, lease: &Lease, ttl: Ttl) -> Result<Lease> {
        match self.run(Op::Renew(lease.clone(), ttl)).await? {
            Outcome::Renewed(lease) => Ok(lease),
            other => Err(unexpected(&other)),
        }
    }

    async fn release(&self, lease: &Lease) -> Result<bool> {
        match self.run(Op::Release(lease.clone())).await? {
            Outcome::Released(was_live) => Ok(was_live),
            other => Err(unexpected(&other)),
        }
    }

    async fn revoke(&self, resource: &ResourceName) -> Result<Token> {
        match self.run(Op::Revoke(resource.clone())).await? {
            Outcome::Revoked(mark) => Ok(mark),
            other => Err(unexpected(&other)),
        }
    }

    async fn lease_status(&self, resource: &ResourceName) -> Result<LeaseStatus> {
        self.store.status(resource).await
    }

    async fn read(&self, resources: &[ResourceName]) -> Result<Vec<Option<ResourceState>>> {
        self.store.states(resources).await
    }

    async fn commit(&self, request: &CommitRequest) -> Result<CommitReceipt> {
        match self.run(Op::Commit(request.clone())).await? {
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
        self.store.list(prefix, after, limit).await
    }

    async fn events(&self, after: u64, limit: usize) -> Result<EventPage> {
        self.store.events(after, limit).await
    }

    async fn export(&self, range: &ExportRange) -> Result<ExportPage> {
        self.store.export(range).await
    }

    async fn import(&self, request: &ImportRequest) -> Result<ImportReport> {
        match self.run(Op::Import(request.clone())).await? {
            Outcome::Imported(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    fn waiters(&self) -> Option<&Waiters> {
        listen::ensure(&self.store);
        Some(&self.store.waiters)
    }

    async fn check(&self, progress: &(dyn Fn(u64) + Send + Sync)) -> Result<CheckReport> {
        self.store.check(progress).await
    }
}
