//! R1 to R9, R24 and R28.

use super::*;

/// What it is, how it is done, when the lease has ended, and the next token.
type Ending = (&'static str, fn(&mut Store), i64, u64);

/// The ways in which a lease ends, done to a store whose `job` is leased to
/// `a` with token 1 until 1100.
const ENDINGS: [Ending; 5] = [
    ("expiry", |_| {}, 1100, 2),
    (
        "release",
        |store| assert!(store.release(&lease("job", "a", 1), 1000)),
        1000,
        2,
    ),
    (
        "revocation",
        |store| assert_eq!(store.revoke("job").unwrap(), 2),
        1000,
        3,
    ),
    (
        "an observed token",
        |store| {
            store.commit([fence("job", 9)], [], []).unwrap();
        },
        1000,
        10,
    ),
    (
        "deletion and expiry",
        |store| {
            store.put([delete("job")]);
        },
        1100,
        2,
    ),
];

fn leased() -> Store {
    let mut store = Store::default();
    store.acquire("job", "a", 1000);
    store
}

#[test]
fn r1_tokens_grow_over_every_way_a_lease_ends() {
    for (ending, end, now, next) in ENDINGS {
        for by in ["a", "b"] {
            let mut store = leased();
            end(&mut store);
            assert_eq!(store.acquire("job", by, now).token.get(), next, "{ending}");
        }
    }
}

#[test]
fn r2_acquire_without_a_live_lease_issues_the_next_token() {
    let mut store = Store::default();
    let first = store.acquire("job", "a", 1000);
    assert_eq!(
        (first.token.get(), first.expires_at, first.ttl),
        (1, at(1100), ttl(100))
    );
    assert_eq!((first.resource, first.owner), (res("job"), owner("a")));
    assert_eq!(store.mark("job"), Some(1));
    assert_eq!(store.lease_state("job", 1000), Some(LeaseState::Live));
}

#[test]
fn r2_mark_and_lease_are_stored_in_one_step() {
    let op = acquire_of(&["job"], "a", 100, true);
    let (_, effects) = Store::default().decide(&op, 1000).unwrap();
    assert_eq!(effects.marks, [(res("job"), token(1))]);
    assert_eq!(effects.leases.len(), 1);
    assert_eq!(effects.leases[0].1.token, token(1));
}

#[test]
fn r2_an_acquisition_is_an_event() {
    let store = leased();
    let expected = EventKind::Acquired {
        resource: res("job"),
        owner: owner("a"),
        token: token(1),
        expires_at: at(1100),
        ttl: ttl(100),
        created: Some(1),
    };
    assert_eq!(store.events, [expected]);
}

#[test]
fn r2_several_leases_are_granted_in_the_order_of_the_request() {
    let mut store = Store::default();
    store.acquire("b", "earlier", 0);
    let op = acquire_of(&["c", "a", "b"], "me", 100, true);
    let Outcome::Acquired(leases) = store.run(&op, 1000).unwrap() else {
        panic!()
    };
    let granted: Vec<_> = leases
        .iter()
        .map(|lease| (lease.resource.as_str(), lease.token.get()))
        .collect();
    assert_eq!(granted, [("c", 1), ("a", 1), ("b", 2)]);
}

#[test]
fn r3_the_owner_extends_a_live_lease_and_keeps_the_token() {
    let mut store = leased();
    let extended = store.acquire("job", "a", 1050);
    assert_eq!(
        (extended.token.get(), extended.expires_at),
        (1, at(1150)),
        "from now on, not from the old end"
    );
    assert_eq!(store.mark("job"), Some(1));
    assert_eq!(store.events.len(), 1, "an extension is not an event");
}

#[test]
fn r3_acquire_by_the_owner_never_shortens() {
    let mut store = leased();
    let again = store.try_acquire("job", "a", 10, 1050).unwrap();
    assert_eq!((again.expires_at, again.ttl), (at(1100), ttl(10)));
}

#[test]
fn r4_another_owners_live_lease_is_not_available() {
    let mut store = leased();
    let before = store.clone();
    let expected = Error::LeaseNotAvailable {
        resource: res("job"),
        owner: owner("a"),
        expires_at: at(1100),
    };
    assert_refused(store.try_acquire("job", "b", 100, 1099), &expected);
    assert_eq!(store, before);
    assert_eq!(store.acquire("job", "b", 1100).token.get(), 2, "at its end");
}

#[test]
fn r4_several_leases_are_granted_all_or_none() {
    let mut store = leased();
    store.acquire("other", "b", 1000);
    let before = store.clone();
    for (order, refused, by) in [
        (["free", "job", "other"], "job", "a"),
        (["other", "job", "free"], "other", "b"),
    ] {
        let answer = store.run(&acquire_of(&order, "c", 100, true), 1000);
        let expected = Error::LeaseNotAvailable {
            resource: res(refused),
            owner: owner(by),
            expires_at: at(1100),
        };
        assert_refused(answer, &expected);
        assert_eq!(store, before, "the first refused names the error");
    }
}

#[test]
fn r5_a_live_lease_is_renewed_from_now() {
    for (millis, end) in [(500, 1550), (10, 1060)] {
        let mut store = leased();
        let renewed = store.renew(&lease("job", "a", 1), millis, 1050).unwrap();
        assert_eq!(
            (renewed.token.get(), renewed.expires_at, renewed.ttl),
            (1, at(end), ttl(millis)),
            "a renewal may shorten"
        );
        assert_eq!(store.events.len(), 1, "a renewal is not an event");
        assert_eq!(store.lease_state("job", end - 1), Some(LeaseState::Live));
        assert_eq!(store.lease_state("job", end), Some(LeaseState::Expired));
    }
}

#[test]
fn r5_a_late_renewal_is_expired_even_when_nobody_took_over() {
    let mut store = leased();
    let before = store.clone();
    let expected = lost_lease("job", 1, LossReason::Expired);
    assert_refused(store.renew(&lease("job", "a", 1), 100, 1100), &expected);
    assert_eq!(store, before);
}

#[test]
fn r5_a_released_lease_is_not_renewed() {
    let mut store = leased();
    assert!(store.release(&lease("job", "a", 1), 1000));
    for now in [1000, 2000] {
        let expected = lost_lease("job", 1, LossReason::Released);
        assert_refused(store.renew(&lease("job", "a", 1), 100, now), &expected);
    }
}

#[test]
fn r5_a_superseded_lease_is_not_renewed() {
    for (end, mark) in [
        (
            Box::new(|store: &mut Store| {
                store.acquire("job", "b", 1100);
            }) as Box<dyn Fn(&mut Store)>,
            2,
        ),
        (
            Box::new(|store: &mut Store| {
                store.revoke("job").unwrap();
            }),
            2,
        ),
        (
            Box::new(|store: &mut Store| {
                store.commit([fence("job", 7)], [], []).unwrap();
            }),
            7,
        ),
    ] {
        let mut store = leased();
        end(&mut store);
        let before = store.clone();
        let answer = store.renew(&lease("job", "a", 1), 100, 1050);
        assert_refused(answer, &superseded("job", 1, mark));
        assert_eq!(store, before, "the successor's expiry is untouched");
    }
}

#[test]
fn r5_the_same_token_in_other_hands_is_superseded() {
    let mut store = leased();
    let answer = store.renew(&lease("job", "b", 1), 100, 1050);
    assert_refused(answer, &superseded("job", 1, 1));
}

#[test]
fn r5_a_lease_that_the_store_never_saw_is_expired() {
    let expected = lost_lease("job", 5, LossReason::Expired);
    let foreign = lease("job", "a", 5);
    assert_refused(Store::default().renew(&foreign, 100, 0), &expected);
    assert_refused(leased().renew(&foreign, 100, 1050), &expected);
}

#[test]
fn r6_release_is_true_once() {
    let mut store = leased();
    let held = lease("job", "a", 1);
    assert!(store.release(&held, 1050));
    assert_eq!(store.lease_state("job", 1050), Some(LeaseState::Released));
    let before = store.clone();
    assert!(!store.release(&held, 1050));
    assert_eq!(store, before);
    let expected = EventKind::Released {
        resource: res("job"),
        owner: owner("a"),
        token: token(1),
    };
    assert_eq!(store.events[1..], [expected]);
}

#[test]
fn r6_release_of_what_is_not_live_is_false_and_changes_nothing() {
    let mut taken_over = leased();
    taken_over.acquire("job", "b", 1100);
    let mut revoked = leased();
    revoked.revoke("job").unwrap();
    let mut observed = leased();
    observed.commit([fence("job", 2)], [], []).unwrap();
    for (case, mut store, lease, now) in [
        ("expired", leased(), lease("job", "a", 1), 1100),
        ("successor's", taken_over, lease("job", "a", 1), 1150),
        ("revoked", revoked, lease("job", "a", 1), 1050),
        ("a newer token seen", observed, lease("job", "a", 1), 1050),
        ("another owner's", leased(), lease("job", "b", 1), 1050),
        ("another token's", leased(), lease("job", "a", 2), 1050),
        ("unknown", Store::default(), lease("job", "a", 1), 1050),
    ] {
        let before = store.clone();
        assert!(!store.release(&lease, now), "{case}");
        assert_eq!(store, before, "{case}");
    }
}

#[test]
fn r7_the_mark_is_the_highest_token_issued_or_observed() {
    let mut store = Store::default();
    let mark = |store: &Store| {
        let entry = store.entries.get("job").cloned().unwrap_or_default();
        status(&res("job"), &entry, at(0)).mark.map(Token::get)
    };
    store.put([write("job", "1")]);
    assert_eq!(mark(&store), None, "no token was issued or observed");
    store.acquire("job", "a", 1000);
    assert_eq!(mark(&store), Some(1));
    store.commit([fence("job", 7)], [], []).unwrap();
    assert_eq!(mark(&store), Some(7));
    store.put([delete("job")]);
    assert_eq!(mark(&store), Some(7), "it outlives the resource");
}

#[test]
fn r7_the_status_tells_what_became_of_the_last_lease() {
    for (ending, end, now, _) in ENDINGS {
        let expected = match ending {
            "release" => LeaseState::Released,
            "expiry" | "deletion and expiry" => LeaseState::Expired,
            _ => LeaseState::Superseded,
        };
        let mut store = leased();
        assert_eq!(store.lease_state("job", now - 1), Some(LeaseState::Live));
        end(&mut store);
        assert_eq!(store.lease_state("job", now), Some(expected), "{ending}");
    }
    let never = status(&res("job"), &Entry::default(), at(5));
    assert_eq!((never.mark, never.lease, never.now), (None, None, at(5)));
}

#[test]
fn r8_guard_fails_when_the_mark_is_above_the_token_and_only_then() {
    for (mark, number, passes) in [
        (None, 1, true),
        (Some(1), 1, true),
        (Some(1), 2, true),
        (Some(2), 1, false),
        (Some(9_007_199_254_740_993), 9_007_199_254_740_992, false),
        (Some(Token::MAX.get()), Token::MAX.get() - 1, false),
    ] {
        let answer = guard(mark.map(token), &res("job"), token(number));
        match mark {
            Some(mark) if !passes => assert_refused(answer, &superseded("job", number, mark)),
            _ => answer.unwrap(),
        }
    }
}

#[test]
fn r9_revoke_ends_the_lease_and_fences_the_old_owner() {
    let mut store = leased();
    assert_eq!(store.revoke("job").unwrap(), 2);
    assert_eq!(store.mark("job"), Some(2));
    let stale = store.commit([fence("job", 1)], [], [write("job", "1")]);
    assert_refused(stale, &superseded("job", 1, 2));
    assert_eq!(store.acquire("job", "b", 1001).token.get(), 3, "at once");
    let expected = EventKind::Revoked {
        resource: res("job"),
        mark: token(2),
    };
    assert_eq!(store.events[1], expected);
}

#[test]
fn r9_revoke_needs_a_resource_or_a_mark() {
    let mut store = Store::default();
    let expected = Error::ResourceNotFound {
        resource: res("job"),
    };
    assert_refused(store.revoke("job"), &expected);
    store.put([write("job", "1")]);
    store.put([delete("job")]);
    assert_refused(store.revoke("job"), &expected);
    store.put([write("job", "1")]);
    assert_eq!(store.revoke("job").unwrap(), 1, "it never had a token");
    store.put([delete("job")]);
    assert_eq!(store.revoke("job").unwrap(), 2, "its mark outlives it");
}

#[test]
fn r24_the_acquisition_creates_the_resource_with_empty_state() {
    let store = leased();
    let state = store.state("job").unwrap();
    assert_eq!((state.version, state.fenced), (1, false));
    assert!(state.fields.is_empty());
}

#[test]
fn r24_an_acquisition_leaves_existing_state_alone() {
    let mut store = Store::default();
    store.put([write("job", "1")]);
    store.acquire("job", "a", 0);
    assert_eq!(store.value("job", "x"), Some("1"));
    assert_eq!(store.state("job").unwrap().version, 1);
    assert!(matches!(
        store.events.last(),
        Some(EventKind::Acquired { created: None, .. })
    ));
}

#[test]
fn r24_unknown_or_deleted_is_not_found_unless_the_request_creates() {
    let mut store = leased();
    store.put([delete("job")]);
    let before = store.clone();
    for (name, by) in [("unknown", "a"), ("job", "a"), ("job", "b")] {
        let answer = store.run(&acquire_of(&[name], by, 100, false), 1050);
        let expected = Error::ResourceNotFound {
            resource: res(name),
        };
        assert_refused(answer, &expected);
    }
    assert_eq!(store, before);
}

#[test]
fn r24_creation_again_goes_on_counting_versions() {
    let mut store = leased();
    store.put([delete("job")]);
    let again = store.acquire("job", "a", 1050);
    assert_eq!(again.token.get(), 1, "R3: the lease was live all along");
    assert_eq!(store.state("job").unwrap().version, 3);
    assert!(matches!(
        store.events.last(),
        Some(EventKind::Acquired {
            created: Some(3),
            ..
        })
    ));
}

#[test]
fn r27_an_acquisition_names_each_resource_once_and_at_least_one() {
    let mut store = Store::default();
    for (names, says) in [(&[][..], "none"), (&["a", "b", "a"], "`a` is named twice")] {
        let answer = store.run(&acquire_of(names, "me", 100, true), 0);
        assert_invalid(answer, "resources", says);
    }
    assert_eq!(store, Store::default());
}

#[test]
fn r28_the_last_token_is_issued_and_none_after_it() {
    let last = Token::MAX.get();
    let mut store = Store::default();
    store.commit([fence("job", last - 1)], [], []).unwrap();
    let held = store.acquire("job", "a", 1000);
    assert_eq!(held.token, Token::MAX);
    assert_eq!(store.acquire("job", "a", 1050).token, Token::MAX, "R3");
    let before = store.clone();
    let expected = Error::TokensExhausted {
        resource: res("job"),
    };
    assert_refused(store.try_acquire("job", "b", 100, 1150), &expected);
    assert_refused(store.try_acquire("job", "a", 100, 1150), &expected);
    assert_refused(store.revoke("job"), &expected);
    assert_eq!(store, before);
    store.commit([fence("job", last)], [], []).unwrap();
}

#[test]
fn r28_a_lease_held_by_another_is_not_available_rather_than_exhausted() {
    let mut store = Store::default();
    store
        .commit([fence("job", Token::MAX.get() - 1)], [], [])
        .unwrap();
    store.acquire("job", "a", 1000);
    let answer = store.try_acquire("job", "b", 100, 1050);
    assert!(matches!(answer, Err(Error::LeaseNotAvailable { .. })));
}

#[test]
fn r12_a_clock_at_the_end_of_its_line_wraps_nothing() {
    let mut store = Store::default();
    let held = store.acquire("job", "a", i64::MAX - 50);
    assert_eq!(held.expires_at, at(i64::MAX));
    assert_eq!(
        store.lease_state("job", i64::MAX - 1),
        Some(LeaseState::Live)
    );
}
