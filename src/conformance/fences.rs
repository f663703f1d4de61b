//! What a commit's tokens are held against: R13 to R19, R28.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::check::{
    Verdict, expect, expect_conflict, expect_eq, expect_fence_required, expect_lost, expect_one,
    expect_some,
};
use super::context::{Commit, Context, LONG, resource, ttl};
use crate::backend::LeaseState;
use crate::error::{ErrorKind, LossReason};
use crate::event::EventKind;
use crate::lease::{Lease, Token};
use crate::manager::StateManager;
use crate::retry::RetryPolicy;

super::case_list! { "fences":
    [13] the_current_token_commits,
        "a commit that carries the mark is accepted, and the event records it";
    [13] a_token_below_the_mark_is_refused_after_a_takeover,
        "the paused owner's write is refused once another has taken over";
    [9, 13] a_token_below_the_mark_is_refused_after_a_revocation,
        "the revoked owner is fenced from that moment";
    [13, 15] a_token_below_the_mark_is_refused_after_a_newer_one_was_seen,
        "a token observed in a write fences the older ones";
    [13] a_fence_of_a_resource_that_is_not_touched_is_checked,
        "a lease on job-42 protects orders/7";
    [13] each_of_several_fences_is_checked,
        "one stale token among several refuses the commit, wherever it stands";
    [13, 20] a_stale_fence_refuses_every_write,
        "nothing of a fenced commit to several resources is left behind";
    [13] a_stale_fence_refuses_a_commit_without_writes,
        "a commit is an answer about its fences even when it writes nothing";
    [14] an_expired_token_still_commits,
        "expiry alone blocks no write";
    [14] a_released_token_still_commits,
        "a release alone blocks no write";
    [15] a_token_above_the_mark_becomes_the_mark,
        "a token that the store has not seen is accepted, and the next issued is above it";
    [15] a_token_of_an_unknown_resource_becomes_its_mark,
        "a mark needs neither a lease nor a state";
    [15, 22] a_refused_commit_does_not_raise_the_mark,
        "the new mark and the writes are one step";
    [5, 15] a_lease_below_a_newer_token_is_lost,
        "an observed token ends the lease that it is above";
    [16] a_live_fence_needs_a_live_lease,
        "live: accepted; expired or released: refused as expired";
    [16] a_live_fence_that_is_superseded_says_so,
        "the newer token is the reason, before liveness";
    [15, 16] a_live_fence_with_a_token_never_granted_is_refused,
        "a token above the mark has no live lease behind it";
    [17] a_fenced_resource_refuses_writes_without_a_fence,
        "no unfenced write, deletion or mark change, and other resources of the commit neither";
    [13, 17] a_fence_of_another_resource_is_a_fence,
        "a fenced resource takes any fence that is not stale";
    [17] a_resource_is_not_fenced_unless_asked,
        "by default anybody writes, and with a fence it can be so again";
    [17] a_fenced_resource_stays_fenced_when_created_again,
        "deletion does not open the door, and neither does the next lease";
    [17, 22] a_missing_fence_is_found_before_a_conflict,
        "FenceRequired before Conflict";
    [18] a_stale_fence_is_found_before_a_conflict,
        "a stale owner hears LeaseLost, not Conflict";
    [16, 18] a_dead_live_fence_is_found_before_a_conflict,
        "the same for a fence that must be live";
    [19] a_lost_lease_is_not_retried,
        "a retry policy runs the work once when the fence is stale, and again on a conflict";
}

async fn the_current_token_commits(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    let receipt = c
        .commit(Commit::new().fence(&lease).set("job", "x", "1"))
        .await?;
    expect_eq(
        "the field",
        c.value("job", "x").await?.as_deref(),
        Some("1"),
    )?;
    let event = expect_some("the last event", c.events().await?.pop())?;
    expect_eq("the receipt's sequence", receipt.sequence, event.sequence)?;
    let EventKind::Committed { fences, .. } = event.kind else {
        return expect("the last event is the commit", false);
    };
    expect_eq(
        "the event's fences",
        fences,
        vec![(lease.resource, lease.token)],
    )
}

/// A fenced commit that must be refused, and change nothing.
async fn stale(c: &Context, what: &str, lease: &Lease, by: Token) -> Verdict {
    let before = c.look(&["job"]).await?;
    let answer = c
        .commit(Commit::new().fence(lease).set("job", "x", "\"stale\""))
        .await;
    let why = LossReason::Superseded { by };
    expect_lost(what, answer, "job", lease.token, why)?;
    c.unchanged(what, &before).await
}

async fn a_token_below_the_mark_is_refused_after_a_takeover(c: Context) -> Verdict {
    let old = c.expired("job", "a").await?;
    let new = c.lease("job", "b").await?;
    stale(&c, "the old owner's write", &old, new.token).await?;
    c.commit(Commit::new().fence(&new).set("job", "x", "2"))
        .await?;
    stale(
        &c,
        "the old owner's write after the new one's",
        &old,
        new.token,
    )
    .await?;
    c.backend().release(&new).await?;
    stale(
        &c,
        "the old owner's write after the new one's release",
        &old,
        new.token,
    )
    .await
}

async fn a_token_below_the_mark_is_refused_after_a_revocation(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    let mark = c.backend().revoke(&lease.resource).await?;
    stale(&c, "the revoked owner's write", &lease, mark).await
}

async fn a_token_below_the_mark_is_refused_after_a_newer_one_was_seen(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    c.commit(Commit::new().token("job", 40).set("job", "x", "1"))
        .await?;
    stale(&c, "the write below it", &lease, Token::new(40)?).await?;
    let below = Lease {
        token: Token::new(39)?,
        ..lease
    };
    stale(&c, "the write one below it", &below, Token::new(40)?).await
}

async fn a_fence_of_a_resource_that_is_not_touched_is_checked(c: Context) -> Verdict {
    let old = c.expired("job-42", "a").await?;
    c.commit(Commit::new().fence(&old).set("orders/7", "x", "1"))
        .await?;
    let new = c.lease("job-42", "b").await?;
    let before = c.look(&["job-42", "orders/7"]).await?;
    let answer = c
        .commit(Commit::new().fence(&old).set("orders/7", "x", "2"))
        .await;
    let why = LossReason::Superseded { by: new.token };
    expect_lost("the stale write", answer, "job-42", old.token, why)?;
    c.unchanged("the stale write", &before).await?;
    c.commit(Commit::new().fence(&new).set("orders/7", "x", "3"))
        .await?;
    expect_eq(
        "the field",
        c.value("orders/7", "x").await?.as_deref(),
        Some("3"),
    )
}

async fn each_of_several_fences_is_checked(c: Context) -> Verdict {
    let stale = c.expired("b", "old").await?;
    let new = c.lease("b", "new").await?;
    let a = c.lease("a", "new").await?;
    let d = c.lease("d", "new").await?;
    let before = c.look(&["a", "b", "d", "out"]).await?;
    let why = LossReason::Superseded { by: new.token };
    for (what, fences) in [
        ("the stale fence first", [&stale, &a, &d]),
        ("the stale fence in the middle", [&a, &stale, &d]),
        ("the stale fence last", [&a, &d, &stale]),
    ] {
        let mut commit = Commit::new().set("out", "x", "1");
        for fence in fences {
            commit = commit.fence(fence);
        }
        expect_lost(what, c.commit(commit).await, "b", stale.token, why)?;
        c.unchanged(what, &before).await?;
    }
    let commit = Commit::new()
        .fence(&a)
        .fence(&new)
        .fence(&d)
        .set("out", "x", "1");
    c.commit(commit).await?;
    expect_eq(
        "the field",
        c.value("out", "x").await?.as_deref(),
        Some("1"),
    )
}

async fn a_stale_fence_refuses_every_write(c: Context) -> Verdict {
    c.commit(Commit::new().set("a", "x", "1").set("b", "x", "1"))
        .await?;
    let old = c.expired("job", "a").await?;
    let new = c.lease("job", "b").await?;
    let all = ["a", "b", "new", "job"];
    let before = c.look(&all).await?;
    let commit = Commit::new()
        .id(7)
        .fence(&old)
        .set("a", "x", "2")
        .delete("b")
        .set("new", "x", "1")
        .fenced("job", true);
    let why = LossReason::Superseded { by: new.token };
    expect_lost("the commit", c.commit(commit).await, "job", old.token, why)?;
    c.unchanged("the commit", &before).await
}

async fn a_stale_fence_refuses_a_commit_without_writes(c: Context) -> Verdict {
    let old = c.expired("job", "a").await?;
    c.commit(Commit::new().fence(&old)).await?;
    let new = c.lease("job", "b").await?;
    let answer = c.commit(Commit::new().fence(&old)).await;
    let why = LossReason::Superseded { by: new.token };
    expect_lost("the commit", answer, "job", old.token, why)
}

async fn an_expired_token_still_commits(c: Context) -> Verdict {
    let lease = c.expired("job", "a").await?;
    c.commit(Commit::new().fence(&lease).set("job", "x", "1"))
        .await?;
    expect_eq(
        "the field",
        c.value("job", "x").await?.as_deref(),
        Some("1"),
    )?;
    let (_, state) = expect_some("the lease", c.lease_of("job").await?)?;
    expect_eq("the write revives nothing", state, LeaseState::Expired)
}

async fn a_released_token_still_commits(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    c.backend().release(&lease).await?;
    c.commit(Commit::new().fence(&lease).set("job", "x", "1"))
        .await?;
    expect_eq(
        "the field",
        c.value("job", "x").await?.as_deref(),
        Some("1"),
    )?;
    let (_, state) = expect_some("the lease", c.lease_of("job").await?)?;
    expect_eq("the write revives nothing", state, LeaseState::Released)
}

async fn a_token_above_the_mark_becomes_the_mark(c: Context) -> Verdict {
    c.expired("job", "a").await?;
    c.commit(Commit::new().token("job", 100).set("job", "x", "1"))
        .await?;
    expect_eq("the mark", c.mark("job").await?, Some(100))?;
    expect_eq(
        "the field",
        c.value("job", "x").await?.as_deref(),
        Some("1"),
    )?;
    c.commit(Commit::new().token("job", 100).set("job", "x", "2"))
        .await?;
    let next = c.lease("job", "b").await?;
    expect_eq("the next token", next.token.get(), 101)
}

async fn a_token_of_an_unknown_resource_becomes_its_mark(c: Context) -> Verdict {
    c.commit(Commit::new().token("job", 5)).await?;
    expect_eq("the mark", c.mark("job").await?, Some(5))?;
    expect_eq("the state", c.state("job").await?, None)?;
    expect_eq("the lease", c.lease_of("job").await?, None)?;
    let event = expect_one("the events", c.events().await?)?;
    expect_eq("the event", event.kind.name(), "committed")?;
    let lease = c.lease("job", "a").await?;
    expect_eq("the next token", lease.token.get(), 6)
}

async fn a_refused_commit_does_not_raise_the_mark(c: Context) -> Verdict {
    c.commit(Commit::new().set("job", "x", "1")).await?;
    let old = c.expired("other", "a").await?;
    c.lease("other", "b").await?;
    let all = ["job", "other", "third"];
    let before = c.look(&all).await?;
    let commit = Commit::new()
        .token("job", 9)
        .check("job", "x", None)
        .set("job", "x", "2");
    expect_conflict("a conflict", c.commit(commit).await, "job", Some("x"))?;
    c.unchanged("the conflict", &before).await?;
    let commit = Commit::new()
        .token("third", 9)
        .fence(&old)
        .set("job", "x", "2");
    let answer = c.commit(commit).await.map_err(|error| error.kind());
    expect_eq("a stale fence after it", answer, Err(ErrorKind::LeaseLost))?;
    c.unchanged("the stale fence", &before).await
}

async fn a_lease_below_a_newer_token_is_lost(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    c.commit(Commit::new().token("job", 5)).await?;
    let why = LossReason::Superseded { by: Token::new(5)? };
    let answer = c.backend().renew(&lease, ttl(LONG)?).await;
    expect_lost("a renewal", answer, "job", lease.token, why)?;
    let answer = c.backend().guard(&lease).await;
    expect_lost("a guard", answer, "job", lease.token, why)?;
    expect(
        "the release says false",
        !c.backend().release(&lease).await?,
    )?;
    let (_, state) = expect_some("the lease", c.lease_of("job").await?)?;
    expect_eq("its state", state, LeaseState::Superseded)?;
    // Not even its own owner extends it.
    expect_eq("the next token", c.lease("job", "a").await?.token.get(), 6)
}

/// A commit with a fence that must be live, and is not.
async fn not_live(c: &Context, what: &str, lease: &Lease, why: LossReason) -> Verdict {
    let before = c.look(&["job"]).await?;
    let answer = c
        .commit(Commit::new().live_fence(lease).set("job", "x", "2"))
        .await;
    expect_lost(what, answer, "job", lease.token, why)?;
    c.unchanged(what, &before).await
}

async fn a_live_fence_needs_a_live_lease(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    c.commit(Commit::new().live_fence(&lease).set("job", "x", "1"))
        .await?;
    c.backend().release(&lease).await?;
    not_live(&c, "a released lease", &lease, LossReason::Expired).await?;
    let lease = c.expired("job", "a").await?;
    not_live(&c, "an expired lease", &lease, LossReason::Expired).await?;
    // The same token without the demand: R14.
    c.commit(Commit::new().fence(&lease).set("job", "x", "3"))
        .await?;
    Ok(())
}

async fn a_live_fence_that_is_superseded_says_so(c: Context) -> Verdict {
    let old = c.expired("job", "a").await?;
    let new = c.lease("job", "b").await?;
    let why = LossReason::Superseded { by: new.token };
    not_live(&c, "a superseded lease", &old, why).await
}

async fn a_live_fence_with_a_token_never_granted_is_refused(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    let above = Lease {
        token: Token::new(9)?,
        ..lease
    };
    not_live(&c, "a token above the mark", &above, LossReason::Expired).await
}

async fn a_fenced_resource_refuses_writes_without_a_fence(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    c.commit(Commit::new().set("job", "x", "1").set("open", "x", "1"))
        .await?;
    c.commit(Commit::new().fenced("job", true)).await?;
    expect("it says that it is fenced", c.existing("job").await?.fenced)?;
    let before = c.look(&["job", "open"]).await?;
    for (what, commit) in [
        ("a write", Commit::new().set("job", "x", "2")),
        ("a whole state", Commit::new().replace("job", &[("x", "2")])),
        (
            "a deletion of a field",
            Commit::new().fields("job", &[("x", None)]),
        ),
        ("a deletion", Commit::new().delete("job")),
        ("opening it", Commit::new().fenced("job", false)),
        (
            "a write after another",
            Commit::new().set("open", "x", "2").set("job", "x", "2"),
        ),
    ] {
        expect_fence_required(what, c.commit(commit).await, "job")?;
        c.unchanged(what, &before).await?;
    }
    c.commit(Commit::new().set("open", "x", "3")).await?;
    c.commit(Commit::new().fence(&lease).set("job", "x", "2"))
        .await?;
    expect_eq(
        "the fenced write",
        c.value("job", "x").await?.as_deref(),
        Some("2"),
    )?;
    expect("it stays fenced", c.existing("job").await?.fenced)
}

async fn a_fence_of_another_resource_is_a_fence(c: Context) -> Verdict {
    c.commit(Commit::new().fenced("orders/7", true)).await?;
    let old = c.expired("job-42", "a").await?;
    c.commit(Commit::new().fence(&old).set("orders/7", "x", "1"))
        .await?;
    let new = c.lease("job-42", "b").await?;
    let answer = c
        .commit(Commit::new().fence(&old).set("orders/7", "x", "2"))
        .await;
    let why = LossReason::Superseded { by: new.token };
    expect_lost("a stale one", answer, "job-42", old.token, why)?;
    expect_eq(
        "the field",
        c.value("orders/7", "x").await?.as_deref(),
        Some("1"),
    )
}

async fn a_resource_is_not_fenced_unless_asked(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    c.commit(Commit::new().set("job", "x", "1")).await?;
    expect("it is not fenced", !c.existing("job").await?.fenced)?;
    c.commit(Commit::new().fenced("job", true)).await?;
    c.commit(Commit::new().fence(&lease).fenced("job", false))
        .await?;
    c.commit(Commit::new().set("job", "x", "2")).await?;
    expect_eq(
        "the field",
        c.value("job", "x").await?.as_deref(),
        Some("2"),
    )
}

async fn a_fenced_resource_stays_fenced_when_created_again(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    c.commit(Commit::new().fenced("job", true)).await?;
    c.commit(Commit::new().fence(&lease).delete("job")).await?;
    let answer = c.commit(Commit::new().set("job", "x", "1")).await;
    expect_fence_required("a write that would create it", answer, "job")?;
    c.lease("job", "a").await?;
    expect("it exists and is fenced", c.existing("job").await?.fenced)?;
    let answer = c.commit(Commit::new().set("job", "x", "1")).await;
    expect_fence_required("a write after the lease", answer, "job")
}

async fn a_missing_fence_is_found_before_a_conflict(c: Context) -> Verdict {
    c.commit(Commit::new().fenced("job", true)).await?;
    let commit = Commit::new()
        .check("job", "x", Some(77))
        .set("job", "x", "1");
    expect_fence_required("the commit", c.commit(commit).await, "job")
}

async fn a_stale_fence_is_found_before_a_conflict(c: Context) -> Verdict {
    let old = c.expired("job", "a").await?;
    let new = c.lease("job", "b").await?;
    let why = LossReason::Superseded { by: new.token };
    let commit = Commit::new()
        .fence(&old)
        .check("job", "x", Some(77))
        .set("job", "x", "1");
    expect_lost(
        "a field check",
        c.commit(commit).await,
        "job",
        old.token,
        why,
    )?;
    let commit = Commit::new().fence(&old).check_all("none", Some(77));
    expect_lost(
        "a resource check",
        c.commit(commit).await,
        "job",
        old.token,
        why,
    )
}

async fn a_dead_live_fence_is_found_before_a_conflict(c: Context) -> Verdict {
    let old = c.expired("job", "a").await?;
    let commit = Commit::new().live_fence(&old).check("job", "x", Some(77));
    expect_lost(
        "the commit",
        c.commit(commit).await,
        "job",
        old.token,
        LossReason::Expired,
    )
}

async fn a_lost_lease_is_not_retried(c: Context) -> Verdict {
    let manager = StateManager::new(c.shared());
    let lease = c.lease("job", "a").await?;
    let runs = Arc::new(AtomicU32::new(0));
    let (backend, counted) = (c.shared(), runs.clone());
    let conflicting = Commit::new().set("job", "x", "0").build()?;
    let job = resource("job")?;
    let session = manager.session("conformance").resource("job").fence(&lease);
    let runtime = tokio::runtime::Handle::current();
    // Not awaited here: the compiler cannot tell that the future of a closure
    // that captures is `Send`.
    let transaction = tokio::task::spawn_blocking(move || {
        runtime.block_on(session.transact(RetryPolicy::default(), async |session| {
            session.write("job", "x", &1)?;
            if counted.fetch_add(1, Ordering::Relaxed) == 0 {
                // A conflict, of which the work hears nothing but that it runs again.
                backend.commit(&conflicting).await?;
            } else {
                backend.revoke(&job).await?;
            }
            Ok(())
        }))
    });
    let answer = transaction.await?;
    let why = LossReason::Superseded { by: Token::new(2)? };
    expect_lost("the transaction", answer, "job", lease.token, why)?;
    expect_eq("the runs", runs.load(Ordering::Relaxed), 2)
}
