//! The Redis backend on real, private servers: the conformance suite, and what
//! only this backend can suffer.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use libtest_mimic::{Arguments, Failed, Trial};
use statepact::backend::SharedBackend;
use statepact::backend::memory::DEFAULT_HISTORY;
use statepact::backend::redis::{Redis, RedisOptions};
use statepact::clock::ManualClock;
use statepact::conformance::{Fixture, FixtureError, Outcome, Store, cases};

#[path = "../servers/redis.rs"]
mod server;

mod cluster;
#[cfg(feature = "cli")]
mod command;
mod outages;
mod settings;
mod stored;
mod support;
mod waiting;

use server::{Failure, Server};
use support::{Env, Tested};

/// The servers to run the suite on: those that are installed.
const PROGRAMS: &[&str] = &["redis-server", "valkey-server"];

fn main() -> Result<(), Failure> {
    let arguments = Arguments::from_args();
    let runtime = Arc::new(
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?,
    );
    let mut trials = Vec::new();
    let mut servers = Vec::new();
    for program in PROGRAMS {
        if *program != "redis-server" && !is_installed(program) {
            println!("{program} is not installed: the suite runs without it");
            continue;
        }
        let server = Arc::new(Server::start(program, &[])?);
        servers.push(server.clone());
        // R11: those that let time pass, by the server's own clock as well.
        let by_its_clock = Arc::new(OnServer {
            server: server.clone(),
            moves_clock: false,
        });
        for case in cases() {
            if !case.name().starts_with("leases::") {
                continue;
            }
            let (runtime, fixture) = (runtime.clone(), by_its_clock.clone());
            trials.push(Trial::test(
                format!("{program}, its clock::{}", case.name()),
                move || {
                    let report = runtime.block_on(case.run(fixture));
                    match report.outcome() {
                        Outcome::Passed => Ok(()),
                        // Run above, where the clock can be moved.
                        Outcome::Skipped(why) if why.contains("clock cannot be moved") => Ok(()),
                        _ => Err(Failed::from(report.to_string())),
                    }
                },
            ));
        }
        let fixture = Arc::new(OnServer {
            server,
            moves_clock: true,
        });
        for case in cases() {
            let (runtime, fixture) = (runtime.clone(), fixture.clone());
            trials.push(Trial::test(
                format!("{program}::{}", case.name()),
                move || {
                    let report = runtime.block_on(case.run(fixture));
                    match report.outcome() {
                        Outcome::Passed => Ok(()),
                        _ => Err(Failed::from(report.to_string())),
                    }
                },
            ));
        }
    }
    let env = Env {
        server: Arc::new(Server::start("redis-server", &[])?),
    };
    for (name, case) in own_cases() {
        let (runtime, env) = (runtime.clone(), env.clone());
        trials.push(Trial::test(name, move || {
            runtime
                .block_on(case(env))
                .map_err(|error| Failed::from(error.to_string()))
        }));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    drop((servers, env));
    conclusion.exit()
}

/// A case of this backend alone.
type OwnCase = (
    &'static str,
    fn(Env) -> Pin<Box<dyn Future<Output = Tested> + Send>>,
);

fn own_cases() -> Vec<OwnCase> {
    [
        outages::cases,
        settings::cases,
        stored::cases,
        cluster::cases,
        waiting::cases,
        #[cfg(feature = "cli")]
        command::cases,
    ]
    .into_iter()
    .flat_map(|cases| cases())
    .collect()
}

fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join(program).exists())
    })
}

/// A prefix that no other case has: stores with different prefixes share
/// nothing.
fn new_prefix() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    format!("case {}", NEXT.fetch_add(1, Ordering::Relaxed))
}

struct OnServer {
    server: Arc<Server>,
    /// Whether the stores follow a clock of the case's instead of the server's.
    moves_clock: bool,
}

struct ServerStore {
    options: RedisOptions,
    clock: Option<Arc<ManualClock>>,
    backend: Redis,
}

impl OnServer {
    async fn store(&self, history: u64) -> Result<Box<dyn Store>, FixtureError> {
        let clock = self.moves_clock.then(|| Arc::new(ManualClock::new()));
        let mut options = RedisOptions::new(self.server.url())
            .prefix(new_prefix())
            .history(history);
        if let Some(clock) = &clock {
            options = options.clock(clock.clone());
        }
        let backend = options.clone().open().await?;
        Ok(Box::new(ServerStore {
            options,
            clock,
            backend,
        }))
    }
}

#[async_trait]
impl Fixture for OnServer {
    async fn open(&self) -> Result<Box<dyn Store>, FixtureError> {
        self.store(DEFAULT_HISTORY).await
    }

    async fn open_with_history(&self, events: u64) -> Result<Option<Box<dyn Store>>, FixtureError> {
        Ok(Some(self.store(events).await?))
    }
}

#[async_trait]
impl Store for ServerStore {
    fn backend(&self) -> SharedBackend {
        Arc::new(self.backend.clone())
    }

    fn clock(&self) -> Option<Arc<ManualClock>> {
        self.clock.clone()
    }

    async fn another_handle(&self) -> Result<Option<SharedBackend>, FixtureError> {
        Ok(Some(Arc::new(self.options.clone().open().await?)))
    }

    async fn reopen(&mut self) -> Result<bool, FixtureError> {
        self.backend = self.options.clone().open().await?;
        Ok(true)
    }
}
