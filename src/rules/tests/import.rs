//! R1 and R13 over a move to another store.

use super::*;
use crate::backend::{Exported, ImportHistory, ImportReport, ImportRequest, Merge};

/// Moves all of `from` into `to`, whose clock stands elsewhere.
fn moved(from: &Store, as_of: i64, to: &mut Store, now: i64, merge: Merge) -> Result<ImportReport> {
    let request = ImportRequest {
        entries: from
            .entries
            .iter()
            .map(|(resource, entry)| Exported {
                resource: resource.clone(),
                entry: entry.clone(),
            })
            .collect(),
        as_of: at(as_of),
        merge,
        history: ImportHistory::Note,
    };
    match to.run(&Op::Import(request), now)? {
        Outcome::Imported(report) => Ok(report),
        other => panic!("{other:?}"),
    }
}

fn exists<T: std::fmt::Debug>(answer: Result<T>, of: &str) -> bool {
    matches!(answer, Err(Error::ResourceExists { resource }) if resource.as_str() == of)
}

#[test]
fn r1_tokens_issued_after_a_move_are_above_all_issued_before() {
    let mut from = Store::default();
    for owner in ["a", "b", "c"] {
        let lease = from.acquire("job", owner, 0);
        from.release(&lease, 1);
    }
    from.revoke("job").unwrap();
    from.put([delete("job")]);
    let mut to = Store::default();
    moved(&from, 10, &mut to, 5000, Merge::Refuse).unwrap();
    assert_eq!(to.mark("job"), Some(4));
    assert_eq!(to.acquire("job", "d", 5001).token, token(5));
}

#[test]
fn a_live_lease_keeps_its_owner_its_token_and_the_time_that_it_has_left() {
    let mut from = Store::default();
    let lease = from.acquire("job", "a", 0);
    let mut to = Store::default();
    moved(&from, 30, &mut to, 9000, Merge::Refuse).unwrap();
    assert!(to.try_acquire("job", "b", 100, 9069).is_err());
    let renewed = to.renew(&lease, 100, 9069).unwrap();
    assert_eq!((renewed.token, renewed.expires_at), (lease.token, at(9169)));
    assert_eq!(to.acquire("job", "b", 9169).token, token(2));
}

#[test]
fn a_lease_that_is_over_stays_over() {
    for released in [true, false] {
        let mut from = Store::default();
        let lease = from.acquire("job", "a", 0);
        if released {
            assert!(from.release(&lease, 1));
        }
        let mut to = Store::default();
        moved(&from, 200, &mut to, 0, Merge::Refuse).unwrap();
        assert!(to.renew(&lease, 100, 1).is_err());
        assert_eq!(to.acquire("job", "b", 1).token, token(2));
    }
}

#[test]
fn r13_a_token_that_was_stale_there_is_stale_here() {
    let mut from = Store::default();
    let old = from.acquire("job", "a", 0);
    from.revoke("job").unwrap();
    let mut to = Store::default();
    moved(&from, 0, &mut to, 0, Merge::Refuse).unwrap();
    assert!(to.commit([old.fence()], [], [write("job", "1")]).is_err());
}

#[test]
fn r17_a_resource_that_is_fenced_stays_fenced_and_versions_go_on() {
    let mut from = Store::default();
    from.put([set_fenced("job", true)]);
    let mut to = Store::default();
    moved(&from, 0, &mut to, 0, Merge::Refuse).unwrap();
    assert!(to.commit([], [], [write("job", "1")]).is_err());
    let receipt = to
        .commit([fence("job", 1)], [], [write("job", "1")])
        .unwrap();
    assert_eq!(receipt.versions, [(res("job"), 2)]);
}

#[test]
fn a_store_that_holds_something_else_is_left_as_it_is() {
    let mut from = Store::default();
    from.put([write("a", "1"), write("b", "1")]);
    for mine in [write("b", "2"), delete("c")] {
        let mut to = Store::default();
        to.put([write("c", "0")]);
        to.put([mine.clone()]);
        let before = to.clone();
        let answer = moved(&from, 0, &mut to, 0, Merge::Refuse);
        assert_eq!(exists(answer, "b"), mine.resource == res("b"));
        assert_eq!(to == before, mine.resource == res("b"));
    }
    // Leases of its own count as well.
    let mut to = Store::default();
    to.acquire("b", "mine", 0);
    assert!(exists(moved(&from, 0, &mut to, 0, Merge::Refuse), "b"));
}

#[test]
fn a_move_done_again_changes_nothing() {
    let mut from = Store::default();
    let lease = from.acquire("job", "a", 0);
    from.put([write("job", "1"), write("other", "2")]);
    from.release(&lease, 1);
    let mut to = Store::default();
    let first = moved(&from, 5, &mut to, 7, Merge::Refuse).unwrap();
    assert_eq!((first.changed, first.events), (2, 2));
    let before = to.clone();
    let again = moved(&from, 9, &mut to, 11, Merge::Refuse).unwrap();
    assert_eq!(again, ImportReport::default());
    assert_eq!(to, before);
}

#[test]
fn of_two_states_the_newer_stays_and_marks_only_grow() {
    let mut from = Store::default();
    let mut to = Store::default();
    for (store, a, b) in [(&mut from, 3, 1), (&mut to, 1, 3)] {
        for value in 0..a {
            store.put([write("a", &format!("1{value}0"))]);
        }
        for value in 0..b {
            store.put([write("b", &format!("1{value}1"))]);
        }
    }
    from.commit([fence("a", 7), fence("b", 3)], [], []).unwrap();
    to.commit([fence("a", 4), fence("b", 9)], [], []).unwrap();
    moved(&from, 0, &mut to, 0, Merge::Newer).unwrap();
    let version = |name: &str| {
        to.entries[&res(name)]
            .resource
            .as_ref()
            .unwrap()
            .state
            .version
    };
    assert_eq!((version("a"), version("b")), (3, 3));
    let value = |name: &str| {
        let state = &to.entries[&res(name)].resource.as_ref().unwrap().state;
        state.fields[&field("x")].value.to_string()
    };
    assert_eq!((value("a").as_str(), value("b").as_str()), ("120", "121"));
    assert_eq!((to.mark("a"), to.mark("b")), (Some(7), Some(9)));
}

#[test]
fn a_lease_of_this_store_under_a_newer_token_is_not_replaced() {
    let mut from = Store::default();
    from.acquire("job", "there", 0);
    let mut to = Store::default();
    let first = to.acquire("job", "x", 0);
    to.release(&first, 0);
    let here = to.acquire("job", "here", 0);
    moved(&from, 0, &mut to, 10, Merge::Newer).unwrap();
    assert_eq!(to.renew(&here, 100, 20).unwrap().token, token(2));
}

#[test]
fn r1_two_owners_of_one_token_are_refused_or_both_fenced() {
    for (there, here) in [("x", "y"), ("x", "")] {
        let mut from = Store::default();
        let theirs = from.acquire("job", there, 0);
        let filled = || {
            let mut to = Store::default();
            if here.is_empty() {
                // A token that was observed in a write.
                to.commit([fence("job", 1)], [], [write("job", "1")])
                    .unwrap();
            } else {
                to.acquire("job", here, 0);
            }
            to
        };
        let mut to = filled();
        let before = to.clone();
        assert!(exists(moved(&from, 0, &mut to, 0, Merge::Refuse), "job"));
        assert_eq!(to, before);

        moved(&from, 0, &mut to, 0, Merge::Newer).unwrap();
        assert_eq!(to.mark("job"), Some(2));
        assert!(
            to.commit([theirs.fence()], [], [write("job", "2")])
                .is_err()
        );
        assert!(to.renew(&theirs, 100, 1).is_err());
        assert!(to.renew(&lease("job", here.max("z"), 1), 100, 1).is_err());
        // Once more raises nothing.
        let before = to.clone();
        let again = moved(&from, 0, &mut to, 0, Merge::Newer).unwrap();
        assert_eq!((again.changed, to == before), (0, true));
    }
}

#[test]
fn a_live_lease_here_is_not_ended_without_a_word() {
    let mut from = Store::default();
    for owner in ["a", "b", "c"] {
        let lease = from.acquire("job", owner, 0);
        if owner != "c" {
            from.release(&lease, 0);
        }
    }
    let mut to = Store::default();
    let held = to.acquire("job", "mine", 0);
    assert!(exists(moved(&from, 0, &mut to, 0, Merge::Refuse), "job"));
    to.renew(&held, 100, 1).unwrap();
}

#[test]
fn a_lease_released_here_is_not_brought_back_by_a_late_copy() {
    let mut from = Store::default();
    let lease = from.acquire("job", "a", 0);
    let mut to = Store::default();
    moved(&from, 0, &mut to, 0, Merge::Refuse).unwrap();
    assert!(to.release(&lease, 10));
    moved(&from, 20, &mut to, 20, Merge::Newer).unwrap();
    assert_eq!(to.acquire("job", "b", 21).token, token(2));
}

#[test]
fn history_goes_on_where_it_ends_or_is_refused() {
    let mut from = Store::default();
    for value in 0..3 {
        from.put([write("a", &value.to_string())]);
    }
    let events: Vec<Event> = from
        .events
        .iter()
        .zip(1..)
        .map(|(kind, sequence)| Event {
            sequence,
            at: at(0),
            kind: kind.clone(),
        })
        .collect();
    let append = |to: &mut Store, events: &[Event]| {
        let request = ImportRequest {
            entries: Vec::new(),
            as_of: at(0),
            merge: Merge::Refuse,
            history: ImportHistory::Append(events.to_vec()),
        };
        to.run(&Op::Import(request), 0)
    };
    let mut to = Store::default();
    append(&mut to, &events[..1]).unwrap();
    for wrong in [
        &events[..1],
        &events[2..],
        &[events[1].clone(), events[1].clone()],
    ] {
        let before = to.clone();
        let answer = append(&mut to, wrong);
        assert!(matches!(
            answer,
            Err(Error::InvalidArgument {
                argument: "history",
                ..
            })
        ));
        assert_eq!(to, before);
    }
    append(&mut to, &events[1..]).unwrap();
    assert_eq!(to.events, from.events);
}

#[test]
fn r1_a_lease_without_its_mark_is_refused() {
    let mut from = Store::default();
    from.acquire("job", "a", 0);
    let (resource, entry) = from.entries.first_key_value().unwrap();
    let below = Token::new(2).ok();
    let above = LeaseRecord {
        token: Token::new(3).unwrap(),
        ..entry.lease.clone().unwrap()
    };
    for mark in [None, below] {
        let request = ImportRequest {
            entries: vec![Exported {
                resource: resource.clone(),
                entry: Entry {
                    mark,
                    lease: Some(above.clone()),
                    resource: None,
                },
            }],
            as_of: at(0),
            merge: Merge::Newer,
            history: ImportHistory::Note,
        };
        let mut to = Store::default();
        let answer = to.run(&Op::Import(request), 0);
        assert!(matches!(
            answer,
            Err(Error::InvalidArgument {
                argument: "entries",
                ..
            })
        ));
        assert_eq!(to, Store::default());
    }
}
