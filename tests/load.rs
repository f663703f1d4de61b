//! 64 clients on 8 resources for a while, on every backend that this build
//! has: no token is issued twice, no update is lost, and no write comes after
//! one with a newer token. Checked from the clients' own records.
//!
//! `STATEPACT_LOAD_SECONDS` sets for how long, 20 unless set.

#[cfg(test)]
#[path = "load"]
mod load {
    mod clients;
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
