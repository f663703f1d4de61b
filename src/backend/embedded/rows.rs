//! Reading and writing single rows, with their checksums, and proving that a
//! row is absent (R29).

use std::cmp::Ordering;
use std::ops::Bound;

use redb::{AccessGuard, ReadableTable, Table, TableHandle};

use super::codec::{self, Place, Stored};
use super::failure::storage_error;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::resource::ResourceName;

/// The key of the row that each table begins with, in `log` it is 0: it says
/// nothing, but with it no search can find a sound table to be empty.
pub(super) const START: &str = "";

pub(super) fn place<'a>(table: &impl TableHandle, key: &'a [u8]) -> Place<'a> {
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

/// Reads a row. One that is not found has to be proven absent: redb does not
/// verify the pages that a search passes through, so a damaged key could hide a
/// row, and a hidden mark would have its tokens issued again (R1, R29).
pub(super) fn row<'k, K: redb::Key + 'static, T: Stored>(
    table: &(impl ReadableTable<K, &'static [u8]> + TableHandle),
    key: &'k K::SelfType<'k>,
) -> Result<Option<T>> {
    let bytes = K::as_bytes(key);
    let bytes = bytes.as_ref();
    if let Some(value) = table.get(key).map_err(storage_error)? {
        return codec::decode(place(table, bytes), value.value()).map(Some);
    }
    let hidden = || Error::Corrupt {
        location: format!("table `{}`", place(table, &[]).table),
        message: "its rows are out of order, so that one may be hidden".to_owned(),
    };
    let order =
        |neighbour: (AccessGuard<'_, K>, AccessGuard<'_, &'static [u8]>)| -> Result<Ordering> {
            let (found, value) = neighbour;
            let found = found.value();
            let found = K::as_bytes(&found);
            codec::verify(place(table, found.as_ref()), value.value())?;
            Ok(K::compare(found.as_ref(), bytes))
        };
    let before = table
        .range::<&K::SelfType<'k>>((Bound::Unbounded, Bound::Excluded(key)))
        .map_err(storage_error)?
        .next_back()
        .transpose()
        .map_err(storage_error)?;
    let after = table
        .range::<&K::SelfType<'k>>((Bound::Excluded(key), Bound::Unbounded))
        .map_err(storage_error)?
        .next()
        .transpose()
        .map_err(storage_error)?;
    // Before any row there is at least the one that the table begins with.
    if order(before.ok_or_else(hidden)?)?.is_ge() {
        return Err(hidden());
    }
    match after.map(order).transpose()? {
        Some(Ordering::Less | Ordering::Equal) => Err(hidden()),
        _ => Ok(None),
    }
}

pub(super) fn named<T: Stored>(
    table: &(impl ReadableTable<&'static str, &'static [u8]> + TableHandle),
    name: &str,
) -> Result<Option<T>> {
    row::<&str, T>(table, &name)
}

pub(super) fn put<T: Stored>(
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

/// The sequence of the newest event; that of the row that the log begins with
/// is 0.
pub(super) fn newest(log: &(impl ReadableTable<u64, &'static [u8]> + TableHandle)) -> Result<u64> {
    let last = log.last().map_err(storage_error)?;
    let (sequence, value) = last.ok_or_else(|| Error::Corrupt {
        location: "table `log`".to_owned(),
        message: "it is empty".to_owned(),
    })?;
    let sequence = sequence.value();
    // The next event goes after it.
    codec::verify(place(log, &sequence.to_be_bytes()), value.value())?;
    Ok(sequence)
}

/// The sequence of the oldest event kept, or of the next one to come.
pub(super) fn oldest(
    log: &(impl ReadableTable<u64, &'static [u8]> + TableHandle),
    newest: u64,
) -> Result<u64> {
    let first = log.range::<u64>(1..).map_err(storage_error)?.next();
    match first.transpose().map_err(storage_error)? {
        Some((sequence, value)) => {
            let sequence = sequence.value();
            codec::verify(place(log, &sequence.to_be_bytes()), value.value())?;
            Ok(sequence)
        }
        None => Ok(newest + 1),
    }
}

pub(super) fn missing_event(sequence: u64) -> Error {
    Error::Corrupt {
        location: format!("table `log`, key {sequence}"),
        message: "the event is missing".to_owned(),
    }
}

pub(super) fn event(table: &impl TableHandle, sequence: u64, bytes: &[u8]) -> Result<Event> {
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

pub(super) fn stored_name(table: &impl TableHandle, name: &str) -> Result<ResourceName> {
    ResourceName::new(name).map_err(|error| Error::Corrupt {
        location: format!("table `{}`", place(table, &[]).table),
        message: format!("a key is not a name: {error}"),
    })
}
