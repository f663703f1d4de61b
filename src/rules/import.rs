//! Moving resources from one store into another: no token that the source has
//! issued is issued again, and what was fenced there is fenced here (R1, R13).

use super::{Effects, Entry, LeaseRecord, Outcome, Records};
use crate::backend::{Exported, ImportHistory, ImportReport, ImportRequest, Merge};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::{Event, EventKind};
use crate::lease::Token;
use crate::resource::OwnerName;

pub(super) fn import(
    request: &ImportRequest,
    records: &Records,
    now: Timestamp,
) -> Result<(Outcome, Effects)> {
    let mut effects = Effects::default();
    let mut report = ImportReport::default();
    for Exported { resource, entry } in &request.entries {
        let here = records.entry(resource);
        let merged = merge(entry, here, request, now).ok_or_else(|| Error::ResourceExists {
            resource: resource.clone(),
        })?;
        if merged == *here {
            continue;
        }
        report.changed += 1;
        if let Some(mark) = merged.mark.filter(|_| merged.mark != here.mark) {
            effects.marks.push((resource.clone(), mark));
        }
        let version = merged.resource.as_ref().map(|record| record.state.version);
        if let Some(lease) = merged
            .lease
            .filter(|lease| here.lease.as_ref() != Some(lease))
        {
            effects.leases.push((resource.clone(), lease));
        }
        if let Some(record) = merged
            .resource
            .filter(|record| here.resource.as_ref() != Some(record))
        {
            effects.resources.push((resource.clone(), record));
        }
        if request.history == ImportHistory::Note {
            effects.events.push(EventKind::Imported {
                resource: resource.clone(),
                mark: merged.mark,
                version,
            });
        }
    }
    if let ImportHistory::Append(events) = &request.history {
        follows(events, records.newest)?;
        effects.copied.clone_from(events);
    }
    report.events = (effects.events.len() + effects.copied.len()) as u64;
    Ok((Outcome::Imported(report), effects))
}

/// The two as one; `None` when they may not be one.
fn merge(there: &Entry, here: &Entry, request: &ImportRequest, now: Timestamp) -> Option<Entry> {
    let unused = *here == Entry::default();
    // The highest token is in different hands, or is a lease in one store and
    // a bare mark in the other: as far as is known, two own it.
    let two_hands = there.mark.is_some()
        && there.mark == here.mark
        && holder(there.lease.as_ref()) != holder(here.lease.as_ref());
    if request.merge == Merge::Refuse && !unused {
        let same = there.mark == here.mark && !two_hands && there.resource == here.resource;
        if !same {
            return None;
        }
    }
    let resource = match (&there.resource, &here.resource) {
        (there, None) => there.clone(),
        (Some(there), Some(here)) if there.state.version > here.state.version => {
            Some(there.clone())
        }
        (_, here) => here.clone(),
    };
    let mut mark = there.mark.max(here.mark);
    if two_hands {
        // R13: both are fenced.
        mark = Some(mark?.next()?);
    }
    Some(Entry {
        mark,
        lease: merge_leases(there.lease.as_ref(), here.lease.as_ref(), request, now),
        resource,
    })
}

fn holder(lease: Option<&LeaseRecord>) -> Option<(&OwnerName, Token)> {
    lease.map(|lease| (&lease.owner, lease.token))
}

/// The lease with the higher token.
fn merge_leases(
    there: Option<&LeaseRecord>,
    here: Option<&LeaseRecord>,
    request: &ImportRequest,
    now: Timestamp,
) -> Option<LeaseRecord> {
    let moved = there.map(|lease| LeaseRecord {
        expires_at: moved_expiry(lease.expires_at, request.as_of, now),
        ..lease.clone()
    });
    let (Some(moved), Some(here)) = (&moved, here) else {
        return moved.or_else(|| here.cloned());
    };
    if moved.token != here.token || moved.owner != here.owner {
        return Some(
            if moved.token > here.token {
                moved
            } else {
                here
            }
            .clone(),
        );
    }
    let released = [moved, here]
        .into_iter()
        .find(|lease| lease.expires_at == Timestamp::EPOCH);
    if let Some(released) = released {
        return Some(released.clone());
    }
    // Over there and over here: since when does not matter.
    let both_over = moved.expires_at <= now && here.expires_at <= now;
    Some(if both_over || moved.expires_at <= here.expires_at {
        here.clone()
    } else {
        moved.clone()
    })
}

/// The same time left on this store's time line.
fn moved_expiry(expires_at: Timestamp, as_of: Timestamp, now: Timestamp) -> Timestamp {
    if expires_at == Timestamp::EPOCH {
        expires_at
    } else {
        now.plus(expires_at.since(as_of))
    }
}

/// Whether events go on where a log ends.
fn follows(events: &[Event], newest: u64) -> Result<()> {
    let Some(first) = events.first() else {
        return Ok(());
    };
    let goes_on = first.sequence == newest.saturating_add(1) || newest == 0;
    let no_gap = events
        .iter()
        .zip(first.sequence..)
        .all(|(event, sequence)| event.sequence == sequence);
    if goes_on && no_gap && first.sequence > 0 {
        Ok(())
    } else {
        Err(Error::invalid(
            "history",
            format!(
                "events from sequence {} do not go on where the log ends, at {newest}",
                first.sequence
            ),
        ))
    }
}
