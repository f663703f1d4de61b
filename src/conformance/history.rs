//! Events, lists and the check: what a store says of itself. R2, R6, R9, R20,
//! R26.

use super::check::{Verdict, expect, expect_eq, expect_one, expect_pruned, expect_some, failed};
use super::context::{Commit, Context, LONG, acquire, resource};
use crate::backend::{CheckReport, LeaseState};
use crate::error::Error;
use crate::event::{EventKind, ResourceChange};
use crate::lease::Token;
use crate::resource::{AgentName, CommitId, FieldName, Ttl, Value};

super::case_list! { "history":
    [2, 6, 9, 20] each_change_is_one_event,
        "what happened, with all that is needed to tell it, in order";
    [3, 4, 5, 6, 13, 22] what_changes_nothing_is_no_event,
        "refusals, renewals, extensions and commits that write nothing";
    [2] several_leases_are_an_event_each,
        "in the order of the request";
    [20] pages_join_without_a_gap,
        "each page goes on where the last one ended, and the last is empty";
    [20] a_page_after_the_end_is_empty,
        "asking for what is to come answers nothing, and where to ask next";
    [20] times_of_events_never_run_backwards,
        "events are in the order of their times, on the store's own time line";
    [20] old_events_are_pruned_and_the_newest_kept,
        "asking for what is gone says so, and from where there is something";
    [26] an_id_is_remembered_while_its_event_is_kept,
        "a replay of any commit that the history still has answers the same";
    [1, 20] pruning_touches_the_history_alone,
        "states, marks and leases are as before";
    [20] a_prefix_is_taken_literally,
        "no character of it is a pattern";
    [20] a_list_is_in_the_order_of_the_bytes,
        "of the names in UTF-8, not of letters or of UTF-16";
    [20] pages_of_a_list_join_without_a_gap,
        "each goes on after a name, whether that exists or not";
    [20] a_list_has_what_exists,
        "no deleted resource and none that only has a mark, with its state and lease";
    [20] a_check_counts_what_is_stored,
        "and finds nothing wrong with a store in order";
}

async fn each_change_is_one_event(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    let commit = Commit::new()
        .id(77)
        .fence(&lease)
        .fields("job", &[("x", Some("1")), ("none", None)])
        .fenced("gate", true);
    c.commit(commit).await?;
    c.backend().release(&lease).await?;
    let mark = c.backend().revoke(&lease.resource).await?;
    c.commit(Commit::new().replace("job", &[("y", "2")]))
        .await?;
    c.commit(Commit::new().delete("job")).await?;
    let agent = AgentName::new("conformance")?;
    let change = |of: &str, version, deleted, fenced, fields: &[(&str, Option<&str>)]| {
        Ok::<_, Error>(ResourceChange {
            resource: resource(of)?,
            version,
            deleted,
            fenced,
            fields: fields
                .iter()
                .map(|(name, json)| {
                    Ok((FieldName::new(name)?, json.map(Value::parse).transpose()?))
                })
                .collect::<Result<_, Error>>()?,
        })
    };
    let committed = |id, fences, changes| EventKind::Committed {
        agent: agent.clone(),
        id,
        fences,
        changes,
    };
    let expected = vec![
        EventKind::Acquired {
            resource: lease.resource.clone(),
            owner: lease.owner.clone(),
            token: lease.token,
            expires_at: lease.expires_at,
            ttl: lease.ttl,
            created: Some(1),
        },
        committed(
            Some(CommitId::from_bits(77)),
            vec![(lease.resource.clone(), lease.token)],
            vec![
                change("job", 2, false, false, &[("x", Some("1"))])?,
                change("gate", 1, false, true, &[])?,
            ],
        ),
        EventKind::Released {
            resource: lease.resource.clone(),
            owner: lease.owner.clone(),
            token: lease.token,
        },
        EventKind::Revoked {
            resource: lease.resource.clone(),
            mark,
        },
        committed(
            None,
            vec![],
            vec![change(
                "job",
                3,
                false,
                false,
                &[("x", None), ("y", Some("2"))],
            )?],
        ),
        committed(None, vec![], vec![change("job", 4, true, false, &[])?]),
    ];
    let events = c.events().await?;
    let sequences: Vec<u64> = events.iter().map(|event| event.sequence).collect();
    expect_eq("the sequences", sequences, (1..=6).collect::<Vec<_>>())?;
    let kinds: Vec<EventKind> = events.into_iter().map(|event| event.kind).collect();
    for (at, (found, expected)) in kinds.iter().zip(&expected).enumerate() {
        expect_eq(&format!("event {}", at + 1), found, expected)?;
    }
    expect_eq("the number of events", kinds.len(), expected.len())
}

async fn what_changes_nothing_is_no_event(c: Context) -> Verdict {
    let old = c.expired("job", "a").await?;
    let lease = c.lease("job", "b").await?;
    let newest = c.backend().events(0, 1).await?.newest;
    expect_eq("the acquisitions", newest, 2)?;
    c.lease("job", "b").await?;
    c.backend().renew(&lease, Ttl::try_from(LONG)?).await?;
    c.backend().release(&old).await?;
    for refused in [
        c.lease("job", "c").await.err(),
        c.backend().renew(&old, Ttl::try_from(LONG)?).await.err(),
        c.backend().revoke(&resource("none")?).await.err(),
        c.commit(Commit::new().fence(&old).set("job", "x", "1"))
            .await
            .err(),
        c.commit(
            Commit::new()
                .check("job", "x", Some(3))
                .set("job", "x", "1"),
        )
        .await
        .err(),
    ] {
        expect("it was refused", refused.is_some())?;
    }
    c.commit(Commit::new().fence(&lease).delete("none")).await?;
    expect_eq(
        "the newest event",
        c.backend().events(0, 1).await?.newest,
        newest,
    )
}

async fn several_leases_are_an_event_each(c: Context) -> Verdict {
    let held = c.lease("held", "o").await?;
    let request = acquire(&["b", "held", "a"], "o", LONG, true)?;
    c.backend().acquire_all(&request).await?;
    let events = c.backend().events(1, 10).await?.events;
    let names: Vec<&str> = events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Acquired { resource, .. } => Some(resource.as_str()),
            _ => None,
        })
        .collect();
    expect_eq("an extension is none", names, vec!["b", "a"])?;
    expect_eq(
        "the extended one",
        c.mark("held").await?,
        Some(held.token.get()),
    )
}

/// Commits `count` times to one resource.
async fn commits(c: &Context, count: u64) -> Verdict {
    for at in 1..=count {
        let commit = Commit::new()
            .id(u128::from(at))
            .set("a", "x", &at.to_string());
        c.commit(commit).await?;
    }
    Ok(())
}

async fn pages_join_without_a_gap(c: Context) -> Verdict {
    commits(&c, 23).await?;
    for limit in [1, 7, 23, 24, 1000] {
        let (mut after, mut seen) = (0, Vec::new());
        loop {
            let page = c.backend().events(after, limit).await?;
            expect_eq("the newest", page.newest, 23)?;
            expect("a page keeps to its limit", page.events.len() <= limit)?;
            let last = page.events.last().map_or(after, |event| event.sequence);
            expect_eq("where to go on", page.next_after, last)?;
            if page.events.is_empty() {
                break;
            }
            after = page.next_after;
            seen.extend(page.events.into_iter().map(|event| event.sequence));
        }
        expect_eq(&format!("by {limit}"), seen, (1..=23).collect::<Vec<_>>())?;
    }
    Ok(())
}

async fn a_page_after_the_end_is_empty(c: Context) -> Verdict {
    let page = c.backend().events(0, 10).await?;
    expect_eq(
        "an empty store",
        (page.events.len(), page.next_after, page.newest),
        (0, 0, 0),
    )?;
    commits(&c, 3).await?;
    for after in [3, 4, 1000, u64::MAX] {
        let page = c.backend().events(after, 10).await?;
        let found = (page.events.len(), page.next_after, page.newest);
        expect_eq("the page", found, (0, after, 3))?;
    }
    let page = c.backend().events(1, 0).await?;
    expect_eq(
        "a page of none",
        (page.events.len(), page.next_after),
        (0, 1),
    )
}

async fn times_of_events_never_run_backwards(c: Context) -> Verdict {
    let start = c.now().await?;
    for at in 0..5 {
        c.commit(Commit::new().set("a", "x", &at.to_string()))
            .await?;
        if let Some(clock) = c.movable_clock() {
            clock.advance(std::time::Duration::from_millis(700));
        }
    }
    let times: Vec<_> = c.events().await?.iter().map(|event| event.at).collect();
    expect(&format!("{times:?} are in order"), times.is_sorted())?;
    let end = c.now().await?;
    expect(
        "they are between the store's times before and after",
        times.iter().all(|at| (start..=end).contains(at)),
    )?;
    if c.movable_clock().is_some() {
        let first = expect_some("the first", times.first())?;
        let last = expect_some("the last", times.last())?;
        expect_eq("the time between", last.since(*first).as_millis(), 2800)?;
    }
    Ok(())
}

const KEPT: u64 = 20;

/// The oldest event that a store with a short history has after `count`.
async fn oldest_of(c: &Context, count: u64) -> Verdict<u64> {
    let answer = c.backend().events(0, 1000).await;
    let oldest = match &answer {
        Err(Error::HistoryPruned { oldest, .. }) => *oldest,
        other => {
            return failed(
                "events from the start",
                "HistoryPruned",
                format!("{other:?}"),
            );
        }
    };
    expect_pruned("events from the start", answer, 0)?;
    expect(
        &format!("from {oldest} on, of {count}, are {KEPT} to twice as many"),
        (count + 1 - 2 * KEPT..=count + 1 - KEPT).contains(&oldest),
    )?;
    Ok(oldest)
}

async fn old_events_are_pruned_and_the_newest_kept(c: Context) -> Verdict {
    let c = c.with_history(KEPT).await?;
    commits(&c, 20).await?;
    expect_eq("none is gone yet", c.events().await?.len(), 20)?;
    commits(&c, 100).await?;
    // The first twenty were replays, or forgotten: what counts is the newest.
    let newest = c.backend().events(u64::from(u32::MAX), 1).await?.newest;
    let oldest = oldest_of(&c, newest).await?;
    let page = c.backend().events(oldest - 1, 1000).await?;
    let sequences: Vec<u64> = page.events.iter().map(|event| event.sequence).collect();
    expect_eq(
        "what is kept",
        sequences,
        (oldest..=newest).collect::<Vec<_>>(),
    )?;
    let answer = c.backend().events(oldest - 2, 1000).await;
    expect_pruned("one before the oldest", answer, oldest - 2)
}

async fn an_id_is_remembered_while_its_event_is_kept(c: Context) -> Verdict {
    let c = c.with_history(KEPT).await?;
    commits(&c, 100).await?;
    let oldest = oldest_of(&c, 100).await?;
    let version = c.existing("a").await?.version;
    for at in oldest..=100 {
        let commit = Commit::new()
            .id(u128::from(at))
            .set("a", "x", &at.to_string());
        let receipt = c.commit(commit).await?;
        expect_eq("the replay's sequence", receipt.sequence, at)?;
    }
    expect_eq("the version", c.existing("a").await?.version, version)
}

async fn pruning_touches_the_history_alone(c: Context) -> Verdict {
    let c = c.with_history(KEPT).await?;
    let held = c.lease("held", "o").await?;
    c.commit(Commit::new().set("kept", "x", "1").token("seen", 9))
        .await?;
    let released = c.lease("released", "o").await?;
    c.backend().release(&released).await?;
    let look = async || -> Verdict<_> {
        let mut seen = Vec::new();
        for name in ["held", "kept", "seen", "released"] {
            let status = c.backend().lease_status(&resource(name)?).await?;
            seen.push((status.mark, status.lease, c.state(name).await?));
        }
        Ok(seen)
    };
    let before = look().await?;
    commits(&c, 100).await?;
    oldest_of(&c, 104).await?;
    expect_eq("what is stored", look().await?, before)?;
    let renewed = c.backend().renew(&held, held.ttl).await?;
    expect_eq("the token", renewed.token, held.token)?;
    expect_eq(
        "the next token",
        c.lease("released", "o").await?.token.get(),
        2,
    )
}

async fn listed(c: &Context, prefix: &str) -> Verdict<Vec<String>> {
    let list = c.backend().list(prefix, None, 1000).await?;
    Ok(list
        .into_iter()
        .map(|summary| summary.resource.into())
        .collect())
}

async fn a_prefix_is_taken_literally(c: Context) -> Verdict {
    let names = [
        "a", "ab", "a%", "a%b", "a_", "a_b", "a*", "a*b", "a?", "a[", "a[b]", "a[a-z]", "a\\",
        "a\\%", "a.", "a.*", "A", "^a", "a$", "{a}", "\u{e9}", "e\u{301}", "b",
    ];
    let mut commit = Commit::new();
    for name in names {
        commit = commit.set(name, "x", "1");
    }
    c.commit(commit).await?;
    for prefix in names.into_iter().chain([
        "",
        "%",
        "_",
        "*",
        "a[a",
        "a\\\\",
        ".",
        ".*",
        "e",
        "aa",
        "\\",
        "a%%",
        "{",
        "a\u{10ffff}",
    ]) {
        let mut expected: Vec<String> = names
            .iter()
            .filter(|name| name.starts_with(prefix))
            .map(|name| (*name).to_owned())
            .collect();
        expected.sort();
        expect_eq(
            &format!("prefix `{prefix}`"),
            listed(&c, prefix).await?,
            expected,
        )?;
    }
    Ok(())
}

async fn a_list_is_in_the_order_of_the_bytes(c: Context) -> Verdict {
    let mut names = [
        "a",
        "B",
        "Z",
        "aa",
        "a b",
        "a-b",
        "a/b",
        "a0",
        "10",
        "9",
        "_",
        "\u{e9}",
        "z",
        "\u{ffff}",
        "\u{1f980}",
        "\u{10ffff}",
        "e\u{301}",
        "f",
        "a!",
        "a~",
    ];
    let mut commit = Commit::new();
    for name in names {
        commit = commit.set(name, "x", "1");
    }
    c.commit(commit).await?;
    names.sort_unstable();
    expect_eq(
        "the list",
        listed(&c, "").await?,
        names.map(str::to_owned).to_vec(),
    )
}

async fn pages_of_a_list_join_without_a_gap(c: Context) -> Verdict {
    let names: Vec<String> = (0..17).map(|at| format!("p/{at:02}")).collect();
    let mut commit = Commit::new()
        .set("o", "x", "1")
        .set("p", "x", "1")
        .set("q", "x", "1");
    for name in &names {
        commit = commit.set(name, "x", "1");
    }
    c.commit(commit).await?;
    for limit in [1, 5, 17, 18] {
        let (mut after, mut seen) = (None, Vec::<String>::new());
        loop {
            let page = c.backend().list("p/", after.as_ref(), limit).await?;
            expect("a page keeps to its limit", page.len() <= limit)?;
            let Some(last) = page.last() else { break };
            after = Some(last.resource.clone());
            seen.extend(
                page.into_iter()
                    .map(|summary| String::from(summary.resource)),
            );
        }
        expect_eq(&format!("by {limit}"), &seen, &names)?;
    }
    for (after, first) in [
        ("a", Some("p/00")),
        ("p/", Some("p/00")),
        ("p/00", Some("p/01")),
        ("p/00a", Some("p/01")),
        ("p/15zzz", Some("p/16")),
        ("p/16", None),
        ("q", None),
    ] {
        let page = c.backend().list("p/", Some(&resource(after)?), 1).await?;
        let found = page.first().map(|summary| summary.resource.as_str());
        expect_eq(&format!("after `{after}`"), found, first)?;
    }
    expect_eq(
        "a page of none",
        c.backend().list("", None, 0).await?.len(),
        0,
    )
}

async fn a_list_has_what_exists(c: Context) -> Verdict {
    c.commit(Commit::new().token("marked", 5)).await?;
    c.commit(Commit::new().set("gone", "x", "1")).await?;
    c.commit(Commit::new().delete("gone")).await?;
    c.commit(Commit::new().fields("full", &[("x", Some("1")), ("y", Some("2"))]))
        .await?;
    c.commit(Commit::new().fenced("full", true)).await?;
    let lease = c.lease("leased", "o").await?;
    expect_eq(
        "the names",
        listed(&c, "").await?,
        vec!["full".to_owned(), "leased".to_owned()],
    )?;
    let full = expect_one("the full one", c.backend().list("full", None, 9).await?)?;
    expect_eq("its version", full.version, 2)?;
    expect("it is fenced", full.fenced)?;
    expect_eq("its fields", full.fields, 2)?;
    expect_eq("its mark", full.lease.mark, None)?;
    let leased = expect_one("the leased one", c.backend().list("leased", None, 9).await?)?;
    expect_eq("its fields", leased.fields, 0)?;
    expect_eq("its mark", leased.lease.mark, Some(Token::MIN))?;
    expect_eq(
        "its lease",
        leased.lease.lease,
        Some((lease, LeaseState::Live)),
    )
}

async fn a_check_counts_what_is_stored(c: Context) -> Verdict {
    let empty = c.backend().check(&|_| {}).await?;
    expect_eq("an empty store", empty, CheckReport::default())?;
    c.commit(Commit::new().token("marked", 5)).await?;
    c.commit(Commit::new().set("gone", "x", "1").set("here", "x", "1"))
        .await?;
    c.commit(Commit::new().delete("gone")).await?;
    let lease = c.lease("leased", "o").await?;
    c.backend().release(&lease).await?;
    let report = c.backend().check(&|_| {}).await?;
    let expected = CheckReport {
        resources: 2,
        marks: 2,
        leases: 1,
        events: 5,
    };
    expect_eq("the report", report, expected)
}
