//! R20 under power cuts: what a disk may hold after one is rebuilt from the
//! recorded writes and syncs, opened, and asked.

use std::sync::Arc;

use statepact::backend::embedded::Embedded;
use statepact::random::{Random, SeededRandom};
use statepact::{Backend, ResourceName};

use crate::support::{Probe, Sample, Step, check, lease, name, put, request, runtime, value};

/// What the file may hold if power fails after `cut` steps: all that was
/// synced, and of each later write any part, in units of `grain` bytes.
fn image(base: &[u8], steps: &[Step], cut: usize, grain: usize, random: &SeededRandom) -> Vec<u8> {
    let synced = steps[..cut].iter().rposition(|step| *step == Step::Sync);
    disk(base, &steps[..cut], synced, grain, random)
}

/// As [`image`], with all that comes before the step `synced` on the disk.
fn disk(
    base: &[u8],
    steps: &[Step],
    synced: Option<usize>,
    grain: usize,
    random: &SeededRandom,
) -> Vec<u8> {
    let mut file = base.to_vec();
    for (n, step) in steps.iter().enumerate() {
        let sure = Some(n) < synced;
        let happens = || sure || random.next_u64().is_multiple_of(2);
        match step {
            Step::Write { offset, data } => {
                let mut at = usize::try_from(*offset).unwrap();
                let mut data = data.as_slice();
                while !data.is_empty() {
                    let (unit, rest) = data.split_at(data.len().min(grain - at % grain));
                    if happens() {
                        if file.len() < at + unit.len() {
                            file.resize(at + unit.len(), 0);
                        }
                        file[at..at + unit.len()].copy_from_slice(unit);
                    }
                    at += unit.len();
                    data = rest;
                }
            }
            Step::SetLen(len) if happens() => file.resize(usize::try_from(*len).unwrap(), 0),
            Step::SetLen(_) | Step::Sync | Step::Acknowledged(_) => {}
        }
    }
    file
}

fn acknowledged(steps: &[Step]) -> u64 {
    let last = steps.iter().rev().find_map(|step| match step {
        Step::Acknowledged(number) => Some(*number),
        _ => None,
    });
    last.unwrap_or(0)
}

fn pair() -> [ResourceName; 2] {
    [name("left"), name("right")]
}

/// What the store holds is every acknowledged commit, at most the one more
/// that was under way, and no half of any.
fn verify(store: &Embedded, acknowledged: u64) -> u64 {
    let [left, right] = ["left", "right"].map(|side| value(store, side).unwrap().unwrap_or(0));
    assert_eq!(left, right, "half of a commit");
    assert!(
        left == acknowledged || left == acknowledged + 1,
        "{acknowledged} were acknowledged, and {left} is there"
    );
    check(store).unwrap();
    // The history agrees with the state.
    let page = runtime().block_on(store.events(0, usize::MAX)).unwrap();
    let commits = page
        .events
        .iter()
        .filter(|event| event.kind.concerns(&pair()[0]))
        .count();
    assert_eq!(commits as u64, left);
    left
}

/// Commits, leases and growth, recorded.
fn record(sample: &Sample, commits: u64) -> (Vec<u8>, Vec<Step>) {
    let base = std::fs::read(sample.path()).unwrap();
    let probe = Arc::new(Probe::default());
    let store = sample
        .options()
        .probe(probe.clone())
        .open_blocking(sample.path())
        .unwrap();
    for number in 1..=commits {
        store.commit_blocking(&request(&pair(), number)).unwrap();
        probe.push(Step::Acknowledged(number));
        if number % 4 == 0 {
            let lease = lease(&store, "job", &format!("owner-{number}")).unwrap();
            assert_eq!(lease.token.get(), number / 4);
            store.release_blocking(&lease).unwrap();
        }
        if number % 10 == 0 {
            // The file grows.
            let many: Vec<_> = (0..200)
                .map(|n| name(&format!("many/{number}/{n}")))
                .collect();
            store.commit_blocking(&request(&many, number)).unwrap();
        }
    }
    // A power cut, not a clean close.
    let steps = probe.steps();
    drop(store);
    (base, steps)
}

#[test]
fn a_power_cut_loses_no_acknowledged_commit_and_leaves_no_half_r20() {
    let sample = Sample::new(3);
    let (base, steps) = record(&sample, 40);
    let writes = steps
        .iter()
        .filter(|step| matches!(step, Step::Write { .. }))
        .count();
    let grows = steps
        .iter()
        .filter(|step| matches!(step, Step::SetLen(_)))
        .count();
    assert!(writes > 200 && grows > 0, "{writes} writes, {grows} grows");
    let random = SeededRandom::new(20);
    let path = sample.file("image.redb");
    let mut later = 0;
    for round in 0..600 {
        let cut = usize::try_from(random.next_u64()).unwrap() % (steps.len() + 1);
        let grain = if round % 2 == 0 { 4096 } else { 512 };
        put(&path, &image(&base, &steps, cut, grain, &random));
        // Verified as a whole on opening, or not.
        let whole = if round % 3 == 0 { 0 } else { u64::MAX };
        let store = sample.options().verify_up_to(whole).open_blocking(&path);
        let store = store.unwrap_or_else(|error| panic!("cut {cut}, round {round}: {error:?}"));
        let known = acknowledged(&steps[..cut]);
        let there = verify(&store, known);
        later += there - known;
        // And it goes on from there.
        store.commit_blocking(&request(&pair(), there + 1)).unwrap();
        verify(&store, there + 1);
        // The marks of all leases whose answer came before that commit's.
        let status = store.lease_status_blocking(&name("job")).unwrap();
        let mark = status.mark.map_or(0, statepact::Token::get);
        assert!(mark >= known.saturating_sub(1) / 4, "{known}: mark {mark}");
    }
    assert!(later > 0, "no cut hit between a commit and its answer");
}

/// A second cut, while the store recovers from the first.
#[test]
fn a_power_cut_during_recovery_loses_nothing_r20() {
    let sample = Sample::new(3);
    let (base, steps) = record(&sample, 20);
    let random = SeededRandom::new(21);
    let path = sample.file("image.redb");
    for round in 0..150 {
        let cut = usize::try_from(random.next_u64()).unwrap() % (steps.len() + 1);
        let known = acknowledged(&steps[..cut]);
        let first = image(&base, &steps, cut, 4096, &random);
        put(&path, &first);
        let probe = Arc::new(Probe::default());
        let store = sample
            .options()
            .probe(probe.clone())
            .open_blocking(&path)
            .unwrap();
        let mut there = verify(&store, known);
        probe.push(Step::Acknowledged(there));
        if round % 2 == 0 {
            there += 1;
            store.commit_blocking(&request(&pair(), there)).unwrap();
            probe.push(Step::Acknowledged(there));
        }
        drop(store);
        let recovery = probe.steps();
        let cut = usize::try_from(random.next_u64()).unwrap() % (recovery.len() + 1);
        put(&path, &image(&first, &recovery, cut, 512, &random));
        let store = sample.options().open_blocking(&path).unwrap();
        verify(&store, acknowledged(&recovery[..cut]).max(known));
    }
}

/// The images can tell: a disk that ignores syncs does lose commits.
#[test]
fn a_disk_that_ignores_syncs_loses_commits() {
    let sample = Sample::new(3);
    let (base, steps) = record(&sample, 5);
    let random = SeededRandom::new(22);
    let path = sample.file("image.redb");
    let lost = (0..100).any(|_| {
        put(&path, &disk(&base, &steps, None, 4096, &random));
        let store = sample.options().open_blocking(&path);
        !store.is_ok_and(|store| value(&store, "left").is_ok_and(|left| left == Some(5)))
    });
    assert!(lost);
}
