//! Read-modify-write from several processes.

use statepact::{Backend, RetryPolicy, StateManager};
use std::sync::Arc;
use std::time::Duration;

use crate::harness::{Place, Worker, check, runtime};

const WORKERS: u64 = 4;
const COMMITS: u64 = 2_000;

/// Counts to 2,000 from four processes: each value is seen by one of them.
pub(crate) fn count() {
    let place = Place::new();
    let each = (COMMITS / WORKERS).to_string();
    let workers: Vec<_> = (0..WORKERS)
        .map(|n| Worker::start("count", &[place.text(), &n.to_string(), &each]))
        .collect();
    let mut seen: Vec<u64> = workers
        .into_iter()
        .flat_map(Worker::finish)
        .map(|line| line.strip_prefix("counted ").unwrap().parse().unwrap())
        .collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(1..=COMMITS), "each value once");

    let store = place.open();
    let states = runtime()
        .block_on(store.read(&["counter".try_into().unwrap()]))
        .unwrap();
    let state = states[0].as_ref().unwrap();
    assert_eq!(state.version, COMMITS);
    assert_eq!(state.fields["count"].value.as_str(), COMMITS.to_string());
    check(&store);
}

/// The worker: counts on, and says each value once it is committed.
pub(crate) fn work(path: &str, name: &str, commits: u64) {
    let manager = StateManager::new(Arc::new(crate::harness::open(path.as_ref())));
    let policy = RetryPolicy::default()
        .attempts(100_000)
        .within(Duration::from_secs(300))
        .pauses(Duration::from_millis(1), Duration::from_millis(20));
    runtime().block_on(async {
        for _ in 0..commits {
            let count = manager
                .session(format!("counter-{name}"))
                .resource("counter")
                .transact(policy, async |session| {
                    let count: u64 = session.read("counter", "count").await?.unwrap_or(0) + 1;
                    session.write("counter", "count", &count)?;
                    Ok(count)
                })
                .await
                .unwrap();
            println!("counted {count}");
        }
    });
}
