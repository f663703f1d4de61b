//! Holding a lease for as long as some work takes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use super::manager::LeaseManager;
use super::{Lease, Wait, acquire_waiting};
use crate::backend::AcquireRequest;
use crate::clock::{Clock, Monotonic};
use crate::error::{Error, LossReason, Result};
use crate::resource::{OwnerName, ResourceName, Ttl};

/// A lease to be held while some work runs; made by
/// [`LeaseManager::hold`].
///
/// The holder judges for itself when the lease is lost: at a local deadline
/// that is counted, on a clock that includes suspend, from before the last
/// successful acquisition or renewal was sent. So a backend out of reach, a
/// renewal that hangs, or a machine that slept makes the lease lost with no
/// answer from the backend. A renewal that fails otherwise is tried again
/// until then.
///
/// ```
/// # use statepact::{LeaseManager, backend::memory::Memory};
/// # use std::{sync::Arc, time::Duration};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> statepact::Result<()> {
/// let leases = LeaseManager::new(Arc::new(Memory::new()), Duration::from_secs(30))?;
///
/// let token = leases
///     .hold("nightly-backup", "host-a-4711")
///     .auto_renew()
///     .run(|lease| async move {
///         // … the work, which is dropped at its next await if the lease is lost …
///         lease.token
///     })
///     .await?;
/// assert_eq!(token.get(), 1);
///
/// let held = leases.hold("nightly-backup", "host-a-4711").auto_renew().start().await?;
/// assert!(held.lease()?.token > token);
/// assert!(held.release().await?);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a hold begins with `run` or `start`"]
pub struct Hold {
    manager: LeaseManager,
    names: Result<(ResourceName, OwnerName)>,
    ttl: Result<Ttl>,
    auto_renew: bool,
    wait: Wait,
}

impl Hold {
    pub(super) fn new(manager: LeaseManager, names: Result<(ResourceName, OwnerName)>) -> Self {
        let ttl = Ok(manager.ttl);
        Self {
            manager,
            names,
            ttl,
            auto_renew: false,
            wait: Wait::No,
        }
    }

    /// Renews the lease every third of its time to live. Without it the work
    /// is stopped when that time is over.
    pub fn auto_renew(mut self) -> Self {
        self.auto_renew = true;
        self
    }

    /// Uses another time to live than the manager's.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Ttl::try_from(ttl);
        self
    }

    /// Waits up to `longest` while another owner holds the lease.
    pub fn wait(mut self, longest: Duration) -> Self {
        self.wait = Wait::AtMost(longest);
        self
    }

    /// Waits until the lease is free.
    pub fn wait_forever(mut self) -> Self {
        self.wait = Wait::Forever;
        self
    }

    /// Acquires the lease, creating the resource if it is absent (R24), and
    /// keeps it until it is released, lost, or what is returned is dropped.
    ///
    /// # Errors
    /// [`Error::LeaseNotAvailable`], or [`Error::WaitTimedOut`] after a wait;
    /// [`Error::InvalidArgument`].
    pub async fn start(self) -> Result<HeldLease> {
        let (resource, owner) = self.names?;
        let ttl = self.ttl?;
        let request = AcquireRequest {
            resources: vec![resource],
            owner,
            ttl,
            create: true,
        };
        let granted = acquire_waiting(
            &*self.manager.backend,
            &*self.manager.clock,
            &*self.manager.random,
            &request,
            self.wait,
        )
        .await?;
        // No await from here on: the lease has somebody behind it at once.
        let sent = granted.sent;
        let state = State {
            deadline: sent.plus(ttl.as_duration()),
            lease: granted.first()?,
            lost: None,
            failed: None,
        };
        let (changes, states) = watch::channel(state);
        let (stop, stopped) = oneshot::channel();
        let clock = self.manager.clock.clone();
        let keeper = Keeper {
            manager: self.manager,
            ttl,
            auto_renew: self.auto_renew,
            sent,
            changes,
        };
        Ok(HeldLease {
            states,
            clock,
            stop: Some(stop),
            keeper: Some(tokio::spawn(keeper.run(stopped))),
        })
    }

    /// Acquires the lease and runs `work` with it. On a normal end the lease is
    /// renewed until the work is done, then renewal stops, then the lease is
    /// released. If the lease is lost, the work's future is dropped at the
    /// await it has come to. If this future is dropped, or the work panics,
    /// the lease is released in the background.
    ///
    /// A release that cannot reach the backend is not an error: the lease ends
    /// by itself.
    ///
    /// # Errors
    /// As [`Hold::start`]; [`Error::LeaseLost`] when the work was stopped.
    pub async fn run<T, F: Future<Output = T>>(self, work: impl FnOnce(Lease) -> F) -> Result<T> {
        let held = self.start().await?;
        let work = work(held.lease()?);
        tokio::select! {
            biased;
            reason = held.lost() => Err(held.lost_error(reason)),
            value = work => {
                // It ends by itself if this cannot be done.
                let _ = held.release().await;
                Ok(value)
            }
        }
    }
}

#[derive(Debug, Clone)]
struct State {
    lease: Lease,
    /// When the lease is lost unless a renewal succeeds.
    deadline: Monotonic,
    lost: Option<LossReason>,
    /// Why the last renewal failed, if it did.
    failed: Option<Error>,
}

impl State {
    fn loss(&self, clock: &dyn Clock) -> Option<LossReason> {
        self.lost
            .or_else(|| (clock.monotonic() >= self.deadline).then_some(LossReason::Expired))
    }
}

/// A lease that is being held. Dropping it stops the renewal and then releases
/// the lease, in the background.
pub struct HeldLease {
    states: watch::Receiver<State>,
    clock: Arc<dyn Clock>,
    /// Dropped to stop the keeper.
    stop: Option<oneshot::Sender<()>>,
    keeper: Option<JoinHandle<Result<bool>>>,
}

impl fmt::Debug for HeldLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldLease")
            .field("state", &*self.states.borrow())
            .finish_non_exhaustive()
    }
}

impl HeldLease {
    /// The lease as last renewed.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when it is lost: a lease that has expired by the
    /// local deadline is never handed out.
    pub fn lease(&self) -> Result<Lease> {
        let state = self.states.borrow();
        match state.loss(&*self.clock) {
            None => Ok(state.lease.clone()),
            Some(reason) => Err(lost_error(&state.lease, reason)),
        }
    }

    /// Whether the lease is lost.
    pub fn is_lost(&self) -> bool {
        self.states.borrow().loss(&*self.clock).is_some()
    }

    /// Why the last attempt to renew failed; `None` when it succeeded. After a
    /// loss by expiry it tells what had kept the lease from being renewed.
    pub fn renewal_error(&self) -> Option<Error> {
        self.states.borrow().failed.clone()
    }

    /// Waits until the lease is lost, and says why. Any number of callers may
    /// wait, and stop waiting.
    pub async fn lost(&self) -> LossReason {
        let mut states = self.states.clone();
        loop {
            let left = {
                let state = states.borrow_and_update();
                if let Some(reason) = state.loss(&*self.clock) {
                    return reason;
                }
                state.deadline.since(self.clock.monotonic())
            };
            // Looks at the deadline itself, lest the keeper is held up.
            tokio::select! {
                changed = states.changed() => {
                    if changed.is_err() {
                        // The runtime ended the keeper: nobody renews.
                        self.clock.sleep(left).await;
                    }
                }
                () = self.clock.sleep(left) => {}
            }
        }
    }

    fn lost_error(&self, reason: LossReason) -> Error {
        lost_error(&self.states.borrow().lease, reason)
    }

    /// Stops renewing, waits for a renewal that is under way, and releases the
    /// lease; whether it was live until then (R6).
    ///
    /// # Errors
    /// What the backend says; the lease then ends by itself.
    pub async fn release(mut self) -> Result<bool> {
        drop(self.stop.take());
        let Some(keeper) = self.keeper.take() else {
            return Ok(false);
        };
        keeper.await.unwrap_or_else(|error| {
            Err(Error::Unavailable {
                message: format!("the runtime is shutting down: {error}"),
            })
        })
    }
}

fn lost_error(lease: &Lease, reason: LossReason) -> Error {
    Error::LeaseLost {
        resource: lease.resource.clone(),
        token: lease.token,
        reason,
    }
}

/// The task that renews a lease, notices its loss, and releases it.
struct Keeper {
    manager: LeaseManager,
    ttl: Ttl,
    auto_renew: bool,
    /// When the last successful acquisition or renewal was sent.
    sent: Monotonic,
    changes: watch::Sender<State>,
}

impl Keeper {
    /// Keeps the lease until it is stopped, then releases it; whether it was
    /// live. No renewal is under way when the release is sent.
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) -> Result<bool> {
        let clock = self.manager.clock.clone();
        let mut renew_at = self.renewal_after(self.sent);
        loop {
            let deadline = self.changes.borrow().deadline;
            let now = clock.monotonic();
            if now >= deadline {
                self.lose(LossReason::Expired);
                return Ok(false);
            }
            if self.auto_renew && now >= renew_at {
                match self.renew(deadline).await {
                    Ok(()) => renew_at = self.renewal_after(self.sent),
                    Err(Error::LeaseLost { reason, .. }) => {
                        self.lose(reason);
                        return Ok(false);
                    }
                    Err(error) => {
                        self.changes.send_modify(|state| state.failed = Some(error));
                        renew_at = clock.monotonic().plus(self.pause());
                    }
                }
                // Only between renewals: a release must not overtake one.
                if stopped.try_recv() != Err(oneshot::error::TryRecvError::Empty) {
                    break;
                }
                continue;
            }
            let next = if self.auto_renew {
                renew_at.min(deadline)
            } else {
                deadline
            };
            tokio::select! {
                biased;
                _ = &mut stopped => break,
                () = clock.sleep(next.since(now)) => {}
            }
        }
        let lease = {
            let state = self.changes.borrow();
            if state.loss(&*clock).is_some() {
                return Ok(false);
            }
            state.lease.clone()
        };
        self.manager.backend.release(&lease).await
    }

    /// One attempt to renew, given up at the deadline.
    async fn renew(&mut self, deadline: Monotonic) -> Result<()> {
        let clock = self.manager.clock.clone();
        let lease = self.changes.borrow().lease.clone();
        let sent = clock.monotonic();
        let renewed = tokio::select! {
            biased;
            () = clock.sleep(deadline.since(sent)) => return Err(lost_error(&lease, LossReason::Expired)),
            renewed = self.manager.backend.renew(&lease, self.ttl) => renewed?,
        };
        self.sent = sent;
        self.changes.send_modify(|state| {
            state.lease = renewed;
            state.deadline = sent.plus(self.ttl.as_duration());
            state.failed = None;
        });
        Ok(())
    }

    fn renewal_after(&self, sent: Monotonic) -> Monotonic {
        sent.plus(self.ttl.as_duration() / 3)
    }

    /// The pause before a renewal that failed is tried again: a fortieth to a
    /// twentieth of the time to live, at most a second.
    fn pause(&self) -> Duration {
        let longest = (self.ttl.as_millis() / 20).clamp(1, 1000);
        let shortest = longest.div_ceil(2);
        let jitter = self.manager.random.next_u64() % (longest - shortest + 1);
        Duration::from_millis(shortest + jitter)
    }

    fn lose(&self, reason: LossReason) {
        self.changes.send_modify(|state| state.lost = Some(reason));
    }
}

#[cfg(test)]
mod tests;
