//! `demo`: the story of the paused worker, played by real processes.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value as Json, json};
use statepact::backend::{LeaseState, SharedBackend};
use statepact::clock::{Clock, Monotonic, SystemClock};
use statepact::{ResourceName, StateManager};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::exec::this_program;
use crate::exit::{Failure, status};
use crate::output::{ERROR, FAINT, GOOD, NAME, Output};

mod worker;

pub(crate) use worker::if_asked;

/// What the workers work on.
const JOB: &str = "payroll";
const FIELD: &str = "paid_by";
const TTL: Duration = Duration::from_millis(1500);
/// A worker that has not answered by then has failed. Generous: it is no part
/// of the story.
const LONGEST: Duration = Duration::from_secs(60);

pub(crate) async fn demo(output: Output) -> Result<(), Failure> {
    let folder = tempfile::Builder::new()
        .prefix("statepact-demo-")
        .tempdir()
        .map_err(|error| Failure::storage(format!("cannot make a temporary folder: {error}")))?;
    let path = folder.path().join("demo.redb");
    let store = statepact::backend::open(&path.to_string_lossy()).await?;
    let told = Story {
        output,
        began: SystemClock.monotonic(),
        step: 0,
    }
    .play(&store, &path)
    .await;
    drop(store);
    told
}

struct Story {
    output: Output,
    began: Monotonic,
    step: u32,
}

impl Story {
    async fn play(mut self, store: &SharedBackend, path: &Path) -> Result<(), Failure> {
        let job = ResourceName::new(JOB)?;
        self.tell(
            "store",
            &json!({ "path": path.to_string_lossy() }),
            &format!("A new store, one file: {FAINT}{}{FAINT:#}", path.display()),
        )?;

        let (mut anna, old) = self.first_owner(path).await?;
        anna.signal(Signal::STOP)?;
        // She finds the order to go on when she wakes, and knows nothing of
        // the time between.
        anna.order("write").await?;
        self.tell(
            "stopped",
            &json!({ "worker": "anna", "pid": anna.pid(), "signal": "SIGSTOP" }),
            &format!(
                "{NAME}anna{NAME:#} is paused by SIGSTOP, in the middle of her next write: a long \
                 garbage collection, a laptop lid, a stalled machine."
            ),
        )?;

        self.wait_for_expiry(store, &job).await?;
        self.tell(
            "expired",
            &json!({ "resource": JOB, "token": old }),
            "Her lease expires: she cannot renew it in her sleep.",
        )?;

        let (bert, new) = self.successor(path).await?;
        anna.signal(Signal::CONT)?;
        self.tell(
            "continued",
            &json!({ "worker": "anna", "pid": anna.pid(), "signal": "SIGCONT" }),
            &format!(
                "{NAME}anna{NAME:#} wakes up by SIGCONT. She still believes that the job is hers, \
                 and writes with token {old} …"
            ),
        )?;
        let answer = anna.next().await?;
        let refused = answer.get("event") == Some(&json!("refused"))
            && answer.get("kind") == Some(&json!("lease_lost"))
            && answer.get("superseded_by") == Some(&json!(new));
        let verdict = if refused {
            format!("… and is {GOOD}refused{GOOD:#}: {}", message(&answer))
        } else {
            format!("… and is {ERROR}not refused{ERROR:#}: {answer}")
        };
        self.tell("stale_write", &answer, &verdict)?;

        let found = StateManager::new(store.clone())
            .session("demo")
            .resource(JOB)
            .begin()
            .await?
            .read::<String>(JOB, FIELD)
            .await?;
        let intact = found.as_deref() == Some("bert") && new > old;
        self.tell(
            "state",
            &json!({ "resource": JOB, "fields": { FIELD: found }, "intact": intact }),
            &format!(
                "The store says {FIELD} = {}: the successor's work is {}.",
                json!(found),
                if intact { "untouched" } else { "damaged" }
            ),
        )?;
        bert.end().await?;
        anna.end().await?;
        if refused && intact {
            Ok(())
        } else {
            Err(Failure::new(
                status::OTHER,
                "demo_failed",
                "the stale write was not refused, or the state is not the successor's",
            ))
        }
    }

    async fn first_owner(&mut self, path: &Path) -> Result<(Worker, u64), Failure> {
        let mut anna = Worker::start("anna", path)?;
        let acquired = anna.expect("acquired").await?;
        let old = token(&acquired)?;
        self.tell(
            "acquired",
            &acquired,
            &format!(
                "{NAME}anna{NAME:#} (process {}) acquires the lease of `{JOB}` for {} s and gets \
                 token {GOOD}{old}{GOOD:#}.",
                anna.pid(),
                TTL.as_secs_f32()
            ),
        )?;
        anna.expect("written").await?;
        self.tell(
            "written",
            &json!({ "worker": "anna", "token": old }),
            &format!(
                "{NAME}anna{NAME:#} writes {FIELD} = \"anna\" with her token. Nobody has a newer \
                 one: accepted."
            ),
        )?;
        anna.expect("ready").await?;
        Ok((anna, old))
    }

    async fn successor(&mut self, path: &Path) -> Result<(Worker, u64), Failure> {
        let mut bert = Worker::start("bert", path)?;
        let acquired = bert.expect("acquired").await?;
        let new = token(&acquired)?;
        self.tell(
            "acquired",
            &acquired,
            &format!(
                "{NAME}bert{NAME:#} (process {}) takes over and gets token {GOOD}{new}{GOOD:#}, \
                 which is higher.",
                bert.pid()
            ),
        )?;
        bert.expect("written").await?;
        self.tell(
            "written",
            &json!({ "worker": "bert", "token": new }),
            &format!("{NAME}bert{NAME:#} writes {FIELD} = \"bert\": accepted."),
        )?;
        Ok((bert, new))
    }

    /// Says what has just happened.
    fn tell(&mut self, event: &str, detail: &Json, text: &str) -> Result<(), Failure> {
        self.step += 1;
        let passed = SystemClock.monotonic().since(self.began);
        let mut object = json!({
            "step": self.step,
            "elapsed_seconds": passed.as_secs_f64(),
        });
        if let (Json::Object(object), Json::Object(detail)) = (&mut object, detail) {
            object.extend(detail.clone());
            object.insert("event".to_owned(), event.into());
        }
        self.output.say(&object, || {
            format!("{FAINT}{:>5.2} s{FAINT:#}  {}", passed.as_secs_f64(), text)
        })
    }

    async fn wait_for_expiry(
        &self,
        store: &SharedBackend,
        job: &ResourceName,
    ) -> Result<(), Failure> {
        loop {
            let status = store.lease_status(job).await?;
            match status.lease {
                Some((lease, LeaseState::Live)) => {
                    let left = lease.expires_at.since(status.now);
                    SystemClock.sleep(left.max(Duration::from_millis(1))).await;
                }
                _ => return Ok(()),
            }
        }
    }
}

fn token(acquired: &Json) -> Result<u64, Failure> {
    acquired
        .get("token")
        .and_then(Json::as_u64)
        .ok_or_else(|| failed(format!("a worker's answer has no token: {acquired}")))
}

fn message(answer: &Json) -> &str {
    answer
        .get("message")
        .and_then(Json::as_str)
        .unwrap_or_default()
}

fn failed(message: String) -> Failure {
    Failure::new(status::OTHER, "demo_failed", message)
}

/// A process that works under the lease.
struct Worker {
    name: &'static str,
    pid: Pid,
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(name: &'static str, store: &Path) -> Result<Self, Failure> {
        let arguments: [OsString; 4] = [
            worker::ASKED.into(),
            name.into(),
            store.into(),
            TTL.as_millis().to_string().into(),
        ];
        let mut child = Command::new(this_program()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed(format!("cannot start a process: {error}")))?;
        let pid = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        match (pid, child.stdin.take(), child.stdout.take()) {
            (Some(pid), Some(orders), Some(answers)) => Ok(Self {
                name,
                pid,
                child,
                orders,
                answers: BufReader::new(answers).lines(),
            }),
            _ => Err(failed(format!("{name} has no process id or no pipes"))),
        }
    }

    fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    fn signal(&self, signal: Signal) -> Result<(), Failure> {
        kill_process(self.pid, signal)
            .map_err(|error| failed(format!("cannot send a signal to {}: {error}", self.name)))
    }

    async fn order(&mut self, order: &str) -> Result<(), Failure> {
        self.orders
            .write_all(format!("{order}\n").as_bytes())
            .await
            .map_err(|error| failed(format!("{} does not listen: {error}", self.name)))
    }

    async fn next(&mut self) -> Result<Json, Failure> {
        let line = tokio::select! {
            line = self.answers.next_line() => line,
            () = SystemClock.sleep(LONGEST) => {
                return Err(failed(format!("{} does not answer", self.name)));
            }
        };
        match line {
            Ok(Some(line)) => serde_json::from_str(&line)
                .map_err(|error| failed(format!("{} answers {line:?}: {error}", self.name))),
            Ok(None) => Err(failed(format!("{} ended early", self.name))),
            Err(error) => Err(failed(format!("{} cannot be heard: {error}", self.name))),
        }
    }

    async fn expect(&mut self, event: &str) -> Result<Json, Failure> {
        let answer = self.next().await?;
        if answer.get("event") == Some(&json!(event)) {
            Ok(answer)
        } else {
            Err(failed(format!(
                "{} was to say {event:?}, and says {answer}",
                self.name
            )))
        }
    }

    /// Lets the worker end, and waits for it.
    async fn end(mut self) -> Result<(), Failure> {
        drop(self.orders);
        self.child
            .wait()
            .await
            .map(drop)
            .map_err(|error| failed(format!("cannot wait for {}: {error}", self.name)))
    }
}
