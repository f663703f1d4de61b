//! Waiting: in order, woken by a release, and nothing held by who gave up. No
//! test sleeps: the clock is moved.

use std::sync::Arc;

use super::*;
use crate::backend::memory::Memory;
use crate::backend::testing::{Fault, Faulty};
use crate::clock::ManualClock;
use crate::error::ErrorKind;
use crate::random::SeededRandom;
use crate::resource::ResourceName;
use crate::{OwnerName, Ttl};
use tokio::task::JoinHandle;

struct World {
    clock: Arc<ManualClock>,
    backend: Arc<Memory>,
}

fn world() -> World {
    let clock = Arc::new(ManualClock::new());
    World {
        backend: Arc::new(Memory::with_clock(clock.clone())),
        clock,
    }
}

fn named(name: &str) -> ResourceName {
    ResourceName::new(name).unwrap()
}

impl World {
    /// Asks in a task of its own, and lets it come to its first wait.
    async fn ask(&self, on: &[&str], owner: &str, wait: Wait) -> JoinHandle<Result<Lease>> {
        let request = AcquireRequest {
            resources: on.iter().copied().map(named).collect(),
            owner: OwnerName::new(owner).unwrap(),
            ttl: Ttl::from_millis(3_600_000).unwrap(),
            create: true,
        };
        let (backend, clock) = (self.backend.clone(), self.clock.clone());
        let task = tokio::spawn(async move {
            let random = SeededRandom::new(1);
            acquire_waiting(&*backend, &*clock, &random, &request, wait)
                .await?
                .first()
        });
        settle().await;
        task
    }

    async fn take(&self, on: &str, owner: &str) -> Lease {
        self.ask(&[on], owner, Wait::No)
            .await
            .await
            .unwrap()
            .unwrap()
    }

    async fn release(&self, lease: &Lease) {
        assert!(self.backend.release(lease).await.unwrap());
        settle().await;
    }
}

async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_release_wakes_the_waiter_without_any_time_passing() {
    let world = world();
    let held = world.take("a", "holder").await;
    let waiter = world.ask(&["a"], "waiter", Wait::Forever).await;
    world.release(&held).await;
    assert_eq!(waiter.await.unwrap().unwrap().token.get(), 2);
}

#[tokio::test]
async fn a_revocation_wakes_the_waiter() {
    let world = world();
    world.take("a", "holder").await;
    let waiter = world.ask(&["a"], "waiter", Wait::Forever).await;
    world.backend.revoke(&named("a")).await.unwrap();
    assert_eq!(waiter.await.unwrap().unwrap().token.get(), 3);
}

#[tokio::test]
async fn waiters_are_served_in_the_order_of_their_arrival() {
    let world = world();
    let mut held = world.take("a", "holder").await;
    let mut waiters = Vec::new();
    for number in 0..5 {
        let owner = format!("waiter-{number}");
        waiters.push(world.ask(&["a"], &owner, Wait::Forever).await);
    }
    for (number, waiter) in waiters.into_iter().enumerate() {
        world.release(&held).await;
        held = waiter.await.unwrap().unwrap();
        assert_eq!(held.owner.as_str(), format!("waiter-{number}"));
    }
}

#[tokio::test]
async fn one_who_left_the_queue_holds_nothing_and_holds_up_nobody() {
    let world = world();
    let held = world.take("a", "holder").await;
    let gone = world.ask(&["a"], "gone", Wait::Forever).await;
    let behind = world.ask(&["a"], "behind", Wait::Forever).await;
    gone.abort();
    settle().await;
    world.release(&held).await;
    let lease = behind.await.unwrap().unwrap();
    assert_eq!((lease.owner.as_str(), lease.token.get()), ("behind", 2));
}

#[tokio::test]
async fn a_time_that_runs_out_in_the_queue_is_an_error_and_takes_nothing() {
    let world = world();
    let held = world.take("a", "holder").await;
    let first = world.ask(&["a"], "first", Wait::Forever).await;
    let late = world
        .ask(&["a"], "late", Wait::AtMost(Duration::from_secs(5)))
        .await;
    world.clock.advance(Duration::from_secs(5));
    let error = late.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    world.release(&held).await;
    assert_eq!(first.await.unwrap().unwrap().token.get(), 2);
    assert!(world.backend.waiters().unwrap().waited_for().is_empty());
}

#[tokio::test]
async fn who_waits_for_several_leases_does_not_keep_others_from_a_free_one() {
    let world = world();
    let held = world.take("b", "holder").await;
    let both = world.ask(&["a", "b"], "both", Wait::Forever).await;
    let one = world.ask(&["a"], "one", Wait::Forever).await;
    let one = one.await.unwrap().unwrap();
    world.release(&held).await;
    assert!(!both.is_finished());
    world.release(&one).await;
    assert_eq!(both.await.unwrap().unwrap().owner.as_str(), "both");
}

#[tokio::test]
async fn a_lease_that_expires_unheard_is_found_by_looking() {
    let world = world();
    world.take("a", "holder").await;
    let waiter = world.ask(&["a"], "waiter", Wait::Forever).await;
    world.clock.advance(Duration::from_secs(3600));
    assert_eq!(waiter.await.unwrap().unwrap().token.get(), 2);
}

#[tokio::test]
async fn a_request_that_is_none_is_refused_before_it_waits() {
    let world = world();
    let none = world.ask(&[], "nobody", Wait::Forever).await;
    let error = none.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let twice = world.ask(&["a", "a"], "nobody", Wait::Forever).await;
    let error = twice.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

fn unavailable() -> Fault {
    Fault::Fail(Error::Unavailable {
        message: "restarting".to_owned(),
    })
}

fn unknown() -> Fault {
    Fault::ApplyThenFail(Error::OutcomeUnknown {
        message: "cut".to_owned(),
    })
}

/// A store that can be given faults, with the lease of `a` held.
async fn faulty() -> (Arc<ManualClock>, Arc<Faulty>, Lease) {
    let clock = Arc::new(ManualClock::new());
    let store = Arc::new(Faulty::new(Memory::with_clock(clock.clone())));
    let request = request_of("holder");
    let held = store.inner.acquire_all(&request).await.unwrap().remove(0);
    (clock, store, held)
}

fn request_of(owner: &str) -> AcquireRequest {
    AcquireRequest {
        resources: vec![named("a")],
        owner: OwnerName::new(owner).unwrap(),
        ttl: Ttl::from_millis(3_600_000).unwrap(),
        create: true,
    }
}

fn wait_on(store: &Arc<Faulty>, clock: &Arc<ManualClock>, wait: Wait) -> JoinHandle<Result<Lease>> {
    let (store, clock) = (store.clone(), clock.clone());
    tokio::spawn(async move {
        let random = SeededRandom::new(1);
        acquire_waiting(&*store, &*clock, &random, &request_of("waiter"), wait)
            .await?
            .first()
    })
}

/// Lets the waiter make its next attempt.
async fn poll(clock: &ManualClock) {
    clock.advance(Duration::from_millis(250));
    settle().await;
}

#[tokio::test]
async fn a_wait_goes_on_while_the_backend_is_away() {
    let (clock, store, held) = faulty().await;
    for fault in [Fault::None, unavailable(), unavailable(), unknown()] {
        store.fault("acquire", fault);
    }
    let waiter = wait_on(&store, &clock, Wait::Forever);
    settle().await;
    poll(&clock).await;
    poll(&clock).await;
    assert_eq!(store.count("acquire"), 3);
    store.inner.release(&held).await.unwrap();
    // Granted without an answer (R3): the next attempt finds the same lease.
    poll(&clock).await;
    assert!(!waiter.is_finished());
    poll(&clock).await;
    assert_eq!(waiter.await.unwrap().unwrap().token.get(), 2);
}

#[tokio::test]
async fn a_backend_that_is_away_at_first_is_no_wait() {
    let (clock, store, _) = faulty().await;
    store.fault("acquire", unavailable());
    let waiter = wait_on(&store, &clock, Wait::Forever);
    let error = waiter.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

/// R26: that nothing is held would be a guess.
#[tokio::test]
async fn a_wait_that_ends_with_an_unknown_outcome_says_so() {
    let (clock, store, held) = faulty().await;
    store.fault("acquire", Fault::None);
    store.fault("acquire", unknown());
    let waiter = wait_on(&store, &clock, Wait::AtMost(Duration::from_millis(260)));
    settle().await;
    store.inner.release(&held).await.unwrap();
    clock.advance(Duration::from_millis(255));
    settle().await;
    assert_eq!(store.count("acquire"), 2);
    clock.advance(Duration::from_millis(5));
    let error = waiter.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
}
