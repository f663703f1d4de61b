//! Tokens as numbers: exact, compared as such, and used up: R1, R13, R28.

use super::check::{Verdict, expect, expect_eq, expect_exhausted, expect_lost};
use super::context::{Commit, Context, LONG, acquire, resource, ttl};
use crate::error::LossReason;
use crate::lease::{Lease, Token};

super::case_list! { "tokens":
    [13] tokens_are_exact_above_2_to_the_53,
        "9007199254740992 is below 9007199254740993, and so on up to i64::MAX";
    [1, 13] tokens_are_compared_as_numbers,
        "9 is below 10, and 99999999999999 below 100000000000000";
    [28] the_last_token_is_issued_and_none_after_it,
        "i64::MAX is a token, its lease is renewed and released, and then there are none";
    [28] an_observed_last_token_exhausts_the_resource,
        "neither acquire nor revoke wraps around";
}

/// Raises the mark to `high`, and tries `low`, `high` and the next acquisition.
async fn exact(c: &Context, of: &str, low: u64, high: u64) -> Verdict {
    c.commit(Commit::new().token(of, high).set(of, "x", "1"))
        .await?;
    expect_eq("the mark", c.mark(of).await?, Some(high))?;
    let before = c.look(&[of]).await?;
    let answer = c
        .commit(Commit::new().token(of, low).set(of, "x", "2"))
        .await;
    let why = LossReason::Superseded {
        by: Token::new(high)?,
    };
    expect_lost("the token below", answer, of, Token::new(low)?, why)?;
    c.unchanged("the token below", &before).await?;
    c.commit(Commit::new().token(of, high).set(of, "x", "3"))
        .await?;
    if high < Token::MAX.get() {
        let lease = c.lease(of, "a").await?;
        expect_eq("the next token", lease.token.get(), high + 1)?;
        let guarded = Lease {
            token: Token::new(high)?,
            ..lease
        };
        let why = LossReason::Superseded {
            by: Token::new(high + 1)?,
        };
        let answer = c.backend().guard(&guarded).await;
        expect_lost("a guard one below", answer, of, guarded.token, why)?;
        let answer = c.backend().renew(&guarded, ttl(LONG)?).await;
        expect_lost("a renewal one below", answer, of, guarded.token, why)?;
    }
    Ok(())
}

async fn tokens_are_exact_above_2_to_the_53(c: Context) -> Verdict {
    exact(&c, "double", 9_007_199_254_740_992, 9_007_199_254_740_993).await?;
    exact(&c, "even", 9_007_199_254_740_994, 9_007_199_254_740_995).await?;
    exact(
        &c,
        "large",
        1_000_000_000_000_000_000,
        1_000_000_000_000_000_001,
    )
    .await?;
    exact(&c, "last", Token::MAX.get() - 1, Token::MAX.get()).await?;
    exact(&c, "but one", Token::MAX.get() - 2, Token::MAX.get() - 1).await
}

async fn tokens_are_compared_as_numbers(c: Context) -> Verdict {
    exact(&c, "short", 9, 10).await?;
    exact(&c, "hundred", 99, 100).await?;
    exact(&c, "exponent", 99_999_999_999_999, 100_000_000_000_000).await?;
    exact(&c, "32 bits", u64::from(u32::MAX), u64::from(u32::MAX) + 1).await?;
    exact(&c, "far apart", 2, 1_000_000_000_000).await
}

async fn the_last_token_is_issued_and_none_after_it(c: Context) -> Verdict {
    c.commit(
        Commit::new()
            .token("job", Token::MAX.get() - 1)
            .set("job", "x", "1"),
    )
    .await?;
    let last = c.lease("job", "a").await?;
    expect_eq("the last token", last.token, Token::MAX)?;
    c.commit(Commit::new().live_fence(&last).set("job", "x", "2"))
        .await?;
    let last = c.backend().renew(&last, ttl(LONG)?).await?;
    expect_eq(
        "an extension's token",
        c.lease("job", "a").await?.token,
        Token::MAX,
    )?;
    let before = c.look(&["job"]).await?;
    let answer = c.backend().revoke(&resource("job")?).await;
    expect_exhausted("revoke", answer, "job")?;
    c.unchanged("the refused revocation", &before).await?;
    expect("the release", c.backend().release(&last).await?)?;
    let before = c.look(&["job", "other"]).await?;
    expect_exhausted("acquire", c.lease("job", "a").await, "job")?;
    let both = acquire(&["other", "job"], "a", LONG, true)?;
    let answer = c.backend().acquire_all(&both).await;
    expect_exhausted("acquire of two", answer, "job")?;
    c.unchanged("the refused acquisitions", &before).await
}

async fn an_observed_last_token_exhausts_the_resource(c: Context) -> Verdict {
    c.commit(
        Commit::new()
            .token("job", Token::MAX.get())
            .set("job", "x", "1"),
    )
    .await?;
    let before = c.look(&["job"]).await?;
    expect_exhausted("acquire", c.lease("job", "a").await, "job")?;
    let answer = c.backend().revoke(&resource("job")?).await;
    expect_exhausted("revoke", answer, "job")?;
    c.unchanged("the refusals", &before).await?;
    c.commit(
        Commit::new()
            .token("job", Token::MAX.get())
            .set("job", "x", "2"),
    )
    .await?;
    Ok(())
}
