//! The signals that `run` passes on to its command.

use std::task::Poll;

use rustix::process::{Signal, getpid, kill_process};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::exit::{Failure, status};

/// Those that end a process that does not handle them.
pub(crate) const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];
const OTHERS: [Signal; 4] = [Signal::USR1, Signal::USR2, Signal::CONT, Signal::TSTP];

/// A signal to pass on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passed {
    /// SIGTSTP: the user wants the terminal back.
    Stop,
    /// Any other.
    Other(Signal),
}

/// Hears signals from the moment it is made, instead of what they would do.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, Stream)>);

impl Signals {
    /// Those that are ignored stay so, for the command too: `nohup` and a
    /// shell's `&` ask for that.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let ignored = ignored();
        ENDING
            .into_iter()
            .chain(OTHERS)
            .filter(|signal| ignored & (1 << (signal.as_raw() - 1)) == 0)
            .map(|of| Ok((of, signal(SignalKind::from_raw(of.as_raw()))?)))
            .collect::<std::io::Result<_>>()
            .map(Self)
            .map_err(|error| {
                Failure::new(
                    status::OTHER,
                    "system",
                    format!("cannot listen for signals: {error}"),
                )
            })
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> Passed {
        std::future::poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(if *signal == Signal::TSTP {
                        Passed::Stop
                    } else {
                        Passed::Other(*signal)
                    });
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next signal that asks to end; stops when asked to stop.
    pub(crate) async fn ending(&mut self) -> Signal {
        loop {
            match self.next().await {
                Passed::Other(signal) if ENDING.contains(&signal) => return signal,
                Passed::Other(_) => {}
                Passed::Stop => stop_ourselves(),
            }
        }
    }
}

/// The signals that this process ignores, a bit each; none where that cannot
/// be seen.
fn ignored() -> u64 {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| {
            let line = status.lines().find(|line| line.starts_with("SigIgn:"))?;
            u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()
        })
        .unwrap_or(0)
}

/// Stops this process until it is told to go on.
pub(crate) fn stop_ourselves() {
    let _ = kill_process(getpid(), Signal::STOP);
}
