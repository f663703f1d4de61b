//! The tables: loading the records that a decision needs, storing its
//! effects, and walking everything for lists, history and checks.

use std::ops::Bound;

use redb::{
    ReadTransaction, ReadableTable, Table, TableDefinition, TableError, TableHandle,
    WriteTransaction,
};

use super::codec::{self, Place, Stored};
use super::failure::{commit_error, storage_error, table_error};
use crate::backend::{CheckReport, ResourceSummary};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::{Event, EventKind, EventPage};
use crate::lease::Token;
use crate::resource::{CommitId, ResourceName};
use crate::rules::{self, Effects, Entry, LeaseRecord, Op, Records, ResourceRecord, StoredReceipt};

type ByName = TableDefinition<'static, &'static str, &'static [u8]>;

/// Name → version, fields.
const RESOURCES: ByName = TableDefinition::new("statepact.resources");
/// Name → owner, token, expiry, ttl.
const LEASES: ByName = TableDefinition::new("statepact.leases");
/// Name → mark.
const FENCES: ByName = TableDefinition::new("statepact.fences");
/// `meta` has one row a topic.
const META: ByName = TableDefinition::new("statepact.meta");
/// Sequence → event.
const LOG: TableDefinition<'static, u64, &'static [u8]> = TableDefinition::new("statepact.log");
/// Commit id, big-endian → receipt; forgotten with its event.
const COMMITS: TableDefinition<'static, &'static [u8], &'static [u8]> =
    TableDefinition::new("statepact.commits");

/// The prefix of the names of the store's own tables.
pub(super) const OWN_PREFIX: &str = "statepact.";

/// The rows of `meta`.
pub(super) const META_STORE: &str = "store";
pub(super) const META_CLOCK: &str = "clock";

fn place<'a>(table: &impl TableHandle, key: &'a [u8]) -> Place<'a> {
    let table = match table.name() {
        "statepact.resources" => "resources",
        "statepact.leases" => "leases",
        "statepact.fences" => "fences",
        "statepact.log" => "log",
        "statepact.commits" => "commits",
        _ => "meta",
    };
    Place { table, key }
}

fn named<T: Stored>(
    table: &(impl ReadableTable<&'static str, &'static [u8]> + TableHandle),
    name: &str,
) -> Result<Option<T>> {
    let value = table.get(name).map_err(storage_error)?;
    value
        .map(|value| codec::decode(place(table, name.as_bytes()), value.value()))
        .transpose()
}

fn put<T: Stored>(
    table: &mut Table<'_, &'static str, &'static [u8]>,
    name: &str,
    value: &T,
) -> Result<()> {
    let bytes = codec::encode(place(table, name.as_bytes()), value)?;
    table
        .insert(name, bytes.as_slice())
        .map_err(storage_error)?;
    Ok(())
}

fn newest(log: &impl ReadableTable<u64, &'static [u8]>) -> Result<u64> {
    let last = log.last().map_err(storage_error)?;
    Ok(last.map_or(0, |(sequence, _)| sequence.value()))
}

fn event(table: &impl TableHandle, sequence: u64, bytes: &[u8]) -> Result<Event> {
    let key = sequence.to_be_bytes();
    let event: Event = codec::decode(place(table, &key), bytes)?;
    if event.sequence == sequence {
        Ok(event)
    } else {
        Err(Error::Corrupt {
            location: format!("table `log`, key {sequence}"),
            message: format!("it holds event {}", event.sequence),
        })
    }
}

/// Loads what an operation needs, from a read or a write transaction.
fn load_records(
    op: &Op,
    resources: &(impl ReadableTable<&'static str, &'static [u8]> + TableHandle),
    leases: &(impl ReadableTable<&'static str, &'static [u8]> + TableHandle),
    fences: &(impl ReadableTable<&'static str, &'static [u8]> + TableHandle),
    commits: &(impl ReadableTable<&'static [u8], &'static [u8]> + TableHandle),
    newest: u64,
) -> Result<Records> {
    let mut records = Records {
        newest,
        ..Records::default()
    };
    for (resource, needs) in op.needs() {
        let name = resource.as_str();
        let entry = Entry {
            mark: named(fences, name)?,
            lease: if needs.lease {
                named(leases, name)?
            } else {
                None
            },
            resource: if needs.resource {
                named(resources, name)?
            } else {
                None
            },
        };
        records.entries.insert(resource, entry);
    }
    if let Some(id) = op.commit_id() {
        let key = id.as_bits().to_be_bytes();
        let stored = commits.get(key.as_slice()).map_err(storage_error)?;
        records.receipt = stored
            .map(|stored| codec::decode::<StoredReceipt>(place(commits, &key), stored.value()))
            .transpose()?;
    }
    Ok(records)
}

/// The tables as one read transaction sees them.
pub(super) struct Snapshot {
    txn: ReadTransaction,
}

impl Snapshot {
    pub(super) fn new(txn: ReadTransaction) -> Self {
        Self { txn }
    }

    /// The transaction itself, for the caller's own tables.
    pub(super) fn transaction(&self) -> &ReadTransaction {
        &self.txn
    }

    fn table<K: redb::Key + 'static, V: redb::Value + 'static>(
        &self,
        definition: TableDefinition<'static, K, V>,
    ) -> Result<redb::ReadOnlyTable<K, V>> {
        self.txn.open_table(definition).map_err(table_error)
    }

    pub(super) fn meta<T: Stored>(&self, row: &str) -> Result<Option<T>> {
        named(&self.table(META)?, row)
    }

    pub(super) fn load(&self, op: &Op) -> Result<Records> {
        load_records(
            op,
            &self.table(RESOURCES)?,
            &self.table(LEASES)?,
            &self.table(FENCES)?,
            &self.table(COMMITS)?,
            newest(&self.table(LOG)?)?,
        )
    }

    pub(super) fn resource(&self, name: &ResourceName) -> Result<Option<ResourceRecord>> {
        named(&self.table(RESOURCES)?, name.as_str())
    }

    /// The mark and the lease.
    pub(super) fn ownership(&self, name: &ResourceName) -> Result<Entry> {
        Ok(Entry {
            mark: named(&self.table(FENCES)?, name.as_str())?,
            lease: named(&self.table(LEASES)?, name.as_str())?,
            resource: None,
        })
    }

    pub(super) fn list(
        &self,
        prefix: &str,
        after: Option<&ResourceName>,
        limit: usize,
        now: Timestamp,
    ) -> Result<Vec<ResourceSummary>> {
        let from = match after {
            Some(after) if after.as_str() >= prefix => Bound::Excluded(after.as_str()),
            _ => Bound::Included(prefix),
        };
        let resources = self.table(RESOURCES)?;
        let mut found = Vec::new();
        let rows = resources
            .range::<&str>((from, Bound::Unbounded))
            .map_err(storage_error)?;
        for row in rows {
            let (name, value) = row.map_err(storage_error)?;
            if !name.value().starts_with(prefix) || found.len() >= limit {
                break;
            }
            let place = place(&resources, name.value().as_bytes());
            let record: ResourceRecord = codec::decode(place, value.value())?;
            if record.exists {
                let resource = stored_name(&resources, name.value())?;
                let lease = rules::status(&resource, &self.ownership(&resource)?, now);
                found.push(ResourceSummary {
                    resource,
                    version: record.state.version,
                    fenced: record.state.fenced,
                    fields: record.state.fields.len(),
                    lease,
                });
            }
        }
        Ok(found)
    }

    pub(super) fn events(&self, after: u64, limit: usize) -> Result<EventPage> {
        let log = self.table(LOG)?;
        let newest = newest(&log)?;
        let first = log.first().map_err(storage_error)?;
        let oldest = first.map_or(newest + 1, |(sequence, _)| sequence.value());
        rules::check_history(after, oldest)?;
        let mut events = Vec::new();
        let rows = log
            .range::<u64>((Bound::Excluded(after), Bound::Unbounded))
            .map_err(storage_error)?;
        for row in rows.take(limit) {
            let (sequence, value) = row.map_err(storage_error)?;
            events.push(event(&log, sequence.value(), value.value())?);
        }
        Ok(EventPage {
            next_after: events.last().map_or(after, |event| event.sequence),
            events,
            newest,
        })
    }

    /// Decodes every value, and checks what must hold between them.
    pub(super) fn check(&self, progress: &(dyn Fn(u64) + Send + Sync)) -> Result<CheckReport> {
        let resources = self.table(RESOURCES)?;
        let leases = self.table(LEASES)?;
        let fences = self.table(FENCES)?;
        let log = self.table(LOG)?;
        let commits = self.table(COMMITS)?;
        let mut report = CheckReport::default();
        let mut seen = 0;
        let mut step = || {
            seen += 1;
            if seen % 1024 == 0 {
                progress(seen);
            }
        };
        let wrong = |table: &str, key: &str, message: String| Error::Corrupt {
            location: format!("table `{table}`, key `{key}`"),
            message,
        };
        let whole = || (Bound::Unbounded::<&str>, Bound::Unbounded);
        for row in resources.range::<&str>(whole()).map_err(storage_error)? {
            let (name, value) = row.map_err(storage_error)?;
            let name = stored_name(&resources, name.value())?;
            let place = place(&resources, name.as_str().as_bytes());
            let record: ResourceRecord = codec::decode(place, value.value())?;
            let late = record
                .state
                .fields
                .iter()
                .find(|(_, field)| field.version > record.state.version);
            if let Some((field, _)) = late {
                return Err(wrong(
                    "resources",
                    name.as_str(),
                    format!("field `{field}` is newer than its resource"),
                ));
            }
            report.resources += u64::from(record.exists);
            step();
        }
        for row in fences.range::<&str>(whole()).map_err(storage_error)? {
            let (name, value) = row.map_err(storage_error)?;
            let name = stored_name(&fences, name.value())?;
            let place = place(&fences, name.as_str().as_bytes());
            let _: Token = codec::decode(place, value.value())?;
            report.marks += 1;
            step();
        }
        for row in leases.range::<&str>(whole()).map_err(storage_error)? {
            let (name, value) = row.map_err(storage_error)?;
            let name = stored_name(&leases, name.value())?;
            let place = place(&leases, name.as_str().as_bytes());
            let lease: LeaseRecord = codec::decode(place, value.value())?;
            let mark: Option<Token> = named(&fences, name.as_str())?;
            if mark < Some(lease.token) {
                return Err(wrong(
                    "leases",
                    name.as_str(),
                    format!("its token {} is above the mark", lease.token),
                ));
            }
            report.leases += 1;
            step();
        }
        let mut next = None;
        for row in log.range::<u64>(..).map_err(storage_error)? {
            let (sequence, value) = row.map_err(storage_error)?;
            let sequence = sequence.value();
            event(&log, sequence, value.value())?;
            if next.is_some_and(|next| next != sequence) {
                return Err(wrong(
                    "log",
                    &sequence.to_string(),
                    "the event before it is missing".to_owned(),
                ));
            }
            next = Some(sequence + 1);
            report.events += 1;
            step();
        }
        for row in commits.range::<&[u8]>(..).map_err(storage_error)? {
            let (key, value) = row.map_err(storage_error)?;
            let place = place(&commits, key.value());
            let _: StoredReceipt = codec::decode(place, value.value())?;
            step();
        }
        progress(seen);
        Ok(report)
    }
}

fn stored_name(table: &impl TableHandle, name: &str) -> Result<ResourceName> {
    ResourceName::new(name).map_err(|error| Error::Corrupt {
        location: format!("table `{}`", place(table, &[]).table),
        message: format!("a key is not a name: {error}"),
    })
}

/// The tables in a write transaction.
pub(super) struct Tables<'txn> {
    resources: Table<'txn, &'static str, &'static [u8]>,
    leases: Table<'txn, &'static str, &'static [u8]>,
    fences: Table<'txn, &'static str, &'static [u8]>,
    meta: Table<'txn, &'static str, &'static [u8]>,
    log: Table<'txn, u64, &'static [u8]>,
    commits: Table<'txn, &'static [u8], &'static [u8]>,
    newest: u64,
}

impl<'txn> Tables<'txn> {
    /// Opens the tables, creating those that are missing: only for a store
    /// that is being made or has been looked at already.
    pub(super) fn open(txn: &'txn WriteTransaction) -> Result<Self> {
        let log = txn.open_table(LOG).map_err(table_error)?;
        let newest = newest(&log)?;
        Ok(Self {
            resources: txn.open_table(RESOURCES).map_err(table_error)?,
            leases: txn.open_table(LEASES).map_err(table_error)?,
            fences: txn.open_table(FENCES).map_err(table_error)?,
            meta: txn.open_table(META).map_err(table_error)?,
            commits: txn.open_table(COMMITS).map_err(table_error)?,
            log,
            newest,
        })
    }

    pub(super) fn load(&self, op: &Op) -> Result<Records> {
        load_records(
            op,
            &self.resources,
            &self.leases,
            &self.fences,
            &self.commits,
            self.newest,
        )
    }

    pub(super) fn meta<T: Stored>(&self, row: &str) -> Result<Option<T>> {
        named(&self.meta, row)
    }

    pub(super) fn put_meta<T: Stored>(&mut self, row: &str, value: &T) -> Result<()> {
        put(&mut self.meta, row, value)
    }

    /// Stores the effects of one operation.
    pub(super) fn apply(&mut self, effects: Effects, at: Timestamp) -> Result<()> {
        for (resource, mark) in &effects.marks {
            put(&mut self.fences, resource.as_str(), mark)?;
        }
        for (resource, lease) in &effects.leases {
            put(&mut self.leases, resource.as_str(), lease)?;
        }
        for (resource, record) in &effects.resources {
            put(&mut self.resources, resource.as_str(), record)?;
        }
        for kind in effects.events {
            let sequence = self.newest + 1;
            let event = Event { sequence, at, kind };
            let bytes = codec::encode(place(&self.log, &sequence.to_be_bytes()), &event)?;
            self.log
                .insert(sequence, bytes.as_slice())
                .map_err(storage_error)?;
            self.newest = sequence;
        }
        if let Some((id, receipt)) = &effects.receipt {
            let key = id.as_bits().to_be_bytes();
            let bytes = codec::encode(place(&self.commits, &key), receipt)?;
            self.commits
                .insert(key.as_slice(), bytes.as_slice())
                .map_err(storage_error)?;
        }
        Ok(())
    }

    /// Forgets the events that are beyond the history to keep, with the commit
    /// ids that they carry.
    pub(super) fn prune(&mut self, history: u64) -> Result<()> {
        let oldest = {
            let first = self.log.first().map_err(storage_error)?;
            first.map_or(self.newest + 1, |(sequence, _)| sequence.value())
        };
        let Some(keep_from) = rules::prune_before(oldest, self.newest, history) else {
            return Ok(());
        };
        let mut forgotten: Vec<CommitId> = Vec::new();
        for sequence in oldest..keep_from {
            let removed = self.log.remove(sequence).map_err(storage_error)?;
            let bytes = removed.map(|value| value.value().to_vec());
            if let Some(bytes) = bytes
                && let EventKind::Committed { id: Some(id), .. } =
                    event(&self.log, sequence, &bytes)?.kind
            {
                forgotten.push(id);
            }
        }
        for id in forgotten {
            let key = id.as_bits().to_be_bytes();
            self.commits.remove(key.as_slice()).map_err(storage_error)?;
        }
        Ok(())
    }
}

/// Whether the file holds a store: its `meta` table is there.
pub(super) fn is_store(txn: &ReadTransaction) -> Result<bool> {
    match txn.open_table(META) {
        Ok(_) => Ok(true),
        Err(TableError::TableDoesNotExist(_)) => Ok(false),
        Err(error) => Err(table_error(error)),
    }
}

/// Commits, when nothing has to be known of how it failed.
pub(super) fn commit(txn: WriteTransaction) -> Result<()> {
    txn.commit().map_err(commit_error)
}
