//! R18, R20, R22, R23, R26 and R27 of commits.

use super::*;

/// `a` and `b` hold `x` = 1; the version of each is 1.
fn two() -> Store {
    let mut store = Store::default();
    store.put([write("a", "1"), write("b", "1")]);
    store
}

#[test]
fn r20_a_commit_writes_all_its_resources_in_one_step() {
    let mut store = two();
    let receipt = store.put([write("b", "2"), write("a", "2"), write("c", "2")]);
    let versions = [(res("b"), 2), (res("a"), 2), (res("c"), 1)];
    assert_eq!(receipt.versions, versions, "in the order of the request");
    assert_eq!(receipt.sequence, 2);
    assert_eq!(store.events.len(), 2, "one event a commit");
    for name in ["a", "b", "c"] {
        assert_eq!(store.value(name, "x"), Some("2"));
    }
}

#[test]
fn r20_one_failed_check_refuses_the_writes_of_every_resource() {
    let mut store = two();
    let before = store.clone();
    let checks = [check("a", "x", Some(1)), check("b", "x", Some(7))];
    let answer = store.commit([], checks, [write("a", "2"), write("c", "2")]);
    assert_refused(answer, &conflict("b", Some("x")));
    assert_eq!(store, before);
}

#[test]
fn r22_a_field_that_was_found_must_not_have_changed() {
    for (case, between, refused) in [
        ("unchanged", write("b", "2"), false),
        ("written", write("a", "2"), true),
        ("written with the same value", write("a", "1"), true),
        ("deleted", fields("a", &[("x", None)]), true),
        ("replaced", replace("a", &[("x", "1")]), true),
        ("replaced by others", replace("a", &[("y", "1")]), true),
        ("resource deleted", delete("a"), true),
        ("another field", fields("a", &[("y", Some("1"))]), false),
        ("fenced", set_fenced("a", true), false),
    ] {
        let mut store = two();
        store.put([between]);
        let answer = store.commit([], [check("a", "x", Some(1))], [write("b", "3")]);
        if refused {
            assert_refused(answer, &conflict("a", Some("x")));
        } else {
            assert!(answer.is_ok(), "{case}: {answer:?}");
        }
    }
}

#[test]
fn r22_a_field_that_was_absent_must_still_be_absent() {
    for (case, between, refused) in [
        ("still absent", write("a", "2"), false),
        ("written", fields("a", &[("y", Some("1"))]), true),
        ("replaced", replace("a", &[("y", "1")]), true),
        ("resource deleted", delete("a"), false),
    ] {
        let mut store = two();
        store.put([between]);
        let answer = store.commit([], [check("a", "y", None)], [write("b", "3")]);
        if refused {
            assert_refused(answer, &conflict("a", Some("y")));
        } else {
            assert!(answer.is_ok(), "{case}: {answer:?}");
        }
    }
}

#[test]
fn r22_a_field_of_a_resource_that_did_not_exist() {
    let mut store = two();
    store.commit([], [check("c", "x", None)], []).unwrap();
    store.put([write("c", "1")]);
    let answer = store.commit([], [check("c", "x", None)], []);
    assert_refused(answer, &conflict("c", Some("x")));
}

#[test]
fn r22_deleted_and_made_again_is_a_change() {
    let mut store = two();
    store.put([delete("a")]);
    store.put([write("a", "1")]);
    for check in [check("a", "x", Some(1)), check_whole("a", Some(1))] {
        let answer = store.commit([], [check], [write("b", "2")]);
        assert!(matches!(answer, Err(Error::Conflict { .. })), "{answer:?}");
    }
}

#[test]
fn r22_a_whole_resource_depends_on_all_its_fields() {
    for (case, between, refused) in [
        ("another resource", write("b", "2"), false),
        ("the field", write("a", "2"), true),
        ("a new field", fields("a", &[("y", Some("1"))]), true),
        ("deleted", delete("a"), true),
        (
            "a write that changes nothing",
            fields("a", &[("y", None)]),
            false,
        ),
    ] {
        let mut store = two();
        store.put([between]);
        let answer = store.commit([], [check_whole("a", Some(1))], [write("b", "3")]);
        if refused {
            assert_refused(answer, &conflict("a", None));
        } else {
            assert!(answer.is_ok(), "{case}: {answer:?}");
        }
    }
}

#[test]
fn r22_a_whole_resource_that_did_not_exist_must_not_exist() {
    let mut store = two();
    store.commit([], [check_whole("c", None)], []).unwrap();
    store.acquire("c", "me", 0);
    let answer = store.commit([], [check_whole("c", None)], []);
    assert_refused(answer, &conflict("c", None));
    store.put([delete("c")]);
    store.commit([], [check_whole("c", None)], []).unwrap();
}

#[test]
fn r22_sessions_that_touch_different_fields_do_not_conflict() {
    let mut store = Store::default();
    store.put([fields("a", &[("x", Some("1")), ("y", Some("1"))])]);
    let first = fields("a", &[("x", Some("2"))]);
    let second = fields("a", &[("y", Some("2"))]);
    store
        .commit([], [check("a", "x", Some(1))], [first])
        .unwrap();
    store
        .commit([], [check("a", "y", Some(1))], [second])
        .unwrap();
    assert_eq!(store.value("a", "x"), Some("2"));
    assert_eq!(store.value("a", "y"), Some("2"));
}

#[test]
fn r22_a_lease_does_not_touch_what_was_read() {
    let mut store = two();
    store.acquire("a", "me", 0);
    store.revoke("a").unwrap();
    store.commit([], [check_whole("a", Some(1))], []).unwrap();
}

#[test]
fn r23_a_fenced_commit_is_validated_as_well() {
    let mut store = two();
    store.acquire("a", "me", 1000);
    let before = store.clone();
    for fence in [fence("a", 1), live_fence("a", 1)] {
        let request = commit_of([fence], [check("a", "x", Some(9))], [write("a", "2")]);
        let answer = store.commit_at(&request, 1050);
        assert_refused(answer, &conflict("a", Some("x")));
    }
    assert_eq!(store, before);
}

fn with_id(request: CommitRequest) -> CommitRequest {
    CommitRequest {
        id: Some(CommitId::from_bits(7)),
        ..request
    }
}

#[test]
fn r26_a_commit_sent_again_answers_the_first_outcome_whatever_happened_since() {
    let mut store = two();
    let checks = [check("a", "x", Some(1))];
    let request = with_id(commit_of([fence("a", 1)], checks, [write("a", "2")]));
    let first = store.commit_at(&request, 0).unwrap();
    assert_eq!(first.versions, [(res("a"), 2)]);
    store.revoke("a").unwrap();
    store
        .commit(
            [fence("a", 2)],
            [],
            [set_fenced("a", true), write("b", "2")],
        )
        .unwrap();
    let before = store.clone();
    assert_eq!(store.commit_at(&request, 9).unwrap(), first);
    assert_eq!(store, before, "and is not applied twice");
}

#[test]
fn r26_another_commit_with_the_same_id_is_refused() {
    let mut store = two();
    let request = with_id(commit_of([], [], [write("a", "2")]));
    store.commit_at(&request, 0).unwrap();
    let before = store.clone();
    let other = with_id(commit_of([], [], [write("a", "3")]));
    let answer = store.commit_at(&other, 0);
    assert_invalid(answer, "commit_id", "use a new one");
    assert_eq!(store, before);
}

#[test]
fn r26_a_refused_commit_leaves_no_outcome_behind() {
    let mut store = two();
    store.commit([fence("a", 2)], [], []).unwrap();
    let stale = with_id(commit_of([fence("a", 1)], [], [write("a", "2")]));
    assert_refused(store.commit_at(&stale, 0), &superseded("a", 1, 2));
    let conflicting = with_id(commit_of([], [check("a", "x", None)], [write("a", "2")]));
    assert_refused(store.commit_at(&conflicting, 0), &conflict("a", Some("x")));
    assert!(store.receipts.is_empty());
    let good = with_id(commit_of([], [], [write("a", "2")]));
    store.commit_at(&good, 0).unwrap();
}

#[test]
fn r26_a_receipt_is_kept_only_for_a_commit_with_an_id_that_changed_something() {
    let mut store = two();
    store.put([write("a", "2")]);
    let nothing = with_id(commit_of([], [], [fields("a", &[("absent", None)])]));
    store.commit_at(&nothing, 0).unwrap();
    assert!(store.receipts.is_empty());
    let observing = with_id(commit_of([fence("a", 5)], [], []));
    let first = store.commit_at(&observing, 0).unwrap();
    assert_eq!(store.receipts.len(), 1, "a token was observed");
    assert_eq!(store.commit_at(&observing, 0).unwrap(), first);
}

#[test]
fn r27_a_commit_over_the_limit_changes_nothing() {
    let mut store = Store::default();
    let large = Value::from_stored(&"1".repeat(MAX_STATE_BYTES / 4));
    let name = |number: usize| field(&number.to_string());
    let three = (0..3).map(|number| (name(number), Some(large.clone())));
    store.put([change("a", Change::Fields(three.collect()))]);
    let before = store.clone();
    let more = |bytes: usize| {
        let value = Value::from_stored(&"1".repeat(bytes));
        let one = [(name(3), Some(value))];
        change("a", Change::Fields(one.into()))
    };
    // The names of the four fields have one byte each.
    let room = MAX_STATE_BYTES / 4 - 4;
    let answer = store.commit([fence("a", 5)], [], [more(room + 1)]);
    assert_invalid(
        answer,
        "writes",
        "resource `a` would hold 67108865 bytes; the limit is 67108864",
    );
    assert_eq!(store, before);
    let conflicting = store.commit([], [check_whole("a", None)], [more(room + 1)]);
    assert_refused(conflicting, &conflict("a", None));
    store.put([more(room)]);
}
