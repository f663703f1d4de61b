//! Copies between any two backends that this build has: what is stored, and
//! the history, are the same afterwards, and tokens go on above all that the
//! original had issued (R1).

#[cfg(test)]
#[cfg(feature = "embedded")]
#[path = "copying"]
mod copying {
    mod pairs;

    #[cfg(feature = "postgres")]
    #[allow(dead_code, reason = "other tests use the rest")]
    #[path = "../servers/postgres.rs"]
    mod postgres_server;

    #[cfg(feature = "redis")]
    #[allow(dead_code, reason = "other tests use the rest")]
    #[path = "../servers/redis.rs"]
    mod redis_server;
}
