//! Disks that fail: full, or with errors, at each operation in turn.

use std::sync::Arc;

use statepact::backend::CommitRequest;
use statepact::backend::embedded::Embedded;
use statepact::backend::embedded::redb::TableDefinition;
use statepact::{CommitId, Error, ErrorKind, Result};

use crate::support::{Fault, Probe, Sample, check, lease, name, put, request, value};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// A store in which `left` and `right` are 1, and its image.
fn template() -> (Sample, Vec<u8>) {
    let sample = Sample::new(3);
    let store = sample.options().open_blocking(sample.path()).unwrap();
    store.commit_blocking(&to(1)).unwrap();
    drop(store);
    let image = std::fs::read(sample.path()).unwrap();
    (sample, image)
}

/// The commit that sets both to a number, with an id.
fn to(number: u64) -> CommitRequest {
    CommitRequest {
        id: Some(CommitId::from_bits(u128::from(number))),
        ..request(&[name("left"), name("right")], number)
    }
}

fn both(store: &Embedded) -> Result<u64> {
    let [left, right] = ["left", "right"].map(|side| value(store, side));
    let (left, right) = (left?.unwrap(), right?.unwrap());
    assert_eq!(left, right, "half of a commit");
    Ok(left)
}

/// R26: whatever operation of a commit fails, once or from then on, the
/// outcome is definite or said to be unknown. Writes are refused until the
/// store is opened again, reads go on, and nothing acknowledged is lost.
#[test]
fn a_failed_operation_of_a_commit_has_a_definite_or_unknown_outcome_r26() {
    let (sample, image) = template();
    let path = sample.file("faulty.redb");
    let mut kinds = std::collections::BTreeMap::<&str, u32>::new();
    for (lasting, errno) in [(false, EIO), (true, EIO), (true, ENOSPC)] {
        for after in 0.. {
            put(&path, &image);
            let probe = Arc::new(Probe::default());
            let options = sample.options().probe(probe.clone());
            let store = options.open_blocking(&path).unwrap();
            store.commit_blocking(&to(2)).unwrap();
            probe.fault(Some(Fault {
                reads: false,
                after,
                lasting,
                errno,
            }));
            let outcome = store.commit_blocking(&to(3));
            if probe.failed() == 0 {
                outcome.unwrap();
                assert!(after > 5, "a commit of {after} operations");
                break;
            }
            let context = format!("operation {after}, lasting {lasting}, {errno}: {outcome:?}");
            let possible = match &outcome {
                Err(Error::Storage { message }) => {
                    assert!(message.contains("faulty.redb"), "{context}");
                    *kinds.entry("definite").or_default() += 1;
                    2..=2
                }
                Err(Error::OutcomeUnknown { .. }) => {
                    *kinds.entry("unknown").or_default() += 1;
                    2..=3
                }
                other => panic!("{context}: {other:?}"),
            };
            // Reads go on.
            for _ in 0..2 {
                let seen = both(&store).unwrap_or_else(|error| panic!("{context}: {error:?}"));
                assert!(possible.contains(&seen), "{context}: {seen}");
            }
            // Writes are refused, although the disk may be well again.
            for _ in 0..2 {
                let refused = store.commit_blocking(&to(4)).unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Storage, "{context}: {refused:?}");
                assert!(lease(&store, "job", "me").is_err(), "{context}");
            }
            drop(store);

            let store = sample.options().open_blocking(&path).unwrap();
            let there = both(&store).unwrap();
            assert!(possible.contains(&there), "{context}: {there}");
            check(&store).unwrap();
            // Sent again with its id it happens once.
            let receipt = store.commit_blocking(&to(3)).unwrap();
            assert_eq!(both(&store).unwrap(), 3, "{context}");
            assert!(receipt.versions.iter().all(|(_, version)| *version == 3));
        }
    }
    assert!(kinds["definite"] > 5, "{kinds:?}");
    assert!(kinds["unknown"] > 2, "{kinds:?}");
}

/// The same for the caller's own tables.
#[test]
fn a_failed_operation_of_transact_with_leaves_its_tables_whole_r26() {
    const OWN: TableDefinition<'static, &str, u64> = TableDefinition::new("own");
    let (sample, image) = template();
    let path = sample.file("faulty.redb");
    let insert = |store: &Embedded, number: u64| {
        store.transact_with::<(), Error>([], |txn| {
            let mut table = txn.open_table(OWN)?;
            for key in ["a", "b"] {
                let done = table.insert(key, number).map(drop);
                done.map_err(|error| Error::Storage {
                    message: error.to_string(),
                })?;
            }
            Ok(())
        })
    };
    let numbers = |store: &Embedded| {
        store
            .read_with::<_, Error>(|txn| {
                let table = txn.open_table(OWN)?.unwrap();
                let [a, b] = ["a", "b"].map(|key| table.get(key).unwrap().unwrap().value());
                assert_eq!(a, b, "half of a transaction");
                Ok(a)
            })
            .unwrap()
    };
    for after in 0.. {
        put(&path, &image);
        let probe = Arc::new(Probe::default());
        let options = sample.options().probe(probe.clone());
        let store = options.open_blocking(&path).unwrap();
        insert(&store, 1).unwrap();
        probe.fault(Some(Fault {
            reads: false,
            after,
            lasting: false,
            errno: EIO,
        }));
        let outcome = insert(&store, 2);
        if probe.failed() == 0 {
            outcome.unwrap();
            assert!(after > 5);
            break;
        }
        let last = match outcome {
            Err(Error::Storage { .. }) => 1,
            Err(Error::OutcomeUnknown { .. }) => 2,
            other => panic!("operation {after}: {other:?}"),
        };
        assert!(insert(&store, 3).is_err());
        drop(store);
        let store = sample.options().open_blocking(&path).unwrap();
        assert!((1..=last).contains(&numbers(&store)), "operation {after}");
        check(&store).unwrap();
    }
}

/// Whatever fails while a store is opened: an error that says so, and the next
/// opening finds everything.
#[test]
fn a_failed_operation_of_opening_harms_nothing_r26() {
    let (sample, image) = template();
    let path = sample.file("faulty.redb");
    for reads in [false, true] {
        for after in 0.. {
            put(&path, &image);
            let probe = Arc::new(Probe::default());
            probe.fault(Some(Fault {
                reads,
                after,
                lasting: true,
                errno: EIO,
            }));
            let options = sample.options().probe(probe.clone());
            let opened = options.open_blocking(&path);
            if probe.failed() == 0 {
                opened.unwrap();
                assert!(after > 1);
                break;
            }
            if let Err(error) = &opened {
                assert_eq!(error.kind(), ErrorKind::Storage, "{error:?}");
                let text = error.to_string();
                assert!(text.contains("faulty.redb"), "{text}");
            }
            drop(opened);
            let store = sample.options().open_blocking(&path).unwrap();
            assert_eq!(both(&store).unwrap(), 1);
            check(&store).unwrap();
        }
    }
}

/// A read that fails is an error of that call, and no wrong answer.
#[test]
fn a_failed_read_is_an_error_and_loses_nothing() {
    let (sample, image) = template();
    let path = sample.file("faulty.redb");
    for after in 0.. {
        put(&path, &image);
        let probe = Arc::new(Probe::default());
        let options = sample.options().cache_bytes(0).probe(probe.clone());
        let store = options.open_blocking(&path).unwrap();
        store.commit_blocking(&to(2)).unwrap();
        probe.fault(Some(Fault {
            reads: true,
            after,
            lasting: false,
            errno: EIO,
        }));
        let answers = [
            both(&store).map(drop),
            store.commit_blocking(&to(3)).map(drop),
        ];
        if probe.failed() == 0 {
            assert!(answers.iter().all(Result::is_ok));
            assert!(after > 5, "{after} reads");
            break;
        }
        let kind = |error: &Error| error.kind();
        let kinds: Vec<_> = answers.iter().map(|it| it.as_ref().map_err(kind)).collect();
        assert!(
            kinds.iter().all(|kind| matches!(
                kind,
                Ok(()) | Err(ErrorKind::Storage | ErrorKind::OutcomeUnknown)
            )),
            "read {after}: {answers:?}"
        );
        assert!(answers.iter().any(Result::is_err), "read {after}");
        // The disk is well again, and nothing has to be opened again.
        both(&store).unwrap();
        drop(store);
        let store = sample.options().open_blocking(&path).unwrap();
        let there = both(&store).unwrap();
        match kinds[1] {
            Ok(()) => assert_eq!(there, 3),
            Err(ErrorKind::Storage) => assert_eq!(there, 2),
            Err(_) => assert!((2..=3).contains(&there)),
        }
        check(&store).unwrap();
    }
}

/// A handle that may not write any more still reads what others commit.
#[test]
fn reads_of_a_failed_handle_follow_the_commits_of_others_r26() {
    let (sample, image) = template();
    let path = sample.file("faulty.redb");
    put(&path, &image);
    let probe = Arc::new(Probe::default());
    let store = sample
        .options()
        .probe(probe.clone())
        .open_blocking(&path)
        .unwrap();
    for after in [0, 3] {
        probe.fault(Some(Fault {
            reads: false,
            after,
            lasting: false,
            errno: EIO,
        }));
        store.commit_blocking(&to(2)).unwrap_err();
        for number in 10..20 {
            let other = sample.options().open_blocking(&path).unwrap();
            other
                .commit_blocking(&request(&[name("left"), name("right")], number))
                .unwrap();
            assert_eq!(both(&store).unwrap(), number);
        }
    }
    assert_eq!(probe.failed(), 1, "the first failure is the last");
}
