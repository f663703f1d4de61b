//! Many tasks at once, over every handle that the fixture has.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::check::{Verdict, expect, expect_eq, failed};
use super::context::{Commit, Context, LONG, acquire, lease_on, resource};
use crate::backend::SharedBackend;
use crate::error::{Error, LossReason};
use crate::manager::StateManager;
use crate::retry::RetryPolicy;

super::case_list! { "races":
    [2, 4, 24] of_many_acquirers_one_wins,
        "the others hear who, the token is used once, and the resource is created once";
    [1, 2, 6] no_token_is_issued_twice,
        "acquiring and releasing in many tasks: every token once";
    [1, 9] revocations_and_acquisitions_share_the_tokens,
        "every mark that was raised was raised by one call";
    [21, 22] concurrent_increments_lose_nothing,
        "serializable sessions, run again on conflict, add up";
    [13, 22] increments_under_a_lease_lose_nothing,
        "many owners take turns, each commit with its fence";
    [4] leases_taken_in_opposite_orders_do_not_deadlock,
        "[a, b] against [b, a]: everybody gets both in the end, and nobody one";
    [13, 20] no_stale_write_follows_an_answered_revocation,
        "a commit that begins after the revocation has answered is refused";
    [20] a_reader_never_sees_half_a_commit,
        "two resources written together are read together";
    [20, 26] a_commit_sent_many_times_at_once_happens_once,
        "one id, many senders, one receipt";
    [20] the_history_of_a_race_has_no_gap,
        "every acknowledged commit is one event, at the sequence that it was told";
    [21] concurrent_sessions_do_not_skew,
        "a limit over two fields holds, whoever draws on them at once";
}

const TASKS: u64 = 8;

/// Handles to the one store, for tasks to share.
async fn handles(c: &Context) -> Verdict<[SharedBackend; 2]> {
    Ok([c.shared(), c.any_other_handle().await?])
}

fn of(handles: &[SharedBackend; 2], task: u64) -> SharedBackend {
    let [first, second] = handles;
    if task.is_multiple_of(2) {
        first.clone()
    } else {
        second.clone()
    }
}

/// Waits for tasks, and for the first that failed.
async fn join<T: 'static>(mut tasks: JoinSet<Verdict<T>>) -> Verdict<Vec<T>> {
    let mut answers = Vec::new();
    while let Some(answer) = tasks.join_next().await {
        answers.push(answer??);
    }
    Ok(answers)
}

fn patient() -> RetryPolicy {
    RetryPolicy::default()
        .attempts(100_000)
        .within(Duration::from_secs(90))
        .pauses(Duration::from_millis(1), Duration::from_millis(20))
}

async fn of_many_acquirers_one_wins(c: Context) -> Verdict {
    let handles = handles(&c).await?;
    for round in 0..10 {
        let name = format!("job-{round}");
        let start = Arc::new(tokio::sync::Barrier::new(2 * 8));
        let mut tasks = JoinSet::new();
        for task in 0..2 * TASKS {
            let (store, name, start) = (of(&handles, task), name.clone(), start.clone());
            tasks.spawn(async move {
                start.wait().await;
                Ok(lease_on(&*store, &name, &format!("owner-{task}"), LONG).await)
            });
        }
        let (won, refused): (Vec<_>, Vec<_>) =
            join(tasks).await?.into_iter().partition(Result::is_ok);
        let won = super::check::expect_one("the winners", won)??;
        expect_eq("the winner's token", won.token.get(), 1)?;
        for refusal in refused {
            super::check::expect_held("a loser", refusal, &won)?;
        }
        expect_eq("the version", c.existing(&name).await?.version, 1)?;
    }
    Ok(())
}

async fn no_token_is_issued_twice(c: Context) -> Verdict {
    let handles = handles(&c).await?;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let store = of(&handles, task);
        tasks.spawn(async move {
            let mut tokens = Vec::new();
            while tokens.len() < 10 {
                match lease_on(&*store, "job", &format!("owner-{task}"), LONG).await {
                    Ok(lease) => {
                        tokens.push(lease.token.get());
                        expect("its own release", store.release(&lease).await?)?;
                    }
                    Err(Error::LeaseNotAvailable { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
                tokio::task::yield_now().await;
            }
            Ok(tokens)
        });
    }
    let tokens: Vec<u64> = join(tasks).await?.into_iter().flatten().collect();
    let distinct: BTreeSet<u64> = tokens.iter().copied().collect();
    expect_eq("the distinct tokens", distinct.len(), tokens.len())?;
    let highest = distinct.last().copied();
    expect_eq("the mark is the highest", c.mark("job").await?, highest)
}

async fn revocations_and_acquisitions_share_the_tokens(c: Context) -> Verdict {
    let handles = handles(&c).await?;
    c.commit(Commit::new().set("job", "x", "1")).await?;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let store = of(&handles, task);
        tasks.spawn(async move {
            let job = resource("job")?;
            let mut tokens = Vec::new();
            for _ in 0..10 {
                if task.is_multiple_of(2) {
                    tokens.push(store.revoke(&job).await?.get());
                } else if let Ok(lease) =
                    lease_on(&*store, "job", &format!("owner-{task}"), LONG).await
                {
                    tokens.push(lease.token.get());
                    store.release(&lease).await?;
                }
            }
            // One owner may be told of its live lease more than once (R3).
            tokens.dedup();
            Ok(tokens)
        });
    }
    let mut tokens: Vec<u64> = join(tasks).await?.into_iter().flatten().collect();
    tokens.sort_unstable();
    let all: Vec<u64> = (1..).take(tokens.len()).collect();
    expect_eq("every token once", &tokens, &all)?;
    expect_eq("the mark", c.mark("job").await?, tokens.last().copied())
}

async fn concurrent_increments_lose_nothing(c: Context) -> Verdict {
    let handles = handles(&c).await?;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let manager = StateManager::new(of(&handles, task));
        tasks.spawn(async move {
            for _ in 0..10 {
                manager
                    .session("conformance")
                    .resource("counter")
                    .transact(patient(), async |session| {
                        let count: u64 = session.read("counter", "n").await?.unwrap_or(0);
                        tokio::task::yield_now().await;
                        session.write("counter", "n", &(count + 1))
                    })
                    .await?;
            }
            Ok(())
        });
    }
    join(tasks).await?;
    let count = c.value("counter", "n").await?;
    expect_eq("the count", count, Some((10 * TASKS).to_string()))?;
    expect_eq(
        "the version",
        c.existing("counter").await?.version,
        10 * TASKS,
    )
}

async fn increments_under_a_lease_lose_nothing(c: Context) -> Verdict {
    let handles = handles(&c).await?;
    let inside = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (store, inside) = (of(&handles, task), inside.clone());
        tasks.spawn(async move {
            let manager = StateManager::new(store.clone());
            let mut done = 0;
            while done < 5 {
                let lease = match lease_on(&*store, "job", &format!("owner-{task}"), LONG).await {
                    Err(Error::LeaseNotAvailable { .. }) => {
                        tokio::task::yield_now().await;
                        continue;
                    }
                    answer => answer?,
                };
                expect_eq("others inside", inside.fetch_add(1, Ordering::SeqCst), 0)?;
                let session = manager.session("conformance").resource("counter");
                let mut session = session.fence_live(&lease).begin().await?;
                let count: u64 = session.read("counter", "n").await?.unwrap_or(0);
                session.write("counter", "n", &(count + 1))?;
                session.commit().await?;
                inside.fetch_sub(1, Ordering::SeqCst);
                expect("its own release", store.release(&lease).await?)?;
                done += 1;
            }
            Ok(())
        });
    }
    join(tasks).await?;
    let count = c.value("counter", "n").await?;
    expect_eq("the count", count, Some((5 * TASKS).to_string()))
}

async fn leases_taken_in_opposite_orders_do_not_deadlock(c: Context) -> Verdict {
    let handles = handles(&c).await?;
    let inside = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (store, inside) = (of(&handles, task), inside.clone());
        tasks.spawn(async move {
            let order = if task % 4 < 2 { ["a", "b"] } else { ["b", "a"] };
            let request = acquire(&order, &format!("owner-{task}"), LONG, true)?;
            let mut done = 0;
            while done < 5 {
                match store.acquire_all(&request).await {
                    Ok(leases) => {
                        expect_eq("others inside", inside.fetch_add(1, Ordering::SeqCst), 0)?;
                        expect_eq("the leases", leases.len(), 2)?;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        for lease in leases {
                            expect("its own release", store.release(&lease).await?)?;
                        }
                        done += 1;
                    }
                    Err(Error::LeaseNotAvailable { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
                tokio::task::yield_now().await;
            }
            Ok(())
        });
    }
    match tokio::time::timeout(Duration::from_secs(90), join(tasks)).await {
        Ok(ended) => ended.map(|_| ()),
        Err(_) => failed("the tasks", "an end", "none: they wait for each other"),
    }
}

async fn no_stale_write_follows_an_answered_revocation(c: Context) -> Verdict {
    let handles = handles(&c).await?;
    for round in 0..5 {
        let name = format!("job-{round}");
        let lease = c.lease(&name, "paused").await?;
        let revoked = Arc::new(AtomicBool::new(false));
        let mut tasks = JoinSet::new();
        for task in 0..4 {
            let (store, revoked) = (of(&handles, task), revoked.clone());
            let request = Commit::new().fence(&lease).set(&name, "x", "1").build()?;
            tasks.spawn(async move {
                loop {
                    // A call that never waits would keep the thread for ever.
                    tokio::task::yield_now().await;
                    let late = revoked.load(Ordering::SeqCst);
                    match store.commit(&request).await {
                        Ok(_) if late => {
                            return failed("a write after it", "LeaseLost", "it was accepted");
                        }
                        Ok(_) => {}
                        Err(Error::LeaseLost { reason, .. }) => {
                            let lost = matches!(reason, LossReason::Superseded { .. });
                            return expect("it is superseded", lost);
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
            });
        }
        for _ in 0..3 {
            tokio::task::yield_now().await;
            c.commit(Commit::new().fence(&lease).set(&name, "y", "1"))
                .await?;
        }
        c.backend().revoke(&lease.resource).await?;
        revoked.store(true, Ordering::SeqCst);
        join(tasks).await?;
    }
    Ok(())
}

async fn a_reader_never_sees_half_a_commit(c: Context) -> Verdict {
    let handles = handles(&c).await?;
    c.commit(Commit::new().set("a", "x", "0").set("b", "x", "0"))
        .await?;
    let done = Arc::new(AtomicBool::new(false));
    let mut readers = JoinSet::new();
    for task in 0..2 {
        let (store, done) = (of(&handles, task), done.clone());
        readers.spawn(async move {
            let both = [resource("a")?, resource("b")?];
            let mut reads = 0_u64;
            while !done.load(Ordering::Relaxed) || reads < 10 {
                let states = store.read(&both).await?;
                let values: BTreeSet<_> = states
                    .iter()
                    .map(|state| {
                        state
                            .as_ref()
                            .and_then(|s| super::context::value_in(s, "x"))
                    })
                    .collect();
                expect_eq(&format!("one value in both: {values:?}"), values.len(), 1)?;
                reads += 1;
                tokio::task::yield_now().await;
            }
            Ok(())
        });
    }
    for at in 1..=60_u64 {
        let at = at.to_string();
        of(&handles, at.len() as u64)
            .commit(
                &Commit::new()
                    .set("a", "x", &at)
                    .set("b", "x", &at)
                    .build()?,
            )
            .await?;
    }
    done.store(true, Ordering::Relaxed);
    join(readers).await?;
    Ok(())
}

async fn a_commit_sent_many_times_at_once_happens_once(c: Context) -> Verdict {
    let handles = handles(&c).await?;
    for round in 1..=5_u64 {
        let commit = Commit::new().id(u128::from(round));
        let request = commit.set("a", "x", &round.to_string()).build()?;
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (store, request) = (of(&handles, task), request.clone());
            tasks.spawn(async move { Ok(store.commit(&request).await?) });
        }
        let receipts = join(tasks).await?;
        for receipt in &receipts {
            expect_eq("the sequence", receipt.sequence, round)?;
            expect_eq("the versions", receipt.versions.len(), 1)?;
        }
        expect_eq("the version", c.existing("a").await?.version, round)?;
    }
    Ok(())
}

async fn the_history_of_a_race_has_no_gap(c: Context) -> Verdict {
    let handles = handles(&c).await?;
    let mut senders = JoinSet::new();
    for task in 0..TASKS {
        let store = of(&handles, task);
        senders.spawn(async move {
            let mut told = Vec::new();
            for at in 0..10 {
                let value = format!("[{task},{at}]");
                let commit = Commit::new().set("a", "x", &value).build()?;
                told.push((store.commit(&commit).await?.sequence, value));
            }
            Ok(told)
        });
    }
    let mut told: Vec<_> = join(senders).await?.into_iter().flatten().collect();
    told.sort();
    let mut logged = Vec::new();
    for event in c.events().await? {
        let crate::event::EventKind::Committed { changes, .. } = event.kind else {
            return expect("every event is a commit", false);
        };
        for (_, value) in changes.into_iter().flat_map(|change| change.fields) {
            let value = value
                .map(|value| value.as_str().to_owned())
                .unwrap_or_default();
            logged.push((event.sequence, value));
        }
    }
    expect_eq("what was logged", &logged, &told)?;
    let sequences: Vec<u64> = logged.iter().map(|(sequence, _)| *sequence).collect();
    expect_eq(
        "the sequences",
        sequences,
        (1..=10 * TASKS).collect::<Vec<_>>(),
    )
}

async fn concurrent_sessions_do_not_skew(c: Context) -> Verdict {
    let handles = handles(&c).await?;
    c.commit(Commit::new().set("a", "left", "20").set("b", "left", "20"))
        .await?;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let manager = StateManager::new(of(&handles, task));
        tasks.spawn(async move {
            let mut total = 0;
            for _ in 0..10 {
                let session = manager.session("conformance").resources(["a", "b"]);
                // Each draws on one of the two, as long as both together allow.
                let more = if task.is_multiple_of(2) {
                    session
                        .transact(patient(), async |session| draw(session, "a").await)
                        .await?
                } else {
                    session
                        .transact(patient(), async |session| draw(session, "b").await)
                        .await?
                };
                total += more;
            }
            Ok(total)
        });
    }
    let drawn: i64 = join(tasks).await?.into_iter().sum();
    let mut left = 0;
    for name in ["a", "b"] {
        let text = c.value(name, "left").await?.unwrap_or_default();
        left += text.parse::<i64>().unwrap_or(i64::MIN / 2);
    }
    expect_eq("what was drawn", drawn, 40)?;
    expect_eq("what is left of both", left, 0)
}

async fn draw(session: &mut crate::session::Session, from: &str) -> crate::error::Result<i64> {
    let a: i64 = session.read("a", "left").await?.unwrap_or(0);
    let b: i64 = session.read("b", "left").await?.unwrap_or(0);
    if a + b == 0 {
        return Ok(0);
    }
    let own = if from == "a" { a } else { b };
    session.write(from, "left", &(own - 1))?;
    Ok(1)
}
