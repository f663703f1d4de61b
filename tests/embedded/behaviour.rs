//! What the embedded engine promises beyond the rules: sharing of syncs,
//! tables of the caller's own, bounded history, closing.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use statepact::backend::embedded::{
    Embedded, EmbeddedOptions, StorageOp, StorageProbe, StoreFile, redb,
};
use statepact::backend::{AcquireRequest, Check, CommitRequest, LeaseState};
use statepact::clock::{Clock, SystemClock};
use statepact::random::{Random, SeededRandom};
use statepact::{Backend, Error, ErrorKind, LossReason, Token};

use crate::support::{
    Probe, check, fenced_request, folder, lease, name, request, runtime, ttl, value,
};

const OWN: redb::TableDefinition<'static, &str, u64> = redb::TableDefinition::new("own");

fn own(store: &Embedded) -> Option<u64> {
    store
        .read_with::<_, Error>(|txn| {
            let Some(table) = txn.open_table(OWN)? else {
                return Ok(None);
            };
            Ok(table.get("key").unwrap().map(|value| value.value()))
        })
        .unwrap()
}

/// Counts syncs, and makes each take as long as on a disk.
#[derive(Debug, Default)]
struct SlowSyncs(AtomicU64);

impl StorageProbe for SlowSyncs {
    fn before(&self, _: StoreFile, op: StorageOp<'_>) -> std::io::Result<()> {
        if op == StorageOp::Sync {
            self.0.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

/// 64 committers at once share syncs, and each hears its own outcome: of those
/// that want the same field to be absent still, one wins.
#[test]
fn committers_share_syncs_and_each_has_its_own_outcome() {
    const COMMITTERS: usize = 64;
    const ROUNDS: u64 = 6;
    let folder = folder();
    let probe = Arc::new(SlowSyncs::default());
    let store = EmbeddedOptions::new()
        .busy_timeout(Duration::from_secs(60))
        .probe(probe.clone())
        .open_blocking(folder.path().join("state.redb"))
        .unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    let before = probe.0.load(Ordering::SeqCst);
    let mut sequences = BTreeSet::new();
    for round in 0..ROUNDS {
        let contested = name(&format!("contested-{round}"));
        let barrier = Barrier::new(COMMITTERS);
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..COMMITTERS)
                .map(|n| {
                    let own = name(&format!("own-{n}"));
                    let own_only = n % 4 == 0;
                    let checks = vec![Check::Field {
                        resource: contested.clone(),
                        field: "n".try_into().unwrap(),
                        version: None,
                    }];
                    let commit = if own_only {
                        request([&own], round)
                    } else {
                        CommitRequest {
                            checks,
                            ..request([&contested, &own], n as u64)
                        }
                    };
                    let (store, barrier, runtime) = (&store, &barrier, &runtime);
                    scope.spawn(move || {
                        barrier.wait();
                        let answer = if n % 2 == 0 {
                            store.commit_blocking(&commit)
                        } else {
                            runtime.block_on(store.commit(&commit))
                        };
                        (n, own_only, answer)
                    })
                })
                .collect();
            threads.into_iter().map(|it| it.join().unwrap()).collect()
        });
        let mut winners = Vec::new();
        for (n, own_only, answer) in outcomes {
            match answer {
                Ok(receipt) => {
                    assert!(sequences.insert(receipt.sequence), "one sequence for two");
                    if !own_only {
                        winners.push(n as u64);
                    }
                }
                Err(Error::Conflict { resource, .. }) => {
                    assert!(!own_only);
                    assert_eq!(resource, contested);
                }
                Err(other) => panic!("{other:?}"),
            }
        }
        assert_eq!(winners.len(), 1, "round {round}");
        assert_eq!(value(&store, contested.as_str()).unwrap(), Some(winners[0]));
    }
    // 17 commits a round that changed something; one commit alone takes two.
    let syncs = probe.0.load(Ordering::SeqCst) - before;
    let commits = sequences.len() as u64;
    assert_eq!(commits, 17 * ROUNDS);
    assert!(syncs < commits, "{syncs} syncs for {commits} commits");
    check(&store).unwrap();
}

/// R25: an acquisition whose future is dropped leaves no lease behind.
#[test]
fn a_cancelled_acquisition_leaves_no_lease_r25() {
    let folder = folder();
    let store = EmbeddedOptions::new()
        .probe(Arc::new(SlowSyncs::default()))
        .open_blocking(folder.path().join("state.redb"))
        .unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    let random = SeededRandom::new(25);
    let (mut held, mut dropped) = (Vec::new(), Vec::new());
    for n in 0..150 {
        let resource = name(&format!("job-{n}"));
        let asked = AcquireRequest {
            resources: vec![resource.clone()],
            owner: "owner".try_into().unwrap(),
            ttl: ttl(),
            create: true,
        };
        let task = runtime.spawn({
            let store = store.clone();
            async move { store.acquire_all(&asked).await }
        });
        std::thread::sleep(Duration::from_micros(random.next_u64() % 12_000));
        task.abort();
        match runtime.block_on(task) {
            Ok(leases) => held.push(leases.unwrap().remove(0)),
            Err(_) => dropped.push(resource),
        }
    }
    assert!(!held.is_empty() && !dropped.is_empty());
    for lease in &held {
        assert!(store.release_blocking(lease).unwrap(), "{lease:?}");
    }
    // What was granted after all is released in the background.
    let began = SystemClock.monotonic();
    let mut granted = 0;
    for resource in &dropped {
        loop {
            let status = store.lease_status_blocking(resource).unwrap();
            match status.lease {
                Some((lease, LeaseState::Live)) => {
                    let waited = SystemClock.monotonic().since(began);
                    assert!(waited < Duration::from_secs(20), "{lease:?} stays");
                    std::thread::sleep(Duration::from_millis(2));
                }
                Some((_, state)) => {
                    assert_eq!(state, LeaseState::Released);
                    granted += 1;
                    break;
                }
                None => break,
            }
        }
    }
    assert!(granted > 0, "no drop hit a grant");
    check(&store).unwrap();
}

#[test]
fn transact_with_commits_own_tables_with_the_fence_or_not_at_all_r13() {
    let folder = folder();
    let path = folder.path().join("state.redb");
    let store = Embedded::open_blocking(&path).unwrap();
    let old = lease(&store, "job", "old").unwrap();
    let set = |fence, number: u64| {
        store.transact_with::<_, Error>([fence], |txn| {
            txn.open_table(OWN)?.insert("key", number).unwrap();
            Ok(number)
        })
    };
    assert_eq!(set(old.fence(), 1).unwrap(), 1);
    assert_eq!(own(&store), Some(1));

    // An error of the work, or a panic, rolls back.
    let error = store
        .transact_with::<(), Error>([old.fence()], |txn| {
            txn.open_table(OWN)?.insert("key", 2).unwrap();
            Err(Error::Unavailable {
                message: "mine".to_owned(),
            })
        })
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        store.transact_with::<(), Error>([old.fence()], |txn| {
            txn.open_table(OWN)?.insert("key", 3).unwrap();
            panic!("of the test's own");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(own(&store), Some(1));
    assert_eq!(set(old.fence(), 4).unwrap(), 4, "it goes on after that");

    // The store's own tables are out of reach.
    let theirs = redb::TableDefinition::<&str, &[u8]>::new("statepact.fences");
    let error = store
        .transact_with::<(), Error>([], |txn| txn.open_table(theirs).map(drop))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);

    // A stale token is refused before the work is run.
    let mark = runtime().block_on(store.revoke(&name("job"))).unwrap();
    let mut ran = false;
    let error = store
        .transact_with::<(), Error>([old.fence()], |_| {
            ran = true;
            Ok(())
        })
        .unwrap_err();
    assert!(
        matches!(&error, Error::LeaseLost { reason: LossReason::Superseded { by }, .. } if *by == mark),
        "{error:?}"
    );
    assert!(!ran);

    // R15: a token above the mark becomes the mark in the same transaction.
    let above = statepact::Fence {
        token: Token::new(77).unwrap(),
        ..old.fence()
    };
    set(above, 5).unwrap();
    drop(store);
    let store = Embedded::open_blocking(&path).unwrap();
    assert_eq!(own(&store), Some(5));
    let status = store.lease_status_blocking(&name("job")).unwrap();
    assert_eq!(status.mark.map(Token::get), Some(77));
    assert_eq!(lease(&store, "job", "new").unwrap().token.get(), 78);
    check(&store).unwrap();
}

#[test]
fn history_is_bounded_and_says_what_is_gone() {
    let folder = folder();
    let store = EmbeddedOptions::new()
        .history(50)
        .open_blocking(folder.path().join("state.redb"))
        .unwrap();
    for number in 1..=400 {
        store
            .commit_blocking(&CommitRequest {
                id: Some(statepact::CommitId::from_bits(u128::from(number))),
                ..request(&[name("a")], number)
            })
            .unwrap();
        let events = check(&store).unwrap().events;
        assert!(events <= 55 && events >= 50.min(number), "{events}");
    }
    let events = |after| runtime().block_on(store.events(after, 1000));
    let Err(Error::HistoryPruned { after: 0, oldest }) = events(0) else {
        panic!("{:?}", events(0));
    };
    let page = events(oldest - 1).unwrap();
    assert_eq!(page.newest, 400);
    assert!(
        page.events
            .iter()
            .map(|event| event.sequence)
            .eq(oldest..=400)
    );
    assert!(events(oldest - 2).is_err());
    assert!(events(400).unwrap().events.is_empty());
    // A commit id is remembered as long as its event (R26).
    let again = CommitRequest {
        id: Some(statepact::CommitId::from_bits(390)),
        ..request(&[name("a")], 390)
    };
    assert_eq!(store.commit_blocking(&again).unwrap().sequence, 390);
    assert_eq!(value(&store, "a").unwrap(), Some(400));
}

/// Reads, refusals, and successes that change nothing do not touch the file.
#[test]
fn reads_and_refusals_never_write() {
    let folder = folder();
    let probe = Arc::new(Probe::default());
    let store = EmbeddedOptions::new()
        .probe(probe.clone())
        .open_blocking(folder.path().join("state.redb"))
        .unwrap();
    let (a, job) = (name("a"), name("job"));
    store.commit_blocking(&request([&a], 1)).unwrap();
    let stale = lease(&store, "job", "old").unwrap();
    assert!(store.release_blocking(&stale).unwrap());
    lease(&store, "job", "new").unwrap();
    let before = probe.steps().len();

    let stale_commit = fenced_request(&a, 2, stale.fence());
    let conflict = CommitRequest {
        checks: vec![Check::Resource {
            resource: a.clone(),
            version: None,
        }],
        ..request([&a], 2)
    };
    let nothing = request([], 2);
    let lost = |answer: statepact::Result<()>| {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::LeaseLost);
    };
    assert_eq!(value(&store, "a").unwrap(), Some(1));
    store.lease_status_blocking(&job).unwrap();
    lost(store.guard_blocking(&stale));
    lost(store.commit_blocking(&stale_commit).map(drop));
    lost(store.renew_blocking(&stale, ttl()).map(drop));
    assert!(!store.release_blocking(&stale).unwrap());
    lost(store.transact_with([stale.fence()], |_| Ok(())));
    let kind = |answer: statepact::Result<()>| answer.unwrap_err().kind();
    assert_eq!(
        kind(lease(&store, "job", "other").map(drop)),
        ErrorKind::LeaseNotAvailable
    );
    assert_eq!(
        kind(store.commit_blocking(&conflict).map(drop)),
        ErrorKind::Conflict
    );
    store.commit_blocking(&nothing).unwrap();
    assert_eq!(own(&store), None);
    runtime().block_on(async {
        store.read(&[a.clone(), job.clone()]).await.unwrap();
        store.list("", None, 10).await.unwrap();
        store.events(0, 10).await.unwrap();
        store.now().await.unwrap();
        lost(store.guard(&stale).await);
        lost(store.commit(&stale_commit).await.map(drop));
        lost(store.renew(&stale, ttl()).await.map(drop));
        assert!(!store.release(&stale).await.unwrap());
        store.commit(&nothing).await.unwrap();
        let missing = store.revoke(&name("missing")).await;
        assert_eq!(kind(missing.map(drop)), ErrorKind::ResourceNotFound);
    });
    let after = probe.steps();
    assert_eq!(after.len(), before, "{:?}", &after[before..]);
    assert!(probe.syncs() > 0, "the probe sees what writes");
}

#[test]
fn two_handles_of_one_process_are_two_processes_to_each_other() {
    let folder = folder();
    let path = folder.path().join("state.redb");
    let one = Embedded::open_blocking(&path).unwrap();
    let other = Embedded::open_blocking(&path).unwrap();
    let held = lease(&one, "job", "one").unwrap();
    let refused = lease(&other, "job", "other").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::LeaseNotAvailable);
    for number in 1..50 {
        let (writer, reader) = if number % 2 == 0 {
            (&one, &other)
        } else {
            (&other, &one)
        };
        writer
            .commit_blocking(&request(&[name("a")], number))
            .unwrap();
        assert_eq!(value(reader, "a").unwrap(), Some(number));
    }
    drop(one);
    other.guard_blocking(&held).unwrap();
    assert!(other.release_blocking(&held).unwrap());
    check(&other).unwrap();
}

/// Whether a program that wants the file for itself gets it.
fn is_closed(path: &std::path::Path) -> bool {
    match redb::Database::open(path) {
        Ok(_) => true,
        Err(redb::DatabaseError::DatabaseAlreadyOpen) => false,
        Err(other) => panic!("{other:?}"),
    }
}

#[test]
fn dropping_the_last_handle_closes_the_store() {
    let folder = folder();
    let path = folder.path().join("state.redb");
    let store = Embedded::open_blocking(&path).unwrap();
    // The committer's thread is there.
    runtime()
        .block_on(store.commit(&request(&[name("a")], 1)))
        .unwrap();
    let clone = store.clone();
    drop(store);
    assert!(!is_closed(&path));
    assert_eq!(value(&clone, "a").unwrap(), Some(1));
    drop(clone);
    let began = SystemClock.monotonic();
    while !is_closed(&path) {
        let waited = SystemClock.monotonic().since(began);
        assert!(waited < Duration::from_secs(20), "it stays open");
        std::thread::sleep(Duration::from_millis(1));
    }
    let store = Embedded::open_blocking(&path).unwrap();
    assert_eq!(value(&store, "a").unwrap(), Some(1));
}

/// The blocking API needs no runtime, and does not mind one.
#[test]
fn the_blocking_api_does_it_all() {
    let all = || {
        let folder = folder();
        let store = Embedded::open_blocking(folder.path().join("state.redb")).unwrap();
        let held = lease(&store, "job", "owner").unwrap();
        let renewed = store.renew_blocking(&held, ttl()).unwrap();
        assert_eq!(renewed.token, held.token);
        let fenced = fenced_request(&name("a"), 1, held.fence());
        store.commit_blocking(&fenced).unwrap();
        store.guard_blocking(&held).unwrap();
        assert_eq!(value(&store, "a").unwrap(), Some(1));
        assert!(store.release_blocking(&held).unwrap());
        assert!(!store.release_blocking(&held).unwrap());
        let status = store.lease_status_blocking(&name("job")).unwrap();
        assert_eq!(status.lease.unwrap().1, LeaseState::Released);
    };
    all();
    runtime().block_on(async { all() });
}

#[test]
fn a_panic_of_the_callers_own_work_is_the_callers() {
    let folder = folder();
    let store = Embedded::open_blocking(folder.path().join("state.redb")).unwrap();
    let panicked = |work: &dyn Fn()| {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let panic = caught.expect_err("a panic");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"a fault of the caller"));
    };
    let fault = || panic!("a fault of the caller");
    panicked(&|| store.read_with::<(), Error>(|_| fault()).unwrap());
    panicked(&|| store.transact_with::<(), Error>([], |_| fault()).unwrap());
    check(&store).unwrap();
}

#[test]
fn a_table_of_the_callers_own_that_is_misused_is_an_invalid_argument() {
    const OTHER: redb::TableDefinition<'static, &str, &str> = redb::TableDefinition::new("own");
    let folder = folder();
    let store = Embedded::open_blocking(folder.path().join("state.redb")).unwrap();
    let twice = store.transact_with::<_, Error>([], |txn| {
        let _first = txn.open_table(OWN)?;
        txn.open_table(OWN).map(drop)
    });
    assert_eq!(twice.unwrap_err().kind(), ErrorKind::InvalidArgument);
    store
        .transact_with::<_, Error>([], |txn| txn.open_table(OWN).map(drop))
        .unwrap();
    let other_types = [
        store.transact_with::<_, Error>([], |txn| txn.open_table(OTHER).map(drop)),
        store.read_with::<_, Error>(|txn| txn.open_table(OTHER).map(drop)),
    ];
    for answer in other_types {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    check(&store).unwrap();
}
