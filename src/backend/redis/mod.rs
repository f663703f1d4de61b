//! A store on a Redis or Valkey server: 6.2 or later.
//!
//! Every operation is one Lua script, which the server runs as one step: it
//! restates the rules of [`rules`]. `docs/redis-keys.md` lists
//! the keys, and what of the server's settings safety rests on: a server that
//! forgets a mark issues old tokens again.

use std::sync::Arc;

use ::redis::Value as Reply;
use async_trait::async_trait;

use super::{
    AcquireRequest, Backend, CheckReport, CommitReceipt, CommitRequest, ExportPage, ExportRange,
    ImportReport, ImportRequest, LeaseStatus, ResourceSummary, Waiters,
};
use crate::clock::{Clock, Monotonic, Timestamp};
use crate::error::{Error, Result};
use crate::event::EventPage;
use crate::lease::{Lease, Token};
use crate::resource::{ResourceName, ResourceState, Ttl};
use crate::rules;

mod acquire;
mod check;
mod commit;
mod connection;
mod errors;
mod event;
mod health;
mod keys;
mod listen;
mod options;
mod reply;
mod scripts;
mod transfer;

pub use options::RedisOptions;

use connection::Link;
use keys::Keys;
use listen::Listener;
use options::Settled;
use reply::Parts;
use scripts::{Call, Script};

/// How many resources or events one script looks at: the server serves nobody
/// else meanwhile.
const PAGE: usize = 256;

/// A store on a Redis or Valkey server. Clones share its connection.
#[derive(Debug, Clone)]
pub struct Redis {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    link: Link,
    keys: Keys,
    history: u64,
    clock: Option<TestClock>,
    listener: Listener,
}

/// A time line from the wall clock at the opening on, which follows the
/// monotonic clock.
#[derive(Debug)]
struct TestClock {
    clock: Arc<dyn Clock>,
    start: (Timestamp, Monotonic),
}

impl Redis {
    /// Opens the store that `url` names, with the default options.
    ///
    /// # Errors
    /// As [`RedisOptions::open`].
    pub async fn open(url: &str) -> Result<Self> {
        RedisOptions::new(url).open().await
    }

    async fn connect(settled: Settled) -> Result<Self> {
        let store = Self {
            shared: Arc::new(Shared {
                link: Link::new(settled.target),
                keys: settled.keys,
                history: settled.history,
                clock: settled.clock.map(|clock| TestClock {
                    start: (clock.wall(), clock.monotonic()),
                    clock,
                }),
                listener: Listener::new(),
            }),
        };
        store.shared.check_access().await?;
        Ok(store)
    }

    /// What is not as it should be with the server, as of the last
    /// connection: no persistence, eviction that was allowed, settings that
    /// could not be looked at. Empty when all is well.
    pub fn warnings(&self) -> Vec<String> {
        self.shared.link.warnings()
    }
}

impl Shared {
    fn time(&self) -> Option<i64> {
        self.clock.as_ref().map(|TestClock { clock, start }| {
            let (wall, monotonic) = *start;
            wall.plus(clock.monotonic().since(monotonic)).as_millis()
        })
    }

    fn call<'a>(&self, script: &'static Script, resources: &[&ResourceName]) -> Call<'a> {
        Call::new(script, &self.keys, self.time(), self.history, resources)
    }

    async fn run(&self, call: &Call<'_>) -> Result<Parts> {
        let answer: Vec<Reply> = self.link.run(call).await?;
        Parts::of_answer(answer, call.script.name)
    }

    /// A call about one resource.
    fn call_on<'a>(&self, script: &'static Script, resource: &'a ResourceName) -> Call<'a> {
        let mut call = self.call(script, &[resource]);
        call.text(resource.as_str());
        call
    }

    /// Tells `call` what the keys of resources begin with, for scripts that
    /// find the names themselves.
    fn key_starts(&self, call: &mut Call<'_>) {
        call.text(self.keys.lease(""));
        call.text(self.keys.fence(""));
        call.text(self.keys.state(""));
    }

    /// A script that lacks a permission half way would leave half an
    /// operation: so it is asked for before.
    async fn check_access(&self) -> Result<()> {
        let mut call = self.call(&scripts::ACCESS, &[]);
        self.key_starts(&mut call);
        let mut answer = self.run(&call).await?;
        if !answer.is_empty() && !answer.flag()? {
            self.link.warn(format!(
                "the user of Redis at {} may not publish on `{}`: those who wait for a lease \
                 hear of its release later",
                self.link.target().server,
                self.keys.channel()
            ));
        }
        Ok(())
    }

    async fn release(&self, lease: &Lease) -> Result<bool> {
        let mut call = self.call_on(&scripts::RELEASE, &lease.resource);
        call.text(lease.owner.as_str());
        call.number(&lease.token);
        self.run(&call).await?.flag()
    }
}

#[async_trait]
impl Backend for Redis {
    async fn now(&self) -> Result<Timestamp> {
        let call = self.shared.call(&scripts::NOW, &[]);
        self.shared.run(&call).await?.timestamp()
    }

    async fn acquire_all(&self, request: &AcquireRequest) -> Result<Vec<Lease>> {
        acquire::acquire_all(&self.shared, request).await
    }

    async fn renew(&self, lease: &Lease, ttl: Ttl) -> Result<Lease> {
        let mut call = self.shared.call_on(&scripts::RENEW, &lease.resource);
        call.text(lease.owner.as_str());
        call.number(&lease.token);
        call.number(&ttl.as_millis());
        let expires_at = self.shared.run(&call).await?.timestamp()?;
        Ok(Lease {
            expires_at,
            ttl,
            ..lease.clone()
        })
    }

    async fn release(&self, lease: &Lease) -> Result<bool> {
        self.shared.release(lease).await
    }

    async fn revoke(&self, resource: &ResourceName) -> Result<Token> {
        let call = self.shared.call_on(&scripts::REVOKE, resource);
        self.shared.run(&call).await?.token()
    }

    async fn lease_status(&self, resource: &ResourceName) -> Result<LeaseStatus> {
        let call = self.shared.call_on(&scripts::STATUS, resource);
        let mut answer = self.shared.run(&call).await?;
        let now = answer.timestamp()?;
        Ok(rules::status(resource, &answer.ownership()?, now))
    }

    async fn read(&self, resources: &[ResourceName]) -> Result<Vec<Option<ResourceState>>> {
        let names: Vec<&ResourceName> = resources.iter().collect();
        let mut call = self.shared.call(&scripts::READ, &names);
        for resource in resources {
            call.text(resource.as_str());
        }
        let mut answer = self.shared.run(&call).await?;
        let keys = &self.shared.keys;
        resources
            .iter()
            .map(|resource| {
                let state = answer.optional_parts()?;
                state
                    .map(|state| state.state(&keys.state(resource.as_str())))
                    .transpose()
            })
            .collect()
    }

    async fn commit(&self, request: &CommitRequest) -> Result<CommitReceipt> {
        commit::commit(&self.shared, request).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&ResourceName>,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>> {
        let mut found: Vec<ResourceSummary> = Vec::new();
        while found.len() < limit {
            let page = (limit - found.len()).min(PAGE);
            let last = found.last().map(|summary| &summary.resource).or(after);
            let from = match last {
                Some(last) if last.as_str() >= prefix => format!("({last}"),
                _ => format!("[{prefix}"),
            };
            let summaries = self.shared.list_page(&from, prefix, page).await?;
            let is_last = summaries.len() < page;
            found.extend(summaries);
            if is_last {
                break;
            }
        }
        Ok(found)
    }

    async fn events(&self, after: u64, limit: usize) -> Result<EventPage> {
        let mut page = self.shared.events_page(after, limit.min(PAGE)).await?;
        while page.events.len() < limit && page.next_after < page.newest {
            let left = (limit - page.events.len()).min(PAGE);
            let more = self.shared.events_page(page.next_after, left).await?;
            page.next_after = more.next_after;
            page.newest = more.newest;
            page.events.extend(more.events);
        }
        Ok(page)
    }

    fn waiters(&self) -> Option<&Waiters> {
        let shared = &self.shared;
        let channel = shared.keys.channel();
        Some(shared.listener.waiters(shared.link.target(), channel))
    }

    fn warnings(&self) -> Vec<String> {
        self.shared.link.warnings()
    }

    async fn export(&self, range: &ExportRange) -> Result<ExportPage> {
        self.shared.export(range).await
    }

    async fn import(&self, request: &ImportRequest) -> Result<ImportReport> {
        self.shared.import(request).await
    }

    async fn check(&self, progress: &(dyn Fn(u64) + Send + Sync)) -> Result<CheckReport> {
        check::check(&self.shared, progress).await
    }
}

impl Shared {
    async fn list_page(
        &self,
        from: &str,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<ResourceSummary>> {
        let mut call = self.call(&scripts::LIST, &[]);
        call.text(from);
        call.text(prefix);
        call.number(&limit);
        self.key_starts(&mut call);
        let mut answer = self.run(&call).await?;
        let now = answer.timestamp()?;
        let mut summaries = Vec::new();
        while !answer.is_empty() {
            let mut parts = answer.nested()?;
            let resource: ResourceName = parts.parse()?;
            let version = parts.number()?;
            let fenced = parts.flag()?;
            let entries: usize = parts.number()?;
            summaries.push(ResourceSummary {
                // Four entries are of the state, and two of each field.
                fields: entries.saturating_sub(4) / 2,
                lease: rules::status(&resource, &parts.ownership()?, now),
                resource,
                version,
                fenced,
            });
        }
        Ok(summaries)
    }

    async fn events_page(&self, after: u64, limit: usize) -> Result<EventPage> {
        let mut call = self.call(&scripts::EVENTS, &[]);
        call.number(&after);
        call.number(&limit);
        let mut answer = self.run(&call).await?;
        let oldest = answer.number()?;
        let newest = answer.number()?;
        rules::check_history(after, oldest)?;
        let mut found = answer.nested()?;
        let mut events = Vec::new();
        let mut next_after = after;
        let log = self.keys.named("log");
        while !found.is_empty() {
            let event = found.event(&log)?;
            if event.sequence != next_after + 1 {
                return Err(Error::Corrupt {
                    location: format!("key `{log}`"),
                    message: format!(
                        "event {} follows {next_after}: those between are missing",
                        event.sequence
                    ),
                });
            }
            next_after = event.sequence;
            events.push(event);
        }
        if events.len() < limit && next_after < newest {
            return Err(Error::Corrupt {
                location: format!("key `{log}`"),
                message: format!("it ends at event {next_after}, before {newest}, the newest"),
            });
        }
        Ok(EventPage {
            events,
            next_after,
            newest,
        })
    }
}
