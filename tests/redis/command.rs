//! The command line on a store on Redis.

use std::process::{Command, Output};

use crate::server::{Failure, Server};
use crate::support::{Env, Tested, case_list, ensure, private, same};

case_list! { "command":
    two_runs_share_a_lease_through_the_server,
    a_server_without_persistence_is_warned_of_once_a_command,
    a_refused_password_is_no_secret_spilt,
}

fn statepact(store: &str, arguments: &[&str]) -> Result<Output, Failure> {
    Ok(Command::new(env!("CARGO_BIN_EXE_statepact"))
        .args(["--store", store])
        .args(arguments)
        .env_remove("STATEPACT_STORE")
        .output()?)
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

async fn two_runs_share_a_lease_through_the_server(_: Env) -> Tested {
    let server = private(&[])?;
    let set = statepact(&server.url(), &["set", "orders/7", "paid=100"])?;
    same(&err(&set), set.status.code(), Some(0))?;
    let got = statepact(&server.url(), &["get", "orders/7", "paid"])?;
    same(&err(&got), out(&got), "100".to_owned())?;
    let store = server.url();
    let held = std::thread::spawn(move || {
        let script = "echo $STATEPACT_TOKEN; sleep 1";
        statepact(&store, &["run", "job", "--", "sh", "-c", script]).map(|output| out(&output))
    });
    let start = "until [ \"$(\"$0\" --store \"$1\" fence job)\" = 1 ]; do sleep 0.02; done";
    let waited = Command::new("timeout")
        .args([
            "60",
            "sh",
            "-c",
            start,
            env!("CARGO_BIN_EXE_statepact"),
            &server.url(),
        ])
        .status()?;
    ensure("the first run holds the lease", waited.success())?;
    let refused = statepact(&server.url(), &["run", "job", "--", "true"])?;
    same("the second run", refused.status.code(), Some(3))?;
    let after = [
        "run",
        "job",
        "--wait",
        "60s",
        "--",
        "sh",
        "-c",
        "echo $STATEPACT_TOKEN",
    ];
    same(
        "a run that waits",
        out(&statepact(&server.url(), &after)?),
        "2".to_owned(),
    )?;
    let first = held.join().map_err(|_| "panicked")??;
    same("the first token", first, "1".to_owned())
}

async fn a_server_without_persistence_is_warned_of_once_a_command(_: Env) -> Tested {
    let server = Server::start_with("redis-server", &[])?;
    let set = statepact(&server.url(), &["set", "a", "x=1"])?;
    same("the status", set.status.code(), Some(0))?;
    let warned = err(&set);
    same(&warned, warned.matches("no persistence").count(), 1)?;
    let for_programs = statepact(&server.url(), &["--json", "get", "a"])?;
    same("what programs read", err(&for_programs), String::new())
}

async fn a_refused_password_is_no_secret_spilt(_: Env) -> Tested {
    let server = private(&["--requirepass", "right"])?;
    let url = format!("redis://:wrong-secret@127.0.0.1:{}", server.port());
    let refused = statepact(&url, &["get", "a"])?;
    same("the status", refused.status.code(), Some(1))?;
    let said = err(&refused);
    ensure(
        &said,
        !said.contains("wrong-secret") && said.contains("PASSWORD"),
    )
}
