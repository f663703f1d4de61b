//! Who waits for which lease in this process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::{Notify, OwnedMutexGuard};

use crate::resource::ResourceName;

/// The callers of one backend, in this process, that wait for leases which
/// others hold.
///
/// Those that wait for one lease are served in the order of their arrival:
/// only the first of them tries to acquire it. It tries again when it hears
/// that the lease has ended ([`Waiters::lease_ended`]), and now and then
/// besides, for what it cannot hear of. Callers that wait for several leases
/// at once hear as well, but stand in no queue: one that waits for a busy
/// lease must not keep others from a free one.
#[derive(Debug, Default)]
pub struct Waiters {
    queues: Mutex<BTreeMap<ResourceName, Weak<Queue>>>,
}

/// Those that wait for one lease.
#[derive(Debug)]
struct Queue {
    /// A fair mutex: who has it is the first in the queue.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Who wants to hear that the lease has ended.
    listeners: Mutex<Vec<Weak<Notify>>>,
}

impl Queue {
    fn listeners(&self) -> MutexGuard<'_, Vec<Weak<Notify>>> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn lease_ended(&self) {
        // A permit is kept for who is not listening just now.
        self.listeners().retain(|listener| {
            listener
                .upgrade()
                .inspect(|listener| listener.notify_one())
                .is_some()
        });
    }
}

impl Waiters {
    /// Nobody waits.
    pub fn new() -> Self {
        Self::default()
    }

    /// The lease of the resource has ended, or may have: who waits for it
    /// tries again at once.
    pub fn lease_ended(&self, resource: &ResourceName) {
        let queue = self.lock().get(resource).and_then(Weak::upgrade);
        if let Some(queue) = queue {
            queue.lease_ended();
        }
    }

    /// Any lease may have ended, unheard: all who wait try again at once.
    pub fn any_lease_ended(&self) {
        for queue in self.lock().values().filter_map(Weak::upgrade) {
            queue.lease_ended();
        }
    }

    /// The resources that somebody waits for.
    pub fn waited_for(&self) -> Vec<ResourceName> {
        let mut queues = self.lock();
        queues.retain(|_, queue| queue.strong_count() > 0);
        queues.keys().cloned().collect()
    }

    /// Begins to listen, before the first attempt.
    pub(crate) fn join(&self, resources: &[ResourceName]) -> Place {
        let mut queues = self.lock();
        queues.retain(|_, queue| queue.strong_count() > 0);
        let ended = Arc::new(Notify::new());
        let queues = resources
            .iter()
            .map(|resource| {
                let found = queues.get(resource).and_then(Weak::upgrade);
                let queue = found.unwrap_or_else(|| {
                    let queue = Arc::new(Queue {
                        turn: Arc::default(),
                        listeners: Mutex::default(),
                    });
                    queues.insert(resource.clone(), Arc::downgrade(&queue));
                    queue
                });
                let mut listeners = queue.listeners();
                listeners.retain(|listener| listener.strong_count() > 0);
                listeners.push(Arc::downgrade(&ended));
                drop(listeners);
                queue
            })
            .collect();
        Place {
            queues,
            ended,
            turn: None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ResourceName, Weak<Queue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller among the [`Waiters`]; it leaves when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    queues: Vec<Arc<Queue>>,
    ended: Arc<Notify>,
    turn: Option<OwnedMutexGuard<()>>,
}

impl Place {
    /// Waits to be the first in the queue.
    pub(crate) async fn turn(&mut self) {
        if let ([queue], None) = (self.queues.as_slice(), &self.turn) {
            self.turn = Some(queue.turn.clone().lock_owned().await);
        }
    }

    /// Waits until one of the leases has ended, since the last call or the
    /// beginning.
    pub(crate) async fn lease_ended(&self) {
        self.ended.notified().await;
    }
}
