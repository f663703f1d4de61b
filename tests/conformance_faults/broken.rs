//! A memory store with one fault.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use statepact::backend::memory::Memory;
use statepact::backend::{
    AcquireRequest, Backend, Change, Check, CheckReport, CommitReceipt, CommitRequest, LeaseState,
    LeaseStatus, ResourceSummary,
};
use statepact::clock::Timestamp;
use statepact::event::EventPage;
use statepact::{
    CommitId, Error, Fence, Lease, LossReason, ResourceName, ResourceState, Result, Token, Ttl,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// A release makes the next acquisition issue the same token.
    ReusesTokens,
    ForgetsTokensOfDeleted,
    StealsLiveLeases,
    ShortensExtensions,
    AcquiresOneByOne,
    CreatesBeforeItAcquires,
    RevivesExpired,
    /// Renews whatever lease the resource has.
    RenewsByName,
    /// Judges expiry by what the caller's copy says.
    TrustsTheCopy,
    ReleasesByName,
    /// Does not compare the owner.
    ReleasesByToken,
    RevokesWithoutMark,
    GuardsLiveness,
    ChecksNoFence,
    ChecksOneFence,
    ChecksFencesLast,
    RefusesExpiredTokens,
    IgnoresLiveness,
    ObservesNoTokens,
    DemandsNoFence,
    TokensAreDoubles,
    TokensAreTexts,
    ValidatesNothing,
    ValidatesWholeResources,
    CommitsOneByOne,
    ForgetsCommitIds,
    /// Compares the id of a commit alone.
    ReplaysAnything,
    /// `%` and `_` in a prefix match as SQL has it.
    ListsPatterns,
    SkipsEvents,
    /// An acquisition whose future is dropped leaves its lease.
    AbandonsLeases,
    /// A commit whose future is dropped may be half done.
    AbandonsCommits,
    /// Looks, and acquires later.
    AcquiresInARace,
    /// Validates, and writes later.
    ValidatesInARace,
    /// Each handle goes on answering what it has read once.
    ReadsStale,
}

#[derive(Debug, Default)]
struct Memo {
    released: BTreeMap<ResourceName, Token>,
    deleted: BTreeSet<ResourceName>,
    receipts: BTreeMap<CommitId, CommitReceipt>,
    read: BTreeMap<ResourceName, Option<ResourceState>>,
}

#[derive(Debug)]
pub(crate) struct Broken {
    inner: Memory,
    fault: Fault,
    memo: Mutex<Memo>,
}

impl Broken {
    pub(crate) fn new(inner: Memory, fault: Fault) -> Self {
        Self {
            inner,
            fault,
            memo: Mutex::default(),
        }
    }

    fn memo(&self) -> MutexGuard<'_, Memo> {
        self.memo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn stored(&self, of: &ResourceName) -> Result<Option<(Lease, LeaseState)>> {
        Ok(self.inner.lease_status(of).await?.lease)
    }

    async fn mark(&self, of: &ResourceName) -> Result<Option<Token>> {
        self.inner.current_fence(of).await
    }

    /// The first check that fails.
    async fn validate(&self, request: &CommitRequest) -> Result<()> {
        let checks = CommitRequest {
            id: None,
            fences: Vec::new(),
            writes: Vec::new(),
            ..request.clone()
        };
        self.inner.commit(&checks).await.map(|_| ())
    }

    async fn acquire_broken(&self, request: &AcquireRequest) -> Result<Vec<Lease>> {
        match self.fault {
            Fault::StealsLiveLeases => {
                for of in &request.resources {
                    let held = self.stored(of).await?;
                    if held.is_some_and(|(lease, _)| lease.owner != request.owner) {
                        self.inner.revoke(of).await?;
                    }
                }
            }
            Fault::AcquiresOneByOne => {
                let mut leases = Vec::new();
                for of in &request.resources {
                    let one = AcquireRequest {
                        resources: vec![of.clone()],
                        ..request.clone()
                    };
                    leases.extend(self.inner.acquire_all(&one).await?);
                }
                return Ok(leases);
            }
            Fault::CreatesBeforeItAcquires if request.create => {
                for of in &request.resources {
                    if self.inner.read(std::slice::from_ref(of)).await? == [None] {
                        self.inner.commit(&creation(of)?).await?;
                    }
                }
            }
            Fault::AcquiresInARace => {
                for of in &request.resources {
                    let free = match self.stored(of).await? {
                        Some((lease, state)) => {
                            state != LeaseState::Live || lease.owner == request.owner
                        }
                        None => true,
                    };
                    tokio::task::yield_now().await;
                    if free && self.mark(of).await?.is_some() {
                        self.inner.revoke(of).await?;
                    }
                }
            }
            _ => {}
        }
        self.inner.acquire_all(request).await
    }

    /// The request as the fault has it.
    async fn disfigured(&self, request: &CommitRequest) -> Result<CommitRequest> {
        let mut request = request.clone();
        match self.fault {
            Fault::ChecksNoFence => self.pass_all(&mut request.fences).await?,
            Fault::ChecksOneFence => {
                let mut rest = request.fences.split_off(request.fences.len().min(1));
                self.pass_all(&mut rest).await?;
                request.fences.extend(rest);
            }
            Fault::RefusesExpiredTokens => {
                for fence in &mut request.fences {
                    fence.must_be_live = true;
                }
            }
            Fault::IgnoresLiveness => {
                for fence in &mut request.fences {
                    fence.must_be_live = false;
                }
            }
            Fault::ObservesNoTokens => {
                let mut kept = Vec::new();
                for mut fence in request.fences {
                    if let Some(mark) = self.mark(&fence.resource).await? {
                        fence.token = fence.token.min(mark);
                        kept.push(fence);
                    }
                }
                request.fences = kept;
            }
            Fault::DemandsNoFence if request.fences.is_empty() => {
                for write in &request.writes {
                    if let Some(token) = self.mark(&write.resource).await? {
                        request.fences.push(Fence {
                            resource: write.resource.clone(),
                            token,
                            must_be_live: false,
                        });
                        break;
                    }
                }
            }
            Fault::TokensAreDoubles | Fault::TokensAreTexts => {
                for fence in &mut request.fences {
                    let Some(mark) = self.mark(&fence.resource).await? else {
                        continue;
                    };
                    if self.fault == Fault::TokensAreTexts {
                        if fence.token.to_string() > mark.to_string() {
                            fence.token = fence.token.max(mark);
                        }
                    } else if double(fence.token) >= double(mark) {
                        fence.token = fence.token.max(mark);
                    }
                }
            }
            Fault::ValidatesNothing => request.checks.clear(),
            Fault::ValidatesWholeResources => {
                for check in &mut request.checks {
                    if let Check::Field {
                        resource, version, ..
                    } = check.clone()
                    {
                        *check = Check::Resource { resource, version };
                    }
                }
            }
            Fault::ForgetsCommitIds => request.id = None,
            _ => {}
        }
        Ok(request)
    }

    /// Makes fences pass whatever their tokens are.
    async fn pass_all(&self, fences: &mut [Fence]) -> Result<()> {
        for fence in fences {
            if let Some(mark) = self.mark(&fence.resource).await? {
                fence.token = fence.token.max(mark);
            }
        }
        Ok(())
    }

    /// The writes of a request in as many commits.
    async fn commit_in_parts(&self, request: &CommitRequest) -> Result<CommitReceipt> {
        request.validate()?;
        let mut parts = request.writes.iter().map(|write| CommitRequest {
            writes: vec![write.clone()],
            checks: request
                .checks
                .iter()
                .filter(|check| *check.resource() == write.resource)
                .cloned()
                .collect(),
            ..request.clone()
        });
        let Some(mut first) = parts.next() else {
            return self.inner.commit(request).await;
        };
        let rest: Vec<_> = parts.collect();
        if rest.is_empty() {
            first.checks.clone_from(&request.checks);
        }
        let mut receipt = self.inner.commit(&first).await?;
        for mut part in rest {
            if self.fault == Fault::AbandonsCommits {
                tokio::task::yield_now().await;
            }
            part.id = None;
            let more = self.inner.commit(&part).await?;
            receipt.sequence = more.sequence;
            receipt.versions.extend(more.versions);
        }
        Ok(receipt)
    }
}

fn creation(of: &ResourceName) -> Result<CommitRequest> {
    Ok(CommitRequest {
        id: None,
        agent: "creation".try_into()?,
        fences: Vec::new(),
        checks: Vec::new(),
        writes: vec![statepact::backend::ResourceWrite {
            resource: of.clone(),
            change: Change::Replace(BTreeMap::new()),
            fenced: None,
        }],
    })
}

#[expect(clippy::cast_precision_loss, reason = "it is the fault")]
fn double(token: Token) -> f64 {
    token.get() as f64
}

/// Whether SQL's `LIKE pattern || '%'` matches.
fn like(pattern: &[char], name: &[char]) -> bool {
    match (pattern, name) {
        ([], _) => true,
        (['%', rest @ ..], _) => (0..=name.len()).any(|at| like(rest, name.split_at(at).1)),
        (['_', rest @ ..], [_, name @ ..]) => like(rest, name),
        ([c, rest @ ..], [d, name @ ..]) => c == d && like(rest, name),
        (_, []) => false,
    }
}

#[async_trait]
impl Backend for Broken {
    async fn now(&self) -> Result<Timestamp> {
        self.inner.now().await
    }

    async fn acquire_all(&self, request: &AcquireRequest) -> Result<Vec<Lease>> {
        let mut leases = self.acquire_broken(request).await?;
        if self.fault == Fault::AbandonsLeases {
            tokio::task::yield_now().await;
        }
        for lease in &mut leases {
            if self.fault == Fault::ShortensExtensions {
                *lease = self.inner.renew(lease, request.ttl).await?;
            }
            let mut memo = self.memo();
            match self.fault {
                Fault::ReusesTokens => {
                    if let Some(token) = memo.released.remove(&lease.resource) {
                        lease.token = token;
                    }
                }
                Fault::ForgetsTokensOfDeleted if memo.deleted.remove(&lease.resource) => {
                    lease.token = Token::MIN;
                }
                _ => {}
            }
        }
        Ok(leases)
    }

    async fn renew(&self, lease: &Lease, ttl: Ttl) -> Result<Lease> {
        match self.fault {
            Fault::RenewsByName => {
                if let Some((stored, LeaseState::Live)) = self.stored(&lease.resource).await? {
                    return self.inner.renew(&stored, ttl).await;
                }
            }
            Fault::TrustsTheCopy if self.inner.now().await? >= lease.expires_at => {
                return Err(Error::LeaseLost {
                    resource: lease.resource.clone(),
                    token: lease.token,
                    reason: LossReason::Expired,
                });
            }
            Fault::RevivesExpired => {
                let answer = self.inner.renew(lease, ttl).await;
                let reason = LossReason::Expired;
                return match answer {
                    Err(Error::LeaseLost { reason: why, .. }) if why == reason => {
                        let again = self.inner.acquire(&lease.resource, &lease.owner, ttl);
                        Ok(Lease {
                            token: lease.token,
                            ..again.await?
                        })
                    }
                    answer => answer,
                };
            }
            _ => {}
        }
        self.inner.renew(lease, ttl).await
    }

    async fn release(&self, lease: &Lease) -> Result<bool> {
        let mut lease = lease.clone();
        if let Some((stored, _)) = self.stored(&lease.resource).await? {
            match self.fault {
                Fault::ReleasesByName => lease = stored,
                Fault::ReleasesByToken => lease.owner = stored.owner,
                _ => {}
            }
        }
        let released = self.inner.release(&lease).await?;
        if released {
            self.memo().released.insert(lease.resource, lease.token);
        }
        Ok(released)
    }

    async fn revoke(&self, resource: &ResourceName) -> Result<Token> {
        if self.fault == Fault::RevokesWithoutMark
            && let Some((lease, LeaseState::Live)) = self.stored(resource).await?
        {
            self.inner.release(&lease).await?;
            return Ok(lease.token);
        }
        self.inner.revoke(resource).await
    }

    async fn lease_status(&self, resource: &ResourceName) -> Result<LeaseStatus> {
        self.inner.lease_status(resource).await
    }

    async fn read(&self, resources: &[ResourceName]) -> Result<Vec<Option<ResourceState>>> {
        let mut states = self.inner.read(resources).await?;
        if self.fault == Fault::ReadsStale {
            let mut memo = self.memo();
            for (of, state) in resources.iter().zip(&mut states) {
                state.clone_from(memo.read.entry(of.clone()).or_insert(state.clone()));
            }
        }
        Ok(states)
    }

    async fn commit(&self, request: &CommitRequest) -> Result<CommitReceipt> {
        match self.fault {
            Fault::ChecksFencesLast => {
                request.validate()?;
                self.validate(request).await?;
            }
            Fault::ValidatesInARace => {
                self.validate(request).await?;
                tokio::task::yield_now().await;
                let mut unchecked = request.clone();
                unchecked.checks.clear();
                return self.inner.commit(&unchecked).await;
            }
            Fault::CommitsOneByOne | Fault::AbandonsCommits => {
                return self.commit_in_parts(request).await;
            }
            Fault::ReplaysAnything => {
                let known = request
                    .id
                    .and_then(|id| self.memo().receipts.get(&id).cloned());
                if let Some(receipt) = known {
                    return Ok(receipt);
                }
            }
            _ => {}
        }
        let receipt = self.inner.commit(&self.disfigured(request).await?).await?;
        let mut memo = self.memo();
        if let Some(id) = request.id {
            memo.receipts.insert(id, receipt.clone());
        }
        for write in &request.writes {
            if write.change == Change::Delete {
                memo.deleted.insert(write.resource.clone());
            }
        }
        Ok(receipt)
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&ResourceName>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>> {
        if self.fault != Fault::ListsPatterns {
            return self.inner.list(prefix, after, limit).await;
        }
        let pattern: Vec<char> = prefix.chars().collect();
        let mut all = self.inner.list("", after, usize::MAX).await?;
        all.retain(|summary| {
            let name: Vec<char> = summary.resource.as_str().chars().collect();
            like(&pattern, &name)
        });
        all.truncate(limit);
        Ok(all)
    }

    async fn events(&self, after: u64, limit: usize) -> Result<EventPage> {
        let mut page = self.inner.events(after, limit).await?;
        if self.fault == Fault::SkipsEvents && page.events.len() == limit && limit > 1 {
            page.events.pop();
        }
        Ok(page)
    }

    async fn check(&self, progress: &(dyn Fn(u64) + Send + Sync)) -> Result<CheckReport> {
        self.inner.check(progress).await
    }

    async fn guard(&self, lease: &Lease) -> Result<()> {
        self.inner.guard(lease).await?;
        if self.fault == Fault::GuardsLiveness && self.inner.now().await? >= lease.expires_at {
            return Err(Error::LeaseLost {
                resource: lease.resource.clone(),
                token: lease.token,
                reason: LossReason::Expired,
            });
        }
        Ok(())
    }
}
