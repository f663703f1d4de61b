//! Hearing that a lease has ended in another process: a connection of its own
//! that listens, while somebody waits.
//!
//! A release notifies in its own transaction. Where listening is of no use,
//! behind a pooler that gives each transaction another server connection, who
//! waits looks now and then instead; nothing is said of it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_postgres::{AsyncMessage, Config};

use super::connection::{Statement, text};
use super::schema::quoted;
use super::store::Store;
use super::tls::Tls;
use crate::clock::{Clock, SystemClock};
use crate::resource::ResourceName;

/// How long to wait for the notification that shows that they arrive.
const PROBE_WAIT: Duration = Duration::from_secs(5);
/// The pause before another attempt to connect.
const PAUSE: Duration = Duration::from_secs(1);
/// How often to look whether anybody still waits, and how often nobody may
/// have before the connection is closed.
const LOOK: (Duration, u32) = (Duration::from_secs(5), 6);

/// What a notification says when it is not the name of a resource: it has a
/// control character, as no name does.
const PROBE: &str = "\u{1}probe";

/// Listens when it is needed.
#[derive(Debug)]
pub(super) struct Listener {
    target: Option<(Config, Tls)>,
    running: AtomicBool,
    /// Closed with the store.
    open: watch::Sender<()>,
}

/// How listening ended.
enum End {
    /// The connection was lost.
    Lost,
    /// Notifications do not arrive.
    Useless,
    /// Nobody waits any more.
    Idle,
}

impl Listener {
    pub(super) fn new(target: Option<(Config, Tls)>) -> Self {
        Self {
            target,
            running: AtomicBool::new(false),
            open: watch::Sender::new(()),
        }
    }
}

/// Begins to listen, unless that is going on.
pub(super) fn ensure(store: &Arc<Store>) {
    let listener = &store.listener;
    let Some((config, tls)) = &listener.target else {
        return;
    };
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    if listener.running.swap(true, Ordering::AcqRel) {
        return;
    }
    let running = Running(Arc::downgrade(store));
    let (config, tls) = (config.clone(), tls.clone());
    let mut open = listener.open.subscribe();
    runtime.spawn(async move {
        let mut closed = pin!(open.changed());
        loop {
            let end = tokio::select! {
                biased;
                // The sender never sends: it is gone, and the store with it.
                _ = &mut closed => return,
                end = listen(&running.0, &config, &tls) => end,
            };
            match end {
                End::Idle => return,
                // For as long as the store is open.
                End::Useless => {
                    let _ = closed.await;
                    return;
                }
                End::Lost => tokio::select! {
                    _ = &mut closed => return,
                    () = SystemClock.sleep(PAUSE) => {}
                },
            }
        }
    });
}

/// Says that nobody listens any more however it ends, with its runtime too.
struct Running(Weak<Store>);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(store) = self.0.upgrade() {
            store.listener.running.store(false, Ordering::Release);
        }
    }
}

async fn listen(store: &Weak<Store>, config: &Config, tls: &Tls) -> End {
    let Ok((client, mut connection)) = config.connect(tls.clone()).await else {
        return End::Lost;
    };
    let (heard, mut hear) = mpsc::unbounded_channel();
    // Ends with the client.
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message {
                let _ = heard.send(notification);
            }
        }
    });
    let Some(channel) = store.upgrade().map(|store| store.schema.clone()) else {
        return End::Idle;
    };
    if client
        .batch_execute(&format!("LISTEN {}", quoted(&channel)))
        .await
        .is_err()
    {
        return End::Lost;
    }
    // Sent by another connection, as those to come are.
    if let Some(store) = store.upgrade() {
        let probe = Statement::query(&store.sql.notify, vec![text(PROBE)]);
        if store.ask(probe).await.is_err() {
            return End::Lost;
        }
    }
    let mut proven = false;
    let mut idle = 0;
    loop {
        let pause = if proven { LOOK.0 } else { PROBE_WAIT };
        let message = tokio::select! {
            biased;
            message = hear.recv() => message.map(Some),
            () = SystemClock.sleep(pause) => Some(None),
        };
        let Some(store) = store.upgrade() else {
            return End::Idle;
        };
        match message {
            None => return End::Lost,
            Some(Some(notification)) => {
                if !proven {
                    proven = true;
                    // What has ended until now was not heard of.
                    store.waiters.any_lease_ended();
                }
                if let Ok(resource) = ResourceName::new(notification.payload()) {
                    store.waiters.lease_ended(&resource);
                }
            }
            Some(None) if !proven => {
                let _ = client.batch_execute("UNLISTEN *").await;
                return End::Useless;
            }
            Some(None) if store.waiters.waited_for().is_empty() => {
                idle += 1;
                if idle >= LOOK.1 {
                    return End::Idle;
                }
            }
            Some(None) => idle = 0,
        }
    }
}
