//! What the handles of a store share, and its time.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use deadpool_postgres::Pool;
use tokio_postgres::Row;

use super::connection::{Failed, Lent, Param, Statement, integer};
use super::listen::Listener;
use super::options::{self, PostgresOptions};
use super::sql::Sql;
use super::tls::Tls;
use super::{connection, schema};
use crate::backend::Waiters;
use crate::clock::{Clock, Monotonic, Timestamp};
use crate::error::Result;

pub(super) struct Store {
    pub(super) pool: Pool,
    pub(super) sql: Sql,
    pub(super) time: StoreTime,
    pub(super) history: u64,
    pub(super) patience: Duration,
    pub(super) waiters: Waiters,
    pub(super) listener: Listener,
    pub(super) schema: String,
}

// The pool would print its configuration.
impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("schema", &self.schema)
            .finish_non_exhaustive()
    }
}

impl Store {
    pub(super) async fn open(url: &str, mut options: PostgresOptions) -> Result<Self> {
        let target = options::parse_url(url, options.connect_timeout)?;
        if let Some(schema) = &target.schema {
            options.schema.clone_from(schema);
        }
        options::check_schema(&options.schema)?;
        let tls = Tls::new(&target.trust)?;
        let listener = Listener::new(options.listen.then(|| (target.config.clone(), tls.clone())));
        let pool = connection::pool(target, tls, &options)?;
        schema::migrate(&pool, &options).await?;
        Ok(Self {
            sql: Sql::new(&options),
            time: StoreTime::new(options.clock.clone()),
            history: options.history,
            patience: options.patience(),
            waiters: Waiters::new(),
            listener,
            schema: options.schema,
            pool,
        })
    }

    /// One statement, which is its own transaction: one round trip, one
    /// snapshot.
    pub(super) async fn ask(&self, question: Statement) -> Result<Vec<Row>> {
        let question = [question];
        loop {
            let lent = Lent::from(&self.pool).await?;
            match lent.send(&question, self.patience).await {
                Ok(answers) => {
                    lent.ended();
                    return Ok(answers.into_iter().next().unwrap_or_default());
                }
                // The server closed it while it was in the pool.
                Err(Failed::Answered(_)) if lent.used_before && lent.is_closed() => {}
                Err(failed) => {
                    let error = failed.before_commit(lent.waited());
                    if !failed.is_lost() {
                        lent.ended();
                    }
                    return Err(error);
                }
            }
        }
    }
}

/// The store's time (R11): the server's, or that of a clock that a test has
/// given. It does not run backwards behind what the store's log or this handle
/// has seen, whatever is done to the server's clock.
#[derive(Debug)]
pub(super) struct StoreTime {
    given: Option<Given>,
    seen: AtomicI64,
}

#[derive(Debug)]
struct Given {
    clock: Arc<dyn Clock>,
    start: (Timestamp, Monotonic),
}

impl StoreTime {
    fn new(clock: Option<Arc<dyn Clock>>) -> Self {
        Self {
            given: clock.map(|clock| Given {
                start: (clock.wall(), clock.monotonic()),
                clock,
            }),
            seen: AtomicI64::new(1),
        }
    }

    /// The two parameters from which a statement makes the time.
    pub(super) fn params(&self) -> Vec<Param> {
        let given = self.given.as_ref().map(|given| {
            let (wall, monotonic) = given.start;
            wall.plus(given.clock.monotonic().since(monotonic))
                .as_millis()
        });
        vec![integer(given), integer(self.seen.load(Ordering::Acquire))]
    }

    pub(super) fn saw(&self, millis: i64) -> Timestamp {
        self.seen.fetch_max(millis, Ordering::AcqRel);
        Timestamp::from_millis(millis)
    }
}
