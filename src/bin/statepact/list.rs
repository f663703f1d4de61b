//! `ls`, `log` and `check`.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value as Json, json};
use statepact::backend::{LeaseState, ResourceSummary};
use statepact::clock::{Clock, SystemClock};
use statepact::event::{Event, EventKind, ResourceChange};
use statepact::{Error, ResourceName, Timestamp, Token};

use crate::args::{Global, LogArgs, LsArgs};
use crate::exit::Failure;
use crate::lease::poll_interval;
use crate::output::{
    FAINT, NAME, Output, add_lease_status, human_duration, json_line, local_time, printable,
    seconds, state_name, table,
};
use crate::state::raw;
use crate::store::{IfAbsent, open};

/// How many resources are asked for at once.
const PAGE: usize = 1000;
/// How many events, each of which may be as large as a commit.
const EVENTS: usize = 32;

pub(crate) async fn ls(global: &Global, args: &LsArgs, output: Output) -> Result<(), Failure> {
    let store = open(global, IfAbsent::Refuse).await?;
    let mut after: Option<ResourceName> = None;
    let mut rows = Vec::new();
    loop {
        let page = store.list(&args.prefix, after.as_ref(), PAGE).await?;
        for summary in &page {
            if output.json {
                Output::line(&summary_object(summary).to_string())?;
            } else {
                rows.push(summary_row(summary));
            }
        }
        match page.last() {
            Some(last) if page.len() == PAGE => after = Some(last.resource.clone()),
            _ => break,
        }
    }
    if output.json {
        return Ok(());
    }
    if rows.is_empty() {
        output.note(if args.prefix.is_empty() {
            "the store has no resources"
        } else {
            "no resource has a name that begins so"
        });
        return Ok(());
    }
    Output::line(&table(
        &[
            "RESOURCE", "VERSION", "FIELDS", "FENCED", "MARK", "LEASE", "OWNER", "EXPIRES",
        ],
        &rows,
    ))
}

fn summary_object(summary: &ResourceSummary) -> Json {
    let mut object = json!({
        "resource": summary.resource.as_str(),
        "version": summary.version,
        "fields": summary.fields,
        "fenced": summary.fenced,
    });
    add_lease_status(&mut object, &summary.lease);
    object
}

fn summary_row(summary: &ResourceSummary) -> Vec<String> {
    let nothing = || "-".to_owned();
    let status = &summary.lease;
    let lease = status.lease.as_ref().map(|(lease, _)| lease);
    let live = status
        .lease
        .as_ref()
        .filter(|(_, state)| *state == LeaseState::Live);
    vec![
        summary.resource.to_string(),
        summary.version.to_string(),
        summary.fields.to_string(),
        if summary.fenced { "yes" } else { "no" }.to_owned(),
        status.mark.map_or_else(nothing, |mark| mark.to_string()),
        state_name(status).to_owned(),
        lease.map_or_else(nothing, |lease| lease.owner.to_string()),
        live.map_or_else(
            || {
                lease
                    .filter(|lease| lease.expires_at != Timestamp::EPOCH)
                    .map_or_else(nothing, |lease| local_time(lease.expires_at))
            },
            |(lease, _)| {
                let left = lease.expires_at.since(status.now);
                format!(
                    "{} (in {})",
                    local_time(lease.expires_at),
                    human_duration(left)
                )
            },
        ),
    ]
}

pub(crate) async fn log(global: &Global, args: &LogArgs, output: Output) -> Result<(), Failure> {
    let store = open(global, IfAbsent::Refuse).await?;
    let mut after = args.after.unwrap_or(0);
    let mut begun = args.after.is_some();
    let mut printed = false;
    loop {
        let page = match store.events(after, EVENTS).await {
            // Without --after the history begins at the oldest event kept.
            Err(Error::HistoryPruned { oldest, .. }) if args.follow && printed => {
                output.warn(&format!(
                    "{} events were forgotten before they were printed",
                    oldest.saturating_sub(after + 1)
                ));
                after = oldest.saturating_sub(1);
                continue;
            }
            Err(Error::HistoryPruned { oldest, .. }) if !begun => {
                after = oldest.saturating_sub(1);
                begun = true;
                continue;
            }
            page => page?,
        };
        begun = true;
        printed = true;
        for event in &page.events {
            let wanted = args
                .resource
                .as_ref()
                .is_none_or(|resource| event.kind.concerns(resource));
            if wanted {
                Output::line(&if output.json {
                    json_line(&event_object(event)?)?
                } else {
                    event_line(event)
                })?;
            }
        }
        let more = page.next_after > after;
        after = page.next_after;
        if more {
            continue;
        }
        if !args.follow {
            return Ok(());
        }
        SystemClock.sleep(poll_interval()).await;
    }
}

/// An event as `log --json` prints it.
#[derive(Serialize)]
struct EventObject<'a> {
    sequence: u64,
    at: String,
    event: &'static str,
    #[serde(flatten)]
    detail: Detail<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Detail<'a> {
    Committed {
        agent: &'a str,
        commit_id: Option<String>,
        fences: Vec<Json>,
        changes: Vec<ChangeObject<'a>>,
    },
    Other(Json),
}

#[derive(Serialize)]
struct ChangeObject<'a> {
    resource: &'a str,
    version: u64,
    deleted: bool,
    fenced: bool,
    fields: BTreeMap<&'a str, Box<RawValue>>,
    removed_fields: Vec<&'a str>,
}

fn event_object(event: &Event) -> Result<EventObject<'_>, Failure> {
    let detail = match &event.kind {
        EventKind::Acquired {
            resource,
            owner,
            token,
            expires_at,
            ttl,
            created,
        } => Detail::Other(json!({
            "resource": resource.as_str(),
            "owner": owner.as_str(),
            "token": token.get(),
            "expires_at": expires_at.to_string(),
            "ttl_seconds": seconds(ttl.as_duration()),
            "created_version": created,
        })),
        EventKind::Released {
            resource,
            owner,
            token,
        } => Detail::Other(json!({
            "resource": resource.as_str(),
            "owner": owner.as_str(),
            "token": token.get(),
        })),
        EventKind::Imported {
            resource,
            mark,
            version,
        } => Detail::Other(json!({
            "resource": resource.as_str(),
            "mark": mark.map(Token::get),
            "version": version,
        })),
        EventKind::Revoked { resource, mark } => Detail::Other(json!({
            "resource": resource.as_str(),
            "mark": mark.get(),
        })),
        EventKind::Committed {
            agent,
            id,
            fences,
            changes,
        } => Detail::Committed {
            agent: agent.as_str(),
            commit_id: id.map(|id| id.to_string()),
            fences: fences
                .iter()
                .map(|(resource, token)| {
                    json!({ "resource": resource.as_str(), "token": token.get() })
                })
                .collect(),
            changes: changes.iter().map(change_object).collect::<Result<_, _>>()?,
        },
        _ => Detail::Other(json!({})),
    };
    Ok(EventObject {
        sequence: event.sequence,
        at: event.at.to_string(),
        event: event.kind.name(),
        detail,
    })
}

fn change_object(change: &ResourceChange) -> Result<ChangeObject<'_>, Failure> {
    let mut fields = BTreeMap::new();
    let mut removed_fields = Vec::new();
    for (field, value) in &change.fields {
        match value {
            Some(value) => {
                fields.insert(field.as_str(), raw(value)?);
            }
            None => removed_fields.push(field.as_str()),
        }
    }
    Ok(ChangeObject {
        resource: change.resource.as_str(),
        version: change.version,
        deleted: change.deleted,
        fenced: change.fenced,
        fields,
        removed_fields,
    })
}

fn event_line(event: &Event) -> String {
    let what = match &event.kind {
        EventKind::Acquired {
            resource,
            owner,
            token,
            ttl,
            ..
        } => format!(
            "{NAME}{resource}{NAME:#} by {owner}, token {token}, for {}",
            human_duration(ttl.as_duration())
        ),
        EventKind::Released {
            resource,
            owner,
            token,
        } => format!("{NAME}{resource}{NAME:#} by {owner}, token {token}"),
        EventKind::Imported { resource, mark, .. } => {
            let mark = mark.map_or_else(|| "none".to_owned(), |mark| mark.to_string());
            format!("{NAME}{resource}{NAME:#} from another store, mark {mark}")
        }
        EventKind::Revoked { resource, mark } => {
            format!("{NAME}{resource}{NAME:#}, mark {mark}")
        }
        EventKind::Committed {
            agent,
            fences,
            changes,
            ..
        } => {
            let mut text = format!("by {agent}{}", fences_text(fences));
            if !changes.is_empty() {
                let changes: Vec<String> = changes.iter().map(change_text).collect();
                text.push_str(": ");
                text.push_str(&changes.join("; "));
            }
            text
        }
        _ => String::new(),
    };
    format!(
        "{FAINT}{:>6}  {}{FAINT:#}  {:<9}  {what}",
        event.sequence,
        local_time(event.at),
        event.kind.name(),
    )
}

fn fences_text(fences: &[(ResourceName, Token)]) -> String {
    let fences: Vec<String> = fences
        .iter()
        .map(|(resource, token)| format!(", fence {resource}={token}"))
        .collect();
    fences.concat()
}

/// The longest value that a person is shown in a line of the history.
const SHOWN: usize = 60;

fn change_text(change: &ResourceChange) -> String {
    let name = format!("{NAME}{}{NAME:#}", change.resource);
    if change.deleted {
        return format!("{name} deleted");
    }
    let fields: Vec<String> = change
        .fields
        .iter()
        .map(|(field, value)| match value {
            Some(value) => {
                let text = printable(value.as_str());
                let mut short: String = text.chars().take(SHOWN).collect();
                if short.len() < text.len() {
                    short.push('…');
                }
                format!("{field}={short}")
            }
            None => format!("{field} removed"),
        })
        .collect();
    let fields = if fields.is_empty() {
        let requires = if change.fenced {
            "requires a fence"
        } else {
            "has no fields set"
        };
        requires.to_owned()
    } else {
        fields.join(" ")
    };
    format!("{name} v{} {fields}", change.version)
}

pub(crate) async fn check(global: &Global, output: Output) -> Result<(), Failure> {
    let store = open(global, IfAbsent::Refuse).await?;
    let bar = if !output.json && std::io::stderr().is_terminal() {
        indicatif::ProgressBar::new_spinner().with_message("records verified")
    } else {
        indicatif::ProgressBar::hidden()
    };
    let checked = store.check(&|records| bar.set_position(records)).await;
    bar.finish_and_clear();
    let report = checked?;
    let object = json!({
        "resources": report.resources,
        "marks": report.marks,
        "leases": report.leases,
        "events": report.events,
    });
    output.say(&object, || {
        format!(
            "whole: {} resources, {} marks, {} leases, {} events",
            report.resources, report.marks, report.leases, report.events
        )
    })
}
