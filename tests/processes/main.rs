//! The embedded engine under several real processes: races, kills, stops.
//!
//! This binary runs itself again as its worker processes; see `harness`.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "all of it is test code; clippy knows only functions marked as tests"
)]

mod counting;
mod harness;
mod kills;
mod owners;
mod stops;
mod workers;

use libtest_mimic::{Arguments, Trial};

fn main() {
    if let Ok(role) = std::env::var(harness::ROLE) {
        harness::die_with_parent();
        workers::run(&role);
        return;
    }
    let mut arguments = Arguments::from_args();
    // They compete for the machine's cores as it is, and time out when slowed.
    arguments.test_threads.get_or_insert(1);
    let trial = |name: &str, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    libtest_mimic::run(
        &arguments,
        vec![
            trial("an_acquisition_race_has_one_winner_r2_r4", owners::race),
            trial(
                "processes_that_make_a_store_at_once_make_one_r29",
                owners::create,
            ),
            trial("no_update_is_lost_between_processes_r22", counting::count),
            trial(
                "tokens_only_grow_over_takeovers_and_kills_r1",
                owners::takeovers,
            ),
            trial(
                "kill_9_loses_no_acknowledged_commit_and_leaves_no_half_r20",
                kills::kill_writers,
            ),
            trial(
                "a_process_stopped_at_random_hangs_nobody",
                stops::stop_at_random,
            ),
            trial(
                "a_process_stopped_inside_each_kind_of_write_hangs_nobody",
                stops::stop_at_each_operation,
            ),
            trial(
                "a_stopped_owner_is_refused_on_waking_r13",
                owners::stale_owner,
            ),
            trial(
                "a_stopped_holder_hears_of_its_loss_on_waking_r19",
                owners::stale_holder,
            ),
        ],
    )
    .exit();
}
