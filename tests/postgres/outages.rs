//! A server that is killed, ends connections, or is cut off half way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use statepact::backend::postgres::{Postgres, PostgresOptions};
use statepact::backend::{Backend, Change, CommitRequest, ResourceWrite};
use statepact::clock::{Clock, SystemClock};
use statepact::{AgentName, CommitId, ErrorKind, FieldName, Lease, Result, Value};
use tokio::runtime::Runtime;

use crate::proxy::{Cut, Proxy};
use crate::server::{ROLE, Server, new_schema};
use crate::{lease, resource, server, trial};

pub(crate) fn add(trials: &mut Vec<Trial>, runtime: &Arc<Runtime>) {
    trials.extend([
        trial(
            runtime,
            "outages::r20_what_was_acknowledged_outlives_a_kill",
            killed,
        ),
        trial(
            runtime,
            "outages::r26_a_commit_cut_off_is_unknown_and_can_be_sent_again",
            cut_commit,
        ),
        trial(
            runtime,
            "outages::cut_off_before_the_commit_nothing_changed",
            cut_before,
        ),
        trial(
            runtime,
            "outages::connections_that_the_server_ended_are_not_noticed",
            ended,
        ),
        trial(
            runtime,
            "outages::each_failure_says_what_it_means",
            each_failure,
        ),
        trial(runtime, "outages::waiting_for_the_pool_ends", pool_wait),
        trial(
            runtime,
            "outages::a_pool_in_use_by_many_is_shared",
            many_on_few,
        ),
    ]);
}

fn commit(number: u64, fence: Option<&Lease>) -> Result<CommitRequest> {
    let fields = BTreeMap::from([(
        FieldName::new(format!("n{number}"))?,
        Some(Value::encode(&number)?),
    )]);
    Ok(CommitRequest {
        id: Some(CommitId::from_bits(number.into())),
        agent: AgentName::new("agent")?,
        fences: fence.map(Lease::fence).into_iter().collect(),
        checks: Vec::new(),
        writes: vec![ResourceWrite {
            resource: resource("state"),
            change: Change::Fields(fields),
            fenced: None,
        }],
    })
}

async fn killed() -> Result<(), Failed> {
    let server = Arc::new(tokio::task::spawn_blocking(Server::start_durable).await?);
    let store = Postgres::open(&server.url("kills")).await?;
    let mut acknowledged = Vec::new();
    let mut number = 0;
    let mut last_token = 0;
    for kill in 0..3 {
        let killer = server.clone();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(150 + 70 * kill));
            killer.kill();
        });
        // Works until the server is gone.
        loop {
            let held = match lease(&store, "job", &format!("owner-{number}")).await {
                Ok(held) => held,
                Err(error) => {
                    assert_outage(error.kind());
                    break;
                }
            };
            assert!(
                held.token.get() > last_token,
                "R1: a token was issued twice"
            );
            last_token = held.token.get();
            number += 1;
            match store.commit(&commit(number, Some(&held))?).await {
                Ok(receipt) => acknowledged.push((number, receipt)),
                Err(error) => {
                    assert_outage(error.kind());
                    break;
                }
            }
            if let Err(error) = store.release(&held).await {
                assert_outage(error.kind());
                break;
            }
        }
        killer.join().map_err(|_| "the killer")?;
        let again = server.clone();
        tokio::task::spawn_blocking(move || again.launch()).await?;
        store.revoke(&resource("job")).await?;
    }
    assert!(!acknowledged.is_empty());
    let state = store
        .read(&[resource("state")])
        .await?
        .remove(0)
        .ok_or("no state")?;
    for (number, receipt) in acknowledged {
        let field = FieldName::new(format!("n{number}"))?;
        assert!(state.fields.contains_key(&field), "commit {number} is lost");
        let again = store.commit(&commit_again(&store, number).await?).await?;
        assert_eq!(again, receipt, "R26");
    }
    store.check(&|_| {}).await?;
    server.stop();
    Ok(())
}

/// The request that committed `number`, which carried the token of its lease.
async fn commit_again(store: &Postgres, number: u64) -> Result<CommitRequest> {
    let id = CommitId::from_bits(number.into());
    let mut after = 0;
    loop {
        let page = store.events(after, 500).await?;
        for event in &page.events {
            if let statepact::event::EventKind::Committed { id: of, fences, .. } = &event.kind
                && *of == Some(id)
            {
                let mut request = commit(number, None)?;
                request.fences = fences
                    .iter()
                    .map(|(resource, token)| statepact::Fence {
                        resource: resource.clone(),
                        token: *token,
                        must_be_live: false,
                    })
                    .collect();
                return Ok(request);
            }
        }
        assert!(
            page.next_after > after,
            "the event of commit {number} is lost"
        );
        after = page.next_after;
    }
}

fn assert_outage(kind: ErrorKind) {
    assert!(
        matches!(kind, ErrorKind::Unavailable | ErrorKind::OutcomeUnknown),
        "{kind}"
    );
}

/// A store through a proxy, without TLS so that the proxy can read.
async fn through_proxy() -> Result<(Postgres, Proxy)> {
    let proxy = Proxy::start(server().port()).map_err(|error| statepact::Error::Unavailable {
        message: error.to_string(),
    })?;
    let url = format!(
        "postgres://{ROLE}@127.0.0.1:{}/postgres?sslmode=disable&schema={}",
        proxy.port(),
        new_schema()
    );
    let store = PostgresOptions::new().pool_size(1).open(&url).await?;
    Ok((store, proxy))
}

async fn cut_commit() -> Result<(), Failed> {
    // With the end of the text: there is a COMMIT in READ COMMITTED.
    for (cut, happened) in [
        (Cut::After("COMMIT\0"), true),
        (Cut::Before("COMMIT\0"), false),
    ] {
        let (store, proxy) = through_proxy().await?;
        let held = lease(&store, "job", "a").await?;
        let request = commit(1, Some(&held))?;
        proxy.cut(Some(cut));
        let unknown = store.commit(&request).await.unwrap_err();
        assert_eq!(
            unknown.kind(),
            ErrorKind::OutcomeUnknown,
            "{cut:?}: {unknown}"
        );
        assert!(!unknown.is_retryable());
        let unknown = store.release(&held).await.unwrap_err();
        assert_eq!(
            unknown.kind(),
            ErrorKind::OutcomeUnknown,
            "{cut:?}: {unknown}"
        );
        proxy.cut(None);
        let there = store.read(&[resource("state")]).await?.remove(0).is_some();
        assert_eq!(there, happened, "{cut:?}");
        // Sent again, it has happened once.
        let receipt = store.commit(&request).await?;
        let versions: Vec<u64> = receipt
            .versions
            .iter()
            .map(|(_, version)| *version)
            .collect();
        assert_eq!(versions, [1], "{cut:?}");
        store.check(&|_| {}).await?;
    }
    Ok(())
}

async fn cut_before() -> Result<(), Failed> {
    for cut in [Cut::Before("BEGIN"), Cut::After("BEGIN\0")] {
        let (store, proxy) = through_proxy().await?;
        let held = lease(&store, "job", "a").await?;
        proxy.cut(Some(cut));
        let failed = store.commit(&commit(1, Some(&held))?).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Unavailable, "{cut:?}: {failed}");
        assert!(proxy.cuts() > 0);
        proxy.cut(None);
        assert!(store.read(&[resource("state")]).await?.remove(0).is_none());
        store.commit(&commit(1, Some(&held))?).await?;
    }
    Ok(())
}

/// As after a restart of the server, or an idle time-out in between.
async fn ended() -> Result<(), Failed> {
    let schema = new_schema();
    let url = format!("{}&application_name={schema}", server().url(&schema));
    let store = Postgres::open(&url).await?;
    for _ in 0..10 {
        // Several connections in the pool.
        let all = tokio::join!(
            lease(&store, "a", "o"),
            lease(&store, "b", "o"),
            lease(&store, "c", "o")
        );
        all.0.and(all.1).and(all.2)?;
        server().sql(&format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE application_name = '{schema}'"
        ));
        lease(&store, "a", "o").await?;
        store.read(&[resource("a")]).await?;
        store.now().await?;
    }
    Ok(())
}

async fn pool_wait() -> Result<(), Failed> {
    let schema = new_schema();
    let store = PostgresOptions::new()
        .pool_size(1)
        .acquire_timeout(Duration::from_millis(100))
        .lock_timeout(Duration::from_secs(10))
        .open(&server().url(&schema))
        .await?;
    lease(&store, "job", "a").await?;
    let mut client = crate::connect().await?;
    let transaction = client.transaction().await?;
    let check = format!("SELECT {schema}.statepact_check_fence('job', 1)");
    transaction.batch_execute(&check).await?;
    let blocked = tokio::spawn({
        let store = store.clone();
        async move { store.revoke(&resource("job")).await }
    });
    // It has the only connection once it waits for the lock.
    loop {
        match store.now().await {
            Ok(_) => SystemClock.sleep(Duration::from_millis(5)).await,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
                break;
            }
        }
    }
    transaction.commit().await?;
    blocked.await??;
    store.now().await?;
    Ok(())
}

async fn many_on_few() -> Result<(), Failed> {
    let store = PostgresOptions::new()
        .pool_size(3)
        .acquire_timeout(Duration::from_secs(60))
        .open(&server().url(&new_schema()))
        .await?;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..64 {
        let store = store.clone();
        tasks.spawn(async move { lease(&store, &format!("job-{task}"), "a").await });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    assert_eq!(store.events(0, 100).await?.newest, 64);
    Ok(())
}

/// The server is made to fail with each code, at the write and at the commit
/// itself: both are told apart from an unknown outcome.
async fn each_failure() -> Result<(), Failed> {
    for (code, kind, retryable) in [
        ("40001", ErrorKind::Busy, true),
        ("40P01", ErrorKind::Busy, true),
        ("55P03", ErrorKind::Busy, true),
        ("57014", ErrorKind::Busy, true),
        ("53200", ErrorKind::Unavailable, true),
        ("25006", ErrorKind::Unavailable, true),
        ("53100", ErrorKind::Storage, false),
        ("42501", ErrorKind::Storage, false),
        ("XX001", ErrorKind::Corrupt, false),
        ("P0001", ErrorKind::Storage, false),
    ] {
        for when in ["AFTER INSERT", "AFTER INSERT DEFERRED"] {
            let schema = new_schema();
            let store = Postgres::open(&server().url(&schema)).await?;
            let held = lease(&store, "job", "a").await?;
            let (create, deferred) = match when {
                "AFTER INSERT" => ("CREATE TRIGGER", ""),
                _ => ("CREATE CONSTRAINT TRIGGER", "DEFERRABLE INITIALLY DEFERRED"),
            };
            server().sql(&format!(
                "CREATE FUNCTION {schema}.fail() RETURNS trigger LANGUAGE plpgsql AS \
                 $$BEGIN RAISE EXCEPTION 'made to fail' USING ERRCODE = '{code}'; END$$; \
                 {create} failing AFTER INSERT ON {schema}.statepact_log {deferred} \
                 FOR EACH ROW EXECUTE FUNCTION {schema}.fail()"
            ));
            let failed = store.commit(&commit(1, Some(&held))?).await.unwrap_err();
            assert_eq!(failed.kind(), kind, "{code} {when}: {failed}");
            assert_eq!(failed.is_retryable(), retryable, "{code}: {failed}");
            server().sql(&format!("DROP TRIGGER failing ON {schema}.statepact_log"));
            assert!(store.read(&[resource("state")]).await?.remove(0).is_none());
            // The connection is of use again, and nothing of it was lost.
            store.commit(&commit(1, Some(&held))?).await?;
        }
    }
    Ok(())
}
