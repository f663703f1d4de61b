//! The step between `run` and its command: this program once more, which asks
//! to be killed if its parent dies and then becomes the command.
//!
//! The request survives becoming another program, and no unsafe code has to
//! run between fork and exec.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::exit::{Failure, status};
use crate::output::Output;

/// The hidden first argument.
const ASKED: &str = "__exec-under-lease";
/// Its second, how to print an error.
const JSON: &str = "json";
const TEXT: &str = "text";

/// The exit statuses that shells use.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// This program's own file, also if another has been put in its place.
pub(crate) fn this_program() -> Result<PathBuf, Failure> {
    if cfg!(target_os = "linux") {
        return Ok("/proc/self/exe".into());
    }
    std::env::current_exe().map_err(|error| {
        Failure::new(
            status::OTHER,
            "system",
            format!("cannot find the program's own file: {error}"),
        )
    })
}

/// How to start `command` so that it ends with this process.
pub(crate) fn command(
    command: &[OsString],
    output: Output,
) -> Result<(PathBuf, Vec<OsString>), Failure> {
    let mut arguments: Vec<OsString> = vec![
        ASKED.into(),
        if output.json { JSON } else { TEXT }.into(),
        std::process::id().to_string().into(),
    ];
    arguments.extend(command.iter().cloned());
    Ok((this_program()?, arguments))
}

/// Becomes the command, if the arguments ask for it; returns when they do not
/// (`None`) or it cannot be done.
pub(crate) fn if_asked(arguments: &[OsString]) -> Option<ExitCode> {
    let [_, asked, how, parent, program, rest @ ..] = arguments else {
        return None;
    };
    if asked != ASKED {
        return None;
    }
    die_with(parent);
    let error = Command::new(program).args(rest).exec();
    let found = error.kind() != std::io::ErrorKind::NotFound;
    let status = if found { NOT_EXECUTABLE } else { NOT_FOUND };
    let kind = if found {
        "cannot_execute"
    } else {
        "command_not_found"
    };
    let failure = Failure::new(
        status,
        kind,
        format!("cannot run `{}`: {error}", program.to_string_lossy()),
    )
    .with("command", program.to_string_lossy());
    if let Some(report) = &failure.report {
        Output { json: how == JSON }.error(report);
    }
    Some(ExitCode::from(status))
}

#[cfg(target_os = "linux")]
fn die_with(parent: &OsStr) {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    // Without it the command is not killed when we are: no reason not to run.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let parent_now = getppid().map(|pid| pid.as_raw_nonzero().get().to_string());
    if parent_now.as_deref().map(OsStr::new) != Some(parent) {
        // It died before the request was made.
        std::process::exit(i32::from(status::OTHER));
    }
}

#[cfg(not(target_os = "linux"))]
fn die_with(_: &OsStr) {}
