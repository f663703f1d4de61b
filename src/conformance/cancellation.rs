//! Futures dropped before they answered, at each of their polls and some time
//! after it: done wholly or not at all, and no lease held with nobody behind
//! it (R25).

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use super::check::{Verdict, expect, expect_eq, expect_some, failed};
use super::context::{Commit, Context, LONG, SHORT, acquire, owner, resource, ttl};
use crate::backend::LeaseState;
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, LossReason};
use crate::lease::{Lease, Token};
use crate::manager::StateManager;

super::case_list! { "cancellation":
    [25] a_dropped_acquisition_leaves_no_lease_behind,
        "whoever comes next gets the lease";
    [24, 25] a_dropped_acquisition_creates_wholly_or_not_at_all,
        "the resource exists exactly when its mark was raised";
    [4, 25] dropped_acquisitions_of_several_leave_none_behind,
        "neither of two leases is left held";
    [3, 25] a_dropped_extension_leaves_the_lease,
        "what was held before stays held, with its token, extended or not";
    [5, 25] a_dropped_renewal_happens_or_does_not,
        "the expiry is the old one or the new one, and the lease is renewed after it";
    [6, 25] a_dropped_release_happens_or_does_not,
        "a release after it says which, and the lease is free then";
    [9, 25] a_dropped_revocation_happens_or_does_not,
        "the mark is raised by one or not at all";
    [20, 25, 26] a_dropped_commit_happens_wholly_or_not_at_all,
        "all of its writes or none are seen, and sent again with its id it happens once";
    [13, 25] a_dropped_commit_is_fenced,
        "a stale token is refused whether or not anybody waits for the answer";
    [25] a_dropped_commit_of_a_session_happens_wholly_or_not_at_all,
        "the same through a session";
    [25] dropped_reads_leave_the_store_at_work,
        "reads, lists, statuses and checks, dropped and then made again";
    [4, 25] a_dropped_wait_leaves_no_lease_behind,
        "a waiter that went away takes nothing when the holder releases";
}

/// How long after its last poll a future is dropped: at once, and so late
/// that what it began has gone on without it.
const PAUSES: [Option<Duration>; 4] = [
    None,
    Some(Duration::ZERO),
    Some(Duration::from_millis(1)),
    Some(Duration::from_millis(10)),
];

/// No future of a call is polled more often than this.
const MOST_POLLS: usize = 200;

/// Polls a future at most `polls` times, whenever it asks to be polled, and
/// drops it after a pause. What it answered, if it did.
async fn abandon<T>(
    future: impl Future<Output = T> + Send,
    polls: usize,
    pause: Option<Duration>,
) -> Option<T> {
    let mut future = Box::pin(future);
    let mut left = polls;
    let answer = poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    if answer.is_none() {
        match pause {
            None => {}
            Some(Duration::ZERO) => tokio::task::yield_now().await,
            // Real time: it lets other threads get on, and no rule waits for it.
            Some(pause) => SystemClock.sleep(pause).await,
        }
    }
    answer
}

/// The rounds of a case: each number of polls, from none on, with each pause.
struct Rounds {
    polls: usize,
    pause: usize,
    round: usize,
    answered: bool,
}

impl Rounds {
    fn new() -> Self {
        Self {
            polls: 0,
            pause: 0,
            round: 0,
            answered: false,
        }
    }

    /// Goes on until a number of polls was enough for an answer each time.
    fn next(&mut self) -> Verdict<Option<(usize, Option<Duration>, usize)>> {
        if self.pause == PAUSES.len() {
            if self.answered {
                return Ok(None);
            }
            self.pause = 0;
            self.polls += 1;
            self.answered = true;
        }
        if self.polls > MOST_POLLS {
            return failed(
                "a call",
                "an answer",
                format!("none after {MOST_POLLS} polls"),
            );
        }
        let pause = PAUSES.get(self.pause).copied().flatten();
        self.pause += 1;
        self.round += 1;
        Ok(Some((self.polls, pause, self.round)))
    }

    fn saw<T>(&mut self, answer: Option<&T>) {
        self.answered &= answer.is_some();
    }
}

/// Something after what was abandoned, through the same handle.
async fn barrier(c: &Context, round: usize) -> Verdict {
    c.commit(Commit::new().set("barrier", "round", &round.to_string()))
        .await?;
    Ok(())
}

/// Generous: a release that nobody waits for may take its time.
const TRIES: u32 = 2000;

/// Takes the lease of a resource whose last acquisition was abandoned.
async fn take(c: &Context, of: &str) -> Verdict<Lease> {
    let mut tries = 0;
    loop {
        match c.lease(of, "next").await {
            Err(Error::LeaseNotAvailable { owner, .. }) if tries < TRIES => {
                expect_eq("who holds it meanwhile", owner.as_str(), "gone")?;
                tries += 1;
                SystemClock.sleep(Duration::from_millis(5)).await;
            }
            Err(error @ Error::LeaseNotAvailable { .. }) => {
                return failed(
                    "a lease whose acquirer has gone",
                    "that it is free",
                    format!("after {tries} tries: {error}"),
                );
            }
            answer => return Ok(answer?),
        }
    }
}

/// That none of the resources is held, at the end.
async fn none_held(c: &Context, names: &[String]) -> Verdict {
    for name in names {
        let held = c.lease_of(name).await?;
        let live = held.filter(|(_, state)| *state == LeaseState::Live);
        expect_eq(&format!("the live lease of `{name}`"), live, None)?;
    }
    Ok(())
}

async fn a_dropped_acquisition_leaves_no_lease_behind(c: Context) -> Verdict {
    let (mut rounds, mut names) = (Rounds::new(), Vec::new());
    while let Some((polls, pause, round)) = rounds.next()? {
        let name = format!("job-{round}");
        c.commit(Commit::new().set(&name, "x", "1")).await?;
        let (job, gone) = (resource(&name)?, owner("gone")?);
        let call = c.backend().acquire(&job, &gone, ttl(LONG)?);
        let answer = abandon(call, polls, pause).await;
        rounds.saw(answer.as_ref());
        if let Some(lease) = answer {
            // It answered: somebody is behind it.
            expect("the release", c.backend().release(&lease?).await?)?;
        }
        barrier(&c, round).await?;
        let taken = take(&c, &name).await?;
        expect("at most one token was used up", taken.token.get() <= 2)?;
        expect("the release", c.backend().release(&taken).await?)?;
        names.push(name);
    }
    none_held(&c, &names).await
}

async fn a_dropped_acquisition_creates_wholly_or_not_at_all(c: Context) -> Verdict {
    let (mut rounds, mut names) = (Rounds::new(), Vec::new());
    while let Some((polls, pause, round)) = rounds.next()? {
        let name = format!("job-{round}");
        let request = acquire(&[&name], "gone", LONG, true)?;
        let answer = abandon(c.backend().acquire_all(&request), polls, pause).await;
        rounds.saw(answer.as_ref());
        for lease in answer.transpose()?.into_iter().flatten() {
            c.backend().release(&lease).await?;
        }
        for _ in 0..3 {
            // Looked at in both orders, as it may happen between two looks.
            if c.mark(&name).await?.is_some() {
                c.existing(&name).await?;
            }
            if c.state(&name).await?.is_some() {
                expect_some("the mark", c.mark(&name).await?)?;
            }
            barrier(&c, round).await?;
        }
        let taken = take(&c, &name).await?;
        expect_eq("it was created once", c.existing(&name).await?.version, 1)?;
        c.backend().release(&taken).await?;
        names.push(name);
    }
    none_held(&c, &names).await
}

async fn dropped_acquisitions_of_several_leave_none_behind(c: Context) -> Verdict {
    let (mut rounds, mut names) = (Rounds::new(), Vec::new());
    while let Some((polls, pause, round)) = rounds.next()? {
        let both = [format!("a-{round}"), format!("b-{round}")];
        let request = acquire(&both.each_ref().map(String::as_str), "gone", LONG, true)?;
        let answer = abandon(c.backend().acquire_all(&request), polls, pause).await;
        rounds.saw(answer.as_ref());
        for lease in answer.transpose()?.into_iter().flatten() {
            c.backend().release(&lease).await?;
        }
        barrier(&c, round).await?;
        let mut tokens = Vec::new();
        for name in &both {
            let taken = take(&c, name).await?;
            tokens.push(taken.token);
            c.backend().release(&taken).await?;
        }
        expect(
            &format!("both or neither used up a token: {tokens:?}"),
            tokens.first() == tokens.last(),
        )?;
        names.extend(both);
    }
    none_held(&c, &names).await
}

async fn a_dropped_extension_leaves_the_lease(c: Context) -> Verdict {
    let mut rounds = Rounds::new();
    let mut held = Vec::new();
    while let Some((polls, pause, round)) = rounds.next()? {
        let name = format!("job-{round}");
        let lease = c.lease(&name, "holder").await?;
        let request = acquire(&[&name], "holder", 2 * LONG, true)?;
        let answer = abandon(c.backend().acquire_all(&request), polls, pause).await;
        rounds.saw(answer.as_ref());
        barrier(&c, round).await?;
        let (stored, state) = expect_some("the lease", c.lease_of(&name).await?)?;
        expect_eq("its state", state, LeaseState::Live)?;
        expect_eq("its token", stored.token, lease.token)?;
        expect("it is not shortened", stored.expires_at >= lease.expires_at)?;
        held.push(lease);
    }
    for lease in held {
        let renewed = c.backend().renew(&lease, lease.ttl).await?;
        expect_eq("the token", renewed.token, lease.token)?;
        expect("it is released", c.backend().release(&lease).await?)?;
    }
    Ok(())
}

async fn a_dropped_renewal_happens_or_does_not(c: Context) -> Verdict {
    let mut rounds = Rounds::new();
    while let Some((polls, pause, round)) = rounds.next()? {
        let name = format!("job-{round}");
        let lease = c.lease(&name, "holder").await?;
        let before = c.now().await?;
        let answer = abandon(c.backend().renew(&lease, ttl(2 * LONG)?), polls, pause).await;
        rounds.saw(answer.as_ref());
        barrier(&c, round).await?;
        let (stored, state) = expect_some("the lease", c.lease_of(&name).await?)?;
        expect_eq("its state", state, LeaseState::Live)?;
        expect_eq("its token", stored.token, lease.token)?;
        let renewed = stored.expires_at >= before.plus(2 * LONG);
        expect(
            "the old expiry or the new one",
            renewed || stored.expires_at == lease.expires_at,
        )?;
        expect(
            "it agrees with its ttl",
            renewed == (stored.ttl == ttl(2 * LONG)?),
        )?;
        let renewed = c.backend().renew(&lease, ttl(SHORT)?).await?;
        expect_eq("the token", renewed.token, lease.token)?;
    }
    Ok(())
}

async fn a_dropped_release_happens_or_does_not(c: Context) -> Verdict {
    let mut rounds = Rounds::new();
    while let Some((polls, pause, round)) = rounds.next()? {
        let name = format!("job-{round}");
        let lease = c.lease(&name, "holder").await?;
        let answer = abandon(c.backend().release(&lease), polls, pause).await;
        rounds.saw(answer.as_ref());
        barrier(&c, round).await?;
        let (_, before) = expect_some("the lease", c.lease_of(&name).await?)?;
        let released = c.backend().release(&lease).await?;
        expect(
            "released before or now",
            released || before == LeaseState::Released || answer.is_none(),
        )?;
        let (_, after) = expect_some("the lease", c.lease_of(&name).await?)?;
        expect_eq("its state", after, LeaseState::Released)?;
        expect_eq(
            "the next token",
            c.lease(&name, "next").await?.token.get(),
            2,
        )?;
        barrier(&c, round).await?;
        let (held, state) = expect_some("the next lease", c.lease_of(&name).await?)?;
        expect_eq(
            "its owner and state",
            (held.owner.as_str(), state),
            ("next", LeaseState::Live),
        )?;
        let ends = c.events().await?;
        let ends = ends.iter().filter(|event| {
            matches!(&event.kind, crate::event::EventKind::Released { resource, .. }
                if *resource == lease.resource)
        });
        expect_eq("it was released once", ends.count(), 1)?;
    }
    Ok(())
}

async fn a_dropped_revocation_happens_or_does_not(c: Context) -> Verdict {
    let mut rounds = Rounds::new();
    while let Some((polls, pause, round)) = rounds.next()? {
        let name = format!("job-{round}");
        let lease = c.lease(&name, "holder").await?;
        let answer = abandon(c.backend().revoke(&lease.resource), polls, pause).await;
        rounds.saw(answer.as_ref());
        barrier(&c, round).await?;
        let mark = expect_some("the mark", c.mark(&name).await?)?;
        expect(
            &format!("the mark is 1 or 2: {mark}"),
            mark == 1 || mark == 2,
        )?;
        let guarded = c.backend().guard(&lease).await;
        expect_eq("the guard agrees with it", guarded.is_ok(), mark == 1)?;
    }
    Ok(())
}

/// What a commit to `x` of `a` and of `b`, dropped, has made of them.
async fn both(c: &Context) -> Verdict<Option<String>> {
    let states = c.backend().read(&[resource("a")?, resource("b")?]).await?;
    let mut values = states.iter().map(|state| {
        state
            .as_ref()
            .and_then(|state| super::context::value_in(state, "x"))
    });
    let (a, b) = (values.next().flatten(), values.next().flatten());
    expect_eq("one snapshot shows both writes or neither", &a, &b)?;
    Ok(a)
}

async fn a_dropped_commit_happens_wholly_or_not_at_all(c: Context) -> Verdict {
    let mut rounds = Rounds::new();
    let lease = c.lease("job", "o").await?;
    while let Some((polls, pause, round)) = rounds.next()? {
        let old = both(&c).await?;
        let value = round.to_string();
        let commit = Commit::new().id(0xD00 + u128::try_from(round).unwrap_or(0));
        let commit = commit
            .fence(&lease)
            .set("a", "x", &value)
            .set("b", "x", &value);
        let request = commit.build()?;
        let answer = abandon(c.backend().commit(&request), polls, pause).await;
        rounds.saw(answer.as_ref());
        for _ in 0..3 {
            let seen = both(&c).await?;
            expect(
                "the old or the new values",
                seen == old || seen.as_ref() == Some(&value),
            )?;
            barrier(&c, round).await?;
        }
        let again = c.backend().commit(&request).await?;
        if let Some(first) = answer.transpose()? {
            expect_eq("the replay", &again, &first)?;
        }
        expect_eq("the values", both(&c).await?, Some(value))?;
        let version = u64::try_from(round).unwrap_or(0);
        expect_eq("it happened once", c.existing("a").await?.version, version)?;
    }
    Ok(())
}

async fn a_dropped_commit_is_fenced(c: Context) -> Verdict {
    let mut rounds = Rounds::new();
    let old = c.expired("job", "o").await?;
    let new = c.lease("job", "p").await?;
    while let Some((polls, pause, round)) = rounds.next()? {
        let request = Commit::new().fence(&old).set("a", "x", "1").build()?;
        let answer = abandon(c.backend().commit(&request), polls, pause).await;
        rounds.saw(answer.as_ref());
        if let Some(answer) = answer {
            let why = LossReason::Superseded { by: new.token };
            super::check::expect_lost("the commit", answer, "job", old.token, why)?;
        }
        barrier(&c, round).await?;
        expect_eq("what it wrote", c.state("a").await?, None)?;
    }
    Ok(())
}

async fn a_dropped_commit_of_a_session_happens_wholly_or_not_at_all(c: Context) -> Verdict {
    let mut rounds = Rounds::new();
    let manager = StateManager::new(c.shared());
    while let Some((polls, pause, round)) = rounds.next()? {
        let old = both(&c).await?;
        let mut session = manager
            .session("conformance")
            .resources(["a", "b"])
            .begin()
            .await?;
        session.write("a", "x", &round)?;
        session.write("b", "x", &round)?;
        let answer = abandon(session.commit(), polls, pause).await;
        rounds.saw(answer.as_ref());
        let new = Some(round.to_string());
        for _ in 0..3 {
            let seen = both(&c).await?;
            expect("the old or the new values", seen == old || seen == new)?;
            barrier(&c, round).await?;
        }
        if answer.transpose()?.is_some() {
            expect_eq("what was acknowledged", both(&c).await?, new)?;
        }
    }
    Ok(())
}

async fn dropped_reads_leave_the_store_at_work(c: Context) -> Verdict {
    c.commit(Commit::new().set("a", "x", "1").token("a", 7))
        .await?;
    let a = resource("a")?;
    let names = [a.clone()];
    let mut rounds = Rounds::new();
    while let Some((polls, pause, round)) = rounds.next()? {
        let (store, progress) = (c.backend(), |_| {});
        let answered = [
            abandon(store.now(), polls, pause).await.is_some(),
            abandon(store.read(&names), polls, pause).await.is_some(),
            abandon(store.lease_status(&a), polls, pause)
                .await
                .is_some(),
            abandon(store.current_fence(&a), polls, pause)
                .await
                .is_some(),
            abandon(store.list("", None, 10), polls, pause)
                .await
                .is_some(),
            abandon(store.events(0, 10), polls, pause).await.is_some(),
            abandon(store.check(&progress), polls, pause)
                .await
                .is_some(),
        ];
        rounds.saw(answered.iter().all(|answered| *answered).then_some(&()));
        expect_eq("the field", c.value("a", "x").await?.as_deref(), Some("1"))?;
        expect_eq("the mark", c.mark("a").await?, Some(7))?;
        barrier(&c, round).await?;
    }
    Ok(())
}

async fn a_dropped_wait_leaves_no_lease_behind(c: Context) -> Verdict {
    let manager = StateManager::new(c.shared());
    let mut names = Vec::new();
    // Its polls go on for ever: some of them, and some time after each.
    for (round, polls) in [0, 1, 2, 3, 5].into_iter().enumerate() {
        for pause in PAUSES {
            let name = format!("job-{round}-{pause:?}");
            let held = c.lease(&name, "holder").await?;
            let wait = manager
                .lease(&*name, "gone", LONG)
                .wait_forever()
                .into_future();
            let limit =
                tokio::time::timeout(Duration::from_millis(400), abandon(wait, polls, pause));
            if let Ok(Some(lease)) = limit.await {
                return failed("a wait for a held lease", "no answer", format!("{lease:?}"));
            }
            expect("the holder's release", c.backend().release(&held).await?)?;
            let taken = take(&c, &name).await?;
            expect("no token but its own", taken.token <= Token::new(3)?)?;
            c.backend().release(&taken).await?;
            names.push(name);
        }
    }
    none_held(&c, &names).await
}
