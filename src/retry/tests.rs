use std::sync::Mutex;

use async_trait::async_trait;

use super::*;
use crate::clock::{Monotonic, Timestamp};
use crate::error::{ErrorKind, LossReason};
use crate::lease::Token;
use crate::random::SeededRandom;
use crate::resource::ResourceName;

/// A clock on which a sleep takes no time but is counted.
#[derive(Debug, Default)]
struct Sleeps(Mutex<Vec<Duration>>);

impl Sleeps {
    fn taken(&self) -> Vec<Duration> {
        self.0.lock().unwrap().clone()
    }
}

#[async_trait]
impl Clock for Sleeps {
    fn monotonic(&self) -> Monotonic {
        Monotonic::from_millis(0).plus(self.taken().iter().sum())
    }
    fn boot_id(&self) -> String {
        String::new()
    }
    fn wall(&self) -> Timestamp {
        Timestamp::EPOCH
    }
    async fn sleep(&self, duration: Duration) {
        self.0.lock().unwrap().push(duration);
    }
}

/// Always the same number.
#[derive(Debug)]
struct Always(u64);

impl Random for Always {
    fn next_u64(&self) -> u64 {
        self.0
    }
}

fn conflict() -> Error {
    Error::Conflict {
        resource: ResourceName::new("a").unwrap(),
        field: None,
    }
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The attempts that are made of work that always fails, and the pauses.
async fn attempts(policy: RetryPolicy, random: &dyn Random, error: Error) -> (u32, Vec<Duration>) {
    let clock = Sleeps::default();
    let mut attempts = Attempts::new(policy, &clock, random);
    let mut made = 1;
    while attempts.after(error.clone()).await.is_ok() {
        made += 1;
    }
    (made, clock.taken())
}

#[test]
fn the_ceiling_doubles_up_to_the_longest_pause() {
    let policy = RetryPolicy::default().pauses(millis(5), millis(1000));
    for (failures, ceiling) in [(0, 5), (1, 10), (2, 20), (7, 640), (8, 1000), (31, 1000)] {
        assert_eq!(policy.ceiling(failures), millis(ceiling));
    }
    for failures in [32, 33, 1000, u32::MAX] {
        assert_eq!(policy.ceiling(failures), millis(1000), "no overflow");
    }
    let endless = policy.pauses(Duration::MAX, Duration::MAX);
    assert_eq!(endless.ceiling(9), Duration::MAX);
    let none = policy.pauses(Duration::ZERO, millis(1000));
    assert_eq!(none.ceiling(u32::MAX), Duration::ZERO);
}

#[tokio::test]
async fn work_is_attempted_as_often_as_the_policy_says() {
    for (policy, expected) in [
        (RetryPolicy::default(), 20),
        (RetryPolicy::default().attempts(3), 3),
        (RetryPolicy::default().attempts(1), 1),
        (RetryPolicy::default().attempts(0), 1),
        (RetryPolicy::none(), 1),
    ] {
        let (made, pauses) = attempts(policy, &Always(0), conflict()).await;
        assert_eq!(made, expected);
        assert_eq!(pauses.len(), expected as usize - 1);
    }
}

#[tokio::test]
async fn the_error_of_the_last_attempt_is_given_back() {
    let clock = Sleeps::default();
    let mut attempts = Attempts::new(RetryPolicy::default().attempts(2), &clock, &Always(0));
    attempts.after(conflict()).await.unwrap();
    let busy = Error::Busy {
        what: "a write",
        waited: millis(1),
    };
    assert_eq!(
        attempts.after(busy).await.unwrap_err().kind(),
        ErrorKind::Busy
    );
}

#[tokio::test]
async fn r19_a_lost_lease_is_not_attempted_again() {
    let lost = Error::LeaseLost {
        resource: ResourceName::new("a").unwrap(),
        token: Token::MIN,
        reason: LossReason::Expired,
    };
    let unknown = Error::OutcomeUnknown {
        message: String::new(),
    };
    for error in [lost, unknown, Error::invalid("ttl", "")] {
        let (made, pauses) = attempts(RetryPolicy::default(), &Always(0), error).await;
        assert_eq!((made, pauses), (1, vec![]));
    }
}

#[tokio::test]
async fn pauses_are_between_zero_and_the_ceiling() {
    let policy = RetryPolicy::default()
        .attempts(200)
        .pauses(millis(5), millis(100))
        .within(Duration::MAX);
    let (_, pauses) = attempts(policy, &SeededRandom::new(7), conflict()).await;
    assert_eq!(pauses.len(), 199);
    for (pause, failures) in pauses.iter().zip(1..) {
        assert!(*pause <= policy.ceiling(failures), "{pause:?}");
    }
    // They are spread over the range, so that those who collided part.
    assert!(pauses.iter().any(|pause| *pause < millis(25)));
    assert!(pauses.iter().any(|pause| *pause > millis(75)));
}

#[tokio::test]
async fn the_longest_pause_is_the_ceiling_itself() {
    let ceiling = millis(10).as_nanos();
    let random = Always(u64::try_from(ceiling).unwrap());
    let policy = RetryPolicy::default()
        .attempts(2)
        .pauses(millis(5), millis(1000));
    let (_, pauses) = attempts(policy, &random, conflict()).await;
    assert_eq!(pauses, [millis(10)]);
}

#[tokio::test]
async fn no_attempt_begins_later_than_the_time_allowed() {
    // Each pause is 10 ms.
    let random = Always(10_000_000);
    let policy = RetryPolicy::default().pauses(millis(10), millis(10));
    for (within, expected) in [(0, 1), (9, 1), (10, 2), (35, 4), (50, 6)] {
        let policy = policy.within(millis(within));
        let (made, _) = attempts(policy, &random, conflict()).await;
        assert_eq!(made, expected, "within {within} ms");
    }
}

#[tokio::test]
async fn pauses_that_no_number_of_nanoseconds_can_tell_do_not_overflow() {
    let policy = RetryPolicy::default()
        .attempts(3)
        .pauses(Duration::MAX, Duration::MAX);
    let (made, _) = attempts(policy, &Always(u64::MAX), conflict()).await;
    assert_eq!(made, 1, "they would end after the time allowed");
}
