//! Verifying everything that a store holds.

use super::scripts::{CHECK, RECEIPTS};
use super::{PAGE, Shared};
use crate::backend::CheckReport;
use crate::error::{Error, Result};

/// How many resources one script reads in whole.
const STATES: usize = 32;

pub(super) async fn check(
    shared: &Shared,
    progress: &(dyn Fn(u64) + Send + Sync),
) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let records =
        |report: &CheckReport| report.resources + report.marks + report.leases + report.events;
    let mut from = "-".to_owned();
    while let Some(last) = check_page(shared, &from, &mut report).await? {
        from = format!("({last}");
        progress(records(&report));
    }
    check_receipts(shared).await?;
    let mut after = 0;
    loop {
        match shared.events_page(after, PAGE).await {
            Ok(page) if page.events.is_empty() => break,
            Ok(page) => {
                after = page.next_after;
                report.events += page.events.len() as u64;
            }
            // Where the history begins; or it was pruned while it was read.
            Err(Error::HistoryPruned { oldest, .. }) => {
                after = oldest.saturating_sub(1);
                report.events = 0;
            }
            Err(error) => return Err(error),
        }
        progress(records(&report));
    }
    progress(records(&report));
    Ok(report)
}

/// Verifies the resources from a name on; the last name, unless it was the
/// end.
async fn check_page(
    shared: &Shared,
    from: &str,
    report: &mut CheckReport,
) -> Result<Option<String>> {
    let mut call = shared.call(&CHECK, &[]);
    call.text(from);
    call.number(&STATES);
    shared.key_starts(&mut call);
    let mut answer = shared.run(&call).await?;
    let mut last = None;
    while !answer.is_empty() {
        let mut parts = answer.nested()?;
        let resource: crate::resource::ResourceName = parts.parse()?;
        let entry = parts.ownership()?;
        report.marks += u64::from(entry.mark.is_some());
        report.leases += u64::from(entry.lease.is_some());
        if let Some(state) = parts.optional_parts()? {
            state.state(&shared.keys.state(resource.as_str()))?;
            report.resources += 1;
        }
        last = Some(resource.into());
    }
    Ok(last)
}

async fn check_receipts(shared: &Shared) -> Result<()> {
    let mut from = "-".to_owned();
    loop {
        let mut call = shared.call(&RECEIPTS, &[]);
        call.text(from.as_str());
        call.number(&PAGE);
        let mut answer = shared.run(&call).await?;
        let mut last = None;
        while !answer.is_empty() {
            last = Some(answer.text()?);
        }
        match last {
            Some(last) => from = format!("({last}"),
            None => return Ok(()),
        }
    }
}
