//! Random sequences of calls, compared call by call with a model of the rules
//! (R30). A failure names its seed and the last calls before it.

mod model;
mod random;

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

use super::check::{Verdict, expect_eq, failed};
use super::context::{Context, resource};
use super::{Case, check::Stop};
use crate::backend::{
    AcquireRequest, Backend, CommitReceipt, CommitRequest, LeaseStatus, ResourceSummary,
};
use crate::error::{Error, Result};
use crate::event::EventPage;
use crate::lease::{Lease, Token};
use crate::resource::{ResourceName, ResourceState, Ttl};
use model::Model;
use random::Calls;

/// How many sequences, and how many calls in each.
const SEEDS: u64 = 12;
const STEPS: u32 = 150;

pub(super) fn cases() -> Vec<Case> {
    (1..=SEEDS)
        .map(|seed| {
            Case::new(
                format!("sequences::random_calls_with_seed_{seed}"),
                &[30],
                "every call of a random sequence answers what the rules say, and leaves that behind",
                move |context| run(context, seed),
            )
        })
        .collect()
}

#[derive(Debug, Clone)]
enum Call {
    Acquire(AcquireRequest),
    Renew(Lease, Ttl),
    Release(Lease),
    Revoke(ResourceName),
    Guard(Lease),
    Commit(CommitRequest),
    Status(ResourceName),
    Read(Vec<ResourceName>),
    List(String, Option<ResourceName>, usize),
    Events(u64, usize),
    Pass(Duration),
}

#[derive(Debug, PartialEq)]
enum Answer {
    Leases(Vec<Lease>),
    Renewed(Lease),
    Released(bool),
    Mark(Token),
    Done,
    Receipt(CommitReceipt),
    Status(LeaseStatus),
    States(Vec<Option<ResourceState>>),
    List(Vec<ResourceSummary>),
    Page(EventPage),
}

/// An answer, or an error without the words that a person reads.
type Told = std::result::Result<Answer, String>;

fn told(answer: Result<Answer>) -> Told {
    answer.map_err(|error| match error {
        Error::InvalidArgument { argument, .. } => format!("InvalidArgument of {argument}"),
        error => format!("{error:?}"),
    })
}

async fn ask(store: &dyn Backend, call: &Call) -> Result<Answer> {
    Ok(match call {
        Call::Acquire(request) => Answer::Leases(store.acquire_all(request).await?),
        Call::Renew(lease, ttl) => Answer::Renewed(store.renew(lease, *ttl).await?),
        Call::Release(lease) => Answer::Released(store.release(lease).await?),
        Call::Revoke(of) => Answer::Mark(store.revoke(of).await?),
        Call::Guard(lease) => {
            store.guard(lease).await?;
            Answer::Done
        }
        Call::Commit(request) => Answer::Receipt(store.commit(request).await?),
        Call::Status(of) => Answer::Status(store.lease_status(of).await?),
        Call::Read(names) => Answer::States(store.read(names).await?),
        Call::List(prefix, after, limit) => {
            Answer::List(store.list(prefix, after.as_ref(), *limit).await?)
        }
        Call::Events(after, limit) => Answer::Page(store.events(*after, *limit).await?),
        Call::Pass(_) => Answer::Done,
    })
}

fn expected(model: &mut Model, call: &Call) -> Result<Answer> {
    Ok(match call {
        Call::Acquire(request) => Answer::Leases(model.acquire(request)?),
        Call::Renew(lease, ttl) => Answer::Renewed(model.renew(lease, *ttl)?),
        Call::Release(lease) => Answer::Released(model.release(lease)),
        Call::Revoke(of) => Answer::Mark(model.revoke(of)?),
        Call::Guard(lease) => {
            model.guard(lease)?;
            Answer::Done
        }
        Call::Commit(request) => Answer::Receipt(model.commit(request)?),
        Call::Status(of) => Answer::Status(model.status(of)?),
        Call::Read(names) => Answer::States(names.iter().map(|of| model.state(of)).collect()),
        Call::List(prefix, after, limit) => {
            Answer::List(model.list(prefix, after.as_ref(), *limit)?)
        }
        Call::Events(after, limit) => Answer::Page(model.events(*after, *limit)),
        Call::Pass(by) => {
            model.now = model.now.plus(*by);
            Answer::Done
        }
    })
}

async fn run(c: Context, seed: u64) -> Verdict {
    let clock = c.clock()?;
    let handles = [c.shared(), c.any_other_handle().await?];
    let names = random::NAMES
        .iter()
        .map(|name| Ok(resource(name)?))
        .collect::<Verdict<Vec<_>>>()?;
    let mut model = Model::new(c.now().await?);
    let mut calls = Calls::new(seed, names.clone());
    let mut trail = VecDeque::new();
    for step in 0..STEPS {
        let call = calls.next(&model)?;
        let [first, second] = &handles;
        let store = if calls.coin() { first } else { second };
        if let Call::Pass(by) = &call {
            clock.advance(*by);
        }
        let right = told(expected(&mut model, &call));
        let found = told(ask(&**store, &call).await);
        calls.saw(&call, &found);
        trail.push_back(format!("{call:?} => {found:?}"));
        if trail.len() > 10 {
            trail.pop_front();
        }
        differ(seed, step, "the last call", &trail, &found, &right)?;
        // What it left behind, refused or not.
        for name in &names {
            for look in [Call::Status(name.clone()), Call::Read(vec![name.clone()])] {
                let right = told(expected(&mut model, &look));
                let found = told(ask(&**store, &look).await);
                let what = format!("{look:?} after the last call");
                differ(seed, step, &what, &trail, &found, &right)?;
            }
        }
    }
    for look in [
        Call::Events(0, 100_000),
        Call::List(String::new(), None, 1000),
    ] {
        let right = told(expected(&mut model, &look));
        let found = told(ask(c.backend(), &look).await);
        differ(
            seed,
            STEPS,
            &format!("{look:?} in the end"),
            &trail,
            &found,
            &right,
        )?;
    }
    let report = c.backend().check(&|_| {}).await?;
    expect_eq(
        &format!("the check after seed {seed}"),
        report,
        model.report(),
    )
}

fn differ(
    seed: u64,
    step: u32,
    what: &str,
    trail: &VecDeque<String>,
    found: &Told,
    right: &Told,
) -> std::result::Result<(), Stop> {
    if found == right {
        return Ok(());
    }
    let mut calls = String::new();
    for call in trail {
        // Writing to a string does not fail.
        let _ = write!(calls, "\n        {call}");
    }
    failed(
        format!("seed {seed}, step {step}: {what}; the calls before:{calls}"),
        format!("{right:?}"),
        format!("{found:?}"),
    )
}
