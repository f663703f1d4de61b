//! Copying a store into another, whatever their backends.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::backend::{
    Backend, ExportRange, Exported, ImportHistory, ImportRequest, Merge, SharedBackend,
};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::error::{Error, Result};
use crate::event::{Event, EventKind};
use crate::resource::ResourceName;

/// Copies everything of one store into another: resources, versions, marks,
/// leases with the time that they have left, and the history as far as it is
/// kept and the other store has none of its own.
///
/// It reads the store while others write to it, and then catches up with what
/// they wrote; [`Following::follow`] goes on doing so. Tokens issued by the copy
/// are above all that the original had issued until it was last caught up
/// with (R1): end the work on the original before work begins on the copy.
/// Commit ids are not copied: resolve unknown outcomes first (R26).
///
/// A copy that was interrupted is run again: what is there already is left.
/// Until it is done, the other store lacks marks: nobody may work on it.
///
/// ```
/// use statepact::StateManager;
/// use statepact::copy::Copier;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> statepact::Result<()> {
/// let (from, to) = (StateManager::open("memory:").await?, StateManager::open("memory:").await?);
/// let lease = from.lease("job-42", "worker-a", Duration::from_secs(30)).await?;
///
/// let copied = Copier::new(from.backend().clone(), to.backend().clone()).run().await?;
/// assert!(copied.changed >= 1);
/// to.backend().renew(&lease, lease.ttl).await?;
/// # Ok(()) }
/// ```
pub struct Copier {
    from: SharedBackend,
    to: SharedBackend,
    merge: Merge,
    progress: Box<dyn Fn(Copied) + Send + Sync>,
}

/// What has been copied so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Copied {
    /// Resources looked at; one that changed meanwhile counts again.
    pub resources: u64,
    /// Those of them of which something changed in the copy.
    pub changed: u64,
    /// Events of the history.
    pub events: u64,
}

/// How many resources or events are moved at once.
const PAGE: usize = 64;
/// How often the last steps of a copy are tried again.
const PATIENCE: u32 = 50;
/// How often a store that is followed is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How often leases that are live are brought up to date: renewals are no
/// events.
const REFRESH: Duration = Duration::from_secs(1);

impl std::fmt::Debug for Copier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Copier")
            .field("from", &self.from)
            .field("to", &self.to)
            .field("merge", &self.merge)
            .finish_non_exhaustive()
    }
}

/// Where a copy stands.
#[derive(Debug)]
struct Standing {
    copied: Copied,
    /// The sequence of the last event of the original that the copy contains.
    caught_up: u64,
    /// Whether the history comes along.
    with_history: bool,
    merge: Merge,
    /// The resources whose lease was live when last looked at.
    live: BTreeSet<ResourceName>,
}

impl Copier {
    /// A copy of `from` into `to`, which may hold none of the resources yet.
    pub fn new(from: SharedBackend, to: SharedBackend) -> Self {
        Self {
            from,
            to,
            merge: Merge::Refuse,
            progress: Box::new(|_| {}),
        }
    }

    /// What becomes of resources that both hold.
    #[must_use]
    pub fn merge(mut self, merge: Merge) -> Self {
        self.merge = merge;
        self
    }

    /// Called with what has been copied so far, now and then.
    #[must_use]
    pub fn progress(mut self, progress: impl Fn(Copied) + Send + Sync + 'static) -> Self {
        self.progress = Box::new(progress);
        self
    }

    /// Copies everything, and what was written meanwhile.
    ///
    /// # Errors
    /// [`Error::ResourceExists`] when the other store holds something else
    /// under the same name; what reading and writing the two says. What was
    /// copied until then stays.
    pub async fn run(self) -> Result<Copied> {
        self.begin().await?.finish().await
    }

    /// Copies everything. What was written meanwhile comes with
    /// [`Following::follow`] or [`Following::finish`].
    ///
    /// # Errors
    /// As [`Copier::run`].
    pub async fn begin(self) -> Result<Following> {
        let standing = self.copy().await?;
        Ok(Following {
            copier: self,
            standing,
        })
    }

    async fn copy(&self) -> Result<Standing> {
        let end = newest(&*self.from).await?;
        let (begin, is_copy) = self.history_to_copy(end).await?;
        let mut standing = Standing {
            copied: Copied::default(),
            caught_up: end,
            with_history: begin.is_some(),
            // What goes on where a copy ended is its continuation.
            merge: if is_copy { Merge::Newer } else { self.merge },
            live: BTreeSet::new(),
        };
        if let Some(mut after) = begin {
            while after < end {
                let page = self.from.events(after, PAGE).await?;
                let events: Vec<Event> = page
                    .events
                    .into_iter()
                    .take_while(|event| event.sequence <= end)
                    .collect();
                let Some(last) = events.last() else { break };
                after = last.sequence;
                self.import(Vec::new(), Timestamp::EPOCH, events, &mut standing)
                    .await?;
            }
        }
        let mut after = None;
        loop {
            let range = ExportRange::After { after, limit: PAGE };
            let page = self.from.export(&range).await?;
            after = page.entries.last().map(|last| last.resource.clone());
            if after.is_none() {
                break;
            }
            self.import(page.entries, page.as_of, Vec::new(), &mut standing)
                .await?;
        }
        // What was copied from here on is older than what there is now.
        standing.merge = Merge::Newer;
        Ok(standing)
    }

    /// After which event the history is copied (`None`: it cannot be), and
    /// whether the other store is a copy that was begun before.
    async fn history_to_copy(&self, end: u64) -> Result<(Option<u64>, bool)> {
        let there = newest(&*self.to).await?;
        if there == 0 {
            return Ok((Some(oldest(&*self.from).await?.saturating_sub(1)), false));
        }
        let last = |page: crate::event::EventPage| page.events.into_iter().next();
        let same = there <= end
            && match self.from.events(there - 1, 1).await {
                Ok(page) => {
                    let ours = last(page);
                    ours.is_some() && ours == last(self.to.events(there - 1, 1).await?)
                }
                Err(Error::HistoryPruned { .. }) => false,
                Err(error) => return Err(error),
            };
        Ok((same.then_some(there), same))
    }

    /// Copies what the events after those that the copy contains are about.
    async fn catch_up(&self, standing: &mut Standing) -> Result<()> {
        loop {
            let page = self.from.events(standing.caught_up, PAGE).await?;
            if page.events.is_empty() {
                return Ok(());
            }
            let mut touched: BTreeSet<ResourceName> = BTreeSet::new();
            for event in &page.events {
                touch(event, &mut touched);
            }
            // The events last: they say that what they are about is there.
            let touched: Vec<ResourceName> = touched.into_iter().collect();
            for names in touched.chunks(PAGE) {
                self.copy_of(names.to_vec(), standing).await?;
            }
            if standing.with_history {
                // A step that was dropped may have been done.
                let there = newest(&*self.to).await?;
                let mut events = page.events;
                events.retain(|event| event.sequence > there);
                self.import(Vec::new(), Timestamp::EPOCH, events, standing)
                    .await?;
            }
            standing.caught_up = page.next_after;
        }
    }

    /// Brings the leases that are live up to date.
    async fn refresh(&self, standing: &mut Standing) -> Result<()> {
        let live: Vec<ResourceName> = standing.live.iter().cloned().collect();
        let counted = standing.copied.resources;
        for names in live.chunks(PAGE) {
            self.copy_of(names.to_vec(), standing).await?;
        }
        standing.copied.resources = counted;
        Ok(())
    }

    async fn copy_of(&self, names: Vec<ResourceName>, standing: &mut Standing) -> Result<()> {
        let page = self.from.export(&ExportRange::Of(names)).await?;
        self.import(page.entries, page.as_of, Vec::new(), standing)
            .await
    }

    async fn import(
        &self,
        entries: Vec<Exported>,
        as_of: Timestamp,
        events: Vec<Event>,
        standing: &mut Standing,
    ) -> Result<()> {
        for Exported { resource, entry } in &entries {
            let is_live = entry
                .lease
                .as_ref()
                .is_some_and(|lease| lease.expires_at > as_of && entry.mark == Some(lease.token));
            if is_live {
                standing.live.insert(resource.clone());
            } else {
                standing.live.remove(resource);
            }
        }
        standing.copied.resources += entries.len() as u64;
        let history = if standing.with_history {
            ImportHistory::Append(events)
        } else {
            ImportHistory::Note
        };
        let request = ImportRequest {
            entries,
            as_of,
            merge: standing.merge,
            history,
        };
        let report = self.to.import(&request).await?;
        standing.copied.changed += report.changed;
        standing.copied.events += report.events;
        (self.progress)(standing.copied);
        Ok(())
    }
}

/// A copy that contains everything up to a moment.
#[derive(Debug)]
pub struct Following {
    copier: Copier,
    standing: Standing,
}

impl Following {
    /// What has been copied so far.
    pub fn copied(&self) -> Copied {
        self.standing.copied
    }

    /// Keeps the copy up to date. It ends with an error only: drop the future
    /// to stop. Either store may be out of reach for a while.
    ///
    /// # Errors
    /// As [`Copier::run`].
    pub async fn follow(&mut self) -> Result<std::convert::Infallible> {
        let clock = SystemClock;
        let mut refreshed = clock.monotonic();
        loop {
            let mut step = self.copier.catch_up(&mut self.standing).await;
            if step.is_ok() && clock.monotonic().since(refreshed) >= REFRESH {
                step = self.copier.refresh(&mut self.standing).await;
                refreshed = clock.monotonic();
            }
            match step {
                Err(error) if !may_pass(&error) => return Err(error),
                _ => clock.sleep(LOOK).await,
            }
        }
    }

    /// Copies what was written since, for the last time.
    ///
    /// # Errors
    /// As [`Copier::run`].
    pub async fn finish(mut self) -> Result<Copied> {
        let mut failures = 0;
        loop {
            match self.last_steps().await {
                Ok(()) => return Ok(self.standing.copied),
                Err(error) if may_pass(&error) && failures < PATIENCE => {
                    failures += 1;
                    SystemClock.sleep(LOOK).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn last_steps(&mut self) -> Result<()> {
        self.copier.catch_up(&mut self.standing).await?;
        self.copier.refresh(&mut self.standing).await
    }
}

/// Whether a step may go better when it is done again. One that may have
/// happened can be: importing twice is importing once.
fn may_pass(error: &Error) -> bool {
    error.is_retryable() || matches!(error, Error::OutcomeUnknown { .. })
}

/// The resources that an event is about, those of its fences included: their
/// marks may have risen.
fn touch(event: &Event, touched: &mut BTreeSet<ResourceName>) {
    match &event.kind {
        EventKind::Acquired { resource, .. }
        | EventKind::Released { resource, .. }
        | EventKind::Revoked { resource, .. }
        | EventKind::Imported { resource, .. } => {
            touched.insert(resource.clone());
        }
        EventKind::Committed {
            fences, changes, ..
        } => {
            touched.extend(fences.iter().map(|(resource, _)| resource.clone()));
            touched.extend(changes.iter().map(|change| change.resource.clone()));
        }
    }
}

async fn newest(of: &dyn Backend) -> Result<u64> {
    Ok(of.events(u64::MAX, 1).await?.newest)
}

/// The sequence of the oldest event kept; 1 when there is none yet.
async fn oldest(of: &dyn Backend) -> Result<u64> {
    match of.events(0, 1).await {
        Ok(_) => Ok(1),
        Err(Error::HistoryPruned { oldest, .. }) => Ok(oldest),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
