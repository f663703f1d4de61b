//! The suite that every backend runs: a case for each rule, the races, the
//! isolation anomalies and the futures dropped half way, through public calls
//! alone.
//!
//! A backend in another crate takes this crate with the feature `conformance`
//! as a dev-dependency, says in a [`Fixture`] how to make an empty store, and
//! calls [`run`] from a test on a multi-threaded runtime:
//!
//! ```
//! use std::sync::Arc;
//!
//! use async_trait::async_trait;
//! use statepact::backend::SharedBackend;
//! use statepact::backend::memory::Memory; // instead of it: the backend to test
//! use statepact::clock::ManualClock;
//! use statepact::conformance::{self, Fixture, FixtureError, Store};
//!
//! struct MyFixture;
//!
//! struct MyStore {
//!     backend: Memory,
//!     clock: Arc<ManualClock>,
//! }
//!
//! #[async_trait]
//! impl Fixture for MyFixture {
//!     async fn open(&self) -> Result<Box<dyn Store>, FixtureError> {
//!         let clock = Arc::new(ManualClock::new());
//!         let backend = Memory::with_clock(clock.clone());
//!         Ok(Box::new(MyStore { backend, clock }))
//!     }
//! }
//!
//! #[async_trait]
//! impl Store for MyStore {
//!     fn backend(&self) -> SharedBackend {
//!         Arc::new(self.backend.clone())
//!     }
//!
//!     fn clock(&self) -> Option<Arc<ManualClock>> {
//!         Some(self.clock.clone())
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let report = conformance::run(Arc::new(MyFixture)).await;
//! report.assert_passed();
//! # });
//! # Ok(())
//! # }
//! ```
//!
//! What a fixture cannot do (a second handle, a restart, a short history, a
//! clock that can be moved) it leaves out: the cases that need it are reported
//! as skipped, with the reason. [`Report::skipped`] lists them, so that a test
//! can hold the list fixed.
//!
//! A harness that names each test itself, such as `libtest-mimic`, takes
//! [`cases`] and calls [`Case::run`].
//!
//! The workspace member `tests/third_party` shows all of it in a crate of its
//! own.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::SharedBackend;
use crate::clock::ManualClock;

mod cancellation;
mod check;
mod commits;
mod context;
mod copies;
mod fences;
mod history;
mod isolation;
mod leases;
mod limits;
mod ownership;
mod races;
mod replay;
mod report;
mod sequences;
mod sessions;
mod tokens;

use check::{Stop, Verdict};
use context::Context;
pub use report::{CaseReport, Failure, Outcome, Report};

/// Why a fixture could not do what it was asked.
pub type FixtureError = Box<dyn std::error::Error + Send + Sync>;

/// How the suite makes stores of the backend under test.
#[async_trait]
pub trait Fixture: Send + Sync + 'static {
    /// Makes a new, empty store that shares nothing with any other: its first
    /// event will have the sequence 1.
    ///
    /// # Errors
    /// Whatever stopped it; the case that asked fails with it.
    async fn open(&self) -> Result<Box<dyn Store>, FixtureError>;

    /// The same, of a store that keeps the newest `events` events and no more
    /// than twice as many. `None` (the default): the backend cannot be told
    /// how much history to keep.
    ///
    /// # Errors
    /// As [`Fixture::open`].
    async fn open_with_history(&self, events: u64) -> Result<Option<Box<dyn Store>>, FixtureError> {
        let _ = events;
        Ok(None)
    }
}

/// One store that a case works on. What must outlive the case, such as a
/// temporary folder, lives in it.
#[async_trait]
pub trait Store: Send + Sync {
    /// A handle onto the store.
    fn backend(&self) -> SharedBackend;

    /// The clock of the store, when a test can move it; then no case sleeps.
    /// `None` (the default): cases that need time to pass let it pass, and
    /// those that need an exact moment are skipped.
    fn clock(&self) -> Option<Arc<ManualClock>> {
        None
    }

    /// Another handle onto the same store, as separate from the first as they
    /// come: another connection, another opening of the file. `None` (the
    /// default): there is one handle to a store.
    ///
    /// # Errors
    /// Whatever stopped it.
    async fn another_handle(&self) -> Result<Option<SharedBackend>, FixtureError> {
        Ok(None)
    }

    /// Closes the store and opens it again, as a restart of the process does;
    /// [`Store::backend`] gives the new handle from then on. The suite has
    /// dropped its own handles. `false` (the default): the store does not
    /// outlive its handles.
    ///
    /// # Errors
    /// Whatever stopped it.
    async fn reopen(&mut self) -> Result<bool, FixtureError> {
        Ok(false)
    }
}

type CaseFuture = Pin<Box<dyn Future<Output = Verdict> + Send>>;

/// One case of the suite.
#[derive(Clone)]
pub struct Case {
    name: String,
    rules: &'static [u8],
    about: &'static str,
    body: Arc<dyn Fn(Context) -> CaseFuture + Send + Sync>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Case")
            .field("name", &self.name)
            .field("rules", &self.rules)
            .field("about", &self.about)
            .finish_non_exhaustive()
    }
}

/// A case that has not ended by then has hung. Generous: it is no measure of
/// speed.
const HUNG_AFTER: Duration = Duration::from_secs(120);

impl Case {
    fn new<F>(
        name: impl Into<String>,
        rules: &'static [u8],
        about: &'static str,
        body: impl Fn(Context) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Verdict> + Send + 'static,
    {
        Self {
            name: name.into(),
            rules,
            about,
            body: Arc::new(move |context| Box::pin(body(context))),
        }
    }

    /// Its name, unique in the suite: group and case, as in
    /// `leases::a_release_ends_the_lease_once`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The numbers of the rules that it is about: 13 for R13.
    pub fn rules(&self) -> &[u8] {
        self.rules
    }

    /// What it holds a backend to, in a sentence.
    pub fn about(&self) -> &str {
        self.about
    }

    /// Runs it on a new store of the fixture. A panic in the backend, or a
    /// hang, is a failure of the case. Needs a Tokio runtime with its timer,
    /// not paused; a multi-threaded one, for the races to be races.
    pub async fn run(&self, fixture: Arc<dyn Fixture>) -> CaseReport {
        let body = self.body.clone();
        let mut task = tokio::spawn(async move {
            let context = Context::open(fixture).await?;
            body(context).await
        });
        let outcome = match tokio::time::timeout(HUNG_AFTER, &mut task).await {
            Ok(Ok(Ok(()))) => Outcome::Passed,
            Ok(Ok(Err(Stop::Skipped(reason)))) => Outcome::Skipped(reason),
            Ok(Ok(Err(Stop::Failed(failure)))) => Outcome::Failed(failure),
            Ok(Err(panicked)) => Outcome::Failed(check::panicked(panicked)),
            Err(_) => {
                task.abort();
                Outcome::Failed(Failure::new(
                    "the case ends",
                    "an end",
                    format!("none after {HUNG_AFTER:?}"),
                ))
            }
        };
        CaseReport::new(self, outcome)
    }
}

/// Every case of the suite, in the order in which [`run`] runs them.
pub fn cases() -> Vec<Case> {
    let groups = [
        limits::cases,
        leases::cases,
        ownership::cases,
        fences::cases,
        tokens::cases,
        commits::cases,
        replay::cases,
        isolation::cases,
        sessions::cases,
        history::cases,
        copies::cases,
        cancellation::cases,
        races::cases,
        sequences::cases,
    ];
    groups.into_iter().flat_map(|cases| cases()).collect()
}

/// Runs every case, one after another, each on a new store.
pub async fn run(fixture: Arc<dyn Fixture>) -> Report {
    let mut reports = Vec::new();
    for case in cases() {
        reports.push(case.run(fixture.clone()).await);
    }
    Report::new(reports)
}

/// Lists the cases of a group: the functions' names are the cases' names.
macro_rules! case_list {
    ($group:literal: $([$($rule:literal),+] $name:ident, $about:literal;)+) => {
        pub(super) fn cases() -> Vec<super::Case> {
            vec![$(super::Case::new(
                concat!($group, "::", stringify!($name)),
                &[$($rule),+],
                $about,
                $name,
            )),+]
        }
    };
}
use case_list;
