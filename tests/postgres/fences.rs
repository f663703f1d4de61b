//! `statepact_check_fence`: fencing in transactions of the user's own (R13,
//! R15).

use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use statepact::backend::Backend;
use statepact::backend::postgres::{Postgres, PostgresOptions};
use statepact::event::EventKind;
use statepact::{ErrorKind, Ttl};
use tokio::runtime::Runtime;
use tokio_postgres::Client;

use crate::server::{GUARDED_ROLE, new_schema};
use crate::{connect, lease, resource, server, trial};

pub(crate) fn add(trials: &mut Vec<Trial>, runtime: &Arc<Runtime>) {
    trials.extend([
        trial(
            runtime,
            "fences::r13_a_stale_token_rolls_the_users_work_back",
            stale,
        ),
        trial(
            runtime,
            "fences::r13_no_token_is_issued_behind_a_check",
            no_token_behind,
        ),
        trial(
            runtime,
            "fences::r13_no_stale_work_follows_newer_work",
            race,
        ),
        trial(runtime, "fences::r14_an_expired_token_passes", expired),
        trial(
            runtime,
            "fences::r15_a_token_above_the_mark_becomes_it",
            above_the_mark,
        ),
        trial(
            runtime,
            "fences::r27_a_wrong_argument_is_refused",
            wrong_arguments,
        ),
        trial(
            runtime,
            "fences::a_role_can_be_given_the_check_alone",
            check_alone,
        ),
        trial(
            runtime,
            "fences::it_holds_in_every_isolation_level",
            isolation_levels,
        ),
    ]);
}

/// A store, its schema, and a table of the user's own beside it.
async fn store_and_table() -> Result<(Postgres, String, Client), Failed> {
    let schema = new_schema();
    let store = PostgresOptions::new()
        .lock_timeout(Duration::from_millis(200))
        .open(&server().url(&schema))
        .await?;
    let client = connect().await?;
    client
        .batch_execute(&format!(
            "CREATE TABLE {schema}.invoices (id int PRIMARY KEY, token bigint); \
             INSERT INTO {schema}.invoices VALUES (1, 0)"
        ))
        .await?;
    Ok((store, schema, client))
}

fn check(schema: &str, on: &str, token: u64) -> String {
    format!("SELECT {schema}.statepact_check_fence('{on}', {token})")
}

fn code(error: &tokio_postgres::Error) -> &str {
    error.code().map_or("none", |code| code.code())
}

async fn stale() -> Result<(), Failed> {
    let (store, schema, mut client) = store_and_table().await?;
    let old = lease(&store, "job", "a").await?;
    store.revoke(&resource("job")).await?;
    let transaction = client.transaction().await?;
    let update = format!("UPDATE {schema}.invoices SET token = 1");
    transaction.batch_execute(&update).await?;
    let refused = transaction
        .batch_execute(&check(&schema, "job", old.token.get()))
        .await
        .unwrap_err();
    assert_eq!(code(&refused), "SP001");
    let said = refused
        .as_db_error()
        .map(|error| error.message().to_owned());
    assert_eq!(
        said.as_deref(),
        Some("lease on resource `job` with token 1 is lost: token 2 superseded it")
    );
    transaction.commit().await?;
    let token = server().sql(&format!("SELECT token FROM {schema}.invoices"));
    assert_eq!(token, "0", "nothing was committed");
    Ok(())
}

async fn no_token_behind() -> Result<(), Failed> {
    let (store, schema, mut client) = store_and_table().await?;
    let held = lease(&store, "job", "a").await?;
    let transaction = client.transaction().await?;
    transaction
        .batch_execute(&check(&schema, "job", held.token.get()))
        .await?;
    // The holder goes on meanwhile, and others do other work.
    store.renew(&held, Ttl::MAX).await?;
    lease(&store, "another", "b").await?;
    assert!(store.release(&held).await?);
    // Nobody else gets in.
    let refused = lease(&store, "job", "b").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
    let refused = store.revoke(&resource("job")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
    transaction.commit().await?;
    let next = lease(&store, "job", "b").await?;
    assert!(next.token > held.token);
    Ok(())
}

async fn race() -> Result<(), Failed> {
    let (store, schema, _client) = store_and_table().await?;
    let mut work = tokio::task::JoinSet::new();
    for worker in 0..4 {
        let (store, schema) = (store.clone(), schema.clone());
        let mut client = connect().await?;
        work.spawn(async move {
            let mut done = 0;
            for _ in 0..40 {
                // Takes the job from whoever has it.
                let Ok(_) = store.revoke(&resource("job")).await else {
                    let _ = lease(&store, "job", "first").await;
                    continue;
                };
                let Ok(held) = lease(&store, "job", &format!("w{worker}")).await else {
                    continue;
                };
                let token = held.token.get();
                let transaction = client.transaction().await.unwrap();
                let checked = transaction
                    .batch_execute(&check(&schema, "job", token))
                    .await;
                if let Err(error) = checked {
                    assert_eq!(code(&error), "SP001", "{error}");
                    continue;
                }
                let token = i64::try_from(token).unwrap();
                let update = format!("UPDATE {schema}.invoices SET token = $1 WHERE token <= $1");
                let changed = transaction.execute(&update, &[&token]).await.unwrap();
                assert_eq!(
                    changed, 1,
                    "newer work was committed before token {token}'s"
                );
                transaction.commit().await.unwrap();
                done += 1;
            }
            done
        });
    }
    let mut done = 0;
    while let Some(worker) = work.join_next().await {
        done += worker?;
    }
    assert!(done > 0, "some work was done");
    Ok(())
}

async fn expired() -> Result<(), Failed> {
    let (store, schema, client) = store_and_table().await?;
    let held = lease(&store, "job", "a").await?;
    assert!(store.release(&held).await?);
    client
        .batch_execute(&check(&schema, "job", held.token.get()))
        .await?;
    Ok(())
}

async fn above_the_mark() -> Result<(), Failed> {
    let (store, schema, client) = store_and_table().await?;
    let old = lease(&store, "job", "a").await?;
    for (on, token) in [("job", 41), ("never 'leased'", i64::MAX as u64 - 1)] {
        let quoted = on.replace('\'', "''");
        client
            .batch_execute(&check(&schema, &quoted, token))
            .await?;
        let mark = store.current_fence(&resource(on)).await?;
        assert_eq!(mark.map(statepact::Token::get), Some(token));
    }
    store.guard(&old).await.unwrap_err();
    assert_eq!(lease(&store, "job", "b").await?.token.get(), 42);
    // It is in the history, so that a copy that follows it has the mark.
    let page = store.events(0, 10).await?;
    let fences: Vec<_> = page
        .events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Committed { fences, .. } => fences.first(),
            _ => None,
        })
        .map(|(on, token)| (on.as_str(), token.get()))
        .collect();
    assert_eq!(
        fences,
        [("job", 41), ("never 'leased'", i64::MAX as u64 - 1)]
    );
    store.check(&|_| {}).await?;
    Ok(())
}

async fn wrong_arguments() -> Result<(), Failed> {
    let (_store, schema, client) = store_and_table().await?;
    let long = format!("'{}'", "x".repeat(513));
    for arguments in [
        "'job', 0",
        "'job', -1",
        "'job', NULL",
        "NULL, 1",
        "'', 1",
        "E'a\\nb', 1",
    ]
    .into_iter()
    .map(str::to_owned)
    .chain([format!("{long}, 1")])
    {
        let sql = format!("SELECT {schema}.statepact_check_fence({arguments})");
        let refused = client.batch_execute(&sql).await.unwrap_err();
        assert_eq!(code(&refused), "22023", "{arguments}");
    }
    Ok(())
}

async fn check_alone() -> Result<(), Failed> {
    let (store, schema, client) = store_and_table().await?;
    let held = lease(&store, "job", "a").await?;
    let sql = check(&schema, "job", held.token.get());
    client
        .batch_execute(&format!(
            "GRANT USAGE ON SCHEMA {schema} TO {GUARDED_ROLE}; SET ROLE {GUARDED_ROLE}"
        ))
        .await?;
    let refused = client.batch_execute(&sql).await.unwrap_err();
    assert_eq!(code(&refused), "42501");
    client
        .batch_execute(&format!(
            "RESET ROLE; GRANT EXECUTE ON FUNCTION \
             {schema}.statepact_check_fence(text, bigint) TO {GUARDED_ROLE}; \
             SET ROLE {GUARDED_ROLE}"
        ))
        .await?;
    client.batch_execute(&sql).await?;
    let table = format!("SELECT * FROM {schema}.statepact_leases");
    assert_eq!(
        code(&client.batch_execute(&table).await.unwrap_err()),
        "42501"
    );
    Ok(())
}

/// A transaction whose snapshot is older than the newest token.
async fn isolation_levels() -> Result<(), Failed> {
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        let (store, schema, client) = store_and_table().await?;
        let old = lease(&store, "job", "a").await?;
        client
            .batch_execute(&format!(
                "BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM {schema}.invoices"
            ))
            .await?;
        store.revoke(&resource("job")).await?;
        let refused = client
            .batch_execute(&check(&schema, "job", old.token.get()))
            .await
            .unwrap_err();
        let expected = if level == "READ COMMITTED" {
            "SP001"
        } else {
            "40001"
        };
        assert_eq!(code(&refused), expected, "{level}");
        client.batch_execute("ROLLBACK").await?;
        // And one whose snapshot is older than the first.
        client
            .batch_execute(&format!(
                "BEGIN ISOLATION LEVEL {level}; SELECT count(*) FROM {schema}.invoices"
            ))
            .await?;
        lease(&store, "new", "a").await?;
        store.revoke(&resource("new")).await?;
        let refused = client
            .batch_execute(&check(&schema, "new", 1))
            .await
            .unwrap_err();
        assert_eq!(code(&refused), expected, "{level}");
        client.batch_execute("ROLLBACK").await?;
    }
    Ok(())
}
