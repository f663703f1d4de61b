//! Every call of a backend, and what it must answer and do: the rules say.

use std::collections::BTreeMap;

use statepact::backend::{
    Backend, Change, Check, CheckReport, ExportPage, ExportRange, Exported, Fence, ImportHistory,
    ImportRequest, LeaseStatus, Merge, ResourceSummary, ResourceWrite,
};
use statepact::clock::Timestamp;
use statepact::event::{EventKind, EventPage};
use statepact::rules::{self, Effects, Entry, Op, Outcome, Records, ResourceRecord};
use statepact::{Error, Lease, ResourceName, ResourceState, Result, Token, Ttl};

use crate::support::{acquire, commit, hour, res, write};

#[derive(Debug, Clone)]
pub(crate) enum Call {
    Write(Op),
    Now,
    Read(Vec<ResourceName>),
    List(String),
    Events(u64),
    Status(ResourceName),
    Export(ExportRange),
    Check,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Answer {
    Outcome(Outcome),
    Now(Timestamp),
    States(Vec<Option<ResourceState>>),
    List(Vec<ResourceSummary>),
    Events(EventPage),
    Status(LeaseStatus),
    Export(ExportPage),
    Check(CheckReport),
}

impl Call {
    pub(crate) async fn send(&self, to: &dyn Backend) -> Result<Answer> {
        Ok(match self {
            Self::Write(op) => Answer::Outcome(match op {
                Op::Acquire(request) => Outcome::Acquired(to.acquire_all(request).await?),
                Op::Renew(lease, ttl) => Outcome::Renewed(to.renew(lease, *ttl).await?),
                Op::Release(lease) => Outcome::Released(to.release(lease).await?),
                Op::Revoke(resource) => Outcome::Revoked(to.revoke(resource).await?),
                Op::Commit(request) => Outcome::Committed(to.commit(request).await?),
                Op::Import(request) => Outcome::Imported(to.import(request).await?),
            }),
            Self::Now => Answer::Now(to.now().await?),
            Self::Read(resources) => Answer::States(to.read(resources).await?),
            Self::List(prefix) => Answer::List(to.list(prefix, None, 100).await?),
            Self::Events(after) => Answer::Events(to.events(*after, 100).await?),
            Self::Status(resource) => Answer::Status(to.lease_status(resource).await?),
            Self::Export(range) => Answer::Export(to.export(range).await?),
            Self::Check => Answer::Check(to.check(&|_| {}).await?),
        })
    }

    pub(crate) fn op(&self) -> Option<&Op> {
        match self {
            Self::Write(op) => Some(op),
            _ => None,
        }
    }
}

/// What a store holds of a scene, and the events since a moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Held {
    pub(crate) entries: BTreeMap<ResourceName, Entry>,
    pub(crate) events: Vec<EventKind>,
}

/// Resources of its own for a call, in a known state.
#[derive(Debug, Clone)]
pub(crate) struct Scene {
    number: u64,
    pub(crate) prefix: String,
    /// Written twice.
    a: ResourceName,
    /// Written once.
    b: ResourceName,
    /// It is not there.
    absent: ResourceName,
    held: Lease,
    /// The newest event.
    pub(crate) newest: u64,
}

impl Scene {
    pub(crate) async fn set_up(store: &dyn Backend, number: u64) -> Self {
        let prefix = format!("{number}/");
        let named = |name: &str| res(&format!("{prefix}{name}"));
        let (a, b, held) = (named("a"), named("b"), named("held"));
        let both = vec![
            write(&a, [("x", Some(1)), ("y", Some(1))]),
            write(&b, [("x", Some(1))]),
        ];
        store.commit(&commit(None, both)).await.unwrap();
        let again = vec![write(&a, [("x", Some(2))])];
        store.commit(&commit(None, again)).await.unwrap();
        let asked = acquire(&[&held], "holder", true);
        let leases = store.acquire_all(&asked).await.unwrap();
        Self {
            number,
            a,
            b,
            absent: named("absent"),
            held: leases[0].clone(),
            newest: store.events(0, 1).await.unwrap().newest,
            prefix,
        }
    }

    pub(crate) fn resources(&self) -> Vec<ResourceName> {
        let copied = self.imported().entries;
        let own = [&self.a, &self.b, &self.absent, &self.held.resource];
        let copied = copied.iter().map(|exported| &exported.resource);
        own.into_iter().chain(copied).cloned().collect()
    }

    pub(crate) async fn look(&self, store: &dyn Backend) -> Held {
        let range = ExportRange::Of(self.resources());
        let page = store.export(&range).await.unwrap();
        let since = store.events(self.newest, 1000).await.unwrap();
        Held {
            entries: (page.entries.into_iter())
                .map(|exported| (exported.resource, exported.entry))
                .collect(),
            events: (since.events.into_iter()).map(|event| event.kind).collect(),
        }
    }

    fn imported(&self) -> ImportRequest {
        let record = |version: u64| ResourceRecord {
            exists: true,
            state: ResourceState {
                version,
                fenced: true,
                fields: BTreeMap::new(),
            },
        };
        let exported = |name: &str, mark: u64| Exported {
            resource: res(&format!("{}{name}", self.prefix)),
            entry: Entry {
                mark: Some(Token::new(mark).unwrap()),
                lease: None,
                resource: Some(record(mark)),
            },
        };
        ImportRequest {
            entries: vec![exported("i", 7), exported("j", 8)],
            as_of: Timestamp::from_millis(1),
            merge: Merge::Newer,
            history: ImportHistory::Note,
        }
    }

    fn id(&self) -> u128 {
        u128::from(self.number)
    }

    /// A commit of everything that one can have.
    fn large_commit(&self) -> Op {
        let mut request = commit(
            Some(self.id()),
            vec![
                write(&self.a, [("x", Some(3)), ("y", None), ("z", Some(1))]),
                ResourceWrite {
                    resource: self.b.clone(),
                    change: Change::Delete,
                    fenced: None,
                },
                ResourceWrite {
                    fenced: Some(true),
                    ..write(&self.absent, [("x", Some(1))])
                },
            ],
        );
        request.checks = vec![Check::Resource {
            resource: self.a.clone(),
            version: Some(2),
        }];
        request.fences = vec![Fence {
            must_be_live: true,
            ..self.held.fence()
        }];
        Op::Commit(request)
    }

    /// R15: a commit whose fence is above the mark raises it.
    fn raising_commit(&self) -> Op {
        let mut request = commit(Some(self.id()), vec![write(&self.a, [("x", Some(3))])]);
        for (resource, token) in [(&self.a, 1), (&self.held.resource, 9)] {
            request.fences.push(Fence {
                resource: resource.clone(),
                token: Token::new(token).unwrap(),
                must_be_live: false,
            });
        }
        Op::Commit(request)
    }

    fn stale_commit(&self) -> Op {
        let mut request = commit(Some(self.id()), vec![write(&self.a, [("x", Some(3))])]);
        request.checks = vec![Check::Resource {
            resource: self.a.clone(),
            version: Some(1),
        }];
        Op::Commit(request)
    }

    /// The calls, each with a name. Each is for a scene of its own.
    pub(crate) fn calls(&self) -> Vec<(&'static str, Call)> {
        let (a, b, held) = (&self.a, &self.b, &self.held);
        let two_hours = Ttl::from_millis(2 * hour().as_millis()).unwrap();
        let longer = rules_acquire(&held.resource, two_hours);
        let plain = |id| Op::Commit(commit(id, vec![write(a, [("x", Some(3))])]));
        let writes = [
            ("acquire", Op::Acquire(acquire(&[a], "me", false))),
            (
                "acquire several",
                Op::Acquire(acquire(&[b, &self.absent, a], "me", true)),
            ),
            ("acquire again", longer),
            (
                "acquire what is held",
                Op::Acquire(acquire(&[a, &held.resource], "me", false)),
            ),
            ("renew", Op::Renew(held.clone(), two_hours)),
            ("release", Op::Release(held.clone())),
            ("revoke", Op::Revoke(held.resource.clone())),
            ("commit", plain(None)),
            ("commit with an id", plain(Some(self.id()))),
            ("large commit", self.large_commit()),
            ("commit that raises marks", self.raising_commit()),
            ("commit that conflicts", self.stale_commit()),
            ("import", Op::Import(self.imported())),
        ];
        // First, while there is not much to look at.
        let check = ("check", Call::Check);
        let reads = [
            ("now", Call::Now),
            ("read", Call::Read(vec![a.clone(), b.clone()])),
            ("list", Call::List(self.prefix.clone())),
            ("events", Call::Events(self.newest.saturating_sub(3))),
            ("status", Call::Status(held.resource.clone())),
            ("export", Call::Export(ExportRange::Of(self.resources()))),
        ];
        let writes = writes.map(|(name, op)| (name, Call::Write(op)));
        let all = std::iter::once(check).chain(writes);
        all.chain(reads).collect()
    }
}

fn rules_acquire(resource: &ResourceName, ttl: Ttl) -> Op {
    let mut request = acquire(&[resource], "holder", false);
    request.ttl = ttl;
    Op::Acquire(request)
}

/// What the rules say that a write answers, and what the store holds after it.
pub(crate) fn decided(
    op: &Op,
    before: &Held,
    newest: u64,
    now: Timestamp,
) -> (Result<Answer, Error>, Held) {
    let records = Records {
        entries: before.entries.clone(),
        receipt: None,
        newest,
    };
    match rules::decide(op, &records, now) {
        Ok((outcome, effects)) => (Ok(Answer::Outcome(outcome)), applied(before, effects)),
        Err(refused) => (Err(refused), before.clone()),
    }
}

fn applied(before: &Held, effects: Effects) -> Held {
    let mut held = before.clone();
    for (resource, mark) in effects.marks {
        held.entries.entry(resource).or_default().mark = Some(mark);
    }
    for (resource, lease) in effects.leases {
        held.entries.entry(resource).or_default().lease = Some(lease);
    }
    for (resource, record) in effects.resources {
        held.entries.entry(resource).or_default().resource = Some(record);
    }
    held.events.extend(effects.events);
    held
}
