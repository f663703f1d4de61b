//! Group commit: callers that arrive while a transaction is being synced share
//! the next one.
//!
//! One thread at a time leads: it takes what is queued and runs it as a batch.
//! A blocking caller that finds nobody leading leads its own batch on its own
//! thread; all else is led by the committer, a thread that is started when it
//! is first needed.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::engine::{Engine, is_busy, leader_lost};
use crate::clock::Monotonic;
use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::rules::{Op, Outcome};

/// How many operations share a transaction at most.
const LARGEST_BATCH: usize = 256;

/// What a job is answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) result: Result<Outcome>,
    /// Leases that began with this operation: released if nobody takes the
    /// answer (R25).
    pub(super) fresh: Vec<Lease>,
}

impl Answer {
    pub(super) fn failed(error: Error) -> Self {
        Self {
            result: Err(error),
            fresh: Vec::new(),
        }
    }
}

#[derive(Debug)]
enum Reply {
    Thread(SyncSender<Answer>),
    Task(oneshot::Sender<Answer>),
    Nobody,
}

/// An operation in the queue.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) op: Op,
    pub(super) deadline: Monotonic,
    reply: Reply,
}

impl Job {
    /// A release that nobody waits for.
    pub(super) fn release(lease: Lease, deadline: Monotonic) -> Self {
        Self {
            op: Op::Release(lease),
            deadline,
            reply: Reply::Nobody,
        }
    }

    /// Whether the caller has gone away: then it is not done at all.
    pub(super) fn is_cancelled(&self) -> bool {
        matches!(&self.reply, Reply::Task(reply) if reply.is_closed())
    }

    /// Hands the answer over; the leases that are left with nobody behind
    /// them.
    pub(super) fn answer(self, answer: Answer) -> Vec<Lease> {
        match self.reply {
            Reply::Thread(reply) => match reply.send(answer) {
                Ok(()) => Vec::new(),
                Err(unsent) => unsent.0.fresh,
            },
            Reply::Task(reply) => match reply.send(answer) {
                Ok(()) => Vec::new(),
                Err(unsent) => unsent.fresh,
            },
            Reply::Nobody => Vec::new(),
        }
    }
}

/// The queue of operations that have to write.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueState {
    pending: VecDeque<Job>,
    leading: bool,
    /// The committer's thread is there.
    committer: bool,
    closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job that whoever leads, or the committer, will come to.
    pub(super) fn push(&self, job: Job) {
        self.lock().pending.push_back(job);
        self.changed.notify_one();
    }

    fn take_batch(state: &mut QueueState) -> Vec<Job> {
        let size = state.pending.len().min(LARGEST_BATCH);
        state.pending.drain(..size).collect()
    }

    /// The engine is going away: the committer ends.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }
}

/// Ends the leadership however the leader ends.
struct Leading<'a>(&'a Queue);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        self.0.lock().leading = false;
        self.0.changed.notify_one();
    }
}

/// Runs an operation and waits for its answer on this thread.
pub(super) fn run_blocking(shared: &Arc<Shared>, op: Op) -> Result<Outcome> {
    op.validate()?;
    let engine = &shared.engine;
    let deadline = engine.deadline();
    if let Some(outcome) = engine.answer_from_snapshot(&op, deadline)? {
        return Ok(outcome);
    }
    let (reply, answer) = sync_channel(1);
    let job = Job {
        op,
        deadline,
        reply: Reply::Thread(reply),
    };
    let queue = &engine.queue;
    let mut state = queue.lock();
    state.pending.push_back(job);
    if state.leading {
        drop(state);
    } else {
        state.leading = true;
        let batch = Queue::take_batch(&mut state);
        drop(state);
        let leading = Leading(queue);
        engine.run_batch(batch);
        drop(leading);
    }
    start_committer_if_needed(shared);
    receive(&answer)
}

fn receive(answer: &Receiver<Answer>) -> Result<Outcome> {
    answer.recv().map_err(|_| leader_lost())?.result
}

/// Runs an operation for a task. Dropping the future leaves it done wholly or
/// not at all, and no new lease behind (R25).
pub(super) async fn run_async(shared: &Arc<Shared>, op: Op) -> Result<Outcome> {
    op.validate()?;
    let engine = &shared.engine;
    if !engine.someone_waits() {
        match engine.answer_from_snapshot(&op, Monotonic::from_millis(0)) {
            Ok(Some(outcome)) => return Ok(outcome),
            Ok(None) => {}
            Err(error) if is_busy(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let (reply, answer) = oneshot::channel();
    let mut waiting = Waiting {
        shared: shared.clone(),
        answer,
    };
    engine.queue.push(Job {
        op,
        deadline: engine.deadline(),
        reply: Reply::Task(reply),
    });
    start_committer_if_needed(shared);
    match (&mut waiting.answer).await {
        Ok(answer) => answer.result,
        Err(_) => Err(leader_lost()),
    }
}

/// Releases what was granted to a future that was dropped before it saw it.
struct Waiting {
    shared: Arc<Shared>,
    answer: oneshot::Receiver<Answer>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(answer) = self.answer.try_recv() {
            for lease in answer.fresh {
                let engine = &self.shared.engine;
                engine.queue.push(Job::release(lease, engine.deadline()));
            }
            start_committer_if_needed(&self.shared);
        }
    }
}

/// What the handles of a store in this process share: when the last of them
/// goes, the committer ends.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) engine: Arc<Engine>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.engine.queue.close();
    }
}

fn start_committer_if_needed(shared: &Arc<Shared>) {
    let engine = &shared.engine;
    {
        let mut state = engine.queue.lock();
        if state.pending.is_empty() || state.committer {
            return;
        }
        state.committer = true;
    }
    // The engine, not what the handles share: it must not keep the store open
    // once the last handle has closed the queue.
    let committing = engine.clone();
    let started = std::thread::Builder::new()
        .name("statepact-commit".to_owned())
        .spawn(move || commit_until_closed(&committing));
    if started.is_err() {
        // No thread to be had: this one does what is queued.
        lead_while_pending(engine);
        engine.queue.lock().committer = false;
    }
}

fn lead_while_pending(engine: &Engine) {
    loop {
        let mut state = engine.queue.lock();
        if state.pending.is_empty() || state.leading {
            return;
        }
        state.leading = true;
        let batch = Queue::take_batch(&mut state);
        drop(state);
        let leading = Leading(&engine.queue);
        engine.run_batch(batch);
        drop(leading);
    }
}

fn commit_until_closed(engine: &Engine) {
    loop {
        {
            let mut state = engine.queue.lock();
            while state.leading || state.pending.is_empty() {
                if state.closed && !state.leading && state.pending.is_empty() {
                    state.committer = false;
                    return;
                }
                state = engine
                    .queue
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
        lead_while_pending(engine);
    }
}
