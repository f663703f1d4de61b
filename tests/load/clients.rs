//! The clients, what they record, and what must hold of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use statepact::backend::SharedBackend;
use statepact::clock::{Clock, SystemClock};
use statepact::random::{Random, SeededRandom};
use statepact::{Error, Lease, LossReason, Result, StateManager};

const CLIENTS: u64 = 64;
const RESOURCES: u64 = 8;
const TTL: Duration = Duration::from_millis(300);

/// What a client knows to have happened.
#[derive(Debug, Default)]
struct Record {
    /// Resource and token of each lease granted.
    granted: Vec<(String, u64)>,
    /// Resource, the value written, and the token that it was written with.
    written: Vec<(String, u64, u64)>,
    /// Resource and value of writes that may have happened.
    unknown: Vec<(String, u64)>,
    stale: u64,
    conflicts: u64,
}

fn seconds() -> u64 {
    let set = std::env::var("STATEPACT_LOAD_SECONDS");
    set.map_or(20, |seconds| {
        seconds.parse().expect("STATEPACT_LOAD_SECONDS is a number")
    })
}

pub(crate) async fn load(name: &str, open: impl AsyncFn() -> SharedBackend) {
    let stop = Arc::new(AtomicBool::new(false));
    // Several handles, as several processes have.
    let mut handles = Vec::new();
    for _ in 0..4 {
        handles.push(open().await);
    }
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let handle = &handles[usize::try_from(number).unwrap() % handles.len()];
        let client = Client {
            number,
            manager: StateManager::new(handle.clone()),
            random: SeededRandom::new(number),
            record: Record::default(),
        };
        clients.push(tokio::spawn(client.work(stop.clone())));
    }
    SystemClock.sleep(Duration::from_secs(seconds())).await;
    stop.store(true, Ordering::Release);
    let mut records = Vec::new();
    for client in clients {
        records.push(client.await.unwrap());
    }
    check(name, &handles[0], &records).await;
}

struct Client {
    number: u64,
    manager: StateManager,
    random: SeededRandom,
    record: Record,
}

impl Client {
    async fn work(mut self, stop: Arc<AtomicBool>) -> Record {
        let mut turn = 0;
        while !stop.load(Ordering::Acquire) {
            turn += 1;
            let resource = format!("r{}", self.random.next_u64() % RESOURCES);
            let owner = format!("client-{}-{turn}", self.number);
            let asked = self.manager.lease(resource.as_str(), owner.as_str(), TTL);
            let lease = match asked.await {
                Ok(lease) => lease,
                Err(Error::LeaseNotAvailable { .. }) => {
                    let pause = 1 + self.random.next_u64() % 20;
                    SystemClock.sleep(Duration::from_millis(pause)).await;
                    continue;
                }
                Err(error) if error.is_retryable() => continue,
                Err(Error::OutcomeUnknown { .. }) => continue,
                Err(error) => panic!("acquire: {error}"),
            };
            self.record
                .granted
                .push((resource.clone(), lease.token.get()));
            for _ in 0..=self.random.next_u64() % 4 {
                // Now and then it pauses past the end of its lease.
                if self.random.next_u64().is_multiple_of(25) {
                    SystemClock.sleep(TTL + TTL / 2).await;
                }
                if !self.increment(&resource, &lease).await {
                    break;
                }
            }
            // Now and then it dies without a word.
            if !self.random.next_u64().is_multiple_of(10) {
                let _ = self.manager.backend().release(&lease).await;
            }
        }
        self.record
    }

    /// Whether it may go on with this lease.
    async fn increment(&mut self, resource: &str, lease: &Lease) -> bool {
        let mut value = 0;
        let answer: Result<()> = async {
            let mut session = self
                .manager
                .session("load")
                .resource(resource)
                .fence(lease)
                .begin()
                .await?;
            value = session.read::<u64>(resource, "n").await?.unwrap_or(0) + 1;
            session.write(resource, "n", &value)?;
            session.commit().await?;
            Ok(())
        }
        .await;
        match answer {
            Ok(()) => {
                let token = lease.token.get();
                self.record
                    .written
                    .push((resource.to_owned(), value, token));
                true
            }
            Err(Error::LeaseLost { reason, .. }) => {
                assert!(
                    matches!(reason, LossReason::Superseded { by } if by > lease.token),
                    "{reason:?}"
                );
                self.record.stale += 1;
                false
            }
            Err(Error::Conflict { .. }) => {
                self.record.conflicts += 1;
                true
            }
            Err(Error::OutcomeUnknown { .. }) => {
                self.record.unknown.push((resource.to_owned(), value));
                false
            }
            Err(error) if error.is_retryable() => true,
            Err(error) => panic!("commit: {error}"),
        }
    }
}

async fn check(name: &str, backend: &SharedBackend, records: &[Record]) {
    let mut tokens = BTreeSet::new();
    let mut written: BTreeMap<&str, BTreeMap<u64, u64>> = BTreeMap::new();
    for record in records {
        for granted in &record.granted {
            assert!(tokens.insert(granted), "{name}: issued twice: {granted:?}");
        }
        for (resource, value, token) in &record.written {
            let of = written.entry(resource).or_default();
            let before = of.insert(*value, *token);
            assert_eq!(
                before, None,
                "{name}: {resource} was made {value} twice: an update is lost"
            );
        }
    }
    for (resource, values) in &written {
        let mut last = 0;
        for (value, token) in values {
            assert!(
                *token >= last,
                "{name}: {resource} was made {value} under token {token}, after {last}"
            );
            last = *token;
        }
        let state = backend
            .read(&[(*resource).try_into().unwrap()])
            .await
            .unwrap();
        let stored = &state[0].as_ref().unwrap().fields["n"].value;
        let stored: u64 = stored.decode().unwrap();
        let unknown = records
            .iter()
            .flat_map(|record| &record.unknown)
            .filter(|(of, _)| of == resource)
            .count() as u64;
        let known = values.len() as u64;
        assert!(
            (known..=known + unknown).contains(&stored),
            "{name}: {resource} is {stored} after {known} writes and {unknown} of unknown outcome"
        );
    }
    let sum = |of: fn(&Record) -> u64| records.iter().map(of).sum::<u64>();
    let commits = sum(|record| record.written.len() as u64);
    let stale = sum(|record| record.stale);
    println!(
        "{name}: {} leases, {commits} commits, {stale} stale writes refused, {} conflicts, {} unknown",
        tokens.len(),
        sum(|record| record.conflicts),
        sum(|record| record.unknown.len() as u64),
    );
    // Otherwise nothing was tested.
    assert!(
        written.len() as u64 == RESOURCES && commits > 100,
        "{name}: {commits} commits"
    );
    assert!(stale > 0, "{name}: no stale write was tried");
}
