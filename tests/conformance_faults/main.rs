//! The conformance suite is worth what it catches: backends broken on purpose,
//! each in one way, and the case that must notice.

use std::sync::Arc;

use async_trait::async_trait;
use libtest_mimic::{Arguments, Failed, Trial};
use statepact::backend::SharedBackend;
use statepact::backend::memory::Memory;
use statepact::clock::ManualClock;
use statepact::conformance::{Case, Fixture, FixtureError, Outcome, Store, cases};
use tokio::runtime::Runtime;

mod broken;

use broken::{Broken, Fault};

/// Each fault, the case that must fail on it, and whether the random
/// sequences must find it too.
const FAULTS: &[(Fault, &str, bool)] = &[
    (
        Fault::ReusesTokens,
        "leases::after_release_the_same_owner_gets_a_new_token",
        true,
    ),
    (
        Fault::ForgetsTokensOfDeleted,
        "ownership::tokens_outlive_a_deletion",
        true,
    ),
    (
        Fault::StealsLiveLeases,
        "leases::another_owner_is_refused_and_told_by_whom",
        true,
    ),
    (
        Fault::ShortensExtensions,
        "leases::an_extension_never_shortens",
        true,
    ),
    (
        Fault::AcquiresOneByOne,
        "ownership::several_leases_are_taken_all_or_none",
        true,
    ),
    (
        Fault::CreatesBeforeItAcquires,
        "ownership::a_live_lease_outlives_a_deletion",
        true,
    ),
    (
        Fault::RevivesExpired,
        "leases::a_late_renewal_is_expired_though_nobody_took_over",
        true,
    ),
    (
        Fault::RenewsByName,
        "leases::a_renewal_after_a_takeover_is_superseded",
        true,
    ),
    (
        Fault::TrustsTheCopy,
        "leases::a_renewal_looks_at_the_stored_lease_alone",
        true,
    ),
    (
        Fault::ReleasesByName,
        "leases::a_stale_release_leaves_the_successors_lease",
        true,
    ),
    (
        Fault::ReleasesByToken,
        "leases::a_release_by_another_owner_or_token_is_false",
        true,
    ),
    (
        Fault::RevokesWithoutMark,
        "fences::a_token_below_the_mark_is_refused_after_a_revocation",
        true,
    ),
    (
        Fault::GuardsLiveness,
        "ownership::a_guard_passes_until_a_newer_token",
        true,
    ),
    (
        Fault::ChecksNoFence,
        "fences::a_token_below_the_mark_is_refused_after_a_takeover",
        true,
    ),
    (
        Fault::ChecksOneFence,
        "fences::each_of_several_fences_is_checked",
        true,
    ),
    (
        Fault::ChecksFencesLast,
        "fences::a_stale_fence_is_found_before_a_conflict",
        true,
    ),
    (
        Fault::RefusesExpiredTokens,
        "fences::an_expired_token_still_commits",
        true,
    ),
    (
        Fault::IgnoresLiveness,
        "fences::a_live_fence_needs_a_live_lease",
        true,
    ),
    (
        Fault::ObservesNoTokens,
        "fences::a_token_above_the_mark_becomes_the_mark",
        true,
    ),
    (
        Fault::DemandsNoFence,
        "fences::a_fenced_resource_refuses_writes_without_a_fence",
        true,
    ),
    (
        Fault::TokensAreDoubles,
        "tokens::tokens_are_exact_above_2_to_the_53",
        false,
    ),
    (
        Fault::TokensAreTexts,
        "tokens::tokens_are_compared_as_numbers",
        false,
    ),
    (
        Fault::ValidatesNothing,
        "commits::a_changed_field_conflicts",
        true,
    ),
    (
        Fault::ValidatesWholeResources,
        "commits::commits_to_different_fields_do_not_conflict",
        true,
    ),
    (
        Fault::CommitsOneByOne,
        "commits::a_refused_commit_changes_nothing",
        true,
    ),
    (
        Fault::ForgetsCommitIds,
        "replay::a_commit_sent_again_answers_the_same",
        true,
    ),
    (
        Fault::ReplaysAnything,
        "replay::an_id_used_for_another_commit_is_refused",
        true,
    ),
    (
        Fault::ListsPatterns,
        "history::a_prefix_is_taken_literally",
        true,
    ),
    (
        Fault::SkipsEvents,
        "history::pages_join_without_a_gap",
        true,
    ),
    (
        Fault::AbandonsLeases,
        "cancellation::a_dropped_acquisition_leaves_no_lease_behind",
        false,
    ),
    (
        Fault::AbandonsCommits,
        "cancellation::a_dropped_commit_happens_wholly_or_not_at_all",
        false,
    ),
    (
        Fault::AcquiresInARace,
        "races::of_many_acquirers_one_wins",
        false,
    ),
    (
        Fault::ValidatesInARace,
        "races::concurrent_increments_lose_nothing",
        false,
    ),
    (
        Fault::ReadsStale,
        "commits::an_acknowledged_change_is_seen_through_every_handle",
        true,
    ),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::from_args();
    let runtime = Arc::new(
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .enable_all()
            .build()?,
    );
    let mut trials = Vec::new();
    for (fault, name, by_sequences) in FAULTS {
        let runtime = runtime.clone();
        trials.push(Trial::test(format!("{fault:?}"), move || {
            caught(&runtime, *fault, name, *by_sequences)
        }));
    }
    libtest_mimic::run(&arguments, trials).exit()
}

fn caught(runtime: &Runtime, fault: Fault, name: &str, by_sequences: bool) -> Result<(), Failed> {
    let all = cases();
    let case = all
        .iter()
        .find(|case| case.name() == name)
        .ok_or_else(|| format!("`{name}` names no case"))?;
    let sound = runtime.block_on(case.run(Arc::new(Faulty(Fault::None))));
    if !matches!(sound.outcome(), Outcome::Passed) {
        return Err(format!("without the fault:\n{sound}").into());
    }
    let found = runtime.block_on(case.run(Arc::new(Faulty(fault))));
    if !matches!(found.outcome(), Outcome::Failed(_)) {
        return Err(format!("not noticed:\n{found}").into());
    }
    let sequences = all
        .iter()
        .filter(|case| case.name().starts_with("sequences::"));
    if by_sequences
        && !sequences
            .into_iter()
            .any(|case| fails(runtime, case, fault))
    {
        return Err("noticed by its case, and by no random sequence".into());
    }
    Ok(())
}

fn fails(runtime: &Runtime, case: &Case, fault: Fault) -> bool {
    let report = runtime.block_on(case.run(Arc::new(Faulty(fault))));
    matches!(report.outcome(), Outcome::Failed(_))
}

struct Faulty(Fault);

struct FaultyStore {
    inner: Memory,
    first: Arc<Broken>,
    fault: Fault,
    clock: Arc<ManualClock>,
}

#[async_trait]
impl Fixture for Faulty {
    async fn open(&self) -> Result<Box<dyn Store>, FixtureError> {
        let clock = Arc::new(ManualClock::new());
        let inner = Memory::with_clock(clock.clone());
        Ok(Box::new(FaultyStore {
            first: Arc::new(Broken::new(inner.clone(), self.0)),
            inner,
            fault: self.0,
            clock,
        }))
    }
}

#[async_trait]
impl Store for FaultyStore {
    fn backend(&self) -> SharedBackend {
        self.first.clone()
    }

    fn clock(&self) -> Option<Arc<ManualClock>> {
        Some(self.clock.clone())
    }

    async fn another_handle(&self) -> Result<Option<SharedBackend>, FixtureError> {
        Ok(Some(if self.fault == Fault::ReadsStale {
            Arc::new(Broken::new(self.inner.clone(), self.fault))
        } else {
            self.first.clone()
        }))
    }
}
