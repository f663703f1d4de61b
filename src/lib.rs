//! Leases, fencing tokens and transactions for work that must have one owner
//! at a time.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod backend;
pub mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
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
pub use session::{Isolation, Session, SessionBuilder};
