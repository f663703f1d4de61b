//! What a commit does and when it is refused: R20, R22, R23.

use super::check::{
    Verdict, expect, expect_conflict, expect_eq, expect_one, expect_some, expect_two,
};
use super::context::{Commit, Context, resource};
use crate::event::EventKind;
use crate::manager::StateManager;
use crate::resource::Value;

super::case_list! { "commits":
    [20] a_commit_to_several_resources_is_one,
        "one step, one event, a version each";
    [20, 22] a_refused_commit_changes_nothing,
        "a conflict on one of several resources leaves all of them as they were";
    [20] an_acknowledged_commit_outlives_a_restart,
        "state, versions and history are as they were when the store is opened again";
    [20] an_acknowledged_change_is_seen_through_every_handle,
        "a call that begins after another has answered sees what it did";
    [20] a_read_of_several_resources_answers_in_order,
        "one answer for each name, in the order asked, nothing for what does not exist";
    [20] values_come_back_as_they_were_written,
        "numbers, texts and nestings keep their JSON text";
    [20] a_large_value_comes_back_whole,
        "a mebibyte of text";
    [20] versions_count_the_commits_of_a_resource,
        "creation, writes and deletions, and they go on when it is created again";
    [20] a_fields_version_is_that_of_its_last_write,
        "a field keeps the version at which it was written";
    [20] a_whole_state_replaces_every_field,
        "fields that are not named are gone";
    [20] deleting_what_is_absent_changes_nothing,
        "neither a field nor a resource that is not there leaves a trace";
    [20] an_empty_commit_changes_nothing,
        "no event, and the receipt has the newest sequence";
    [20] setting_the_fence_demand_again_changes_nothing,
        "what is so already leaves no trace";
    [22] commits_to_different_fields_do_not_conflict,
        "a check of one field is untouched by a write to another";
    [22] a_changed_field_conflicts,
        "the second of two commits that checked one version is refused";
    [22] a_field_that_appeared_conflicts,
        "what was read as absent must be absent still";
    [22] a_field_that_went_conflicts,
        "deleted alone or with its resource";
    [22] a_field_written_again_with_its_old_value_conflicts,
        "versions are compared, not values";
    [22] a_resource_deleted_and_created_again_conflicts,
        "it is not the one that was read, though it looks the same";
    [22] a_check_of_a_whole_resource_depends_on_every_field,
        "any write to it conflicts, and its absence can be checked as well";
    [22] a_check_of_the_absent_holds_while_it_is_absent,
        "a field of a missing resource, and a missing resource";
    [22] the_first_failed_check_is_named,
        "in the order of the request";
    [22] a_commit_that_only_checks_is_refused_too,
        "a check without a write answers the same";
    [2, 22] a_lease_conflicts_with_no_field,
        "taking, renewing and releasing a lease changes no version";
    [22, 24] a_creation_by_a_lease_conflicts_with_absence,
        "a resource that was read as absent and leased since is there";
    [23] a_fenced_commit_is_validated,
        "holding the lease excuses nobody from a conflict";
    [25] a_session_that_is_dropped_changes_nothing,
        "what was written to it is nowhere";
}

async fn a_commit_to_several_resources_is_one(c: Context) -> Verdict {
    c.commit(Commit::new().set("b", "x", "1")).await?;
    let commit = Commit::new()
        .set("c", "x", "1")
        .fields("b", &[("x", None), ("y", Some("2"))])
        .set("a", "x", "3");
    let receipt = c.commit(commit).await?;
    expect_eq("the sequence", receipt.sequence, 2)?;
    let versions = [("c", 1), ("b", 2), ("a", 1)]
        .into_iter()
        .map(|(name, version)| Ok((resource(name)?, version)))
        .collect::<Verdict<Vec<_>>>()?;
    expect_eq(
        "the versions, in the request's order",
        &receipt.versions,
        &versions,
    )?;
    let (_, event) = expect_two("the events", c.events().await?)?;
    let EventKind::Committed { agent, changes, .. } = event.kind else {
        return expect("the second event is the commit", false);
    };
    expect_eq("the agent", agent.as_str(), "conformance")?;
    let changed: Vec<_> = changes
        .into_iter()
        .map(|change| (change.resource, change.version))
        .collect();
    expect_eq("the changes", &changed, &versions)?;
    expect_eq("the deleted field", c.value("b", "x").await?, None)?;
    expect_eq(
        "the written field",
        c.value("b", "y").await?.as_deref(),
        Some("2"),
    )
}

async fn a_refused_commit_changes_nothing(c: Context) -> Verdict {
    c.commit(Commit::new().set("a", "x", "1").set("b", "x", "1"))
        .await?;
    let all = ["a", "b", "new", "job"];
    let before = c.look(&all).await?;
    let commit = Commit::new()
        .id(1)
        .token("job", 5)
        .check("a", "x", Some(1))
        .check("b", "x", Some(9))
        .set("a", "x", "2")
        .set("new", "x", "2")
        .delete("b");
    expect_conflict("the commit", c.commit(commit).await, "b", Some("x"))?;
    c.unchanged("the commit", &before).await
}

async fn an_acknowledged_commit_outlives_a_restart(c: Context) -> Verdict {
    c.commit(Commit::new().set("a", "x", "1").set("b", "y", "[2]"))
        .await?;
    c.commit(Commit::new().fields("a", &[("x", None), ("z", Some("\"é\""))]))
        .await?;
    c.commit(Commit::new().set("gone", "x", "1")).await?;
    c.commit(Commit::new().delete("gone")).await?;
    c.commit(Commit::new().fenced("b", true)).await?;
    let all = ["a", "b", "gone"];
    let (before, events) = (c.look(&all).await?, c.events().await?);
    let c = c.reopen().await?;
    c.unchanged("a restart", &before).await?;
    expect_eq("the history", &c.events().await?, &events)?;
    let receipt = c.commit(Commit::new().set("gone", "x", "2")).await?;
    let (_, version) = expect_one("the versions", receipt.versions)?;
    expect_eq("the version goes on", version, 3)?;
    expect_eq("the sequence goes on", receipt.sequence, 6)
}

async fn an_acknowledged_change_is_seen_through_every_handle(c: Context) -> Verdict {
    let other = c.another_handle().await?;
    for round in 1..=20_u64 {
        c.commit(Commit::new().set("a", "x", &round.to_string()))
            .await?;
        let state = expect_one("the states", other.read(&[resource("a")?]).await?)?;
        let state = expect_some("the state through the other handle", state)?;
        expect_eq("its version", state.version, 2 * round - 1)?;
        let commit = Commit::new().check("a", "x", Some(2 * round - 1));
        other.commit(&commit.set("a", "x", "0").build()?).await?;
        expect_eq("the field", c.value("a", "x").await?.as_deref(), Some("0"))?;
    }
    let lease = c.lease("a", "o").await?;
    let status = other.lease_status(&lease.resource).await?;
    expect_eq("the mark", status.mark, Some(lease.token))?;
    expect("the release", other.release(&lease).await?)?;
    expect("it is known here", !c.backend().release(&lease).await?)
}

async fn a_read_of_several_resources_answers_in_order(c: Context) -> Verdict {
    c.commit(Commit::new().set("a", "x", "1").set("b", "x", "2"))
        .await?;
    let names = ["b", "none", "a", "b"]
        .into_iter()
        .map(|name| Ok(resource(name)?))
        .collect::<Verdict<Vec<_>>>()?;
    let states = c.backend().read(&names).await?;
    let values: Vec<_> = states
        .iter()
        .map(|state| {
            state
                .as_ref()
                .and_then(|state| super::context::value_in(state, "x"))
        })
        .collect();
    let expected = [Some("2"), None, Some("1"), Some("2")].map(|text| text.map(str::to_owned));
    expect_eq("the answers", values, expected.to_vec())?;
    expect_eq(
        "no names, no answers",
        c.backend().read(&[]).await?.len(),
        0,
    )
}

async fn values_come_back_as_they_were_written(c: Context) -> Verdict {
    let texts = [
        "null",
        "true",
        "0",
        "-1",
        "9007199254740993",
        "18446744073709551615",
        "-9223372036854775808",
        "0.1",
        "1e300",
        "5e-324",
        "1.7976931348623157e308",
        "\"\"",
        "\"null\"",
        "\"\\u0000\"",
        "\"\\u0001\\n\\t\\\"\\\\/\u{7f}\u{85}\u{2028}\"",
        "\"\u{10ffff}\u{e9}e\u{301}\u{1f980}\"",
        "[]",
        "{}",
        "[null,[],[{}]]",
        "{\"\":1,\"a\":{\"b\":[1,\"2\"]}}",
    ];
    let mut written = Vec::new();
    for (at, text) in texts.into_iter().enumerate() {
        let value = Value::parse(text)?;
        let name = format!("f{at:02}");
        c.commit(Commit::new().set("a", &name, text)).await?;
        written.push((name, value));
    }
    let deep = format!("{}1{}", "[".repeat(127), "]".repeat(127));
    c.commit(Commit::new().set("a", "deep", &deep)).await?;
    written.push(("deep".to_owned(), Value::parse(&deep)?));
    for (name, value) in written {
        expect_eq(
            &name,
            c.value("a", &name).await?.as_deref(),
            Some(value.as_str()),
        )?;
    }
    Ok(())
}

async fn a_large_value_comes_back_whole(c: Context) -> Verdict {
    let text = Value::encode(&"0123456789abcdef".repeat(1 << 16))?;
    c.commit(
        Commit::new()
            .set("a", "x", text.as_str())
            .set("a2", "x", "1"),
    )
    .await?;
    let found = c.value("a", "x").await?;
    // Not compared with `expect_eq`, which would print it.
    expect(
        "the value is the same",
        found.as_deref() == Some(text.as_str()),
    )
}

async fn versions_count_the_commits_of_a_resource(c: Context) -> Verdict {
    for (version, commit) in [
        (1, Commit::new().set("a", "x", "1")),
        (2, Commit::new().set("a", "x", "1")),
        (3, Commit::new().set("a", "y", "1")),
        (4, Commit::new().delete("a")),
        (5, Commit::new().set("a", "x", "1")),
        (6, Commit::new().replace("a", &[])),
        (7, Commit::new().fenced("a", true)),
    ] {
        let receipt = c.commit(commit).await?;
        let (_, counted) = expect_one("the versions", receipt.versions)?;
        expect_eq("the receipt's version", counted, version)?;
        if version != 4 {
            expect_eq(
                "the state's version",
                c.existing("a").await?.version,
                version,
            )?;
        }
    }
    Ok(())
}

async fn a_fields_version_is_that_of_its_last_write(c: Context) -> Verdict {
    c.commit(Commit::new().fields("a", &[("x", Some("1")), ("y", Some("1"))]))
        .await?;
    c.commit(Commit::new().set("a", "y", "2")).await?;
    c.commit(Commit::new().set("a", "z", "3")).await?;
    expect_eq("x", c.field_version("a", "x").await?, Some(1))?;
    expect_eq("y", c.field_version("a", "y").await?, Some(2))?;
    expect_eq("z", c.field_version("a", "z").await?, Some(3))?;
    c.commit(Commit::new().replace("a", &[("x", "1")])).await?;
    expect_eq(
        "x, replaced by the same",
        c.field_version("a", "x").await?,
        Some(4),
    )?;
    expect_eq(
        "y, replaced by nothing",
        c.field_version("a", "y").await?,
        None,
    )
}

async fn a_whole_state_replaces_every_field(c: Context) -> Verdict {
    c.commit(Commit::new().fields("a", &[("x", Some("1")), ("y", Some("1"))]))
        .await?;
    c.commit(Commit::new().replace("a", &[("y", "2"), ("z", "3")]))
        .await?;
    let fields: Vec<_> = c
        .existing("a")
        .await?
        .fields
        .into_iter()
        .map(|(name, field)| format!("{name}={}", field.value))
        .collect();
    expect_eq("the fields", fields, vec!["y=2", "z=3"])?;
    c.commit(Commit::new().replace("a", &[])).await?;
    expect_eq(
        "no fields, and it exists",
        c.existing("a").await?.fields.len(),
        0,
    )?;
    c.commit(Commit::new().replace("new", &[])).await?;
    expect_eq(
        "a new one without fields",
        c.existing("new").await?.version,
        1,
    )
}

/// A commit that is accepted and leaves no trace.
async fn no_trace(c: &Context, what: &str, commit: Commit) -> Verdict {
    let before = c.look(&["a", "none"]).await?;
    let newest = c.backend().events(0, 1).await?.newest;
    let receipt = c.commit(commit).await?;
    expect_eq("the receipt's sequence", receipt.sequence, newest)?;
    expect_eq("the receipt's versions", receipt.versions.len(), 0)?;
    c.unchanged(what, &before).await
}

async fn deleting_what_is_absent_changes_nothing(c: Context) -> Verdict {
    c.commit(Commit::new().set("a", "x", "1")).await?;
    no_trace(&c, "a field", Commit::new().fields("a", &[("y", None)])).await?;
    no_trace(
        &c,
        "a field of nothing",
        Commit::new().fields("none", &[("y", None)]),
    )
    .await?;
    no_trace(&c, "a resource", Commit::new().delete("none")).await?;
    c.commit(Commit::new().delete("a")).await?;
    no_trace(&c, "a deleted resource", Commit::new().delete("a")).await
}

async fn an_empty_commit_changes_nothing(c: Context) -> Verdict {
    no_trace(&c, "nothing at all", Commit::new()).await?;
    c.commit(Commit::new().set("a", "x", "1")).await?;
    no_trace(&c, "nothing", Commit::new().id(3)).await?;
    no_trace(
        &c,
        "no fields",
        Commit::new().fields("a", &[]).fields("none", &[]),
    )
    .await?;
    let lease = c.lease("a", "o").await?;
    no_trace(
        &c,
        "fences and checks",
        Commit::new().fence(&lease).check("a", "x", Some(1)),
    )
    .await
}

async fn setting_the_fence_demand_again_changes_nothing(c: Context) -> Verdict {
    c.commit(Commit::new().set("a", "x", "1")).await?;
    no_trace(&c, "not fenced", Commit::new().fenced("a", false)).await?;
    c.commit(Commit::new().fenced("a", true)).await?;
    let lease = c.lease("a", "o").await?;
    no_trace(&c, "fenced", Commit::new().fence(&lease).fenced("a", true)).await?;
    expect("it is fenced", c.existing("a").await?.fenced)
}

async fn commits_to_different_fields_do_not_conflict(c: Context) -> Verdict {
    c.commit(Commit::new().fields("a", &[("x", Some("1")), ("y", Some("1"))]))
        .await?;
    c.commit(Commit::new().check("a", "x", Some(1)).set("a", "x", "2"))
        .await?;
    c.commit(Commit::new().check("a", "y", Some(1)).set("a", "y", "2"))
        .await?;
    c.commit(Commit::new().check("a", "new", None).set("a", "new", "2"))
        .await?;
    expect_eq("the version", c.existing("a").await?.version, 4)
}

async fn a_changed_field_conflicts(c: Context) -> Verdict {
    c.commit(Commit::new().set("a", "x", "1")).await?;
    c.commit(Commit::new().check("a", "x", Some(1)).set("a", "x", "2"))
        .await?;
    let commit = Commit::new().check("a", "x", Some(1)).set("a", "x", "3");
    expect_conflict("the second", c.commit(commit).await, "a", Some("x"))?;
    expect_eq("the field", c.value("a", "x").await?.as_deref(), Some("2"))
}

async fn a_field_that_appeared_conflicts(c: Context) -> Verdict {
    c.commit(Commit::new().set("a", "x", "1")).await?;
    let commit = Commit::new().check("a", "x", None).set("a", "y", "3");
    expect_conflict("the field", c.commit(commit).await, "a", Some("x"))?;
    let commit = Commit::new().check_all("a", None).set("a", "y", "3");
    expect_conflict("the resource", c.commit(commit).await, "a", None)?;
    expect_eq("the other field", c.value("a", "y").await?, None)
}

async fn a_field_that_went_conflicts(c: Context) -> Verdict {
    c.commit(Commit::new().set("a", "x", "1").set("b", "x", "1"))
        .await?;
    c.commit(Commit::new().fields("a", &[("x", None)]).delete("b"))
        .await?;
    for of in ["a", "b"] {
        let commit = Commit::new().check(of, "x", Some(1)).set(of, "x", "3");
        expect_conflict(of, c.commit(commit).await, of, Some("x"))?;
    }
    Ok(())
}

async fn a_field_written_again_with_its_old_value_conflicts(c: Context) -> Verdict {
    for value in ["1", "2", "1"] {
        c.commit(Commit::new().set("a", "x", value)).await?;
    }
    let commit = Commit::new().check("a", "x", Some(1)).set("a", "x", "9");
    expect_conflict("the first version", c.commit(commit).await, "a", Some("x"))
}

async fn a_resource_deleted_and_created_again_conflicts(c: Context) -> Verdict {
    c.commit(Commit::new().set("a", "x", "1")).await?;
    c.commit(Commit::new().delete("a")).await?;
    c.commit(Commit::new().set("a", "x", "1")).await?;
    let commit = Commit::new().check("a", "x", Some(1)).set("a", "x", "9");
    expect_conflict("its field", c.commit(commit).await, "a", Some("x"))?;
    let commit = Commit::new().check_all("a", Some(1)).set("a", "x", "9");
    expect_conflict("as a whole", c.commit(commit).await, "a", None)
}

async fn a_check_of_a_whole_resource_depends_on_every_field(c: Context) -> Verdict {
    c.commit(Commit::new().set("a", "x", "1")).await?;
    c.commit(Commit::new().check_all("a", Some(1)).set("b", "x", "1"))
        .await?;
    c.commit(Commit::new().set("a", "other", "1")).await?;
    let commit = Commit::new().check_all("a", Some(1)).set("b", "x", "2");
    expect_conflict("another field", c.commit(commit).await, "a", None)?;
    c.commit(Commit::new().delete("a")).await?;
    let commit = Commit::new().check_all("a", Some(2)).set("b", "x", "2");
    expect_conflict("a deletion", c.commit(commit).await, "a", None)?;
    c.commit(Commit::new().check_all("a", None).set("b", "x", "3"))
        .await?;
    expect_eq("the field", c.value("b", "x").await?.as_deref(), Some("3"))
}

async fn a_check_of_the_absent_holds_while_it_is_absent(c: Context) -> Verdict {
    let commit = Commit::new().check("a", "x", None).check_all("a", None);
    c.commit(commit.set("a", "x", "1")).await?;
    c.commit(Commit::new().check("a", "y", None).set("a", "y", "1"))
        .await?;
    let commit = Commit::new().check("a", "y", None).set("a", "y", "2");
    expect_conflict("it is there now", c.commit(commit).await, "a", Some("y"))
}

async fn the_first_failed_check_is_named(c: Context) -> Verdict {
    c.commit(Commit::new().set("a", "x", "1").set("b", "x", "1"))
        .await?;
    let commit = Commit::new().check("b", "y", Some(4)).check("a", "x", None);
    expect_conflict("b before a", c.commit(commit).await, "b", Some("y"))?;
    let commit = Commit::new()
        .check("b", "x", Some(1))
        .check("a", "x", None)
        .check("b", "y", Some(4));
    expect_conflict("a before b", c.commit(commit).await, "a", Some("x"))
}

async fn a_commit_that_only_checks_is_refused_too(c: Context) -> Verdict {
    c.commit(Commit::new().set("a", "x", "1")).await?;
    c.commit(Commit::new().check("a", "x", Some(1))).await?;
    let answer = c.commit(Commit::new().check("a", "x", Some(2))).await;
    expect_conflict("a field", answer, "a", Some("x"))?;
    let answer = c.commit(Commit::new().check_all("a", Some(2))).await;
    expect_conflict("a resource", answer, "a", None)
}

async fn a_lease_conflicts_with_no_field(c: Context) -> Verdict {
    c.commit(Commit::new().set("a", "x", "1")).await?;
    let lease = c.lease("a", "o").await?;
    let lease = c.backend().renew(&lease, lease.ttl).await?;
    c.backend().release(&lease).await?;
    c.backend().revoke(&lease.resource).await?;
    let commit = Commit::new()
        .check_all("a", Some(1))
        .check("a", "x", Some(1));
    c.commit(commit.set("a", "x", "2")).await?;
    Ok(())
}

async fn a_creation_by_a_lease_conflicts_with_absence(c: Context) -> Verdict {
    c.lease("a", "o").await?;
    let commit = Commit::new().check_all("a", None).set("a", "x", "1");
    expect_conflict("the resource", c.commit(commit).await, "a", None)?;
    c.commit(Commit::new().check("a", "x", None).set("a", "x", "1"))
        .await?;
    Ok(())
}

async fn a_fenced_commit_is_validated(c: Context) -> Verdict {
    let lease = c.lease("job", "a").await?;
    c.commit(Commit::new().set("job", "x", "1")).await?;
    let before = c.look(&["job"]).await?;
    let commit = Commit::new()
        .live_fence(&lease)
        .check("job", "x", None)
        .set("job", "x", "2");
    expect_conflict("the commit", c.commit(commit).await, "job", Some("x"))?;
    c.unchanged("the conflict", &before).await
}

async fn a_session_that_is_dropped_changes_nothing(c: Context) -> Verdict {
    c.commit(Commit::new().set("a", "x", "1")).await?;
    let lease = c.lease("job", "o").await?;
    let before = c.look(&["a", "new", "job"]).await?;
    let manager = StateManager::new(c.shared());
    let session = manager.session("conformance").resources(["a", "new"]);
    let mut session = session.fence(&lease).begin().await?;
    session.write("a", "x", &2)?;
    session.write("new", "x", &2)?;
    session.delete_resource("a")?;
    drop(session);
    c.unchanged("a dropped session", &before).await
}
