//! R12 to R18.

use super::*;

/// `job` is leased to `a` with token 1, then to `b` with token 2 from 1100 to
/// 1200; `orders` holds `x`.
fn taken_over() -> Store {
    let mut store = Store::default();
    store.acquire("job", "a", 1000);
    store.acquire("job", "b", 1100);
    store.put([write("orders", "1")]);
    store
}

#[test]
fn r13_a_stale_token_writes_nothing() {
    let mut store = taken_over();
    let before = store.clone();
    for write in [write("job", "2"), delete("job"), set_fenced("job", true)] {
        let answer = store.commit([fence("job", 1)], [], [write]);
        assert_refused(answer, &superseded("job", 1, 2));
    }
    let nothing = store.commit([fence("job", 1)], [], []);
    assert_refused(nothing, &superseded("job", 1, 2));
    assert_eq!(store, before);
}

#[test]
fn r13_the_token_at_the_mark_writes() {
    let mut store = taken_over();
    store
        .commit([fence("job", 2)], [], [write("job", "2")])
        .unwrap();
    assert_eq!(store.value("job", "x"), Some("2"));
}

#[test]
fn r13_a_fence_may_name_a_resource_that_the_commit_does_not_touch() {
    let mut store = taken_over();
    let stale = store.commit([fence("job", 1)], [], [write("orders", "2")]);
    assert_refused(stale, &superseded("job", 1, 2));
    assert_eq!(store.value("orders", "x"), Some("1"));
    store
        .commit([fence("job", 2)], [], [write("orders", "2")])
        .unwrap();
    assert_eq!(store.value("orders", "x"), Some("2"));
}

#[test]
fn r13_each_of_several_fences_is_checked() {
    let mut store = taken_over();
    store.acquire("other", "b", 1100);
    store.revoke("other").unwrap();
    for (fences, expected) in [
        (
            [fence("job", 2), fence("other", 1)],
            superseded("other", 1, 2),
        ),
        (
            [fence("job", 1), fence("other", 2)],
            superseded("job", 1, 2),
        ),
        (
            [fence("other", 1), fence("job", 1)],
            superseded("other", 1, 2),
        ),
    ] {
        let before = store.clone();
        assert_refused(store.commit(fences, [], [write("orders", "2")]), &expected);
        assert_eq!(store, before);
    }
    let both = [fence("job", 2), fence("other", 2)];
    store.commit(both, [], [write("orders", "2")]).unwrap();
}

#[test]
fn r13_tokens_above_2_to_the_53_are_told_apart() {
    let mut store = Store::default();
    store.commit([fence("job", (1 << 53) + 1)], [], []).unwrap();
    let stale = store.commit([fence("job", 1 << 53)], [], [write("job", "1")]);
    assert_refused(stale, &superseded("job", 1 << 53, (1 << 53) + 1));
}

#[test]
fn r12_no_time_makes_a_stale_token_good() {
    let mut store = taken_over();
    let request = commit_of([fence("job", 1)], [], [write("job", "2")]);
    for now in [i64::MIN, -1, 0, 1050, 1150, 5000, i64::MAX] {
        assert_refused(store.commit_at(&request, now), &superseded("job", 1, 2));
    }
}

#[test]
fn r14_expiry_and_release_alone_do_not_block_a_write() {
    let mut store = taken_over();
    let request = commit_of([fence("job", 2)], [], [write("job", "2")]);
    store.commit_at(&request, 9000).unwrap();
    assert!(store.release(&lease("job", "b", 2), 1150));
    store.commit_at(&request, 1150).unwrap();
}

#[test]
fn r15_a_token_above_the_mark_becomes_the_mark_with_the_write() {
    let mut store = taken_over();
    let op = Op::Commit(commit_of([fence("job", 9)], [], [write("job", "2")]));
    let (_, effects) = store.decide(&op, 1150).unwrap();
    assert_eq!(effects.marks, [(res("job"), token(9))]);
    assert_eq!(effects.resources.len(), 1, "one step");
    store.apply(effects);
    let stale = store.commit([fence("job", 8)], [], [write("job", "3")]);
    assert_refused(stale, &superseded("job", 8, 9));
    assert_eq!(store.acquire("job", "c", 1150).token.get(), 10);
}

#[test]
fn r15_a_lease_below_an_observed_token_is_lost() {
    let mut store = taken_over();
    store.commit([fence("job", 3)], [], []).unwrap();
    let held = lease("job", "b", 2);
    assert_eq!(store.lease_state("job", 1150), Some(LeaseState::Superseded));
    assert_refused(store.renew(&held, 100, 1150), &superseded("job", 2, 3));
    assert!(!store.release(&held, 1150));
    let again = store.acquire("job", "b", 1150);
    assert_eq!(again.token.get(), 4, "R3 does not hold: it is not live");
}

#[test]
fn r15_a_token_is_observed_by_a_commit_that_writes_nothing() {
    let mut store = Store::default();
    let receipt = store.commit([fence("unknown", 5)], [], []).unwrap();
    assert_eq!((receipt.sequence, receipt.versions), (1, vec![]));
    assert_eq!(store.mark("unknown"), Some(5));
    assert_eq!(store.state("unknown"), None, "it is not created");
    let nothing = store.commit([fence("unknown", 5)], [], []).unwrap();
    assert_eq!(nothing.sequence, 1, "known already: not an event");
    assert_eq!(store.events.len(), 1);
}

#[test]
fn r15_a_refused_commit_observes_no_token() {
    let mut store = taken_over();
    let before = store.clone();
    let answers = [
        store.commit([fence("orders", 9)], [check("orders", "x", None)], []),
        store.commit([fence("orders", 9), fence("job", 1)], [], []),
        store.commit([fence("orders", 9), live_fence("job", 1)], [], []),
    ];
    for answer in answers {
        answer.unwrap_err();
    }
    assert_eq!(store, before);
}

#[test]
fn r16_a_live_fence_needs_a_live_lease() {
    let mut store = taken_over();
    let request = commit_of([live_fence("job", 2)], [], [write("job", "2")]);
    store.commit_at(&request, 1199).unwrap();
    let before = store.clone();
    let expired = lost_lease("job", 2, LossReason::Expired);
    assert_refused(store.commit_at(&request, 1200), &expired);
    assert_eq!(store, before);
    assert!(store.release(&lease("job", "b", 2), 1150));
    assert_refused(store.commit_at(&request, 1150), &expired);
}

#[test]
fn r16_a_live_fence_is_held_to_the_mark_first() {
    let mut store = taken_over();
    let mut commit = |number| {
        let request = commit_of([live_fence("job", number)], [], [write("job", "2")]);
        store.commit_at(&request, 1150)
    };
    assert_refused(commit(1), &superseded("job", 1, 2));
    let unknown = lost_lease("job", 3, LossReason::Expired);
    assert_refused(commit(3), &unknown);
    commit(2).unwrap();
    let never = Store::default().commit([live_fence("job", 1)], [], []);
    assert_refused(never, &lost_lease("job", 1, LossReason::Expired));
}

#[test]
fn r17_off_by_default() {
    let mut store = taken_over();
    assert!(!store.state("orders").unwrap().fenced);
    store.put([write("orders", "2"), write("job", "2")]);
}

#[test]
fn r17_an_unfenced_write_to_a_fenced_resource_is_refused() {
    let mut store = taken_over();
    store.put([set_fenced("orders", true)]);
    let before = store.clone();
    let expected = Error::FenceRequired {
        resource: res("orders"),
    };
    for refused in [
        write("orders", "2"),
        fields("orders", &[("absent", None)]),
        replace("orders", &[]),
        delete("orders"),
        set_fenced("orders", false),
    ] {
        let answer = store.commit([], [], [write("job", "2"), refused]);
        assert_refused(answer, &expected);
        assert_eq!(store, before, "nor is the other resource written");
    }
    store.put([write("job", "2")]);
}

#[test]
fn r17_any_fence_will_do_and_unfences() {
    let mut store = taken_over();
    store.put([set_fenced("orders", true)]);
    store
        .commit([fence("job", 2)], [], [write("orders", "2")])
        .unwrap();
    assert!(store.state("orders").unwrap().fenced, "it stays fenced");
    let unfence = [set_fenced("orders", false)];
    store.commit([fence("job", 2)], [], unfence).unwrap();
    store.put([write("orders", "3")]);
}

#[test]
fn r17_reading_needs_no_fence() {
    let mut store = taken_over();
    store.put([set_fenced("orders", true)]);
    let check = check("orders", "x", Some(1));
    store.commit([], [check], [write("job", "2")]).unwrap();
}

#[test]
fn r17_being_fenced_outlives_deletion_and_creation_by_a_lease() {
    let mut store = taken_over();
    store.put([set_fenced("orders", true)]);
    store
        .commit([fence("job", 2)], [], [delete("orders")])
        .unwrap();
    let expected = Error::FenceRequired {
        resource: res("orders"),
    };
    assert_refused(store.commit([], [], [write("orders", "1")]), &expected);
    store.acquire("orders", "a", 0);
    assert!(store.state("orders").unwrap().fenced);
    assert_refused(store.commit([], [], [write("orders", "1")]), &expected);
}

#[test]
fn r18_a_stale_owner_hears_lease_lost_and_not_conflict() {
    let mut store = taken_over();
    let wrong = [check("orders", "x", None)];
    let stale = store.commit([fence("job", 1)], wrong.clone(), [write("orders", "2")]);
    assert_refused(stale, &superseded("job", 1, 2));
    let request = commit_of([live_fence("job", 2)], wrong, [write("orders", "2")]);
    let expired = lost_lease("job", 2, LossReason::Expired);
    assert_refused(store.commit_at(&request, 1200), &expired);
}

#[test]
fn r18_a_missing_fence_is_told_before_a_conflict() {
    let mut store = taken_over();
    store.put([set_fenced("orders", true)]);
    let wrong = [check("orders", "x", None)];
    let answer = store.commit([], wrong, [write("orders", "2")]);
    assert!(matches!(answer, Err(Error::FenceRequired { .. })));
}

#[test]
fn r18_a_malformed_request_is_told_before_a_stale_fence() {
    let mut store = taken_over();
    let twice = [write("orders", "2"), write("orders", "3")];
    let answer = store.commit([fence("job", 1)], [], twice);
    assert_invalid(answer, "writes", "`orders` is named twice");
    let twice = [fence("job", 1), fence("job", 2)];
    assert_invalid(
        store.commit(twice, [], []),
        "fences",
        "`job` is named twice",
    );
}
