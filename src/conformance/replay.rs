//! Sending a commit again: R26.

use super::check::{Verdict, expect, expect_conflict, expect_eq, expect_invalid, expect_lost};
use super::context::{Commit, Context};
use crate::backend::CommitRequest;
use crate::error::LossReason;

super::case_list! { "replay":
    [26] a_commit_sent_again_answers_the_same,
        "its receipt is the first one's, and it is applied once";
    [26] a_replay_answers_whatever_has_happened_since,
        "later commits and deletions change neither the answer nor what it did";
    [13, 26] a_replay_answers_though_the_fence_is_stale_by_now,
        "the commit happened when its fence was good";
    [22, 26] a_replay_answers_though_its_checks_would_fail_by_now,
        "its own write has changed what it checked";
    [26] a_replay_through_another_handle_answers_the_same,
        "the id belongs to the store, not to the connection";
    [26] a_replay_after_a_restart_answers_the_same,
        "the id is as durable as the commit";
    [26] an_id_used_for_another_commit_is_refused,
        "another value, field, resource, agent or fence: InvalidArgument, and nothing changes";
    [26] the_id_of_a_refused_commit_is_free,
        "what did not happen can be sent again with the same id, changed or not";
    [26] two_ids_are_two_commits,
        "the same writes under another id are applied again, also with one bit of difference";
    [26] commits_without_an_id_are_all_applied,
        "nothing is guessed to be a replay";
}

async fn send(c: &Context, request: &CommitRequest) -> Verdict<crate::backend::CommitReceipt> {
    Ok(c.backend().commit(request).await?)
}

/// Sends a request that was committed once more.
async fn again(c: &Context, request: &CommitRequest, what: &str) -> Verdict {
    let before = c.look(&["a", "b", "job"]).await?;
    let first = send(c, request).await?;
    expect_eq(what, &send(c, request).await?, &first)?;
    c.unchanged(what, &before).await
}

async fn a_commit_sent_again_answers_the_same(c: Context) -> Verdict {
    let request = Commit::new()
        .id(1)
        .set("a", "x", "1")
        .set("b", "y", "2")
        .build()?;
    let first = send(&c, &request).await?;
    expect_eq("the sequence", first.sequence, 1)?;
    expect_eq("the versions", first.versions.len(), 2)?;
    expect_eq("sent again", &send(&c, &request).await?, &first)?;
    again(&c, &request, "sent twice more").await?;
    expect_eq("the version", c.existing("a").await?.version, 1)
}

async fn a_replay_answers_whatever_has_happened_since(c: Context) -> Verdict {
    let request = Commit::new().id(1).set("a", "x", "1").build()?;
    let first = send(&c, &request).await?;
    c.commit(Commit::new().set("a", "x", "2")).await?;
    c.commit(Commit::new().delete("a").set("b", "x", "1"))
        .await?;
    expect_eq("the replay", &send(&c, &request).await?, &first)?;
    again(&c, &request, "the replay again").await?;
    expect_eq("it stays deleted", c.state("a").await?, None)
}

async fn a_replay_answers_though_the_fence_is_stale_by_now(c: Context) -> Verdict {
    let old = c.expired("job", "a").await?;
    let request = Commit::new().id(1).fence(&old).set("a", "x", "1").build()?;
    let first = send(&c, &request).await?;
    let new = c.lease("job", "b").await?;
    expect_eq("the replay", &send(&c, &request).await?, &first)?;
    let answer = c
        .commit(Commit::new().id(2).fence(&old).set("a", "x", "1"))
        .await;
    let why = LossReason::Superseded { by: new.token };
    expect_lost("another commit", answer, "job", old.token, why)
}

async fn a_replay_answers_though_its_checks_would_fail_by_now(c: Context) -> Verdict {
    let request = Commit::new()
        .id(1)
        .check("a", "x", None)
        .set("a", "x", "1")
        .build()?;
    let first = send(&c, &request).await?;
    expect_eq("the replay", &send(&c, &request).await?, &first)?;
    let answer = c.commit(Commit::new().id(2).check("a", "x", None).set("a", "x", "1"));
    expect_conflict("another commit", answer.await, "a", Some("x"))
}

async fn a_replay_through_another_handle_answers_the_same(c: Context) -> Verdict {
    let other = c.another_handle().await?;
    let request = Commit::new().id(1).set("a", "x", "1").build()?;
    let first = send(&c, &request).await?;
    expect_eq("the replay", &other.commit(&request).await?, &first)?;
    expect_eq("the version", c.existing("a").await?.version, 1)
}

async fn a_replay_after_a_restart_answers_the_same(c: Context) -> Verdict {
    let request = Commit::new().id(u128::MAX).set("a", "x", "1").build()?;
    let first = send(&c, &request).await?;
    let c = c.reopen().await?;
    expect_eq("the replay", &send(&c, &request).await?, &first)?;
    expect_eq("the version", c.existing("a").await?.version, 1)
}

async fn an_id_used_for_another_commit_is_refused(c: Context) -> Verdict {
    let lease = c.lease("job", "o").await?;
    let commit = || Commit::new().id(1);
    c.commit(commit().set("a", "x", "1")).await?;
    let before = c.look(&["a", "b", "job"]).await?;
    let mut other_agent = commit().set("a", "x", "1").build()?;
    other_agent.agent = crate::resource::AgentName::new("another")?;
    for (what, request) in [
        ("another value", commit().set("a", "x", "2").build()?),
        ("another field", commit().set("a", "y", "1").build()?),
        ("another resource", commit().set("b", "x", "1").build()?),
        (
            "one write more",
            commit().set("a", "x", "1").set("b", "x", "1").build()?,
        ),
        ("no write", commit().build()?),
        ("a deletion", commit().delete("a").build()?),
        (
            "a whole state",
            commit().replace("a", &[("x", "1")]).build()?,
        ),
        (
            "a fence",
            commit().fence(&lease).set("a", "x", "1").build()?,
        ),
        ("another agent", other_agent),
    ] {
        expect_invalid(what, c.backend().commit(&request).await, "commit_id")?;
        c.unchanged(what, &before).await?;
    }
    Ok(())
}

async fn the_id_of_a_refused_commit_is_free(c: Context) -> Verdict {
    c.commit(Commit::new().set("a", "x", "1")).await?;
    let refused = Commit::new()
        .id(1)
        .check("a", "x", Some(2))
        .set("b", "x", "1")
        .build()?;
    let answer = c.backend().commit(&refused).await;
    expect_conflict("the first", answer, "a", Some("x"))?;
    c.commit(Commit::new().set("a", "x", "2")).await?;
    let receipt = send(&c, &refused).await?;
    expect_eq("the same, accepted now", receipt.sequence, 3)?;
    let refused = Commit::new()
        .id(2)
        .check("a", "x", Some(7))
        .set("b", "x", "2");
    expect_conflict("another", c.commit(refused).await, "a", Some("x"))?;
    c.commit(Commit::new().id(2).set("b", "y", "3")).await?;
    expect_eq(
        "a different one",
        c.value("b", "y").await?.as_deref(),
        Some("3"),
    )
}

async fn two_ids_are_two_commits(c: Context) -> Verdict {
    let ids = [0, 1, 1 << 63, 1 << 64, 1 << 127, u128::MAX];
    for (before, id) in (0..).zip(ids) {
        let receipt = c.commit(Commit::new().id(id).set("a", "x", "1")).await?;
        expect_eq("the sequence", receipt.sequence, before + 1)?;
    }
    expect_eq("the version", c.existing("a").await?.version, 6)
}

async fn commits_without_an_id_are_all_applied(c: Context) -> Verdict {
    let request = Commit::new().set("a", "x", "1").build()?;
    let first = send(&c, &request).await?;
    let second = send(&c, &request).await?;
    expect("the second comes after", second.sequence > first.sequence)?;
    expect_eq("the version", c.existing("a").await?.version, 2)
}
