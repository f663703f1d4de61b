//! Random sequences of calls, on every backend that this build has, compared
//! call by call (R30): outcomes, tokens, versions, error kinds and details.
//!
//! `STATEPACT_MODEL_SEQUENCES` sets how many sequences are tried, 2,000 unless
//! set. A sequence that fails is shrunk and printed with its seed, which
//! `STATEPACT_MODEL_SEED` replays.

#[cfg(test)]
#[path = "model"]
mod model {
    mod run;
    mod steps;
    mod stores;

    #[cfg(feature = "postgres")]
    #[allow(dead_code, reason = "other tests use the rest")]
    #[path = "../servers/postgres.rs"]
    mod postgres_server;

    #[cfg(feature = "redis")]
    #[allow(dead_code, reason = "other tests use the rest")]
    #[path = "../servers/redis.rs"]
    mod redis_server;
}
