//! The conformance suite, run by a crate that brings its own backend.

use std::sync::Arc;

use async_trait::async_trait;
use statepact::backend::SharedBackend;
use statepact::clock::ManualClock;
use statepact::conformance::{self, CaseReport, Fixture, FixtureError, Store};
use statepact_third_party::Toy;

struct ToyFixture;

struct ToyStore {
    toy: Toy,
    clock: Arc<ManualClock>,
}

#[async_trait]
impl Fixture for ToyFixture {
    async fn open(&self) -> Result<Box<dyn Store>, FixtureError> {
        let clock = Arc::new(ManualClock::new());
        Ok(Box::new(ToyStore {
            toy: Toy::new(clock.clone()),
            clock,
        }))
    }
}

#[async_trait]
impl Store for ToyStore {
    fn backend(&self) -> SharedBackend {
        Arc::new(self.toy.clone())
    }

    fn clock(&self) -> Option<Arc<ManualClock>> {
        Some(self.clock.clone())
    }

    async fn another_handle(&self) -> Result<Option<SharedBackend>, FixtureError> {
        Ok(Some(self.backend()))
    }
}

/// What a toy cannot do: outlive its handles, forget its history and be
/// copied.
const SKIPPED: &[&str] = &[
    "ownership::tokens_outlive_a_restart",
    "commits::an_acknowledged_commit_outlives_a_restart",
    "replay::a_replay_after_a_restart_answers_the_same",
    "history::old_events_are_pruned_and_the_newest_kept",
    "history::an_id_is_remembered_while_its_event_is_kept",
    "history::pruning_touches_the_history_alone",
    "copies::an_export_has_everything_page_by_page",
    "copies::a_copy_goes_on_where_the_first_store_was",
    "copies::a_lease_has_the_time_left_that_it_had",
    "copies::what_differs_is_refused_as_a_whole",
    "copies::importing_the_same_again_changes_nothing",
    "copies::an_import_names_each_resource_once",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_toy_conforms() {
    let report = conformance::run(Arc::new(ToyFixture)).await;
    report.assert_passed();
    let skipped: Vec<&str> = report.skipped().map(CaseReport::name).collect();
    assert_eq!(skipped, SKIPPED, "{report}");
    assert!(report.passed().count() > 150, "{report}");
}
