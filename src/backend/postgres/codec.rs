//! What is stored as JSON: events and receipts. And parsing of rows (R29).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::failure::{corrupt, describe, intact};
use crate::backend::CommitReceipt;
use crate::clock::Timestamp;
use crate::error::Result;
use crate::event::{Event, EventKind, ResourceChange};
use crate::lease::Token;
use crate::resource::{
    AgentName, CommitId, FieldName, FieldState, OwnerName, ResourceName, ResourceState, Ttl, Value,
};
use crate::rules::{Entry, LeaseRecord, ResourceRecord, StoredReceipt};

pub(super) const LEASES: &str = "statepact_leases";
pub(super) const RESOURCES: &str = "statepact_resources";
pub(super) const FIELDS: &str = "statepact_fields";
pub(super) const LOG: &str = "statepact_log";
pub(super) const RECEIPTS: &str = "statepact_receipts";
pub(super) const COUNTER: &str = "statepact_counter";

/// A column of a row; what does not have the type is damage.
pub(super) fn column<'a, T: FromSql<'a>>(
    row: &'a Row,
    index: usize,
    table: &str,
    key: &str,
) -> Result<T> {
    row.try_get(index)
        .map_err(|error| corrupt(table, key, describe(&error)))
}

/// A number that is never negative.
pub(super) fn unsigned(number: i64, what: &str, table: &str, key: &str) -> Result<u64> {
    u64::try_from(number).map_err(|_| corrupt(table, key, format!("{what} is {number}")))
}

/// For a statement. No number that this crate counts gets there.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A row of mark, owner, token, expiry and ttl, from column `at` on.
pub(super) fn ownership(row: &Row, at: usize, resource: &str) -> Result<Entry> {
    let number = |index| column::<Option<i64>>(row, at + index, LEASES, resource);
    let token = |number: i64| {
        let token = Token::new(unsigned(number, "a token", LEASES, resource)?);
        intact(token, LEASES, resource)
    };
    let owner: Option<&str> = column(row, at + 1, LEASES, resource)?;
    let lease = match (owner, number(2)?, number(3)?, number(4)?) {
        (None, None, None, None) => None,
        (Some(owner), Some(number), Some(expires_at), Some(ttl)) => Some(LeaseRecord {
            owner: intact(OwnerName::new(owner), LEASES, resource)?,
            token: token(number)?,
            expires_at: Timestamp::from_millis(expires_at),
            ttl: intact(
                Ttl::from_millis(unsigned(ttl, "the ttl", LEASES, resource)?),
                LEASES,
                resource,
            )?,
        }),
        _ => return Err(corrupt(LEASES, resource, "half a lease")),
    };
    Ok(Entry {
        mark: number(0)?.map(token).transpose()?,
        lease,
        resource: None,
    })
}

/// Rows of resource, present, fenced, version, and field, version, value of one
/// field or none, from column `at` on. Resources without a state are left out.
pub(super) fn resources(rows: &[Row], at: usize) -> Result<BTreeMap<ResourceName, ResourceRecord>> {
    let mut records: BTreeMap<ResourceName, ResourceRecord> = BTreeMap::new();
    for row in rows {
        let Some(name) = column::<Option<&str>>(row, at, RESOURCES, "?")? else {
            continue;
        };
        let Some(exists) = column(row, at + 1, RESOURCES, name)? else {
            continue;
        };
        let resource = intact(ResourceName::new(name), RESOURCES, name)?;
        let version: i64 = column(row, at + 3, RESOURCES, name)?;
        let record = ResourceRecord {
            exists,
            state: ResourceState {
                version: unsigned(version, "the version", RESOURCES, name)?,
                fenced: column(row, at + 2, RESOURCES, name)?,
                fields: BTreeMap::new(),
            },
        };
        let record = records.entry(resource).or_insert(record);
        let Some(field) = column::<Option<&str>>(row, at + 4, FIELDS, name)? else {
            continue;
        };
        let key = format!("{name}, {field}");
        let version: i64 = column(row, at + 5, FIELDS, &key)?;
        // The column's type lets nothing in but JSON.
        let value = Value::from_stored(column(row, at + 6, FIELDS, &key)?);
        let version = unsigned(version, "the version", FIELDS, &key)?;
        record.state.fields.insert(
            intact(FieldName::new(field), FIELDS, &key)?,
            FieldState { value, version },
        );
    }
    Ok(records)
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum EventDoc {
    Acquired {
        resource: ResourceName,
        owner: OwnerName,
        token: Token,
        expires_at: Timestamp,
        ttl: Ttl,
        created: Option<u64>,
    },
    Released {
        resource: ResourceName,
        owner: OwnerName,
        token: Token,
    },
    Revoked {
        resource: ResourceName,
        mark: Token,
    },
    Imported {
        resource: ResourceName,
        mark: Option<Token>,
        version: Option<u64>,
    },
    Committed {
        agent: AgentName,
        id: Option<CommitId>,
        fences: Vec<(ResourceName, Token)>,
        changes: Vec<ChangeDoc>,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangeDoc {
    resource: ResourceName,
    version: u64,
    deleted: bool,
    fenced: bool,
    fields: Vec<FieldDoc>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum FieldDoc {
    Set(FieldName, Box<RawValue>),
    Deleted(FieldName),
}

/// An event's JSON. Values stand in it as they are.
pub(super) fn event_json(kind: &EventKind) -> Result<String> {
    let doc = match kind.clone() {
        EventKind::Acquired {
            resource,
            owner,
            token,
            expires_at,
            ttl,
            created,
        } => EventDoc::Acquired {
            resource,
            owner,
            token,
            expires_at,
            ttl,
            created,
        },
        EventKind::Released {
            resource,
            owner,
            token,
        } => EventDoc::Released {
            resource,
            owner,
            token,
        },
        EventKind::Revoked { resource, mark } => EventDoc::Revoked { resource, mark },
        EventKind::Imported {
            resource,
            mark,
            version,
        } => EventDoc::Imported {
            resource,
            mark,
            version,
        },
        EventKind::Committed {
            agent,
            id,
            fences,
            changes,
        } => EventDoc::Committed {
            agent,
            id,
            fences,
            changes: changes
                .into_iter()
                .map(change_doc)
                .collect::<Result<_, _>>()
                .map_err(|error| corrupt(LOG, "a new event", error.to_string()))?,
        },
    };
    serde_json::to_string(&doc).map_err(|error| corrupt(LOG, "a new event", error.to_string()))
}

fn change_doc(change: ResourceChange) -> Result<ChangeDoc, serde_json::Error> {
    let fields = change.fields.into_iter().map(|(field, value)| {
        Ok(match value {
            Some(value) => FieldDoc::Set(field, RawValue::from_string(value.as_str().to_owned())?),
            None => FieldDoc::Deleted(field),
        })
    });
    Ok(ChangeDoc {
        resource: change.resource,
        version: change.version,
        deleted: change.deleted,
        fenced: change.fenced,
        fields: fields.collect::<Result<_, serde_json::Error>>()?,
    })
}

pub(super) fn event(sequence: i64, at: i64, json: &str) -> Result<Event> {
    let key = sequence.to_string();
    let doc: EventDoc =
        serde_json::from_str(json).map_err(|error| corrupt(LOG, &key, error.to_string()))?;
    let kind = match doc {
        EventDoc::Acquired {
            resource,
            owner,
            token,
            expires_at,
            ttl,
            created,
        } => EventKind::Acquired {
            resource,
            owner,
            token,
            expires_at,
            ttl,
            created,
        },
        EventDoc::Released {
            resource,
            owner,
            token,
        } => EventKind::Released {
            resource,
            owner,
            token,
        },
        EventDoc::Revoked { resource, mark } => EventKind::Revoked { resource, mark },
        EventDoc::Imported {
            resource,
            mark,
            version,
        } => EventKind::Imported {
            resource,
            mark,
            version,
        },
        EventDoc::Committed {
            agent,
            id,
            fences,
            changes,
        } => EventKind::Committed {
            agent,
            id,
            fences,
            changes: changes.into_iter().map(change).collect(),
        },
    };
    Ok(Event {
        sequence: unsigned(sequence, "the sequence", LOG, &key)?,
        at: Timestamp::from_millis(at),
        kind,
    })
}

fn change(doc: ChangeDoc) -> ResourceChange {
    let fields = doc.fields.into_iter().map(|field| match field {
        FieldDoc::Set(field, value) => (field, Some(Value::from_stored(value.get()))),
        FieldDoc::Deleted(field) => (field, None),
    });
    ResourceChange {
        resource: doc.resource,
        version: doc.version,
        deleted: doc.deleted,
        fenced: doc.fenced,
        fields: fields.collect(),
    }
}

/// The JSON of a receipt's versions.
pub(super) fn versions_json(receipt: &CommitReceipt) -> Result<String> {
    serde_json::to_string(&receipt.versions)
        .map_err(|error| corrupt(RECEIPTS, "a new receipt", error.to_string()))
}

/// A row of id, fingerprint, sequence and versions.
pub(super) fn receipt(row: &Row) -> Result<StoredReceipt> {
    let id: &str = column(row, 0, RECEIPTS, "?")?;
    let fingerprint: i64 = column(row, 1, RECEIPTS, id)?;
    let sequence: i64 = column(row, 2, RECEIPTS, id)?;
    let versions: &str = column(row, 3, RECEIPTS, id)?;
    let versions: Vec<(ResourceName, u64)> =
        serde_json::from_str(versions).map_err(|error| corrupt(RECEIPTS, id, error.to_string()))?;
    Ok(StoredReceipt {
        fingerprint: fingerprint.cast_unsigned(),
        receipt: CommitReceipt {
            sequence: unsigned(sequence, "the sequence", RECEIPTS, id)?,
            versions,
        },
    })
}
