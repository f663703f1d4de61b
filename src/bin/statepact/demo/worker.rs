//! A worker of the story: a process of its own, which acquires the lease,
//! writes, and writes again when it is told to. It reports each step as a
//! line of JSON.

use std::ffi::OsString;
use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value as Json, json};
use statepact::{Error, Lease, Result, StateManager};

use super::{FIELD, JOB};
use crate::exit::Failure;
use crate::output::lease_object;

/// The hidden first argument.
pub(super) const ASKED: &str = "__demo-worker";

/// Is a worker, if the arguments ask for it.
pub(crate) fn if_asked(arguments: &[OsString]) -> Option<ExitCode> {
    let [_, asked, name, store, ttl] = arguments else {
        return None;
    };
    if asked != ASKED {
        return None;
    }
    let (name, store) = (name.to_str()?, store.to_str()?);
    let ttl = Duration::from_millis(ttl.to_str()?.parse().ok()?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .ok()?;
    match runtime.block_on(work(name, store, ttl)) {
        Ok(()) => Some(ExitCode::SUCCESS),
        Err(error) => {
            report("failed", failure(error));
            Some(ExitCode::FAILURE)
        }
    }
}

async fn work(name: &str, store: &str, ttl: Duration) -> Result<()> {
    let manager = StateManager::open(store).await?;
    let lease = manager.lease(JOB, name, ttl).await?;
    report("acquired", lease_object(&lease));
    write(&manager, &lease, name).await?;
    report("written", json!({ "token": lease.token.get() }));
    // Everything is checked and ready for the next write: the moment at which
    // no check before a write can help any more.
    report("ready", json!({}));
    for order in std::io::stdin().lock().lines() {
        if order.is_ok_and(|order| order == "write") {
            match write(&manager, &lease, name).await {
                Ok(()) => report("written", json!({ "token": lease.token.get() })),
                Err(error) => report("refused", failure(error)),
            }
        }
    }
    Ok(())
}

async fn write(manager: &StateManager, lease: &Lease, name: &str) -> Result<()> {
    let mut session = manager
        .session(name)
        .resource(JOB)
        .fence(lease)
        .begin()
        .await?;
    session.write(JOB, FIELD, &name)?;
    session.commit().await?;
    Ok(())
}

fn failure(error: Error) -> Json {
    let mut object = serde_json::Map::new();
    if let Some(report) = Failure::from(error).report {
        object = report.detail;
        object.insert("kind".to_owned(), report.kind.into());
        object.insert("message".to_owned(), report.message.into());
    }
    Json::Object(object)
}

fn report(event: &str, mut detail: Json) {
    if let Json::Object(object) = &mut detail {
        object.insert("event".to_owned(), event.into());
    }
    // When nobody listens, the story is over, and so is this process soon.
    let _ = writeln!(std::io::stdout(), "{detail}");
}
