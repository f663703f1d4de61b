//! Taking, renewing and releasing a lease: R2 to R6, R24.

use std::time::Duration;

use super::check::{
    Verdict, expect, expect_eq, expect_held, expect_lost, expect_not_found, expect_one, expect_some,
};
use super::context::{Context, LONG, SHORT, acquire, expect_until, lease_on, owner, resource, ttl};
use crate::backend::LeaseState;
use crate::clock::Timestamp;
use crate::error::{LossReason, Result};
use crate::event::EventKind;
use crate::lease::{Lease, LeaseManager, Token};

super::case_list! { "leases":
    [2, 24] the_first_lease_has_token_1_and_creates_the_resource,
        "a lease of an unknown resource creates it with an empty state, in the same step";
    [24] acquire_of_an_unknown_resource_is_not_found,
        "without leave to create, an unknown resource is an error and stays unknown";
    [2, 24] acquire_of_a_known_resource_leaves_its_state,
        "an acquisition of a resource that exists changes its lease alone";
    [24] a_lease_creates_a_deleted_resource_again,
        "a deleted resource is created again by a lease, and its version goes on counting";
    [2] expiry_is_counted_from_now,
        "a lease expires at the backend's time plus the ttl";
    [1, 2] after_expiry_the_same_owner_gets_a_new_token,
        "the previous owner is treated as any other once its lease has expired";
    [1, 2, 6] after_release_the_same_owner_gets_a_new_token,
        "the previous owner is treated as any other once it has released";
    [1, 2] after_expiry_another_owner_takes_over,
        "an expired lease is free, and the taker's token is the next";
    [3] the_owner_of_a_live_lease_extends_it_and_keeps_its_token,
        "acquiring what one holds is an extension";
    [3] an_extension_never_shortens,
        "an extension by less than is left changes the expiry in no way";
    [4] another_owner_is_refused_and_told_by_whom,
        "a live lease refuses others, names its holder and expiry, and stays as it was";
    [2, 4] a_lease_is_free_at_its_expiry_and_not_before,
        "a lease is live while now is before its expiry";
    [2, 4] a_dead_holder_keeps_a_lease_for_its_own_ttl,
        "tries, again and again, succeed once the holder's ttl has passed, whatever theirs is";
    [5] a_renewal_counts_from_now,
        "a renewal sets the expiry to now plus its ttl, earlier or later than before";
    [5] a_renewal_without_a_ttl_takes_the_leases_own,
        "the lease manager renews for what the lease was taken for";
    [5] a_live_lease_can_be_renewed_until_its_last_millisecond,
        "a renewal just before the expiry succeeds, one at the expiry does not";
    [5] a_late_renewal_is_expired_though_nobody_took_over,
        "an expired lease is not revived by its holder";
    [5] a_renewal_after_a_takeover_is_superseded,
        "a renewal by the old holder is refused and leaves the successor's expiry untouched";
    [5] a_renewal_after_a_release_is_released,
        "a released lease is not revived by its holder";
    [5] a_renewal_after_release_and_takeover_is_superseded,
        "the newer token is the reason, however the lease ended";
    [5, 9] a_renewal_after_a_revocation_is_superseded,
        "a revoked lease is not renewed though its time has not run out";
    [5] a_renewal_by_another_owner_is_lost,
        "the token alone does not renew: the owner must be the stored one";
    [5] a_renewal_of_a_lease_never_granted_is_lost,
        "neither an unknown resource nor a token above the mark is renewed";
    [5, 11] a_renewal_looks_at_the_stored_lease_alone,
        "what the caller's copy says of expiry changes nothing";
    [6] a_release_ends_the_lease_once,
        "releasing says true, then false, and the lease is free at once";
    [6] a_release_of_an_expired_lease_is_false,
        "an expired lease is not released";
    [6] a_stale_release_leaves_the_successors_lease,
        "a release by the old holder is false, and the new one still holds";
    [6] a_release_by_another_owner_or_token_is_false,
        "a release names owner and token, and both must be the stored ones";
    [6, 9] a_release_after_a_revocation_is_false,
        "a revoked lease is not released";
}

async fn the_first_lease_has_token_1_and_creates_the_resource(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    expect_eq("the first token", lease.token, Token::MIN)?;
    expect_eq("the resource", lease.resource.as_str(), "job")?;
    expect_eq("the owner", lease.owner.as_str(), "a")?;
    expect_eq("the ttl", lease.ttl, ttl(LONG)?)?;
    let state = c.existing("job").await?;
    expect_eq("the version", state.version, 1)?;
    expect_eq("the fields", state.fields.len(), 0)?;
    expect("it is not fenced", !state.fenced)?;
    let stored = expect_some("the stored lease", c.lease_of("job").await?)?;
    expect_eq("the stored lease", &stored, &(lease, LeaseState::Live))?;
    let event = expect_one("the events: one step", c.events().await?)?;
    expect(
        "the event says that it created",
        matches!(
            event.kind,
            EventKind::Acquired {
                created: Some(1),
                ..
            }
        ),
    )
}

async fn acquire_existing(c: &Context, by: &str) -> Result<Lease> {
    c.backend()
        .acquire(&resource("job")?, &owner(by)?, ttl(LONG)?)
        .await
}

async fn acquire_of_an_unknown_resource_is_not_found(c: Context) -> Verdict {
    let before = c.look(&["job"]).await?;
    let answer = acquire_existing(&c, "a").await;
    expect_not_found("acquire", answer, "job")?;
    let request = acquire(&["job"], "a", LONG, false)?;
    let answer = c.backend().acquire_all(&request).await;
    expect_not_found("acquire_all that does not create", answer, "job")?;
    c.unchanged("the refusals", &before).await
}

async fn acquire_of_a_known_resource_leaves_its_state(c: Context) -> Verdict {
    c.commit(super::context::Commit::new().set("job", "x", "1"))
        .await?;
    let before = c.existing("job").await?;
    let lease = c
        .backend()
        .acquire(&resource("job")?, &owner("a")?, ttl(LONG)?)
        .await?;
    expect_eq("the first token", lease.token.get(), 1)?;
    expect_eq("the state", &c.existing("job").await?, &before)?;
    expect_eq("the mark", c.mark("job").await?, Some(1))?;
    let again = c.lease("job", "a").await?;
    expect_eq("the token of a lease that may create", again.token.get(), 1)?;
    expect_eq("the state", &c.existing("job").await?, &before)
}

async fn a_lease_creates_a_deleted_resource_again(c: Context) -> Verdict {
    c.commit(super::context::Commit::new().set("job", "x", "1"))
        .await?;
    c.commit(super::context::Commit::new().delete("job"))
        .await?;
    let answer = acquire_existing(&c, "a").await;
    expect_not_found("acquire of a deleted resource", answer, "job")?;
    c.lease("job", "a").await?;
    let state = c.existing("job").await?;
    expect_eq("the version", state.version, 3)?;
    expect_eq("the fields", state.fields.len(), 0)
}

async fn expiry_is_counted_from_now(c: Context) -> Verdict {
    let before = c.now().await?;
    let lease = c.lease("job", "a").await?;
    let after = c.now().await?;
    expect_until("the expiry", lease.expires_at, (before, after), LONG)
}

async fn after_expiry_the_same_owner_gets_a_new_token(c: Context) -> Verdict {
    c.expired("job", "a").await?;
    let again = c.lease("job", "a").await?;
    expect_eq("the second token", again.token.get(), 2)?;
    expect_eq("the mark", c.mark("job").await?, Some(2))
}

async fn after_release_the_same_owner_gets_a_new_token(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    expect("the release", c.backend().release(&lease).await?)?;
    let again = c.lease("job", "a").await?;
    expect_eq("the second token", again.token.get(), 2)?;
    expect_eq("the mark", c.mark("job").await?, Some(2))
}

async fn after_expiry_another_owner_takes_over(c: Context) -> Verdict {
    c.expired("job", "a").await?;
    let taken = c.lease("job", "b").await?;
    expect_eq("the taker's token", taken.token.get(), 2)?;
    let stored = expect_some("the stored lease", c.lease_of("job").await?)?;
    expect_eq("the stored lease", &stored, &(taken, LeaseState::Live))
}

async fn the_owner_of_a_live_lease_extends_it_and_keeps_its_token(c: Context) -> Verdict {
    let lease = c.lease_for("job", "a", LONG).await?;
    let newest = c.events().await?.len();
    let before = c.now().await?;
    let extended = c.lease_for("job", "a", 2 * LONG).await?;
    let after = c.now().await?;
    expect_eq("the token", extended.token, lease.token)?;
    expect_until("the expiry", extended.expires_at, (before, after), 2 * LONG)?;
    let stored = expect_some("the stored lease", c.lease_of("job").await?)?;
    expect_eq("the stored lease", &stored, &(extended, LeaseState::Live))?;
    expect_eq("the mark", c.mark("job").await?, Some(1))?;
    expect_eq("the events: none more", c.events().await?.len(), newest)
}

async fn an_extension_never_shortens(c: Context) -> Verdict {
    let lease = c.lease_for("job", "a", LONG).await?;
    let extended = c.lease_for("job", "a", SHORT).await?;
    expect_eq("the expiry", extended.expires_at, lease.expires_at)?;
    expect_eq("the token", extended.token, lease.token)?;
    let (stored, _) = expect_some("the stored lease", c.lease_of("job").await?)?;
    expect_eq("the stored expiry", stored.expires_at, lease.expires_at)
}

async fn another_owner_is_refused_and_told_by_whom(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    let before = c.look(&["job"]).await?;
    let answer = acquire_existing(&c, "b").await;
    expect_held("acquire", answer, &lease)?;
    expect_held("lease", c.lease("job", "b").await, &lease)?;
    c.unchanged("the refusals", &before).await
}

async fn a_lease_is_free_at_its_expiry_and_not_before(c: Context) -> Verdict {
    let clock = c.clock()?;
    let lease = c.lease_for("job", "a", Duration::from_secs(10)).await?;
    clock.advance(Duration::from_millis(9_999));
    expect_held("a millisecond before", c.lease("job", "b").await, &lease)?;
    clock.advance(Duration::from_millis(1));
    expect_eq(
        "the token at the expiry",
        c.lease("job", "b").await?.token.get(),
        2,
    )
}

async fn a_dead_holder_keeps_a_lease_for_its_own_ttl(c: Context) -> Verdict {
    let lease = c.lease_for("job", "dead", SHORT).await?;
    let mut tries = 0;
    loop {
        let seen = c.now().await?;
        let (owner, ttl) = if tries % 2 == 0 {
            ("b", LONG)
        } else {
            ("c", SHORT / 30)
        };
        match c.lease_for("job", owner, ttl).await {
            Ok(taken) => {
                expect(
                    "the holder's ttl had passed",
                    c.now().await? >= lease.expires_at,
                )?;
                expect("others were refused before", tries > 0)?;
                return expect_eq("the taker's token", taken.token.get(), 2);
            }
            refused => {
                expect("the holder's ttl had not passed", seen < lease.expires_at)?;
                expect_held("a try", refused, &lease)?;
            }
        }
        tries += 1;
        c.advance(SHORT / 10).await;
    }
}

/// Renews, and compares the answer with what is stored then.
async fn renew(c: &Context, lease: &Lease, by: Duration) -> Verdict<Lease> {
    let before = c.now().await?;
    let renewed = c.backend().renew(lease, ttl(by)?).await?;
    expect_until(
        "the expiry",
        renewed.expires_at,
        (before, c.now().await?),
        by,
    )?;
    expect_eq("the token", renewed.token, lease.token)?;
    expect_eq("the owner", &renewed.owner, &lease.owner)?;
    expect_eq("the ttl", renewed.ttl, ttl(by)?)?;
    let stored = expect_some("the stored lease", c.lease_of("job").await?)?;
    expect_eq(
        "the stored lease",
        &stored,
        &(renewed.clone(), LeaseState::Live),
    )?;
    Ok(renewed)
}

async fn a_renewal_counts_from_now(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    let newest = c.events().await?.len();
    let longer = renew(&c, &lease, 2 * LONG).await?;
    let shorter = renew(&c, &longer, LONG / 2).await?;
    expect(
        "a shorter one ends earlier",
        shorter.expires_at < longer.expires_at,
    )?;
    renew(&c, &lease, LONG).await?;
    expect_eq("the mark", c.mark("job").await?, Some(1))?;
    expect_eq("the events: none more", c.events().await?.len(), newest)
}

async fn a_renewal_without_a_ttl_takes_the_leases_own(c: Context) -> Verdict {
    let lease = c.lease_for("job", "a", LONG).await?;
    let leases = LeaseManager::new(c.shared(), 7 * LONG)?;
    let before = c.now().await?;
    let renewed = leases.renew(&lease).await?;
    expect_until(
        "the expiry",
        renewed.expires_at,
        (before, c.now().await?),
        LONG,
    )
}

async fn a_live_lease_can_be_renewed_until_its_last_millisecond(c: Context) -> Verdict {
    let clock = c.clock()?;
    let ten = Duration::from_secs(10);
    let lease = c.lease_for("job", "a", ten).await?;
    clock.advance(Duration::from_millis(9_999));
    let renewed = renew(&c, &lease, ten).await?;
    clock.advance(ten);
    let answer = c.backend().renew(&renewed, ttl(ten)?).await;
    expect_lost(
        "a renewal at the expiry",
        answer,
        "job",
        lease.token,
        LossReason::Expired,
    )
}

/// A renewal that must be refused, and change nothing.
async fn refused(c: &Context, what: &str, lease: &Lease, why: LossReason) -> Verdict {
    let of = lease.resource.as_str();
    let before = c.look(&[of]).await?;
    let answer = c.backend().renew(lease, ttl(LONG)?).await;
    expect_lost(what, answer, of, lease.token, why)?;
    c.unchanged(what, &before).await
}

async fn a_late_renewal_is_expired_though_nobody_took_over(c: Context) -> Verdict {
    let lease = c.expired("job", "a").await?;
    refused(&c, "a late renewal", &lease, LossReason::Expired).await?;
    refused(&c, "another", &lease, LossReason::Expired).await
}

async fn a_renewal_after_a_takeover_is_superseded(c: Context) -> Verdict {
    let old = c.expired("job", "a").await?;
    let new = c.lease("job", "b").await?;
    let why = LossReason::Superseded { by: new.token };
    refused(&c, "a renewal after the takeover", &old, why).await?;
    let stored = expect_some("the successor's lease", c.lease_of("job").await?)?;
    expect_eq("the successor's lease", &stored, &(new, LeaseState::Live))
}

async fn a_renewal_after_a_release_is_released(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    c.backend().release(&lease).await?;
    refused(
        &c,
        "a renewal after the release",
        &lease,
        LossReason::Released,
    )
    .await
}

async fn a_renewal_after_release_and_takeover_is_superseded(c: Context) -> Verdict {
    let old = c.lease("job", "a").await?;
    c.backend().release(&old).await?;
    // The same owner: its name does not make the old lease its own again.
    let new = c.lease("job", "a").await?;
    let why = LossReason::Superseded { by: new.token };
    refused(&c, "a renewal after both", &old, why).await
}

async fn a_renewal_after_a_revocation_is_superseded(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    let mark = c.backend().revoke(&lease.resource).await?;
    let why = LossReason::Superseded { by: mark };
    refused(&c, "a renewal after the revocation", &lease, why).await
}

async fn a_renewal_by_another_owner_is_lost(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    let stolen = Lease {
        owner: owner("b")?,
        ..lease.clone()
    };
    let why = LossReason::Superseded { by: lease.token };
    refused(&c, "a renewal by another", &stolen, why).await
}

async fn a_renewal_of_a_lease_never_granted_is_lost(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    let above = Lease {
        token: Token::new(7)?,
        ..lease.clone()
    };
    refused(&c, "a token above the mark", &above, LossReason::Expired).await?;
    let unknown = Lease {
        resource: resource("other")?,
        ..lease
    };
    refused(&c, "an unknown resource", &unknown, LossReason::Expired).await
}

async fn a_renewal_looks_at_the_stored_lease_alone(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    // A copy that believes itself expired is renewed: the backend knows.
    let old = Lease {
        expires_at: Timestamp::from_millis(1),
        ..lease
    };
    renew(&c, &old, SHORT).await?;
    c.advance(SHORT).await;
    let late = c.lease_of("job").await?;
    let (late, _) = expect_some("the stored lease", late)?;
    c.expire(&late).await?;
    let hopeful = Lease {
        expires_at: late.expires_at.plus(LONG),
        ..late
    };
    refused(
        &c,
        "a copy that believes itself live",
        &hopeful,
        LossReason::Expired,
    )
    .await
}

async fn a_release_ends_the_lease_once(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    expect(
        "the first release says true",
        c.backend().release(&lease).await?,
    )?;
    let (_, state) = expect_some("the stored lease", c.lease_of("job").await?)?;
    expect_eq("its state", state, LeaseState::Released)?;
    let before = c.look(&["job"]).await?;
    expect("the second says false", !c.backend().release(&lease).await?)?;
    c.unchanged("the second release", &before).await?;
    expect_eq("the mark stays", c.mark("job").await?, Some(1))?;
    let next = lease_on(c.backend(), "job", "b", LONG).await?;
    expect_eq("the next owner's token", next.token.get(), 2)
}

/// A release that must say false, and change nothing.
async fn not_released(c: &Context, what: &str, lease: &Lease) -> Verdict {
    let before = c.look(&["job"]).await?;
    expect(what, !c.backend().release(lease).await?)?;
    c.unchanged(what, &before).await
}

async fn a_release_of_an_expired_lease_is_false(c: Context) -> Verdict {
    let lease = c.expired("job", "a").await?;
    not_released(&c, "the release says false", &lease).await
}

async fn a_stale_release_leaves_the_successors_lease(c: Context) -> Verdict {
    let old = c.expired("job", "a").await?;
    // The same owner name: only the token tells the two apart.
    let new = c.lease("job", "a").await?;
    not_released(&c, "the stale release says false", &old).await?;
    let stored = expect_some("the successor's lease", c.lease_of("job").await?)?;
    expect_eq(
        "the successor's lease",
        &stored,
        &(new.clone(), LeaseState::Live),
    )?;
    expect_held("a third owner", c.lease("job", "c").await, &new)
}

async fn a_release_by_another_owner_or_token_is_false(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    let other = Lease {
        owner: owner("b")?,
        ..lease.clone()
    };
    not_released(&c, "another owner's release says false", &other).await?;
    let other = Lease {
        token: Token::new(2)?,
        ..lease.clone()
    };
    not_released(&c, "another token's release says false", &other).await?;
    let unknown = Lease {
        resource: resource("other")?,
        ..lease
    };
    not_released(&c, "an unknown resource's release says false", &unknown).await
}

async fn a_release_after_a_revocation_is_false(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    c.backend().revoke(&lease.resource).await?;
    not_released(&c, "the release says false", &lease).await
}
