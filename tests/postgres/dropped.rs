//! Futures dropped half way, and processes that end half way (R25): no
//! connection is left inside a transaction, and no lock is.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use statepact::backend::postgres::{Postgres, PostgresOptions};
use statepact::backend::{Backend, Change, CommitRequest, ResourceWrite};
use statepact::clock::{Clock, SystemClock};
use statepact::{AgentName, CommitId, FieldName, Lease, Result, Ttl, Value};
use tokio::runtime::Runtime;

use crate::server::new_schema;
use crate::{lease, request, resource, server, trial};

pub(crate) fn add(trials: &mut Vec<Trial>, runtime: &Arc<Runtime>) {
    trials.extend([
        trial(
            runtime,
            "dropped::r25_no_connection_stays_in_a_transaction",
            futures,
        ),
        trial(runtime, "dropped::r25_behind_a_lock_as_well", behind_a_lock),
        Trial::test("dropped::r25_nor_when_the_runtime_ends", runtimes),
        trial(
            runtime,
            "dropped::an_idle_transaction_of_a_stopped_process_is_ended",
            stopped,
        ),
    ]);
}

fn commit(number: u64) -> Result<CommitRequest> {
    let fields = BTreeMap::from([(FieldName::new("n")?, Some(Value::encode(&number)?))]);
    Ok(CommitRequest {
        id: Some(CommitId::from_bits(number.into())),
        agent: AgentName::new("agent")?,
        fences: Vec::new(),
        checks: Vec::new(),
        writes: vec![ResourceWrite {
            resource: resource("state"),
            change: Change::Fields(fields),
            fenced: None,
        }],
    })
}

/// A store whose connections carry the schema's name.
async fn store() -> Result<(Postgres, String)> {
    let schema = new_schema();
    let url = format!("{}&application_name={schema}", server().url(&schema));
    let store = PostgresOptions::new().pool_size(2).open(&url).await?;
    Ok((store, schema))
}

/// Waits until the connections of an application are at rest. They must come
/// to it by themselves, long before the server would end them.
async fn at_rest(application: &str) {
    let start = SystemClock.monotonic();
    loop {
        let busy = server().sql(&format!(
            "SELECT coalesce(string_agg(state || ': ' || query, '; '), '') FROM pg_stat_activity \
             WHERE application_name = '{application}' AND state <> 'idle'"
        ));
        let locks = server().sql(&format!(
            "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) \
             WHERE application_name = '{application}' AND locktype = 'advisory'"
        ));
        if busy.is_empty() && locks == "0" {
            return;
        }
        let slow = SystemClock.monotonic().since(start) > Duration::from_secs(15);
        assert!(!slow, "left behind: {locks} locks, {busy}");
        SystemClock.sleep(Duration::from_millis(10)).await;
    }
}

/// Runs a call for a while, and drops it.
async fn briefly<T>(call: impl Future<Output = T>, micros: u64) {
    let _ = tokio::time::timeout(Duration::from_micros(micros), call).await;
}

async fn all_calls_briefly(store: &Postgres, held: &Lease, round: u64, micros: u64) -> Result<()> {
    briefly(store.acquire_all(&request("job", "other")), micros).await;
    briefly(
        store.acquire_all(&request(&format!("new-{round}"), "a")),
        micros,
    )
    .await;
    briefly(store.renew(held, Ttl::MAX), micros).await;
    briefly(store.commit(&commit(round)?), micros).await;
    briefly(store.revoke(&resource("other")), micros).await;
    briefly(store.read(&[resource("state")]), micros).await;
    briefly(store.list("", None, 10), micros).await;
    briefly(store.check(&|_| {}), micros).await;
    Ok(())
}

async fn futures() -> Result<(), Failed> {
    let (store, schema) = store().await?;
    let held = lease(&store, "job", "a").await?;
    lease(&store, "other", "a").await?;
    // From dropped at once to ended, through every await between.
    for round in 0..60 {
        all_calls_briefly(&store, &held, round, round * 100).await?;
    }
    at_rest(&schema).await;
    // Nothing is held that nobody has, and the pool is whole.
    for round in 0..60 {
        let on = resource(&format!("new-{round}"));
        if let Some((found, _)) = store.lease_status(&on).await?.lease {
            store.release(&found).await?;
        }
    }
    let both = tokio::join!(lease(&store, "x", "a"), lease(&store, "y", "a"));
    both.0?;
    both.1?;
    store.check(&|_| {}).await?;
    Ok(())
}

async fn behind_a_lock() -> Result<(), Failed> {
    let (store, schema) = store().await?;
    lease(&store, "job", "a").await?;
    let mut client = crate::connect().await?;
    let transaction = client.transaction().await?;
    let check = format!("SELECT {schema}.statepact_check_fence('job', 1)");
    transaction.batch_execute(&check).await?;
    for _ in 0..4 {
        briefly(store.revoke(&resource("job")), 20_000).await;
    }
    transaction.commit().await?;
    at_rest(&schema).await;
    let mark = store.current_fence(&resource("job")).await?;
    assert_eq!(
        mark.map(statepact::Token::get),
        Some(1),
        "nobody waited any more"
    );
    Ok(())
}

/// The tasks of a runtime that ends are dropped at whatever await they are.
fn runtimes() -> Result<(), Failed> {
    let _ = server();
    let new = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
    };
    let outer = new()?;
    let (_store, schema) = outer.block_on(store())?;
    for round in 0..25_u64 {
        let inner = new()?;
        let url = format!("{}&application_name={schema}", server().url(&schema));
        let calls: Result<()> = inner.block_on(async {
            let store = Postgres::open(&url).await?;
            for on in 0..4 {
                let store = store.clone();
                let commit = commit(round * 10 + on)?;
                tokio::spawn(async move {
                    let _ = store.acquire_all(&request(&format!("job-{on}"), "a")).await;
                    let _ = store.commit(&commit).await;
                    let _ = store.revoke(&resource(&format!("job-{on}"))).await;
                });
            }
            SystemClock.sleep(Duration::from_millis(round)).await;
            Ok(())
        });
        calls?;
        inner.shutdown_background();
    }
    outer.block_on(async {
        at_rest(&schema).await;
        let store = Postgres::open(&server().url(&schema)).await?;
        store.check(&|_| {}).await?;
        Ok(())
    })
}

/// A connection that begins a transaction, takes the lock, and says no more:
/// its process was stopped, or its network is gone.
async fn stopped() -> Result<(), Failed> {
    let schema = new_schema();
    let store = PostgresOptions::new()
        .statement_timeout(Duration::from_millis(100))
        .lock_timeout(Duration::from_millis(100))
        .open(&server().url(&schema))
        .await?;
    let held = lease(&store, "job", "a").await?;
    let stopped = crate::connect().await?;
    // What the library begins a transaction with.
    stopped
        .batch_execute(&format!(
            "BEGIN; SET LOCAL idle_in_transaction_session_timeout = 300; \
             SELECT pg_advisory_xact_lock(hashtextextended('{schema}/r/job', 0))"
        ))
        .await?;
    let busy = store.renew(&held, Ttl::MAX).await.unwrap_err();
    assert!(busy.is_retryable(), "{busy}");
    let start = SystemClock.monotonic();
    while let Err(error) = store.renew(&held, Ttl::MAX).await {
        assert!(error.is_retryable(), "{error}");
        let slow = SystemClock.monotonic().since(start) > Duration::from_secs(20);
        assert!(!slow, "it holds the lock for ever");
    }
    Ok(())
}
