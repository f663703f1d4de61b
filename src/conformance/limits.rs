//! What is accepted as input, and what is not: R27.

use std::collections::BTreeSet;
use std::time::Duration;

use super::check::{Verdict, expect, expect_eq, expect_invalid, expect_some};
use super::context::{Commit, Context, LONG, acquire, expect_until, owner, resource, ttl};
use crate::error::{Error, Result};
use crate::lease::{LeaseManager, Token};
use crate::manager::StateManager;
use crate::resource::{
    AgentName, CommitId, FieldName, MAX_RESOURCES_PER_CALL, MAX_VALUE_BYTES, OwnerName,
    ResourceName, Ttl, Value,
};

super::case_list! { "limits":
    [27] every_legal_name_names_something_of_its_own,
        "patterns, quotes, braces, blanks, other scripts and 512 bytes: none is taken for another";
    [27] legal_names_of_owners_agents_and_fields_come_back,
        "what is legal as the name of a resource is legal there too";
    [27] illegal_names_are_refused,
        "empty, over 512 bytes or with a control character: InvalidArgument that names it";
    [5, 27] times_to_live_are_a_millisecond_to_366_days,
        "both ends are granted as asked, and what is outside is refused";
    [27] tokens_are_1_to_the_largest_64_bit_integer,
        "0 and i64::MAX + 1 are no tokens";
    [27] an_acquisition_names_each_resource_once,
        "none, the same twice or more than 1024 are refused, and nothing is taken";
    [2, 27] an_acquisition_may_name_1024_resources,
        "the most that is legal is taken in one step";
    [27] a_commit_writes_and_fences_each_resource_once,
        "a resource written or fenced twice is refused, and nothing changes";
    [13, 20, 27] a_commit_may_name_1024_resources,
        "as many writes and as many fences, in one step; one more is refused";
    [18, 27] malformed_input_is_found_before_a_stale_fence,
        "InvalidArgument comes before LeaseLost";
    [27] a_commit_over_64_mebibytes_is_refused,
        "the sum of what it writes is limited, and nothing changes";
    [27] values_are_json_of_at_most_16_mebibytes_and_127_levels,
        "what cannot be kept is refused when it is made";
    [27] commit_ids_are_32_hexadecimal_digits,
        "an id reads back as it prints, and nothing else is one";
    [27] a_session_touches_what_it_declared,
        "a resource that was not declared is InvalidArgument, and nothing changes";
}

/// Legal names that a store might take for something else.
fn legal_names() -> Vec<String> {
    let odd = [
        "%",
        "_",
        "*",
        "?",
        "[",
        "]",
        "[a-z]",
        "\\",
        "\\%",
        "\\_",
        "'",
        "\"",
        "`",
        "a'b",
        "'; drop table statepact_leases; --",
        "{",
        "}",
        "{a}",
        "}{",
        "a{b}c",
        ":",
        "a:b:c",
        "/",
        "//",
        ".",
        "..",
        "../x",
        " ",
        "  ",
        " a",
        "a",
        "a ",
        "A",
        "a b",
        "-",
        "--",
        "$1",
        "$$",
        "#",
        "|",
        "~",
        "null",
        "NULL",
        "0",
        "00",
        "-1",
        "1e14",
        "NaN",
        "true",
        "\u{e9}",
        "e\u{301}",
        "\u{c9}",
        "\u{df}",
        "ss",
        "\u{130}",
        "\u{131}",
        "\u{a0}",
        "\u{2028}",
        "\u{feff}",
        "\u{200b}",
        "\u{202e}",
        "\u{fffd}",
        "\u{ffff}",
        "\u{10ffff}",
        "\u{1f980}",
        "\u{d7ff}",
        "\u{e000}",
    ];
    let long = [
        "x".repeat(512),
        "x".repeat(511),
        "\u{e9}".repeat(256),
        "\u{1f980}".repeat(128),
        "%".repeat(512),
    ];
    odd.into_iter().map(str::to_owned).chain(long).collect()
}

async fn every_legal_name_names_something_of_its_own(c: Context) -> Verdict {
    let names = legal_names();
    let distinct: BTreeSet<&String> = names.iter().collect();
    expect_eq(
        "the suite's own names: all different",
        distinct.len(),
        names.len(),
    )?;
    for (at, name) in (1..).zip(&names) {
        // A mark that tells which of them it is.
        c.commit(
            Commit::new()
                .token(name, at)
                .set(name, "x", &at.to_string()),
        )
        .await?;
    }
    for (at, name) in (1..).zip(&names) {
        expect_eq(name, c.value(name, "x").await?, Some(at.to_string()))?;
        expect_eq(name, c.mark(name).await?, Some(at))?;
        let lease = c
            .backend()
            .acquire(&resource(name)?, &owner("o")?, ttl(LONG)?)
            .await?;
        expect_eq(name, lease.token.get(), at + 1)?;
        let lease = c.backend().renew(&lease, ttl(LONG)?).await?;
        c.backend().guard(&lease).await?;
        c.commit(Commit::new().live_fence(&lease).set(name, "y", "1"))
            .await?;
        expect(name, c.backend().release(&lease).await?)?;
    }
    let listed = c.backend().list("", None, names.len() + 1).await?;
    let listed: Vec<&str> = listed
        .iter()
        .map(|summary| summary.resource.as_str())
        .collect();
    let sorted: Vec<&str> = distinct.into_iter().map(String::as_str).collect();
    expect_eq("the list, by the bytes of the names", listed, sorted)
}

async fn legal_names_of_owners_agents_and_fields_come_back(c: Context) -> Verdict {
    let names = legal_names();
    let mut written = Commit::new().build()?;
    let fields: Vec<(&str, Option<&str>)> = names
        .iter()
        .map(|name| (name.as_str(), Some("1")))
        .collect();
    written.writes = Commit::new().fields("a", &fields).build()?.writes;
    c.backend().commit(&written).await?;
    let state = c.existing("a").await?;
    let found: BTreeSet<&str> = state.fields.keys().map(FieldName::as_str).collect();
    expect_eq(
        "the fields",
        found,
        names.iter().map(String::as_str).collect(),
    )?;
    for name in &names {
        let lease = c.lease("job", name).await?;
        let (stored, _) = expect_some("the stored lease", c.lease_of("job").await?)?;
        expect_eq("its owner", stored.owner.as_str(), name.as_str())?;
        let mut commit = Commit::new().fence(&lease).set("a", "x", "2").build()?;
        commit.agent = AgentName::new(name)?;
        c.backend().commit(&commit).await?;
        expect(name, c.backend().release(&lease).await?)?;
    }
    let events = c.events().await?;
    let agents: BTreeSet<&str> = events
        .iter()
        .filter_map(|event| match &event.kind {
            crate::event::EventKind::Committed { agent, .. } => Some(agent.as_str()),
            _ => None,
        })
        .filter(|agent| *agent != "conformance")
        .collect();
    expect_eq(
        "the agents",
        agents,
        names.iter().map(String::as_str).collect(),
    )
}

async fn illegal_names_are_refused(c: Context) -> Verdict {
    let manager = StateManager::new(c.shared());
    let before = c.look(&["a"]).await?;
    let long = "x".repeat(513);
    let long_in_bytes = "\u{e9}".repeat(256) + "x";
    for name in [
        "",
        "\0",
        "a\nb",
        "\u{7f}",
        "\u{85}",
        "tab\t",
        &long,
        &long_in_bytes,
    ] {
        expect_invalid(
            "a resource",
            manager.lease(name, "o", LONG).await,
            "resource",
        )?;
        expect_invalid("an owner", manager.lease("a", name, LONG).await, "owner")?;
        let both = manager.lease_all(["a", name], "o", LONG);
        expect_invalid("one of two", both.await, "resource")?;
        let session = manager.session(name).resource("a");
        expect_invalid("an agent", session.begin().await, "agent")?;
        let session = manager.session("s").resources(["a", name]);
        expect_invalid("a declared resource", session.begin().await, "resource")?;
        let session = manager.session("s").fence_token(name, Token::MIN);
        expect_invalid("a fence", session.begin().await, "resource")?;
        let mut session = manager.session("s").resource("a").begin().await?;
        expect_invalid("a field", session.write("a", name, &1), "field")?;
        expect_invalid("a field", session.read_value("a", name).await, "field")?;
        expect_invalid("a resource", session.delete(name, "x"), "resource")?;
        session.commit().await?;
        expect_invalid("by itself", ResourceName::new(name), "resource")?;
        expect_invalid("by itself", OwnerName::new(name), "owner")?;
        expect_invalid("by itself", AgentName::new(name), "agent")?;
        expect_invalid("by itself", FieldName::new(name), "field")?;
    }
    c.unchanged("illegal names", &before).await
}

async fn times_to_live_are_a_millisecond_to_366_days(c: Context) -> Verdict {
    let longest = Duration::from_secs(366 * 86_400);
    let manager = StateManager::new(c.shared());
    for (of, time) in [("shortest", Duration::from_millis(1)), ("longest", longest)] {
        let before = c.now().await?;
        let lease = manager.lease(of, "o", time).await?;
        expect_until(of, lease.expires_at, (before, c.now().await?), time)?;
    }
    let lease = c.lease("a", "o").await?;
    let before = c.now().await?;
    let renewed = c.backend().renew(&lease, Ttl::MAX).await?;
    expect_until(
        "renewed",
        renewed.expires_at,
        (before, c.now().await?),
        longest,
    )?;
    let before = c.look(&["a"]).await?;
    let leases = LeaseManager::new(c.shared(), LONG)?;
    for time in [
        Duration::ZERO,
        Duration::from_nanos(999_999),
        longest + Duration::from_millis(1),
        Duration::MAX,
    ] {
        expect_invalid("a lease", manager.lease("a", "o", time).await, "ttl")?;
        expect_invalid("a renewal", leases.renew_for(&lease, time).await, "ttl")?;
        expect_invalid("a manager", LeaseManager::new(c.shared(), time), "ttl")?;
        expect_invalid("by itself", Ttl::try_from(time), "ttl")?;
    }
    c.unchanged("illegal times to live", &before).await
}

async fn tokens_are_1_to_the_largest_64_bit_integer(c: Context) -> Verdict {
    for number in [0, Token::MAX.get() + 1, u64::MAX] {
        expect_invalid("no token", Token::new(number), "token")?;
        expect_invalid(
            "no token",
            Commit::new().token("a", number).build(),
            "token",
        )?;
    }
    for number in [1, Token::MAX.get()] {
        c.commit(Commit::new().token("a", number)).await?;
        expect_eq("the mark", c.mark("a").await?, Some(number))?;
    }
    Ok(())
}

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("r{at:04}")).collect()
}

fn as_strs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

async fn an_acquisition_names_each_resource_once(c: Context) -> Verdict {
    let manager = StateManager::new(c.shared());
    let before = c.look(&["a", "r0000"]).await?;
    let many = numbered(MAX_RESOURCES_PER_CALL + 1);
    for (what, names) in [
        ("none", vec![]),
        ("the same twice", vec!["a", "a"]),
        ("the same among others", vec!["a", "b", "c", "a"]),
        ("1025", as_strs(&many)),
    ] {
        let request = acquire(&names, "o", LONG, true)?;
        expect_invalid(what, c.backend().acquire_all(&request).await, "resources")?;
        let answer = manager.lease_all(names, "o", LONG).await;
        expect_invalid(what, answer, "resources")?;
        c.unchanged(what, &before).await?;
    }
    Ok(())
}

async fn an_acquisition_may_name_1024_resources(c: Context) -> Verdict {
    let many = numbered(MAX_RESOURCES_PER_CALL);
    let request = acquire(&as_strs(&many), "o", LONG, true)?;
    let leases = c.backend().acquire_all(&request).await?;
    expect_eq("the leases", leases.len(), MAX_RESOURCES_PER_CALL)?;
    for (lease, name) in leases.iter().zip(&many) {
        expect_eq("their order", lease.resource.as_str(), name.as_str())?;
    }
    let last = expect_some("the last", many.last())?;
    expect_eq("the last one's mark", c.mark(last).await?, Some(1))
}

async fn a_commit_writes_and_fences_each_resource_once(c: Context) -> Verdict {
    let lease = c.lease("a", "o").await?;
    let before = c.look(&["a", "b"]).await?;
    for (what, commit, argument) in [
        (
            "two writes",
            Commit::new().set("a", "x", "1").set("a", "y", "1"),
            "writes",
        ),
        (
            "a write and a deletion",
            Commit::new()
                .set("b", "x", "1")
                .set("a", "x", "1")
                .delete("b"),
            "writes",
        ),
        (
            "two fences",
            Commit::new().fence(&lease).fence(&lease).set("b", "x", "1"),
            "fences",
        ),
        (
            "two tokens",
            Commit::new().token("a", 1).token("a", 7).set("b", "x", "1"),
            "fences",
        ),
    ] {
        expect_invalid(what, c.commit(commit).await, argument)?;
        c.unchanged(what, &before).await?;
    }
    Ok(())
}

async fn a_commit_may_name_1024_resources(c: Context) -> Verdict {
    let many = numbered(MAX_RESOURCES_PER_CALL);
    let mut commit = Commit::new();
    for name in &many {
        commit = commit.token(name, 3).set(name, "x", "1");
    }
    let receipt = c.commit(commit).await?;
    expect_eq("the versions", receipt.versions.len(), many.len())?;
    let last = expect_some("the last", many.last())?;
    expect_eq("the last one's mark", c.mark(last).await?, Some(3))?;
    let before = c.look(&["r0000", last]).await?;
    let (mut writes, mut fences) = (Commit::new(), Commit::new());
    for name in numbered(MAX_RESOURCES_PER_CALL + 1) {
        writes = writes.set(&name, "x", "2");
        fences = fences.token(&name, 4);
    }
    expect_invalid("1025 writes", c.commit(writes).await, "writes")?;
    expect_invalid("1025 fences", c.commit(fences).await, "fences")?;
    c.unchanged("the refusals", &before).await
}

async fn malformed_input_is_found_before_a_stale_fence(c: Context) -> Verdict {
    let old = c.expired("job", "a").await?;
    c.lease("job", "b").await?;
    let commit = Commit::new()
        .fence(&old)
        .set("a", "x", "1")
        .set("a", "x", "2");
    expect_invalid("the commit", c.commit(commit).await, "writes")
}

async fn a_commit_over_64_mebibytes_is_refused(c: Context) -> Verdict {
    let large = large_value()?;
    c.commit(Commit::new().set("a", "x", "1")).await?;
    let before = c.look(&["a", "b"]).await?;
    // Put in without its text being read again, which takes its time.
    let mut request = Commit::new()
        .set("a", "x", "2")
        .set("b", "x", "2")
        .build()?;
    for write in &mut request.writes {
        if let crate::backend::Change::Fields(fields) = &mut write.change {
            for name in ["l1", "l2", "l3"] {
                fields.insert(FieldName::new(name)?, Some(large.clone()));
            }
        }
    }
    expect_invalid("the commit", c.backend().commit(&request).await, "writes")?;
    c.unchanged("the refusal", &before).await
}

/// The largest value that there is.
fn large_value() -> Result<Value> {
    let text = "x".repeat(MAX_VALUE_BYTES - 2);
    Value::parse(&format!("\"{text}\""))
}

async fn values_are_json_of_at_most_16_mebibytes_and_127_levels(c: Context) -> Verdict {
    expect_eq(
        "the largest",
        large_value()?.as_str().len(),
        MAX_VALUE_BYTES,
    )?;
    let too_large = "x".repeat(MAX_VALUE_BYTES - 1);
    let too_deep = format!("{}{}", "[".repeat(128), "]".repeat(128));
    let before = c.look(&["a"]).await?;
    let manager = StateManager::new(c.shared());
    let mut session = manager.session("s").resource("a").begin().await?;
    expect_invalid("too large", session.write("a", "x", &too_large), "value")?;
    for text in ["", "{", "1 2", "nul", "NaN", "'a'", "[1,]", &too_deep] {
        expect_invalid(text, Value::parse(text), "value")?;
    }
    session.commit().await?;
    c.unchanged("illegal values", &before).await
}

async fn commit_ids_are_32_hexadecimal_digits(c: Context) -> Verdict {
    for bits in [0, 1, 0x0123_4567_89ab_cdef_0011_2233_4455_6677, u128::MAX] {
        let id = CommitId::from_bits(bits);
        let text = id.to_string();
        expect_eq("its length", text.len(), 32)?;
        let read: Result<CommitId> = text.parse();
        expect_eq("read back", read?, id)?;
    }
    for text in [
        "",
        "0",
        &"0".repeat(31),
        &"0".repeat(33),
        &"g".repeat(32),
        &"+".repeat(32),
    ] {
        let read: Result<CommitId, Error> = text.parse();
        expect_invalid(text, read, "commit_id")?;
    }
    // The store keeps all of its bits.
    c.commit(Commit::new().id(u128::MAX - 1).set("a", "x", "1"))
        .await?;
    let event = expect_some("the event", c.events().await?.pop())?;
    let crate::event::EventKind::Committed { id, .. } = event.kind else {
        return expect("the event is the commit", false);
    };
    expect_eq("its id", id, Some(CommitId::from_bits(u128::MAX - 1)))
}

async fn a_session_touches_what_it_declared(c: Context) -> Verdict {
    c.commit(Commit::new().set("b", "x", "1")).await?;
    let before = c.look(&["a", "b"]).await?;
    let manager = StateManager::new(c.shared());
    let mut session = manager.session("s").resource("a").begin().await?;
    expect_invalid("a read", session.read_value("b", "x").await, "resource")?;
    expect_invalid("a whole read", session.read_fields("b").await, "resource")?;
    expect_invalid("a write", session.write("b", "x", &2), "resource")?;
    expect_invalid("a deletion", session.delete("b", "x"), "resource")?;
    expect_invalid("a whole deletion", session.delete_resource("b"), "resource")?;
    expect_invalid("a demand", session.require_fence("b", true), "resource")?;
    session.commit().await?;
    c.unchanged("the refusals", &before).await
}
