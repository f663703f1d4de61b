//! [`StateManager`]: the way into a store.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{AcquireRequest, SharedBackend};
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, Result};
use crate::lease::{Granted, Lease, Wait, acquire_waiting};
use crate::random::{Random, SystemRandom};
use crate::resource::{AgentName, OwnerName, ResourceName, Ttl};
use crate::session::SessionBuilder;

/// A store, with everything that is done to it. Cheap to clone.
///
/// ```
/// use statepact::StateManager;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> statepact::Result<()> {
/// let manager = StateManager::open("memory:").await?;
/// let lease = manager.lease("orders/7", "worker-a", Duration::from_secs(30)).await?;
///
/// let mut session = manager.session("worker-a").resource("orders/7").fence(&lease).begin().await?;
/// let paid: u32 = session.read("orders/7", "paid").await?.unwrap_or(0);
/// session.write("orders/7", "paid", &(paid + 100))?;
/// session.commit().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct StateManager {
    backend: SharedBackend,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
}

impl StateManager {
    /// Opens the store that `url` names: a path, or `memory:`.
    ///
    /// # Errors
    /// As [`backend::open`](crate::backend::open).
    pub async fn open(url: &str) -> Result<Self> {
        Ok(Self::new(crate::backend::open(url).await?))
    }

    /// A manager of a store that is open.
    pub fn new(backend: SharedBackend) -> Self {
        Self {
            backend,
            clock: Arc::new(SystemClock),
            random: Arc::new(SystemRandom),
        }
    }

    /// Uses another clock for waiting and retrying.
    #[must_use]
    pub fn with_clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Uses another source of randomness for jitter and commit ids.
    #[must_use]
    pub fn with_random(mut self, random: Arc<dyn Random>) -> Self {
        self.random = random;
        self
    }

    /// The backend.
    pub fn backend(&self) -> &SharedBackend {
        &self.backend
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    pub(crate) fn random(&self) -> &dyn Random {
        &*self.random
    }

    /// Asks for the lease of a resource, creating the resource with an empty
    /// state if it is absent, in the same step (R2 to R4, R24). Await the
    /// answer, or let it wait first.
    pub fn lease(
        &self,
        resource: impl TryInto<ResourceName, Error: Into<Error>>,
        owner: impl TryInto<OwnerName, Error: Into<Error>>,
        ttl: Duration,
    ) -> LeaseRequest {
        Self::request([resource], owner, ttl)
            .map_or_else(LeaseRequest::refused, |request| self.ask(request))
    }

    /// Asks for the leases of several resources: all of them or none, in one
    /// step, so that two callers that name them in different orders cannot
    /// block each other.
    pub fn lease_all<R: TryInto<ResourceName, Error: Into<Error>>>(
        &self,
        resources: impl IntoIterator<Item = R>,
        owner: impl TryInto<OwnerName, Error: Into<Error>>,
        ttl: Duration,
    ) -> LeaseAllRequest {
        LeaseAllRequest {
            inner: Self::request(resources, owner, ttl)
                .map_or_else(LeaseRequest::refused, |request| self.ask(request)),
        }
    }

    fn request<R: TryInto<ResourceName, Error: Into<Error>>>(
        resources: impl IntoIterator<Item = R>,
        owner: impl TryInto<OwnerName, Error: Into<Error>>,
        ttl: Duration,
    ) -> Result<AcquireRequest> {
        Ok(AcquireRequest {
            resources: resources
                .into_iter()
                .map(|resource| resource.try_into().map_err(Into::into))
                .collect::<Result<_>>()?,
            owner: owner.try_into().map_err(Into::into)?,
            ttl: Ttl::try_from(ttl)?,
            create: true,
        })
    }

    fn ask(&self, request: AcquireRequest) -> LeaseRequest {
        LeaseRequest {
            asked: Ok((self.clone(), request)),
            wait: Wait::No,
        }
    }

    /// Begins to describe a session of `agent`, whose name is recorded in the
    /// history with what it commits.
    pub fn session(&self, agent: impl TryInto<AgentName, Error: Into<Error>>) -> SessionBuilder {
        SessionBuilder::new(self.clone(), agent.try_into().map_err(Into::into))
    }
}

/// A lease that has been asked for: await it.
#[derive(Debug)]
#[must_use = "a lease is asked for when this is awaited"]
pub struct LeaseRequest {
    asked: Result<(StateManager, AcquireRequest)>,
    wait: Wait,
}

impl LeaseRequest {
    fn refused(error: Error) -> Self {
        Self {
            asked: Err(error),
            wait: Wait::No,
        }
    }

    /// Waits up to `longest` while others hold it. At the end of the wait the
    /// answer is [`Error::WaitTimedOut`], and nothing is held. A backend that is
    /// out of reach for a while does not end a wait that has begun; if it still
    /// is at the end of the wait, its error is the answer.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.wait = Wait::AtMost(longest);
        self
    }

    /// Waits until it is free.
    pub fn wait_forever(mut self) -> Self {
        self.wait = Wait::Forever;
        self
    }

    async fn acquire(self) -> Result<Granted> {
        let (manager, request) = self.asked?;
        acquire_waiting(
            &*manager.backend,
            manager.clock(),
            manager.random(),
            &request,
            self.wait,
        )
        .await
    }
}

impl IntoFuture for LeaseRequest {
    type Output = Result<Lease>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async { self.acquire().await?.first() })
    }
}

/// Leases that have been asked for: await them.
#[derive(Debug)]
#[must_use = "leases are asked for when this is awaited"]
pub struct LeaseAllRequest {
    inner: LeaseRequest,
}

impl LeaseAllRequest {
    /// As [`LeaseRequest::wait`].
    pub fn wait(mut self, longest: Duration) -> Self {
        self.inner = self.inner.wait(longest);
        self
    }

    /// As [`LeaseRequest::wait_forever`].
    pub fn wait_forever(mut self) -> Self {
        self.inner = self.inner.wait_forever();
        self
    }
}

impl IntoFuture for LeaseAllRequest {
    type Output = Result<Vec<Lease>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async { Ok(self.inner.acquire().await?.leases) })
    }
}
