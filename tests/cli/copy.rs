//! `copy`.

use rustix::process::Signal;

use super::support::{World, wait_until};

fn filled() -> World {
    let world = World::new();
    for number in 0..30 {
        let set = format!("set r/{number} x={number}");
        world.words(&set).expect(0);
    }
    world
        .words("lease acquire r/1 --owner a --ttl 1h")
        .expect(0);
    world.words("lease revoke r/2").expect(0);
    world
}

#[test]
fn a_copy_holds_everything_and_tokens_go_on() {
    let world = filled();
    let done = world
        .words("--json copy state.redb new.redb")
        .expect(0)
        .json();
    assert_eq!(done["changed"], 30);
    assert_eq!(done["events"], 32);
    for line in ["--json ls r/", "--json log", "get r/7"] {
        let before = world.words(line).expect(0).out;
        let after = world.words(&format!("--store new.redb {line}")).expect(0);
        let strip = |out: &str| {
            // What is left of a lease shrinks while we look.
            out.lines()
                .map(|line| line.split("\"expires_at\"").next().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(strip(&before), strip(&after.out), "{line}");
    }
    world
        .words("--store new.redb lease renew r/1 --owner a --token 1")
        .expect(0);
    let next = world
        .words("--store new.redb --json lease acquire r/2")
        .expect(0);
    assert_eq!(next.json()["token"], 2);
    world.words("--store new.redb check").expect(0);
}

#[test]
fn a_store_that_holds_something_else_is_left_alone() {
    let world = filled();
    world.words("--store new.redb set r/3 mine=1").expect(0);
    let error = world
        .words("--json copy state.redb new.redb")
        .expect(1)
        .error();
    assert_eq!(error["kind"], "resource_exists");
    assert_eq!(error["resource"], "r/3");
    let refused = world.words("copy state.redb new.redb").expect(1);
    assert!(refused.error_line().contains("--merge"), "{refused:?}");
    assert_eq!(
        world.words("--store new.redb get r/3").out,
        "{\"mine\":1}\n"
    );
    world
        .words("copy state.redb new.redb --merge newer")
        .expect(0);
    assert_eq!(world.words("--store new.redb get r/4").out, "{\"x\":4}\n");
}

#[test]
fn a_copy_is_run_again_and_changes_only_what_is_new() {
    let world = filled();
    world.words("copy state.redb new.redb").expect(0);
    world.words("set r/5 x=500").expect(0);
    let again = world
        .words("--json copy state.redb new.redb")
        .expect(0)
        .json();
    assert_eq!(again["events"], 1);
    assert_eq!(world.words("--store new.redb get r/5").out, "{\"x\":500}\n");
}

#[test]
fn an_expired_lease_is_copied_once() {
    let world = World::new();
    world
        .words("lease acquire job --owner a --ttl 1ms")
        .expect(0);
    super::support::pause(5);
    world.words("copy state.redb new.redb").expect(0);
    let again = world
        .words("--json copy state.redb new.redb")
        .expect(0)
        .json();
    assert_eq!(again["changed"], 0);
    // A store with a history of its own hears of it once as well.
    world.words("--store other.redb set mine x=1").expect(0);
    for _ in 0..2 {
        world.words("copy state.redb other.redb").expect(0);
    }
    let log = world.words("--store other.redb --json log").expect(0);
    assert_eq!(log.json_lines().len(), 2);
}

#[test]
fn a_copy_that_follows_holds_what_was_written_until_it_was_stopped() {
    let world = filled();
    let following = world.start(["--json", "copy", "state.redb", "new.redb", "--follow"]);
    wait_until("the copy to be there", || {
        world.path("new.redb").exists()
            && world.words("--store new.redb get r/29").status == Some(0)
    });
    world.words("set later x=1").expect(0);
    wait_until("the copy to catch up", || {
        world.words("--store new.redb get later").status == Some(0)
    });
    world.words("set last x=2").expect(0);
    following.signal(Signal::INT);
    following.end().expect(0);
    assert_eq!(world.words("--store new.redb get last x").out, "2\n");
}

#[test]
fn stores_that_cannot_be_copied() {
    let world = filled();
    let refused = world.words("copy state.redb ./state.redb").expect(2);
    assert!(refused.error_line().contains("same store"), "{refused:?}");
    std::os::unix::fs::symlink(world.store(), world.path("symbolic")).unwrap();
    std::fs::hard_link(world.store(), world.path("hard")).unwrap();
    for other in ["symbolic", "hard"] {
        world.words(&format!("copy state.redb {other}")).expect(2);
    }
    world.words("copy missing.redb new.redb").expect(1);
    assert!(!world.path("new.redb").exists());
    world.words("copy state.redb").expect(2);
    std::fs::write(world.path("text"), "Dear diary").unwrap();
    world.words("copy state.redb text").expect(7);
    world.words("copy text new.redb").expect(7);
}

#[test]
fn half_a_copy_is_no_store_and_is_gone_on_with() {
    let world = filled();
    let draft = world.path(".new.redb.copying");
    let mut cut_off = 0;
    for delay in 0..20 {
        let copying = world.start(["copy", "state.redb", "new.redb"]);
        super::support::pause(delay * 3);
        copying.signal(Signal::KILL);
        copying.end();
        if world.path("new.redb").exists() {
            break;
        }
        cut_off += i32::from(draft.exists());
    }
    assert!(cut_off > 0, "no copy was cut off");
    let _ = std::fs::remove_file(world.path("new.redb"));
    world.words("copy state.redb new.redb").expect(0);
    assert!(!draft.exists());
    let next = world
        .words("--store new.redb --json lease acquire r/2")
        .expect(0);
    assert_eq!(next.json()["token"], 2);
    world
        .words("--store new.redb lease acquire r/1 --owner thief")
        .expect(3);
}
