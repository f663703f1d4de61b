//! Copies between two stores in memory.

use std::sync::{Arc, Mutex};

use super::*;
use crate::StateManager;
use crate::backend::memory::Memory;
use crate::backend::testing::{Fault, Faulty};
use crate::clock::ManualClock;
use crate::error::ErrorKind;

const HOUR: Duration = Duration::from_secs(3600);

struct World {
    clock: Arc<ManualClock>,
    from: StateManager,
    to: StateManager,
}

fn world() -> World {
    let clock = Arc::new(ManualClock::new());
    let over = |history| {
        StateManager::new(Arc::new(Memory::with_clock_and_history(
            clock.clone(),
            history,
        )))
    };
    World {
        from: over(100_000),
        to: over(100_000),
        clock,
    }
}

impl World {
    fn copier(&self) -> Copier {
        Copier::new(self.from.backend().clone(), self.to.backend().clone())
    }

    async fn assert_same(&self) {
        let all = ExportRange::After {
            after: None,
            limit: usize::MAX,
        };
        let from = self.from.backend().export(&all).await.unwrap();
        let to = self.to.backend().export(&all).await.unwrap();
        assert_eq!(from, to);
        assert_eq!(events(&self.from).await, events(&self.to).await);
    }
}

async fn events(of: &StateManager) -> Vec<Event> {
    of.backend().events(0, usize::MAX).await.unwrap().events
}

async fn set(of: &StateManager, resource: &str, value: u64) {
    let mut session = of
        .session("tester")
        .resource(resource)
        .begin()
        .await
        .unwrap();
    session.write(resource, "x", &value).unwrap();
    session.commit().await.unwrap();
}

#[tokio::test]
async fn everything_is_copied_with_its_history() {
    let world = world();
    for number in 0..600 {
        set(&world.from, &format!("r{number}"), number).await;
    }
    let held = world.from.lease("held", "a", HOUR).await.unwrap();
    let ended = world.from.lease("ended", "a", HOUR).await.unwrap();
    world.from.backend().release(&ended).await.unwrap();
    world
        .from
        .backend()
        .revoke(&"r1".try_into().unwrap())
        .await
        .unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    let copied = world
        .copier()
        .progress(move |copied| told.lock().unwrap().push(copied))
        .run()
        .await
        .unwrap();
    assert_eq!((copied.changed, copied.events), (602, 604));
    assert!(seen.lock().unwrap().len() > 4);
    world.assert_same().await;
    world.to.backend().renew(&held, held.ttl).await.unwrap();
    // R1
    let next = world.to.lease("r1", "b", HOUR).await.unwrap();
    assert_eq!(next.token.get(), 2);
}

#[tokio::test]
async fn a_copy_that_was_cut_off_anywhere_is_run_again() {
    for cut in 0..22 {
        let world = world();
        for number in 0..600 {
            set(&world.from, &format!("r{number}"), number).await;
        }
        let to = Arc::new(Faulty::new(Memory::with_clock(world.clock.clone())));
        for _ in 0..cut {
            to.fault("import", Fault::None);
        }
        to.fault(
            "import",
            Fault::Fail(Error::Unavailable {
                message: "cut".to_owned(),
            }),
        );
        let copier = || Copier::new(world.from.backend().clone(), to.clone());
        // Ten pages of events, ten of resources.
        assert_eq!(copier().run().await.is_err(), cut < 20, "cut {cut}");
        to.heal();
        // Meanwhile the original goes on.
        set(&world.from, "r7", 1).await;
        set(&world.from, "new", 1).await;
        copier().run().await.unwrap();
        let world = World {
            to: StateManager::new(to.clone()),
            ..world
        };
        world.assert_same().await;
    }
}

#[tokio::test]
async fn a_store_that_holds_something_else_is_refused_unless_told_how_to_merge() {
    let world = world();
    set(&world.from, "both", 1).await;
    set(&world.from, "both", 2).await;
    set(&world.from, "one", 1).await;
    set(&world.to, "both", 9).await;
    let error = world.copier().run().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceExists);
    assert!(error.to_string().contains("both"), "{error}");
    let copied = world.copier().merge(Merge::Newer).run().await.unwrap();
    assert_eq!(copied.changed, 2);
    let both = world.to.backend().read(&["both".try_into().unwrap()]).await;
    assert_eq!(both.unwrap()[0].as_ref().unwrap().version, 2);
    // It has a history of its own, which goes on.
    let noted = events(&world.to).await;
    assert_eq!(noted.len(), 3);
    assert!(matches!(noted[2].kind, EventKind::Imported { .. }));
}

#[tokio::test]
async fn a_history_that_was_pruned_is_copied_from_where_it_begins() {
    let world = world();
    let from = StateManager::new(Arc::new(Memory::with_clock_and_history(
        world.clock.clone(),
        10,
    )));
    for number in 0..50 {
        set(&from, "r", number).await;
    }
    let copier = || Copier::new(from.backend().clone(), world.to.backend().clone());
    copier().run().await.unwrap();
    set(&from, "r", 50).await;
    copier().run().await.unwrap();
    let (there, here) = (
        from.backend().events(45, 100).await.unwrap(),
        world.to.backend().events(45, 100).await.unwrap(),
    );
    assert_eq!(there, here);
    assert_eq!(here.newest, 51);
}

#[tokio::test]
async fn a_copy_that_follows_catches_up_and_keeps_leases_alive() {
    let world = world();
    set(&world.from, "a", 1).await;
    let held = world
        .from
        .lease("held", "a", Duration::from_secs(30))
        .await
        .unwrap();
    let copier = world.copier();
    let following = tokio::spawn(async move { copier.begin().await?.follow().await });
    let wait_for = async |resource: &str, version: u64| {
        loop {
            let name = [resource.try_into().unwrap()];
            let state = world.to.backend().read(&name).await.unwrap();
            if state[0]
                .as_ref()
                .is_some_and(|state| state.version >= version)
            {
                return;
            }
            SystemClock.sleep(Duration::from_millis(5)).await;
        }
    };
    wait_for("a", 1).await;
    set(&world.from, "a", 2).await;
    set(&world.from, "b", 1).await;
    wait_for("b", 1).await;
    wait_for("a", 2).await;
    // Renewals are no events, and yet the copy hears of them.
    world.clock.advance(Duration::from_secs(20));
    let renewed = world.from.backend().renew(&held, held.ttl).await.unwrap();
    loop {
        let status = world.to.backend().lease_status(&held.resource).await;
        if status.unwrap().lease.unwrap().0.expires_at == renewed.expires_at {
            break;
        }
        SystemClock.sleep(Duration::from_millis(5)).await;
    }
    assert!(!following.is_finished());
    following.abort();
    world.assert_same().await;
}

#[tokio::test]
async fn an_outage_of_any_kind_ends_no_copy_that_follows() {
    let world = world();
    set(&world.from, "a", 1).await;
    let to = Arc::new(Faulty::new(Memory::with_clock(world.clock.clone())));
    let copier = Copier::new(world.from.backend().clone(), to.clone());
    let mut following = copier.begin().await.unwrap();
    let unknown = || Error::OutcomeUnknown {
        message: "cut".to_owned(),
    };
    let away = || Error::Unavailable {
        message: "away".to_owned(),
    };
    for fault in [
        Fault::Fail(unknown()),
        Fault::ApplyThenFail(unknown()),
        Fault::Fail(away()),
    ] {
        // The resources, and then the events.
        for skip in 0..2 {
            for _ in 0..skip {
                to.fault("import", Fault::None);
            }
            to.fault("import", fault.clone());
            set(&world.from, "a", skip).await;
            tokio::select! {
                ended = following.follow() => panic!("{ended:?}"),
                () = async {
                    let newest = events(&world.from).await.len();
                    while to.inner.events(0, usize::MAX).await.unwrap().events.len() < newest {
                        SystemClock.sleep(Duration::from_millis(5)).await;
                    }
                } => {}
            }
        }
        to.fault("import", fault.clone());
        set(&world.from, "b", 7).await;
        tokio::select! {
            ended = following.follow() => panic!("{ended:?}"),
            () = async {
                let newest = events(&world.from).await.len();
                while to.inner.events(0, usize::MAX).await.unwrap().events.len() < newest {
                    SystemClock.sleep(Duration::from_millis(5)).await;
                }
            } => {}
        }
    }
    set(&world.from, "last", 1).await;
    to.fault("import", Fault::ApplyThenFail(unknown()));
    following.finish().await.unwrap();
    let world = World {
        to: StateManager::new(to.clone()),
        ..world
    };
    world.assert_same().await;
}
