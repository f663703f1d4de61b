//! Committing.

use std::collections::BTreeMap;

use super::Shared;
use super::scripts::COMMIT;
use crate::backend::{Change, Check, CommitReceipt, CommitRequest};
use crate::error::Result;
use crate::resource::ResourceName;

pub(super) async fn commit(shared: &Shared, request: &CommitRequest) -> Result<CommitReceipt> {
    request.validate()?;
    let named: Vec<&ResourceName> = (request.fences.iter().map(|fence| &fence.resource))
        .chain(request.checks.iter().map(Check::resource))
        .chain(request.writes.iter().map(|write| &write.resource))
        .collect();
    // The place of each resource among the script's keys, from 1.
    let mut places: BTreeMap<&ResourceName, usize> = BTreeMap::new();
    let mut resources = Vec::new();
    for resource in named {
        places.entry(resource).or_insert_with(|| {
            resources.push(resource);
            resources.len()
        });
    }
    let place = |resource: &ResourceName| places.get(resource).copied().unwrap_or_default();

    let mut call = shared.call(&COMMIT, &resources);
    call.text(request.agent.as_str());
    call.text(request.id.map(|id| id.to_string()).unwrap_or_default());
    call.number(&request.fingerprint());
    call.number(&resources.len());
    for resource in &resources {
        call.text(resource.as_str());
    }
    call.number(&request.fences.len());
    for fence in &request.fences {
        call.number(&place(&fence.resource));
        call.number(&fence.token);
        call.flag(fence.must_be_live);
    }
    call.number(&request.checks.len());
    for check in &request.checks {
        let (field, version) = match check {
            Check::Field { field, version, .. } => (field.as_str(), version),
            Check::Resource { version, .. } => ("", version),
        };
        call.number(&place(check.resource()));
        call.text(field);
        call.text(
            version
                .map(|version| version.to_string())
                .unwrap_or_default(),
        );
    }
    call.number(&request.writes.len());
    for write in &request.writes {
        call.number(&place(&write.resource));
        match write.fenced {
            None => call.text(""),
            Some(fenced) => call.flag(fenced),
        }
        match &write.change {
            Change::Fields(fields) => {
                call.text("fields");
                call.number(&fields.len());
                for (field, value) in fields {
                    call.text(field.as_str());
                    call.flag(value.is_some());
                    if let Some(value) = value {
                        call.text(value.as_str());
                    }
                }
            }
            Change::Replace(fields) => {
                call.text("replace");
                call.number(&fields.len());
                for (field, value) in fields {
                    call.text(field.as_str());
                    call.flag(true);
                    call.text(value.as_str());
                }
            }
            Change::Delete => {
                call.text("delete");
                call.number(&0);
            }
        }
    }
    let mut answer = shared.run(&call).await?;
    let sequence = answer.number()?;
    let mut versions = Vec::new();
    while !answer.is_empty() {
        versions.push((answer.parse()?, answer.number()?));
    }
    Ok(CommitReceipt { sequence, versions })
}
