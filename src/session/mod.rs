//! Sessions: buffered reads and writes over declared resources, committed as
//! one step.

mod buffer;
mod builder;

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::backend::{Check, CommitReceipt, CommitRequest, Fence};
use crate::error::{Error, Result};
use crate::manager::StateManager;
use crate::resource::{AgentName, CommitId, FieldName, ResourceName, ResourceState, Value};

use buffer::{Buffer, Own};
pub use builder::{BoxedWork, SessionBuilder};

/// What a session is protected from (R21); see `docs/isolation.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Isolation {
    /// Each read sees the newest committed value, and nothing is validated but
    /// the fences.
    ReadCommitted,
    /// All declared resources are read from one snapshot, and the fields that
    /// the session writes must not have changed since.
    Snapshot,
    /// As `Snapshot`, and the fields that the session read, found or absent,
    /// must not have changed either.
    #[default]
    Serializable,
}

/// Reads and writes that become one commit. Dropping it changes nothing (R25).
#[derive(Debug)]
pub struct Session {
    manager: StateManager,
    agent: AgentName,
    isolation: Isolation,
    id: Option<CommitId>,
    fences: Vec<Fence>,
    resources: BTreeMap<ResourceName, Declared>,
}

/// What a session knows of a resource that it declared.
#[derive(Debug, Default)]
struct Declared {
    /// The state when the session began; unused in read-committed sessions.
    snapshot: Option<ResourceState>,
    /// Fields read from the snapshot, which a serializable commit checks.
    read: std::collections::BTreeSet<FieldName>,
    /// The whole resource was read.
    read_whole: bool,
    buffer: Buffer,
}

impl Session {
    fn declared(&mut self, resource: &ResourceName) -> Result<&mut Declared> {
        self.resources
            .get_mut(resource)
            .ok_or_else(|| undeclared(resource))
    }

    /// Reads a field as a `T`; `None` when it is absent. The session sees what
    /// it has written itself.
    ///
    /// # Errors
    /// [`Error::WrongType`] when the value does not fit;
    /// [`Error::InvalidArgument`] when the resource was not declared.
    pub async fn read<T: DeserializeOwned>(
        &mut self,
        resource: impl TryInto<ResourceName, Error: Into<Error>>,
        field: impl TryInto<FieldName, Error: Into<Error>>,
    ) -> Result<Option<T>> {
        let resource = resource.try_into().map_err(Into::into)?;
        let field = field.try_into().map_err(Into::into)?;
        let value = self.value(&resource, &field).await?;
        value
            .map(|value| {
                value.decode().map_err(|error| Error::WrongType {
                    resource,
                    field: field.to_string(),
                    message: error.to_string(),
                })
            })
            .transpose()
    }

    /// Reads a field as it is stored; `None` when it is absent.
    ///
    /// # Errors
    /// As [`Session::read`].
    pub async fn read_value(
        &mut self,
        resource: impl TryInto<ResourceName, Error: Into<Error>>,
        field: impl TryInto<FieldName, Error: Into<Error>>,
    ) -> Result<Option<Value>> {
        let resource = resource.try_into().map_err(Into::into)?;
        let field = field.try_into().map_err(Into::into)?;
        self.value(&resource, &field).await
    }

    async fn value(&mut self, resource: &ResourceName, field: &FieldName) -> Result<Option<Value>> {
        let isolation = self.isolation;
        let declared = self.declared(resource)?;
        match declared.buffer.own(field) {
            Own::Written(value) => return Ok(Some(value.clone())),
            Own::Absent => return Ok(None),
            Own::Untouched => {}
        }
        let state = if isolation == Isolation::ReadCommitted {
            self.newest(resource).await?
        } else {
            declared.read.insert(field.clone());
            declared.snapshot.clone()
        };
        Ok(state.and_then(|state| Some(state.fields.get(field)?.value.clone())))
    }

    async fn newest(&self, resource: &ResourceName) -> Result<Option<ResourceState>> {
        let mut states = self
            .manager
            .backend()
            .read(std::slice::from_ref(resource))
            .await?;
        Ok(states.pop().flatten())
    }

    /// The fields of a resource as this session sees them; `None` when it does
    /// not exist. The session then depends on all its fields (R22).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the resource was not declared.
    pub async fn read_fields(
        &mut self,
        resource: impl TryInto<ResourceName, Error: Into<Error>>,
    ) -> Result<Option<BTreeMap<FieldName, Value>>> {
        let resource = resource.try_into().map_err(Into::into)?;
        let isolation = self.isolation;
        let declared = self.declared(&resource)?;
        let state = if isolation == Isolation::ReadCommitted {
            self.newest(&resource).await?
        } else {
            // What was replaced whole by the session itself depends on nothing.
            declared.read_whole |= !declared.buffer.is_whole();
            declared.snapshot.clone()
        };
        let stored = state.map(|state| {
            let fields = state.fields.into_iter();
            fields.map(|(name, field)| (name, field.value)).collect()
        });
        Ok(self.declared(&resource)?.buffer.over(stored))
    }

    /// Reads the whole state of a resource as a `T`, a structure or a map;
    /// `None` when the resource does not exist.
    ///
    /// # Errors
    /// [`Error::WrongType`] when the fields do not make a `T`.
    pub async fn read_state<T: DeserializeOwned>(
        &mut self,
        resource: impl TryInto<ResourceName, Error: Into<Error>>,
    ) -> Result<Option<T>> {
        let resource = resource.try_into().map_err(Into::into)?;
        let Some(fields) = self.read_fields(&resource).await? else {
            return Ok(None);
        };
        let wrong = |error: serde_json::Error| Error::WrongType {
            resource: resource.clone(),
            field: "*".to_owned(),
            message: error.to_string(),
        };
        let object = fields
            .into_iter()
            .map(|(name, value)| Ok((String::from(name), value.decode()?)))
            .collect::<std::result::Result<serde_json::Map<_, _>, _>>()
            .map_err(wrong)?;
        serde_json::from_value(serde_json::Value::Object(object))
            .map(Some)
            .map_err(wrong)
    }

    /// Writes a field.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the value is no JSON or too large, or
    /// the resource was not declared.
    pub fn write<T: Serialize + ?Sized>(
        &mut self,
        resource: impl TryInto<ResourceName, Error: Into<Error>>,
        field: impl TryInto<FieldName, Error: Into<Error>>,
        value: &T,
    ) -> Result<()> {
        self.write_value(resource, field, Value::encode(value)?)
    }

    /// Writes a field with a value that is JSON already.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the resource was not declared.
    pub fn write_value(
        &mut self,
        resource: impl TryInto<ResourceName, Error: Into<Error>>,
        field: impl TryInto<FieldName, Error: Into<Error>>,
        value: Value,
    ) -> Result<()> {
        let resource = resource.try_into().map_err(Into::into)?;
        let field = field.try_into().map_err(Into::into)?;
        self.declared(&resource)?.buffer.put(field, value);
        Ok(())
    }

    /// Writes the whole state of a resource: fields that `state` does not have
    /// are deleted. In a snapshot or serializable session the resource must
    /// then not have changed at all.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `state` is written as a JSON object
    /// whose keys are legal names of fields.
    pub fn write_state<T: Serialize + ?Sized>(
        &mut self,
        resource: impl TryInto<ResourceName, Error: Into<Error>>,
        state: &T,
    ) -> Result<()> {
        let resource = resource.try_into().map_err(Into::into)?;
        let declared = self.declared(&resource)?;
        let json = serde_json::to_value(state)
            .map_err(|error| Error::invalid("state", format!("not JSON: {error}")))?;
        let serde_json::Value::Object(object) = json else {
            return Err(Error::invalid(
                "state",
                "a whole state is a structure or a map, written as a JSON object",
            ));
        };
        let fields = object
            .into_iter()
            .map(|(name, value)| Ok((FieldName::new(name)?, Value::encode(&value)?)))
            .collect::<Result<_>>()?;
        declared.buffer.replace(fields);
        Ok(())
    }

    /// Deletes a field. Deleting what is absent changes nothing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the resource was not declared.
    pub fn delete(
        &mut self,
        resource: impl TryInto<ResourceName, Error: Into<Error>>,
        field: impl TryInto<FieldName, Error: Into<Error>>,
    ) -> Result<()> {
        let resource = resource.try_into().map_err(Into::into)?;
        let field = field.try_into().map_err(Into::into)?;
        self.declared(&resource)?.buffer.delete(field);
        Ok(())
    }

    /// Deletes a resource. Its mark outlives it: tokens go on growing when it
    /// is created again (R1).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the resource was not declared.
    pub fn delete_resource(
        &mut self,
        resource: impl TryInto<ResourceName, Error: Into<Error>>,
    ) -> Result<()> {
        let resource = resource.try_into().map_err(Into::into)?;
        self.declared(&resource)?.buffer.delete_resource();
        Ok(())
    }

    /// Sets whether writes to a resource must carry a fence from then on
    /// (R17).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the resource was not declared.
    pub fn require_fence(
        &mut self,
        resource: impl TryInto<ResourceName, Error: Into<Error>>,
        required: bool,
    ) -> Result<()> {
        let resource = resource.try_into().map_err(Into::into)?;
        self.declared(&resource)?.buffer.require_fence(required);
        Ok(())
    }

    /// The commit that this session stands for. Keep it, with an id, to send
    /// it again to [`Backend::commit`](crate::Backend::commit) after
    /// [`Error::OutcomeUnknown`] (R26).
    pub fn into_request(self) -> CommitRequest {
        let mut checks = Vec::new();
        let mut writes = Vec::new();
        for (resource, declared) in self.resources {
            if self.isolation != Isolation::ReadCommitted {
                declared.checks(&resource, self.isolation, &mut checks);
            }
            writes.extend(declared.buffer.into_write(resource));
        }
        CommitRequest {
            id: self.id,
            agent: self.agent,
            fences: self.fences,
            checks,
            writes,
        }
    }

    /// Commits.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] when a fence is stale: stop the work (R13, R18).
    /// [`Error::Conflict`] when what it depends on has changed: run it again
    /// (R22). [`Error::FenceRequired`] (R17). [`Error::OutcomeUnknown`] when
    /// it may have happened (R26).
    pub async fn commit(self) -> Result<CommitReceipt> {
        let backend = self.manager.backend().clone();
        backend.commit(&self.into_request()).await
    }
}

impl Declared {
    /// What must not have changed since the snapshot.
    fn checks(&self, resource: &ResourceName, isolation: Isolation, checks: &mut Vec<Check>) {
        let serializable = isolation == Isolation::Serializable;
        if self.buffer.is_whole() || (serializable && self.read_whole) {
            checks.push(Check::Resource {
                resource: resource.clone(),
                version: self.snapshot.as_ref().map(|state| state.version),
            });
            return;
        }
        let mut fields: std::collections::BTreeSet<&FieldName> = self.buffer.fields().collect();
        if serializable {
            fields.extend(&self.read);
        }
        checks.extend(fields.into_iter().map(|field| {
            let stored = self
                .snapshot
                .as_ref()
                .and_then(|state| state.fields.get(field));
            Check::Field {
                resource: resource.clone(),
                field: field.clone(),
                version: stored.map(|field| field.version),
            }
        }));
    }
}

fn undeclared(resource: &ResourceName) -> Error {
    Error::invalid(
        "resource",
        format!(
            "`{resource}` was not declared: name it with `resource` or `resources` before `begin`"
        ),
    )
}

#[cfg(test)]
mod tests;
