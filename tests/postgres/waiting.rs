//! Waiting for a lease that another process holds.

use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use statepact::backend::postgres::{Postgres, PostgresOptions};
use statepact::backend::{Backend, CommitRequest};
use statepact::clock::{Clock, ManualClock, SystemClock};
use statepact::{AgentName, Error, Fence, Lease, StateManager, Token};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::server::new_schema;
use crate::{lease, pooler, resource, server, trial};

pub(crate) fn add(trials: &mut Vec<Trial>, runtime: &Arc<Runtime>) {
    trials.extend([
        trial(
            runtime,
            "waiting::a_release_elsewhere_wakes_who_waits",
            released,
        ),
        trial(
            runtime,
            "waiting::a_revocation_elsewhere_wakes_who_waits",
            revoked,
        ),
        trial(
            runtime,
            "waiting::r15_a_superseding_commit_elsewhere_wakes_who_waits",
            superseded,
        ),
        trial(
            runtime,
            "waiting::a_release_is_heard_after_the_listener_was_cut",
            cut,
        ),
        trial(
            runtime,
            "waiting::who_does_not_listen_looks_now_and_then",
            without_listening,
        ),
        trial(
            runtime,
            "waiting::behind_a_pooler_it_works_all_the_same",
            behind_a_pooler,
        ),
        trial(runtime, "waiting::the_listener_ends_with_the_store", ends),
    ]);
}

/// Two handles as of two processes, the first with a name for its connections.
async fn two() -> Result<(Postgres, Postgres, String), Error> {
    let schema = new_schema();
    let url = server().url(&schema);
    let here = Postgres::open(&format!("{url}&application_name={schema}")).await?;
    let there = Postgres::open(&url).await?;
    Ok((here, there, schema))
}

/// Waits with a clock that stands still: nobody looks by themselves, so that
/// only being told ends the wait.
fn wait_untimed(store: &Postgres) -> JoinHandle<Result<Lease, Error>> {
    wait_on(store, Arc::new(ManualClock::new()))
}

fn wait_on(store: &Postgres, clock: Arc<dyn Clock>) -> JoinHandle<Result<Lease, Error>> {
    let manager = StateManager::new(Arc::new(store.clone())).with_clock(clock);
    let wait = manager.lease("job", "waiter", Duration::from_secs(3600));
    tokio::spawn(wait.wait_forever().into_future())
}

async fn woken(waiter: JoinHandle<Result<Lease, Error>>) -> Result<Lease, Failed> {
    Ok(tokio::time::timeout(Duration::from_secs(30), waiter).await???)
}

/// Waits until a connection listens, and gives its process.
async fn heard(application: &str) -> String {
    let start = SystemClock.monotonic();
    loop {
        let listening = server().sql(&format!(
            "SELECT pid FROM pg_stat_activity \
             WHERE application_name = '{application}' AND query LIKE 'LISTEN%'"
        ));
        if !listening.is_empty() {
            return listening;
        }
        let slow = SystemClock.monotonic().since(start) > Duration::from_secs(30);
        assert!(!slow, "nobody listens");
        SystemClock.sleep(Duration::from_millis(10)).await;
    }
}

async fn released() -> Result<(), Failed> {
    let (here, there, schema) = two().await?;
    let held = lease(&there, "job", "holder").await?;
    let waiter = wait_untimed(&here);
    heard(&schema).await;
    assert!(there.release(&held).await?);
    assert_eq!(woken(waiter).await?.token.get(), 2);
    Ok(())
}

async fn revoked() -> Result<(), Failed> {
    let (here, there, schema) = two().await?;
    lease(&there, "job", "holder").await?;
    let waiter = wait_untimed(&here);
    heard(&schema).await;
    there.revoke(&resource("job")).await?;
    assert_eq!(woken(waiter).await?.token.get(), 3);
    Ok(())
}

async fn superseded() -> Result<(), Failed> {
    let (here, there, schema) = two().await?;
    lease(&there, "job", "holder").await?;
    let waiter = wait_untimed(&here);
    heard(&schema).await;
    there
        .commit(&CommitRequest {
            id: None,
            agent: AgentName::new("agent")?,
            fences: vec![Fence {
                resource: resource("job"),
                token: Token::new(9)?,
                must_be_live: false,
            }],
            checks: Vec::new(),
            writes: Vec::new(),
        })
        .await?;
    assert_eq!(woken(waiter).await?.token.get(), 10);
    Ok(())
}

async fn cut() -> Result<(), Failed> {
    let (here, there, schema) = two().await?;
    let held = lease(&there, "job", "holder").await?;
    let waiter = wait_untimed(&here);
    let process = heard(&schema).await;
    server().sql(&format!("SELECT pg_terminate_backend({process}, 10000)"));
    // Nobody hears this; it is asked about when somebody listens again.
    assert!(there.release(&held).await?);
    assert_eq!(woken(waiter).await?.token.get(), 2);
    Ok(())
}

async fn without_listening() -> Result<(), Failed> {
    let schema = new_schema();
    let url = format!("{}&application_name={schema}", server().url(&schema));
    let here = PostgresOptions::new().listen(false).open(&url).await?;
    let there = Postgres::open(&server().url(&schema)).await?;
    let held = lease(&there, "job", "holder").await?;
    let waiter = wait_on(&here, Arc::new(SystemClock));
    SystemClock.sleep(Duration::from_millis(100)).await;
    assert!(there.release(&held).await?);
    woken(waiter).await?;
    let listened = server().sql(&format!(
        "SELECT count(*) FROM pg_stat_activity \
         WHERE application_name = '{schema}' AND query LIKE 'LISTEN%'"
    ));
    assert_eq!(listened, "0");
    Ok(())
}

async fn behind_a_pooler() -> Result<(), Failed> {
    let schema = new_schema();
    let here = Postgres::open(&pooler().url(&schema)).await?;
    let there = Postgres::open(&pooler().url(&schema)).await?;
    let held = lease(&there, "job", "holder").await?;
    let waiter = wait_on(&here, Arc::new(SystemClock));
    SystemClock.sleep(Duration::from_millis(100)).await;
    assert!(there.release(&held).await?);
    woken(waiter).await?;
    Ok(())
}

async fn ends() -> Result<(), Failed> {
    let (here, there, schema) = two().await?;
    let held = lease(&there, "job", "holder").await?;
    let waiter = wait_untimed(&here);
    heard(&schema).await;
    assert!(there.release(&held).await?);
    woken(waiter).await?;
    drop(here);
    let start = SystemClock.monotonic();
    let connections =
        format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}'");
    while server().sql(&connections) != "0" {
        let slow = SystemClock.monotonic().since(start) > Duration::from_secs(15);
        assert!(!slow, "a connection is left");
        SystemClock.sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}
