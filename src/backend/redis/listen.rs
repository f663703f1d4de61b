//! Hearing of releases, for those who wait for a lease.
//!
//! A connection of its own: the server cuts off subscribers that let much
//! output pile up, and a large state is much.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, PushInfo, PushKind, Value};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::connection::{Target, pause_after};
use crate::backend::Waiters;
use crate::clock::{Clock, SystemClock};
use crate::resource::ResourceName;

/// Those who wait, and the task that wakes them; it begins when somebody
/// waits for the first time.
#[derive(Debug)]
pub(super) struct Listener {
    waiters: Arc<Waiters>,
    task: OnceLock<JoinHandle<()>>,
}

impl Listener {
    pub(super) fn new() -> Self {
        Self {
            waiters: Arc::new(Waiters::new()),
            task: OnceLock::new(),
        }
    }

    pub(super) fn waiters(&self, target: &Arc<Target>, channel: String) -> &Waiters {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            self.task.get_or_init(|| {
                runtime.spawn(listen(target.clone(), channel, self.waiters.clone()))
            });
        }
        &self.waiters
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

async fn listen(target: Arc<Target>, channel: String, waiters: Arc<Waiters>) {
    let mut failures = 0;
    loop {
        let lost = Arc::new(Notify::new());
        match subscribe(&target, &channel, &waiters, &lost).await {
            Ok(connection) => {
                failures = 0;
                // What ended before was not heard.
                waiters.any_lease_ended();
                lost.notified().await;
                drop(connection);
            }
            // Those who wait look by themselves now and then.
            Err(Refused::ForGood) => return,
            Err(Refused::ForNow) => {}
        }
        failures += 1;
        SystemClock.sleep(pause_after(failures)).await;
    }
}

enum Refused {
    ForNow,
    ForGood,
}

async fn subscribe(
    target: &Target,
    channel: &str,
    waiters: &Arc<Waiters>,
    lost: &Arc<Notify>,
) -> Result<MultiplexedConnection, Refused> {
    let (waiters, lost) = (waiters.clone(), lost.clone());
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(target.connect_timeout))
        .set_response_timeout(Some(target.timeout.max(Duration::from_millis(1))))
        .set_push_sender(move |push: PushInfo| {
            match push.kind {
                PushKind::Disconnection => lost.notify_one(),
                PushKind::Message => match name_in(&push.data) {
                    Some(resource) => waiters.lease_ended(&resource),
                    None => waiters.any_lease_ended(),
                },
                _ => {}
            }
            Ok::<_, std::convert::Infallible>(())
        });
    let refused = |error: ::redis::RedisError| match error.code() {
        Some("NOPERM" | "NOAUTH" | "WRONGPASS") => Refused::ForGood,
        _ => Refused::ForNow,
    };
    let mut connection = target
        .client
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .map_err(refused)?;
    connection.subscribe(channel).await.map_err(refused)?;
    Ok(connection)
}

/// The resource that a message, channel and text, is about.
fn name_in(message: &[Value]) -> Option<ResourceName> {
    match message.get(1)? {
        Value::BulkString(name) => ResourceName::new(std::str::from_utf8(name).ok()?).ok(),
        _ => None,
    }
}
