//! The embedded engine against bad paths, damage, faults and power cuts.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "all of it is test code; clippy knows only functions marked as tests"
)]

mod behaviour;
mod damage;
mod faults;
mod format;
mod paths;
mod power;
mod replaced;
mod support;
mod time;
