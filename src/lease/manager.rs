//! [`LeaseManager`]: the calls on leases, with a time to live for all of them.

use std::sync::Arc;
use std::time::Duration;

use super::hold::Hold;
use super::{Lease, Token, Wait, acquire_waiting};
use crate::backend::{AcquireRequest, SharedBackend};
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, Result};
use crate::random::{Random, SystemRandom};
use crate::resource::{OwnerName, ResourceName, Ttl};

/// Takes, renews, checks and releases leases of one backend, and holds them
/// for work that must have one owner at a time ([`LeaseManager::hold`]).
///
/// Clones are cheap and share the backend.
///
/// ```
/// use statepact::backend::memory::Memory;
/// use statepact::{Error, LeaseManager};
/// use std::{sync::Arc, time::Duration};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let leases = LeaseManager::new(Arc::new(Memory::new()), Duration::from_secs(30))?;
///
/// let lease = leases.acquire_or_create("job-42", "worker-a").await?;
/// let refused = leases.acquire("job-42", "worker-b").await;
/// assert!(matches!(refused, Err(Error::LeaseNotAvailable { .. })));
///
/// let lease = leases.renew(&lease).await?;
/// leases.guard(&lease).await?;
/// assert!(leases.release(&lease).await?);
///
/// // The next owner's token is above this one, which fences worker-a.
/// let next = leases.acquire("job-42", "worker-b").await?;
/// assert!(next.token > lease.token);
/// assert!(leases.guard(&lease).await.is_err());
/// # Ok::<_, Error>(()) }).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct LeaseManager {
    pub(super) backend: SharedBackend,
    pub(super) ttl: Ttl,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) random: Arc<dyn Random>,
}

impl LeaseManager {
    /// A manager of the backend's leases that acquires them for `ttl`, on the
    /// machine's clock and randomness.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `ttl` is 1 ms to 366 days (R27).
    pub fn new(backend: SharedBackend, ttl: Duration) -> Result<Self> {
        Ok(Self {
            backend,
            ttl: ttl.try_into()?,
            clock: Arc::new(SystemClock),
            random: Arc::new(SystemRandom),
        })
    }

    /// Takes the time of [`hold`](Self::hold) from `clock`: when to renew,
    /// and when a lease that could not be renewed counts as lost. What is
    /// live is decided by the backend's clock alone (R11).
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Takes the jitter of retries from `random`.
    #[must_use]
    pub fn with_random(mut self, random: Arc<dyn Random>) -> Self {
        self.random = random;
        self
    }

    /// Acquires the lease of a resource that exists (R2 to R4).
    ///
    /// An owner that holds the lease already keeps its token and has it
    /// extended (R3): two holders that use one owner name share a token, so
    /// make the name unique to the process.
    ///
    /// # Errors
    /// [`Error::LeaseNotAvailable`] while another owner's lease is live (R4);
    /// [`Error::ResourceNotFound`] when the resource does not exist (R24);
    /// [`Error::InvalidArgument`] for a name that breaks R27.
    pub async fn acquire(
        &self,
        resource: impl TryInto<ResourceName, Error: Into<Error>>,
        owner: impl TryInto<OwnerName, Error: Into<Error>>,
    ) -> Result<Lease> {
        let (resource, owner) = names(resource, owner)?;
        self.backend.acquire(&resource, &owner, self.ttl).await
    }

    /// Acquires the lease of a resource, and creates the resource with empty
    /// state, in the same step, if it does not exist (R24).
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but for [`Error::ResourceNotFound`].
    pub async fn acquire_or_create(
        &self,
        resource: impl TryInto<ResourceName, Error: Into<Error>>,
        owner: impl TryInto<OwnerName, Error: Into<Error>>,
    ) -> Result<Lease> {
        let (resource, owner) = names(resource, owner)?;
        let request = AcquireRequest {
            resources: vec![resource],
            owner,
            ttl: self.ttl,
            create: true,
        };
        acquire_waiting(
            &*self.backend,
            &*self.clock,
            &*self.random,
            &request,
            Wait::No,
        )
        .await?
        .first()
    }

    /// Extends a live lease by the lease's own time to live, counted from
    /// now (R5).
    ///
    /// # Errors
    /// [`Error::LeaseLost`] with the reason: it expired (even if nobody took
    /// over), was released, or was superseded by a newer token.
    pub async fn renew(&self, lease: &Lease) -> Result<Lease> {
        self.backend.renew(lease, lease.ttl).await
    }

    /// Sets the expiry of a live lease to `ttl` from now, which may be earlier
    /// than it was (R5).
    ///
    /// # Errors
    /// As [`renew`](Self::renew); [`Error::InvalidArgument`] unless `ttl` is
    /// 1 ms to 366 days.
    pub async fn renew_for(&self, lease: &Lease, ttl: Duration) -> Result<Lease> {
        self.backend.renew(lease, ttl.try_into()?).await
    }

    /// Ends a live lease at once; whether it was live (R6). A stale release
    /// answers false and never touches a successor's lease.
    ///
    /// # Errors
    /// Only what keeps the backend from answering.
    pub async fn release(&self, lease: &Lease) -> Result<bool> {
        self.backend.release(lease).await
    }

    /// Fails when the resource has a newer token than the lease, and only then
    /// (R8): a lease that has merely expired passes.
    ///
    /// It tells what was so when the backend looked. To make a write safe,
    /// carry [`Lease::fence`] in the commit.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] with
    /// [`LossReason::Superseded`](crate::LossReason::Superseded).
    pub async fn guard(&self, lease: &Lease) -> Result<()> {
        self.backend.guard(lease).await
    }

    /// The mark of a resource, the highest token issued or observed; `None`
    /// if there never was one (R7).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a name that breaks R27.
    pub async fn current_fence(
        &self,
        resource: impl TryInto<ResourceName, Error: Into<Error>>,
    ) -> Result<Option<Token>> {
        let resource = resource.try_into().map_err(Into::into)?;
        self.backend.current_fence(&resource).await
    }

    /// Ends any lease of the resource and raises its mark by one, so that its
    /// owner is fenced from that moment; the new mark (R9). An operator's
    /// tool.
    ///
    /// # Errors
    /// [`Error::ResourceNotFound`] when the resource does not exist and never
    /// had a token; [`Error::TokensExhausted`] (R28).
    pub async fn revoke(
        &self,
        resource: impl TryInto<ResourceName, Error: Into<Error>>,
    ) -> Result<Token> {
        let resource = resource.try_into().map_err(Into::into)?;
        self.backend.revoke(&resource).await
    }

    /// Holds a lease for as long as some work takes: acquires it on entry,
    /// renews it when asked, releases it on exit, and stops the work if it is
    /// lost. See [`Hold`].
    ///
    /// A name that breaks R27 is reported when the hold begins.
    pub fn hold(
        &self,
        resource: impl TryInto<ResourceName, Error: Into<Error>>,
        owner: impl TryInto<OwnerName, Error: Into<Error>>,
    ) -> Hold {
        Hold::new(self.clone(), names(resource, owner))
    }
}

fn names(
    resource: impl TryInto<ResourceName, Error: Into<Error>>,
    owner: impl TryInto<OwnerName, Error: Into<Error>>,
) -> Result<(ResourceName, OwnerName)> {
    Ok((
        resource.try_into().map_err(Into::into)?,
        owner.try_into().map_err(Into::into)?,
    ))
}
