//! `get`, `set` and `rm`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use statepact::backend::{Change, Check, CommitRequest, ResourceWrite};
use statepact::{Error, Fence, FieldName, ResourceName, Value};

use crate::args::{GetArgs, Global, RmArgs, SetArgs, WriteArgs};
use crate::exit::{Failure, status};
use crate::output::{NAME, Output, json_line};
use crate::store::{IfAbsent, open};

pub(crate) async fn get(global: &Global, args: &GetArgs, output: Output) -> Result<(), Failure> {
    let store = open(global, IfAbsent::Refuse).await?;
    let resource = &args.of.resource;
    let found = store.read(std::slice::from_ref(resource)).await?;
    let Some(state) = found.into_iter().next().flatten() else {
        return Err(Error::ResourceNotFound {
            resource: resource.clone(),
        }
        .into());
    };
    if let Some(name) = &args.field {
        let Some(field) = state.fields.get(name) else {
            return Err(Failure::new(
                status::OTHER,
                "field_not_found",
                format!(
                    "resource `{resource}` has no field `{name}`: `statepact get` without a \
                     field prints those it has"
                ),
            )
            .with("resource", resource.as_str())
            .with("field", name.as_str()));
        };
        let got = GotField {
            resource: resource.as_str(),
            field: name.as_str(),
            value: &raw(&field.value)?,
            version: field.version,
        };
        let text = shown(&got.value, output)?;
        return output.say(&got, || text);
    }
    let mut fields = BTreeMap::new();
    for (name, field) in &state.fields {
        fields.insert(name.as_str(), raw(&field.value)?);
    }
    let text = shown(&fields, output)?;
    let got = Got {
        resource: resource.as_str(),
        version: state.version,
        fenced: state.fenced,
        fields: &fields,
    };
    output.say(&got, || text)
}

/// A resource as `get` prints it.
#[derive(Serialize)]
struct Got<'a> {
    resource: &'a str,
    version: u64,
    fenced: bool,
    fields: &'a BTreeMap<&'a str, Box<RawValue>>,
}

/// A field as `get` prints it.
#[derive(Serialize)]
struct GotField<'a> {
    resource: &'a str,
    field: &'a str,
    value: &'a RawValue,
    version: u64,
}

/// The value's own text: a number may have more digits than a parser's number
/// types hold.
pub(crate) fn raw(value: &Value) -> Result<Box<RawValue>, Failure> {
    RawValue::from_string(value.as_str().to_owned()).map_err(|error| {
        Failure::new(
            status::CORRUPT,
            "corrupt",
            format!("a stored value is not JSON: {error}"),
        )
    })
}

/// On one line for a program, indented for a person.
fn shown(value: &impl Serialize, output: Output) -> Result<String, Failure> {
    if output.is_terminal() {
        serde_json::to_string_pretty(value).map_err(|error| Failure::output(&error.into()))
    } else {
        json_line(value)
    }
}

pub(crate) async fn set(global: &Global, args: &SetArgs, output: Output) -> Result<(), Failure> {
    let mut fields = BTreeMap::new();
    for assignment in &args.fields {
        let value = Some(assignment.value.clone());
        if fields.insert(assignment.field.clone(), value).is_some() {
            return Err(Failure::argument(
                "FIELD=JSON",
                format!(
                    "field `{}` is written twice: write it once",
                    assignment.field
                ),
            ));
        }
    }
    let write = ResourceWrite {
        resource: args.of.resource.clone(),
        change: Change::Fields(fields),
        fenced: args.require_fence,
    };
    // A token comes from a store: one that is missing is not made anew (R29).
    let if_absent = if args.write.fence.is_some() {
        IfAbsent::Refuse
    } else {
        IfAbsent::Create
    };
    let done = commit(global, if_absent, &args.write, write).await?;
    let resource = &args.of.resource;
    let object = json!({
        "resource": resource.as_str(),
        "version": done.version,
        "sequence": done.sequence,
    });
    output.say(&object, || match done.version {
        Some(version) => format!("set: {NAME}{resource}{NAME:#} is at version {version}"),
        None => format!("set: {NAME}{resource}{NAME:#} is as it was"),
    })
}

pub(crate) async fn rm(global: &Global, args: &RmArgs, output: Output) -> Result<(), Failure> {
    let change = if args.fields.is_empty() {
        Change::Delete
    } else {
        Change::Fields(
            args.fields
                .iter()
                .map(|field| (field.clone(), None))
                .collect::<BTreeMap<FieldName, Option<Value>>>(),
        )
    };
    let resource = &args.of.resource;
    let write = ResourceWrite {
        resource: resource.clone(),
        change,
        fenced: None,
    };
    let done = commit(global, IfAbsent::Refuse, &args.write, write).await?;
    let object = json!({
        "resource": resource.as_str(),
        "removed": done.version.is_some(),
        "version": done.version,
        "sequence": done.sequence,
    });
    output.say(&object, || match done.version {
        None => format!("nothing to remove from {NAME}{resource}{NAME:#}"),
        Some(version) if args.fields.is_empty() => {
            format!("removed: {NAME}{resource}{NAME:#}, at version {version}")
        }
        Some(version) => format!("removed: {NAME}{resource}{NAME:#} is at version {version}"),
    })
}

struct Done {
    /// The resource's version, if it changed.
    version: Option<u64>,
    sequence: u64,
}

async fn commit(
    global: &Global,
    if_absent: IfAbsent,
    args: &WriteArgs,
    write: ResourceWrite,
) -> Result<Done, Failure> {
    let resource: ResourceName = write.resource.clone();
    let fences = args.fence.map(|token| Fence {
        resource: args.fence_resource.clone().unwrap_or(resource.clone()),
        token,
        must_be_live: args.fence_live,
    });
    let checks = args.if_version.map(|version| Check::Resource {
        resource: resource.clone(),
        version: (version > 0).then_some(version),
    });
    let request = CommitRequest {
        id: None,
        agent: args.agent.clone(),
        fences: fences.into_iter().collect(),
        checks: checks.into_iter().collect(),
        writes: vec![write],
    };
    request.validate()?;
    let store = open(global, if_absent).await?;
    let receipt = match store.commit(&request).await {
        Err(conflict @ Error::Conflict { .. }) if args.if_version.is_some() => {
            let now = store.read(std::slice::from_ref(&resource)).await?;
            let now = now.into_iter().next().flatten().map(|state| state.version);
            let is = now.map_or_else(
                || "does not exist".to_owned(),
                |version| format!("is at version {version}"),
            );
            let mut failure = Failure::from(conflict).with("version", json!(now));
            if let Some(report) = &mut failure.report {
                report.message = format!("--if-version does not hold: resource `{resource}` {is}");
            }
            return Err(failure);
        }
        answer => answer?,
    };
    Ok(Done {
        version: receipt.versions.first().map(|(_, version)| *version),
        sequence: receipt.sequence,
    })
}
