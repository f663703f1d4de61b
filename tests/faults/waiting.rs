//! Waiting for a lease through another handle, a restart, and by those who
//! give up: R3, R25.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use statepact::backend::Backend;
use statepact::clock::{Clock, ManualClock, SystemClock};
use statepact::random::{Random, SeededRandom};
use statepact::{Error, Lease, Result, StateManager};
use tokio::task::JoinHandle;

use crate::support::{Kind, Open, Server, acquire, hour, recovered, res, within};

type Waiting = JoinHandle<Result<Lease>>;

struct World {
    server: Server,
    here: Arc<dyn Backend>,
    there: Arc<dyn Backend>,
}

async fn world(kind: Kind) -> World {
    let server = Server::start(kind);
    World {
        here: server.open(Open::default()).await,
        there: server.open(Open::default()).await,
        server,
    }
}

impl World {
    async fn hold(&self) -> Lease {
        let request = acquire(&[&res("job")], "holder", true);
        within("the holder", async {
            loop {
                match self.there.acquire_all(&request).await {
                    Ok(leases) => break leases[0].clone(),
                    Err(Error::LeaseNotAvailable { .. }) => {
                        SystemClock.sleep(Duration::from_millis(1)).await;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        })
        .await
    }

    /// Begins to wait here; it has its place in the queue when this returns.
    async fn wait(&self, owner: &str, clock: Arc<dyn Clock>, longest: Option<Duration>) -> Waiting {
        let manager = StateManager::new(self.here.clone()).with_clock(clock);
        let request = manager.lease("job", owner, hour().as_duration());
        let request = match longest {
            Some(longest) => request.wait(longest),
            None => request.wait_forever(),
        };
        let mut request = request.into_future();
        let early = std::future::poll_fn(|context| {
            Poll::Ready(match request.as_mut().poll(context) {
                Poll::Ready(answer) => Some(answer),
                Poll::Pending => None,
            })
        })
        .await;
        assert!(early.is_none(), "{early:?}");
        tokio::spawn(request)
    }
}

async fn granted(waiting: Waiting) -> Lease {
    within("a waiter", waiting).await.unwrap().unwrap()
}

/// The waiters' clock stands still: they never look by themselves. Released
/// once more than heard at first: the subscription may begin late.
async fn a_release_elsewhere_wakes(kind: Kind) {
    let world = world(kind).await;
    let mut last = world.hold().await;
    for _ in 0..20 {
        let still = Arc::new(ManualClock::new());
        let waiting = world.wait("waiter", still, None).await;
        // The waiter may make its first attempt after the release; most do not.
        world.there.release(&last).await.unwrap();
        let lease = granted(waiting).await;
        assert!(lease.token > last.token);
        assert!(world.there.release(&lease).await.unwrap());
        last = world.hold().await;
    }
}

async fn a_wait_survives_a_restart(kind: Kind) {
    let world = world(kind).await;
    let held = world.hold().await;
    let mut waiting = Vec::new();
    for owner in ["first", "second"] {
        waiting.push(world.wait(owner, Arc::new(SystemClock), None).await);
    }
    // Refused by the server, the first waits.
    SystemClock.sleep(Duration::from_millis(300)).await;
    world.server.kill();
    // It looks at a server that is not there.
    SystemClock.sleep(Duration::from_secs(1)).await;
    world.server.launch();
    recovered(&*world.there).await;
    assert!(waiting.iter().all(|waiter| !waiter.is_finished()));
    assert!(world.there.release(&held).await.unwrap());
    let mut token = held.token;
    for (waiter, owner) in waiting.into_iter().zip(["first", "second"]) {
        let lease = granted(waiter).await;
        assert_eq!(lease.owner.as_str(), owner);
        assert!(lease.token > token);
        token = lease.token;
        assert!(world.there.release(&lease).await.unwrap());
    }
}

async fn who_gave_up_holds_nothing(kind: Kind) {
    let world = world(kind).await;
    let random = SeededRandom::new(7);
    let mut aborted = 0;
    for round in 0..40 {
        let held = world.hold().await;
        let longest = (round % 2 == 0).then(|| Duration::from_millis(20));
        let waiting = world.wait("waiter", Arc::new(SystemClock), longest).await;
        let pause = |most| Duration::from_micros(random.next_u64() % most);
        SystemClock.sleep(pause(20_000)).await;
        let releasing = {
            let there = world.there.clone();
            tokio::spawn(async move { there.release(&held).await })
        };
        tokio::time::timeout(pause(4000), std::future::pending::<()>())
            .await
            .unwrap_err();
        if longest.is_none() {
            waiting.abort();
        }
        match within("a waiter", waiting).await {
            Ok(Ok(lease)) => {
                assert!(world.here.release(&lease).await.unwrap());
            }
            Ok(Err(Error::WaitTimedOut { .. } | Error::Busy { .. })) => {}
            Ok(Err(error)) => panic!("{error}"),
            Err(error) => {
                assert!(error.is_cancelled());
                aborted += 1;
            }
        }
        assert!(releasing.await.unwrap().unwrap());
        // The next round begins when the lease, which would last an hour, is
        // free.
    }
    assert!(aborted > 0);
    let held = world.hold().await;
    assert!(world.there.release(&held).await.unwrap());
}

async fn waiters_are_served_in_order(kind: Kind) {
    let world = world(kind).await;
    let mut held = world.hold().await;
    let owners: Vec<String> = (0..6).map(|number| format!("waiter-{number}")).collect();
    let mut waiting = Vec::new();
    for owner in &owners {
        waiting.push(world.wait(owner, Arc::new(SystemClock), None).await);
    }
    for (waiter, owner) in waiting.into_iter().zip(&owners) {
        assert!(world.there.release(&held).await.unwrap());
        held = granted(waiter).await;
        assert_eq!(held.owner.as_str(), owner);
    }
    assert!(world.here.waiters().unwrap().waited_for().is_empty());
}

macro_rules! on_both {
    ($($work:ident: $redis:ident, $postgres:ident;)+) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $redis() {
            $work(Kind::Redis).await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $postgres() {
            $work(Kind::Postgres).await;
        }
    )+};
}

on_both! {
    a_release_elsewhere_wakes:
        a_release_elsewhere_wakes_who_waits_on_redis,
        a_release_elsewhere_wakes_who_waits_on_postgres;
    a_wait_survives_a_restart:
        a_wait_survives_a_restart_of_redis,
        a_wait_survives_a_restart_of_postgres;
    who_gave_up_holds_nothing:
        who_gave_up_holds_nothing_on_redis,
        who_gave_up_holds_nothing_on_postgres;
    waiters_are_served_in_order:
        waiters_are_served_in_order_on_redis,
        waiters_are_served_in_order_on_postgres;
}
