//! The backends.

use std::sync::Arc;

use statepact::backend::SharedBackend;
use statepact::backend::memory::Memory;

use super::clients::load;
#[cfg(feature = "postgres")]
use super::postgres_server;
#[cfg(feature = "redis")]
use super::redis_server;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory() {
    let store: SharedBackend = Arc::new(Memory::new());
    load("memory", async || store.clone()).await;
}

#[cfg(feature = "embedded")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.redb");
    load("embedded", async || {
        statepact::backend::open(&path.to_string_lossy())
            .await
            .unwrap()
    })
    .await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis() {
    let server = redis_server::Server::start("redis-server", &[]).unwrap();
    load("redis", async || {
        statepact::backend::open(&server.url()).await.unwrap()
    })
    .await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    let server = postgres_server::Server::start();
    load("postgres", async || {
        statepact::backend::open(&server.url("load")).await.unwrap()
    })
    .await;
}
