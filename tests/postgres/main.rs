//! The PostgreSQL backend on a server of its own: the conformance suite,
//! directly and through PgBouncer, and what only a server can go wrong with.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "all of it is test code; clippy knows only functions marked as tests"
)]

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../servers/postgres.rs"]
mod server;

mod damage;
mod dropped;
mod fences;
mod opening;
mod outages;
mod proxy;
mod suite;
mod trips;
mod waiting;

use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use libtest_mimic::{Arguments, Failed, Trial};
use server::{Pooler, Server};
use statepact::backend::postgres::Postgres;
use statepact::backend::{AcquireRequest, Backend};
use statepact::{Error, Lease, OwnerName, ResourceName, Ttl};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};

static SERVER: OnceLock<Server> = OnceLock::new();
static POOLER: OnceLock<Pooler> = OnceLock::new();

/// The server of this run, started when it is first needed.
fn server() -> &'static Server {
    SERVER.get_or_init(Server::start)
}

fn pooler() -> &'static Pooler {
    POOLER.get_or_init(|| Pooler::start(server()))
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let runtime = Arc::new(
        tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .expect("a runtime"),
    );
    let mut trials = Vec::new();
    suite::add(&mut trials, &runtime);
    opening::add(&mut trials, &runtime);
    fences::add(&mut trials, &runtime);
    dropped::add(&mut trials, &runtime);
    outages::add(&mut trials, &runtime);
    damage::add(&mut trials, &runtime);
    waiting::add(&mut trials, &runtime);
    trips::add(&mut trials);
    let conclusion = libtest_mimic::run(&arguments, trials);
    // What is static is not dropped.
    if let Some(pooler) = POOLER.get() {
        pooler.stop();
    }
    if let Some(server) = SERVER.get() {
        server.stop();
        let _ = std::fs::remove_dir_all(server.folder());
    }
    conclusion.exit_code()
}

/// A test that runs on the shared runtime.
fn trial<F>(runtime: &Arc<Runtime>, name: &str, work: impl Fn() -> F + Send + 'static) -> Trial
where
    F: Future<Output = Result<(), Failed>> + Send + 'static,
{
    let runtime = runtime.clone();
    Trial::test(name.to_owned(), move || {
        // It may start a server.
        let _ = server();
        runtime.block_on(async move {
            tokio::spawn(work())
                .await
                .unwrap_or_else(|panicked| Err(Failed::from(panicked.to_string())))
        })
    })
}

fn resource(name: &str) -> ResourceName {
    ResourceName::new(name).expect("a name")
}

/// A request for a lease that outlasts the test, creating the resource.
fn request(on: &str, owner: &str) -> AcquireRequest {
    AcquireRequest {
        resources: vec![resource(on)],
        owner: OwnerName::new(owner).expect("a name"),
        ttl: Ttl::MAX,
        create: true,
    }
}

async fn lease(store: &Postgres, on: &str, owner: &str) -> Result<Lease, Error> {
    let mut leases = store.acquire_all(&request(on, owner)).await?;
    Ok(leases.remove(0))
}

/// A connection of a user's own.
async fn connect() -> Result<Client, tokio_postgres::Error> {
    let url = server().url("");
    let url = url.split('?').next().expect("an address");
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
