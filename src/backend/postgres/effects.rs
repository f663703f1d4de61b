//! The effects of an operation as statements.

use std::collections::BTreeMap;

use tokio_postgres::types::Type;

use super::codec::{self, signed};
use super::connection::{Statement, booleans, integer, integers, text, texts};
use super::store::Store;
use super::write::Loaded;
use crate::error::Result;
use crate::event::{Event, EventKind};
use crate::lease::Token;
use crate::resource::{FieldName, ResourceName, Value};
use crate::rules::{self, Effects, Entry, ResourceRecord};

/// How many events are pruned at once: a store that was opened with a shorter
/// history than before must not spend a statement's time on it.
const MOST_PRUNED: u64 = 20_000;

impl Loaded {
    /// The mark and lease of a resource as they are to be stored: at first, as
    /// they were read.
    fn entry<'a, 'e>(
        &self,
        ownership: &'e mut BTreeMap<&'a ResourceName, Entry>,
        resource: &'a ResourceName,
    ) -> &'e mut Entry {
        ownership.entry(resource).or_insert_with(|| {
            let stored = self.records.entries.get(resource);
            Entry {
                resource: None,
                ..stored.cloned().unwrap_or_default()
            }
        })
    }
}

/// The resources whose leases have ended, for those who wait for them.
pub(super) fn ended(effects: &Effects) -> Vec<&ResourceName> {
    let by_event = effects.events.iter().filter_map(|event| match event {
        EventKind::Released { resource, .. } | EventKind::Revoked { resource, .. } => {
            Some(resource)
        }
        _ => None,
    });
    // R15: a commit with a token above the mark supersedes any lease.
    let is_commit = |event: &EventKind| matches!(event, EventKind::Committed { .. });
    let by_mark = effects
        .marks
        .iter()
        .filter(|_| effects.events.iter().any(is_commit))
        .map(|(resource, _)| resource);
    by_event.chain(by_mark).collect()
}

impl Store {
    /// The statements that store the effects, and which of them appends the
    /// events. The counter's row comes last.
    pub(super) fn writes(
        &self,
        loaded: &Loaded,
        effects: &Effects,
        trip: &mut Vec<Statement>,
    ) -> Result<Option<usize>> {
        let sql = &self.sql;
        self.ownership_writes(loaded, effects, trip);
        if !effects.resources.is_empty() {
            let records = &effects.resources;
            let params = vec![
                texts(records.iter().map(|(resource, _)| resource.as_str())),
                booleans(records.iter().map(|(_, record)| record.exists)),
                booleans(records.iter().map(|(_, record)| record.state.fenced)),
                integers(
                    records
                        .iter()
                        .map(|(_, record)| Some(signed(record.state.version))),
                ),
            ];
            trip.push(Statement::query(&sql.put_resources, params));
            self.field_writes(loaded, records, trip);
        }
        for resource in ended(effects) {
            trip.push(Statement::query(&sql.notify, vec![text(resource.as_str())]));
        }
        let mut oldest = loaded.oldest;
        let mut newest = loaded.records.newest;
        let mut append_at = None;
        if !effects.events.is_empty() {
            append_at = Some(trip.len());
            newest += effects.events.len() as u64;
            trip.push(self.append(loaded, effects)?);
        }
        if let (Some(first), Some(last)) = (effects.copied.first(), effects.copied.last()) {
            if newest == 0 {
                oldest = first.sequence;
            }
            newest = last.sequence;
            trip.push(self.append_copied(loaded, &effects.copied, oldest)?);
        }
        if let Some(keep_from) = rules::prune_before(oldest, newest, self.history) {
            let keep_from = keep_from.min(oldest.saturating_add(MOST_PRUNED));
            let params = vec![integer(signed(keep_from))];
            trip.push(Statement::query(&sql.prune, params));
        }
        Ok(append_at)
    }

    /// Rows whose mark is raised are written as a whole. In the others nothing
    /// but the lease is, so that a transaction that has locked the mark by
    /// checking a fence is not waited for.
    fn ownership_writes(&self, loaded: &Loaded, effects: &Effects, trip: &mut Vec<Statement>) {
        let mut raised: BTreeMap<&ResourceName, Entry> = BTreeMap::new();
        for (resource, mark) in &effects.marks {
            loaded.entry(&mut raised, resource).mark = Some(*mark);
        }
        let mut extended = BTreeMap::new();
        for (resource, lease) in &effects.leases {
            let kept = !raised.contains_key(resource);
            let rows = if kept { &mut extended } else { &mut raised };
            loaded.entry(rows, resource).lease = Some(lease.clone());
        }
        for (sql, rows, whole) in [
            (&self.sql.put_leases, raised, true),
            (&self.sql.update_leases, extended, false),
        ] {
            if rows.is_empty() {
                continue;
            }
            let lease = |of: fn(&rules::LeaseRecord) -> i64| {
                integers(rows.values().map(|entry| entry.lease.as_ref().map(of)))
            };
            let owners: Vec<Option<String>> = rows
                .values()
                .map(|entry| entry.lease.as_ref().map(|lease| lease.owner.to_string()))
                .collect();
            let mut params = vec![texts(rows.keys().map(|resource| resource.as_str()))];
            if whole {
                let token = |token: Token| signed(token.get());
                params.push(integers(rows.values().map(|entry| entry.mark.map(token))));
            }
            params.extend([
                (Box::new(owners) as Box<_>, Type::TEXT_ARRAY),
                lease(|lease| signed(lease.token.get())),
                lease(|lease| lease.expires_at.as_millis()),
                lease(|lease| signed(lease.ttl.as_millis())),
            ]);
            trip.push(Statement::query(sql, params));
        }
    }

    fn append(&self, loaded: &Loaded, effects: &Effects) -> Result<Statement> {
        let events = effects.events.iter().map(codec::event_json);
        let mut params = vec![
            texts(events.collect::<Result<Vec<_>>>()?),
            integer(loaded.now.as_millis()),
        ];
        let Some((id, stored)) = &effects.receipt else {
            return Ok(Statement::query(&self.sql.append, params));
        };
        params.extend([
            text(id.to_string()),
            integer(stored.fingerprint.cast_signed()),
            text(codec::versions_json(&stored.receipt)?),
        ]);
        Ok(Statement::query(&self.sql.append_with_receipt, params))
    }

    fn append_copied(&self, loaded: &Loaded, events: &[Event], oldest: u64) -> Result<Statement> {
        let newest = events.last().map_or(0, |event| event.sequence);
        let json = events.iter().map(|event| codec::event_json(&event.kind));
        let params = vec![
            integers(events.iter().map(|event| Some(signed(event.sequence)))),
            integers(events.iter().map(|event| Some(event.at.as_millis()))),
            texts(json.collect::<Result<Vec<_>>>()?),
            integer(signed(newest)),
            integer(loaded.now.as_millis()),
            integer(signed(oldest)),
        ];
        Ok(Statement::query(&self.sql.append_copied, params))
    }

    fn field_writes(
        &self,
        loaded: &Loaded,
        records: &[(ResourceName, ResourceRecord)],
        trip: &mut Vec<Statement>,
    ) {
        let mut gone: Vec<(&str, &str)> = Vec::new();
        let mut put: Vec<(&str, &FieldName, u64, &Value)> = Vec::new();
        for (resource, record) in records {
            let before = loaded
                .records
                .entries
                .get(resource)
                .and_then(|entry| entry.resource.as_ref())
                .map(|record| &record.state.fields);
            let after = &record.state.fields;
            for field in before.into_iter().flat_map(BTreeMap::keys) {
                if !after.contains_key(field) {
                    gone.push((resource.as_str(), field.as_str()));
                }
            }
            for (field, state) in after {
                if before.and_then(|before| before.get(field)) != Some(state) {
                    put.push((resource.as_str(), field, state.version, &state.value));
                }
            }
        }
        if !gone.is_empty() {
            let params = vec![
                texts(gone.iter().map(|(resource, _)| *resource)),
                texts(gone.iter().map(|(_, field)| *field)),
            ];
            trip.push(Statement::query(&self.sql.delete_fields, params));
        }
        if !put.is_empty() {
            let params = vec![
                texts(put.iter().map(|(resource, ..)| *resource)),
                texts(put.iter().map(|(_, field, ..)| field.as_str())),
                integers(put.iter().map(|(.., version, _)| Some(signed(*version)))),
                texts(put.iter().map(|(.., value)| value.as_str())),
            ];
            trip.push(Statement::query(&self.sql.put_fields, params));
        }
    }
}
