//! The backends.

use std::sync::Arc;

use statepact::backend::SharedBackend;
use statepact::backend::memory::Memory;

use super::clients::load;

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
