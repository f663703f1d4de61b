//! Exporting and importing.

use std::collections::BTreeMap;

use super::Shared;
use super::event::StoredEvent;
use super::reply::Parts;
use super::scripts::{Call, EXPORT, IMPORT};
use crate::backend::memory::unexpected;
use crate::backend::{ExportPage, ExportRange, Exported, ImportReport, ImportRequest};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::resource::ResourceName;
use crate::rules::{self, Effects, Entry, LeaseRecord, Op, Outcome, Records};

/// How often an import is decided again because something changed meanwhile.
const ATTEMPTS: u32 = 100;

impl Shared {
    pub(super) async fn export(&self, range: &ExportRange) -> Result<ExportPage> {
        let (page, _) = self.export_at(range).await?;
        Ok(page)
    }

    /// A page, and the newest sequence of the snapshot that it is from.
    async fn export_at(&self, range: &ExportRange) -> Result<(ExportPage, u64)> {
        let mut call = self.call(&EXPORT, &[]);
        self.key_starts(&mut call);
        match range {
            ExportRange::After { after, limit } => {
                call.text("");
                match after {
                    None => call.text("-"),
                    Some(after) => call.text(format!("({after}")),
                }
                call.number(limit);
            }
            ExportRange::Of(names) => {
                call.number(&names.len());
                for name in names {
                    call.text(name.as_str());
                }
            }
        }
        let mut answer = self.run(&call).await?;
        let as_of = answer.timestamp()?;
        let newest = answer.number()?;
        let mut entries = Vec::new();
        while !answer.is_empty() {
            let exported = self.exported(answer.nested()?)?;
            if exported.entry != Entry::default() {
                entries.push(exported);
            }
        }
        Ok((ExportPage { entries, as_of }, newest))
    }

    fn exported(&self, mut parts: Parts) -> Result<Exported> {
        let resource: ResourceName = parts.parse()?;
        let ownership = parts.ownership()?;
        let key = self.keys.state(resource.as_str());
        let record = parts.optional_parts()?.map(|state| state.record(&key));
        Ok(Exported {
            entry: Entry {
                resource: record.transpose()?,
                ..ownership
            },
            resource,
        })
    }

    /// Decides from an export, and writes if all is still as it was.
    pub(super) async fn import(&self, request: &ImportRequest) -> Result<ImportReport> {
        request.validate()?;
        let names: Vec<ResourceName> = (request.entries.iter())
            .map(|exported| exported.resource.clone())
            .collect();
        let op = Op::Import(request.clone());
        for _ in 0..ATTEMPTS {
            let (page, newest) = self.export_at(&ExportRange::Of(names.clone())).await?;
            let records = Records {
                entries: (page.entries.into_iter())
                    .map(|exported| (exported.resource, exported.entry))
                    .collect(),
                newest,
                receipt: None,
            };
            let (outcome, effects) = rules::decide(&op, &records, page.as_of)?;
            let Outcome::Imported(report) = outcome else {
                return Err(unexpected(&outcome));
            };
            if effects.is_empty() {
                return Ok(report);
            }
            let call = self.import_call(&names, &records, effects, page.as_of)?;
            if self.run(&call).await?.flag()? {
                return Ok(report);
            }
        }
        Err(Error::Busy {
            what: "others to let the resources be imported alone",
            waited: std::time::Duration::ZERO,
        })
    }

    fn import_call<'a>(
        &self,
        names: &'a [ResourceName],
        records: &Records,
        effects: Effects,
        at: Timestamp,
    ) -> Result<Call<'a>> {
        let all: Vec<&ResourceName> = names.iter().collect();
        let mut call = self.call(&IMPORT, &all);
        call.number(&records.newest);
        let marks: BTreeMap<_, _> = effects.marks.into_iter().collect();
        let leases: BTreeMap<_, _> = effects.leases.into_iter().collect();
        let resources: BTreeMap<_, _> = effects.resources.into_iter().collect();
        call.number(&names.len());
        for name in names {
            let here = records.entries.get(name);
            call.text(name.as_str());
            call.text(text(here.and_then(|here| here.mark)));
            let version = here.and_then(|here| here.resource.as_ref());
            call.text(text(version.map(|record| record.state.version)));
            lease(&mut call, here.and_then(|here| here.lease.as_ref()));
            call.text(text(marks.get(name)));
            lease(&mut call, leases.get(name));
            let record = resources.get(name);
            call.flag(record.is_some());
            if let Some(record) = record {
                let state = &record.state;
                let bytes: usize = (state.fields.iter())
                    .map(|(name, field)| name.as_str().len() + field.value.as_str().len())
                    .sum();
                call.number(&state.version);
                call.flag(record.exists);
                call.flag(state.fenced);
                call.number(&bytes);
                call.number(&state.fields.len());
                for (name, field) in &state.fields {
                    call.text(format!("f:{name}"));
                    call.text(field.value.as_str().to_owned());
                    call.text(format!("v:{name}"));
                    call.number(&field.version);
                }
            }
        }
        call.number(&effects.events.len());
        for kind in effects.events {
            // Its time and sequence are set by the script.
            let event = Event {
                sequence: 0,
                at,
                kind,
            };
            call.text(json(&event)?);
        }
        call.number(&effects.copied.len());
        for event in &effects.copied {
            call.number(&event.sequence);
            call.text(json(event)?);
        }
        Ok(call)
    }
}

fn text(number: Option<impl ToString>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

fn lease(call: &mut Call<'_>, lease: Option<&LeaseRecord>) {
    call.flag(lease.is_some());
    if let Some(lease) = lease {
        call.text(lease.owner.as_str().to_owned());
        call.number(&lease.token);
        call.number(&lease.expires_at.as_millis());
        call.number(&lease.ttl.as_millis());
    }
}

fn json(event: &Event) -> Result<String> {
    serde_json::to_string(&StoredEvent::of(event)).map_err(|error| Error::Storage {
        message: format!("an event does not encode: {error}"),
    })
}
