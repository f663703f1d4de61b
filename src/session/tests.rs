//! Each test is named after the anomaly that it prevents or the promise that
//! it keeps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::*;
use crate::backend::SharedBackend;
use crate::backend::memory::Memory;
use crate::backend::testing::{Fault, Faulty};
use crate::clock::ManualClock;
use crate::error::ErrorKind;
use crate::lease::{Lease, Token};
use crate::random::SeededRandom;
use crate::retry::RetryPolicy;

const ALL: [Isolation; 3] = [
    Isolation::ReadCommitted,
    Isolation::Snapshot,
    Isolation::Serializable,
];

fn manager() -> StateManager {
    over(Arc::new(Memory::with_clock(Arc::new(ManualClock::new()))))
}

fn over(backend: SharedBackend) -> StateManager {
    StateManager::new(backend).with_random(Arc::new(SeededRandom::new(7)))
}

async fn begin(manager: &StateManager, isolation: Isolation) -> Session {
    manager
        .session("agent")
        .resources(["a", "b"])
        .isolation(isolation)
        .begin()
        .await
        .unwrap()
}

async fn set(manager: &StateManager, resource: &str, field: &str, value: i64) {
    let mut session = manager
        .session("setup")
        .resource(resource)
        .isolation(Isolation::ReadCommitted)
        .begin()
        .await
        .unwrap();
    session.write(resource, field, &value).unwrap();
    session.commit().await.unwrap();
}

async fn get(manager: &StateManager, resource: &str, field: &str) -> Option<i64> {
    let mut session = begin(manager, Isolation::ReadCommitted).await;
    session.read(resource, field).await.unwrap()
}

/// The error of the second committer, per mode; `None` where it is admitted.
async fn second_commit(
    interleave: impl AsyncFn(&StateManager, Isolation) -> Result<CommitReceipt>,
) -> [Option<ErrorKind>; 3] {
    let mut kinds = [None; 3];
    for (kind, isolation) in kinds.iter_mut().zip(ALL) {
        let manager = manager();
        set(&manager, "a", "x", 1).await;
        set(&manager, "b", "y", 1).await;
        *kind = interleave(&manager, isolation)
            .await
            .err()
            .map(|error| error.kind());
    }
    kinds
}

const CONFLICT: Option<ErrorKind> = Some(ErrorKind::Conflict);

#[tokio::test]
async fn r21_dirty_read_nothing_is_seen_before_it_is_committed() {
    for isolation in ALL {
        let manager = manager();
        set(&manager, "a", "x", 1).await;
        let mut writer = begin(&manager, isolation).await;
        writer.write("a", "x", &2).unwrap();
        let mut reader = begin(&manager, isolation).await;
        assert_eq!(reader.read::<i64>("a", "x").await.unwrap(), Some(1));
        drop(writer);
        assert_eq!(get(&manager, "a", "x").await, Some(1), "R25: drop aborts");
    }
}

#[tokio::test]
async fn r21_lost_update() {
    let kinds = second_commit(async |manager, isolation| {
        let mut first = begin(manager, isolation).await;
        let mut second = begin(manager, isolation).await;
        for session in [&mut first, &mut second] {
            let x: i64 = session.read("a", "x").await.unwrap().unwrap();
            session.write("a", "x", &(x + 1)).unwrap();
        }
        first.commit().await.unwrap();
        second.commit().await
    })
    .await;
    assert_eq!(kinds, [None, CONFLICT, CONFLICT]);
}

#[tokio::test]
async fn r21_dirty_write_blind_writes_do_not_interleave() {
    let kinds = second_commit(async |manager, isolation| {
        let mut first = begin(manager, isolation).await;
        let mut second = begin(manager, isolation).await;
        for (session, value) in [(&mut first, 10), (&mut second, 20)] {
            session.write("a", "x", &value).unwrap();
            session.write("b", "y", &value).unwrap();
        }
        first.commit().await.unwrap();
        let answer = second.commit().await;
        // Whoever won, the two fields are of one session.
        assert_eq!(get(manager, "a", "x").await, get(manager, "b", "y").await);
        answer
    })
    .await;
    assert_eq!(kinds, [None, CONFLICT, CONFLICT]);
}

#[tokio::test]
async fn r21_fuzzy_read_and_read_skew() {
    for isolation in ALL {
        let manager = manager();
        set(&manager, "a", "x", 1).await;
        set(&manager, "b", "y", 1).await;
        let mut reader = begin(&manager, isolation).await;
        let before: Option<i64> = reader.read("a", "x").await.unwrap();
        set(&manager, "a", "x", 2).await;
        set(&manager, "b", "y", 2).await;
        let again: Option<i64> = reader.read("a", "x").await.unwrap();
        let skewed: Option<i64> = reader.read("b", "y").await.unwrap();
        let expected = if isolation == Isolation::ReadCommitted {
            (Some(2), Some(2))
        } else {
            (before, Some(1))
        };
        assert_eq!((again, skewed), expected, "{isolation:?}");
    }
}

#[tokio::test]
async fn r21_write_skew() {
    let kinds = second_commit(async |manager, isolation| {
        let mut first = begin(manager, isolation).await;
        let mut second = begin(manager, isolation).await;
        for session in [&mut first, &mut second] {
            let _: Option<i64> = session.read("a", "x").await.unwrap();
            let _: Option<i64> = session.read("b", "y").await.unwrap();
        }
        first.write("a", "x", &0).unwrap();
        second.write("b", "y", &0).unwrap();
        first.commit().await.unwrap();
        second.commit().await
    })
    .await;
    assert_eq!(kinds, [None, None, CONFLICT]);
}

#[tokio::test]
async fn r21_phantom_of_an_absent_field() {
    let kinds = second_commit(async |manager, isolation| {
        let mut session = begin(manager, isolation).await;
        assert_eq!(session.read::<i64>("a", "new").await.unwrap(), None);
        session.write("b", "y", &5).unwrap();
        set(manager, "a", "new", 1).await;
        session.commit().await
    })
    .await;
    assert_eq!(kinds, [None, None, CONFLICT]);
}

#[tokio::test]
async fn r22_sessions_on_different_fields_do_not_conflict() {
    for isolation in ALL {
        let manager = manager();
        let mut first = begin(&manager, isolation).await;
        let mut second = begin(&manager, isolation).await;
        first.write("a", "x", &1).unwrap();
        second.write("a", "y", &2).unwrap();
        first.commit().await.unwrap();
        second.commit().await.unwrap();
    }
}

#[tokio::test]
async fn r22_reading_a_whole_resource_depends_on_all_its_fields() {
    let kinds = second_commit(async |manager, isolation| {
        let mut session = begin(manager, isolation).await;
        session.read_fields("a").await.unwrap();
        session.write("b", "y", &5).unwrap();
        set(manager, "a", "other", 1).await;
        session.commit().await
    })
    .await;
    assert_eq!(kinds, [None, None, CONFLICT]);
}

#[tokio::test]
async fn a_session_sees_its_own_writes() {
    for isolation in ALL {
        let manager = manager();
        set(&manager, "a", "x", 1).await;
        let mut session = begin(&manager, isolation).await;
        session.write("a", "x", &2).unwrap();
        assert_eq!(session.read::<i64>("a", "x").await.unwrap(), Some(2));
        session.delete("a", "x").unwrap();
        assert_eq!(session.read::<i64>("a", "x").await.unwrap(), None);
        session.delete_resource("a").unwrap();
        assert_eq!(session.read_fields("a").await.unwrap(), None);
        session.write("a", "z", &3).unwrap();
        let fields = session.read_fields("a").await.unwrap().unwrap();
        assert_eq!(fields.len(), 1);
        session.commit().await.unwrap();
        assert_eq!(get(&manager, "a", "x").await, None);
        assert_eq!(get(&manager, "a", "z").await, Some(3));
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    paid: u32,
    note: Option<String>,
    lines: Vec<String>,
}

#[tokio::test]
async fn a_whole_state_comes_back_as_it_was_written() {
    let manager = manager();
    set(&manager, "a", "stale", 1).await;
    let order = Order {
        paid: 7,
        note: None,
        lines: vec!["tea".to_owned(), "🫖".to_owned()],
    };
    let mut session = begin(&manager, Isolation::Serializable).await;
    assert_eq!(session.read_state::<Order>("b").await.unwrap(), None);
    session.write_state("a", &order).unwrap();
    assert_eq!(
        session.read_state::<Order>("a").await.unwrap().as_ref(),
        Some(&order)
    );
    session.commit().await.unwrap();
    let mut session = begin(&manager, Isolation::Serializable).await;
    assert_eq!(session.read_state::<Order>("a").await.unwrap(), Some(order));
    assert_eq!(session.read::<i64>("a", "stale").await.unwrap(), None);
    let wrong = session.read::<String>("a", "paid").await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::WrongType);
    let wrong = session.read_state::<Vec<u8>>("a").await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::WrongType);
}

#[tokio::test]
async fn bad_arguments_are_named() {
    let manager = manager();
    let mut session = begin(&manager, Isolation::Serializable).await;
    for (error, argument) in [
        (session.write("other", "x", &1).unwrap_err(), "resource"),
        (session.write("a", "", &1).unwrap_err(), "field"),
        (session.write_state("a", &7).unwrap_err(), "state"),
        (
            session
                .write("a", "x", &BTreeMap::from([((1, 2), 3)]))
                .unwrap_err(),
            "value",
        ),
        (manager.session("").begin().await.unwrap_err(), "agent"),
        (
            manager
                .session("s")
                .resource("\n")
                .begin()
                .await
                .unwrap_err(),
            "resource",
        ),
        (
            manager.lease("a", "o", Duration::ZERO).await.unwrap_err(),
            "ttl",
        ),
    ] {
        assert!(
            matches!(error, Error::InvalidArgument { argument: named, .. } if named == argument),
            "{error}"
        );
    }
}

#[tokio::test]
async fn r17_a_fenced_resource_refuses_writes_without_a_fence() {
    let manager = manager();
    let lease = manager
        .lease("a", "o", Duration::from_secs(9))
        .await
        .unwrap();
    let mut session = begin(&manager, Isolation::Serializable).await;
    session.require_fence("a", true).unwrap();
    session.commit().await.unwrap();
    let mut session = begin(&manager, Isolation::Serializable).await;
    session.write("a", "x", &1).unwrap();
    let refused = session.commit().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::FenceRequired);
    let mut session = manager
        .session("s")
        .resource("a")
        .fence(&lease)
        .begin()
        .await
        .unwrap();
    session.write("a", "x", &1).unwrap();
    session.commit().await.unwrap();
}

#[tokio::test]
async fn r13_a_stale_owner_changes_nothing() {
    let clock = Arc::new(ManualClock::new());
    let manager = over(Arc::new(Memory::with_clock(clock.clone())));
    let stale = manager
        .lease("a", "old", Duration::from_secs(1))
        .await
        .unwrap();
    clock.advance(Duration::from_secs(2));
    let fresh = manager
        .lease("a", "new", Duration::from_secs(1))
        .await
        .unwrap();
    let commit = async |lease: &Lease, value: i64| {
        let mut session = manager
            .session("s")
            .resource("a")
            .fence(lease)
            .begin()
            .await?;
        session.write("a", "x", &value)?;
        session.commit().await
    };
    commit(&fresh, 2).await.unwrap();
    let refused = commit(&stale, 1).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LeaseLost);
    assert_eq!(get(&manager, "a", "x").await, Some(2));
}

#[tokio::test]
async fn r16_fence_live_refuses_an_expired_lease_that_r14_admits() {
    let clock = Arc::new(ManualClock::new());
    let manager = over(Arc::new(Memory::with_clock(clock.clone())));
    let lease = manager
        .lease("a", "o", Duration::from_secs(1))
        .await
        .unwrap();
    clock.advance(Duration::from_secs(1));
    let builder = manager.session("s").resource("a");
    let mut live = builder.clone().fence_live(&lease).begin().await.unwrap();
    live.write("a", "x", &1).unwrap();
    assert_eq!(
        live.commit().await.unwrap_err().kind(),
        ErrorKind::LeaseLost
    );
    let mut plain = builder.fence(&lease).begin().await.unwrap();
    plain.write("a", "x", &1).unwrap();
    plain.commit().await.unwrap();
}

#[tokio::test]
async fn transact_runs_conflicts_again_and_can_be_spawned() {
    let manager = manager();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let manager = manager.clone();
        tasks.spawn(async move {
            for _ in 0..25 {
                let policy = RetryPolicy::default().attempts(10_000);
                manager
                    .session("s")
                    .resource("a")
                    .transact(policy, async |session| {
                        let x: i64 = session.read("a", "x").await?.unwrap_or(0);
                        tokio::task::yield_now().await;
                        session.write("a", "x", &(x + 1))
                    })
                    .await
                    .unwrap();
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert_eq!(get(&manager, "a", "x").await, Some(200));
}

#[tokio::test]
async fn r19_a_lost_lease_is_not_retried() {
    let manager = manager();
    let lease = manager
        .lease("a", "o", Duration::from_secs(9))
        .await
        .unwrap();
    manager.backend().revoke(&lease.resource).await.unwrap();
    let mut runs = 0;
    let lost = manager
        .session("s")
        .resource("a")
        .fence(&lease)
        .transact(RetryPolicy::default(), async |session| {
            runs += 1;
            session.write("a", "x", &1)
        })
        .await
        .unwrap_err();
    assert_eq!((lost.kind(), runs), (ErrorKind::LeaseLost, 1));
}

#[tokio::test]
async fn waiting_times_out_without_a_lease_even_if_it_becomes_free_then() {
    let clock = Arc::new(ManualClock::new());
    let manager = over(Arc::new(Memory::with_clock(clock.clone()))).with_clock(clock.clone());
    manager
        .lease("a", "holder", Duration::from_secs(5))
        .await
        .unwrap();
    let waiter = tokio::spawn({
        let manager = manager.clone();
        async move {
            manager
                .lease("a", "waiter", Duration::from_secs(5))
                .wait(Duration::from_secs(5))
                .await
        }
    });
    tokio::task::yield_now().await;
    // The holder's lease and the waiter's time end in the same instant.
    clock.advance(Duration::from_secs(5));
    let answer = waiter.await.unwrap();
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::TimedOut);
    let status = manager
        .backend()
        .lease_status(&"a".try_into().unwrap())
        .await
        .unwrap();
    assert_eq!(status.mark.map(Token::get), Some(1));
}

#[tokio::test]
async fn waiting_follows_the_holder() {
    let clock = Arc::new(ManualClock::new());
    let manager = over(Arc::new(Memory::with_clock(clock.clone()))).with_clock(clock.clone());
    let held = manager
        .lease("a", "holder", Duration::from_secs(5))
        .await
        .unwrap();
    let waiter = tokio::spawn({
        let manager = manager.clone();
        async move {
            manager
                .lease("a", "waiter", Duration::from_secs(5))
                .wait_forever()
                .await
        }
    });
    tokio::task::yield_now().await;
    assert!(manager.backend().release(&held).await.unwrap());
    clock.advance(Duration::from_secs(1));
    assert_eq!(waiter.await.unwrap().unwrap().token.get(), 2);
}

#[tokio::test]
async fn r26_a_commit_of_unknown_outcome_happens_once() {
    let unknown = || Error::OutcomeUnknown {
        message: "cut".to_owned(),
    };
    let applied = || Fault::ApplyThenFail(unknown());
    let lost = || Fault::Fail(unknown());
    for faults in [
        vec![applied()],
        vec![lost()],
        vec![applied(), lost()],
        vec![lost(), applied(), applied()],
    ] {
        let backend = Faulty::new(Memory::new());
        for fault in faults {
            backend.fault("commit", fault);
        }
        let manager = over(Arc::new(backend));
        manager
            .session("s")
            .resource("a")
            .transact(RetryPolicy::default(), async |session| {
                let x: i64 = session.read("a", "x").await?.unwrap_or(0);
                session.write("a", "x", &(x + 1))
            })
            .await
            .unwrap();
        assert_eq!(get(&manager, "a", "x").await, Some(1));
        let events = manager.backend().events(0, 10).await.unwrap();
        assert_eq!(events.newest, 1);
    }
}

#[tokio::test]
async fn r26_an_unknown_outcome_stays_unknown_when_the_store_then_refuses_everything() {
    let backend = Faulty::new(Memory::new());
    let unknown = Error::OutcomeUnknown {
        message: "the sync failed".to_owned(),
    };
    let refused = Error::Storage {
        message: "open it again".to_owned(),
    };
    backend.fault("commit", Fault::ApplyThenFail(unknown));
    backend.fault("commit", Fault::Fail(refused));
    let answer = over(Arc::new(backend))
        .session("s")
        .resource("a")
        .transact(RetryPolicy::default(), async |session| {
            session.write("a", "x", &1)
        })
        .await;
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::OutcomeUnknown);
}

/// A step of the property test below.
#[derive(Debug, Clone)]
enum Step {
    Put(u8, i64),
    Delete(u8),
    Replace(Vec<(u8, i64)>),
    DeleteResource,
}

fn step() -> impl proptest::strategy::Strategy<Value = Step> {
    use proptest::prelude::*;
    prop_oneof![
        (0..4_u8, any::<i64>()).prop_map(|(field, value)| Step::Put(field, value)),
        (0..4_u8).prop_map(Step::Delete),
        proptest::collection::vec((0..4_u8, any::<i64>()), 0..3).prop_map(Step::Replace),
        Just(Step::DeleteResource),
    ]
}

proptest::proptest! {
    #[test]
    fn any_sequence_of_writes_collapses_to_what_it_would_do_one_by_one(
        before in proptest::option::of(proptest::collection::btree_map(0..4_u8, proptest::prelude::any::<i64>(), 0..4)),
        steps in proptest::collection::vec(step(), 0..8),
    ) {
        let name = |field: u8| format!("f{field}");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let manager = manager();
            let mut model: Option<BTreeMap<String, i64>> = before
                .map(|fields| fields.into_iter().map(|(f, v)| (name(f), v)).collect());
            if let Some(state) = &model {
                let mut session = begin(&manager, Isolation::Serializable).await;
                session.write_state("a", state).unwrap();
                session.commit().await.unwrap();
            }
            let mut session = begin(&manager, Isolation::Serializable).await;
            for step in steps {
                match step {
                    Step::Put(field, value) => {
                        model.get_or_insert_default().insert(name(field), value);
                        session.write("a", name(field), &value).unwrap();
                    }
                    Step::Delete(field) => {
                        if let Some(model) = &mut model {
                            model.remove(&name(field));
                        }
                        session.delete("a", name(field)).unwrap();
                    }
                    Step::Replace(fields) => {
                        let fields: BTreeMap<String, i64> =
                            fields.into_iter().map(|(f, v)| (name(f), v)).collect();
                        session.write_state("a", &fields).unwrap();
                        model = Some(fields);
                    }
                    Step::DeleteResource => {
                        model = None;
                        session.delete_resource("a").unwrap();
                    }
                }
                let seen: Option<BTreeMap<String, i64>> = session.read_state("a").await.unwrap();
                // A field written and deleted again is nothing written: an
                // absent resource stays absent.
                assert_eq!(seen.unwrap_or_default(), model.clone().unwrap_or_default());
            }
            session.commit().await.unwrap();
            let mut session = begin(&manager, Isolation::Serializable).await;
            let stored: Option<BTreeMap<String, i64>> = session.read_state("a").await.unwrap();
            assert_eq!(stored.unwrap_or_default(), model.unwrap_or_default());
        });
    }
}
