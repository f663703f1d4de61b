//! The backends that are compared. Each gives a store that is new for every
//! sequence, on the clock of the sequence.

use std::sync::Arc;

use statepact::backend::SharedBackend;
use statepact::backend::embedded::EmbeddedOptions;
use statepact::backend::memory::Memory;
use statepact::clock::ManualClock;

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
}

impl Stores {
    pub(crate) fn start() -> Self {
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
        let mut stores: Vec<(&'static str, SharedBackend)> = vec![
            ("memory", Arc::new(memory)),
            ("embedded", Arc::new(embedded)),
        ];
        #[cfg(feature = "redis")]
        {
            self.redis.done(&["FLUSHALL"]).unwrap();
            let store = statepact::backend::redis::RedisOptions::new(self.redis.url())
                .clock(clock.clone())
                .history(HISTORY)
                .open()
                .await
                .unwrap();
            stores.push(("redis", Arc::new(store)));
        }
        stores
    }
}
