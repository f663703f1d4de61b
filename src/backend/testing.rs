//! A backend for tests that goes wrong on purpose.

use std::sync::Mutex;

use async_trait::async_trait;

use super::memory::Memory;
use super::{
    AcquireRequest, Backend, CheckReport, CommitReceipt, CommitRequest, ExportPage, ExportRange,
    ImportReport, ImportRequest, LeaseStatus, ResourceSummary,
};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::EventPage;
use crate::lease::{Lease, Token};
use crate::resource::{ResourceName, ResourceState, Ttl};

/// What becomes of a call.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// It goes well: before a fault of a later call.
    None,
    /// It fails without having happened.
    Fail(Error),
    /// It happens, and its answer is replaced by this error.
    ApplyThenFail(Error),
    /// It never answers, and does not happen.
    Hang,
    /// It happens, and its answer comes when the signal is given.
    AnswerLate,
}

/// A memory store whose next calls can be given faults, and that records the
/// names of the calls that arrive.
#[derive(Debug)]
pub(crate) struct Faulty {
    pub(crate) inner: Memory,
    faults: Mutex<Vec<(&'static str, Fault)>>,
    pub(crate) calls: Mutex<Vec<&'static str>>,
    pub(crate) signal: tokio::sync::Notify,
}

impl Faulty {
    pub(crate) fn new(inner: Memory) -> Self {
        Self {
            inner,
            faults: Mutex::default(),
            calls: Mutex::default(),
            signal: tokio::sync::Notify::new(),
        }
    }

    /// The next call of that name has this fault; faults queue up.
    pub(crate) fn fault(&self, call: &'static str, fault: Fault) {
        self.faults.lock().unwrap().push((call, fault));
    }

    /// No more faults.
    pub(crate) fn heal(&self) {
        self.faults.lock().unwrap().clear();
    }

    pub(crate) fn count(&self, call: &str) -> usize {
        self.calls
            .lock()
            .unwrap()
            .iter()
            .filter(|made| **made == call)
            .count()
    }

    async fn call<T>(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        self.calls.lock().unwrap().push(name);
        let fault = {
            let mut faults = self.faults.lock().unwrap();
            let at = faults.iter().position(|(call, _)| *call == name);
            at.map(|at| faults.remove(at).1)
        };
        match fault {
            None | Some(Fault::None) => work.await,
            Some(Fault::Fail(error)) => Err(error),
            Some(Fault::ApplyThenFail(error)) => work.await.and(Err(error)),
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::AnswerLate) => {
                let answer = work.await;
                self.signal.notified().await;
                answer
            }
        }
    }
}

#[async_trait]
impl Backend for Faulty {
    async fn now(&self) -> Result<Timestamp> {
        self.inner.now().await
    }
    async fn acquire_all(&self, request: &AcquireRequest) -> Result<Vec<Lease>> {
        self.call("acquire", self.inner.acquire_all(request)).await
    }
    async fn renew(&self, lease: &Lease, ttl: Ttl) -> Result<Lease> {
        self.call("renew", self.inner.renew(lease, ttl)).await
    }
    async fn release(&self, lease: &Lease) -> Result<bool> {
        self.call("release", self.inner.release(lease)).await
    }
    async fn revoke(&self, resource: &ResourceName) -> Result<Token> {
        self.call("revoke", self.inner.revoke(resource)).await
    }
    async fn lease_status(&self, resource: &ResourceName) -> Result<LeaseStatus> {
        self.call("lease_status", self.inner.lease_status(resource))
            .await
    }
    async fn read(&self, resources: &[ResourceName]) -> Result<Vec<Option<ResourceState>>> {
        self.call("read", self.inner.read(resources)).await
    }
    async fn commit(&self, request: &CommitRequest) -> Result<CommitReceipt> {
        self.call("commit", self.inner.commit(request)).await
    }
    async fn list(
        &self,
        prefix: &str,
        after: Option<&ResourceName>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>> {
        self.inner.list(prefix, after, limit).await
    }
    async fn events(&self, after: u64, limit: usize) -> Result<EventPage> {
        self.inner.events(after, limit).await
    }
    async fn export(&self, range: &ExportRange) -> Result<ExportPage> {
        self.call("export", self.inner.export(range)).await
    }
    async fn import(&self, request: &ImportRequest) -> Result<ImportReport> {
        self.call("import", self.inner.import(request)).await
    }
    async fn check(&self, progress: &(dyn Fn(u64) + Send + Sync)) -> Result<CheckReport> {
        self.inner.check(progress).await
    }
}
