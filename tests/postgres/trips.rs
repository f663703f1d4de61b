//! How many times a call waits for the server.

use std::collections::BTreeMap;

use libtest_mimic::{Failed, Trial};
use statepact::backend::postgres::{Postgres, PostgresOptions};
use statepact::backend::{Backend, Change, CommitRequest, ResourceWrite};
use statepact::{AgentName, CommitId, FieldName, Lease, Result, Ttl, Value};

use crate::proxy::Proxy;
use crate::server::{ROLE, new_schema};
use crate::{lease, resource, server};

pub(crate) fn add(trials: &mut Vec<Trial>) {
    trials.push(Trial::test(
        "trips::two_for_a_write_and_one_for_a_read",
        count,
    ));
}

fn count() -> Result<(), Failed> {
    let _ = server();
    // One thread: what is sent together is flushed together.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(counted())
}

fn commit(id: Option<u128>, fence: Option<&Lease>, value: u64) -> Result<CommitRequest> {
    let fields = BTreeMap::from([(FieldName::new("paid")?, Some(Value::encode(&value)?))]);
    Ok(CommitRequest {
        id: id.map(CommitId::from_bits),
        agent: AgentName::new("agent")?,
        fences: fence.map(Lease::fence).into_iter().collect(),
        checks: Vec::new(),
        writes: vec![ResourceWrite {
            resource: resource("orders/7"),
            change: Change::Fields(fields),
            fenced: None,
        }],
    })
}

async fn counted() -> Result<(), Failed> {
    let proxy = Proxy::start(server().port())?;
    let store = PostgresOptions::new()
        .pool_size(1)
        .open(&format!(
            "postgres://{ROLE}@127.0.0.1:{}/postgres?sslmode=disable&schema={}",
            proxy.port(),
            new_schema()
        ))
        .await?;
    let mut table = Vec::new();
    let mut before = proxy.trips();
    let mut took = |what: &'static str, expected: u64| {
        let trips = proxy.trips() - before;
        before += trips;
        table.push((what, trips, expected));
    };
    let held = lease(&store, "job", "a").await?;
    took("acquire", 2);
    lease(&store, "job", "a").await?;
    took("acquire, extending", 2);
    lease(&store, "job", "b").await.unwrap_err();
    took("acquire, refused", 2);
    store.renew(&held, Ttl::MAX).await?;
    took("renew", 2);
    store.commit(&commit(None, None, 1)?).await?;
    took("commit", 2);
    store.commit(&commit(Some(1), Some(&held), 2)?).await?;
    took("commit, fenced, with an id", 2);
    store.commit(&commit(Some(1), Some(&held), 2)?).await?;
    took("commit, sent again", 2);
    reads(&store, &held, &mut took).await?;
    assert!(store.release(&held).await?);
    took("release", 2);
    store.revoke(&resource("job")).await?;
    took("revoke", 2);
    store
        .commit(&commit(None, Some(&held), 3)?)
        .await
        .unwrap_err();
    took("commit, stale", 2);
    let mut above = commit(None, Some(&held), 4)?;
    above.fences[0].token = statepact::Token::new(99)?;
    store.commit(&above).await?;
    took("commit, with a token above the mark", 4);
    for (what, trips, _) in &table {
        println!("| {what} | {trips} |");
    }
    for (what, trips, expected) in table {
        assert_eq!(trips, expected, "{what}");
    }
    Ok(())
}

async fn reads(
    store: &Postgres,
    held: &Lease,
    took: &mut impl FnMut(&'static str, u64),
) -> Result<()> {
    store.guard(held).await?;
    took("guard", 1);
    store.lease_status(&held.resource).await?;
    took("lease status", 1);
    store.read(&[resource("orders/7"), resource("job")]).await?;
    took("read", 1);
    store.list("", None, 100).await?;
    took("list", 1);
    store.events(0, 100).await?;
    took("events", 1);
    store.now().await?;
    took("now", 1);
    Ok(())
}
