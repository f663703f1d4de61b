//! Rows that hold what this crate does not write (R29), and tables that are
//! not there.

use std::collections::BTreeMap;
use std::sync::Arc;

use libtest_mimic::{Failed, Trial};
use statepact::backend::postgres::Postgres;
use statepact::backend::{Backend, Change, CommitRequest, ResourceWrite};
use statepact::{AgentName, CommitId, Error, ErrorKind, FieldName, Result, Value};
use tokio::runtime::Runtime;

use crate::server::new_schema;
use crate::{lease, request, resource, server, trial};

pub(crate) fn add(trials: &mut Vec<Trial>, runtime: &Arc<Runtime>) {
    trials.extend([
        trial(
            runtime,
            "damage::r29_each_damage_is_found_where_it_is",
            each_damage,
        ),
        trial(
            runtime,
            "damage::a_check_finds_what_reads_pass_over",
            only_by_a_check,
        ),
        trial(
            runtime,
            "damage::tables_that_are_gone_are_not_made_again",
            no_tables,
        ),
        trial(runtime, "damage::names_of_any_legal_characters", names),
    ]);
}

fn commit(on: &str) -> Result<CommitRequest> {
    let fields = BTreeMap::from([(FieldName::new("f")?, Some(Value::encode("\0 is allowed")?))]);
    Ok(CommitRequest {
        id: Some(CommitId::from_bits(7)),
        agent: AgentName::new("agent")?,
        fences: Vec::new(),
        checks: Vec::new(),
        writes: vec![ResourceWrite {
            resource: resource(on),
            change: Change::Fields(fields),
            fenced: None,
        }],
    })
}

/// A store with a lease and a commit.
async fn store() -> Result<(Postgres, String)> {
    let schema = new_schema();
    let store = Postgres::open(&server().url(&schema)).await?;
    lease(&store, "job", "a").await?;
    store.commit(&commit("job")?).await?;
    store.check(&|_| {}).await?;
    Ok((store, schema))
}

/// Every call; those that failed, with how.
async fn all_calls(store: &Postgres) -> Vec<Error> {
    let job = resource("job");
    let mut errors = Vec::new();
    errors.extend(store.lease_status(&job).await.err());
    errors.extend(store.read(std::slice::from_ref(&job)).await.err());
    errors.extend(store.list("", None, 10).await.err());
    errors.extend(store.events(0, 10).await.err());
    errors.extend(store.acquire_all(&request("job", "a")).await.err());
    match commit("job") {
        Ok(commit) => errors.extend(store.commit(&commit).await.err()),
        Err(error) => errors.push(error),
    }
    errors
}

async fn each_damage() -> Result<(), Failed> {
    for (damage, at) in [
        (
            "UPDATE {s}.statepact_leases SET owner = ''",
            "statepact_leases",
        ),
        (
            "ALTER TABLE {s}.statepact_leases DROP CONSTRAINT statepact_leases_check; \
             UPDATE {s}.statepact_leases SET ttl = NULL",
            "statepact_leases",
        ),
        (
            "ALTER TABLE {s}.statepact_leases DROP CONSTRAINT statepact_leases_mark_check; \
             UPDATE {s}.statepact_leases SET mark = -1",
            "statepact_leases",
        ),
        (
            "ALTER TABLE {s}.statepact_leases DROP CONSTRAINT statepact_leases_mark_check; \
             ALTER TABLE {s}.statepact_leases ALTER mark TYPE text",
            "statepact_leases",
        ),
        (
            "UPDATE {s}.statepact_fields SET field = ''",
            "statepact_fields",
        ),
        (
            "ALTER TABLE {s}.statepact_resources DROP CONSTRAINT statepact_resources_version_check; \
             UPDATE {s}.statepact_resources SET version = -4",
            "statepact_resources",
        ),
        (
            "UPDATE {s}.statepact_log SET event = '{\"revoked\": {}}'",
            "statepact_log",
        ),
        (
            "UPDATE {s}.statepact_log SET event = '[]' WHERE sequence = 2",
            "statepact_log`, key `2`",
        ),
        (
            "DELETE FROM {s}.statepact_log WHERE sequence = 1",
            "statepact_log`, key `1`",
        ),
        (
            "DELETE FROM {s}.statepact_log WHERE sequence = 2",
            "statepact_log`, key `2`",
        ),
        (
            "UPDATE {s}.statepact_receipts SET versions = '{}'",
            "statepact_receipts",
        ),
        ("DELETE FROM {s}.statepact_counter", "statepact_counter"),
        (
            "UPDATE {s}.statepact_counter SET newest = -1",
            "statepact_counter",
        ),
    ] {
        let (store, schema) = store().await?;
        server().sql(&damage.replace("{s}", &schema));
        let errors = all_calls(&store).await;
        assert!(!errors.is_empty(), "{damage}: nobody found it");
        let mut errors_and_check = errors;
        errors_and_check.extend(store.check(&|_| {}).await.err());
        let mut found = false;
        for error in errors_and_check {
            if let Error::Corrupt { location, .. } = &error {
                found |= location.contains(at);
            }
            assert!(
                matches!(
                    error.kind(),
                    ErrorKind::Corrupt | ErrorKind::ResourceNotFound
                ),
                "{damage}: {error}"
            );
        }
        assert!(found, "{damage}: not found in {at}");
    }
    Ok(())
}

async fn only_by_a_check() -> Result<(), Failed> {
    for (damage, at) in [
        (
            "DELETE FROM {s}.statepact_resources",
            "`statepact_fields`, key `job, f`",
        ),
        (
            "UPDATE {s}.statepact_fields SET version = 99",
            "`statepact_fields`, key `job, f`",
        ),
        (
            "UPDATE {s}.statepact_leases SET token = 9",
            "`statepact_leases`, key `job`",
        ),
        (
            "UPDATE {s}.statepact_leases SET resource = E'a\tb'",
            "`statepact_leases`",
        ),
        (
            "UPDATE {s}.statepact_receipts SET sequence = -1",
            "`statepact_receipts`",
        ),
    ] {
        let (store, schema) = store().await?;
        server().sql(&damage.replace("{s}", &schema));
        let found = store.check(&|_| {}).await.unwrap_err();
        assert_eq!(found.kind(), ErrorKind::Corrupt, "{damage}");
        assert!(found.to_string().contains(at), "{damage}: {found}");
        // The connection it was on is of use.
        store.now().await?;
    }
    Ok(())
}

async fn no_tables() -> Result<(), Failed> {
    let (store, schema) = store().await?;
    server().sql(&format!("DROP SCHEMA {schema} CASCADE"));
    let error = store.read(&[resource("job")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
    let error = lease(&store, "job", "a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Storage, "{error}");
    assert!(!error.is_retryable());
    Ok(())
}

async fn names() -> Result<(), Failed> {
    let store = Postgres::open(&server().url(&new_schema())).await?;
    let longest = "ß".repeat(256);
    let mut names = [
        "%",
        "%_",
        "_",
        "\\",
        "a\\",
        "a%",
        "a_b",
        "'",
        "\"",
        "$1",
        "$statepact$",
        "{}",
        "/",
        " ",
        "NULL",
        "é",
        "e\u{301}",
        "Z",
        "z",
        "\u{FFFD}",
        "\u{1F600}",
        "\u{10FFFF}",
        &longest,
    ];
    for name in names {
        let held = lease(&store, name, name).await?;
        store
            .commit(&CommitRequest {
                id: None,
                ..commit(name)?
            })
            .await?;
        assert_eq!(
            store.lease_status(&held.resource).await?.lease.unwrap().0,
            held
        );
    }
    names.sort_unstable();
    for prefix in [
        "",
        "%",
        "_",
        "a",
        "\\",
        "é",
        "\u{1F600}",
        "\u{10FFFF}",
        "ß",
        "none",
        "\0",
    ] {
        let listed = store.list(prefix, None, 100).await?;
        let listed: Vec<&str> = listed.iter().map(|found| found.resource.as_str()).collect();
        let expected: Vec<&str> = names
            .into_iter()
            .filter(|name| name.starts_with(prefix))
            .collect();
        assert_eq!(listed, expected, "{prefix:?}");
    }
    store.check(&|_| {}).await?;
    Ok(())
}
