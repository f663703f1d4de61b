//! What the tests share: the two servers under one name, and requests.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use statepact::backend::postgres::PostgresOptions;
use statepact::backend::redis::RedisOptions;
use statepact::backend::{AcquireRequest, Backend, Change, CommitRequest, ResourceWrite};
use statepact::clock::{Clock, ManualClock, SystemClock};
use statepact::{AgentName, CommitId, Error, FieldName, OwnerName, ResourceName, Ttl, Value};

use crate::{postgres_server, redis_server};

/// No test comes near it unless something hangs.
pub(crate) const CEILING: Duration = Duration::from_secs(60);

/// Of PostgreSQL's connections one can be cut and another be at hand.
pub(crate) const POOL_SIZE: usize = 3;

/// Fails when something has not come to be for very long.
pub(crate) async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(CEILING, work).await;
    done.unwrap_or_else(|_| panic!("it hangs: {what}"))
}

/// Looks again and again until it is so.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    within(what, async {
        while !is_so().await {
            SystemClock.sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Postgres,
    Redis,
}

pub(crate) enum Server {
    Postgres(postgres_server::Server),
    Redis(redis_server::Server),
}

/// How to open a store.
#[derive(Debug, Clone, Default)]
pub(crate) struct Open {
    /// The port of a proxy; the server's own unless given.
    pub(crate) port: Option<u16>,
    pub(crate) clock: Option<Arc<ManualClock>>,
    /// For each step of a call, instead of the defaults.
    pub(crate) timeout: Option<Duration>,
}

impl Server {
    pub(crate) fn start(kind: Kind) -> Self {
        match kind {
            Kind::Postgres => Self::Postgres(postgres_server::Server::start()),
            Kind::Redis => Self::Redis(redis_server::Server::start("redis-server", &[]).unwrap()),
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        let port = match self {
            Self::Postgres(server) => server.port(),
            Self::Redis(server) => server.port(),
        };
        (Ipv4Addr::LOCALHOST, port).into()
    }

    pub(crate) async fn open(&self, open: Open) -> Arc<dyn Backend> {
        let port = open.port.unwrap_or(self.address().port());
        match self {
            Self::Postgres(_) => {
                let mut options = PostgresOptions::new().pool_size(POOL_SIZE);
                if let Some(clock) = open.clock {
                    options = options.clock(clock);
                }
                if let Some(timeout) = open.timeout {
                    options = options
                        .connect_timeout(timeout)
                        .acquire_timeout(timeout)
                        .lock_timeout(timeout)
                        .statement_timeout(timeout);
                }
                let role = postgres_server::ROLE;
                let url = format!("postgres://{role}@127.0.0.1:{port}/postgres?sslmode=disable");
                Arc::new(options.open(&url).await.unwrap())
            }
            Self::Redis(_) => {
                let mut options = RedisOptions::new(format!("redis://127.0.0.1:{port}"));
                if let Some(clock) = open.clock {
                    options = options.clock(clock);
                }
                if let Some(timeout) = open.timeout {
                    options = options.connect_timeout(timeout).timeout(timeout);
                }
                Arc::new(options.open().await.unwrap())
            }
        }
    }

    /// With SIGKILL, as the system does when memory runs out.
    pub(crate) fn kill(&self) {
        match self {
            Self::Postgres(server) => server.kill(),
            Self::Redis(server) => server.kill(),
        }
    }

    pub(crate) fn launch(&self) {
        match self {
            Self::Postgres(server) => server.launch(),
            Self::Redis(server) => server.restart().unwrap(),
        }
    }

    /// Stops it, all its processes, until what is returned is dropped.
    pub(crate) fn pause(&self) -> Paused {
        let pids = match self {
            Self::Postgres(server) => {
                let lock = server.folder().join("data/postmaster.pid");
                let lock = std::fs::read_to_string(lock).unwrap();
                let parent = lock.lines().next().unwrap().parse().unwrap();
                let parent = Pid::from_raw(parent).unwrap();
                // It starts no more children when it has stopped.
                kill_process(parent, Signal::STOP).unwrap();
                let mut pids = postgres_server::children_of(parent);
                pids.push(parent);
                pids
            }
            Self::Redis(server) => vec![server.pid().unwrap()],
        };
        for pid in &pids {
            // A child may have ended meanwhile.
            let _ = kill_process(*pid, Signal::STOP);
        }
        Paused { pids }
    }
}

/// A server that hangs.
pub(crate) struct Paused {
    pids: Vec<Pid>,
}

impl Drop for Paused {
    fn drop(&mut self) {
        for pid in &self.pids {
            let _ = kill_process(*pid, Signal::CONT);
        }
    }
}

/// Waits until the handle works again by itself.
pub(crate) async fn recovered(backend: &dyn Backend) {
    until("the handle works again", async || {
        match backend.now().await {
            Ok(_) => true,
            Err(error) if error.is_retryable() => false,
            Err(error) => panic!("{error}"),
        }
    })
    .await;
}

pub(crate) fn res(name: &str) -> ResourceName {
    ResourceName::new(name).unwrap()
}

pub(crate) fn owner(name: &str) -> OwnerName {
    OwnerName::new(name).unwrap()
}

pub(crate) fn hour() -> Ttl {
    Ttl::from_millis(3_600_000).unwrap()
}

pub(crate) fn acquire(resources: &[&ResourceName], of: &str, create: bool) -> AcquireRequest {
    AcquireRequest {
        resources: resources.iter().copied().cloned().collect(),
        owner: owner(of),
        ttl: hour(),
        create,
    }
}

pub(crate) fn fields<const N: usize>(
    fields: [(&str, Option<u64>); N],
) -> BTreeMap<FieldName, Option<Value>> {
    fields
        .into_iter()
        .map(|(name, value)| {
            let value = value.map(|value| Value::encode(&value).unwrap());
            (FieldName::new(name).unwrap(), value)
        })
        .collect()
}

pub(crate) fn write<const N: usize>(
    resource: &ResourceName,
    written: [(&str, Option<u64>); N],
) -> ResourceWrite {
    ResourceWrite {
        resource: resource.clone(),
        change: Change::Fields(fields(written)),
        fenced: None,
    }
}

pub(crate) fn commit(id: Option<u128>, writes: Vec<ResourceWrite>) -> CommitRequest {
    CommitRequest {
        id: id.map(CommitId::from_bits),
        agent: AgentName::new("agent").unwrap(),
        fences: Vec::new(),
        checks: Vec::new(),
        writes,
    }
}

pub(crate) fn is_unknown(error: &Error) -> bool {
    matches!(error, Error::OutcomeUnknown { .. })
}
