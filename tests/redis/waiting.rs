//! Waiting for a lease that another process holds.

use std::sync::Arc;
use std::time::Duration;

use statepact::backend::Backend;
use statepact::backend::redis::Redis;
use statepact::clock::ManualClock;
use statepact::{Lease, StateManager};
use tokio::task::JoinHandle;

use crate::server::Server;
use crate::support::{Env, LONG, Tested, case_list, lease, private, same, until};

case_list! { "waiting":
    a_release_elsewhere_wakes_who_waits,
    a_revocation_elsewhere_wakes_who_waits,
    a_release_is_heard_after_the_subscription_was_cut,
    a_release_is_heard_after_the_server_came_back,
}

/// Waits with a clock that stands still: no look at the store by itself, so
/// that only being told ends the wait. A wait that found the server away is
/// begun again.
fn wait_untimed(store: &Redis) -> JoinHandle<Result<Lease, statepact::Error>> {
    let manager =
        StateManager::new(Arc::new(store.clone())).with_clock(Arc::new(ManualClock::new()));
    tokio::spawn(async move {
        loop {
            let waiting = manager.lease("job", "waiter", Duration::from_secs(3600));
            match waiting.wait_forever().await {
                Err(error) if error.is_retryable() => {}
                Err(statepact::Error::OutcomeUnknown { .. }) => {}
                answer => return answer,
            }
        }
    })
}

async fn woken(waiter: JoinHandle<Result<Lease, statepact::Error>>, token: u64) -> Tested {
    let lease = tokio::time::timeout(LONG, waiter).await???;
    same("the waiter's token", lease.token.get(), token)
}

/// Waits until somebody listens on the store's channel.
async fn heard(server: &Server, prefix: &str) -> Tested {
    let channel = format!("{{{prefix}}}:released");
    let count = "return redis.call('PUBSUB', 'NUMSUB', ARGV[1])[2]";
    until("somebody listens", async || {
        Ok(server.done(&["EVAL", count, "0", &channel])? == ":1")
    })
    .await
}

async fn a_release_elsewhere_wakes_who_waits(env: Env) -> Tested {
    let prefix = crate::new_prefix();
    let options = env.options().prefix(&prefix);
    let (here, there) = (options.clone().open().await?, options.open().await?);
    let held = lease(&there, "job", "holder").await?;
    let waiter = wait_untimed(&here);
    heard(&env.server, &prefix).await?;
    there.release(&held).await?;
    woken(waiter, 2).await
}

async fn a_revocation_elsewhere_wakes_who_waits(env: Env) -> Tested {
    let prefix = crate::new_prefix();
    let options = env.options().prefix(&prefix);
    let (here, there) = (options.clone().open().await?, options.open().await?);
    let held = lease(&there, "job", "holder").await?;
    let waiter = wait_untimed(&here);
    heard(&env.server, &prefix).await?;
    there.revoke(&held.resource).await?;
    woken(waiter, 3).await
}

async fn a_release_is_heard_after_the_subscription_was_cut(_: Env) -> Tested {
    let server = private(&[])?;
    let (here, there) = (
        Redis::open(&server.url()).await?,
        Redis::open(&server.url()).await?,
    );
    let held = lease(&there, "job", "holder").await?;
    let waiter = wait_untimed(&here);
    heard(&server, "statepact").await?;
    server.done(&["CLIENT", "KILL", "TYPE", "pubsub"])?;
    there.release(&held).await?;
    woken(waiter, 2).await
}

async fn a_release_is_heard_after_the_server_came_back(_: Env) -> Tested {
    let server = private(&[])?;
    let (here, there) = (
        Redis::open(&server.url()).await?,
        Redis::open(&server.url()).await?,
    );
    let held = lease(&there, "job", "holder").await?;
    let waiter = wait_untimed(&here);
    heard(&server, "statepact").await?;
    server.restart()?;
    heard(&server, "statepact").await?;
    until("the release", async || match there.release(&held).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_retryable() => Ok(false),
        Err(error) => Err(error.into()),
    })
    .await?;
    woken(waiter, 2).await
}
