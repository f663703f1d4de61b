//! Taking the steps, and comparing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use statepact::backend::{
    AcquireRequest, Change, Check, CommitRequest, ExportRange, Exported, ImportHistory,
    ImportRequest, Merge, ResourceWrite, SharedBackend,
};
use statepact::clock::{ManualClock, Timestamp};
use statepact::event::{Event, EventKind};
use statepact::resource::FieldState;
use statepact::rules::{Entry, LeaseRecord, ResourceRecord};
use statepact::{
    AgentName, CommitId, Error, Fence, FieldName, Lease, OwnerName, ResourceName, ResourceState,
    Token, Ttl, Value,
};

use super::steps::{self, Pick, Seen, Step};
use super::stores::Stores;

/// Names that a backend may take for patterns, separators or paths.
const NAMES: [&str; 4] = ["a", "a/%_*[\\]{}", "a/b:c", "zoë 🦀"];
const PREFIXES: [&str; 6] = ["", "a", "a/", "a/%", "%", "z"];

fn resource(number: u8) -> ResourceName {
    ResourceName::new(NAMES[usize::from(number)]).unwrap()
}

fn owner(number: u8) -> OwnerName {
    OwnerName::new(format!("owner-{number}")).unwrap()
}

fn field(number: u8) -> FieldName {
    FieldName::new(["x", "y.z", "ü"][usize::from(number)]).unwrap()
}

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {value:?}")),
    )
}

#[test]
fn r30_every_backend_gives_the_same_answers() {
    let seed = variable("STATEPACT_MODEL_SEED").unwrap_or_else(|| {
        let random = statepact::random::SystemRandom;
        statepact::random::Random::next_u64(&random)
    });
    let sequences = variable("STATEPACT_MODEL_SEQUENCES").unwrap_or(2000);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let stores = std::cell::RefCell::new(runtime.block_on(Stores::start()));
    let mut runner = TestRunner::new(Config {
        cases: u32::try_from(sequences).unwrap(),
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..Config::default()
    });
    let result = runner.run(&steps::sequences(), |steps| {
        let mut stores = stores.borrow_mut();
        runtime.block_on(async {
            let clock = Arc::new(ManualClock::new());
            let backends = stores.fresh(&clock).await;
            compare(&clock, &backends, &steps).await
        })
    });
    if let Err(failed) = result {
        panic!("STATEPACT_MODEL_SEED={seed} replays this: {failed}");
    }
}

/// What a run remembers of what it was granted.
#[derive(Default)]
struct Granted {
    leases: Vec<Lease>,
    commits: Vec<CommitRequest>,
}

async fn compare(
    clock: &Arc<ManualClock>,
    backends: &[(&'static str, SharedBackend)],
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let (_, reference) = &backends[0];
    let mut zero = BTreeMap::new();
    for (name, backend) in backends {
        zero.insert(*name, backend.now().await.unwrap());
    }
    let mut granted = Granted::default();
    for (at, step) in steps.iter().enumerate() {
        if let Step::Advance(millis) = step {
            clock.advance(Duration::from_millis(*millis));
            continue;
        }
        let Some(call) = Call::of(step, reference, &granted).await else {
            continue;
        };
        let mut expected: Option<String> = None;
        for (name, backend) in backends {
            let told = call
                .make(backend, zero[name], &mut granted, expected.is_none())
                .await;
            match &expected {
                None => expected = Some(told),
                Some(expected) if *expected == told => {}
                Some(expected) => {
                    let mut report = String::new();
                    let _ = writeln!(report, "step {at}, {call:?}");
                    let _ = writeln!(report, "{}: {expected}", backends[0].0);
                    let _ = writeln!(report, "{name}: {told}");
                    return Err(TestCaseError::fail(report));
                }
            }
        }
    }
    Ok(())
}

/// A step with its numbers replaced by what they stand for.
#[derive(Debug)]
enum Call {
    Acquire(AcquireRequest),
    Renew(Lease, Ttl),
    Release(Lease),
    Revoke(ResourceName),
    Status(ResourceName),
    Guard(Lease),
    Read(Vec<ResourceName>),
    Commit(CommitRequest),
    List(&'static str, Option<ResourceName>, usize),
    Events(u64, usize),
    Export,
    Import(Box<ImportRequest>),
    Check,
}

impl Call {
    /// `None` when the step stands for nothing yet.
    async fn of(step: &Step, reference: &SharedBackend, granted: &Granted) -> Option<Self> {
        let lease = |number: usize, as_another: bool| {
            let index = number % granted.leases.len().max(1);
            let mut lease = granted.leases.get(index)?.clone();
            if as_another {
                lease.owner = owner(steps::OWNERS);
            }
            Some(lease)
        };
        Some(match step {
            Step::Advance(_) => return None,
            Step::Acquire {
                resources,
                owner: by,
                ttl,
                create,
            } => Self::Acquire(AcquireRequest {
                resources: resources.iter().copied().map(resource).collect(),
                owner: owner(*by),
                ttl: Ttl::from_millis(*ttl).unwrap(),
                create: *create,
            }),
            Step::Renew {
                lease: number,
                ttl,
                as_another,
            } => Self::Renew(
                lease(*number, *as_another)?,
                Ttl::from_millis(*ttl).unwrap(),
            ),
            Step::Release {
                lease: number,
                as_another,
            } => Self::Release(lease(*number, *as_another)?),
            Step::Guard { lease: number } => Self::Guard(lease(*number, false)?),
            Step::Revoke(of) => Self::Revoke(resource(*of)),
            Step::Status(of) => Self::Status(resource(*of)),
            Step::Read(of) => Self::Read(of.iter().copied().map(resource).collect()),
            Step::Commit(commit) => Self::Commit(request(commit, reference).await),
            Step::CommitAgain(number) => {
                let index = number % granted.commits.len().max(1);
                Self::Commit(granted.commits.get(index)?.clone())
            }
            Step::List {
                prefix,
                after,
                limit,
            } => Self::List(PREFIXES[usize::from(*prefix)], after.map(resource), *limit),
            Step::Events { back, limit } => {
                let newest = reference.events(u64::MAX, 0).await.unwrap().newest;
                Self::Events(newest.saturating_sub(*back), *limit)
            }
            Step::Export => Self::Export,
            Step::Import(import) => Self::Import(Box::new(imported(import, reference).await)),
            Step::Check => Self::Check,
        })
    }

    /// Makes the call and tells the outcome, with times counted from `zero`.
    async fn make(
        &self,
        on: &SharedBackend,
        zero: Timestamp,
        granted: &mut Granted,
        remember: bool,
    ) -> String {
        match self {
            Self::Acquire(request) => {
                let answer = on.acquire_all(request).await;
                if let (Ok(leases), true) = (&answer, remember) {
                    granted.leases.extend(leases.iter().cloned());
                }
                told(&answer, zero)
            }
            Self::Renew(lease, ttl) => told(&on.renew(lease, *ttl).await, zero),
            Self::Release(lease) => told(&on.release(lease).await, zero),
            Self::Revoke(of) => told(&on.revoke(of).await, zero),
            Self::Status(of) => told(&on.lease_status(of).await, zero),
            Self::Guard(lease) => told(&on.guard(lease).await, zero),
            Self::Read(of) => told(&on.read(of).await, zero),
            Self::Commit(request) => {
                if remember && request.id.is_some() {
                    granted.commits.push(request.clone());
                }
                told(&on.commit(request).await, zero)
            }
            Self::List(prefix, after, limit) => {
                told(&on.list(prefix, after.as_ref(), *limit).await, zero)
            }
            Self::Events(after, limit) => told(&on.events(*after, *limit).await, zero),
            Self::Export => {
                let mut all = Vec::new();
                let mut after = None;
                loop {
                    let range = ExportRange::After { after, limit: 2 };
                    let page = on.export(&range).await;
                    match page {
                        Ok(page) if page.entries.is_empty() => break,
                        Ok(page) => {
                            after = page.entries.last().map(|last| last.resource.clone());
                            all.push(page);
                        }
                        Err(error) => return told::<()>(&Err(error), zero),
                    }
                }
                told(&Ok(all), zero)
            }
            Self::Import(request) => {
                let mut request = (**request).clone();
                request.as_of = moved(request.as_of, zero);
                for exported in &mut request.entries {
                    if let Some(lease) = &mut exported.entry.lease
                        && lease.expires_at != Timestamp::EPOCH
                    {
                        lease.expires_at = moved(lease.expires_at, zero);
                    }
                }
                told(&on.import(&request).await, zero)
            }
            Self::Check => told(&on.check(&|_| {}).await, zero),
        }
    }
}

async fn request(commit: &steps::Commit, reference: &SharedBackend) -> CommitRequest {
    let mut request = CommitRequest {
        id: commit.id.map(|id| CommitId::from_bits(u128::from(id))),
        agent: AgentName::new("agent").unwrap(),
        fences: Vec::new(),
        checks: Vec::new(),
        writes: Vec::new(),
    };
    for (of, pick, must_be_live) in &commit.fences {
        let of = resource(*of);
        let mark = reference.current_fence(&of).await.unwrap();
        request.fences.push(Fence {
            token: token(*pick, mark),
            resource: of,
            must_be_live: *must_be_live,
        });
    }
    for (of, in_field, seen) in &commit.checks {
        let of = resource(*of);
        let state = reference
            .read(std::slice::from_ref(&of))
            .await
            .unwrap()
            .remove(0);
        let version = |current: Option<u64>| match seen {
            Seen::Current => current,
            Seen::Absent => None,
            Seen::Version(version) => Some(*version),
        };
        request.checks.push(match in_field {
            Some(number) => {
                let name = field(*number);
                let current = state
                    .as_ref()
                    .and_then(|state| state.fields.get(&name))
                    .map(|field| field.version);
                Check::Field {
                    resource: of,
                    field: name,
                    version: version(current),
                }
            }
            None => Check::Resource {
                resource: of,
                version: version(state.map(|state| state.version)),
            },
        });
    }
    for (of, change, fenced) in &commit.writes {
        request.writes.push(ResourceWrite {
            resource: resource(*of),
            change: changed(change),
            fenced: *fenced,
        });
    }
    request
}

/// A time that was counted from the beginning of the sequence.
fn moved(at: Timestamp, zero: Timestamp) -> Timestamp {
    zero.plus(Duration::from_millis(at.as_millis().unsigned_abs()))
}

/// Its time is not moved to that of a store yet.
async fn imported(import: &steps::Import, reference: &SharedBackend) -> ImportRequest {
    let newest = reference.events(u64::MAX, 0).await.unwrap().newest;
    let entry = |foreign: &steps::Foreign| {
        let mark = foreign.mark.map(|mark| Token::new(mark).unwrap());
        let lease = foreign.lease.and_then(|(by, below, left)| {
            Some(LeaseRecord {
                owner: owner(by),
                token: Token::new(mark?.get().checked_sub(below)?.max(1)).unwrap(),
                expires_at: Timestamp::from_millis(i64::try_from(left).unwrap()),
                ttl: Ttl::from_millis(100).unwrap(),
            })
        });
        let resource = foreign.state.map(|(version, exists, fenced, number)| {
            let value = number.filter(|_| exists).map(|number| FieldState {
                value: Value::parse(&number.to_string()).unwrap(),
                version,
            });
            ResourceRecord {
                exists,
                state: ResourceState {
                    version,
                    fenced,
                    fields: value.map(|value| (field(0), value)).into_iter().collect(),
                },
            }
        });
        Entry {
            mark,
            lease,
            resource,
        }
    };
    let event = |sequence| Event {
        sequence,
        at: Timestamp::EPOCH,
        kind: EventKind::Revoked {
            resource: resource(0),
            mark: Token::MIN,
        },
    };
    ImportRequest {
        entries: import
            .entries
            .iter()
            .map(|(of, foreign)| Exported {
                resource: resource(*of),
                entry: entry(foreign),
            })
            .collect(),
        as_of: Timestamp::EPOCH,
        merge: if import.newer {
            Merge::Newer
        } else {
            Merge::Refuse
        },
        history: match import.events {
            None => ImportHistory::Note,
            Some((count, after)) => {
                ImportHistory::Append((newest + after..).take(count.into()).map(event).collect())
            }
        },
    }
}

fn token(pick: Pick, mark: Option<Token>) -> Token {
    let mark = mark.map_or(0, Token::get);
    let number = match pick {
        Pick::Mark(distance) => mark.saturating_add_signed(distance),
        Pick::Above53Bits(above) => (1 << 53) + above,
        Pick::Last(below) => Token::MAX.get() - below,
    };
    Token::new(number.clamp(1, Token::MAX.get())).unwrap()
}

fn changed(change: &steps::Change) -> Change {
    let value = |number: i64| Value::parse(&number.to_string()).unwrap();
    match change {
        steps::Change::Fields(fields) => Change::Fields(
            fields
                .iter()
                .map(|(name, number)| (field(*name), number.map(value)))
                .collect(),
        ),
        steps::Change::Replace(fields) => Change::Replace(
            fields
                .iter()
                .map(|(name, number)| (field(*name), value(*number)))
                .collect(),
        ),
        steps::Change::Delete => Change::Delete,
    }
}

/// An answer as text. Times are the only thing in which two stores may
/// differ: they are told as distances.
fn told<T: std::fmt::Debug>(answer: &Result<T, Error>, zero: Timestamp) -> String {
    let text = format!("{answer:?}");
    let mut told = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find("Timestamp(") {
        let (before, after) = rest.split_at(at + "Timestamp(".len());
        let end = after.find(')').unwrap();
        let millis: i64 = after[..end].parse().unwrap();
        told.push_str(before);
        // The epoch is no time but a mark: released.
        let distance = if millis == 0 {
            0
        } else {
            millis - zero.as_millis()
        };
        let _ = write!(told, "{distance}");
        rest = &after[end..];
    }
    told.push_str(rest);
    told
}
