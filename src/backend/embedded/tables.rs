//! The tables: loading the records that a decision needs, storing its
//! effects, and walking everything for lists, history and checks.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::ops::Bound;

use redb::{
    ReadTransaction, ReadableTable, Table, TableDefinition, TableError, TableHandle,
    WriteTransaction,
};

use super::codec::{self, Start, Stored};
use super::failure::{commit_error, storage_error, table_error};
use super::rows::{
    START, event, missing_event, named, newest, oldest, place, put, row, stored_name,
};
use crate::backend::{CheckReport, ExportRange, Exported, ResourceSummary};
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

/// The mark and the lease of a resource. They are of one age or the file is
/// damaged: an older copy of a page is whole by its checksums, and a mark from
/// before the last lease would be issued twice (R1).
fn ownership(
    leases: &(impl ReadableTable<&'static str, &'static [u8]> + TableHandle),
    fences: &(impl ReadableTable<&'static str, &'static [u8]> + TableHandle),
    name: &str,
) -> Result<(Option<Token>, Option<LeaseRecord>)> {
    let mark: Option<Token> = named(fences, name)?;
    let lease: Option<LeaseRecord> = named(leases, name)?;
    match &lease {
        Some(lease) if mark < Some(lease.token) => Err(Error::Corrupt {
            location: format!("table `leases`, key `{name}`"),
            message: format!("its token {} is above the mark", lease.token),
        }),
        _ => Ok((mark, lease)),
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
        let (mark, lease) = ownership(leases, fences, name)?;
        let entry = Entry {
            mark,
            lease: lease.filter(|_| needs.lease),
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
        records.receipt = row::<&[u8], StoredReceipt>(commits, &key.as_slice())?;
    }
    Ok(records)
}

/// The tables as one read transaction sees them.
pub(super) struct Snapshot {
    txn: ReadTransaction,
    /// Looked up once: every read asks for it, and some again.
    newest: OnceCell<u64>,
}

impl Snapshot {
    pub(super) fn new(txn: ReadTransaction) -> Self {
        Self {
            txn,
            newest: OnceCell::new(),
        }
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

    /// The sequence of the newest event.
    pub(super) fn newest(&self) -> Result<u64> {
        if let Some(newest) = self.newest.get() {
            return Ok(*newest);
        }
        let found = newest(&self.table(LOG)?)?;
        Ok(*self.newest.get_or_init(|| found))
    }

    pub(super) fn load(&self, op: &Op) -> Result<Records> {
        load_records(
            op,
            &self.table(RESOURCES)?,
            &self.table(LEASES)?,
            &self.table(FENCES)?,
            &self.table(COMMITS)?,
            self.newest()?,
        )
    }

    pub(super) fn resource(&self, name: &ResourceName) -> Result<Option<ResourceRecord>> {
        named(&self.table(RESOURCES)?, name.as_str())
    }

    /// The mark and the lease.
    pub(super) fn ownership(&self, name: &ResourceName) -> Result<Entry> {
        let (leases, fences) = (self.table(LEASES)?, self.table(FENCES)?);
        let (mark, lease) = ownership(&leases, &fences, name.as_str())?;
        Ok(Entry {
            mark,
            lease,
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
            _ if prefix.is_empty() => Bound::Excluded(START),
            _ => Bound::Included(prefix),
        };
        let resources = self.table(RESOURCES)?;
        let mut found = Vec::new();
        let rows = resources
            .range::<&str>((from, Bound::Unbounded))
            .map_err(storage_error)?;
        for row in rows {
            if found.len() >= limit {
                break;
            }
            let (name, value) = row.map_err(storage_error)?;
            let place = place(&resources, name.value().as_bytes());
            // Before anything is concluded from the name.
            codec::verify(place, value.value())?;
            if !name.value().starts_with(prefix) {
                break;
            }
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
        let newest = self.newest()?;
        let oldest = oldest(&log, newest)?;
        rules::check_history(after, oldest)?;
        let mut events = Vec::new();
        let mut next = after.saturating_add(1);
        for row in log.range::<u64>(next..).map_err(storage_error)?.take(limit) {
            let (sequence, value) = row.map_err(storage_error)?;
            if sequence.value() != next {
                return Err(missing_event(next));
            }
            events.push(event(&log, next, value.value())?);
            next += 1;
        }
        if events.len() < limit && next <= newest {
            return Err(missing_event(next));
        }
        Ok(EventPage {
            next_after: events.last().map_or(after, |event| event.sequence),
            events,
            newest,
        })
    }

    pub(super) fn export(&self, range: &ExportRange) -> Result<Vec<Exported>> {
        let names = match range {
            ExportRange::After { after, limit } => self.names_after(after.as_ref(), *limit)?,
            ExportRange::Of(names) => names.clone(),
        };
        let mut exported = Vec::with_capacity(names.len());
        for resource in names {
            let entry = Entry {
                resource: self.resource(&resource)?,
                ..self.ownership(&resource)?
            };
            if entry != Entry::default() {
                exported.push(Exported { resource, entry });
            }
        }
        Ok(exported)
    }

    fn names_after(&self, after: Option<&ResourceName>, limit: usize) -> Result<Vec<ResourceName>> {
        let (resources, fences) = (self.table(RESOURCES)?, self.table(FENCES)?);
        // Who has a lease has a mark.
        let mut names = BTreeSet::new();
        for table in [&resources, &fences] {
            let from = Bound::Excluded(after.map_or(START, ResourceName::as_str));
            let rows = table
                .range::<&str>((from, Bound::Unbounded))
                .map_err(storage_error)?;
            for row in rows.take(limit) {
                let (name, value) = row.map_err(storage_error)?;
                codec::verify(place(table, name.value().as_bytes()), value.value())?;
                names.insert(stored_name(table, name.value())?);
            }
        }
        Ok(names.into_iter().take(limit).collect())
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
        let whole = || (Bound::Excluded(START), Bound::Unbounded);
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
        let newest = self.newest()?;
        let oldest = oldest(&log, newest)?;
        let rows = log.range::<u64>(oldest..).map_err(storage_error)?;
        for (next, row) in (oldest..).zip(rows) {
            let (sequence, value) = row.map_err(storage_error)?;
            if sequence.value() != next {
                return Err(missing_event(next));
            }
            event(&log, next, value.value())?;
            report.events += 1;
            step();
        }
        let receipts = (Bound::Excluded(START.as_bytes()), Bound::Unbounded);
        for row in commits.range::<&[u8]>(receipts).map_err(storage_error)? {
            let (key, value) = row.map_err(storage_error)?;
            let place = place(&commits, key.value());
            let _: StoredReceipt = codec::decode(place, value.value())?;
            step();
        }
        progress(seen);
        Ok(report)
    }
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
    /// The sequence of the newest event.
    pub(super) fn newest(&self) -> u64 {
        self.newest
    }

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

    /// Gives each table of a new store the row that it begins with.
    pub(super) fn begin(txn: &WriteTransaction) -> Result<()> {
        for definition in [RESOURCES, LEASES, FENCES, META] {
            let mut table = txn.open_table(definition).map_err(table_error)?;
            put(&mut table, START, &Start)?;
        }
        let mut log = txn.open_table(LOG).map_err(table_error)?;
        let bytes = codec::encode(place(&log, &0_u64.to_be_bytes()), &Start)?;
        log.insert(0, bytes.as_slice()).map_err(storage_error)?;
        let mut commits = txn.open_table(COMMITS).map_err(table_error)?;
        let bytes = codec::encode(place(&commits, START.as_bytes()), &Start)?;
        commits
            .insert(START.as_bytes(), bytes.as_slice())
            .map_err(storage_error)?;
        Ok(())
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
        let first = self.newest + 1;
        let own = effects
            .events
            .into_iter()
            .zip(first..)
            .map(|(kind, sequence)| Event { sequence, at, kind });
        for event in own.chain(effects.copied) {
            let sequence = event.sequence;
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
        let oldest = oldest(&self.log, self.newest)?;
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
