//! Who owns: races, takeovers, owners that sleep through their expiry.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use statepact::clock::{Clock, SystemClock};
use statepact::event::EventKind;
use statepact::random::{Random, SeededRandom};
use statepact::{Error, Lease, LeaseManager, LossReason, StateManager, Ttl};

use crate::harness::{Place, Worker, check, history, open, runtime};
use crate::workers::told;

fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}

/// R2, R4: of eight that ask at once, one gets the lease, with the next token;
/// on new resources, and again and again on one.
pub(crate) fn race() {
    let place = Place::new();
    let store = place.open();
    let mut workers: Vec<_> = (0..8)
        .map(|n| Worker::start("race", &[place.text(), &format!("racer-{n}")]))
        .collect();
    for worker in &workers {
        worker.hear_after("ready");
    }
    for round in 0..50_u64 {
        let (resource, token) = if round < 25 {
            (format!("round-{round}"), 1)
        } else {
            ("again".to_owned(), round - 24)
        };
        let at = SystemClock.monotonic().as_millis() + 5;
        for worker in &mut workers {
            worker.tell(&format!("{resource} {at}"));
        }
        let said: Vec<_> = workers.iter().map(Worker::hear).collect();
        let winners: Vec<_> = (0..8).filter(|n| said[*n].starts_with("won")).collect();
        assert_eq!(winners.len(), 1, "round {round}: {said:?}");
        let winner = winners[0];
        assert_eq!(said[winner], format!("won {token}"), "round {round}");
        for (n, said) in said.iter().enumerate().filter(|(n, _)| *n != winner) {
            assert_eq!(*said, format!("lost to racer-{winner}"), "racer {n}");
        }
        workers[winner].tell("release");
        assert_eq!(workers[winner].hear(), "released true");
    }
    for worker in workers {
        assert!(worker.finish().is_empty());
    }
    check(&store);
}

pub(crate) fn work_race(path: &str, owner: &str) {
    let store = open(path.as_ref());
    let ttl = Ttl::from_millis(60_000).unwrap();
    let owner = owner.try_into().unwrap();
    let mut held: Option<Lease> = None;
    println!("ready");
    for line in told() {
        let Some((resource, at)) = line.split_once(' ') else {
            let released = store.release_blocking(&held.take().unwrap()).unwrap();
            println!("released {released}");
            continue;
        };
        pause(
            at.parse::<u64>()
                .unwrap()
                .saturating_sub(SystemClock.monotonic().as_millis()),
        );
        match store.lease_blocking(&resource.try_into().unwrap(), &owner, ttl) {
            Ok(lease) => {
                println!("won {}", lease.token);
                held = Some(lease);
            }
            Err(Error::LeaseNotAvailable { owner, .. }) => println!("lost to {owner}"),
            Err(error) => println!("failed: {error:?}"),
        }
    }
}

/// R29: of several processes that make a store at once, one makes it, and all
/// use that one; one that is killed while it does leaves no half of a store.
pub(crate) fn create() {
    let random = SeededRandom::new(29);
    for round in 0..40 {
        let place = Place::new();
        let workers: Vec<_> = (0..4)
            .map(|n| Worker::start("make", &[place.text(), &format!("job-{n}")]))
            .collect();
        let mut acknowledged = Vec::new();
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_micros(random.next_u64() % 30_000));
            for (n, worker) in workers.into_iter().enumerate() {
                if !worker.kill().is_empty() {
                    acknowledged.push(n);
                }
            }
        } else {
            for (n, worker) in workers.into_iter().enumerate() {
                assert_eq!(worker.finish(), ["made 1"], "maker {n}");
                acknowledged.push(n);
            }
        }
        let store = place.open();
        check(&store);
        for n in acknowledged {
            let resource = format!("job-{n}").as_str().try_into().unwrap();
            let status = store.lease_status_blocking(&resource).unwrap();
            assert!(
                status.mark.is_some(),
                "round {round}: the lease of {n} is lost"
            );
        }
    }
}

pub(crate) fn work_make(path: &str, resource: &str) {
    let store = open(path.as_ref());
    let ttl = Ttl::from_millis(60_000).unwrap();
    let lease = store
        .lease_blocking(
            &resource.try_into().unwrap(),
            &"maker".try_into().unwrap(),
            ttl,
        )
        .unwrap();
    println!("made {}", lease.token);
}

/// R1: a token is never issued twice and always grows, over more than 200
/// takeovers by expiry, release and kill -9.
pub(crate) fn takeovers() {
    let place = Place::new();
    let random = SeededRandom::new(1);
    let mut incarnation = 0;
    let mut start = || {
        incarnation += 1;
        let owner = format!("taker-{incarnation}");
        (Worker::start("take", &[place.text(), &owner]), 0_u64)
    };
    let mut workers: Vec<_> = (0..4).map(|_| start()).collect();
    let mut tokens = BTreeSet::new();
    let mut hear = |line: &str, last: &mut u64| {
        let token: u64 = line.strip_prefix("took ").expect(line).parse().unwrap();
        assert!(token > *last, "{token} after {last}");
        *last = token;
        assert!(tokens.insert(token), "token {token} was issued twice");
        tokens.len()
    };
    let began = SystemClock.monotonic();
    let mut heard = 0;
    let mut killed = 0;
    while heard < 200 || killed < 20 {
        let waited = SystemClock.monotonic().since(began);
        assert!(waited < Duration::from_secs(300), "{heard} takeovers");
        for (worker, last) in &mut workers {
            for line in worker.drain() {
                heard = hear(&line, last);
            }
        }
        if heard / 8 > killed {
            killed += 1;
            let slot = usize::try_from(random.next_u64() % 4).unwrap();
            pause(random.next_u64() % 10);
            let (worker, mut last) = std::mem::replace(&mut workers[slot], start());
            for line in worker.kill() {
                heard = hear(&line, &mut last);
            }
        }
        pause(1);
    }
    for (worker, mut last) in workers {
        for line in worker.kill() {
            hear(&line, &mut last);
        }
    }

    let store = place.open();
    check(&store);
    let issued: Vec<u64> = history(&store)
        .into_iter()
        .filter_map(|event| match event.kind {
            EventKind::Acquired { token, .. } => Some(token.get()),
            _ => None,
        })
        .collect();
    assert!(issued.is_sorted_by(|one, next| one < next), "{issued:?}");
    let issued: BTreeSet<u64> = issued.into_iter().collect();
    assert!(
        tokens.is_subset(&issued),
        "a token that was granted is not in the history: {:?}",
        tokens.difference(&issued)
    );
}

pub(crate) fn work_take(path: &str, owner: &str) {
    let store = open(path.as_ref());
    let ttl = Ttl::from_millis(4).unwrap();
    let (resource, owner) = ("job".try_into().unwrap(), owner.try_into().unwrap());
    let mut last = None;
    loop {
        match store.lease_blocking(&resource, &owner, ttl) {
            // Asked again in time, the owner keeps its token (R3).
            Ok(lease) if Some(lease.token) == last => {}
            Ok(lease) => {
                println!("took {}", lease.token);
                last = Some(lease.token);
                if lease.token.get().is_multiple_of(3) {
                    // False if it has expired.
                    store.release_blocking(&lease).unwrap();
                }
                pause(5);
            }
            Err(Error::LeaseNotAvailable { .. }) => pause(1),
            Err(error) => println!("failed: {error:?}"),
        }
    }
}

/// The story that fencing is for: an owner is stopped, its lease runs out,
/// another takes over and writes; the first wakes up and writes what it had in
/// mind. It is refused, and changes nothing.
pub(crate) fn stale_owner() {
    for round in 0..6 {
        let place = Place::new();
        let manager = StateManager::new(Arc::new(place.open()));
        let mut sleeper = Worker::start("own", &[place.text()]);
        let old: u64 = sleeper.hear_after("held").parse().unwrap();
        sleeper.stop();
        // It finds this when it wakes up.
        sleeper.tell("write");

        runtime().block_on(async {
            let lease = manager
                .lease("job-42", "successor", Duration::from_secs(60))
                .wait(Duration::from_secs(30))
                .await
                .unwrap();
            assert_eq!(lease.token.get(), old + 1);
            let write = async |value: &str| {
                let mut session = manager
                    .session("successor")
                    .resource("orders/7")
                    .fence(&lease)
                    .begin()
                    .await
                    .unwrap();
                session.write("orders/7", "by", value).unwrap();
                session.commit().await.unwrap();
            };
            if round % 2 == 0 {
                write("successor").await;
            }
            sleeper.go_on();
            assert_eq!(
                sleeper.hear(),
                format!("lost job-42 {old} superseded by {}", old + 1)
            );
            // Nor does it touch the successor's lease.
            assert_eq!(sleeper.hear(), "released false");
            assert_eq!(sleeper.hear(), "guard superseded");
            if round % 2 == 1 {
                write("successor").await;
            }
            manager.backend().guard(&lease).await.unwrap();
            let states = manager
                .backend()
                .read(&["orders/7".try_into().unwrap()])
                .await
                .unwrap();
            let state = states[0].as_ref().unwrap();
            assert_eq!(state.fields["by"].value.as_str(), r#""successor""#);
            assert_eq!(state.version, 1, "the stale write left no trace");
        });
        assert!(sleeper.finish().is_empty());
    }
}

pub(crate) fn work_own(path: &str) {
    let manager = StateManager::new(Arc::new(open(path.as_ref())));
    runtime().block_on(async {
        let lease = manager
            .lease("job-42", "sleeper", Duration::from_millis(300))
            .await
            .unwrap();
        println!("held {}", lease.token);
        for _ in told() {
            let attempt = async {
                let mut session = manager
                    .session("sleeper")
                    .resource("orders/7")
                    .fence(&lease)
                    .isolation(statepact::Isolation::ReadCommitted)
                    .begin()
                    .await?;
                session.write("orders/7", "by", "sleeper")?;
                session.commit().await
            };
            match attempt.await {
                Err(Error::LeaseLost {
                    resource,
                    token,
                    reason: LossReason::Superseded { by },
                }) => println!("lost {resource} {token} superseded by {by}"),
                other => println!("failed: {other:?}"),
            }
            let released = manager.backend().release(&lease).await.unwrap();
            println!("released {released}");
            match manager.backend().guard(&lease).await {
                Err(Error::LeaseLost {
                    reason: LossReason::Superseded { .. },
                    ..
                }) => println!("guard superseded"),
                other => println!("failed: {other:?}"),
            }
        }
    });
}

/// R19: `hold` ends the work of a holder that slept through its lease.
pub(crate) fn stale_holder() {
    let place = Place::new();
    let manager = StateManager::new(Arc::new(place.open()));
    let sleeper = Worker::start("hold", &[place.text()]);
    sleeper.hear_after("held");
    // Renewed in the meantime: longer than its time to live.
    pause(1200);
    assert!(sleeper.drain().is_empty());
    sleeper.stop();
    let lease = runtime()
        .block_on(async {
            manager
                .lease("job-42", "successor", Duration::from_secs(60))
                .wait(Duration::from_secs(30))
                .await
        })
        .unwrap();
    sleeper.go_on();
    let reason = sleeper.hear_after("lost job-42 1");
    assert!(
        reason == "Expired" || reason == format!("Superseded {{ by: Token({}) }}", lease.token),
        "{reason}"
    );
    assert!(sleeper.finish().is_empty(), "the work went on");
    runtime()
        .block_on(manager.backend().guard(&lease))
        .expect("the successor's lease was not touched");
}

pub(crate) fn work_hold(path: &str) {
    let backend = Arc::new(open(path.as_ref()));
    runtime().block_on(async {
        StateManager::new(backend.clone())
            .lease("job-42", "sleeper", Duration::from_secs(1))
            .await
            .unwrap();
        let leases = LeaseManager::new(backend, Duration::from_secs(1)).unwrap();
        let held = leases
            .hold("job-42", "sleeper")
            .auto_renew()
            .run(|_| async {
                println!("held");
                std::future::pending::<()>().await;
            })
            .await;
        match held {
            Err(Error::LeaseLost {
                resource,
                token,
                reason,
            }) => println!("lost {resource} {token} {reason:?}"),
            other => println!("failed: {other:?}"),
        }
    });
}
