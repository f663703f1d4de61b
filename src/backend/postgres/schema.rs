//! The tables, and bringing them to the version that this crate knows.

use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::Pool;

use super::connection::{Lent, Statement, text};
use super::failure;
use super::options::PostgresOptions;
use crate::error::{Error, Result};

/// The version of the schema that this crate writes.
const VERSION: i32 = 1;

/// What brings a schema from the version at its index to the next. Never
/// changed once released: a new version is added at the end. `{schema}` is the
/// schema's quoted name, `{name}` the same unquoted; both were checked to need
/// no escaping.
const STEPS: &[&str] = &[include_str!("schema_1.sql")];

/// Makes or updates the tables, or finds that they are as they must be. Any
/// number of processes may do it at once: they wait for one another on a lock
/// that ends with the transaction.
pub(super) async fn migrate(pool: &Pool, options: &PostgresOptions) -> Result<()> {
    let name = &options.schema;
    let found = version(pool, options).await?;
    if found == Some(VERSION) {
        return Ok(());
    }
    refuse_newer(name, found)?;
    if !options.migrate {
        return Err(Error::Storage {
            message: match found {
                None => format!("schema `{name}` holds no store: open it once with migrations on"),
                Some(found) => format!(
                    "schema `{name}` has version {found}, and version {VERSION} is needed: open \
                     it once with migrations on"
                ),
            },
        });
    }
    let lent = Lent::from(pool).await?;
    let patience = options.patience();
    let send = |statements: Vec<Statement>| {
        let lent = &lent;
        async move {
            lent.send(&statements, patience)
                .await
                .map_err(|failed| failed.before_commit(lent.waited()))
        }
    };
    send(vec![
        Statement::batch(begin(options)),
        Statement::query(
            &"SELECT pg_catalog.pg_advisory_xact_lock(\
                pg_catalog.hashtextextended($1 || '/migrate', 0))"
                .into(),
            vec![text(name)],
        ),
    ])
    .await?;
    // Read again under the lock: another process may have been first.
    let found = read_version(&lent, options).await?;
    refuse_newer(name, found)?;
    let done = usize::try_from(found.unwrap_or(0)).unwrap_or(0);
    let mut statements: Vec<Statement> = STEPS
        .iter()
        .skip(done)
        .map(|step| {
            let sql = step
                .replace("{schema}", &quoted(name))
                .replace("{name}", name);
            Statement::batch(sql)
        })
        .collect();
    if found.is_none() && !exists(&lent, options).await? {
        // Not IF NOT EXISTS: that asks for the right to create all the same.
        statements.insert(
            0,
            Statement::batch(format!("CREATE SCHEMA {}", quoted(name))),
        );
    }
    statements.push(Statement::batch(format!(
        "UPDATE {}.statepact_meta SET version = {VERSION}; COMMIT",
        quoted(name)
    )));
    lent.send(&statements, patience)
        .await
        .map_err(|failed| failed.while_committing(lent.waited()))?;
    lent.ended();
    Ok(())
}

pub(super) fn quoted(schema: &str) -> String {
    format!("\"{schema}\"")
}

/// Begins a transaction with its own limits, whatever the server's defaults
/// are; all of them end with it. A commit that the server would acknowledge
/// before it is on disk could give a token out twice (R1, R20).
pub(super) fn begin(options: &PostgresOptions) -> Arc<str> {
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {}; \
         SELECT pg_catalog.set_config('synchronous_commit', 'on', true) \
         WHERE pg_catalog.current_setting('synchronous_commit') = 'off'",
        limits(options),
    )
    .into()
}

/// Begins a transaction that reads several times from one snapshot.
pub(super) fn begin_snapshot(options: &PostgresOptions) -> Arc<str> {
    format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {}",
        limits(options)
    )
    .into()
}

fn limits(options: &PostgresOptions) -> String {
    let millis = |timeout: Duration| timeout.as_millis().clamp(1, 2_147_483_647);
    format!(
        "SET LOCAL lock_timeout = {}; SET LOCAL statement_timeout = {}; \
         SET LOCAL idle_in_transaction_session_timeout = {}",
        millis(options.lock_timeout),
        millis(options.statement_timeout),
        millis(options.patience()),
    )
}

fn refuse_newer(schema: &str, found: Option<i32>) -> Result<()> {
    match found {
        Some(found) if found > VERSION => Err(Error::Storage {
            message: format!(
                "schema `{schema}` has version {found}, made by a newer version of statepact; \
                 this one knows {VERSION}: upgrade it"
            ),
        }),
        _ => Ok(()),
    }
}

/// The version of the schema; `None` when it holds no store.
async fn version(pool: &Pool, options: &PostgresOptions) -> Result<Option<i32>> {
    let lent = Lent::from(pool).await?;
    let version = read_version(&lent, options).await?;
    lent.ended();
    Ok(version)
}

async fn read_version(lent: &Lent, options: &PostgresOptions) -> Result<Option<i32>> {
    let name = &options.schema;
    let table = format!("{}.statepact_meta", quoted(name));
    let present = Statement::query(
        // Not to_regclass, which may answer from a cache that does not know yet
        // what was committed a moment ago.
        &"SELECT EXISTS (SELECT FROM pg_catalog.pg_class AS t \
                JOIN pg_catalog.pg_namespace AS s ON s.oid = t.relnamespace \
                WHERE s.nspname = $1 AND t.relname = 'statepact_meta'), \
            pg_catalog.current_setting('server_encoding')"
            .into(),
        vec![text(name)],
    );
    let rows = ask(lent, options, present).await?;
    let row = rows.first().ok_or_else(|| no_row(name))?;
    let (present, encoding): (bool, String) = (row.get(0), row.get(1));
    if encoding != "UTF8" {
        return Err(Error::Storage {
            message: format!(
                "the database's encoding is {encoding}: names need one with ENCODING 'UTF8'"
            ),
        });
    }
    if !present {
        return Ok(None);
    }
    let version = Statement::query(&format!("SELECT version FROM {table}").into(), Vec::new());
    let rows = ask(lent, options, version).await?;
    let row = rows.first().ok_or_else(|| no_row(name))?;
    row.try_get(0)
        .map(Some)
        .map_err(|error| failure::corrupt("statepact_meta", "version", failure::describe(&error)))
}

async fn exists(lent: &Lent, options: &PostgresOptions) -> Result<bool> {
    let schema = Statement::query(
        &"SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1".into(),
        vec![text(&options.schema)],
    );
    Ok(!ask(lent, options, schema).await?.is_empty())
}

async fn ask(
    lent: &Lent,
    options: &PostgresOptions,
    question: Statement,
) -> Result<Vec<tokio_postgres::Row>> {
    let answers = lent
        .send(&[question], options.patience())
        .await
        .map_err(|failed| failed.before_commit(lent.waited()))?;
    Ok(answers.into_iter().next().unwrap_or_default())
}

fn no_row(schema: &str) -> Error {
    failure::corrupt(
        "statepact_meta",
        schema,
        "the row with the version is missing",
    )
}
