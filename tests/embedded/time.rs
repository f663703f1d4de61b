//! R11: store time, through wall clocks that are set and machines that boot.

use std::sync::Arc;
use std::time::Duration;

use statepact::backend::LeaseState;
use statepact::backend::embedded::{Embedded, EmbeddedOptions};
use statepact::clock::{Clock, ManualClock};
use statepact::random::{Random, SeededRandom};
use statepact::{Backend, Error, Timestamp};

use crate::support::{folder, lease, name, request, runtime};

const YEAR: Duration = Duration::from_secs(366 * 86_400);
/// How far ahead a store notes its time down.
const AHEAD: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Place {
    folder: tempfile::TempDir,
    clock: Arc<ManualClock>,
}

impl Place {
    fn new() -> Self {
        Self {
            folder: folder(),
            clock: Arc::new(ManualClock::new()),
        }
    }

    fn open(&self) -> Embedded {
        EmbeddedOptions::new()
            .clock(self.clock.clone())
            .open_blocking(self.folder.path().join("state.redb"))
            .unwrap()
    }

    fn wall_back(&self) {
        let wall = self.clock.wall().as_millis();
        let year = i64::try_from(YEAR.as_millis()).unwrap();
        self.clock.set_wall(Timestamp::from_millis(wall - year));
    }
}

fn now(store: &Embedded) -> Timestamp {
    runtime().block_on(store.now()).unwrap()
}

fn state(store: &Embedded) -> LeaseState {
    let status = store.lease_status_blocking(&name("job")).unwrap();
    status.lease.unwrap().1
}

#[test]
fn a_wall_clock_that_is_set_changes_nothing_r11() {
    let place = Place::new();
    let store = place.open();
    let began = now(&store);
    let held = lease(&store, "job", "owner").unwrap();
    for set in [true, false] {
        if set {
            place.wall_back();
        } else {
            place.clock.set_wall(place.clock.wall().plus(3 * YEAR));
        }
        assert_eq!(now(&store), began);
        assert_eq!(state(&store), LeaseState::Live);
        let refused = lease(&store, "job", "other").unwrap_err();
        assert!(matches!(refused, Error::LeaseNotAvailable { .. }));
        // Nor for those that open it now.
        assert_eq!(now(&place.open()), began);
    }
    let millis = held.ttl.as_millis();
    place.clock.advance(Duration::from_millis(millis - 1));
    assert_eq!(state(&store), LeaseState::Live);
    place.clock.advance(Duration::from_millis(1));
    assert_eq!(state(&store), LeaseState::Expired);
    assert_eq!(lease(&store, "job", "other").unwrap().token.get(), 2);
}

#[test]
fn after_a_reboot_time_goes_on_from_the_later_of_wall_clock_and_last_time_seen_r11() {
    // The wall clock is right, and later.
    let place = Place::new();
    let store = place.open();
    lease(&store, "job", "owner").unwrap();
    drop(store);
    place.clock.advance(Duration::from_secs(3600));
    place.clock.reboot();
    let store = place.open();
    assert_eq!(now(&store), place.clock.wall());
    assert_eq!(state(&store), LeaseState::Expired);
    drop(store);

    // The machine comes up with its clock a year back.
    let place = Place::new();
    let store = place.open();
    place.clock.advance(Duration::from_secs(100));
    let held = lease(&store, "job", "owner").unwrap();
    let seen = now(&store);
    drop(store);
    place.clock.reboot();
    place.wall_back();
    let store = place.open();
    let resumed = now(&store);
    assert!(resumed >= seen && resumed <= seen.plus(AHEAD), "{resumed}");
    assert_eq!(state(&store), LeaseState::Live);
    place.clock.advance(held.expires_at.since(resumed));
    assert_eq!(state(&store), LeaseState::Expired, "it was not prolonged");
}

#[test]
fn store_time_never_runs_backwards_r11() {
    let place = Place::new();
    let random = SeededRandom::new(11);
    let mut store = place.open();
    let mut last = now(&store);
    let mut boots = 0;
    for number in 0..400 {
        let by = random.next_u64();
        match by % 5 {
            0 => place.wall_back(),
            1 => place
                .clock
                .set_wall(place.clock.wall().plus(Duration::from_secs(by % 900))),
            2 => store = place.open(),
            3 => {
                // The last time that the store saw is that of its last write.
                last = now(&store);
                store
                    .commit_blocking(&request(&[name("a")], number))
                    .unwrap();
                drop(store);
                place.clock.reboot();
                store = place.open();
                boots += 1;
            }
            _ => place.clock.advance(Duration::from_millis(by % 60_000)),
        }
        let present = now(&store);
        assert!(present >= last, "step {number}: {present} after {last}");
        last = present;
    }
    assert!(boots > 40);
    let page = runtime().block_on(store.events(0, 10_000)).unwrap();
    assert!(page.events.is_sorted_by_key(|event| event.at));
}
