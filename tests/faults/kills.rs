//! A server that is killed again and again under writers: R1, R20, R26.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use statepact::backend::Backend;
use statepact::clock::{Clock, SystemClock};
use statepact::event::EventKind;
use statepact::{Error, Result};
use tokio::sync::{Mutex, RwLock};

use crate::support::{Kind, Open, Server, acquire, commit, is_unknown, res, until, within, write};

const KILLS: u64 = 12;
const WRITERS: u64 = 3;
const OWNERS: u64 = 2;
/// What must have been acknowledged between two kills.
const PROGRESS: u64 = 30;

/// What the workers of a run share.
#[derive(Default)]
struct Run {
    stop: AtomicBool,
    acknowledged: AtomicU64,
    unknown: AtomicU64,
    /// Held for reading during each call.
    calls: RwLock<()>,
    /// In the order in which they were granted: each holder adds its own.
    tokens: Mutex<Vec<u64>>,
}

impl Run {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Acquire)
    }

    fn acknowledge(&self) {
        self.acknowledged.fetch_add(1, Ordering::AcqRel);
    }

    /// Sends a call that may be sent again until it is answered.
    async fn insist<T, F: Future<Output = Result<T>>>(
        &self,
        mut call: impl FnMut() -> F,
    ) -> Result<T> {
        loop {
            let answer = {
                let _call = self.calls.read().await;
                call().await
            };
            match answer {
                Err(error) if is_unknown(&error) => {
                    self.unknown.fetch_add(1, Ordering::AcqRel);
                }
                Err(error) if error.is_retryable() => {}
                answer => return answer,
            }
            SystemClock.sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Counts in a resource of its own, each commit with an id; how far it came.
async fn write_with_ids(run: Arc<Run>, store: Arc<dyn Backend>, number: u64) -> u64 {
    let resource = res(&format!("w{number}"));
    let mut value = 0;
    while run.goes_on() {
        let id = u128::from(number) << 64 | u128::from(value);
        let request = commit(Some(id), vec![write(&resource, [("n", Some(value + 1))])]);
        let receipt = run.insist(|| store.commit(&request)).await;
        value += 1;
        assert_eq!(receipt.unwrap().versions, [(resource.clone(), value)]);
        run.acknowledge();
    }
    value
}

/// The same without ids: it looks at what became of an unknown outcome.
async fn write_without_ids(run: Arc<Run>, store: Arc<dyn Backend>) -> u64 {
    let resource = res("plain");
    let mut value = 0;
    while run.goes_on() {
        let request = commit(None, vec![write(&resource, [("n", Some(value + 1))])]);
        let answer = {
            let _call = run.calls.read().await;
            store.commit(&request).await
        };
        match answer {
            Ok(_) => {
                value += 1;
                run.acknowledge();
            }
            Err(error) if is_unknown(&error) => {
                run.unknown.fetch_add(1, Ordering::AcqRel);
                let asked = [resource.clone()];
                let state = run.insist(|| store.read(&asked)).await;
                let found = state.unwrap()[0].as_ref().map_or(0, |state| state.version);
                assert!(
                    found == value || found == value + 1,
                    "{found} after {value}: lost, or done twice"
                );
                value = found;
            }
            Err(error) if error.is_retryable() => {
                SystemClock.sleep(Duration::from_millis(5)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    value
}

/// Takes one lease in turns with others, each time under a new name.
async fn own(run: Arc<Run>, store: Arc<dyn Backend>, number: u64) {
    let job = res("job");
    for turn in 0.. {
        if !run.goes_on() {
            break;
        }
        // Asked for again under the same name, it is the same lease (R3).
        let request = acquire(&[&job], &format!("owner-{number}-{turn}"), true);
        let lease = match run.insist(|| store.acquire_all(&request)).await {
            Ok(leases) => leases[0].clone(),
            Err(Error::LeaseNotAvailable { .. }) => {
                SystemClock.sleep(Duration::from_millis(2)).await;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        run.tokens.lock().await.push(lease.token.get());
        run.acknowledge();
        run.insist(|| store.release(&lease)).await.unwrap();
    }
}

async fn kill_under_load(kind: Kind) {
    let server = Server::start(kind);
    let stores = [
        server.open(Open::default()).await,
        server.open(Open::default()).await,
    ];
    let run = Arc::new(Run::default());
    let store = |number: u64| stores[usize::try_from(number).unwrap() % 2].clone();
    let mut writers = Vec::new();
    for number in 0..WRITERS {
        writers.push(tokio::spawn(write_with_ids(
            run.clone(),
            store(number),
            number,
        )));
    }
    let plain = tokio::spawn(write_without_ids(run.clone(), store(1)));
    let owners: Vec<_> = (0..OWNERS)
        .map(|number| tokio::spawn(own(run.clone(), store(number), number)))
        .collect();
    for kill in 0..KILLS {
        let before = run.acknowledged.load(Ordering::Acquire);
        until("writers go on", async || {
            run.acknowledged.load(Ordering::Acquire) >= before + PROGRESS
        })
        .await;
        // Every other time it is killed while no call is under way.
        let _between = match kill % 2 {
            0 => None,
            _ => Some(run.calls.write().await),
        };
        server.kill();
        server.launch();
    }
    let before = run.acknowledged.load(Ordering::Acquire);
    until("writers go on", async || {
        run.acknowledged.load(Ordering::Acquire) >= before + PROGRESS
    })
    .await;
    run.stop.store(true, Ordering::Release);
    let mut counted = BTreeMap::new();
    for (number, writer) in writers.into_iter().enumerate() {
        let value = within("a writer", writer).await.unwrap();
        counted.insert(format!("w{number}"), value);
    }
    counted.insert("plain".to_owned(), within("a writer", plain).await.unwrap());
    for owner in owners {
        within("an owner", owner).await.unwrap();
    }
    // Killed once more: what is there is on disk.
    server.kill();
    server.launch();
    let store = server.open(Open::default()).await;
    verify(&*store, &counted, &run.tokens.lock().await).await;
    let unknown = run.unknown.load(Ordering::Acquire);
    println!("{kind:?}: {counted:?}, {unknown} unknown");
    assert!(
        unknown > 0,
        "no call was under way when the server was killed"
    );
}

async fn verify(store: &dyn Backend, counted: &BTreeMap<String, u64>, tokens: &[u64]) {
    store.check(&|_| {}).await.unwrap();
    for (name, value) in counted {
        let state = store.read(&[res(name)]).await.unwrap();
        let state = state[0].as_ref().unwrap();
        // Each commit has raised the version by one and the value by one.
        assert_eq!(state.version, *value, "{name}");
        let field = state.fields.values().next().unwrap();
        assert_eq!(field.value.as_str(), value.to_string(), "{name}");
    }
    assert!(
        tokens.is_sorted_by(|earlier, later| earlier < later),
        "{tokens:?}"
    );
    let page = store.events(0, 100_000).await.unwrap();
    let (mut ids, mut commits, mut issued) = (BTreeSet::new(), 0, Vec::new());
    for event in page.events {
        match event.kind {
            EventKind::Committed { id, .. } => {
                commits += 1;
                if let Some(id) = id {
                    assert!(ids.insert(id), "done twice: {id}");
                }
            }
            EventKind::Acquired { token, .. } => issued.push(token.get()),
            _ => {}
        }
    }
    assert_eq!(commits, counted.values().sum::<u64>());
    assert!(issued.is_sorted_by(|earlier, later| earlier < later));
    assert!(tokens.iter().all(|token| issued.contains(token)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redis_acknowledged_outlives_its_kills() {
    kill_under_load(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_postgres_acknowledged_outlives_its_kills() {
    kill_under_load(Kind::Postgres).await;
}
