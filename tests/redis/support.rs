//! What the cases of this backend share.

use std::sync::Arc;
use std::time::Duration;

use statepact::backend::redis::{Redis, RedisOptions};
use statepact::backend::{
    AcquireRequest, Backend, Change, CommitReceipt, CommitRequest, ResourceWrite,
};
use statepact::clock::{Clock, SystemClock};
use statepact::{
    AgentName, CommitId, Error, ErrorKind, FieldName, Lease, OwnerName, ResourceName, Ttl, Value,
};

use crate::server::{Failure, Server};

pub(crate) type Tested = Result<(), Failure>;

/// What a case is given: the server that all share. A case that does something
/// to its server starts one of its own.
#[derive(Clone)]
pub(crate) struct Env {
    pub(crate) server: Arc<Server>,
}

impl Env {
    /// A store of its own on the shared server.
    pub(crate) fn options(&self) -> RedisOptions {
        RedisOptions::new(self.server.url()).prefix(crate::new_prefix())
    }
}

/// No case comes near it, unless something hangs.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn private(settings: &[&str]) -> Result<Server, Failure> {
    Server::start("redis-server", settings)
}

pub(crate) fn res(name: &str) -> ResourceName {
    made(ResourceName::new(name))
}

#[expect(clippy::expect_used, reason = "the cases' own names are legal")]
fn made<T>(result: Result<T, Error>) -> T {
    result.expect("a legal name")
}

/// Sets the field `x` of a resource.
pub(crate) fn set(resource: &str, json: &str) -> CommitRequest {
    let fields = [(made(FieldName::new("x")), Some(made(Value::parse(json))))];
    CommitRequest {
        id: None,
        agent: made(AgentName::new("agent")),
        fences: Vec::new(),
        checks: Vec::new(),
        writes: vec![ResourceWrite {
            resource: res(resource),
            change: Change::Fields(fields.into()),
            fenced: None,
        }],
    }
}

pub(crate) fn set_with_id(resource: &str, json: &str, id: u128) -> CommitRequest {
    CommitRequest {
        id: Some(CommitId::from_bits(id)),
        ..set(resource, json)
    }
}

pub(crate) async fn put(store: &Redis, resource: &str, json: &str) -> Result<CommitReceipt, Error> {
    store.commit(&set(resource, json)).await
}

pub(crate) async fn value(store: &Redis, resource: &str) -> Result<Option<String>, Failure> {
    let states = store.read(&[res(resource)]).await?;
    let state = states.into_iter().next().ok_or("no state")?;
    Ok(state.and_then(|state| {
        let field = state.fields.get("x")?;
        Some(field.value.as_str().to_owned())
    }))
}

pub(crate) async fn lease(store: &Redis, resource: &str, owner: &str) -> Result<Lease, Error> {
    let request = AcquireRequest {
        resources: vec![res(resource)],
        owner: made(OwnerName::new(owner)),
        ttl: Ttl::try_from(Duration::from_secs(3600))?,
        create: true,
    };
    let leases = store.acquire_all(&request).await?;
    leases.into_iter().next().ok_or(Error::Unavailable {
        message: "no lease".to_owned(),
    })
}

pub(crate) fn ensure(what: &str, holds: bool) -> Tested {
    if holds {
        Ok(())
    } else {
        Err(format!("not so: {what}").into())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "shorter to call")]
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Tested {
    if found == expected {
        Ok(())
    } else {
        Err(format!("{what}: {found:?} instead of {expected:?}").into())
    }
}

/// Whether a call failed with an error of this kind that says this.
pub(crate) fn fails<T: std::fmt::Debug>(
    what: &str,
    answer: Result<T, Error>,
    kind: ErrorKind,
    says: &str,
) -> Tested {
    match answer {
        Err(error) if error.kind() == kind && error.to_string().contains(says) => Ok(()),
        other => Err(format!("{what}: {other:?} instead of {kind} with `{says}`").into()),
    }
}

/// Waits until something is so.
pub(crate) async fn until<F: Future<Output = Result<bool, Failure>>>(
    what: &str,
    mut is_so: impl FnMut() -> F,
) -> Tested {
    let start = SystemClock.monotonic();
    while SystemClock.monotonic().since(start) < LONG {
        if is_so().await? {
            return Ok(());
        }
        SystemClock.sleep(Duration::from_millis(10)).await;
    }
    Err(format!("never came to be: {what}").into())
}

/// Lists the cases of a group: the functions' names are the cases' names.
macro_rules! case_list {
    ($group:literal: $($name:ident),+ $(,)?) => {
        pub(crate) fn cases() -> Vec<$crate::OwnCase> {
            vec![$((
                concat!($group, "::", stringify!($name)),
                |env| Box::pin($name(env)),
            )),+]
        }
    };
}
pub(crate) use case_list;
