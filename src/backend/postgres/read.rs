//! Reads, and the check of the whole store.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;

use tokio_postgres::Row;

use super::codec::{self, COUNTER, column, signed, unsigned};
use super::connection::{Lent, Statement, integer, optional_text, text, texts};
use super::failure::{corrupt, intact};
use super::store::Store;
use crate::backend::{
    CheckReport, ExportPage, ExportRange, Exported, LeaseStatus, ResourceSummary,
};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::EventPage;
use crate::resource::{ResourceName, ResourceState, Value};
use crate::rules::{self, Entry};

fn counter_missing() -> Error {
    corrupt(COUNTER, "one", "its row is missing")
}

fn limited(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

impl Store {
    pub(super) async fn now(&self) -> Result<Timestamp> {
        let question = Statement::query(&self.sql.now, self.time.params());
        let rows = self.ask(question).await?;
        let row = rows.first().ok_or_else(counter_missing)?;
        Ok(self.time.saw(column(row, 0, COUNTER, "clock")?))
    }

    pub(super) async fn status(&self, resource: &ResourceName) -> Result<LeaseStatus> {
        let mut params = self.time.params();
        params.push(text(resource.as_str()));
        let rows = self.ask(Statement::query(&self.sql.status, params)).await?;
        let row = rows.first().ok_or_else(counter_missing)?;
        let entry = codec::ownership(row, 1, resource.as_str())?;
        let now = self.time.saw(column(row, 0, COUNTER, "clock")?);
        Ok(rules::status(resource, &entry, now))
    }

    pub(super) async fn states(
        &self,
        resources: &[ResourceName],
    ) -> Result<Vec<Option<ResourceState>>> {
        let names = texts(resources.iter().map(ResourceName::as_str));
        let rows = self
            .ask(Statement::query(&self.sql.read, vec![names]))
            .await?;
        let records = codec::resources(&rows, 0)?;
        Ok(resources
            .iter()
            .map(|resource| records.get(resource).map(|record| record.state.clone()))
            .collect())
    }

    pub(super) async fn list(
        &self,
        prefix: &str,
        after: Option<&ResourceName>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>> {
        if prefix.contains(char::is_control) {
            // No name has one, and the server takes no text with U+0000.
            return Ok(Vec::new());
        }
        let mut params = self.time.params();
        params.extend([
            text(prefix),
            optional_text(after.map(ToString::to_string)),
            optional_text(after_all_with(prefix)),
            integer(limited(limit)),
        ]);
        let rows = self.ask(Statement::query(&self.sql.list, params)).await?;
        rows.iter().map(|row| self.summary(row)).collect()
    }

    fn summary(&self, row: &Row) -> Result<ResourceSummary> {
        let table = codec::RESOURCES;
        let name: &str = column(row, 6, table, "?")?;
        let resource = intact(ResourceName::new(name), table, name)?;
        let version: i64 = column(row, 8, table, name)?;
        let fields: i64 = column(row, 9, codec::FIELDS, name)?;
        let now = self.time.saw(column(row, 0, COUNTER, "clock")?);
        let entry = codec::ownership(row, 1, name)?;
        Ok(ResourceSummary {
            version: unsigned(version, "the version", table, name)?,
            fenced: column(row, 7, table, name)?,
            fields: usize::try_from(fields).unwrap_or(usize::MAX),
            lease: rules::status(&resource, &entry, now),
            resource,
        })
    }

    pub(super) async fn events(&self, after: u64, limit: usize) -> Result<EventPage> {
        let params = vec![integer(signed(after)), integer(limited(limit))];
        let rows = self.ask(Statement::query(&self.sql.events, params)).await?;
        let (newest, oldest) = counted(rows.first().ok_or_else(counter_missing)?)?;
        rules::check_history(after, oldest)?;
        let mut events = Vec::with_capacity(rows.len());
        for row in &rows {
            let Some(sequence) = column::<Option<i64>>(row, 2, codec::LOG, "?")? else {
                continue;
            };
            let key = sequence.to_string();
            let at = column(row, 3, codec::LOG, &key)?;
            events.push(codec::event(
                sequence,
                at,
                column(row, 4, codec::LOG, &key)?,
            )?);
        }
        let mut next = after.saturating_add(1);
        for event in &events {
            if event.sequence != next {
                return Err(event_missing(next));
            }
            next += 1;
        }
        if events.len() < limit && next <= newest {
            return Err(event_missing(next));
        }
        Ok(EventPage {
            next_after: events.last().map_or(after, |event| event.sequence),
            events,
            newest,
        })
    }

    pub(super) async fn export(&self, range: &ExportRange) -> Result<ExportPage> {
        let mut params = self.time.params();
        let sql = match range {
            ExportRange::After { after, limit } => {
                params.push(optional_text(after.as_ref().map(ToString::to_string)));
                params.push(integer(limited(*limit)));
                &self.sql.export_after
            }
            ExportRange::Of(names) => {
                params.push(texts(names.iter().map(ResourceName::as_str)));
                &self.sql.export_of
            }
        };
        let rows = self.ask(Statement::query(sql, params)).await?;
        let first = rows.first().ok_or_else(counter_missing)?;
        let as_of = self.time.saw(column(first, 0, COUNTER, "clock")?);
        let mut states = codec::resources(&rows, 6)?;
        let mut entries: BTreeMap<ResourceName, Entry> = BTreeMap::new();
        for row in &rows {
            let Some(name) = column::<Option<&str>>(row, 6, codec::RESOURCES, "?")? else {
                continue;
            };
            let resource = intact(ResourceName::new(name), codec::RESOURCES, name)?;
            // The rows of its other fields say the same.
            let state = states.remove(&resource);
            if let Slot::Vacant(slot) = entries.entry(resource) {
                let mut entry = codec::ownership(row, 1, name)?;
                entry.resource = state;
                slot.insert(entry);
            }
        }
        let entries = entries
            .into_iter()
            .filter(|(_, entry)| *entry != Entry::default())
            .map(|(resource, entry)| Exported { resource, entry })
            .collect();
        Ok(ExportPage { entries, as_of })
    }

    /// Reads everything, from one snapshot.
    pub(super) async fn check(
        &self,
        progress: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<CheckReport> {
        let lent = Lent::from(&self.pool).await?;
        let mut check = Checking {
            store: self,
            lent: &lent,
            progress,
            seen: 0,
            report: CheckReport::default(),
        };
        check
            .send(Statement::Batch(self.sql.begin_snapshot.clone()))
            .await?;
        check.ownership().await?;
        check.resources().await?;
        check.log().await?;
        check.receipts().await?;
        check
            .send(Statement::Batch(self.sql.commit.clone()))
            .await?;
        let report = check.report;
        lent.ended();
        Ok(report)
    }
}

fn event_missing(sequence: u64) -> Error {
    corrupt(codec::LOG, &sequence.to_string(), "the event is missing")
}

/// The newest and the oldest sequence.
fn counted(row: &Row) -> Result<(u64, u64)> {
    let newest: i64 = column(row, 0, COUNTER, "newest")?;
    let oldest: i64 = column(row, 1, COUNTER, "oldest")?;
    Ok((
        unsigned(newest, "it", COUNTER, "newest")?,
        unsigned(oldest, "it", COUNTER, "oldest")?,
    ))
}

/// The first text after all that begin with `prefix`, by their bytes; `None`
/// when there is none.
fn after_all_with(prefix: &str) -> Option<String> {
    let mut before: Vec<char> = prefix.chars().collect();
    while let Some(last) = before.pop() {
        // The range of characters leaves out what is none.
        if let Some(next) = (last..=char::MAX).nth(1) {
            before.push(next);
            return Some(before.into_iter().collect());
        }
    }
    None
}

struct Checking<'a> {
    store: &'a Store,
    lent: &'a Lent,
    progress: &'a (dyn Fn(u64) + Send + Sync),
    seen: u64,
    report: CheckReport,
}

impl Checking<'_> {
    async fn send(&self, statement: Statement) -> Result<Vec<Row>> {
        let answers = self
            .lent
            .send(&[statement], self.store.patience)
            .await
            .map_err(|failed| failed.before_commit(self.lent.waited()))?;
        Ok(answers.into_iter().next().unwrap_or_default())
    }

    fn saw(&mut self, records: usize) {
        self.seen += records as u64;
        (self.progress)(self.seen);
    }

    async fn ownership(&mut self) -> Result<()> {
        let mut after = String::new();
        loop {
            let page = Statement::query(&self.store.sql.check_leases, vec![text(&after)]);
            let rows = self.send(page).await?;
            for row in &rows {
                let name: &str = column(row, 0, codec::LEASES, "?")?;
                intact(ResourceName::new(name), codec::LEASES, name)?;
                let entry = codec::ownership(row, 1, name)?;
                if entry.mark < entry.lease.as_ref().map(|lease| lease.token) {
                    let message = "the mark is below the lease's token";
                    return Err(corrupt(codec::LEASES, name, message));
                }
                self.report.marks += u64::from(entry.mark.is_some());
                self.report.leases += u64::from(entry.lease.is_some());
                name.clone_into(&mut after);
            }
            self.saw(rows.len());
            if rows.is_empty() {
                return Ok(());
            }
        }
    }

    async fn resources(&mut self) -> Result<()> {
        let mut after = String::new();
        loop {
            let page = Statement::query(&self.store.sql.check_resources, vec![text(&after)]);
            let rows = self.send(page).await?;
            let records = codec::resources(&rows, 0)?;
            for (resource, record) in &records {
                for (field, state) in &record.state.fields {
                    let key = format!("{resource}, {field}");
                    let value = Value::parse(state.value.as_str());
                    intact(value, codec::FIELDS, &key)?;
                    if state.version > record.state.version {
                        let message = "the field's version is above its resource's";
                        return Err(corrupt(codec::FIELDS, &key, message));
                    }
                }
                self.report.resources += u64::from(record.exists);
            }
            self.saw(records.len());
            let Some(last) = records.keys().next_back() else {
                break;
            };
            after = last.to_string();
        }
        let orphans = Statement::query(&self.store.sql.check_orphans, Vec::new());
        match self.send(orphans).await?.first() {
            None => Ok(()),
            Some(row) => {
                let resource: &str = column(row, 0, codec::FIELDS, "?")?;
                let field: &str = column(row, 1, codec::FIELDS, resource)?;
                let key = format!("{resource}, {field}");
                Err(corrupt(codec::FIELDS, &key, "its resource does not exist"))
            }
        }
    }

    async fn log(&mut self) -> Result<()> {
        let mut after = None;
        loop {
            let from = after.unwrap_or(0);
            let params = vec![integer(signed(from)), integer(1000)];
            let rows = self
                .send(Statement::query(&self.store.sql.events, params))
                .await?;
            let (newest, oldest) = counted(rows.first().ok_or_else(counter_missing)?)?;
            let mut expected = after.unwrap_or(oldest.saturating_sub(1));
            let mut events = 0;
            for row in &rows {
                let Some(sequence) = column::<Option<i64>>(row, 2, codec::LOG, "?")? else {
                    continue;
                };
                let key = sequence.to_string();
                let at = column(row, 3, codec::LOG, &key)?;
                let event = codec::event(sequence, at, column(row, 4, codec::LOG, &key)?)?;
                expected += 1;
                if event.sequence != expected {
                    return Err(event_missing(expected));
                }
                events += 1;
            }
            self.report.events += events;
            self.saw(usize::try_from(events).unwrap_or(0));
            after = Some(expected);
            if events == 0 {
                if expected == newest {
                    return Ok(());
                }
                return Err(event_missing(expected + 1));
            }
        }
    }

    async fn receipts(&mut self) -> Result<()> {
        let mut after = String::new();
        loop {
            let page = Statement::query(&self.store.sql.check_receipts, vec![text(&after)]);
            let rows = self.send(page).await?;
            for row in &rows {
                codec::receipt(row)?;
                column::<&str>(row, 0, codec::RECEIPTS, "?")?.clone_into(&mut after);
            }
            self.saw(rows.len());
            if rows.is_empty() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_after_every_name_that_begins_with_it() {
        assert_eq!(after_all_with(""), None);
        assert_eq!(after_all_with("ab").as_deref(), Some("ac"));
        assert_eq!(after_all_with("a\u{10FFFF}").as_deref(), Some("b"));
        assert_eq!(after_all_with("\u{10FFFF}\u{10FFFF}"), None);
        assert_eq!(after_all_with("\u{D7FF}").as_deref(), Some("\u{E000}"));
        assert_eq!(after_all_with("\u{7F}").as_deref(), Some("\u{80}"));
    }
}
