//! `lease`, `fence` and `guard`.

use std::time::Duration;

use gethostname::gethostname;
use serde_json::json;
use statepact::backend::{LeaseState, SharedBackend};
use statepact::random::{Random, SystemRandom};
use statepact::{Error, Lease, OwnerName, ResourceName, StateManager, Timestamp, Ttl};

use crate::args::{
    AcquireArgs, Global, GuardArgs, HolderArgs, LeaseCommand, RenewArgs, ResourceArg,
};
use crate::exit::{Failure, status};
use crate::output::{
    FAINT, GOOD, NAME, Output, add_lease_status, human_duration, lease_object, local_time,
    printable, state_name,
};
use crate::parse::Wait;
use crate::store::{IfAbsent, open};

pub(crate) async fn lease(
    global: &Global,
    command: &LeaseCommand,
    output: Output,
) -> Result<(), Failure> {
    match command {
        LeaseCommand::Acquire(args) => {
            let owner = owner_or_default(args.owner.as_ref())?;
            let store = open(global, IfAbsent::Create).await?;
            let lease = acquire(store.clone(), args, &owner, output).await?;
            let now = store.now().await?;
            let said = output.say(&lease_object(&lease), || describe(&lease, now));
            if said.is_err() && args.owner.is_none() {
                // Nobody has heard the owner's name, and nobody can release it.
                let _ = store.release(&lease).await;
            }
            said
        }
        LeaseCommand::Renew(args) => renew(global, args, output).await,
        LeaseCommand::Release(args) => release(global, args, output).await,
        LeaseCommand::Revoke(args) => {
            let store = open(global, IfAbsent::Refuse).await?;
            let mark = store.revoke(&args.resource).await?;
            let object = json!({ "resource": args.resource.as_str(), "mark": mark.get() });
            output.say(&object, || {
                format!(
                    "revoked: the mark of {NAME}{}{NAME:#} is {mark} now",
                    args.resource
                )
            })
        }
        LeaseCommand::Show(args) => show(global, args, output).await,
    }
}

/// An owner name that no other process has: two processes with one name
/// would share a token (R3).
pub(crate) fn owner_or_default(owner: Option<&OwnerName>) -> Result<OwnerName, Failure> {
    if let Some(owner) = owner {
        return Ok(owner.clone());
    }
    let host: String = gethostname()
        .to_string_lossy()
        .chars()
        .filter(|c| !c.is_control())
        .take(100)
        .collect();
    let random = SystemRandom.next_u64() >> 32;
    let pid = std::process::id();
    Ok(OwnerName::new(format!("{host}-{pid}-{random:08x}"))?)
}

/// Acquires a lease, waiting for another owner's to end if asked to.
async fn acquire(
    store: SharedBackend,
    args: &AcquireArgs,
    owner: &OwnerName,
    output: Output,
) -> Result<Lease, Failure> {
    let manager = StateManager::new(store);
    let ask = || {
        let resource = args.of.resource.clone();
        manager.lease(resource, owner.clone(), args.ttl.as_duration())
    };
    match (ask().await, args.wait) {
        (Err(refused @ Error::LeaseNotAvailable { .. }), Some(wait)) => {
            say_waiting(&refused, output);
            Ok(match wait {
                Wait::Forever => ask().wait_forever().await?,
                Wait::AtMost(longest) => ask().wait(longest).await?,
            })
        }
        (answer, _) => Ok(answer?),
    }
}

/// Tells a person why nothing happens for a while.
pub(crate) fn say_waiting(refused: &Error, output: Output) {
    if let Error::LeaseNotAvailable {
        resource,
        owner,
        expires_at,
    } = refused
    {
        output.note(&format!(
            "waiting for `{resource}`, leased to `{owner}` until {} unless renewed",
            local_time(*expires_at)
        ));
    }
}

/// How long to wait before looking again, jittered so that those who wait
/// together do not look together.
pub(crate) fn poll_interval() -> Duration {
    Duration::from_millis(150 + SystemRandom.next_u64() % 100)
}

fn describe(lease: &Lease, now: Timestamp) -> String {
    format!(
        "resource  {NAME}{}{NAME:#}\nowner     {}\ntoken     {GOOD}{}{GOOD:#}\n\
         expires   {} {FAINT}(in {}){FAINT:#}",
        lease.resource,
        lease.owner,
        lease.token,
        local_time(lease.expires_at),
        human_duration(lease.expires_at.since(now)),
    )
}

/// The lease as its holder knows it: owner and token are all that a backend
/// looks at.
fn held(args: &HolderArgs, ttl: Ttl) -> Lease {
    Lease {
        resource: args.of.resource.clone(),
        owner: args.owner.clone(),
        token: args.token,
        expires_at: Timestamp::EPOCH,
        ttl,
    }
}

async fn renew(global: &Global, args: &RenewArgs, output: Output) -> Result<(), Failure> {
    let store = open(global, IfAbsent::Refuse).await?;
    let holder = &args.holder;
    let ttl = match args.ttl {
        Some(ttl) => ttl,
        None => own_ttl(&store, holder).await?,
    };
    let lease = store.renew(&held(holder, ttl), ttl).await?;
    let now = store.now().await?;
    output.say(&lease_object(&lease), || describe(&lease, now))
}

/// The time to live that the lease has. If the store holds another lease by
/// now, the renewal is refused whatever is asked for.
async fn own_ttl(store: &SharedBackend, holder: &HolderArgs) -> Result<Ttl, Failure> {
    let status = store.lease_status(&holder.of.resource).await?;
    Ok(status.lease.map_or(Ttl::MIN, |(lease, _)| lease.ttl))
}

async fn release(global: &Global, args: &HolderArgs, output: Output) -> Result<(), Failure> {
    let store = open(global, IfAbsent::Refuse).await?;
    let released = store.release(&held(args, Ttl::MIN)).await?;
    let object = json!({
        "resource": args.of.resource.as_str(),
        "owner": args.owner.as_str(),
        "token": args.token.get(),
        "released": released,
    });
    output.say(&object, || {
        if released {
            format!("released: {NAME}{}{NAME:#}", args.of.resource)
        } else {
            format!(
                "not released: the lease of `{}` on {NAME}{}{NAME:#} with token {} is not live",
                args.owner, args.of.resource, args.token
            )
        }
    })?;
    if released {
        Ok(())
    } else {
        Err(Failure::silent(status::LEASE_LOST))
    }
}

async fn show(global: &Global, args: &ResourceArg, output: Output) -> Result<(), Failure> {
    let store = open(global, IfAbsent::Refuse).await?;
    let status = store.lease_status(&args.resource).await?;
    let mut object = json!({ "resource": args.resource.as_str() });
    add_lease_status(&mut object, &status);
    output.say(&object, || {
        let mut lines = vec![
            format!("resource  {NAME}{}{NAME:#}", args.resource),
            format!("lease     {}", state_name(&status)),
        ];
        if let Some((lease, state)) = &status.lease {
            lines.push(format!("owner     {}", lease.owner));
            lines.push(format!("token     {}", lease.token));
            if lease.expires_at != Timestamp::EPOCH {
                let left = if *state == LeaseState::Live {
                    let left = lease.expires_at.since(status.now);
                    format!(" {FAINT}(in {}){FAINT:#}", human_duration(left))
                } else {
                    String::new()
                };
                lines.push(format!("expires   {}{left}", local_time(lease.expires_at)));
            }
        }
        let mark = status
            .mark
            .map_or_else(|| "none".to_owned(), |mark| mark.to_string());
        lines.push(format!("mark      {mark}"));
        lines.join("\n")
    })
}

pub(crate) async fn fence(
    global: &Global,
    args: &ResourceArg,
    output: Output,
) -> Result<(), Failure> {
    let store = open(global, IfAbsent::Refuse).await?;
    let mark = store.current_fence(&args.resource).await?;
    let object = json!({
        "resource": args.resource.as_str(),
        "mark": mark.map(statepact::Token::get),
    });
    output.say(&object, || {
        mark.map_or_else(|| "none".to_owned(), |mark| mark.to_string())
    })
}

pub(crate) async fn guard(
    global: &Global,
    args: &GuardArgs,
    output: Output,
) -> Result<(), Failure> {
    let store = open(global, IfAbsent::Refuse).await?;
    let resource: &ResourceName = &args.of.resource;
    let mark = store.current_fence(resource).await?;
    statepact::rules::guard(mark, resource, args.token)?;
    let object = json!({
        "resource": resource.as_str(),
        "token": args.token.get(),
        "mark": mark.map(statepact::Token::get),
    });
    output.say(&object, || {
        format!(
            "token {} of {NAME}{}{NAME:#} is not stale",
            args.token,
            printable(resource.as_str())
        )
    })
}
