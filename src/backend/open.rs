//! Opening a store by the name that a user gives it.

use std::sync::Arc;

use super::SharedBackend;
use super::memory::Memory;
use crate::error::{Error, Result};

/// A kind of server.
#[derive(Debug, Clone, Copy)]
enum Server {
    Postgres,
    Redis,
}

/// The server that a scheme names. A name that begins with one is no path: a
/// private file in place of a server shared by many would give each its own
/// lease.
fn server(scheme: &str) -> Option<Server> {
    match scheme {
        "postgres" | "postgresql" => Some(Server::Postgres),
        "redis" | "rediss" | "redis+unix" | "valkey" | "valkeys" | "valkey+unix" => {
            Some(Server::Redis)
        }
        _ => None,
    }
}

/// Whether `url` names a store on a server, and not a file: also when it is
/// written wrongly.
pub fn names_server(url: &str) -> bool {
    url.split_once(':')
        .is_some_and(|(scheme, _)| server(scheme).is_some())
}

/// Opens the store that `url` names: `memory:`, the path of a file, with or
/// without `file:` before it, the `postgres://…` URL of a database
/// (`backend::postgres::PostgresOptions` tells its form), or the `redis://…`
/// URL of a server (`backend::redis::RedisOptions`).
///
/// # Errors
/// [`Error::InvalidArgument`] when the URL's scheme is not one that this build
/// has; otherwise what opening that backend says.
pub async fn open(url: &str) -> Result<SharedBackend> {
    if let Some((scheme, rest)) = url.split_once(':')
        && let Some(server) = server(scheme)
    {
        return match server {
            _ if !rest.starts_with("//") => Err(Error::invalid(
                "store",
                format!("write `{scheme}://…` for a server, or `./{url}` for a file of that name"),
            )),
            Server::Postgres => open_postgres(url).await,
            Server::Redis => open_redis(url).await,
        };
    }
    match url.split_once(':') {
        Some(("memory", "")) => Ok(Arc::new(Memory::new())),
        Some(("file", path)) => open_path(path.strip_prefix("//").unwrap_or(path)).await,
        Some((scheme, rest)) if rest.starts_with("//") => Err(Error::invalid(
            "store",
            format!(
                "`{scheme}:` is not a store that this crate knows: give a path, `memory:`, \
                 `postgres://…` or `redis://…`"
            ),
        )),
        _ => open_path(url).await,
    }
}

#[cfg(feature = "embedded")]
async fn open_path(path: &str) -> Result<SharedBackend> {
    Ok(Arc::new(super::embedded::Embedded::open(path).await?))
}

#[cfg(not(feature = "embedded"))]
fn open_path(path: &str) -> std::future::Ready<Result<SharedBackend>> {
    std::future::ready(Err(Error::invalid(
        "store",
        format!("`{path}` is a file, and this build has no feature `embedded`"),
    )))
}

#[cfg(feature = "redis")]
async fn open_redis(url: &str) -> Result<SharedBackend> {
    Ok(Arc::new(super::redis::Redis::open(url).await?))
}

#[cfg(not(feature = "redis"))]
fn open_redis(_: &str) -> std::future::Ready<Result<SharedBackend>> {
    std::future::ready(Err(Error::invalid(
        "store",
        "it is on a Redis server, and this build has no feature `redis`",
    )))
}

#[cfg(feature = "postgres")]
async fn open_postgres(url: &str) -> Result<SharedBackend> {
    Ok(Arc::new(super::postgres::Postgres::open(url).await?))
}

#[cfg(not(feature = "postgres"))]
fn open_postgres(_: &str) -> std::future::Ready<Result<SharedBackend>> {
    std::future::ready(Err(Error::invalid(
        "store",
        "it is in a PostgreSQL database, and this build has no feature `postgres`",
    )))
}
