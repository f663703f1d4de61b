//! What a case works with: a store, its clock, and short ways to say what
//! to ask of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::check::{Verdict, expect, expect_eq, expect_one, expect_some, skipped};
use super::{Fixture, Store};
use crate::backend::{
    AcquireRequest, Backend, Change, Check, CommitReceipt, CommitRequest, Fence, LeaseState,
    ResourceWrite, SharedBackend,
};
use crate::clock::{Clock, ManualClock, SystemClock, Timestamp};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::lease::{Lease, Token};
use crate::resource::{
    AgentName, CommitId, FieldName, OwnerName, ResourceName, ResourceState, Ttl, Value,
};

/// A time to live that no case outlasts, unless it moves the clock.
pub(super) const LONG: Duration = Duration::from_secs(3600);
/// One that a case waits for where the clock cannot be moved.
pub(super) const SHORT: Duration = Duration::from_millis(300);

pub(super) struct Context {
    fixture: Arc<dyn Fixture>,
    store: Box<dyn Store>,
    backend: SharedBackend,
}

/// Everything of some resources that a refused call must leave as it was.
#[derive(Debug, PartialEq)]
pub(super) struct Seen {
    names: Vec<String>,
    marks: Vec<Option<Token>>,
    leases: Vec<Option<(Lease, LeaseState)>>,
    states: Vec<Option<ResourceState>>,
    newest: u64,
}

impl Context {
    pub(super) async fn open(fixture: Arc<dyn Fixture>) -> Verdict<Self> {
        let store = fixture.open().await?;
        Ok(Self::over(fixture, store))
    }

    fn over(fixture: Arc<dyn Fixture>, store: Box<dyn Store>) -> Self {
        let backend = store.backend();
        Self {
            fixture,
            store,
            backend,
        }
    }

    /// A store that keeps `events` events; else the case is skipped.
    pub(super) async fn with_history(self, events: u64) -> Verdict<Self> {
        match self.fixture.open_with_history(events).await? {
            Some(store) => Ok(Self::over(self.fixture, store)),
            None => skipped("the fixture has no store with a short history"),
        }
    }

    /// Another store, of its own.
    pub(super) async fn another_store(&self) -> Verdict<Self> {
        Self::open(self.fixture.clone()).await
    }

    pub(super) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    pub(super) fn shared(&self) -> SharedBackend {
        self.backend.clone()
    }

    /// A second handle; else the case is skipped.
    pub(super) async fn another_handle(&self) -> Verdict<SharedBackend> {
        match self.store.another_handle().await? {
            Some(backend) => Ok(backend),
            None => skipped("the fixture has one handle to a store"),
        }
    }

    /// A second handle where there is one, else the first again.
    pub(super) async fn any_other_handle(&self) -> Verdict<SharedBackend> {
        Ok(self
            .store
            .another_handle()
            .await?
            .unwrap_or_else(|| self.shared()))
    }

    /// The store after a restart; else the case is skipped.
    pub(super) async fn reopen(self) -> Verdict<Self> {
        let Self {
            fixture,
            mut store,
            backend,
        } = self;
        drop(backend);
        if store.reopen().await? {
            Ok(Self::over(fixture, store))
        } else {
            skipped("the store does not outlive its handles")
        }
    }

    pub(super) fn movable_clock(&self) -> Option<Arc<ManualClock>> {
        self.store.clock()
    }

    /// The clock, moved by hand; else the case is skipped.
    pub(super) fn clock(&self) -> Verdict<Arc<ManualClock>> {
        match self.store.clock() {
            Some(clock) => Ok(clock),
            None => skipped("the store's clock cannot be moved"),
        }
    }

    pub(super) async fn now(&self) -> Verdict<Timestamp> {
        Ok(self.backend.now().await?)
    }

    /// Lets time pass, without sleeping where the clock can be moved.
    pub(super) async fn advance(&self, by: Duration) {
        match self.store.clock() {
            Some(clock) => clock.advance(by),
            None => SystemClock.sleep(by).await,
        }
    }

    /// Lets time pass until a lease has expired.
    pub(super) async fn expire(&self, lease: &Lease) -> Verdict {
        loop {
            let now = self.now().await?;
            if now >= lease.expires_at {
                return Ok(());
            }
            self.advance(lease.expires_at.since(now)).await;
        }
    }

    /// Takes a lease that outlasts the case, and creates the resource.
    pub(super) async fn lease(&self, on: &str, owner: &str) -> Result<Lease> {
        self.lease_for(on, owner, LONG).await
    }

    pub(super) async fn lease_for(&self, on: &str, owner: &str, ttl: Duration) -> Result<Lease> {
        lease_on(self.backend(), on, owner, ttl).await
    }

    /// Takes a lease and lets it expire.
    pub(super) async fn expired(&self, on: &str, owner: &str) -> Verdict<Lease> {
        let lease = self.lease_for(on, owner, SHORT).await?;
        self.expire(&lease).await?;
        Ok(lease)
    }

    pub(super) async fn commit(&self, commit: Commit) -> Result<CommitReceipt> {
        self.backend.commit(&commit.build()?).await
    }

    pub(super) async fn mark(&self, of: &str) -> Result<Option<u64>> {
        let mark = self.backend.current_fence(&resource(of)?).await?;
        Ok(mark.map(Token::get))
    }

    pub(super) async fn lease_of(&self, of: &str) -> Result<Option<(Lease, LeaseState)>> {
        Ok(self.backend.lease_status(&resource(of)?).await?.lease)
    }

    pub(super) async fn state(&self, of: &str) -> Verdict<Option<ResourceState>> {
        let states = self.backend.read(&[resource(of)?]).await?;
        expect_one("the states of one resource", states)
    }

    /// The state of a resource that exists.
    pub(super) async fn existing(&self, of: &str) -> Verdict<ResourceState> {
        expect_some("the resource's state", self.state(of).await?)
    }

    /// The JSON text of a field; `None` when field or resource are absent.
    pub(super) async fn value(&self, of: &str, in_field: &str) -> Verdict<Option<String>> {
        Ok(self
            .state(of)
            .await?
            .and_then(|state| value_in(&state, in_field)))
    }

    /// The version of a field, as a [`Check`] takes it.
    pub(super) async fn field_version(&self, of: &str, in_field: &str) -> Verdict<Option<u64>> {
        let state = self.state(of).await?;
        Ok(state.and_then(|state| state.fields.get(in_field).map(|field| field.version)))
    }

    pub(super) async fn events(&self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        let mut after = 0;
        loop {
            let page = self.backend.events(after, 500).await?;
            if page.events.is_empty() {
                return Ok(events);
            }
            after = page.next_after;
            events.extend(page.events);
        }
    }

    pub(super) async fn look(&self, at: &[&str]) -> Verdict<Seen> {
        let mut seen = Seen {
            names: at.iter().map(|name| (*name).to_owned()).collect(),
            marks: Vec::new(),
            leases: Vec::new(),
            states: Vec::new(),
            newest: self.backend.events(0, 1).await?.newest,
        };
        for name in at {
            let status = self.backend.lease_status(&resource(name)?).await?;
            seen.marks.push(status.mark);
            seen.leases.push(status.lease);
            seen.states.push(self.state(name).await?);
        }
        Ok(seen)
    }

    /// Every refusal changes nothing.
    pub(super) async fn unchanged(&self, what: &str, since: &Seen) -> Verdict {
        let names: Vec<&str> = since.names.iter().map(String::as_str).collect();
        let now = self.look(&names).await?;
        expect_eq(&format!("what is stored after {what}"), &now, since)
    }
}

pub(super) async fn lease_on(
    backend: &dyn Backend,
    on: &str,
    owner: &str,
    ttl: Duration,
) -> Result<Lease> {
    let request = acquire(&[on], owner, ttl, true)?;
    let leases = backend.acquire_all(&request).await?;
    leases.into_iter().next().ok_or_else(|| Error::Corrupt {
        location: format!("acquire_all of `{on}`"),
        message: "neither a lease nor an error".to_owned(),
    })
}

pub(super) fn value_in(state: &ResourceState, field: &str) -> Option<String> {
    let field = state.fields.get(field)?;
    Some(field.value.as_str().to_owned())
}

pub(super) fn acquire(
    on: &[&str],
    owner: &str,
    ttl: Duration,
    create: bool,
) -> Result<AcquireRequest> {
    Ok(AcquireRequest {
        resources: on
            .iter()
            .map(|name| resource(name))
            .collect::<Result<_>>()?,
        owner: OwnerName::new(owner)?,
        ttl: Ttl::try_from(ttl)?,
        create,
    })
}

pub(super) fn resource(name: &str) -> Result<ResourceName> {
    ResourceName::new(name)
}

pub(super) fn owner(name: &str) -> Result<OwnerName> {
    OwnerName::new(name)
}

pub(super) fn field(name: &str) -> Result<FieldName> {
    FieldName::new(name)
}

pub(super) fn ttl(of: Duration) -> Result<Ttl> {
    Ttl::try_from(of)
}

/// Whether an expiry was counted from a moment between two that the case saw.
#[track_caller]
pub(super) fn expect_until(
    what: &str,
    expires_at: Timestamp,
    between: (Timestamp, Timestamp),
    ttl: Duration,
) -> Verdict {
    let (first, last) = (between.0.plus(ttl), between.1.plus(ttl));
    expect(
        &format!("{what}: {expires_at} is from {first} to {last}"),
        (first..=last).contains(&expires_at),
    )
}

/// A commit, put together.
#[derive(Debug)]
pub(super) struct Commit(Result<CommitRequest>);

impl Commit {
    pub(super) fn new() -> Self {
        Self(AgentName::new("conformance").map(|agent| CommitRequest {
            id: None,
            agent,
            fences: Vec::new(),
            checks: Vec::new(),
            writes: Vec::new(),
        }))
    }

    fn with(self, add: impl FnOnce(&mut CommitRequest) -> Result<()>) -> Self {
        Self(self.0.and_then(|mut request| {
            add(&mut request)?;
            Ok(request)
        }))
    }

    pub(super) fn build(self) -> Result<CommitRequest> {
        self.0
    }

    pub(super) fn id(self, bits: u128) -> Self {
        self.with(|request| {
            request.id = Some(CommitId::from_bits(bits));
            Ok(())
        })
    }

    pub(super) fn fence(self, lease: &Lease) -> Self {
        self.with(|request| {
            request.fences.push(lease.fence());
            Ok(())
        })
    }

    pub(super) fn live_fence(self, lease: &Lease) -> Self {
        self.with(|request| {
            request.fences.push(Fence {
                must_be_live: true,
                ..lease.fence()
            });
            Ok(())
        })
    }

    pub(super) fn token(self, of: &str, token: u64) -> Self {
        self.with(|request| {
            request.fences.push(Fence {
                resource: resource(of)?,
                token: Token::new(token)?,
                must_be_live: false,
            });
            Ok(())
        })
    }

    pub(super) fn write(
        self,
        to: &str,
        fenced: Option<bool>,
        change: impl FnOnce() -> Result<Change>,
    ) -> Self {
        self.with(|request| {
            request.writes.push(ResourceWrite {
                resource: resource(to)?,
                change: change()?,
                fenced,
            });
            Ok(())
        })
    }

    /// Writes one field, with JSON text.
    pub(super) fn set(self, of: &str, name: &str, json: &str) -> Self {
        self.fields(of, &[(name, Some(json))])
    }

    pub(super) fn fields(self, of: &str, fields: &[(&str, Option<&str>)]) -> Self {
        self.write(of, None, || Ok(Change::Fields(named(fields)?)))
    }

    pub(super) fn replace(self, of: &str, fields: &[(&str, &str)]) -> Self {
        self.write(of, None, || {
            let fields = fields
                .iter()
                .map(|(name, json)| Ok((field(name)?, Value::parse(json)?)))
                .collect::<Result<_>>()?;
            Ok(Change::Replace(fields))
        })
    }

    pub(super) fn delete(self, of: &str) -> Self {
        self.write(of, None, || Ok(Change::Delete))
    }

    /// Sets whether writes must carry a fence.
    pub(super) fn fenced(self, of: &str, fenced: bool) -> Self {
        self.write(of, Some(fenced), || Ok(Change::Fields(BTreeMap::new())))
    }

    pub(super) fn check(self, of: &str, name: &str, version: Option<u64>) -> Self {
        self.with(|request| {
            request.checks.push(Check::Field {
                resource: resource(of)?,
                field: field(name)?,
                version,
            });
            Ok(())
        })
    }

    pub(super) fn check_all(self, of: &str, version: Option<u64>) -> Self {
        self.with(|request| {
            request.checks.push(Check::Resource {
                resource: resource(of)?,
                version,
            });
            Ok(())
        })
    }
}

fn named(fields: &[(&str, Option<&str>)]) -> Result<BTreeMap<FieldName, Option<Value>>> {
    fields
        .iter()
        .map(|(name, json)| Ok((field(name)?, json.map(Value::parse).transpose()?)))
        .collect()
}
