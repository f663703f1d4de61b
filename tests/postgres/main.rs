//! The PostgreSQL backend on a server of its own: the conformance suite,
//! directly and through PgBouncer, and what only a server can go wrong with.

#[path = "../servers/postgres.rs"]
mod server;

mod suite;

use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use libtest_mimic::{Arguments, Failed, Trial};
use server::{Pooler, Server};
use tokio::runtime::Runtime;

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
        runtime.block_on(async move {
            tokio::spawn(work())
                .await
                .unwrap_or_else(|panicked| Err(Failed::from(panicked.to_string())))
        })
    })
}
