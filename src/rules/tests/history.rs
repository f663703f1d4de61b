//! The history that is kept, and what an operation asks to be loaded.

use super::*;

#[test]
fn history_is_there_from_the_oldest_event_kept() {
    for (after, oldest, there) in [
        (0, 1, true),
        (0, 2, false),
        (1, 2, true),
        (4, 6, false),
        (5, 6, true),
        (9, 6, true),
        (u64::MAX, 6, true),
    ] {
        let answer = check_history(after, oldest);
        if there {
            answer.unwrap();
        } else {
            assert_refused(answer, &Error::HistoryPruned { after, oldest });
        }
    }
}

#[test]
fn pruning_waits_for_a_tenth_more_than_the_history_and_leaves_the_newest() {
    for (oldest, newest, history, keep_from) in [
        (1, 0, 100, None),
        (1, 100, 100, None),
        (1, 110, 100, None),
        (1, 111, 100, Some(12)),
        (12, 121, 100, None),
        (12, 122, 100, Some(23)),
        (1, 2, 1, Some(2)),
        (1, 1, 0, Some(2)),
        (2, 1, 0, None),
        (1, 5, u64::MAX, None),
    ] {
        let answer = prune_before(oldest, newest, history);
        assert_eq!(answer, keep_from, "{oldest}..={newest}, {history}");
    }
}

#[test]
fn an_operation_needs_the_records_that_it_is_decided_on() {
    let needs = |lease, resource| Needs { lease, resource };
    let one = |name, needs| BTreeMap::from([(res(name), needs)]);
    let held = lease("a", "me", 1);
    for (op, expected) in [
        (
            acquire_of(&["a", "b"], "me", 1, false),
            BTreeMap::from([(res("a"), needs(true, true)), (res("b"), needs(true, true))]),
        ),
        (
            Op::Renew(held.clone(), ttl(1)),
            one("a", needs(true, false)),
        ),
        (Op::Release(held), one("a", needs(true, false))),
        (Op::Revoke(res("a")), one("a", needs(false, true))),
        (
            Op::Commit(commit_of(
                [fence("a", 1), live_fence("b", 1)],
                [check("c", "x", None)],
                [write("d", "1"), write("b", "1")],
            )),
            BTreeMap::from([
                (res("a"), needs(false, false)),
                (res("b"), needs(true, true)),
                (res("c"), needs(false, true)),
                (res("d"), needs(false, true)),
            ]),
        ),
    ] {
        assert_eq!(op.needs(), expected, "{op:?}");
    }
}

#[test]
fn only_a_commit_has_a_commit_id() {
    let id = Some(CommitId::from_bits(3));
    let request = CommitRequest {
        id,
        ..commit_of([], [], [])
    };
    assert_eq!(Op::Commit(request).commit_id(), id);
    assert_eq!(Op::Revoke(res("a")).commit_id(), None);
}
