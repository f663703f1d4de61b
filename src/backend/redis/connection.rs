//! One connection, shared by all calls, made again when it is lost.
//!
//! The library replays nothing. A call is sent a second time in two cases
//! only: the server said that it does not know the script, so that it did not
//! run it; or the call only reads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, PushInfo, PushKind, RedisResult, Value};

use super::errors::{Sent, breaks_connection, from_redis, is_no_script, unanswered};
use super::health;
use super::scripts::Call;
use crate::clock::{Clock, Monotonic, SystemClock};
use crate::error::{Error, Result};
use crate::random::{Random, SystemRandom};

/// The longest pause between attempts to connect.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug, Clone)]
struct Connection {
    inner: MultiplexedConnection,
    /// Cleared when it is known to be lost: then nothing is sent over it, and
    /// nothing that would have been has an unknown outcome.
    alive: Arc<AtomicBool>,
}

impl Connection {
    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }

    fn give_up(&self) {
        self.alive.store(false, Ordering::Release);
    }
}

#[derive(Debug, Default)]
struct State {
    connection: Option<Connection>,
    /// How many attempts in a row failed, and when the last one did.
    failures: u32,
    failed_at: Option<Monotonic>,
    /// The last failed attempt's number and error.
    failed: Option<(u64, Error)>,
}

/// What it takes to connect.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) client: Client,
    /// Its address, for messages: no password in it.
    pub(super) server: String,
    pub(super) connect_timeout: Duration,
    pub(super) timeout: Duration,
    pub(super) allow_eviction: bool,
}

#[derive(Debug)]
pub(super) struct Link {
    target: Arc<Target>,
    attempts: AtomicU64,
    state: tokio::sync::Mutex<State>,
    warnings: Mutex<Vec<String>>,
}

impl Link {
    pub(super) fn new(target: Target) -> Self {
        Self {
            target: Arc::new(target),
            attempts: AtomicU64::new(0),
            state: tokio::sync::Mutex::default(),
            warnings: Mutex::default(),
        }
    }

    /// What is not as it should be with the server, as of the last connection.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.lock_warnings().clone()
    }

    pub(super) fn warn(&self, warning: String) {
        self.lock_warnings().push(warning);
    }

    fn lock_warnings(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn target(&self) -> &Arc<Target> {
        &self.target
    }

    /// Runs a script and returns what it answered.
    pub(super) async fn run(&self, call: &Call<'_>) -> Result<Vec<Value>> {
        let sent = if call.script.writes {
            Sent::Write
        } else {
            Sent::Harmless
        };
        let mut answer = self.attempt(call, sent).await?;
        if let Err(error) = &answer
            && sent == Sent::Harmless
            && error.is_connection_dropped()
        {
            answer = self.attempt(call, sent).await?;
        }
        match answer {
            Ok(Value::Array(parts)) => Ok(parts),
            Ok(other) => Err(unanswered(
                sent,
                &self.target.server,
                &format!("script `{}` answered {other:?}", call.script.name),
            )),
            Err(error) => Err(from_redis(
                &error,
                sent,
                &self.target.server,
                self.target.timeout,
            )),
        }
    }

    /// Sends the call, with its script if the server turns out not to know it.
    async fn attempt(&self, call: &Call<'_>, sent: Sent) -> Result<RedisResult<Value>> {
        let connection = self.connection().await?;
        let answer = self.send(&connection, &call.by_hash(), sent).await?;
        match answer {
            Err(error) if is_no_script(&error) => {
                self.send(&connection, &call.by_source(), sent).await
            }
            answer => Ok(answer),
        }
    }

    /// Fails when there was no answer in time.
    async fn send(
        &self,
        connection: &Connection,
        command: &::redis::Cmd,
        sent: Sent,
    ) -> Result<RedisResult<Value>> {
        let mut inner = connection.inner.clone();
        let answer = tokio::time::timeout(self.target.timeout, inner.send_packed_command(command));
        let Ok(answer) = answer.await else {
            // Perhaps nobody is there any more: the next call asks anew. Calls
            // that wait on this connection keep it.
            connection.give_up();
            let why = format!("no answer within {:?}", self.target.timeout);
            return Err(unanswered(sent, &self.target.server, &why));
        };
        let answer = answer.and_then(Value::extract_error);
        if answer.as_ref().is_err_and(breaks_connection) {
            connection.give_up();
        }
        Ok(answer)
    }

    /// The connection, made if there is none. Callers that come while one
    /// attempt is under way share its outcome.
    async fn connection(&self) -> Result<Connection> {
        let before = self.attempts.load(Ordering::Acquire);
        let mut state = self.state.lock().await;
        if let Some(connection) = &state.connection
            && connection.is_alive()
        {
            return Ok(connection.clone());
        }
        state.connection = None;
        if let Some((attempt, error)) = &state.failed
            && *attempt > before
        {
            return Err(error.clone());
        }
        if let Some(failed_at) = state.failed_at {
            let since = SystemClock.monotonic().since(failed_at);
            let pause = pause_after(state.failures).saturating_sub(since);
            if !pause.is_zero() {
                SystemClock.sleep(pause).await;
            }
        }
        let attempt = self.attempts.fetch_add(1, Ordering::AcqRel) + 1;
        match self.connect().await {
            Ok(connection) => {
                *state = State {
                    connection: Some(connection.clone()),
                    ..State::default()
                };
                Ok(connection)
            }
            Err(error) => {
                state.failures = state.failures.saturating_add(1);
                state.failed_at = Some(SystemClock.monotonic());
                state.failed = Some((attempt, error.clone()));
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<Connection> {
        let target = &self.target;
        let alive = Arc::new(AtomicBool::new(true));
        let config = AsyncConnectionConfig::new()
            // The whole of connecting, and each call, have their time here.
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender({
                let alive = alive.clone();
                move |push: PushInfo| {
                    if push.kind == PushKind::Disconnection {
                        alive.store(false, Ordering::Release);
                    }
                    Ok::<_, std::convert::Infallible>(())
                }
            });
        let connecting = async {
            let mut inner = target
                .client
                .get_multiplexed_async_connection_with_config(&config)
                .await
                .map_err(|error| self.error(&error))?;
            let warnings =
                health::examine(&mut inner, &target.server, target.allow_eviction).await?;
            Ok((inner, warnings))
        };
        let (inner, warnings) = tokio::time::timeout(target.connect_timeout, connecting)
            .await
            .unwrap_or_else(|_| {
                let why = format!("no connection within {:?}", target.connect_timeout);
                Err(unanswered(Sent::Harmless, &target.server, &why))
            })?;
        *self.lock_warnings() = warnings;
        Ok(Connection { inner, alive })
    }

    fn error(&self, error: &::redis::RedisError) -> Error {
        from_redis(
            error,
            Sent::Harmless,
            &self.target.server,
            self.target.connect_timeout,
        )
    }
}

/// Doubles with each failure, and differs between clients that lost their
/// server at one moment.
pub(super) fn pause_after(failures: u32) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << failures.min(16));
    let half = doubled.min(LONGEST_PAUSE) / 2;
    let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
    half + Duration::from_nanos(SystemRandom.next_u64() % nanos.max(1))
}
