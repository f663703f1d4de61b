//! The process group of a command.

use rustix::process::{
    Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group, waitpgid,
};
use tokio::process::Child;

use crate::exit::{Failure, status};

/// The group that a child leads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group(Pid);

impl Group {
    pub(crate) fn of(child: &Child) -> Result<Self, Failure> {
        child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
            .map(Self)
            .ok_or_else(|| Failure::new(status::OTHER, "system", "the command has no process id"))
    }

    /// Sends a signal to the whole group. One that has ended hears nothing.
    pub(crate) fn signal(self, signal: Signal) {
        let _ = kill_process_group(self.0, signal);
    }

    /// Whether nothing is left of the group. To be asked once its leader has
    /// been waited for.
    pub(crate) fn has_ended(self) -> bool {
        // Members that have ended would count until somebody waits for them.
        while let Ok(Some(_)) = waitpgid(self.0, WaitOptions::NOHANG) {}
        test_kill_process_group(self.0).is_err()
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
