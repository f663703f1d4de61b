//! What outlives a lease, who ends it, and several leases at once: R1, R4, R7
//! to R12.

use std::time::Duration;

use super::check::{
    Verdict, expect, expect_eq, expect_held, expect_lost, expect_not_found, expect_some, expect_two,
};
use super::context::{Commit, Context, LONG, SHORT, acquire, owner, resource, ttl};
use crate::backend::LeaseState;
use crate::clock::{ManualClock, Timestamp};
use crate::error::LossReason;
use crate::lease::{Lease, LeaseManager, Token};
use crate::manager::StateManager;

super::case_list! { "ownership":
    [1] tokens_grow_over_every_end_of_a_lease,
        "release, expiry, revocation and observation in turn: never the same token twice";
    [1] tokens_outlive_a_deletion,
        "a resource that was deleted and is created again does not begin at 1";
    [1, 4] a_live_lease_outlives_a_deletion,
        "deleting the state takes the lease from nobody";
    [1, 2] tokens_outlive_a_restart,
        "marks and leases are as they were when the store is opened again";
    [1] each_resource_has_tokens_of_its_own,
        "the mark of one resource says nothing of another";
    [7] the_mark_is_nothing_until_there_is_a_token,
        "no token was issued: no mark, whether the resource exists or not";
    [7] the_mark_outlives_release_and_expiry,
        "the mark is the highest token issued, live or not";
    [7, 15] the_mark_is_the_highest_token_observed,
        "a token seen in a write is the mark as one that was issued is";
    [7] the_status_tells_what_became_of_the_lease,
        "live, expired, released, superseded";
    [8] a_guard_passes_until_a_newer_token,
        "live, expired and released leases pass; a taken over one does not";
    [8] a_guard_passes_where_there_is_no_mark,
        "nothing newer is known of an unknown resource, nor of a token above the mark";
    [8, 9] a_guard_fails_after_a_revocation,
        "the old owner is told by the mark";
    [9] a_revocation_ends_the_lease_and_raises_the_mark_by_one,
        "the resource is free at once, and the next token is above the revocation's";
    [9] a_revocation_needs_no_lease,
        "it raises the mark of a resource that was never leased, and of a deleted one";
    [9] a_revocation_of_the_unknown_is_not_found,
        "a resource with neither state nor token is an error, and stays unknown";
    [10] whether_a_lease_has_expired_is_said_locally,
        "is_expired compares two times and asks nobody, and is no authority";
    [11] a_callers_clock_decides_nothing,
        "a lease manager whose clock is days ahead gets the backend's answers";
    [11] the_wall_clock_decides_nothing,
        "a wall clock set forward ends no lease, and set back revives none";
    [12, 13] no_clock_lets_a_stale_token_through,
        "after years, and with every lease expired, the marks refuse and accept the same";
    [2, 4] several_leases_are_taken_in_one_step,
        "in the order asked for, each with the next token of its resource";
    [2, 4] several_leases_are_taken_all_or_none,
        "one that is held refuses all, wherever it stands, and nothing is created";
    [4] the_first_refused_of_several_is_named,
        "in the order of the request";
    [3, 4] an_owner_adds_leases_to_those_it_holds,
        "those it holds are extended, the others are new, in one step";
    [24] several_leases_of_which_one_is_unknown_are_refused,
        "without leave to create, none of them is taken";
    [4] a_waiter_gets_the_lease_when_it_is_free,
        "waiting through the manager ends with a lease once the holder has released";
}

async fn tokens_grow_over_every_end_of_a_lease(c: Context) -> Verdict {
    let mut highest = 0;
    for round in 0..12 {
        let lease = match round % 4 {
            1 => c.expired("job", "a").await?,
            _ => {
                c.lease("job", if round % 3 == 0 { "a" } else { "b" })
                    .await?
            }
        };
        expect(
            &format!("token {} of round {round} is above {highest}", lease.token),
            lease.token.get() > highest,
        )?;
        highest = lease.token.get();
        match round % 4 {
            0 => expect("the release", c.backend().release(&lease).await?)?,
            2 => highest = c.backend().revoke(&lease.resource).await?.get(),
            3 => {
                highest += 10;
                c.commit(Commit::new().token("job", highest)).await?;
            }
            _ => {}
        }
        expect_eq("the mark", c.mark("job").await?, Some(highest))?;
    }
    Ok(())
}

async fn tokens_outlive_a_deletion(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    c.backend().release(&lease).await?;
    c.commit(Commit::new().fence(&lease).delete("job")).await?;
    expect_eq("the state", c.state("job").await?, None)?;
    expect_eq("the mark", c.mark("job").await?, Some(1))?;
    let again = c.lease("job", "a").await?;
    expect_eq("the next token", again.token.get(), 2)?;
    let answer = c
        .commit(Commit::new().fence(&lease).set("job", "x", "1"))
        .await;
    let why = LossReason::Superseded { by: again.token };
    expect_lost("a write of the first life", answer, "job", lease.token, why)
}

async fn a_live_lease_outlives_a_deletion(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    c.commit(Commit::new().delete("job")).await?;
    let stored = expect_some("the stored lease", c.lease_of("job").await?)?;
    expect_eq(
        "the stored lease",
        &stored,
        &(lease.clone(), LeaseState::Live),
    )?;
    expect_held("another owner", c.lease("job", "b").await, &lease)?;
    expect_eq("the state", c.state("job").await?, None)?;
    let lease = c.backend().renew(&lease, ttl(LONG)?).await?;
    let again = c.lease("job", "a").await?;
    expect_eq("its owner's token", again.token, lease.token)?;
    c.existing("job").await?;
    Ok(())
}

async fn tokens_outlive_a_restart(c: Context) -> Verdict {
    let all = ["live", "released", "revoked", "seen", "deleted"];
    let live = c.lease("live", "a").await?;
    let released = c.lease("released", "a").await?;
    c.backend().release(&released).await?;
    let revoked = c.lease("revoked", "a").await?;
    c.backend().revoke(&revoked.resource).await?;
    c.commit(Commit::new().token("seen", 41)).await?;
    let deleted = c.lease("deleted", "a").await?;
    c.backend().release(&deleted).await?;
    c.commit(Commit::new().delete("deleted")).await?;
    let before = c.look(&all).await?;
    let c = c.reopen().await?;
    c.unchanged("a restart", &before).await?;
    expect_held("the live lease", c.lease("live", "b").await, &live)?;
    let live = c.backend().renew(&live, ttl(LONG)?).await?;
    c.commit(Commit::new().live_fence(&live)).await?;
    for (of, next) in [
        ("released", 2),
        ("revoked", 3),
        ("seen", 42),
        ("deleted", 2),
    ] {
        expect_eq(of, c.lease(of, "b").await?.token.get(), next)?;
    }
    Ok(())
}

async fn each_resource_has_tokens_of_its_own(c: Context) -> Verdict {
    c.commit(Commit::new().token("a", 50)).await?;
    expect_eq(
        "the token of another",
        c.lease("b", "o").await?.token.get(),
        1,
    )?;
    expect_eq(
        "the token of a longer name",
        c.lease("a/1", "o").await?.token.get(),
        1,
    )?;
    expect_eq("the next token", c.lease("a", "o").await?.token.get(), 51)
}

async fn the_mark_is_nothing_until_there_is_a_token(c: Context) -> Verdict {
    expect_eq("of an unknown resource", c.mark("job").await?, None)?;
    c.commit(Commit::new().set("job", "x", "1")).await?;
    expect_eq("of a resource never leased", c.mark("job").await?, None)?;
    let status = c.backend().lease_status(&resource("job")?).await?;
    expect_eq("the lease", status.lease, None)
}

async fn the_mark_outlives_release_and_expiry(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    expect_eq("when live", c.mark("job").await?, Some(1))?;
    c.backend().release(&lease).await?;
    expect_eq("when released", c.mark("job").await?, Some(1))?;
    c.expired("job", "a").await?;
    expect_eq("when expired", c.mark("job").await?, Some(2))
}

async fn the_mark_is_the_highest_token_observed(c: Context) -> Verdict {
    c.lease("job", "a").await?;
    c.commit(Commit::new().token("job", 30)).await?;
    expect_eq("the mark", c.mark("job").await?, Some(30))?;
    c.commit(Commit::new().token("job", 30).set("job", "x", "1"))
        .await?;
    expect_eq("seen again", c.mark("job").await?, Some(30))
}

async fn the_status_tells_what_became_of_the_lease(c: Context) -> Verdict {
    for (of, expected) in [
        ("live", LeaseState::Live),
        ("expired", LeaseState::Expired),
        ("released", LeaseState::Released),
        ("superseded", LeaseState::Superseded),
    ] {
        let lease = match expected {
            LeaseState::Expired => c.expired(of, "a").await?,
            _ => c.lease(of, "a").await?,
        };
        match expected {
            LeaseState::Released => expect("the release", c.backend().release(&lease).await?)?,
            LeaseState::Superseded => {
                c.backend().revoke(&lease.resource).await?;
            }
            LeaseState::Live | LeaseState::Expired => {}
        }
        let (stored, state) = expect_some(of, c.lease_of(of).await?)?;
        expect_eq(of, state, expected)?;
        expect_eq("its token", stored.token, lease.token)?;
        expect_eq("its owner", stored.owner, lease.owner)?;
    }
    Ok(())
}

async fn a_guard_passes_until_a_newer_token(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    c.backend().guard(&lease).await?;
    c.backend().release(&lease).await?;
    c.backend().guard(&lease).await?;
    let expired = c.expired("job", "a").await?;
    c.backend().guard(&expired).await?;
    let taken = c.lease("job", "b").await?;
    let why = LossReason::Superseded { by: taken.token };
    for old in [&lease, &expired] {
        let answer = c.backend().guard(old).await;
        expect_lost("an old lease", answer, "job", old.token, why)?;
    }
    c.backend().guard(&taken).await?;
    Ok(())
}

async fn a_guard_passes_where_there_is_no_mark(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    let above = Lease {
        token: Token::new(9)?,
        ..lease.clone()
    };
    c.backend().guard(&above).await?;
    expect_eq("a guard raises no mark", c.mark("job").await?, Some(1))?;
    let unknown = Lease {
        resource: resource("other")?,
        ..lease
    };
    c.backend().guard(&unknown).await?;
    expect_eq("a guard makes no mark", c.mark("other").await?, None)
}

async fn a_guard_fails_after_a_revocation(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    let mark = c.backend().revoke(&lease.resource).await?;
    let why = LossReason::Superseded { by: mark };
    let answer = c.backend().guard(&lease).await;
    expect_lost("the guard", answer, "job", lease.token, why)
}

async fn a_revocation_ends_the_lease_and_raises_the_mark_by_one(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    let mark = c.backend().revoke(&lease.resource).await?;
    expect_eq("the new mark", mark.get(), 2)?;
    expect_eq("the mark", c.mark("job").await?, Some(2))?;
    expect_eq("the next token", c.lease("job", "b").await?.token.get(), 3)?;
    expect_eq("again", c.backend().revoke(&lease.resource).await?.get(), 4)?;
    expect_eq(
        "and again",
        c.backend().revoke(&lease.resource).await?.get(),
        5,
    )?;
    expect_eq("the next token", c.lease("job", "b").await?.token.get(), 6)
}

async fn a_revocation_needs_no_lease(c: Context) -> Verdict {
    c.commit(Commit::new().set("job", "x", "1")).await?;
    let before = c.existing("job").await?;
    expect_eq(
        "the mark",
        c.backend().revoke(&resource("job")?).await?.get(),
        1,
    )?;
    expect_eq("the state", &c.existing("job").await?, &before)?;
    c.commit(Commit::new().delete("job")).await?;
    let mark = c.backend().revoke(&resource("job")?).await?;
    expect_eq("the mark of a deleted resource", mark.get(), 2)?;
    expect_eq("it stays deleted", c.state("job").await?, None)?;
    c.commit(Commit::new().token("seen", 8)).await?;
    let mark = c.backend().revoke(&resource("seen")?).await?;
    expect_eq("the mark of a resource without a state", mark.get(), 9)
}

async fn a_revocation_of_the_unknown_is_not_found(c: Context) -> Verdict {
    let before = c.look(&["job"]).await?;
    let answer = c.backend().revoke(&resource("job")?).await;
    expect_not_found("a resource never seen", answer, "job")?;
    c.unchanged("the refusal", &before).await?;
    c.commit(Commit::new().set("job", "x", "1")).await?;
    c.commit(Commit::new().delete("job")).await?;
    let before = c.look(&["job"]).await?;
    let answer = c.backend().revoke(&resource("job")?).await;
    expect_not_found("a deleted one that never had a token", answer, "job")?;
    c.unchanged("the refusal", &before).await
}

async fn whether_a_lease_has_expired_is_said_locally(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    let last = Timestamp::from_millis(lease.expires_at.as_millis() - 1);
    expect("not a millisecond before", !lease.is_expired(last))?;
    expect("at its expiry", lease.is_expired(lease.expires_at))?;
    // The copy says live, the backend knows better, and the other way round.
    let stale = c.expired("other", "a").await?;
    let now = c.now().await?;
    let renewed = c.lease("other", "a").await?;
    expect("the old copy has expired", stale.is_expired(now))?;
    c.backend().release(&renewed).await?;
    expect("the released copy has not", !renewed.is_expired(now))?;
    expect(
        "and is released all the same",
        !c.backend().release(&renewed).await?,
    )
}

async fn a_callers_clock_decides_nothing(c: Context) -> Verdict {
    let ahead = std::sync::Arc::new(ManualClock::new());
    ahead.advance(Duration::from_secs(400 * 86_400));
    let leases = LeaseManager::new(c.shared(), LONG)?.with_clock(ahead.clone());
    let lease = c.lease("job", "a").await?;
    expect_held("another owner", leases.acquire("job", "b").await, &lease)?;
    let renewed = leases.renew(&lease).await?;
    ahead.advance(Duration::from_secs(400 * 86_400));
    leases.guard(&renewed).await?;
    expect("the release", leases.release(&renewed).await?)?;
    // One that stands still, while the backend's goes on.
    let still = std::sync::Arc::new(ManualClock::new());
    let leases = LeaseManager::new(c.shared(), SHORT)?.with_clock(still);
    let lease = leases.acquire("job", "a").await?;
    c.expire(&lease).await?;
    let answer = leases.renew(&lease).await;
    expect_lost("a renewal", answer, "job", lease.token, LossReason::Expired)
}

async fn the_wall_clock_decides_nothing(c: Context) -> Verdict {
    let clock = c.clock()?;
    let live = c.lease("live", "a").await?;
    let expired = c.expired("expired", "a").await?;
    let now = c.now().await?;
    clock.set_wall(now.plus(24 * LONG));
    expect_held("set forward", c.lease("live", "b").await, &live)?;
    clock.set_wall(Timestamp::from_millis(1));
    let answer = c.backend().renew(&expired, ttl(LONG)?).await;
    expect_lost(
        "set back",
        answer,
        "expired",
        expired.token,
        LossReason::Expired,
    )?;
    expect_held("set back", c.lease("live", "b").await, &live)?;
    expect_eq("the store's time", c.now().await?, now)
}

async fn no_clock_lets_a_stale_token_through(c: Context) -> Verdict {
    let clock = c.clock()?;
    let old = c.expired("job", "a").await?;
    let new = c.lease("job", "b").await?;
    let why = LossReason::Superseded { by: new.token };
    for wait in [SHORT, LONG, Duration::from_secs(5 * 366 * 86_400)] {
        clock.advance(wait);
        let commit = Commit::new().fence(&old).set("job", "x", "1");
        expect_lost(
            "the stale token",
            c.commit(commit).await,
            "job",
            old.token,
            why,
        )?;
        c.commit(Commit::new().fence(&new).set("job", "x", "2"))
            .await?;
    }
    Ok(())
}

async fn several_leases_are_taken_in_one_step(c: Context) -> Verdict {
    c.commit(Commit::new().token("b", 4)).await?;
    let request = acquire(&["b", "a"], "o", LONG, true)?;
    let before = c.now().await?;
    let leases = c.backend().acquire_all(&request).await?;
    let (b, a) = expect_two("the leases", leases)?;
    expect_eq("the first resource", b.resource.as_str(), "b")?;
    expect_eq("the first token", b.token.get(), 5)?;
    expect_eq("the second resource", a.resource.as_str(), "a")?;
    expect_eq("the second token", a.token.get(), 1)?;
    expect_eq("one expiry", a.expires_at, b.expires_at)?;
    expect("it is to come", a.expires_at >= before.plus(LONG))?;
    c.existing("a").await?;
    c.existing("b").await?;
    // The leases are independent from then on.
    expect("a release of one", c.backend().release(&a).await?)?;
    expect_held("the other", c.lease("b", "p").await, &b)
}

async fn several_leases_are_taken_all_or_none(c: Context) -> Verdict {
    let held = c.lease("held", "a").await?;
    c.expired("free", "a").await?;
    let all = ["free", "held", "new"];
    let before = c.look(&all).await?;
    for order in [
        ["held", "free", "new"],
        ["free", "held", "new"],
        ["free", "new", "held"],
    ] {
        let request = acquire(&order, "b", LONG, true)?;
        let answer = c.backend().acquire_all(&request).await;
        expect_held(&format!("{order:?}"), answer, &held)?;
        c.unchanged(&format!("{order:?}"), &before).await?;
    }
    Ok(())
}

async fn the_first_refused_of_several_is_named(c: Context) -> Verdict {
    let a = c.lease("a", "x").await?;
    let b = c.lease("b", "y").await?;
    let request = acquire(&["free", "b", "a"], "z", LONG, true)?;
    expect_held("b before a", c.backend().acquire_all(&request).await, &b)?;
    let request = acquire(&["a", "free", "b"], "z", LONG, true)?;
    expect_held("a before b", c.backend().acquire_all(&request).await, &a)
}

async fn an_owner_adds_leases_to_those_it_holds(c: Context) -> Verdict {
    let first = c.lease("a", "o").await?;
    let request = acquire(&["a", "b"], "o", 2 * LONG, true)?;
    let (a, b) = expect_two("the leases", c.backend().acquire_all(&request).await?)?;
    expect_eq("the held one's token", a.token, first.token)?;
    expect("its expiry is later", a.expires_at > first.expires_at)?;
    expect_eq("the new one's token", b.token.get(), 1)
}

async fn several_leases_of_which_one_is_unknown_are_refused(c: Context) -> Verdict {
    c.commit(Commit::new().set("a", "x", "1")).await?;
    let before = c.look(&["a", "b"]).await?;
    let request = acquire(&["a", "b"], "o", LONG, false)?;
    expect_not_found("both", c.backend().acquire_all(&request).await, "b")?;
    c.unchanged("the refusal", &before).await
}

async fn a_waiter_gets_the_lease_when_it_is_free(c: Context) -> Verdict {
    let held = c.lease("job", "a").await?;
    let manager = StateManager::new(c.shared());
    let waiter = tokio::spawn(manager.lease("job", "b", LONG).wait_forever().into_future());
    let other = c.any_other_handle().await?;
    tokio::task::yield_now().await;
    expect("the release", other.release(&held).await?)?;
    let taken = waiter.await??;
    expect_eq("the waiter's token", taken.token.get(), 2)?;
    expect_eq("the waiter", &taken.owner, &owner("b")?)
}
