//! Time, injected: what the machine says ([`Clock`]), and a clock that a test
//! moves by hand ([`ManualClock`]).
//!
//! A clock decides liveness only, never safety (R12).

use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

/// A moment on a backend's time line, in milliseconds since 1970-01-01 UTC
/// (R11). Displays as RFC 3339.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// 1970-01-01T00:00:00Z: the expiry of a lease that has been released.
    pub const EPOCH: Self = Self(0);

    /// The moment `millis` milliseconds after the epoch.
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the epoch.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// This moment moved forward, held at the end of the time line.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(
            self.0
                .saturating_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX)),
        )
    }

    /// How long from `earlier` to this moment; zero if it is not later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(moment) => write!(f, "{moment:.3}"),
            // Outside the years -9999 to 9999.
            Err(_) => write!(f, "{} ms after 1970-01-01T00:00:00Z", self.0),
        }
    }
}

/// A point on a clock that never runs backwards and counts the time that the
/// machine is suspended, in milliseconds since an unnamed start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(u64);

impl Monotonic {
    /// The point `millis` milliseconds after the clock's start.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the clock's start.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// This point moved forward, held at the end of the line.
    #[must_use]
    pub fn plus(self, by: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(by.as_millis()).unwrap_or(u64::MAX)),
        )
    }

    /// How long from `earlier` to this point; zero if it is not later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// Where time comes from. Everything in this crate asks a `Clock`; nothing
/// asks the system behind its back.
#[async_trait]
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The monotonic clock, suspend included. Two processes of one boot of one
    /// machine that use the system's clock can compare what it says.
    fn monotonic(&self) -> Monotonic;

    /// Names the run of the monotonic clock: it changes when the machine boots,
    /// and readings with different names cannot be compared.
    fn boot_id(&self) -> String;

    /// The wall clock, which may be wrong and may jump.
    fn wall(&self) -> Timestamp;

    /// Sleeps until `duration` has passed on [`Clock::monotonic`].
    async fn sleep(&self, duration: Duration);
}

/// The machine's own clocks: `CLOCK_BOOTTIME` where there is one, and the wall
/// clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

/// A sleep is cut into pieces of this length: the runtime's timer stops while
/// the machine is suspended, and after waking the rest of the sleep must not
/// outlast it by more than this.
const LONGEST_NAP: Duration = Duration::from_millis(500);

#[async_trait]
impl Clock for SystemClock {
    fn monotonic(&self) -> Monotonic {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
        let now = rustix::time::clock_gettime(CLOCK);
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        let millis = u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000_000;
        Monotonic(seconds.saturating_mul(1000).saturating_add(millis))
    }

    fn boot_id(&self) -> String {
        std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .map(|id| id.trim().to_owned())
            .unwrap_or_default()
    }

    fn wall(&self) -> Timestamp {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Timestamp(
            now.tv_sec
                .saturating_mul(1000)
                .saturating_add(now.tv_nsec / 1_000_000),
        )
    }

    async fn sleep(&self, duration: Duration) {
        let until = self.monotonic().plus(duration);
        loop {
            let left = until.since(self.monotonic());
            if left.is_zero() {
                return;
            }
            #[expect(
                clippy::disallowed_methods,
                reason = "the one place where the runtime's timer is used"
            )]
            tokio::time::sleep(left.min(LONGEST_NAP)).await;
        }
    }
}

/// A clock that a test moves by hand. Sleepers wake when it passes their time.
///
/// ```
/// use statepact::clock::{Clock, ManualClock};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let before = clock.monotonic();
/// clock.advance(Duration::from_secs(30));
/// assert_eq!(clock.monotonic().since(before), Duration::from_secs(30));
/// ```
#[derive(Debug)]
pub struct ManualClock {
    state: Mutex<ManualState>,
    moved: tokio::sync::watch::Sender<Monotonic>,
}

#[derive(Debug)]
struct ManualState {
    monotonic: Monotonic,
    wall: Timestamp,
    boot: u64,
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl ManualClock {
    /// A clock that stands at 2026-01-01T00:00:00Z until it is moved.
    pub fn new() -> Self {
        let monotonic = Monotonic(1_000_000);
        Self {
            state: Mutex::new(ManualState {
                monotonic,
                wall: Timestamp(1_767_225_600_000),
                boot: 1,
            }),
            moved: tokio::sync::watch::Sender::new(monotonic),
        }
    }

    /// Lets `by` pass, on the wall clock too.
    pub fn advance(&self, by: Duration) {
        let mut state = self.lock();
        state.monotonic = state.monotonic.plus(by);
        state.wall = state.wall.plus(by);
        let now = state.monotonic;
        drop(state);
        self.moved.send_replace(now);
    }

    /// Sets the wall clock, as an operator or a time server would; no time
    /// passes.
    pub fn set_wall(&self, wall: Timestamp) {
        self.lock().wall = wall;
    }

    /// Restarts the machine: the monotonic clock begins anew under another
    /// boot id.
    pub fn reboot(&self) {
        let mut state = self.lock();
        state.boot += 1;
        state.monotonic = Monotonic(1000);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ManualState> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[async_trait]
impl Clock for ManualClock {
    fn monotonic(&self) -> Monotonic {
        self.lock().monotonic
    }

    fn boot_id(&self) -> String {
        format!("manual-{}", self.lock().boot)
    }

    fn wall(&self) -> Timestamp {
        self.lock().wall
    }

    async fn sleep(&self, duration: Duration) {
        let mut moved = self.moved.subscribe();
        let until = self.monotonic().plus(duration);
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = moved.wait_for(|now| *now >= until).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_reads_as_rfc_3339() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_123, "2000-02-29T00:00:00.123Z"),
            (1_767_225_599_999, "2025-12-31T23:59:59.999Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (253_402_207_199_999, "9999-12-30T21:59:59.999Z"),
            (
                i64::MAX,
                "9223372036854775807 ms after 1970-01-01T00:00:00Z",
            ),
        ] {
            assert_eq!(Timestamp::from_millis(millis).to_string(), text);
        }
    }

    #[tokio::test]
    async fn sleepers_on_a_manual_clock_wake_when_it_passes_their_time() {
        let clock = std::sync::Arc::new(ManualClock::new());
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep(Duration::from_secs(5)).await }
        });
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(4));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(Duration::from_secs(1));
        sleeper.await.unwrap();
    }

    #[tokio::test]
    async fn the_system_clock_moves_forward() {
        let before = SystemClock.monotonic();
        SystemClock.sleep(Duration::from_millis(5)).await;
        assert!(SystemClock.monotonic().since(before) >= Duration::from_millis(5));
    }
}
