//! What a session has written to one resource, collapsed into one write.

use std::collections::BTreeMap;

use crate::backend::{Change, ResourceWrite};
use crate::resource::{FieldName, ResourceName, Value};

/// The writes to one resource so far.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    base: Base,
    /// Fields written (`Some`) or deleted over the base.
    fields: BTreeMap<FieldName, Option<Value>>,
    fenced: Option<bool>,
}

/// What the written fields lie over.
#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
enum Base {
    /// What is stored.
    #[default]
    Stored,
    /// Nothing: the state was written whole.
    Replaced,
    /// Nothing: the resource was deleted.
    Deleted,
}

/// What a session has made of a field.
#[derive(Debug)]
pub(super) enum Own<'a> {
    /// Written.
    Written(&'a Value),
    /// Deleted, alone or with the state that it was in.
    Absent,
    /// Nothing: it is what is stored.
    Untouched,
}

impl Buffer {
    pub(super) fn put(&mut self, field: FieldName, value: Value) {
        if self.base == Base::Deleted {
            self.base = Base::Replaced;
        }
        self.fields.insert(field, Some(value));
    }

    pub(super) fn delete(&mut self, field: FieldName) {
        if self.is_whole() {
            self.fields.remove(&field);
        } else {
            self.fields.insert(field, None);
        }
    }

    pub(super) fn replace(&mut self, fields: BTreeMap<FieldName, Value>) {
        self.base = Base::Replaced;
        self.fields = fields
            .into_iter()
            .map(|(name, value)| (name, Some(value)))
            .collect();
    }

    pub(super) fn delete_resource(&mut self) {
        self.base = Base::Deleted;
        self.fields.clear();
    }

    pub(super) fn require_fence(&mut self, required: bool) {
        self.fenced = Some(required);
    }

    /// Whether what is stored no longer matters.
    pub(super) fn is_whole(&self) -> bool {
        self.base != Base::Stored
    }

    /// The fields written or deleted.
    pub(super) fn fields(&self) -> impl Iterator<Item = &FieldName> {
        self.fields.keys()
    }

    /// What the session itself has made of a field.
    pub(super) fn own(&self, field: &FieldName) -> Own<'_> {
        match self.fields.get(field) {
            Some(Some(value)) => Own::Written(value),
            Some(None) => Own::Absent,
            None if self.is_whole() => Own::Absent,
            None => Own::Untouched,
        }
    }

    /// The state as the session sees it.
    pub(super) fn over(
        &self,
        stored: Option<BTreeMap<FieldName, Value>>,
    ) -> Option<BTreeMap<FieldName, Value>> {
        let mut fields = match self.base {
            Base::Stored => stored,
            Base::Replaced => Some(BTreeMap::new()),
            Base::Deleted => return None,
        };
        for (name, value) in &self.fields {
            match value {
                Some(value) => {
                    fields
                        .get_or_insert_default()
                        .insert(name.clone(), value.clone());
                }
                None => {
                    if let Some(fields) = &mut fields {
                        fields.remove(name);
                    }
                }
            }
        }
        fields
    }

    /// The write to commit; `None` when there is nothing to write.
    pub(super) fn into_write(self, resource: ResourceName) -> Option<ResourceWrite> {
        let change = match self.base {
            Base::Deleted => Change::Delete,
            Base::Replaced => Change::Replace(
                self.fields
                    .into_iter()
                    .filter_map(|(name, value)| Some((name, value?)))
                    .collect(),
            ),
            Base::Stored if self.fields.is_empty() && self.fenced.is_none() => return None,
            Base::Stored => Change::Fields(self.fields),
        };
        Some(ResourceWrite {
            resource,
            change,
            fenced: self.fenced,
        })
    }
}
