//! A write: one transaction of two round trips. The first takes the locks and
//! reads; [`rules::decide`] decides here; the second writes and commits.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::Row;

use super::codec::{self, COUNTER, column, unsigned};
use super::connection::{Failed, Lent, Statement, booleans, text, texts};
use super::effects::ended;
use super::failure::{corrupt, intact};
use super::store::Store;
use crate::backend::Check;
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::resource::ResourceName;
use crate::rules::{self, Effects, Op, Outcome, Records};

/// What an operation is answered, and the leases that began with it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) result: Result<Outcome>,
    pub(super) fresh: Vec<Lease>,
}

/// How often an operation is begun again on another connection when the pool's
/// had been closed by the server: nothing was sent that could commit.
const STALE_CONNECTIONS: usize = 16;

/// What the first round trip brought.
pub(super) struct Loaded {
    pub(super) records: Records,
    pub(super) oldest: u64,
    pub(super) now: Timestamp,
}

/// The resources that an operation locks, and whether for itself alone.
///
/// Whoever issues a token or writes a resource has it for itself. Whoever only
/// relies on no newer token being issued, or on nothing being written, shares
/// it: a renewal is not held up by a transaction that has checked its fence,
/// nor two commits under one lease by each other.
fn locks(op: &Op, raises_marks: bool) -> BTreeMap<String, bool> {
    let mut locks: BTreeMap<String, bool> = BTreeMap::new();
    let mut lock = |kind: &str, name: &str, exclusive: bool| {
        *locks.entry(format!("{kind}/{name}")).or_default() |= exclusive;
    };
    match op {
        Op::Acquire(request) => {
            for resource in &request.resources {
                lock("r", resource.as_str(), true);
            }
        }
        Op::Renew(lease, _) | Op::Release(lease) => lock("r", lease.resource.as_str(), false),
        Op::Revoke(resource) => lock("r", resource.as_str(), true),
        Op::Import(request) => {
            for exported in &request.entries {
                lock("r", exported.resource.as_str(), true);
            }
        }
        Op::Commit(request) => {
            for fence in &request.fences {
                // A lease that must be live must not be released meanwhile.
                let exclusive = raises_marks || fence.must_be_live;
                lock("r", fence.resource.as_str(), exclusive);
            }
            for check in &request.checks {
                lock("r", check.resource().as_str(), false);
            }
            for write in &request.writes {
                lock("r", write.resource.as_str(), true);
            }
            if let Some(id) = request.id {
                lock("c", &id.to_string(), true);
            }
        }
    }
    locks
}

/// A part of the first round trip, for reading its answer.
enum Part {
    Other,
    Leases,
    Resources,
    Receipt,
    Counter,
}

impl Store {
    /// Runs an operation. It is not done at all when `gone` says, before it
    /// commits, that nobody waits for it any more.
    pub(super) async fn write(&self, op: &Op, gone: impl Fn() -> bool) -> Answer {
        let mut fresh = Vec::new();
        let result = self.try_write(op, gone, &mut fresh).await;
        Answer { result, fresh }
    }

    async fn try_write(
        &self,
        op: &Op,
        gone: impl Fn() -> bool,
        fresh: &mut Vec<Lease>,
    ) -> Result<Outcome> {
        let mut stale = 0;
        let mut raises_marks = false;
        loop {
            let lent = Lent::from(&self.pool).await?;
            let (statements, parts) = self.first_trip(op, raises_marks);
            let rows = match lent.send(&statements, self.patience).await {
                Ok(rows) => rows,
                Err(failed) if failed.is_lost() => {
                    if lent.used_before
                        && stale < STALE_CONNECTIONS
                        && matches!(failed, Failed::Answered(_))
                    {
                        stale += 1;
                        continue;
                    }
                    return Err(failed.before_commit(lent.waited()));
                }
                Err(failed) => {
                    let error = failed.before_commit(lent.waited());
                    self.roll_back(lent).await;
                    return Err(error);
                }
            };
            let decided = self
                .loaded(&parts, &rows)
                .and_then(|loaded| Ok((rules::decide(op, &loaded.records, loaded.now)?, loaded)));
            let ((outcome, effects), loaded) = match decided {
                Ok(decided) => decided,
                Err(error) => {
                    self.roll_back(lent).await;
                    return Err(error);
                }
            };
            if effects.is_empty() {
                self.roll_back(lent).await;
                return Ok(outcome);
            }
            if gone() {
                self.roll_back(lent).await;
                return Err(Error::Unavailable {
                    message: "nobody waits for the answer any more".to_owned(),
                });
            }
            if !raises_marks && matches!(op, Op::Commit(_)) && !effects.marks.is_empty() {
                // R15, which is rare: begin again, with the resource for
                // itself. Upgrading the lock could deadlock.
                self.roll_back(lent).await;
                raises_marks = true;
                continue;
            }
            let outcome = self.second_trip(lent, &loaded, outcome, &effects).await?;
            for resource in ended(&effects) {
                self.waiters.lease_ended(resource);
            }
            if let Outcome::Acquired(leases) = &outcome {
                let new =
                    |lease: &&Lease| effects.marks.iter().any(|(of, _)| *of == lease.resource);
                fresh.extend(leases.iter().filter(new).cloned());
            }
            return Ok(outcome);
        }
    }

    /// Ends a transaction that wrote nothing.
    async fn roll_back(&self, lent: Lent) {
        let rollback = [Statement::Batch(self.sql.rollback.clone())];
        if lent.send(&rollback, self.patience).await.is_ok() {
            lent.ended();
        }
    }

    fn first_trip(&self, op: &Op, raises_marks: bool) -> (Vec<Statement>, Vec<Part>) {
        let sql = &self.sql;
        let (names, exclusive): (Vec<String>, Vec<bool>) =
            locks(op, raises_marks).into_iter().unzip();
        let mut trip = vec![
            (Part::Other, Statement::Batch(sql.begin.clone())),
            (
                Part::Other,
                Statement::query(&sql.lock, vec![texts(names), booleans(exclusive)]),
            ),
        ];
        let all = |resources: &BTreeSet<&ResourceName>| {
            texts(resources.iter().map(|resource| resource.as_str()))
        };
        match op {
            Op::Acquire(_) | Op::Renew(..) | Op::Release(_) | Op::Revoke(_) => {
                let needs = op.needs();
                let involved: BTreeSet<&ResourceName> = needs.keys().collect();
                let leases = Statement::query(&sql.leases_locked, vec![all(&involved)]);
                trip.push((Part::Leases, leases));
                if needs.values().any(|needs| needs.resource) {
                    // Whether they exist matters, and not what they hold.
                    let resources = Statement::query(&sql.resources, vec![all(&involved)]);
                    trip.push((Part::Resources, resources));
                }
            }
            Op::Import(request) => {
                let imported = request.entries.iter().map(|exported| &exported.resource);
                let whole: BTreeSet<&ResourceName> = imported.collect();
                let leases = Statement::query(&sql.leases_locked, vec![all(&whole)]);
                trip.push((Part::Leases, leases));
                let none = || texts::<String>([]);
                let params = vec![all(&whole), all(&whole), none(), none()];
                let resources = Statement::query(&sql.resources_and_fields, params);
                trip.push((Part::Resources, resources));
            }
            Op::Commit(request) => {
                if !request.fences.is_empty() {
                    let fences = request.fences.iter().map(|fence| &fence.resource).collect();
                    trip.push((
                        Part::Leases,
                        Statement::query(&sql.leases, vec![all(&fences)]),
                    ));
                }
                // Written resources are read as a whole, checked ones as far
                // as the check looks.
                let whole: BTreeSet<&ResourceName> =
                    request.writes.iter().map(|write| &write.resource).collect();
                let mut involved = whole.clone();
                involved.extend(request.checks.iter().map(Check::resource));
                if !involved.is_empty() {
                    let (of, fields): (Vec<&str>, Vec<&str>) = request
                        .checks
                        .iter()
                        .filter_map(|check| match check {
                            Check::Field {
                                resource, field, ..
                            } => Some((resource.as_str(), field.as_str())),
                            Check::Resource { .. } => None,
                        })
                        .unzip();
                    let params = vec![all(&involved), all(&whole), texts(of), texts(fields)];
                    trip.push((
                        Part::Resources,
                        Statement::query(&sql.resources_and_fields, params),
                    ));
                }
                if let Some(id) = request.id {
                    trip.push((
                        Part::Receipt,
                        Statement::query(&sql.receipt, vec![text(id.to_string())]),
                    ));
                }
            }
        }
        // Last, so that the time is one at which the locks are held. Copied
        // events go on where the log ends: nobody else may append meanwhile.
        let counter = match op {
            Op::Import(_) => &sql.counter_locked,
            _ => &sql.counter,
        };
        trip.push((Part::Counter, Statement::query(counter, self.time.params())));
        trip.into_iter()
            .map(|(part, statement)| (statement, part))
            .unzip()
    }

    fn loaded(&self, parts: &[Part], answers: &[Vec<Row>]) -> Result<Loaded> {
        let mut records = Records::default();
        let mut counter = None;
        for (part, rows) in parts.iter().zip(answers) {
            match part {
                Part::Other => {}
                Part::Leases => {
                    for row in rows {
                        let name: &str = column(row, 0, codec::LEASES, "?")?;
                        let resource = intact(ResourceName::new(name), codec::LEASES, name)?;
                        let entry = records.entries.entry(resource).or_default();
                        let stored = codec::ownership(row, 1, name)?;
                        (entry.mark, entry.lease) = (stored.mark, stored.lease);
                    }
                }
                Part::Resources => {
                    for (resource, record) in codec::resources(rows, 0)? {
                        records.entries.entry(resource).or_default().resource = Some(record);
                    }
                }
                Part::Receipt => records.receipt = rows.first().map(codec::receipt).transpose()?,
                Part::Counter => counter = rows.first(),
            }
        }
        let counter = counter.ok_or_else(|| corrupt(COUNTER, "one", "its row is missing"))?;
        let newest: i64 = column(counter, 0, COUNTER, "newest")?;
        let oldest: i64 = column(counter, 1, COUNTER, "oldest")?;
        records.newest = unsigned(newest, "it", COUNTER, "newest")?;
        Ok(Loaded {
            records,
            oldest: unsigned(oldest, "it", COUNTER, "oldest")?,
            now: self.time.saw(column(counter, 2, COUNTER, "clock")?),
        })
    }

    /// Writes and commits; the outcome with the sequence that it got.
    async fn second_trip(
        &self,
        lent: Lent,
        loaded: &Loaded,
        outcome: Outcome,
        effects: &Effects,
    ) -> Result<Outcome> {
        let mut trip = Vec::new();
        let built = self.writes(loaded, effects, &mut trip);
        let append_at = match built {
            Ok(append_at) => append_at,
            Err(error) => {
                self.roll_back(lent).await;
                return Err(error);
            }
        };
        trip.push(Statement::Batch(self.sql.commit.clone()));
        match lent.send(&trip, self.patience).await {
            Ok(answers) => {
                lent.ended();
                sequenced(outcome, append_at, &answers)
            }
            Err(failed) => {
                let error = failed.while_committing(lent.waited());
                if !failed.is_lost() {
                    // The `COMMIT` behind what failed has ended it.
                    lent.ended();
                }
                Err(error)
            }
        }
    }
}

/// The outcome with the sequence that its last event got: another transaction
/// may have appended between the two round trips.
fn sequenced(outcome: Outcome, append_at: Option<usize>, answers: &[Vec<Row>]) -> Result<Outcome> {
    let (Outcome::Committed(mut receipt), Some(at)) = (outcome.clone(), append_at) else {
        return Ok(outcome);
    };
    let row = answers
        .get(at)
        .and_then(|rows| rows.first())
        .ok_or_else(|| corrupt(COUNTER, "one", "its row is missing"))?;
    let newest: i64 = column(row, 0, COUNTER, "newest")?;
    receipt.sequence = unsigned(newest, "it", COUNTER, "newest")?;
    Ok(Outcome::Committed(receipt))
}
