//! Tables of the caller's own beside the store's, in the same transactions.

use std::fmt;

use redb::{
    Key, MultimapTable, MultimapTableDefinition, ReadOnlyMultimapTable, ReadOnlyTable, Table,
    TableDefinition, TableHandle, Value,
};

use super::failure::own_table_error;
use super::tables::OWN_PREFIX;
use crate::error::{Error, Result};

fn check_name(name: &str) -> Result<()> {
    if name.starts_with(OWN_PREFIX) {
        return Err(Error::invalid(
            "table",
            format!("`{name}`: names that begin with `{OWN_PREFIX}` are the store's own"),
        ));
    }
    Ok(())
}

/// A write transaction over the caller's own tables, in which the fences have
/// been checked. Committed when the closure that has it returns `Ok`.
pub struct Transaction<'txn> {
    inner: &'txn redb::WriteTransaction,
}

impl fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").finish_non_exhaustive()
    }
}

impl<'txn> Transaction<'txn> {
    pub(super) fn new(inner: &'txn redb::WriteTransaction) -> Self {
        Self { inner }
    }

    /// Opens a table, making it if it is missing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a name that is the store's own, or a table that
    /// has other types, or is open already.
    pub fn open_table<K: Key + 'static, V: Value + 'static>(
        &self,
        definition: TableDefinition<'_, K, V>,
    ) -> Result<Table<'txn, K, V>> {
        check_name(definition.name())?;
        self.inner.open_table(definition).map_err(own_table_error)
    }

    /// Opens a table with several values a key, making it if it is missing.
    ///
    /// # Errors
    /// As [`Transaction::open_table`].
    pub fn open_multimap_table<K: Key + 'static, V: Key + 'static>(
        &self,
        definition: MultimapTableDefinition<'_, K, V>,
    ) -> Result<MultimapTable<'txn, K, V>> {
        check_name(redb::MultimapTableHandle::name(&definition))?;
        self.inner
            .open_multimap_table(definition)
            .map_err(own_table_error)
    }
}

/// A snapshot of the caller's own tables.
pub struct ReadTransaction<'txn> {
    inner: &'txn redb::ReadTransaction,
}

impl fmt::Debug for ReadTransaction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadTransaction").finish_non_exhaustive()
    }
}

impl<'txn> ReadTransaction<'txn> {
    pub(super) fn new(inner: &'txn redb::ReadTransaction) -> Self {
        Self { inner }
    }

    /// Opens a table; `None` if it was never made.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a name that is the store's own, or a table that
    /// has other types, or is open already.
    pub fn open_table<K: Key + 'static, V: Value + 'static>(
        &self,
        definition: TableDefinition<'_, K, V>,
    ) -> Result<Option<ReadOnlyTable<K, V>>> {
        check_name(definition.name())?;
        match self.inner.open_table(definition) {
            Ok(table) => Ok(Some(table)),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(own_table_error(error)),
        }
    }

    /// Opens a table with several values a key; `None` if it was never made.
    ///
    /// # Errors
    /// As [`ReadTransaction::open_table`].
    pub fn open_multimap_table<K: Key + 'static, V: Key + 'static>(
        &self,
        definition: MultimapTableDefinition<'_, K, V>,
    ) -> Result<Option<ReadOnlyMultimapTable<K, V>>> {
        check_name(redb::MultimapTableHandle::name(&definition))?;
        match self.inner.open_multimap_table(definition) {
            Ok(table) => Ok(Some(table)),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(own_table_error(error)),
        }
    }
}
