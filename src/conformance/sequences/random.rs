//! Which call comes next: random, and near enough to what has happened to
//! meet the edges.

use std::collections::BTreeMap;
use std::time::Duration;

use super::model::Model;
use super::{Answer, Call, Told};
use crate::backend::{AcquireRequest, Change, Check, CommitRequest, Fence, ResourceWrite};
use crate::error::{Error, Result};
use crate::lease::{Lease, Token};
use crate::resource::{AgentName, CommitId, FieldName, OwnerName, ResourceName, Ttl, Value};

pub(super) const NAMES: [&str; 4] = ["a", "a%", "b_", "\u{e9}/1"];
const FIELDS: [&str; 3] = ["x", "y", "%"];
const OWNERS: [&str; 3] = ["o", "p", "O"];
const TTLS: [u64; 4] = [1, 400, 1000, 60_000];

pub(super) struct Calls {
    rng: fastrand::Rng,
    names: Vec<ResourceName>,
    leases: Vec<Lease>,
    commits: Vec<CommitRequest>,
    ids: u128,
}

impl Calls {
    pub(super) fn new(seed: u64, names: Vec<ResourceName>) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(seed),
            names,
            leases: Vec::new(),
            commits: Vec::new(),
            ids: 0,
        }
    }

    pub(super) fn coin(&mut self) -> bool {
        self.rng.bool()
    }

    /// One in `n`.
    fn one_in(&mut self, n: u32) -> bool {
        self.rng.u32(0..n) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Result<T> {
        let found = self.rng.choice(from.iter()).cloned();
        found.ok_or_else(|| Error::invalid("suite", "nothing to pick from"))
    }

    fn name(&mut self) -> Result<ResourceName> {
        let names = self.names.clone();
        self.pick(&names)
    }

    fn ttl(&mut self) -> Result<Ttl> {
        Ttl::from_millis(self.pick(&TTLS)?)
    }

    /// A lease that was granted, mostly as it was.
    fn lease(&mut self) -> Result<Lease> {
        let mut lease = match self.rng.choice(self.leases.iter()).cloned() {
            Some(lease) => lease,
            None => Lease {
                resource: self.name()?,
                owner: OwnerName::new("o")?,
                token: Token::MIN,
                expires_at: crate::clock::Timestamp::EPOCH,
                ttl: Ttl::MIN,
            },
        };
        match self.rng.u32(0..12) {
            0 => lease.owner = OwnerName::new(self.pick(&OWNERS)?)?,
            1 => lease.token = self.near(lease.token)?,
            2 => lease.resource = self.name()?,
            _ => {}
        }
        Ok(lease)
    }

    fn near(&mut self, token: Token) -> Result<Token> {
        let token = token.get();
        Token::new(match self.rng.u32(0..20) {
            0 => 9_007_199_254_740_993,
            1 => Token::MAX.get() - 2,
            2..=9 => (token - 1).max(1),
            _ => (token + self.rng.u64(1..3)).min(Token::MAX.get()),
        })
    }

    /// Remembers what later calls can be about.
    pub(super) fn saw(&mut self, call: &Call, answer: &Told) {
        match answer {
            Ok(Answer::Leases(leases)) => self.leases.extend(leases.iter().cloned()),
            Ok(Answer::Renewed(lease)) => self.leases.push(lease.clone()),
            _ => {}
        }
        let old = self.leases.len().saturating_sub(10);
        self.leases.drain(..old);
        if let Call::Commit(request) = call {
            self.commits.push(request.clone());
        }
    }

    pub(super) fn next(&mut self, model: &Model) -> Result<Call> {
        Ok(match self.rng.u32(0..100) {
            0..20 => self.acquire()?,
            20..30 => Call::Renew(self.lease()?, self.ttl()?),
            30..40 => Call::Release(self.lease()?),
            40..45 => Call::Revoke(self.name()?),
            45..50 => Call::Guard(self.lease()?),
            50..53 => Call::Read(vec![self.name()?, self.name()?]),
            53..56 => {
                let prefix = self.pick(&["", "a", "a%", "_", "b"])?.to_owned();
                let after = if self.coin() {
                    Some(self.name()?)
                } else {
                    None
                };
                Call::List(prefix, after, self.rng.usize(0..4))
            }
            56..59 => Call::Events(self.rng.u64(0..40), self.rng.usize(0..20)),
            59..70 => Call::Pass(Duration::from_millis(
                self.pick(&[1, 399, 400, 1000, 30_000])?,
            )),
            70..74 => match self.rng.choice(self.commits.iter()).cloned() {
                Some(again) => Call::Commit(again),
                None => Call::Commit(self.commit(model)?),
            },
            _ => Call::Commit(self.commit(model)?),
        })
    }

    fn acquire(&mut self) -> Result<Call> {
        let count = match self.rng.u32(0..20) {
            0 => 0,
            1..6 => 2,
            6..8 => 3,
            _ => 1,
        };
        let mut resources = Vec::new();
        for _ in 0..count {
            let name = self.name()?;
            // Now and then the same twice, which is refused.
            if !resources.contains(&name) || self.one_in(4) {
                resources.push(name);
            }
        }
        Ok(Call::Acquire(AcquireRequest {
            resources,
            owner: OwnerName::new(self.pick(&OWNERS)?)?,
            ttl: self.ttl()?,
            create: !self.one_in(3),
        }))
    }

    fn commit(&mut self, model: &Model) -> Result<CommitRequest> {
        let id = if self.one_in(3) {
            self.ids += 1;
            // Now and then the id of another commit.
            let id = if self.one_in(6) {
                self.ids.div_ceil(2)
            } else {
                self.ids
            };
            Some(CommitId::from_bits(id))
        } else {
            None
        };
        let mut request = CommitRequest {
            id,
            agent: AgentName::new(self.pick(&["s", "t"])?)?,
            fences: Vec::new(),
            checks: Vec::new(),
            writes: Vec::new(),
        };
        for _ in 0..self.pick(&[0, 0, 1, 1, 1, 2])? {
            let lease = self.lease()?;
            let token = if self.one_in(12) {
                self.near(lease.token)?
            } else {
                lease.token
            };
            let twice = request
                .fences
                .iter()
                .any(|fence| fence.resource == lease.resource);
            if !twice || self.one_in(8) {
                request.fences.push(Fence {
                    resource: lease.resource,
                    token,
                    must_be_live: self.one_in(4),
                });
            }
        }
        for _ in 0..self.pick(&[0, 0, 1, 2])? {
            let check = self.check(model)?;
            request.checks.push(check);
        }
        for _ in 0..self.pick(&[0, 1, 1, 1, 2, 3])? {
            let write = self.write()?;
            let twice = request
                .writes
                .iter()
                .any(|other| other.resource == write.resource);
            if !twice || self.one_in(8) {
                request.writes.push(write);
            }
        }
        Ok(request)
    }

    /// A check that mostly holds.
    fn check(&mut self, model: &Model) -> Result<Check> {
        let resource = self.name()?;
        let field = FieldName::new(self.pick(&FIELDS)?)?;
        let state = model.state(&resource);
        let whole = self.one_in(3);
        let version = if whole {
            state.map(|state| state.version)
        } else {
            state.and_then(|state| Some(state.fields.get(&field)?.version))
        };
        let version = match self.rng.u32(0..10) {
            0 => None,
            1 => Some(version.unwrap_or(0) + 1),
            2 => version.map(|version| version - 1),
            _ => version,
        };
        Ok(if whole {
            Check::Resource { resource, version }
        } else {
            Check::Field {
                resource,
                field,
                version,
            }
        })
    }

    fn write(&mut self) -> Result<ResourceWrite> {
        let mut fields = BTreeMap::new();
        for name in FIELDS {
            if self.one_in(2) {
                let value = Value::encode(&self.rng.u32(0..100))?;
                fields.insert(FieldName::new(name)?, (!self.one_in(4)).then_some(value));
            }
        }
        let change = match self.rng.u32(0..8) {
            0 => Change::Delete,
            1..3 => Change::Replace(
                fields
                    .into_iter()
                    .filter_map(|(name, value)| Some((name, value?)))
                    .collect(),
            ),
            _ => Change::Fields(fields),
        };
        let fenced = match self.rng.u32(0..12) {
            0 => Some(true),
            1..3 => Some(false),
            _ => None,
        };
        Ok(ResourceWrite {
            resource: self.name()?,
            change,
            fenced,
        })
    }
}
