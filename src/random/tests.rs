use std::collections::BTreeSet;

use super::*;

fn numbers(random: &dyn Random) -> Vec<u64> {
    (0..64).map(|_| random.next_u64()).collect()
}

#[test]
fn a_seed_names_a_sequence() {
    assert_eq!(
        numbers(&SeededRandom::new(1)),
        numbers(&SeededRandom::new(1))
    );
    assert_ne!(
        numbers(&SeededRandom::new(1)),
        numbers(&SeededRandom::new(2))
    );
}

#[test]
fn the_systems_numbers_do_not_repeat() {
    let distinct: BTreeSet<_> = numbers(&SystemRandom).into_iter().collect();
    assert_eq!(distinct.len(), 64);
    assert_ne!(numbers(&SystemRandom), numbers(&SystemRandom));
}
