//! The backends that are compared. Each gives a store that is new for every
//! sequence, on the clock of the sequence.

use std::sync::Arc;

use statepact::backend::SharedBackend;
use statepact::backend::embedded::EmbeddedOptions;
use statepact::backend::memory::Memory;
use statepact::clock::ManualClock;

#[cfg(feature = "postgres")]
use super::postgres_server;
#[cfg(feature = "redis")]
use super::redis_server;

/// How many events a store keeps: few, so that pruning happens.
pub(crate) const HISTORY: u64 = 20;

/// What new stores are made of.
pub(crate) struct Stores {
    folder: tempfile::TempDir,
    made: u64,
    #[cfg(feature = "redis")]
    redis: redis_server::Server,
    #[cfg(feature = "postgres")]
    postgres: Postgres,
}

/// A server whose one store is emptied for every sequence.
#[cfg(feature = "postgres")]
struct Postgres {
    url: String,
    client: tokio_postgres::Client,
    _server: postgres_server::Server,
}

#[cfg(feature = "postgres")]
impl Postgres {
    async fn start() -> Self {
        let server = postgres_server::Server::start();
        server.sql("ALTER SYSTEM SET synchronous_commit = off");
        server.sql("SELECT pg_reload_conf()");
        let url = server.url("model");
        // Makes the tables.
        statepact::backend::open(&url).await.unwrap();
        let (plain, _) = url.split_once('?').unwrap();
        let (client, connection) = tokio_postgres::connect(plain, tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        Self {
            url,
            client,
            _server: server,
        }
    }

    async fn fresh(&self, clock: &Arc<ManualClock>) -> SharedBackend {
        self.client
            .batch_execute(
                "SET search_path = model;
                 DELETE FROM statepact_leases;
                 DELETE FROM statepact_resources;
                 DELETE FROM statepact_fields;
                 DELETE FROM statepact_log;
                 DELETE FROM statepact_receipts;
                 UPDATE statepact_counter SET newest = 0, oldest = 1, clock = 1",
            )
            .await
            .unwrap();
        let store = statepact::backend::postgres::PostgresOptions::new()
            .clock(clock.clone())
            .history(HISTORY)
            .pool_size(1)
            .open(&self.url)
            .await;
        Arc::new(store.unwrap())
    }
}

impl Stores {
    #[cfg_attr(
        not(feature = "postgres"),
        expect(clippy::unused_async, reason = "a server's client is connected to")
    )]
    pub(crate) async fn start() -> Self {
        // In memory where there is such a folder: what is compared here is not
        // what survives a power cut.
        let shared = std::path::Path::new("/dev/shm");
        let folder = if shared.is_dir() {
            tempfile::tempdir_in(shared)
        } else {
            tempfile::tempdir()
        };
        Self {
            folder: folder.unwrap(),
            made: 0,
            #[cfg(feature = "redis")]
            redis: redis_server::Server::start_with("redis-server", &[]).unwrap(),
            #[cfg(feature = "postgres")]
            postgres: Postgres::start().await,
        }
    }

    /// A new store of each backend; the first is what the others are compared
    /// with.
    pub(crate) async fn fresh(
        &mut self,
        clock: &Arc<ManualClock>,
    ) -> Vec<(&'static str, SharedBackend)> {
        self.made += 1;
        let path = self.folder.path().join(format!("{}.redb", self.made));
        let embedded = EmbeddedOptions::new()
            .clock(clock.clone())
            .history(HISTORY)
            .open(&path)
            .await
            .unwrap();
        // The open file is all that is needed of it.
        if self.made > 1 {
            let before = self.folder.path().join(format!("{}.redb", self.made - 1));
            let _ = std::fs::remove_file(before);
        }
        let memory = Memory::with_clock_and_history(clock.clone(), HISTORY);
        vec![
            ("memory", Arc::new(memory)),
            ("embedded", Arc::new(embedded)),
            #[cfg(feature = "redis")]
            ("redis", self.fresh_redis(clock).await),
            #[cfg(feature = "postgres")]
            ("postgres", self.postgres.fresh(clock).await),
        ]
    }

    #[cfg(feature = "redis")]
    async fn fresh_redis(&self, clock: &Arc<ManualClock>) -> SharedBackend {
        self.redis.done(&["FLUSHALL"]).unwrap();
        let store = statepact::backend::redis::RedisOptions::new(self.redis.url())
            .clock(clock.clone())
            .history(HISTORY)
            .open()
            .await
            .unwrap();
        Arc::new(store)
    }
}
