//! The conformance suite on the backends of this crate: a test for each case
//! and backend, and that the cases cover the rules.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use libtest_mimic::{Arguments, Failed, Trial};
use statepact::backend::SharedBackend;
use statepact::backend::memory::{DEFAULT_HISTORY, Memory};
use statepact::clock::ManualClock;
use statepact::conformance::{Case, Fixture, FixtureError, Outcome, Store, cases};
use tokio::runtime::Runtime;

/// The rules that no case is about, and why.
const NOT_COVERED: &[(u8, &str)] = &[(
    29,
    "damage to a store is done to its files, not through public calls",
)];

/// The cases that a memory store cannot be asked: it does not outlive its
/// handles.
const SKIPPED_ON_MEMORY: &[&str] = &[
    "ownership::tokens_outlive_a_restart",
    "commits::an_acknowledged_commit_outlives_a_restart",
    "replay::a_replay_after_a_restart_answers_the_same",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::from_args();
    let runtime = Arc::new(
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?,
    );
    let mut trials = vec![
        Trial::test("suite::every_rule_has_a_case", every_rule_has_a_case),
        Trial::test("suite::names_are_unique", names_are_unique),
        Trial::test("suite::expected_skips_exist", expected_skips_exist),
    ];
    add(
        &mut trials,
        &runtime,
        "memory",
        &Arc::new(InMemory),
        SKIPPED_ON_MEMORY,
    );
    #[cfg(feature = "embedded")]
    add(
        &mut trials,
        &runtime,
        "embedded",
        &Arc::new(embedded::InFiles),
        &[],
    );
    libtest_mimic::run(&arguments, trials).exit()
}

/// A test for each case on one backend.
fn add<F: Fixture>(
    trials: &mut Vec<Trial>,
    runtime: &Arc<Runtime>,
    backend: &str,
    fixture: &Arc<F>,
    skipped: &'static [&'static str],
) {
    for case in cases() {
        let (runtime, fixture) = (runtime.clone(), fixture.clone());
        trials.push(Trial::test(
            format!("{backend}::{}", case.name()),
            move || run(&runtime, &case, fixture, skipped.contains(&case.name())),
        ));
    }
}

fn run(
    runtime: &Runtime,
    case: &Case,
    fixture: Arc<dyn Fixture>,
    skip_expected: bool,
) -> Result<(), Failed> {
    let report = runtime.block_on(case.run(fixture));
    match report.outcome() {
        Outcome::Passed if !skip_expected => Ok(()),
        Outcome::Skipped(_) if skip_expected => Ok(()),
        Outcome::Passed => Err("it is listed as skipped, and was run".into()),
        _ => Err(report.to_string().into()),
    }
}

fn every_rule_has_a_case() -> Result<(), Failed> {
    let cases = cases();
    let covered: BTreeSet<u8> = cases.iter().flat_map(Case::rules).copied().collect();
    let excused: BTreeSet<u8> = NOT_COVERED.iter().map(|(rule, _)| *rule).collect();
    let both: Vec<_> = covered.intersection(&excused).collect();
    if !both.is_empty() {
        return Err(format!("listed as not covered, and covered: {both:?}").into());
    }
    let missing: Vec<u8> = (1..=30)
        .filter(|rule| !covered.contains(rule) && !excused.contains(rule))
        .collect();
    let unknown: Vec<_> = covered.iter().filter(|rule| **rule > 30).collect();
    if missing.is_empty() && unknown.is_empty() {
        Ok(())
    } else {
        Err(format!("rules without a case: {missing:?}; no rules: {unknown:?}").into())
    }
}

fn names_are_unique() -> Result<(), Failed> {
    let mut seen = BTreeSet::new();
    for case in cases() {
        if !seen.insert(case.name().to_owned()) {
            return Err(format!("`{}` names two cases", case.name()).into());
        }
    }
    Ok(())
}

fn expected_skips_exist() -> Result<(), Failed> {
    let cases = cases();
    let names: BTreeSet<&str> = cases.iter().map(Case::name).collect();
    match SKIPPED_ON_MEMORY
        .iter()
        .find(|name| !names.contains(**name))
    {
        None => Ok(()),
        Some(name) => Err(format!("`{name}` names no case").into()),
    }
}

struct InMemory;

struct MemoryStore {
    backend: Memory,
    clock: Arc<ManualClock>,
}

fn memory(history: u64) -> Box<dyn Store> {
    let clock = Arc::new(ManualClock::new());
    Box::new(MemoryStore {
        backend: Memory::with_clock_and_history(clock.clone(), history),
        clock,
    })
}

#[async_trait]
impl Fixture for InMemory {
    async fn open(&self) -> Result<Box<dyn Store>, FixtureError> {
        Ok(memory(DEFAULT_HISTORY))
    }

    async fn open_with_history(&self, events: u64) -> Result<Option<Box<dyn Store>>, FixtureError> {
        Ok(Some(memory(events)))
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn backend(&self) -> SharedBackend {
        Arc::new(self.backend.clone())
    }

    fn clock(&self) -> Option<Arc<ManualClock>> {
        Some(self.clock.clone())
    }

    async fn another_handle(&self) -> Result<Option<SharedBackend>, FixtureError> {
        Ok(Some(self.backend()))
    }
}

#[cfg(feature = "embedded")]
mod embedded {
    use statepact::backend::embedded::{Embedded, EmbeddedOptions};
    use tempfile::TempDir;

    use super::{
        Arc, DEFAULT_HISTORY, Fixture, FixtureError, ManualClock, SharedBackend, Store, async_trait,
    };

    pub(crate) struct InFiles;

    struct FileStore {
        folder: TempDir,
        clock: Arc<ManualClock>,
        history: u64,
        // `None` only while it is opened again.
        backend: Option<Arc<Embedded>>,
    }

    impl FileStore {
        async fn open(history: u64) -> Result<Self, FixtureError> {
            let mut store = Self {
                folder: tempfile::tempdir()?,
                clock: Arc::new(ManualClock::new()),
                history,
                backend: None,
            };
            store.backend = Some(store.handle().await?);
            Ok(store)
        }

        async fn handle(&self) -> Result<Arc<Embedded>, FixtureError> {
            let options = EmbeddedOptions::new()
                .clock(self.clock.clone())
                .history(self.history);
            let path = self.folder.path().join("state.redb");
            Ok(Arc::new(options.open(path).await?))
        }
    }

    #[async_trait]
    impl Fixture for InFiles {
        async fn open(&self) -> Result<Box<dyn Store>, FixtureError> {
            Ok(Box::new(FileStore::open(DEFAULT_HISTORY).await?))
        }

        async fn open_with_history(
            &self,
            events: u64,
        ) -> Result<Option<Box<dyn Store>>, FixtureError> {
            Ok(Some(Box::new(FileStore::open(events).await?)))
        }
    }

    #[async_trait]
    impl Store for FileStore {
        #[expect(clippy::expect_used, reason = "a fixture may fail its test")]
        fn backend(&self) -> SharedBackend {
            self.backend.clone().expect("the store is open")
        }

        fn clock(&self) -> Option<Arc<ManualClock>> {
            Some(self.clock.clone())
        }

        async fn another_handle(&self) -> Result<Option<SharedBackend>, FixtureError> {
            Ok(Some(self.handle().await?))
        }

        async fn reopen(&mut self) -> Result<bool, FixtureError> {
            self.backend = None;
            self.backend = Some(self.handle().await?);
            Ok(true)
        }
    }
}
