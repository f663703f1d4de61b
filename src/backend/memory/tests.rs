//! What the memory store adds to the rules: its time line, and the history
//! that it keeps.

use std::time::Duration;

use super::*;
use crate::backend::{Change, ResourceWrite};
use crate::clock::ManualClock;
use crate::error::ErrorKind;
use crate::event::EventKind;
use crate::resource::{AgentName, OwnerName};

fn res(name: &str) -> ResourceName {
    ResourceName::new(name).unwrap()
}

fn acquire(by: &str) -> AcquireRequest {
    AcquireRequest {
        resources: vec![res("job")],
        owner: OwnerName::new(by).unwrap(),
        ttl: Ttl::from_millis(1000).unwrap(),
        create: true,
    }
}

/// A commit with an id, which creates a resource of its own.
fn commit(number: u32) -> CommitRequest {
    CommitRequest {
        id: Some(CommitId::from_bits(number.into())),
        agent: AgentName::new("agent").unwrap(),
        fences: Vec::new(),
        checks: Vec::new(),
        writes: vec![ResourceWrite {
            resource: res(&number.to_string()),
            change: Change::Replace(BTreeMap::new()),
            fenced: None,
        }],
    }
}

#[tokio::test]
async fn r11_a_wall_clock_that_is_set_changes_nothing() {
    let clock = Arc::new(ManualClock::new());
    let store = Memory::with_clock(clock.clone());
    store.acquire_all(&acquire("a")).await.unwrap();
    let before = store.now().await.unwrap();
    for wall in [0, 1, i64::MAX] {
        clock.set_wall(Timestamp::from_millis(wall));
        assert_eq!(store.now().await.unwrap(), before);
        let refused = store.acquire_all(&acquire("b")).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::LeaseNotAvailable);
    }
    clock.advance(Duration::from_millis(999));
    store.acquire_all(&acquire("b")).await.unwrap_err();
    clock.advance(Duration::from_millis(1));
    let taken = store.acquire_all(&acquire("b")).await.unwrap();
    assert_eq!(taken[0].token.get(), 2);
}

#[tokio::test]
async fn r11_its_time_line_begins_at_the_wall_clock() {
    let clock = Arc::new(ManualClock::new());
    let store = Memory::with_clock(clock.clone());
    assert_eq!(store.now().await.unwrap(), clock.wall());
    clock.advance(Duration::from_secs(5));
    assert_eq!(store.now().await.unwrap(), clock.wall());
}

#[tokio::test]
async fn r11_its_time_never_runs_backwards() {
    let clock = Arc::new(ManualClock::new());
    let store = Memory::with_clock(clock.clone());
    let start = store.now().await.unwrap();
    clock.reboot();
    assert!(store.now().await.unwrap() >= start);
}

#[tokio::test]
async fn clones_share_the_store() {
    let store = Memory::new();
    store.clone().acquire_all(&acquire("a")).await.unwrap();
    let mark = store.current_fence(&res("job")).await.unwrap();
    assert_eq!(mark, Some(Token::MIN));
}

#[tokio::test]
async fn the_newest_events_are_kept_and_older_ones_are_said_to_be_gone() {
    let store = Memory::with_clock_and_history(Arc::new(ManualClock::new()), 20);
    for number in 0..22 {
        store.commit(&commit(number)).await.unwrap();
    }
    let all = store.events(0, 100).await.unwrap();
    assert_eq!((all.events.len(), all.newest), (22, 22), "a tenth more");
    store.commit(&commit(22)).await.unwrap();
    for after in [0, 2] {
        let gone = store.events(after, 100).await.unwrap_err();
        assert!(
            matches!(gone, Error::HistoryPruned { oldest: 4, .. }),
            "{gone}"
        );
    }
    let kept = store.events(3, 100).await.unwrap();
    let sequences: Vec<_> = kept.events.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, (4..=23).collect::<Vec<_>>());
}

#[tokio::test]
async fn r26_a_commit_id_is_forgotten_with_its_event_and_not_before() {
    let store = Memory::with_clock_and_history(Arc::new(ManualClock::new()), 20);
    for number in 0..23 {
        store.commit(&commit(number)).await.unwrap();
    }
    assert_eq!(store.state().receipts.len(), 20);
    let again = store.commit(&commit(3)).await.unwrap();
    assert_eq!(again.sequence, 4, "what it answered then");
    let anew = store.commit(&commit(2)).await.unwrap();
    assert_eq!(anew.versions, [], "it is decided again: nothing to change");
}

#[tokio::test]
async fn r1_marks_outlive_the_history() {
    let clock = Arc::new(ManualClock::new());
    let store = Memory::with_clock_and_history(clock.clone(), 0);
    for token in 1..50 {
        let leases = store.acquire_all(&acquire("a")).await.unwrap();
        assert_eq!(leases[0].token.get(), token);
        clock.advance(Duration::from_secs(1));
    }
    let page = store.events(49, 10).await.unwrap();
    assert_eq!(
        (page.events.len(), page.newest, page.next_after),
        (0, 49, 49)
    );
    store.events(48, 10).await.unwrap_err();
}

#[tokio::test]
async fn events_carry_the_stores_time_in_order() {
    let clock = Arc::new(ManualClock::new());
    let store = Memory::with_clock(clock.clone());
    for by in ["a", "b"] {
        store.acquire_all(&acquire(by)).await.unwrap();
        clock.advance(Duration::from_secs(1));
    }
    let page = store.events(0, 10).await.unwrap();
    let [first, second] = &page.events[..] else {
        panic!("{page:?}")
    };
    assert_eq!(second.at.since(first.at), Duration::from_secs(1));
    assert!(matches!(second.kind, EventKind::Acquired { .. }));
}

#[tokio::test]
async fn r13_a_refused_call_changes_nothing() {
    let store = Memory::with_clock(Arc::new(ManualClock::new()));
    let lease = store.acquire_all(&acquire("a")).await.unwrap().remove(0);
    store.revoke(&res("job")).await.unwrap();
    let before = format!("{:?}", store.state());
    store.renew(&lease, Ttl::MAX).await.unwrap_err();
    assert!(!store.release(&lease).await.unwrap());
    let stale = CommitRequest {
        fences: vec![lease.fence()],
        ..commit(1)
    };
    store.commit(&stale).await.unwrap_err();
    store.revoke(&res("unknown")).await.unwrap_err();
    assert_eq!(format!("{:?}", store.state()), before);
}
