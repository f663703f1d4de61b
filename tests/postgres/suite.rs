//! The conformance suite, each case in a schema of its own.

use std::sync::Arc;

use async_trait::async_trait;
use libtest_mimic::{Failed, Trial};
use statepact::backend::SharedBackend;
use statepact::backend::memory::DEFAULT_HISTORY;
use statepact::backend::postgres::{Postgres, PostgresOptions};
use statepact::clock::ManualClock;
use statepact::conformance::{Fixture, FixtureError, Outcome, Store, cases};
use tokio::runtime::Runtime;

use crate::server::new_schema;
use crate::{pooler, server};

/// How the cases reach the server.
#[derive(Clone, Copy)]
enum Through {
    Socket,
    Pooler,
}

pub(crate) fn add(trials: &mut Vec<Trial>, runtime: &Arc<Runtime>) {
    for (name, through) in [("suite", Through::Socket), ("pgbouncer", Through::Pooler)] {
        for case in cases() {
            let runtime = runtime.clone();
            trials.push(Trial::test(format!("{name}::{}", case.name()), move || {
                let report = runtime.block_on(case.run(Arc::new(Schemas(through))));
                match report.outcome() {
                    Outcome::Passed => Ok(()),
                    _ => Err(Failed::from(report.to_string())),
                }
            }));
        }
    }
}

struct Schemas(Through);

struct SchemaStore {
    url: String,
    clock: Arc<ManualClock>,
    history: u64,
    backend: Option<Arc<Postgres>>,
}

impl SchemaStore {
    async fn open(through: Through, history: u64) -> Result<Self, FixtureError> {
        let schema = new_schema();
        let mut store = Self {
            url: match through {
                Through::Socket => server().url(&schema),
                Through::Pooler => {
                    let _ = server();
                    pooler().url(&schema)
                }
            },
            clock: Arc::new(ManualClock::new()),
            history,
            backend: None,
        };
        store.backend = Some(store.handle().await?);
        Ok(store)
    }

    async fn handle(&self) -> Result<Arc<Postgres>, FixtureError> {
        let options = PostgresOptions::new()
            .clock(self.clock.clone())
            .history(self.history);
        Ok(Arc::new(options.open(&self.url).await?))
    }
}

#[async_trait]
impl Fixture for Schemas {
    async fn open(&self) -> Result<Box<dyn Store>, FixtureError> {
        Ok(Box::new(SchemaStore::open(self.0, DEFAULT_HISTORY).await?))
    }

    async fn open_with_history(&self, events: u64) -> Result<Option<Box<dyn Store>>, FixtureError> {
        Ok(Some(Box::new(SchemaStore::open(self.0, events).await?)))
    }
}

#[async_trait]
impl Store for SchemaStore {
    fn backend(&self) -> SharedBackend {
        self.backend.clone().expect("the store is open")
    }

    fn clock(&self) -> Option<Arc<ManualClock>> {
        Some(self.clock.clone())
    }

    async fn another_handle(&self) -> Result<Option<SharedBackend>, FixtureError> {
        Ok(Some(self.handle().await?))
    }

    async fn reopen(&mut self) -> Result<bool, FixtureError> {
        self.backend = None;
        self.backend = Some(self.handle().await?);
        Ok(true)
    }
}
