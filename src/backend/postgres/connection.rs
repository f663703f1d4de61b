//! Connections of the pool, and statements sent without waiting in between.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use deadpool_postgres::{
    Client, Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime, Timeouts,
};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::failure;
use super::options::{PostgresOptions, Target};
use super::tls::Tls;
use crate::clock::{Clock, Monotonic, SystemClock};
use crate::error::{Error, Result};

pub(super) fn pool(target: Target, tls: Tls, options: &PostgresOptions) -> Result<Pool> {
    let config = ManagerConfig {
        // Asks nothing of the server, so that a pooler need not keep a session.
        recycling_method: RecyclingMethod::Fast,
    };
    Pool::builder(Manager::from_config(target.config, tls, config))
        .max_size(options.pool_size)
        .runtime(Runtime::Tokio1)
        .timeouts(Timeouts {
            wait: Some(options.acquire_timeout),
            create: Some(options.connect_timeout),
            recycle: Some(options.connect_timeout),
        })
        .build()
        .map_err(|error| Error::Storage {
            message: format!("the pool of connections cannot be set up: {error}"),
        })
}

/// A connection that goes back to the pool only when what was done on it ended
/// cleanly: however else it is let go of, it is closed (R25), and the server
/// rolls back what was not committed.
pub(super) struct Lent {
    client: Option<Client>,
    clean: bool,
    /// It was in the pool, and the server may have closed it since.
    pub(super) used_before: bool,
    since: Monotonic,
}

impl Lent {
    pub(super) async fn from(pool: &Pool) -> Result<Self> {
        let since = SystemClock.monotonic();
        let client = pool
            .get()
            .await
            .map_err(|error| failure::of_pool(&error, SystemClock.monotonic().since(since)))?;
        let used_before = Object::metrics(&client).recycle_count > 0;
        Ok(Self {
            client: Some(client),
            clean: false,
            used_before,
            since: SystemClock.monotonic(),
        })
    }

    /// What was begun has ended: the connection may go back.
    pub(super) fn ended(mut self) {
        self.clean = true;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.as_ref().is_none_or(|client| client.is_closed())
    }

    pub(super) fn waited(&self) -> Duration {
        SystemClock.monotonic().since(self.since)
    }

    /// Sends all the statements at once and takes the answers in order; the
    /// first that failed. Nothing after `patience`.
    pub(super) async fn send(
        &self,
        statements: &[Statement],
        patience: Duration,
    ) -> Result<Vec<Vec<Row>>, Failed> {
        let Some(client) = &self.client else {
            return Err(Failed::Silent);
        };
        match tokio::time::timeout(patience, pipeline(client, statements)).await {
            Ok(answers) => answers.map_err(Failed::Answered),
            Err(_) => Err(Failed::Silent),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(client) = self.client.take()
            && (!self.clean || client.is_closed())
        {
            drop(Object::take(client));
        }
    }
}

/// Why a round trip failed.
#[derive(Debug)]
pub(super) enum Failed {
    /// With an error, of the server or of the connection.
    Answered(tokio_postgres::Error),
    /// Nothing was heard in time.
    Silent,
}

impl Failed {
    /// Whether the connection is of no use any more.
    pub(super) fn is_lost(&self) -> bool {
        match self {
            Self::Answered(error) => failure::is_lost(error),
            Self::Silent => true,
        }
    }

    /// When nothing was sent that could commit.
    pub(super) fn before_commit(&self, waited: Duration) -> Error {
        match self {
            Self::Answered(error) => failure::before_commit(error, waited),
            Self::Silent => Error::Unavailable {
                message: format!("nothing was heard of the server for {waited:?}"),
            },
        }
    }

    /// When the `COMMIT` was sent.
    pub(super) fn while_committing(&self, waited: Duration) -> Error {
        match self {
            Self::Answered(error) => failure::while_committing(error, waited),
            Self::Silent => Error::OutcomeUnknown {
                message: format!("the server did not answer a commit within {waited:?}"),
            },
        }
    }
}

/// A value for a statement.
pub(super) type Param = (Box<dyn ToSql + Send + Sync>, Type);

pub(super) fn texts<S: Into<String>>(values: impl IntoIterator<Item = S>) -> Param {
    let values: Vec<String> = values.into_iter().map(Into::into).collect();
    (Box::new(values), Type::TEXT_ARRAY)
}

pub(super) fn integers(values: impl IntoIterator<Item = Option<i64>>) -> Param {
    let values: Vec<Option<i64>> = values.into_iter().collect();
    (Box::new(values), Type::INT8_ARRAY)
}

pub(super) fn booleans(values: impl IntoIterator<Item = bool>) -> Param {
    let values: Vec<bool> = values.into_iter().collect();
    (Box::new(values), Type::BOOL_ARRAY)
}

pub(super) fn text(value: impl Into<String>) -> Param {
    (Box::new(value.into()), Type::TEXT)
}

pub(super) fn optional_text(value: Option<String>) -> Param {
    (Box::new(value), Type::TEXT)
}

pub(super) fn integer(value: impl Into<Option<i64>>) -> Param {
    let value: Option<i64> = value.into();
    (Box::new(value), Type::INT8)
}

/// One statement. None is ever prepared under a name: a pooler may give the
/// next transaction another server.
pub(super) enum Statement {
    /// Several commands without parameters and results.
    Batch(Arc<str>),
    /// One command.
    Query(Arc<str>, Vec<Param>),
}

impl Statement {
    pub(super) fn batch(sql: impl Into<Arc<str>>) -> Self {
        Self::Batch(sql.into())
    }

    pub(super) fn query(sql: &Arc<str>, params: Vec<Param>) -> Self {
        Self::Query(sql.clone(), params)
    }

    async fn run(&self, client: &Client) -> Result<Vec<Row>, tokio_postgres::Error> {
        match self {
            Self::Batch(sql) => client.batch_execute(sql).await.map(|()| Vec::new()),
            Self::Query(sql, params) => {
                let params: Vec<(&(dyn ToSql + Sync), Type)> = params
                    .iter()
                    .map(|(value, of)| (&**value as &(dyn ToSql + Sync), of.clone()))
                    .collect();
                client.query_typed(sql, &params).await
            }
        }
    }
}

/// A statement is sent when its future is first polled, before it waits: so
/// all of them leave in their order before the first is answered.
async fn pipeline(
    client: &Client,
    statements: &[Statement],
) -> Result<Vec<Vec<Row>>, tokio_postgres::Error> {
    type Running<'a> =
        Pin<Box<dyn Future<Output = Result<Vec<Row>, tokio_postgres::Error>> + Send + 'a>>;
    let mut running: Vec<(Option<Running<'_>>, Vec<Row>)> = statements
        .iter()
        .map(|statement| {
            (
                Some(Box::pin(statement.run(client)) as Running<'_>),
                Vec::new(),
            )
        })
        .collect();
    let mut first_error = None;
    poll_fn(|context| {
        let mut pending = false;
        for (future, rows) in &mut running {
            let Some(work) = future else { continue };
            match work.as_mut().poll(context) {
                Poll::Pending => pending = true,
                Poll::Ready(answer) => {
                    *future = None;
                    match answer {
                        Ok(answer) => *rows = answer,
                        Err(error) if first_error.is_none() => first_error = Some(error),
                        Err(_) => {}
                    }
                }
            }
        }
        if pending {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
    match first_error {
        Some(error) => Err(error),
        None => Ok(running.into_iter().map(|(_, rows)| rows).collect()),
    }
}
