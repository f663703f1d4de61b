//! Moving what one store holds into another: R1, R13, R27.

use super::check::{Verdict, expect_eq, expect_held, expect_invalid, expect_lost, skipped};
use super::context::{Commit, Context, LONG, resource, ttl};
use crate::backend::{ExportPage, ExportRange, Exported, ImportHistory, ImportRequest, Merge};
use crate::error::{Error, ErrorKind, LossReason};

super::case_list! { "copies":
    [1] an_export_has_everything_page_by_page,
        "deleted resources and those with a mark alone too, in the order of the bytes";
    [1, 2, 13] a_copy_goes_on_where_the_first_store_was,
        "states, marks and live leases are the same, stale tokens stale, and the next token is new";
    [1, 4] a_lease_has_the_time_left_that_it_had,
        "it is counted anew on the other store's time line";
    [1] what_differs_is_refused_as_a_whole,
        "a resource that is there already, and different, refuses the import, and nothing changes";
    [1] importing_the_same_again_changes_nothing,
        "an import that was sent twice is there once";
    [27] an_import_names_each_resource_once,
        "the same twice is refused, and nothing changes";
}

/// A page of an export; the case is skipped for a backend that has none.
async fn export(c: &Context, after: Option<&str>, limit: usize) -> Verdict<ExportPage> {
    let after = after.map(resource).transpose()?;
    let range = ExportRange::After { after, limit };
    match c.backend().export(&range).await {
        Err(Error::Storage { message }) => skipped(message),
        answer => Ok(answer?),
    }
}

fn whole(page: ExportPage) -> ImportRequest {
    ImportRequest {
        entries: page.entries,
        as_of: page.as_of,
        merge: Merge::Refuse,
        history: ImportHistory::Note,
    }
}

const ALL: [&str; 6] = ["deleted", "fenced", "held", "marked", "released", "state"];

/// A store with something of each kind.
async fn fill(c: &Context) -> Verdict {
    let lease = c.lease("deleted", "a").await?;
    c.backend().release(&lease).await?;
    c.commit(Commit::new().delete("deleted")).await?;
    c.commit(
        Commit::new()
            .set("fenced", "x", "[1]")
            .fenced("fenced2", true),
    )
    .await?;
    c.commit(Commit::new().token("fenced", 3).fenced("fenced", true))
        .await?;
    c.commit(Commit::new().token("fenced2", 1).delete("fenced2"))
        .await?;
    c.lease("held", "a").await?;
    c.commit(Commit::new().token("marked", 1 << 60)).await?;
    let lease = c.lease("released", "a").await?;
    c.backend().release(&lease).await?;
    c.commit(Commit::new().fields("state", &[("x", Some("1")), ("y", Some("2"))]))
        .await?;
    c.commit(Commit::new().set("state", "y", "3")).await?;
    Ok(())
}

async fn an_export_has_everything_page_by_page(c: Context) -> Verdict {
    expect_eq(
        "of an empty store",
        export(&c, None, 10).await?.entries.len(),
        0,
    )?;
    fill(&c).await?;
    let all = export(&c, None, 100).await?;
    let names: Vec<&str> = all
        .entries
        .iter()
        .map(|entry| entry.resource.as_str())
        .collect();
    let mut expected = [&ALL[..], &["fenced2"]].concat();
    expected.sort_unstable();
    expect_eq("the names", &names, &expected)?;
    for limit in [1, 3, 7, 8] {
        let (mut entries, mut after) = (Vec::<Exported>::new(), None);
        loop {
            let page = export(&c, after.as_deref(), limit).await?;
            let Some(last) = page.entries.last() else {
                break;
            };
            after = Some(last.resource.to_string());
            entries.extend(page.entries);
        }
        expect_eq(&format!("by {limit}"), &entries, &all.entries)?;
    }
    let range = ExportRange::Of(vec![resource("held")?, resource("nothing")?]);
    let some = c.backend().export(&range).await?;
    let names: Vec<&str> = some
        .entries
        .iter()
        .map(|entry| entry.resource.as_str())
        .collect();
    expect_eq("of two, of which one is nothing", names, vec!["held"])
}

async fn a_copy_goes_on_where_the_first_store_was(c: Context) -> Verdict {
    export(&c, None, 1).await?;
    fill(&c).await?;
    let copy = c.another_store().await?;
    let report = copy
        .backend()
        .import(&whole(export(&c, None, 100).await?))
        .await?;
    expect_eq("the resources that changed", report.changed, 7)?;
    for name in ALL {
        expect_eq(name, copy.state(name).await?, c.state(name).await?)?;
        expect_eq(name, copy.mark(name).await?, c.mark(name).await?)?;
        let (there, here) = (copy.lease_of(name).await?, c.lease_of(name).await?);
        let of = |lease: Option<(crate::Lease, _)>| {
            lease.map(|(lease, state)| (lease.owner, lease.token, lease.ttl, state))
        };
        expect_eq(name, of(there), of(here))?;
    }
    let answer = copy.commit(Commit::new().set("fenced", "x", "2")).await;
    super::check::expect_fence_required("an unfenced write", answer, "fenced")?;
    let stale = Commit::new()
        .token("marked", (1 << 60) - 1)
        .set("state", "x", "9");
    let (of, by) = (
        crate::Token::new((1 << 60) - 1)?,
        crate::Token::new(1 << 60)?,
    );
    let why = LossReason::Superseded { by };
    expect_lost("a stale token", copy.commit(stale).await, "marked", of, why)?;
    for (name, next) in [("deleted", 2), ("released", 2), ("marked", (1 << 60) + 1)] {
        expect_eq(name, copy.lease(name, "b").await?.token.get(), next)?;
    }
    copy.commit(
        Commit::new()
            .check("state", "x", Some(1))
            .set("state", "x", "4"),
    )
    .await?;
    expect_eq("its version", copy.existing("state").await?.version, 3)
}

async fn a_lease_has_the_time_left_that_it_had(c: Context) -> Verdict {
    let clock = c.clock()?;
    export(&c, None, 1).await?;
    let lease = c.lease("held", "a").await?;
    clock.advance(LONG / 4);
    let page = export(&c, None, 100).await?;
    let copy = c.another_store().await?;
    // Days apart: only the time left counts.
    copy.clock()?.advance(24 * LONG);
    copy.backend().import(&whole(page)).await?;
    let there = super::check::expect_some("the lease", copy.lease_of("held").await?)?.0;
    let left = there.expires_at.since(copy.now().await?);
    expect_eq("the time left", left, LONG * 3 / 4)?;
    expect_held("another owner", copy.lease("held", "b").await, &there)?;
    let renewed = copy.backend().renew(&lease, ttl(LONG)?).await?;
    expect_eq("the holder's token", renewed.token, lease.token)?;
    copy.expire(&renewed).await?;
    expect_eq(
        "the next token",
        copy.lease("held", "b").await?.token.get(),
        2,
    )
}

async fn what_differs_is_refused_as_a_whole(c: Context) -> Verdict {
    export(&c, None, 1).await?;
    fill(&c).await?;
    let copy = c.another_store().await?;
    copy.commit(Commit::new().set("state", "x", "\"mine\""))
        .await?;
    let before = copy.look(&ALL).await?;
    let answer = copy
        .backend()
        .import(&whole(export(&c, None, 100).await?))
        .await;
    let kind = answer.map_err(|error| error.kind());
    expect_eq("the import", kind, Err(ErrorKind::ResourceExists))?;
    copy.unchanged("the refusal", &before).await
}

async fn importing_the_same_again_changes_nothing(c: Context) -> Verdict {
    // Else the lease would have its time left from a later moment on.
    c.clock()?;
    export(&c, None, 1).await?;
    fill(&c).await?;
    let request = whole(export(&c, None, 100).await?);
    let copy = c.another_store().await?;
    copy.backend().import(&request).await?;
    let before = copy.look(&ALL).await?;
    let report = copy.backend().import(&request).await?;
    expect_eq("what changed", (report.changed, report.events), (0, 0))?;
    copy.unchanged("the second import", &before).await
}

async fn an_import_names_each_resource_once(c: Context) -> Verdict {
    export(&c, None, 1).await?;
    fill(&c).await?;
    let mut request = whole(export(&c, None, 100).await?);
    let copy = c.another_store().await?;
    let before = copy.look(&ALL).await?;
    request.entries.extend(request.entries.first().cloned());
    expect_invalid(
        "the import",
        copy.backend().import(&request).await,
        "entries",
    )?;
    copy.unchanged("the refusal", &before).await
}
