//! The exit statuses, 0 to 7, and the errors that go with them.

use serde_json::json;
use statepact::backend::embedded::Embedded;

use super::support::World;

#[test]
fn status_0_and_json_when_it_is_done() {
    let world = World::new();
    let lease = world
        .words("--json lease acquire job --owner a --ttl 90s")
        .expect(0)
        .json();
    assert_eq!(lease["resource"], "job");
    assert_eq!(lease["owner"], "a");
    assert_eq!(lease["token"], 1);
    assert_eq!(lease["ttl_seconds"], 90);
    let expires_at = lease["expires_at"].as_str().unwrap();
    expires_at.parse::<jiff::Timestamp>().unwrap();

    let renewed = world.words("--json lease renew job --owner a --token 1 --ttl 2m");
    assert_eq!(renewed.expect(0).json()["ttl_seconds"], 120);
    // Without --ttl, by the time to live that it has.
    let renewed = world.words("--json lease renew job --owner a --token 1");
    assert_eq!(renewed.expect(0).json()["ttl_seconds"], 120);
    let released = world.words("--json lease release job --owner a --token 1");
    assert_eq!(released.expect(0).json()["released"], true);
}

#[test]
fn status_1_for_what_has_no_status_of_its_own() {
    let world = World::new();
    world.words("set job a=1").expect(0);
    let error = world.words("--json get nothing").expect(1).error();
    assert_eq!(error["kind"], "resource_not_found");
    assert_eq!(error["resource"], "nothing");
    let error = world.words("--json get job b").expect(1).error();
    assert_eq!(error["kind"], "field_not_found");
    assert_eq!(error["field"], "b");
    let error = world.words("--json lease revoke nothing").expect(1).error();
    assert_eq!(error["kind"], "resource_not_found");
    let error = world
        .words("--json --store other.redb ls")
        .expect(1)
        .error();
    assert_eq!(error["kind"], "storage");
    assert!(!world.path("other.redb").exists());

    world.words("set job --require-fence true").expect(0);
    let error = world.words("--json set job a=2").expect(1).error();
    assert_eq!(error["kind"], "fence_required");
    assert_eq!(world.words("get job a").out, "1\n");
}

#[test]
fn status_3_when_another_owner_holds_the_lease() {
    let world = World::new();
    let held = world
        .words("--json lease acquire job --owner a")
        .expect(0)
        .json();
    let refused = world.words("--json lease acquire job --owner b").expect(3);
    let error = refused.error();
    assert_eq!(error["kind"], "lease_not_available");
    assert_eq!(error["resource"], "job");
    assert_eq!(error["owner"], "a");
    assert_eq!(error["expires_at"], held["expires_at"]);
    assert_eq!(refused.out, "");

    let refused = world.words("lease acquire job --owner b").expect(3);
    assert!(refused.error_line().contains("--wait"), "{refused:?}");
    // R3: the owner itself keeps its token.
    let again = world.words("--json lease acquire job --owner a").expect(0);
    assert_eq!(again.json()["token"], 1);
}

#[test]
fn status_4_for_a_stale_fence_and_a_lost_lease() {
    let world = World::new();
    world.words("lease acquire job --owner a").expect(0);
    world.words("set job step=1 --fence 1").expect(0);
    world.words("guard job --token 1").expect(0);
    let revoked = world.words("--json lease revoke job").expect(0);
    assert_eq!(revoked.json(), json!({ "resource": "job", "mark": 2 }));

    for stale in [
        "--json set job step=2 --fence 1",
        "--json rm job --fence 1",
        "--json set other step=2 --fence 1 --fence-resource job",
        "--json guard job --token 1",
        "--json lease renew job --owner a --token 1",
    ] {
        let error = world.words(stale).expect(4).error();
        assert_eq!(error["kind"], "lease_lost", "{stale}");
        assert_eq!(error["resource"], "job", "{stale}");
        assert_eq!(error["token"], 1, "{stale}");
        assert_eq!(error["reason"], "superseded", "{stale}");
        assert_eq!(error["superseded_by"], 2, "{stale}");
    }
    // R13: nothing has changed.
    assert_eq!(world.words("get job step").out, "1\n");
    world.words("get other").expect(1);
    // R29: a token comes from a store, and none is made for it.
    world
        .words("--store missing.redb set job step=2 --fence 1")
        .expect(1);
    assert!(!world.path("missing.redb").exists());

    let released = world
        .words("--json lease release job --owner a --token 1")
        .expect(4);
    assert_eq!(released.json()["released"], false);
    assert_eq!(released.err, "");
}

#[test]
fn status_4_for_a_lease_that_expired_though_nobody_took_over() {
    let world = World::new();
    world
        .words("lease acquire job --owner a --ttl 1ms")
        .expect(0);
    super::support::pause(5);
    let error = world
        .words("--json lease renew job --owner a --token 1")
        .expect(4)
        .error();
    assert_eq!(error["reason"], "expired");
    // R14 lets the token commit, R16 does not.
    world.words("set job a=1 --fence 1").expect(0);
    let error = world
        .words("--json set job a=2 --fence 1 --fence-live")
        .expect(4)
        .error();
    assert_eq!(error["reason"], "expired");
    assert_eq!(world.words("get job a").out, "1\n");
}

#[test]
fn a_lease_of_another_owner_is_not_renewed_by_its_token() {
    let world = World::new();
    world.words("lease acquire job --owner a").expect(0);
    let refused = world.words("lease renew job --owner b --token 1").expect(4);
    let line = refused.error_line();
    assert!(line.contains("another owner has this token"), "{line}");
}

#[test]
fn a_lease_that_is_extended_shows_the_time_that_it_has_left() {
    let world = World::new();
    world
        .words("lease acquire job --owner a --ttl 1h")
        .expect(0);
    // R3: never shortened.
    let again = world
        .words("lease acquire job --owner a --ttl 1s")
        .expect(0);
    assert!(
        again.out.contains("(in 59m 59s)") || again.out.contains("(in 1h)"),
        "{again:?}"
    );
}

#[test]
fn status_5_for_a_conflict() {
    let world = World::new();
    world.words("set job a=1 --if-version 0").expect(0);
    let error = world
        .words("--json set job a=2 --if-version 0")
        .expect(5)
        .error();
    assert_eq!(error["kind"], "conflict");
    assert_eq!(error["resource"], "job");
    assert_eq!(error["version"], 1);
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("--if-version") && message.contains("version 1"),
        "{message}"
    );
    let version = world.words("--json get job").json()["version"].clone();
    let stale = format!("rm job --if-version {}", version.as_u64().unwrap() + 1);
    world.words(&stale).expect(5);
    assert_eq!(world.words("get job a").out, "1\n");
    world
        .words(&format!("set job a=2 --if-version {version}"))
        .expect(0);
}

#[test]
fn status_6_when_the_store_is_busy() {
    let world = World::new();
    world.words("set job a=1").expect(0);
    // A transaction of the application's own has the store to itself.
    let store = Embedded::open_blocking(world.store()).unwrap();
    let refused = store
        .transact_with([], |_| {
            Ok::<_, statepact::Error>(world.words("--json --busy-timeout 100ms set job a=2"))
        })
        .unwrap()
        .expect(6);
    let error = refused.error();
    assert_eq!(error["kind"], "busy");
    assert!(error["waited_seconds"].as_f64().unwrap() >= 0.1);
    assert_eq!(world.words("get job a").out, "1\n");
}

#[test]
fn status_6_at_the_end_of_a_wait_and_nothing_is_held() {
    let world = World::new();
    world.words("lease acquire job --owner a").expect(0);
    let error = world
        .words("--json lease acquire job --owner b --wait 200ms")
        .expect(6)
        .error();
    assert_eq!(error["kind"], "timed_out");
    assert_eq!(error["owner"], "a");
    assert!(error["waited_seconds"].as_f64().unwrap() >= 0.2);
    world
        .words("lease release job --owner a --token 1")
        .expect(0);
    assert_eq!(world.lease_state("job"), "released");
    assert_eq!(world.words("fence job").out, "1\n");
}

#[test]
fn a_wait_ends_with_the_lease_when_the_holder_lets_go() {
    let world = World::new();
    world.words("lease acquire job --owner a").expect(0);
    let waiter = world.start([
        "--json", "lease", "acquire", "job", "--owner", "b", "--wait",
    ]);
    super::support::pause(100);
    world
        .words("lease release job --owner a --token 1")
        .expect(0);
    assert_eq!(waiter.end().expect(0).json()["token"], 2);
}

#[test]
fn status_7_for_a_store_that_is_not_one() {
    let world = World::new();
    for (what, bytes) in [("empty", &b""[..]), ("text", &b"Dear diary, today\n"[..])] {
        std::fs::write(world.store(), bytes).unwrap();
        for command in ["--json ls", "--json set job a=1", "--json check"] {
            let error = world.words(command).expect(7).error();
            assert_eq!(error["kind"], "corrupt", "{what}, {command}");
            let location = error["location"].as_str().unwrap();
            assert!(
                location.contains("state.redb"),
                "{what}, {command}: {error}"
            );
        }
        // R29: never replaced by a new store.
        assert_eq!(std::fs::read(world.store()).unwrap(), bytes);
    }
}
