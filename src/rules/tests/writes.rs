//! What each kind of write makes of a resource, and what the history says of
//! it.

use super::*;

fn last_changes(store: &Store) -> &[ResourceChange] {
    match store.events.last() {
        Some(EventKind::Committed { changes, .. }) => changes,
        other => panic!("{other:?}"),
    }
}

/// `a` holds `x` and `y`, both written at version 1.
fn holding() -> Store {
    let mut store = Store::default();
    store.put([fields("a", &[("x", Some("1")), ("y", Some("2"))])]);
    store
}

fn versions(store: &Store) -> Vec<(&str, u64)> {
    let state = store.state("a").unwrap();
    let version = |(name, field)| (FieldName::as_str(name), FieldState::clone(field).version);
    state.fields.iter().map(version).collect()
}

#[test]
fn fields_that_are_not_named_keep_their_value_and_version() {
    let mut store = holding();
    store.put([fields("a", &[("x", Some("3")), ("z", Some("4"))])]);
    assert_eq!(store.state("a").unwrap().version, 2);
    assert_eq!(versions(&store), [("x", 2), ("y", 1), ("z", 2)]);
    assert_eq!(store.value("a", "x"), Some("3"));
    assert_eq!(store.value("a", "y"), Some("2"));
    let changed = [(field("x"), Some(json("3"))), (field("z"), Some(json("4")))];
    assert_eq!(last_changes(&store)[0].fields, changed);
}

#[test]
fn a_deleted_field_is_gone_and_in_the_history() {
    let mut store = holding();
    store.put([fields("a", &[("x", None), ("absent", None)])]);
    assert_eq!(versions(&store), [("y", 1)]);
    assert_eq!(last_changes(&store)[0].fields, [(field("x"), None)]);
}

#[test]
fn replace_deletes_what_is_not_named_and_writes_all_that_is() {
    let mut store = holding();
    store.put([replace("a", &[("y", "2"), ("z", "3")])]);
    assert_eq!(versions(&store), [("y", 2), ("z", 2)]);
    let changed = [
        (field("x"), None),
        (field("y"), Some(json("2"))),
        (field("z"), Some(json("3"))),
    ];
    assert_eq!(last_changes(&store)[0].fields, changed);
}

#[test]
fn replace_by_nothing_empties_or_creates() {
    let mut store = holding();
    store.put([replace("a", &[]), replace("b", &[])]);
    assert!(store.state("a").unwrap().fields.is_empty());
    assert_eq!(store.state("b").unwrap().version, 1);
}

#[test]
fn r1_deletion_keeps_the_count_of_versions() {
    let mut store = holding();
    let receipt = store.put([delete("a")]);
    assert_eq!(receipt.versions, [(res("a"), 2)]);
    assert_eq!(store.state("a"), None);
    assert!(last_changes(&store)[0].deleted);
    store.put([write("a", "5")]);
    assert_eq!(versions(&store), [("x", 3)], "the old fields do not return");
    assert!(!last_changes(&store)[0].deleted);
}

#[test]
fn a_commit_that_changes_nothing_leaves_no_trace() {
    let mut store = holding();
    store.put([replace("empty", &[])]);
    store.acquire("leased", "me", 1000);
    let unchanged_fence = ResourceWrite {
        fenced: Some(false),
        ..replace("empty", &[])
    };
    for write in [
        fields("a", &[]),
        fields("a", &[("absent", None)]),
        fields("unknown", &[]),
        fields("unknown", &[("x", None)]),
        replace("empty", &[]),
        unchanged_fence,
        delete("unknown"),
        set_fenced("a", false),
    ] {
        let op = Op::Commit(commit_of([fence("leased", 1)], [], [write]));
        let (outcome, effects) = store.decide(&op, 1050).unwrap();
        assert!(effects.is_empty(), "{op:?}: {effects:?}");
        let receipt = CommitReceipt {
            sequence: 3,
            versions: Vec::new(),
        };
        assert_eq!(outcome, Outcome::Committed(receipt));
    }
}

#[test]
fn r17_setting_fenced_is_a_change_and_creates() {
    let mut store = holding();
    store.put([set_fenced("a", true), set_fenced("b", false)]);
    assert_eq!(store.state("a").unwrap().version, 2);
    assert_eq!(versions(&store), [("x", 1), ("y", 1)]);
    assert!(last_changes(&store)[0].fenced);
    assert!(!store.state("b").unwrap().fenced);
}

#[test]
fn r17_a_deletion_may_set_fenced() {
    let mut store = holding();
    let fence_it = ResourceWrite {
        fenced: Some(true),
        ..delete("a")
    };
    store.put([fence_it]);
    let answer = store.commit([], [], [write("a", "1")]);
    assert!(matches!(answer, Err(Error::FenceRequired { .. })));
}

#[test]
fn the_history_says_who_wrote_under_which_fences() {
    let mut store = holding();
    let request = CommitRequest {
        id: Some(CommitId::from_bits(9)),
        ..commit_of([fence("job", 4), fence("b", 1)], [], [write("a", "5")])
    };
    store.commit_at(&request, 0).unwrap();
    let Some(EventKind::Committed {
        agent, id, fences, ..
    }) = store.events.last()
    else {
        panic!()
    };
    assert_eq!((agent.as_str(), *id), ("agent", request.id));
    assert_eq!(*fences, [(res("job"), token(4)), (res("b"), token(1))]);
}

#[test]
fn versions_grow_by_one_with_each_commit_to_the_resource() {
    let mut store = holding();
    for version in 2..10 {
        let receipt = store.put([write("a", "1"), write("b", "1")]);
        assert_eq!(receipt.versions[0], (res("a"), version));
        assert_eq!(receipt.versions[1], (res("b"), version - 1));
        assert_eq!(receipt.sequence, version);
    }
}
