//! Leases, fencing tokens and transactions for work that must have one owner
//! at a time.
//!
//! - A [`Lease`] says who owns a resource, for a time.
//! - A fencing token ([`Token`]) grows with every change of owner. A commit
//!   that carries an old one ([`Lease::fence`]) is refused with
//!   [`Error::LeaseLost`]: a worker that paused, lost its lease and woke up
//!   late cannot overwrite its successor's work.
//! - A [`Session`] reads and writes fields of resources and commits them as one
//!   step; [`Isolation`] says what it is protected from.
//!
//! Only the backend's clock decides whether a lease is live, and clocks decide
//! nothing else: safety rests on tokens.
//!
//! ```
//! use statepact::{Error, RetryPolicy, StateManager};
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> statepact::Result<()> {
//! let manager = StateManager::open("memory:").await?; // or a path: "state.redb"
//! let lease = manager.lease("orders/7", "worker-a", Duration::from_secs(30)).await?;
//!
//! let paid = manager
//!     .session("worker-a")
//!     .resource("orders/7")
//!     .fence(&lease)
//!     .transact(RetryPolicy::default(), async |session| {
//!         let paid: u32 = session.read("orders/7", "paid").await?.unwrap_or(0) + 100;
//!         session.write("orders/7", "paid", &paid)?;
//!         Ok(paid)
//!     })
//!     .await?;
//! assert_eq!(paid, 100);
//!
//! // An operator takes the job away: the token is stale from now on.
//! manager.backend().revoke(&lease.resource).await?;
//! let mut late = manager.session("worker-a").resource("orders/7").fence(&lease).begin().await?;
//! late.write("orders/7", "paid", &0)?;
//! assert!(matches!(late.commit().await, Err(Error::LeaseLost { .. })));
//! # Ok(()) }
//! ```
//!
//! # Where to begin
//!
//! - [`StateManager`]: opens a store, leases, and begins sessions.
//! - [`LeaseManager`]: all that can be done with leases, and
//!   [`hold`](LeaseManager::hold), which keeps one while some work runs.
//! - [`Error`]: what can go wrong, and what to do about each kind.
//! - [`backend::embedded`](crate::backend) is the store in one file, for
//!   several processes of one machine; [`backend::memory`] is the one for tests
//!   and for one process; [`Backend`] is the contract of both, and of others.
//! - [`clock::ManualClock`] lets a test move time by hand.
//!
//! # Features
//!
//! - `embedded` (default): the store in one file.
//! - `cli`: the `statepact` command. Brings `embedded`.
//! - `redis`: a store on a Redis or Valkey server.
//! - `conformance`: the suite that any backend can run.
//!
//! # The guides
//!
//! `README.md` and the folder `docs` come with the crate: the guide
//! (`guide.md`), isolation (`isolation.md`), fencing what is outside the store
//! (`fencing-outside-the-store.md`), limitations (`limitations.md`), errors
//! (`errors.md`), the file format (`file-format.md`) and the design
//! (`design.md`).
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod copy;
mod error;
pub mod event;
pub mod lease;
mod manager;
pub mod random;
pub mod resource;
mod retry;
pub mod rules;
mod session;

pub use backend::{Backend, Fence};
pub use clock::Timestamp;
pub use error::{Error, ErrorKind, LossReason, Result};
pub use lease::{HeldLease, Hold, Lease, LeaseManager, Token};
pub use manager::{LeaseAllRequest, LeaseRequest, StateManager};
pub use resource::{
    AgentName, CommitId, FieldName, OwnerName, ResourceName, ResourceState, Ttl, Value,
};
pub use retry::RetryPolicy;
pub use session::{BoxedWork, Isolation, Session, SessionBuilder};

// The examples in the guides are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../docs/isolation.md")]
struct IsolationGuide;

#[cfg(doctest)]
#[doc = include_str!("../docs/fencing-outside-the-store.md")]
struct FencingOutside;

#[cfg(doctest)]
#[doc = include_str!("../docs/errors.md")]
struct Errors;

#[cfg(all(doctest, feature = "embedded"))]
#[doc = include_str!("../docs/guide.md")]
struct Guide;

#[cfg(all(doctest, feature = "embedded"))]
#[doc = include_str!("../docs/file-format.md")]
struct FileFormat;
