//! Store time (R11): milliseconds on a line that never runs backwards.
//!
//! The line is tied once in each boot of the machine to the monotonic clock
//! that counts suspend, which all processes of the boot share; what the wall
//! clock does after that changes nothing. A new boot begins at the later of
//! the wall clock and the last time that the store can have seen: its
//! `ceiling`, which is stored ahead of time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use super::codec::ClockAnchor;
use super::tables::{META_CLOCK, Tables};
use crate::clock::{Clock, Monotonic, Timestamp};
use crate::error::Result;

/// How far ahead of the present the ceiling is set, so that it is written
/// seldom.
const AHEAD: Duration = Duration::from_secs(10);

/// The time line of an open store.
#[derive(Debug)]
pub(super) struct StoreTime {
    clock: Arc<dyn Clock>,
    monotonic: Monotonic,
    store: Timestamp,
    /// The ceiling as last read or written here.
    ceiling: AtomicI64,
}

impl StoreTime {
    /// The line that the anchor gives in this boot; `None` when it is of
    /// another.
    pub(super) fn resume(clock: &Arc<dyn Clock>, anchor: &ClockAnchor) -> Option<Self> {
        let same_boot = !anchor.boot.is_empty() && anchor.boot == clock.boot_id();
        same_boot.then(|| Self {
            clock: clock.clone(),
            monotonic: Monotonic::from_millis(anchor.monotonic),
            store: anchor.store,
            ceiling: AtomicI64::new(anchor.ceiling.as_millis()),
        })
    }

    /// The line for a new boot, or a new store; to be stored.
    pub(super) fn begin(
        clock: &Arc<dyn Clock>,
        before: Option<&ClockAnchor>,
    ) -> (Self, ClockAnchor) {
        let seen = before.map_or(Timestamp::EPOCH, |anchor| anchor.ceiling);
        let monotonic = clock.monotonic();
        let store = clock.wall().max(seen).max(Timestamp::from_millis(1));
        let anchor = ClockAnchor {
            boot: clock.boot_id(),
            monotonic: monotonic.as_millis(),
            store,
            ceiling: store.plus(AHEAD),
        };
        let time = Self {
            clock: clock.clone(),
            monotonic,
            store,
            ceiling: AtomicI64::new(anchor.ceiling.as_millis()),
        };
        (time, anchor)
    }

    pub(super) fn now(&self) -> Timestamp {
        self.store
            .plus(self.clock.monotonic().since(self.monotonic))
    }

    /// Raises the ceiling, in a transaction that writes anyway, when the
    /// present has come near it.
    pub(super) fn keep_ahead(&self, now: Timestamp, tables: &mut Tables<'_>) -> Result<()> {
        if now.as_millis() < self.ceiling.load(Ordering::Acquire) {
            return Ok(());
        }
        if let Some(anchor) = tables.meta::<ClockAnchor>(META_CLOCK)? {
            // Another process may have raised it already.
            let ceiling = if now < anchor.ceiling {
                anchor.ceiling
            } else {
                let ceiling = now.plus(AHEAD);
                tables.put_meta(META_CLOCK, &ClockAnchor { ceiling, ..anchor })?;
                ceiling
            };
            self.ceiling.store(ceiling.as_millis(), Ordering::Release);
        }
        Ok(())
    }
}
