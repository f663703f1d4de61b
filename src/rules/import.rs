//! Moving resources from one store into another: no token that the source has
//! issued is issued again, and what was fenced there is fenced here (R1, R13).

use super::{Effects, Entry, LeaseRecord, Outcome, Records};
use crate::backend::{Exported, ImportHistory, ImportReport, ImportRequest, Merge};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::{Event, EventKind};

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
    let refuse = request.merge == Merge::Refuse;
    // A mark of its own says that it was used here, whatever its state.
    if refuse && here.mark > there.mark {
        return None;
    }
    let resource = match (&there.resource, &here.resource) {
        (there, None) => there.clone(),
        (None, here) => here.clone(),
        (Some(there), Some(here)) if there == here => Some(here.clone()),
        _ if refuse => return None,
        (Some(there), Some(here)) if there.state.version > here.state.version => {
            Some(there.clone())
        }
        (_, here) => here.clone(),
    };
    let moved = there.lease.as_ref().map(|lease| LeaseRecord {
        expires_at: moved_expiry(lease.expires_at, request.as_of, now),
        ..lease.clone()
    });
    let lease = match (moved, &here.lease) {
        (Some(moved), Some(here)) if moved.token < here.token => Some(here.clone()),
        // Over there and over here: since when does not matter.
        (Some(moved), Some(here))
            if moved.token == here.token
                && moved.expires_at <= now
                && moved.expires_at != Timestamp::EPOCH
                && here.expires_at <= now =>
        {
            Some(here.clone())
        }
        // The same lease once more: it has the time left that it has there,
        // unless it was released here.
        (Some(moved), Some(here))
            if moved.token == here.token
                && (moved.owner != here.owner || here.expires_at == Timestamp::EPOCH) =>
        {
            Some(here.clone())
        }
        (Some(moved), Some(here))
            if moved.token == here.token && moved.expires_at != Timestamp::EPOCH =>
        {
            let expires_at = moved.expires_at.max(here.expires_at);
            Some(LeaseRecord {
                expires_at,
                ..moved
            })
        }
        (Some(moved), _) => Some(moved),
        (None, here) => here.clone(),
    };
    Some(Entry {
        mark: there.mark.max(here.mark),
        lease,
        resource,
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
