//! Servers that die, stop, cannot be reached or forget the scripts: R20, R25,
//! R26.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use statepact::backend::Backend;
use statepact::backend::redis::{Redis, RedisOptions};
use statepact::{Error, ErrorKind};

use crate::server::Server;
use crate::support::{
    Env, Tested, case_list, ensure, fails, lease, private, put, res, same, set, set_with_id, until,
    value,
};

case_list! { "outages":
    what_was_acknowledged_outlives_a_kill,
    a_handle_goes_on_after_a_restart,
    scripts_that_were_flushed_are_sent_again,
    every_call_is_one_round_trip,
    a_write_without_an_answer_is_unknown_and_can_be_sent_again,
    an_acquisition_dropped_in_flight_leaves_no_lease,
    a_server_that_is_not_there_is_unavailable,
    a_server_that_never_answers_is_unavailable,
    a_server_that_is_not_redis_is_refused,
    many_calls_on_a_dead_server_share_their_attempts,
}

/// Commits to a resource of its own until the server is gone; the last value
/// that was acknowledged, and what the next call would have set.
async fn write_until_killed(store: Redis, name: String) -> (u64, u64) {
    let mut acknowledged = 0;
    loop {
        let next = acknowledged + 1;
        match put(&store, &name, &next.to_string()).await {
            Ok(_) => acknowledged = next,
            Err(_) => return (acknowledged, next),
        }
    }
}

async fn what_was_acknowledged_outlives_a_kill(_: Env) -> Tested {
    let server = private(&[])?;
    for round in 0..3 {
        let store = Redis::open(&server.url()).await?;
        let held = lease(&store, &format!("held {round}"), "a").await?;
        let writers: Vec<_> = (0..4)
            .map(|at| {
                let name = format!("r {round} {at}");
                tokio::spawn(write_until_killed(store.clone(), name))
            })
            .collect();
        until("some commits", async || {
            let newest = store.events(0, 1).await?.newest;
            Ok(newest > 50 * (round + 1))
        })
        .await?;
        server.kill();
        let mut ends = Vec::new();
        for writer in writers {
            ends.push(writer.await?);
        }
        server.restart()?;
        let store = Redis::open(&server.url()).await?;
        for (at, (acknowledged, next)) in ends.into_iter().enumerate() {
            let found = value(&store, &format!("r {round} {at}")).await?;
            let found: u64 = found.map_or(Ok(0), |text| text.parse())?;
            ensure(
                &format!("{found} is {acknowledged}, acknowledged, or {next}, in flight"),
                found == acknowledged || found == next,
            )?;
        }
        store.check(&|_| {}).await?;
        // R1: no token is issued again.
        let again = lease(&store, held.resource.as_str(), "a").await?;
        same("the live lease's token", again.token, held.token)?;
    }
    Ok(())
}

async fn a_handle_goes_on_after_a_restart(_: Env) -> Tested {
    let server = private(&[])?;
    let store = Redis::open(&server.url()).await?;
    put(&store, "a", "1").await?;
    for round in 2..6 {
        server.restart()?;
        // That the connection is lost is known without a call: nothing is
        // sent over it, and so nothing has an unknown outcome.
        until("a commit", async || {
            match put(&store, "a", &round.to_string()).await {
                Ok(_) => Ok(true),
                Err(error) if error.is_retryable() => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
        .await?;
        same(
            "the value",
            value(&store, "a").await?,
            Some(round.to_string()),
        )?;
    }
    Ok(())
}

async fn scripts_that_were_flushed_are_sent_again(_: Env) -> Tested {
    let server = private(&[])?;
    let store = Redis::open(&server.url()).await?;
    for round in 1..4_u64 {
        server.done(&["SCRIPT", "FLUSH"])?;
        let taken = lease(&store, "job", "a").await?;
        server.done(&["SCRIPT", "FLUSH"])?;
        let mut commit = set_with_id("job", &round.to_string(), u128::from(round));
        commit.fences.push(taken.fence());
        store.commit(&commit).await?;
        server.done(&["SCRIPT", "FLUSH"])?;
        same(
            "the value",
            value(&store, "job").await?,
            Some(round.to_string()),
        )?;
        server.done(&["SCRIPT", "FLUSH"])?;
        ensure("the release", store.release(&taken).await?)?;
        same("the token", taken.token.get(), round)?;
    }
    Ok(())
}

async fn every_call_is_one_round_trip(_: Env) -> Tested {
    let server = private(&[])?;
    let store = Redis::open(&server.url()).await?;
    // How often the server read from a connection, this question included.
    let reads = || {
        let count = "return tonumber(string.match(
            redis.call('INFO', 'stats'), 'total_reads_processed:(%d+)'))";
        let answer = server.done(&["EVAL", count, "0"])?;
        let number: u64 = answer.trim_start_matches(':').parse()?;
        Ok::<_, crate::server::Failure>(number)
    };
    let first = reads()?;
    let question = reads()? - first;
    // The first time, the server has to be given each script.
    for round in 0..2 {
        let mut before = reads()?;
        let mut counted = |what: &str| {
            let now = reads()?;
            let made = now - before - question;
            before = now;
            if round == 0 {
                return Ok(());
            }
            same(what, made, 1)
        };
        let names = ["a", "b", "c"].map(|name| format!("{name} {round}"));
        let taken = lease(&store, &names[0], "a").await?;
        counted("an acquisition")?;
        store.renew(&taken, taken.ttl).await?;
        counted("a renewal")?;
        let mut commit = set_with_id(&names[0], "1", round);
        for name in &names[1..] {
            commit.writes.extend(set(name, "1").writes);
        }
        commit.fences.push(taken.fence());
        store.commit(&commit).await?;
        counted("a commit to three resources")?;
        store.read(&names.clone().map(|name| res(&name))).await?;
        counted("a read of three resources")?;
        store.guard(&taken).await?;
        counted("a guard")?;
        store.list("", None, 100).await?;
        counted("a list")?;
        store.events(0, 100).await?;
        counted("a page of the history")?;
        store.release(&taken).await?;
        counted("a release")?;
        store.revoke(&taken.resource).await?;
        counted("a revocation")?;
        store.now().await?;
        counted("the time")?;
    }
    Ok(())
}

async fn patient_and_impatient(server: &Server) -> Result<(Redis, Redis), Error> {
    let options = RedisOptions::new(server.url());
    let impatient = options.clone().timeout(Duration::from_millis(200));
    Ok((options.open().await?, impatient.open().await?))
}

async fn a_write_without_an_answer_is_unknown_and_can_be_sent_again(_: Env) -> Tested {
    let server = private(&[])?;
    let (patient, impatient) = patient_and_impatient(&server).await?;
    put(&patient, "a", "0").await?;
    let pid = server.pid().ok_or("no process")?;
    kill_process(pid, Signal::STOP)?;
    let commit = set_with_id("a", "1", 7);
    fails(
        "a commit",
        impatient.commit(&commit).await,
        ErrorKind::OutcomeUnknown,
        "may have been done",
    )?;
    // The connection was given up; a new one cannot be had.
    let hasty = RedisOptions::new(server.url()).connect_timeout(Duration::from_millis(200));
    fails(
        "opening",
        hasty.open().await,
        ErrorKind::Unavailable,
        "within",
    )?;
    kill_process(pid, Signal::CONT)?;
    // The server may still get to what was sent: once in all.
    let receipt = patient.commit(&commit).await?;
    same("sent again", patient.commit(&commit).await?, receipt)?;
    let states = patient.read(&[res("a")]).await?;
    let version = states
        .first()
        .and_then(|state| Some(state.as_ref()?.version));
    same("the version", version, Some(2))
}

/// R25: nobody is left to use the lease, so it must not stay.
async fn an_acquisition_dropped_in_flight_leaves_no_lease(_: Env) -> Tested {
    let server = private(&[])?;
    let store = Redis::open(&server.url()).await?;
    let pid = server.pid().ok_or("no process")?;
    kill_process(pid, Signal::STOP)?;
    let dropped = tokio::time::timeout(Duration::from_millis(300), lease(&store, "job", "a")).await;
    kill_process(pid, Signal::CONT)?;
    ensure("it was dropped", dropped.is_err())?;
    until("the lease is granted, and released", async || {
        let status = store.lease_status(&res("job")).await?;
        Ok(status
            .lease
            .is_some_and(|(_, state)| state == statepact::backend::LeaseState::Released))
    })
    .await?;
    same(
        "the next token",
        lease(&store, "job", "b").await?.token.get(),
        2,
    )
}

async fn a_server_that_is_not_there_is_unavailable(_: Env) -> Tested {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let url = format!("redis://127.0.0.1:{port}");
    fails(
        "opening",
        Redis::open(&url).await,
        ErrorKind::Unavailable,
        &port.to_string(),
    )?;
    // One that was there: nothing was sent, so nothing is unknown.
    let server = private(&[])?;
    let store = Redis::open(&server.url()).await?;
    server.kill();
    until("the loss is seen", async || {
        Ok(matches!(store.now().await, Err(Error::Unavailable { .. })))
    })
    .await?;
    for _ in 0..3 {
        fails(
            "a commit",
            put(&store, "a", "1").await,
            ErrorKind::Unavailable,
            "",
        )?;
        let taken = lease(&store, "a", "o").await;
        fails("an acquisition", taken, ErrorKind::Unavailable, "")?;
    }
    Ok(())
}

async fn a_server_that_never_answers_is_unavailable(_: Env) -> Tested {
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("redis://{}?connect_timeout_ms=200", silent.local_addr()?);
    fails(
        "opening",
        Redis::open(&url).await,
        ErrorKind::Unavailable,
        "200ms",
    )
}

async fn a_server_that_is_not_redis_is_refused(_: Env) -> Tested {
    let other = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("redis://{}", other.local_addr()?);
    let serving = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = other.accept()?;
        let _ = stream.read(&mut [0; 1024])?;
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    });
    fails(
        "opening",
        Redis::open(&url).await,
        ErrorKind::Storage,
        "is it a Redis",
    )?;
    serving.join().map_err(|_| "the other server panicked")??;
    Ok(())
}

async fn many_calls_on_a_dead_server_share_their_attempts(_: Env) -> Tested {
    let server = private(&[])?;
    let store = Arc::new(Redis::open(&server.url()).await?);
    server.kill();
    // Each attempt after a failure is preceded by a pause of up to a second:
    // one after another, so many calls would take minutes.
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.commit(&set("a", "1")).await })
        })
        .collect();
    let all = async {
        for call in calls {
            let answer = call.await?;
            ensure("each fails", answer.is_err())?;
        }
        Ok(())
    };
    tokio::time::timeout(Duration::from_secs(30), all).await?
}
