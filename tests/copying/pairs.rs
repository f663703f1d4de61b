//! Every pair.

use std::time::Duration;

use statepact::backend::{ExportRange, Exported, SharedBackend};
use statepact::clock::{Clock, SystemClock};
use statepact::copy::Copier;
use statepact::event::Event;
use statepact::{Lease, OwnerName, ResourceName, StateManager, Timestamp};

#[cfg(feature = "postgres")]
use super::postgres_server;
#[cfg(feature = "redis")]
use super::redis_server;

const HOUR: Duration = Duration::from_secs(3600);

/// Where new stores come from.
struct Stores {
    folder: tempfile::TempDir,
    #[cfg(feature = "redis")]
    redis: redis_server::Server,
    #[cfg(feature = "postgres")]
    postgres: postgres_server::Server,
}

impl Stores {
    fn start() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            #[cfg(feature = "redis")]
            redis: redis_server::Server::start("redis-server", &[]).unwrap(),
            #[cfg(feature = "postgres")]
            postgres: postgres_server::Server::start(),
        }
    }

    /// The URL of a new store of each kind; `name` tells stores apart.
    fn urls(&self, name: &str) -> Vec<(&'static str, String)> {
        let path = self.folder.path().join(format!("{name}.redb"));
        vec![
            ("memory", "memory:".to_owned()),
            ("embedded", path.to_string_lossy().into_owned()),
            #[cfg(feature = "redis")]
            ("redis", format!("{}?prefix={name}", self.redis.url())),
            #[cfg(feature = "postgres")]
            ("postgres", self.postgres.url(name)),
        ]
    }
}

async fn fill(store: &StateManager) -> Lease {
    for number in 0..300_u64 {
        let resource = format!("r/{:03}", number % 120);
        let mut session = store
            .session("filler")
            .resource(resource.as_str())
            .begin()
            .await
            .unwrap();
        session.write(resource.as_str(), "n", &number).unwrap();
        session
            .write(resource.as_str(), "ü %_*[\\{}", &[number])
            .unwrap();
        if number % 7 == 0 {
            session.delete(resource.as_str(), "n").unwrap();
        }
        session.commit().await.unwrap();
    }
    for resource in ["r/001", "marks-only", "{braces}"] {
        let lease = store.lease(resource, "a", HOUR).await.unwrap();
        store.backend().release(&lease).await.unwrap();
        store.backend().revoke(&lease.resource).await.unwrap();
    }
    let mut session = store
        .session("filler")
        .resource("marks-only")
        .begin()
        .await
        .unwrap();
    session.delete_resource("marks-only").unwrap();
    session.commit().await.unwrap();
    store.lease("held", "holder", HOUR).await.unwrap()
}

/// Everything, with the times of leases as time left.
async fn all(store: &SharedBackend) -> (Vec<Exported>, Vec<Event>) {
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let range = ExportRange::After { after, limit: 50 };
        let page = store.export(&range).await.unwrap();
        let Some(last) = page.entries.last() else {
            break;
        };
        after = Some(last.resource.clone());
        found.extend(page.entries);
    }
    let events = store.events(0, 10_000).await.unwrap().events;
    (found, events)
}

/// Times of leases are moved to the other store's time line, and so differ.
fn without_times(mut entries: Vec<Exported>) -> Vec<Exported> {
    for exported in &mut entries {
        if let Some(lease) = &mut exported.entry.lease
            && lease.expires_at != Timestamp::EPOCH
        {
            lease.expires_at = Timestamp::from_millis(1);
        }
    }
    entries
}

/// What is written while a copy follows is there when it is stopped.
async fn follow(pair: &str, from: &StateManager, to: &StateManager) {
    let copier = Copier::new(from.backend().clone(), to.backend().clone());
    let mut following = copier.begin().await.unwrap();
    let work = async {
        for number in 0..3_u64 {
            let mut session = from.session("w").resource("r/003").begin().await.unwrap();
            session.write("r/003", "while", &number).unwrap();
            session.commit().await.unwrap();
            let lease = from.lease("r/004", "w", HOUR).await.unwrap();
            from.backend().revoke(&lease.resource).await.unwrap();
            let newest = from.backend().events(u64::MAX, 0).await.unwrap().newest;
            while to.backend().events(u64::MAX, 0).await.unwrap().newest < newest {
                SystemClock.sleep(Duration::from_millis(5)).await;
            }
        }
    };
    tokio::select! {
        ended = following.follow() => panic!("{pair}: {ended:?}"),
        () = work => {}
    }
    let last = from.lease("r/005", "last", HOUR).await.unwrap();
    from.backend().release(&last).await.unwrap();
    following.finish().await.unwrap();
    let (there, here) = (all(from.backend()).await, all(to.backend()).await);
    assert_eq!(without_times(there.0), without_times(here.0), "{pair}");
    assert_eq!(there.1, here.1, "{pair}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_a_copy_between_any_two_backends_holds_the_same() {
    let stores = Stores::start();
    for (from_kind, from_url) in stores.urls("original") {
        let from = StateManager::open(&from_url).await.unwrap();
        let held = fill(&from).await;
        for (to_kind, to_url) in stores.urls(&format!("copy_of_{from_kind}")) {
            let pair = format!("{from_kind} to {to_kind}");
            let (entries, events) = all(from.backend()).await;
            assert!(entries.len() > 120 && events.len() > 300);
            let to = StateManager::open(&to_url).await.unwrap();
            let copier = || Copier::new(from.backend().clone(), to.backend().clone());
            let first = copier().run().await.unwrap();
            assert_eq!(first.events, events.len() as u64, "{pair}");
            let (entries_there, events_there) = all(to.backend()).await;
            assert_eq!(
                without_times(entries_there),
                without_times(entries.clone()),
                "{pair}"
            );
            assert_eq!(events_there, events, "{pair}");
            // Once more changes nothing but the time left of what is held.
            let again = copier().run().await.unwrap();
            assert_eq!(again.events, 0, "{pair}");
            assert!(again.changed <= 2, "{pair}: {again:?}");

            follow(&pair, &from, &to).await;
            let renewed = to.backend().renew(&held, held.ttl).await.unwrap();
            assert_eq!(renewed.token, held.token, "{pair}");
            for name in ["r/001", "marks-only", "{braces}", "r/002"] {
                let name = ResourceName::new(name).unwrap();
                let mark = from.backend().current_fence(&name).await.unwrap();
                let next = to
                    .lease(&name, OwnerName::new("b").unwrap(), HOUR)
                    .await
                    .unwrap();
                assert!(Some(next.token) > mark, "{pair}: {name}");
            }
            to.backend().check(&|_| {}).await.unwrap();
        }
    }
}

/// The command line names every store in the same way.
#[cfg(feature = "cli")]
#[test]
fn the_command_works_on_every_backend_and_copies_between_them() {
    let stores = Stores::start();
    let statepact = |arguments: &[&str], status: i32| {
        let ran = std::process::Command::new(env!("CARGO_BIN_EXE_statepact"))
            .args(arguments)
            .env_remove("STATEPACT_STORE")
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        assert_eq!(ran.status.code(), Some(status), "{arguments:?}: {ran:?}");
        String::from_utf8(ran.stdout).unwrap()
    };
    let urls: Vec<_> = stores
        .urls("commands")
        .into_iter()
        .filter(|(kind, _)| *kind != "memory")
        .collect();
    for (kind, url) in &urls {
        let on = |arguments: &[&str], status| {
            statepact(&[&["--store", url][..], arguments].concat(), status)
        };
        on(&["set", "a%b", "x=1"], 0);
        on(&["lease", "acquire", "job", "--owner", "a"], 0);
        on(&["lease", "acquire", "job", "--owner", "b"], 3);
        on(&["set", "job", "x=1", "--fence", "1"], 0);
        on(&["lease", "revoke", "job"], 0);
        on(&["set", "job", "x=2", "--fence", "1"], 4);
        on(&["set", "job", "x=2", "--if-version", "9"], 5);
        assert_eq!(on(&["get", "job", "x"], 0), "1\n");
        let script = "echo $STATEPACT_TOKEN";
        assert_eq!(on(&["run", "job", "--", "sh", "-c", script], 0), "3\n");
        assert_eq!(on(&["--json", "ls", "a%"], 0).lines().count(), 1);
        assert_eq!(on(&["--json", "log"], 0).lines().count(), 6);
        on(&["check"], 0);
        for (_, to) in stores.urls(&format!("copied_{kind}")).into_iter().skip(1) {
            statepact(&["copy", url, &to], 0);
            assert_eq!(statepact(&["--store", &to, "fence", "job"], 0), "3\n");
        }
    }
}
