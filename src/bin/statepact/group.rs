//! The process group of a command, and its end.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpgid, kill_process, kill_process_group, test_kill_process_group,
    wait,
};

/// The group that a command was started to lead, and the command itself.
#[derive(Debug)]
pub(crate) struct Group {
    leader: Pid,
    exited: Option<ExitStatus>,
}

impl Group {
    pub(crate) fn of(child: &Child) -> Self {
        Self {
            leader: Pid::from_child(child),
            exited: None,
        }
    }

    /// Sends a signal to the whole group, and to the command itself if it has
    /// left for another one.
    pub(crate) fn signal(&self, signal: Signal) {
        // A group that has ended hears nothing.
        let _ = kill_process_group(self.leader, signal);
        let left = self.exited.is_none() && getpgid(Some(self.leader)) != Ok(self.leader);
        if left {
            let _ = kill_process(self.leader, signal);
        }
    }

    /// Waits for every child that has ended: the command, and what it left
    /// behind, which has become a child of this process. The signals that have
    /// stopped the command since the last look.
    pub(crate) fn look(&mut self) -> Vec<i32> {
        let mut stopped = Vec::new();
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            if pid != self.leader {
                continue;
            }
            if let Some(signal) = status.stopping_signal() {
                stopped.push(signal);
            } else {
                self.exited = Some(ExitStatus::from_raw(status.as_raw()));
            }
        }
        stopped
    }

    /// How the command ended, once it has.
    pub(crate) fn exited(&self) -> Option<ExitStatus> {
        self.exited
    }

    /// Whether nothing is left, neither the command nor others of its group.
    pub(crate) fn has_ended(&self) -> bool {
        // One that may not be signalled is there all the same.
        self.exited.is_some() && test_kill_process_group(self.leader) == Err(Errno::SRCH)
    }
}

/// Makes this process the parent of what the command leaves behind, so that
/// it can be waited for.
#[cfg(target_os = "linux")]
pub(crate) fn adopt_orphans() {
    // Without it the first process of the machine waits for them.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn adopt_orphans() {}
