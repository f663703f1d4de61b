//! Holding: what the holder believes, and in what order it speaks to the
//! backend. No test sleeps: the clock is moved.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::backend::memory::Memory;
use crate::backend::testing::{Fault, Faulty};
use crate::backend::{Backend, LeaseState};
use crate::clock::ManualClock;
use crate::error::ErrorKind;
use crate::lease::Token;
use crate::random::SeededRandom;

const TTL: Duration = Duration::from_secs(30);

struct World {
    clock: Arc<ManualClock>,
    backend: Arc<Faulty>,
    leases: LeaseManager,
}

fn world() -> World {
    let clock = Arc::new(ManualClock::new());
    let backend = Arc::new(Faulty::new(Memory::with_clock(clock.clone())));
    let leases = LeaseManager::new(backend.clone(), TTL)
        .unwrap()
        .with_clock(clock.clone())
        .with_random(Arc::new(SeededRandom::new(1)));
    World {
        clock,
        backend,
        leases,
    }
}

impl World {
    /// Lets time pass in steps that let the tasks run.
    async fn pass(&self, time: Duration) {
        let step = Duration::from_millis(100);
        let mut left = time;
        while !left.is_zero() {
            self.clock.advance(step.min(left));
            left = left.saturating_sub(step);
            settle().await;
        }
    }

    async fn state(&self) -> Option<LeaseState> {
        let status = self
            .backend
            .inner
            .lease_status(&"job".try_into().unwrap())
            .await;
        status.unwrap().lease.map(|(_, state)| state)
    }
}

fn secs(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

fn away() -> Fault {
    Fault::Fail(Error::Unavailable {
        message: "away".to_owned(),
    })
}

#[tokio::test]
async fn it_renews_every_third_of_the_ttl() {
    let world = world();
    let held = world
        .leases
        .hold("job", "me")
        .auto_renew()
        .start()
        .await
        .unwrap();
    world.pass(secs(9.9)).await;
    assert_eq!(world.backend.count("renew"), 0);
    world.pass(Duration::from_millis(100)).await;
    assert_eq!(world.backend.count("renew"), 1);
    world.pass(TTL * 10).await;
    assert_eq!(world.backend.count("renew"), 31);
    assert!(!held.is_lost());
    assert_eq!(held.lease().unwrap().token, Token::MIN);
}

#[tokio::test]
async fn a_backend_that_is_away_for_less_than_the_ttl_loses_nothing() {
    let world = world();
    let held = world
        .leases
        .hold("job", "me")
        .auto_renew()
        .start()
        .await
        .unwrap();
    for _ in 0..1000 {
        world.backend.fault("renew", away());
    }
    world.pass(secs(28.0)).await;
    assert!(world.backend.count("renew") > 5, "it keeps trying");
    world.backend.heal();
    world.pass(Duration::from_secs(5)).await;
    assert!(held.lease().is_ok());
    assert_eq!(world.state().await, Some(LeaseState::Live));
}

#[tokio::test]
async fn a_backend_that_is_away_longer_loses_the_lease_at_the_deadline() {
    let world = world();
    let held = world
        .leases
        .hold("job", "me")
        .auto_renew()
        .start()
        .await
        .unwrap();
    for _ in 0..1000 {
        world.backend.fault("renew", away());
    }
    world.pass(secs(29.9)).await;
    assert!(!held.is_lost());
    world.pass(Duration::from_millis(100)).await;
    assert_eq!(held.lost().await, LossReason::Expired);
    let refused = held.lease().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LeaseLost);
}

#[tokio::test]
async fn a_renewal_in_a_black_hole_does_not_delay_the_loss() {
    let world = world();
    world.backend.fault("renew", Fault::Hang);
    let held = world
        .leases
        .hold("job", "me")
        .auto_renew()
        .start()
        .await
        .unwrap();
    world.pass(TTL).await;
    assert_eq!(held.lost().await, LossReason::Expired);
    assert!(!held.release().await.unwrap());
    assert_eq!(
        world.backend.count("release"),
        0,
        "what is lost is not released"
    );
}

#[tokio::test]
async fn the_deadline_counts_from_before_the_renewal_was_sent() {
    let world = world();
    world.backend.fault("renew", Fault::AnswerLate);
    let held = world
        .leases
        .hold("job", "me")
        .auto_renew()
        .start()
        .await
        .unwrap();
    world.pass(TTL / 3 + Duration::from_secs(15)).await;
    // Applied at ttl / 3, answered 15 s later: good until ttl / 3 + ttl, and
    // renewed again at once, since its third is over.
    world.backend.fault("renew", Fault::Hang);
    world.backend.signal.notify_one();
    settle().await;
    world.pass(secs(14.9)).await;
    assert!(!held.is_lost());
    world.pass(Duration::from_millis(100)).await;
    assert!(held.is_lost());
}

#[tokio::test]
async fn a_machine_that_slept_past_the_deadline_has_lost_with_no_answer_from_the_backend() {
    let world = world();
    let held = world
        .leases
        .hold("job", "me")
        .auto_renew()
        .start()
        .await
        .unwrap();
    world.clock.advance(TTL);
    // Before any task has run again.
    assert!(held.lease().is_err());
    assert_eq!(held.lost().await, LossReason::Expired);
    settle().await;
    assert_eq!(world.backend.count("renew"), 0);
}

#[tokio::test]
async fn a_revocation_reaches_the_work_at_the_next_renewal() {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let world = world();
    let dropped = Arc::new(AtomicBool::new(false));
    let running = tokio::spawn({
        let guard = Dropped(dropped.clone());
        let hold = world.leases.hold("job", "me").auto_renew();
        hold.run(move |_| async move {
            let _guard = guard;
            std::future::pending::<()>().await;
        })
    });
    settle().await;
    let mark = world.leases.revoke("job").await.unwrap();
    assert!(!dropped.load(Ordering::SeqCst));
    world.pass(TTL / 3).await;
    assert!(dropped.load(Ordering::SeqCst));
    let lost = running.await.unwrap().unwrap_err();
    assert!(
        matches!(lost, Error::LeaseLost { reason: LossReason::Superseded { by }, .. } if by == mark)
    );
}

#[tokio::test]
async fn without_renewal_the_work_is_stopped_at_the_deadline() {
    let world = world();
    let running = tokio::spawn(
        world
            .leases
            .hold("job", "me")
            .run(|_| std::future::pending::<()>()),
    );
    settle().await;
    world.pass(TTL).await;
    let lost = running.await.unwrap().unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::LeaseLost);
    assert_eq!(world.backend.count("renew"), 0);
}

/// client-go 728: renewal goes on while the work drains, and stops before the
/// release.
#[tokio::test]
async fn work_is_renewed_until_it_is_done_and_never_after_the_release() {
    for drain in 1..60 {
        let world = world();
        let clock = world.clock.clone();
        let running = tokio::spawn(world.leases.hold("job", "me").auto_renew().run(
            move |lease| async move {
                clock.sleep(TTL / 7 * drain).await;
                lease.token
            },
        ));
        settle().await;
        world.pass(TTL / 7 * drain).await;
        assert_eq!(running.await.unwrap().unwrap(), Token::MIN);
        world.pass(TTL * 2).await;
        let calls = world.backend.calls.lock().unwrap().clone();
        assert_eq!(calls.last(), Some(&"release"), "{calls:?}");
        assert_eq!(world.backend.count("release"), 1);
        // One may fall on the very instant at which the work ends.
        let renewals = u32::try_from(world.backend.count("renew")).unwrap();
        assert!(
            ((drain * 3 - 1) / 7..=drain * 3 / 7).contains(&renewals),
            "{calls:?}"
        );
    }
}

#[tokio::test]
async fn a_release_waits_for_the_renewal_under_way() {
    let world = world();
    world.backend.fault("renew", Fault::AnswerLate);
    let held = world
        .leases
        .hold("job", "me")
        .auto_renew()
        .start()
        .await
        .unwrap();
    world.pass(TTL / 3).await;
    let releasing = tokio::spawn(held.release());
    settle().await;
    assert_eq!(world.backend.count("release"), 0);
    world.backend.signal.notify_one();
    assert!(releasing.await.unwrap().unwrap());
    assert_eq!(world.state().await, Some(LeaseState::Released));
}

#[tokio::test]
async fn a_hold_that_was_not_granted_renews_nothing() {
    let world = world();
    let _other = world
        .leases
        .acquire_or_create("job", "other")
        .await
        .unwrap();
    let refused = world
        .leases
        .hold("job", "me")
        .auto_renew()
        .start()
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LeaseNotAvailable);
    world.pass(TTL * 2).await;
    assert_eq!(world.backend.count("renew"), 0);
}

#[tokio::test]
async fn work_that_panics_or_is_dropped_leaves_no_lease_behind() {
    let world = world();
    let panicking = tokio::spawn(
        world
            .leases
            .hold("job", "me")
            .auto_renew()
            .run(|_| async { panic!("on purpose") }),
    );
    let panicked: std::result::Result<Result<()>, _> = panicking.await;
    assert!(panicked.unwrap_err().is_panic());
    settle().await;
    assert_eq!(world.state().await, Some(LeaseState::Released));

    let dropped = tokio::spawn(
        world
            .leases
            .hold("job", "me")
            .auto_renew()
            .run(|_| std::future::pending::<()>()),
    );
    settle().await;
    assert_eq!(world.state().await, Some(LeaseState::Live));
    dropped.abort();
    settle().await;
    assert_eq!(world.state().await, Some(LeaseState::Released));
    assert_eq!(
        world
            .leases
            .current_fence("job")
            .await
            .unwrap()
            .map(Token::get),
        Some(2)
    );
}

#[tokio::test]
async fn a_late_holder_does_not_touch_its_successor() {
    let world = world();
    let held = world.leases.hold("job", "me").start().await.unwrap();
    world.clock.advance(TTL);
    let successor = world.leases.acquire("job", "other").await.unwrap();
    assert!(!held.release().await.unwrap());
    world.leases.guard(&successor).await.unwrap();
    assert_eq!(world.state().await, Some(LeaseState::Live));
}

#[tokio::test]
async fn everybody_who_waits_hears_of_the_loss() {
    let world = world();
    let held = Arc::new(
        world
            .leases
            .hold("job", "me")
            .auto_renew()
            .start()
            .await
            .unwrap(),
    );
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let held = held.clone();
        waiting.spawn(async move { held.lost().await });
    }
    settle().await;
    let mark = world.leases.revoke("job").await.unwrap();
    world.pass(TTL / 3).await;
    while let Some(reason) = waiting.join_next().await {
        assert_eq!(reason.unwrap(), LossReason::Superseded { by: mark });
    }
}

#[tokio::test]
async fn bad_arguments_are_reported_when_the_hold_begins() {
    let world = world();
    for hold in [
        world.leases.hold("", "me"),
        world.leases.hold("job", ""),
        world.leases.hold("job", "me").ttl(Duration::ZERO),
    ] {
        let refused = hold.start().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    }
    assert!(LeaseManager::new(world.backend.clone(), Duration::ZERO).is_err());
    assert_eq!(world.backend.count("acquire"), 0);
}
