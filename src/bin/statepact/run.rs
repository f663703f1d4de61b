//! `run`: a command under a lease.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use statepact::backend::SharedBackend;
use statepact::clock::{Clock, Monotonic, SystemClock};
use statepact::{Error, HeldLease, Lease, LeaseManager, OwnerName};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Global, RunArgs};
use crate::exec;
use crate::exit::{Failure, status};
use crate::group::{Group, adopt_orphans};
use crate::lease::{owner_or_default, say_waiting};
use crate::output::Output;
use crate::parse::Wait;
use crate::signals::{Passed, Signals};
use crate::store::{IfAbsent, Location, open};

/// How often to look whether what the command left behind has ended.
const LOOK: Duration = Duration::from_millis(20);
/// How often to look at the command, lest a signal that tells of it is missed.
const SELDOM: Duration = Duration::from_millis(500);
/// How long a group takes at most to end once it is killed.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) async fn run(
    global: &Global,
    args: &RunArgs,
    output: Output,
) -> Result<ExitCode, Failure> {
    let owner = owner_or_default(args.acquire.owner.as_ref())?;
    let location = Location::of(global)?.absolute()?;
    let store = open(global, IfAbsent::Create).await?;
    let mut signals = Signals::listen()?;
    let held = tokio::select! {
        biased;
        signal = signals.ending() => {
            // The acquisition is called off; an answer that is on its way is
            // given back by the store, which needs a moment for it.
            SystemClock.sleep(Duration::from_millis(200)).await;
            return Ok(ExitCode::from(by_signal(signal.as_raw())));
        }
        held = hold(store, args, &owner, output) => held?,
    };
    let lease = held.lease()?;
    let child = match spawn(args, &location, &lease, output) {
        Ok(child) => child,
        Err(failure) => {
            // It ends by itself if this cannot be done.
            let _ = held.release().await;
            return Err(failure);
        }
    };
    let ended = Run {
        group: Group::of(&child),
        held: &held,
        grace: args.grace,
        next: None,
        lost: false,
        output,
    }
    .supervise(&mut signals)
    .await?;
    match ended {
        End::Lost => Err(Failure::silent(status::LEASE_LOST)),
        End::Exited(exit) => end(held, exit, &lease, output).await,
    }
}

async fn hold(
    store: SharedBackend,
    args: &RunArgs,
    owner: &OwnerName,
    output: Output,
) -> Result<HeldLease, Failure> {
    let leases = LeaseManager::new(store, args.acquire.ttl.as_duration())?;
    let hold = leases
        .hold(args.acquire.of.resource.clone(), owner.clone())
        .auto_renew();
    match (hold.clone().start().await, args.acquire.wait) {
        (Err(refused @ Error::LeaseNotAvailable { .. }), Some(wait)) => {
            say_waiting(&refused, output);
            Ok(match wait {
                Wait::Forever => hold.wait_forever().start().await?,
                Wait::AtMost(longest) => hold.wait(longest).start().await?,
            })
        }
        (answer, _) => Ok(answer?),
    }
}

fn spawn(args: &RunArgs, store: &OsStr, lease: &Lease, output: Output) -> Result<Child, Failure> {
    let (program, arguments) = exec::command(&args.command, output)?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env("STATEPACT_STORE", store)
        .env("STATEPACT_RESOURCE", lease.resource.as_str())
        .env("STATEPACT_OWNER", lease.owner.as_str())
        .env("STATEPACT_TOKEN", lease.token.to_string())
        .process_group(0);
    // A group in the background of a terminal is stopped when it reads it.
    if std::io::IsTerminal::is_terminal(&std::io::stdin()) {
        command.stdin(Stdio::null());
    }
    adopt_orphans();
    command.spawn().map_err(|error| {
        Failure::new(
            status::OTHER,
            "system",
            format!("cannot start a process: {error}"),
        )
    })
}

enum End {
    Exited(ExitStatus),
    Lost,
}

/// A command that runs.
struct Run<'a> {
    group: Group,
    held: &'a HeldLease,
    grace: Duration,
    /// What is done to a group that does not end, and when.
    next: Option<(Monotonic, Step)>,
    /// Whether the lease is lost, which has been said.
    lost: bool,
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Kill,
    /// It cannot be killed: tell why nothing happens.
    Tell,
}

impl Run<'_> {
    /// Waits until the command and all that is left of its group have ended,
    /// and ends them when the lease is lost.
    async fn supervise(mut self, signals: &mut Signals) -> Result<End, Failure> {
        let clock = SystemClock;
        let mut children = signal(SignalKind::child()).map_err(|error| {
            Failure::new(
                status::OTHER,
                "system",
                format!("cannot listen for signals: {error}"),
            )
        })?;
        loop {
            self.look();
            if self.group.has_ended() {
                break;
            }
            let exited = self.group.exited().is_some();
            if exited && self.next.is_none() {
                // What the command left behind works under the lease as well.
                self.end();
            }
            let until_step = self
                .next
                .map_or(Duration::MAX, |(at, _)| at.since(clock.monotonic()));
            tokio::select! {
                biased;
                _ = self.held.lost(), if !self.lost => self.lose(),
                signal = signals.next() => self.pass(signal),
                () = clock.sleep(until_step), if self.next.is_some() => self.step(),
                _ = children.recv() => {}
                () = clock.sleep(if exited { LOOK } else { SELDOM }) => {}
            }
        }
        Ok(match (self.lost, self.group.exited()) {
            (false, Some(exited)) => End::Exited(exited),
            _ => End::Lost,
        })
    }

    fn look(&mut self) {
        for signal in self.group.look() {
            for (of, wanted) in [(Signal::TTIN, "read from"), (Signal::TTOU, "write to")] {
                if signal == of.as_raw() {
                    self.output.warn(&format!(
                        "the command is stopped: it wants to {wanted} the terminal, and its \
                         group is in the background of it; end it with Ctrl-C"
                    ));
                }
            }
        }
    }

    fn step(&mut self) {
        match self.next.take() {
            Some((_, Step::Kill)) => {
                self.group.signal(Signal::KILL);
                let tell_at = SystemClock.monotonic().plus(PATIENCE);
                self.next = Some((tell_at, Step::Tell));
            }
            Some((_, Step::Tell)) => {
                self.output.warn(
                    "a process of the command's group cannot be killed, as one of another user \
                     cannot: waiting for it to end",
                );
                self.next = Some((Monotonic::from_millis(u64::MAX), Step::Tell));
            }
            None => {}
        }
    }

    fn lose(&mut self) {
        self.lost = true;
        if let Err(error) = self.held.lease() {
            let mut failure = Failure::from(error);
            if let Some(cause) = self.held.renewal_error() {
                let cause = format!("the last renewal failed: {cause}");
                failure = failure.because(&cause);
            }
            if let Some(report) = &failure.report {
                self.output.error(report);
            }
        }
        self.end();
    }

    /// Asks the group to end, and sets the time when it is made to.
    fn end(&mut self) {
        self.group.signal(Signal::TERM);
        // A stopped process hears of SIGTERM when it goes on.
        self.group.signal(Signal::CONT);
        self.limit();
    }

    fn limit(&mut self) {
        let kill_at = SystemClock.monotonic().plus(self.grace);
        self.next.get_or_insert((kill_at, Step::Kill));
    }

    fn pass(&mut self, signal: Passed) {
        match signal {
            Passed::Stop => {
                // Stopped by SIGSTOP, which cannot be ignored: nobody renews
                // meanwhile. It goes on only if the lease is still held.
                self.group.signal(Signal::STOP);
                crate::signals::stop_ourselves();
                if !self.held.is_lost() {
                    self.group.signal(Signal::CONT);
                }
            }
            Passed::Other(signal) => {
                self.group.signal(signal);
                if crate::signals::ENDING.contains(&signal) {
                    // A stopped process hears of it when it goes on.
                    self.group.signal(Signal::CONT);
                }
                if signal == Signal::TERM {
                    self.limit();
                }
            }
        }
    }
}

/// The command has ended: releases the lease, and answers with its status.
async fn end(
    held: HeldLease,
    exited: ExitStatus,
    lease: &Lease,
    output: Output,
) -> Result<ExitCode, Failure> {
    let unheld = held.lease().err();
    match held.release().await {
        Ok(true) => {}
        // It was lost before the command had ended, and found out only now.
        Ok(false) => {
            let resource = &lease.resource;
            return Err(unheld.map_or_else(
                || {
                    Failure::new(
                        status::LEASE_LOST,
                        "lease_lost",
                        format!(
                            "the lease on resource `{resource}` with token {} was lost before the \
                             command ended ({exited})",
                            lease.token
                        ),
                    )
                    .with("resource", resource.as_str())
                    .with("token", lease.token.get())
                },
                Failure::from,
            ));
        }
        Err(error) => output.warn(&format!(
            "the command has ended, but the lease could not be released and ends by itself: {error}"
        )),
    }
    Ok(ExitCode::from(exit_status(exited)))
}

fn exit_status(exited: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    match (exited.code(), exited.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => by_signal(signal),
        (None, None) => u8::MAX,
    }
}

/// The exit status that says which signal ended a command, as in a shell.
fn by_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}
