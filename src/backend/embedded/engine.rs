//! The engine of an open store: reads from snapshots, and writes in batches
//! that share one durable transaction.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;

use redb::{ReadOnlyDatabase, ReadTransaction, WriteTransaction};

use super::EmbeddedOptions;
use super::failure::{commit_error, located, storage_error, transaction_error, without_panics};
use super::group::{Answer, Job, Queue};
use super::open::{self, Guarded, Opened};
use super::seam::{real_now, with_deadline};
use super::tables::{Snapshot, Tables};
use super::time::StoreTime;
use crate::backend::Waiters;
use crate::clock::{Monotonic, Timestamp};
use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::rules::{self, Effects, Op, Outcome};

/// A store that is open in this process.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) path: PathBuf,
    pub(super) options: EmbeddedOptions,
    live: RwLock<Arc<Live>>,
    /// Who writes in this process. redb has such a slot of its own, but waits
    /// for it without end.
    writer: Slot,
    pub(super) queue: Queue,
    pub(super) waiters: Waiters,
    /// The highest sequence that this opening has seen in the file.
    newest_seen: AtomicU64,
}

/// The database as it was last opened.
#[derive(Debug)]
struct Live {
    opened: Opened,
    time: StoreTime,
    /// A commit was left without knowing whether redb's memory of the file is
    /// right: the file is opened again before the next use.
    stale: AtomicBool,
    /// What reads go through once a write has failed.
    reader: Mutex<Option<Arc<Guarded<ReadOnlyDatabase>>>>,
}

/// A writer's slot that can be waited for with a deadline.
#[derive(Debug, Default)]
struct Slot {
    taken: Mutex<bool>,
    freed: Condvar,
}

struct SlotGuard<'a>(&'a Slot);

impl Slot {
    fn take(&self, deadline: Monotonic) -> Result<SlotGuard<'_>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken {
            let left = deadline.since(real_now());
            if left.is_zero() {
                return Err(Error::Busy {
                    what: "another transaction of this process to end",
                    waited: Duration::ZERO,
                });
            }
            taken = self
                .freed
                .wait_timeout(taken, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        *taken = true;
        Ok(SlotGuard(self))
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.freed.notify_one();
    }
}

impl Engine {
    pub(super) fn open(path: PathBuf, options: EmbeddedOptions) -> Result<Self> {
        let deadline = real_now().plus(options.busy_timeout);
        let live = Live::open(&path, &options, deadline)?;
        Ok(Self {
            path,
            options,
            live: RwLock::new(Arc::new(live)),
            writer: Slot::default(),
            queue: Queue::default(),
            waiters: Waiters::new(),
            newest_seen: AtomicU64::new(0),
        })
    }

    pub(super) fn deadline(&self) -> Monotonic {
        real_now().plus(self.options.busy_timeout)
    }

    pub(super) fn located(&self, error: Error) -> Error {
        located(error, &self.path, self.options.busy_timeout)
    }

    /// Whether a thread is stuck behind another process.
    pub(super) fn someone_waits(&self) -> bool {
        self.current().opened.seen.someone_waits()
    }

    fn current(&self) -> Arc<Live> {
        self.live
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The open database, opened again if it has to be.
    fn live(&self, deadline: Monotonic) -> Result<Arc<Live>> {
        let live = self.current();
        live.opened.identity.still_at(&self.path)?;
        if !live.is_stale() || live.opened.seen.has_failed() {
            return Ok(live);
        }
        let mut slot = self.live.write().unwrap_or_else(PoisonError::into_inner);
        if slot.is_stale() {
            let mut options = self.options.clone();
            options.create = false;
            let live = Live::open(&self.path, &options, deadline)?;
            if live.opened.identity != slot.opened.identity {
                slot.opened.identity.still_at(&self.path)?;
            }
            *slot = Arc::new(live);
        }
        Ok(slot.clone())
    }

    /// Store time (R11).
    pub(super) fn now(&self) -> Timestamp {
        self.current().time.now()
    }

    /// Runs `work` on a snapshot of the tables.
    pub(super) fn read<T>(
        &self,
        deadline: Monotonic,
        work: impl FnOnce(&Snapshot, Timestamp) -> Result<T>,
    ) -> Result<T> {
        with_deadline(deadline, || {
            without_panics(|| {
                let (snapshot, now) = self.begin_read(deadline)?;
                work(&snapshot, now)
            })
        })
        .map_err(|error| self.located(error))
    }

    /// A snapshot, for work of the caller's own.
    pub(super) fn snapshot(&self, deadline: Monotonic) -> Result<Snapshot> {
        with_deadline(deadline, || without_panics(|| self.begin_read(deadline)))
            .map(|(snapshot, _)| snapshot)
            .map_err(|error| self.located(error))
    }

    fn begin_read(&self, deadline: Monotonic) -> Result<(Snapshot, Timestamp)> {
        let live = self.live(deadline)?;
        // Before the snapshot: what has expired by then was expired when the
        // snapshot was taken, and nobody renewed it between.
        let now = live.time.now();
        let seen = self.newest_seen.load(Ordering::Acquire);
        let snapshot = Snapshot::new(live.begin_read(&self.path, &self.options)?);
        self.goes_on(seen, snapshot.newest()?)?;
        Ok((snapshot, now))
    }

    /// Fails when the log ends before what had been `seen` of it: an older copy
    /// was written over the open file, and tokens issued since are forgotten
    /// (R1).
    fn goes_on(&self, seen: u64, newest: u64) -> Result<()> {
        if newest < seen {
            return Err(Error::Storage {
                message: format!(
                    "the store's file was replaced by an older copy while it was open: its \
                     history ends at event {newest}, and event {seen} had been seen; stop the \
                     holders of its leases and open it again"
                ),
            });
        }
        self.newest_seen.fetch_max(newest, Ordering::AcqRel);
        Ok(())
    }

    /// The answer of an operation that can be had from a snapshot: a refusal,
    /// or a success that changes nothing. `None` when it has to write.
    pub(super) fn answer_from_snapshot(
        &self,
        op: &Op,
        deadline: Monotonic,
    ) -> Result<Option<Outcome>> {
        self.read(deadline, |snapshot, now| {
            let (outcome, effects) = rules::decide(op, &snapshot.load(op)?, now)?;
            Ok(effects.is_empty().then_some(outcome))
        })
    }

    /// Decides the jobs in their order and makes what they change durable in
    /// one transaction; then answers them all.
    pub(super) fn run_batch(&self, mut jobs: Vec<Job>) {
        let mut reopened = false;
        loop {
            jobs.retain(|job| !job.is_cancelled());
            let Some(deadline) = jobs.iter().map(|job| job.deadline).min() else {
                return;
            };
            let ran = with_deadline(deadline, || {
                without_panics(|| Ok(self.try_batch(&jobs, deadline)))
            });
            let error = match ran.and_then(|ran| ran) {
                Ok(answers) => {
                    for (job, answer) in jobs.into_iter().zip(answers) {
                        self.answer(job, answer);
                    }
                    return;
                }
                Err(error) => error,
            };
            let stale = self.current().is_stale();
            if stale && !reopened && matches!(error, Error::Corrupt { .. }) {
                // redb has lost track of the file; nothing was written.
                reopened = true;
                continue;
            }
            let error = self.located(error);
            let timed_out = matches!(error, Error::Busy { .. });
            let now = real_now();
            let mut left = Vec::new();
            for job in jobs {
                if timed_out && job.deadline > now {
                    left.push(job);
                } else {
                    self.answer(job, Answer::failed(error.clone()));
                }
            }
            jobs = left;
        }
    }

    fn try_batch(&self, jobs: &[Job], deadline: Monotonic) -> Result<Vec<Answer>> {
        let _writer = self.writer.take(deadline)?;
        let live = self.live(deadline)?;
        let seen = self.newest_seen.load(Ordering::Acquire);
        let txn = live.begin_write()?;
        // Under the writer's lock, so that times grow in the order of events.
        let now = live.time.now();
        let mut answers = Vec::with_capacity(jobs.len());
        let changed = {
            let mut tables = Tables::open(&txn)?;
            self.goes_on(seen, tables.newest())?;
            let mut changed = false;
            for job in jobs {
                let decided = tables
                    .load(&job.op)
                    .and_then(|records| rules::decide(&job.op, &records, now));
                answers.push(match decided {
                    Ok((outcome, effects)) => {
                        let answer = Answer {
                            fresh: fresh_leases(&outcome, &effects),
                            result: Ok(outcome),
                        };
                        changed |= !effects.is_empty();
                        tables.apply(effects, now)?;
                        answer
                    }
                    Err(error) => Answer::failed(self.located(error)),
                });
            }
            if changed {
                tables.prune(self.options.history)?;
                live.time.keep_ahead(now, &mut tables)?;
            }
            changed
        };
        if changed {
            live.commit(txn)?;
        } else {
            txn.abort().map_err(storage_error)?;
        }
        Ok(answers)
    }

    fn answer(&self, job: Job, answer: Answer) {
        if answer.result.is_ok() {
            match &job.op {
                Op::Release(Lease { resource, .. }) | Op::Revoke(resource) => {
                    self.waiters.lease_ended(resource);
                }
                Op::Acquire(_) | Op::Renew(..) | Op::Commit(_) | Op::Import(_) => {}
            }
        }
        for lease in job.answer(answer) {
            // Nobody is behind these any more (R25).
            self.queue.push(Job::release(lease, self.deadline()));
        }
    }

    /// Checks the operation, then runs `work` in the same write transaction
    /// and commits both.
    pub(super) fn write_with<T, E: From<Error>>(
        &self,
        op: &Op,
        work: impl FnOnce(&WriteTransaction) -> Result<T, E>,
    ) -> Result<T, E> {
        let deadline = self.deadline();
        let fail = |error| E::from(self.located(error));
        // A stale token is refused before it waits for anything.
        self.answer_from_snapshot(op, deadline)?;
        let _writer = self.writer.take(deadline).map_err(fail)?;
        let begun = with_deadline(deadline, || {
            without_panics(|| {
                let live = self.live(deadline)?;
                let seen = self.newest_seen.load(Ordering::Acquire);
                let txn = live.begin_write()?;
                let now = live.time.now();
                {
                    let mut tables = Tables::open(&txn)?;
                    self.goes_on(seen, tables.newest())?;
                    let (_, effects) = rules::decide(op, &tables.load(op)?, now)?;
                    tables.apply(effects, now)?;
                    live.time.keep_ahead(now, &mut tables)?;
                }
                Ok((live, txn))
            })
        });
        let (live, txn) = begun.map_err(fail)?;
        // A panic of the caller's closure drops the transaction, which aborts.
        let value = work(&txn)?;
        with_deadline(self.deadline(), || without_panics(|| live.commit(txn))).map_err(fail)?;
        Ok(value)
    }
}

impl Engine {
    /// Verifies the checksum of every page and every value, on a second handle
    /// to the file: redb verifies pages only while it opens one.
    pub(super) fn check(
        &self,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<crate::backend::CheckReport> {
        let deadline = self.deadline();
        with_deadline(deadline, || {
            without_panics(|| {
                self.current().opened.identity.still_at(&self.path)?;
                let seen = self.newest_seen.load(Ordering::Acquire);
                let database = open::open_verified(&self.path, &self.options)?;
                let snapshot = Snapshot::new(database.begin_read()?);
                self.goes_on(seen, snapshot.newest()?)?;
                snapshot.check(progress)
            })
        })
        .map_err(|error| self.located(error))
    }
}

/// The leases among an outcome that this operation began: those with a new
/// token.
fn fresh_leases(outcome: &Outcome, effects: &Effects) -> Vec<Lease> {
    let Outcome::Acquired(leases) = outcome else {
        return Vec::new();
    };
    let began: BTreeSet<_> = effects.marks.iter().map(|(resource, _)| resource).collect();
    leases
        .iter()
        .filter(|lease| began.contains(&lease.resource))
        .cloned()
        .collect()
}

impl Live {
    fn open(path: &Path, options: &EmbeddedOptions, deadline: Monotonic) -> Result<Self> {
        with_deadline(deadline, || {
            without_panics(|| {
                let opened = open::open(path, options)?;
                let time = open::store_time(&opened.database, options)?;
                Ok(Self {
                    opened,
                    time,
                    stale: AtomicBool::new(false),
                    reader: Mutex::default(),
                })
            })
        })
        .map_err(|error| located(error, path, options.busy_timeout))
    }

    fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Acquire) || self.opened.seen.has_failed_to_read()
    }

    fn begin_read(&self, path: &Path, options: &EmbeddedOptions) -> Result<ReadTransaction> {
        if !self.opened.seen.has_failed() {
            return self.opened.database.begin_read();
        }
        let mut slot = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let reader = match &*slot {
            Some(reader) => reader.clone(),
            None => slot
                .insert(Arc::new(open::open_reader(path, options)?))
                .clone(),
        };
        drop(slot);
        reader.begin_read()
    }

    fn begin_write(&self) -> Result<WriteTransaction> {
        if self.opened.seen.has_failed() {
            return Err(Error::Storage {
                message: "an earlier write to the store failed, so it refuses further ones; open it again"
                    .to_owned(),
            });
        }
        let txn = self.opened.database.get()?.begin_write().map_err(|error| {
            if matches!(
                error,
                redb::TransactionError::Storage(redb::StorageError::Corrupted(_))
            ) {
                self.stale.store(true, Ordering::Release);
            }
            transaction_error(error)
        })?;
        self.opened.seen.take_commit_points();
        Ok(txn)
    }

    /// Commits, and says of a failure whether the commit may have happened.
    fn commit(&self, txn: WriteTransaction) -> Result<()> {
        let Err(error) = txn.commit() else {
            return Ok(());
        };
        self.stale.store(true, Ordering::Release);
        let error = commit_error(error);
        if self.opened.seen.take_commit_points() == 0 {
            // The header still names the state before: nothing has happened.
            return Err(error);
        }
        let message = match error {
            Error::Storage { message } | Error::Corrupt { message, .. } => message,
            Error::Busy { .. } => "another process held the store's header".to_owned(),
            other => other.to_string(),
        };
        Err(Error::OutcomeUnknown {
            message: format!("the store failed while committing: {message}"),
        })
    }
}

/// What is said to callers whose batch was lost with its leader.
pub(super) fn leader_lost() -> Error {
    Error::OutcomeUnknown {
        message: "the thread that was committing stopped".to_owned(),
    }
}

/// What is said when a lock was not to be had at once.
pub(super) fn is_busy(error: &Error) -> bool {
    matches!(error, Error::Busy { .. })
}
