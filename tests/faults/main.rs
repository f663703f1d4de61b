//! Faults on real servers: cut connections, kills, hangs, and waiting through
//! them. R1, R13, R20, R25, R26.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "all of it is test code; clippy knows only functions marked as tests"
)]

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../servers/postgres.rs"]
mod postgres_server;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../servers/redis.rs"]
mod redis_server;

mod calls;
mod cuts;
mod hangs;
mod kills;
mod proxy;
mod support;
mod transactions;
mod waiting;
