//! A server that hangs: R25, R26, and the local deadline of who holds a lease.

use std::time::Duration;

use statepact::rules::Op;
use statepact::{Error, LeaseManager, LossReason};
use tokio::sync::oneshot;

use crate::calls::{Answer, Call, Scene};
use crate::support::{Kind, Open, Server, acquire, is_unknown, recovered, res, within};

/// Every call at once, on more of them than there are connections.
async fn every_call_ends(kind: Kind) {
    let server = Server::start(kind);
    let direct = server.open(Open::default()).await;
    let open = Open {
        timeout: Some(Duration::from_millis(300)),
        ..Open::default()
    };
    let tested = server.open(open).await;
    let mut scenes = Vec::new();
    let count = Scene::set_up(&*direct, 0).await.calls().len();
    for number in 0..count as u64 {
        scenes.push(Scene::set_up(&*direct, 1 + number).await);
    }
    recovered(&*tested).await;

    let paused = server.pause();
    let mut sent = Vec::new();
    for (at, scene) in scenes.iter().enumerate() {
        let (name, call) = scene.calls().swap_remove(at);
        let tested = tested.clone();
        sent.push(tokio::spawn(async move {
            let answer = within(name, call.send(&*tested)).await;
            (name, call, answer)
        }));
    }
    let mut commits = Vec::new();
    for ending in sent {
        let (name, call, answer) = ending.await.unwrap();
        let error = answer.unwrap_err();
        let unknown = is_unknown(&error);
        assert!(error.is_retryable() || unknown, "{name}: {error}");
        assert!(call.op().is_some() || !unknown, "{name}: {error}");
        if let Call::Write(Op::Commit(request)) = call
            && request.id.is_some()
        {
            commits.push(request);
        }
    }
    drop(paused);

    recovered(&*tested).await;
    // R26: whatever became of them, sent again they are done once in all.
    for request in commits {
        let call = Call::Write(Op::Commit(request.clone()));
        let answers = [call.send(&*tested).await, call.send(&*tested).await];
        match answers {
            [Ok(first), Ok(second)] => assert_eq!(first, second),
            [Err(Error::Conflict { .. }), Err(Error::Conflict { .. })] => {}
            other => panic!("{other:?}"),
        }
        for write in &request.writes {
            let asked = std::slice::from_ref(&write.resource);
            let state = tested.read(asked).await.unwrap();
            let version = state[0].as_ref().map_or(2, |state| state.version);
            assert!(version <= 3, "done twice: {} {version}", write.resource);
        }
    }
    // A revocation without an answer is done once or not at all.
    for (at, scene) in scenes.iter().enumerate() {
        let (name, call) = scene.calls().swap_remove(at);
        if let Call::Write(Op::Revoke(resource)) = call {
            let Answer::Status(status) = Call::Status(resource).send(&*direct).await.unwrap()
            else {
                panic!("another answer");
            };
            let mark = status.mark.unwrap().get();
            assert!((1..=2).contains(&mark), "{name}: {mark}");
        }
    }
    direct.check(&|_| {}).await.unwrap();
}

/// Its calls would wait far longer than the lease lasts: only the local
/// deadline can end the work.
async fn a_hold_is_lost(kind: Kind) {
    let server = Server::start(kind);
    let open = Open {
        timeout: Some(Duration::from_secs(600)),
        ..Open::default()
    };
    let store = server.open(open).await;
    let leases = LeaseManager::new(store.clone(), Duration::from_secs(1)).unwrap();
    let held = leases.hold("job", "holder").auto_renew();
    let held = held.start().await.unwrap();
    let token = held.lease().unwrap().token;
    let (begun, begins) = oneshot::channel();
    let running = leases
        .hold("other job", "holder")
        .auto_renew()
        .run(|_| async {
            begun.send(()).unwrap();
            std::future::pending::<()>().await;
        });
    let running = tokio::spawn(running);
    begins.await.unwrap();

    let paused = server.pause();
    let reason = within("the loss of the lease", held.lost()).await;
    assert_eq!(reason, LossReason::Expired);
    assert!(matches!(held.lease(), Err(Error::LeaseLost { .. })));
    let stopped = within("the work", running).await.unwrap();
    match stopped {
        Err(Error::LeaseLost { reason, .. }) => assert_eq!(reason, LossReason::Expired),
        other => panic!("{other:?}"),
    }
    drop(paused);

    // The renewal that hung is answered now, and must not bring it back.
    let direct = server.open(Open::default()).await;
    let request = acquire(&[&res("job")], "next", false);
    let next = within("the next owner", async {
        loop {
            match direct.acquire_all(&request).await {
                Ok(leases) => break leases[0].clone(),
                Err(Error::LeaseNotAvailable { .. }) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        }
    })
    .await;
    assert!(next.token > token);
    assert!(held.is_lost());
    assert!(!within("the late release", held.release()).await.unwrap());
    let status = direct.lease_status(&next.resource).await.unwrap();
    assert_eq!(status.lease.unwrap().0, next);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_end_while_redis_hangs() {
    every_call_ends(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_end_while_postgres_hangs() {
    every_call_ends(Kind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_is_lost_by_its_deadline_while_redis_hangs() {
    a_hold_is_lost(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_is_lost_by_its_deadline_while_postgres_hangs() {
    a_hold_is_lost(Kind::Postgres).await;
}
