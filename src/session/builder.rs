//! Describing a session before it begins, and running one again.

use std::collections::BTreeSet;
use std::pin::Pin;

use super::{Declared, Isolation, Session};
use crate::backend::{CommitReceipt, CommitRequest, Fence};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{Lease, Token};
use crate::manager::StateManager;
use crate::resource::{AgentName, CommitId, ResourceName};
use crate::retry::{Attempts, RetryPolicy};

/// A session that has not begun.
#[derive(Debug, Clone)]
#[must_use = "a session begins with `begin` or `transact`"]
pub struct SessionBuilder {
    manager: StateManager,
    described: Result<Described>,
}

#[derive(Debug, Clone)]
struct Described {
    agent: AgentName,
    isolation: Isolation,
    id: Option<CommitId>,
    fences: Vec<Fence>,
    resources: BTreeSet<ResourceName>,
}

impl SessionBuilder {
    pub(crate) fn new(manager: StateManager, agent: Result<AgentName>) -> Self {
        Self {
            manager,
            described: agent.map(|agent| Described {
                agent,
                isolation: Isolation::default(),
                id: None,
                fences: Vec::new(),
                resources: BTreeSet::new(),
            }),
        }
    }

    /// The first mistake is kept, and reported when the session is to begin.
    fn with(mut self, describe: impl FnOnce(&mut Described) -> Result<()>) -> Self {
        if let Ok(described) = &mut self.described
            && let Err(error) = describe(described)
        {
            self.described = Err(error);
        }
        self
    }

    /// Declares a resource that the session reads or writes.
    pub fn resource(self, resource: impl TryInto<ResourceName, Error: Into<Error>>) -> Self {
        self.resources([resource])
    }

    /// Declares resources that the session reads or writes.
    pub fn resources<R: TryInto<ResourceName, Error: Into<Error>>>(
        self,
        resources: impl IntoIterator<Item = R>,
    ) -> Self {
        self.with(|described| {
            for resource in resources {
                let resource = resource.try_into().map_err(Into::into)?;
                described.resources.insert(resource);
            }
            Ok(())
        })
    }

    /// The commit carries the lease's token, and is refused when it is stale
    /// (R13). The lease may be of a resource that the session does not touch.
    pub fn fence(self, lease: &Lease) -> Self {
        self.fence_with(lease.fence())
    }

    /// As [`SessionBuilder::fence`], and the lease must be live as well (R16).
    pub fn fence_live(self, lease: &Lease) -> Self {
        self.fence_with(Fence {
            must_be_live: true,
            ..lease.fence()
        })
    }

    /// As [`SessionBuilder::fence`], for a token that came by another way.
    pub fn fence_token(
        self,
        resource: impl TryInto<ResourceName, Error: Into<Error>>,
        token: Token,
    ) -> Self {
        match resource.try_into() {
            Ok(resource) => self.fence_with(Fence {
                resource,
                token,
                must_be_live: false,
            }),
            Err(error) => self.with(|_| Err(error.into())),
        }
    }

    fn fence_with(self, fence: Fence) -> Self {
        self.with(|described| {
            described.fences.push(fence);
            Ok(())
        })
    }

    /// Sets the isolation mode: serializable unless set (R21).
    pub fn isolation(self, isolation: Isolation) -> Self {
        self.with(|described| {
            described.isolation = isolation;
            Ok(())
        })
    }

    /// Gives the commit an id, so that it can be sent again (R26).
    pub fn commit_id(self, id: CommitId) -> Self {
        self.with(|described| {
            described.id = Some(id);
            Ok(())
        })
    }

    /// Begins the session. Unless it is read-committed, all declared resources
    /// are read now, from one snapshot.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a name that is none; what reading from
    /// the backend says.
    pub async fn begin(self) -> Result<Session> {
        let described = self.described?;
        let names: Vec<ResourceName> = described.resources.into_iter().collect();
        let snapshots = if described.isolation == Isolation::ReadCommitted || names.is_empty() {
            Vec::new()
        } else {
            self.manager.backend().read(&names).await?
        };
        let mut snapshots = snapshots.into_iter();
        let resources = names
            .into_iter()
            .map(|name| {
                let declared = Declared {
                    snapshot: snapshots.next().flatten(),
                    ..Declared::default()
                };
                (name, declared)
            })
            .collect();
        Ok(Session {
            manager: self.manager,
            agent: described.agent,
            isolation: described.isolation,
            id: described.id,
            fences: described.fences,
            resources,
        })
    }

    /// Runs `work` in a session and commits it; runs it again, from the
    /// beginning, as long as the policy says, when it failed with a retryable
    /// error: a conflict, a busy or unreachable store. A lost lease ends it
    /// (R19). A commit whose outcome is unknown is sent again with the same
    /// id, so that it happens once (R26).
    ///
    /// ```
    /// use statepact::{RetryPolicy, StateManager};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> statepact::Result<()> {
    /// # let manager = StateManager::open("memory:").await?;
    /// let count = manager
    ///     .session("counter")
    ///     .resource("visits")
    ///     .transact(RetryPolicy::default(), async |session| {
    ///         let count: u64 = session.read("visits", "count").await?.unwrap_or(0) + 1;
    ///         session.write("visits", "count", &count)?;
    ///         Ok(count)
    ///     })
    ///     .await?;
    /// assert_eq!(count, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// What `work` or the last attempt failed with.
    pub async fn transact<T>(
        self,
        policy: RetryPolicy,
        mut work: impl AsyncFnMut(&mut Session) -> Result<T>,
    ) -> Result<T> {
        let manager = self.manager.clone();
        let mut attempts = Attempts::new(policy, manager.clock(), manager.random());
        loop {
            let attempt = async {
                let mut session = self.begin_attempt().await?;
                let value = work(&mut session).await?;
                send(&manager, policy, &session.into_request()).await?;
                Ok(value)
            };
            match attempt.await {
                Err(error) => attempts.after(error).await?,
                done => return done,
            }
        }
    }

    /// As [`SessionBuilder::transact`], for a task that a runtime of several
    /// threads may move between them: an async closure that borrows from its
    /// surroundings cannot be shown to be `Send` yet, a boxed future can.
    ///
    /// ```
    /// use statepact::{RetryPolicy, StateManager};
    ///
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let manager = StateManager::open("memory:").await?;
    /// let name = "visits".to_owned();
    /// let task = tokio::spawn(async move {
    ///     manager
    ///         .session("counter")
    ///         .resource(name.as_str())
    ///         .transact_boxed(RetryPolicy::default(), move |session| {
    ///             let name = name.clone();
    ///             Box::pin(async move {
    ///                 let count: u64 = session.read(name.as_str(), "count").await?.unwrap_or(0) + 1;
    ///                 session.write(name.as_str(), "count", &count)?;
    ///                 Ok(count)
    ///             })
    ///         })
    ///         .await
    /// });
    /// assert_eq!(task.await??, 1);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`SessionBuilder::transact`].
    pub async fn transact_boxed<T: Send>(
        self,
        policy: RetryPolicy,
        mut work: impl for<'s> FnMut(&'s mut Session) -> BoxedWork<'s, T> + Send,
    ) -> Result<T> {
        let manager = self.manager.clone();
        let mut attempts = Attempts::new(policy, manager.clock(), manager.random());
        loop {
            let attempt = async {
                let mut session = self.begin_attempt().await?;
                let value = work(&mut session).await?;
                send(&manager, policy, &session.into_request()).await?;
                Ok(value)
            };
            match attempt.await {
                Err(error) => attempts.after(error).await?,
                done => return done,
            }
        }
    }

    /// A session whose commit has an id.
    async fn begin_attempt(&self) -> Result<Session> {
        let mut session = self.clone().begin().await?;
        if session.id.is_none() {
            session.id = Some(CommitId::random(self.manager.random()));
        }
        Ok(session)
    }
}

/// The future of a piece of work on a session.
pub type BoxedWork<'s, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 's>>;

/// Commits, sending the same request again while its outcome is unknown.
async fn send(
    manager: &StateManager,
    policy: RetryPolicy,
    request: &CommitRequest,
) -> Result<CommitReceipt> {
    let mut attempts = Attempts::new(policy, manager.clock(), manager.random());
    let mut unknown: Option<Error> = None;
    loop {
        let error = match manager.backend().commit(request).await {
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                unknown = Some(error.clone());
                error
            }
            // Out of reach while the outcome of an earlier attempt is open:
            // the work must not be run again, which would apply it twice.
            Err(error)
                if unknown.is_some()
                    && matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy) =>
            {
                error
            }
            // The store refuses everything since: that says nothing about the
            // attempt whose outcome is open.
            Err(error) if matches!(error.kind(), ErrorKind::Storage | ErrorKind::Corrupt) => {
                return Err(unknown.unwrap_or(error));
            }
            answer => return answer,
        };
        let again = Error::Unavailable {
            message: error.to_string(),
        };
        if attempts.after(again).await.is_err() {
            return Err(unknown.unwrap_or(error));
        }
    }
}
