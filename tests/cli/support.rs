//! A store in a folder of its own, and the command on it.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;
use statepact::clock::{Clock, SystemClock};

/// A process that has not ended by then hangs. Generous: no measure of speed.
pub(crate) const HUNG: Duration = Duration::from_secs(60);

pub(crate) struct World {
    pub(crate) folder: tempfile::TempDir,
}

/// How a process ended, and what it said.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    #[track_caller]
    pub(crate) fn expect(self, status: i32) -> Self {
        assert_eq!(self.status, Some(status), "{self:#?}");
        self
    }

    /// Standard output as one object.
    #[track_caller]
    pub(crate) fn json(&self) -> Json {
        let parsed = serde_json::from_str(&self.out);
        parsed.unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// Standard output as an object a line.
    #[track_caller]
    pub(crate) fn json_lines(&self) -> Vec<Json> {
        self.out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
            .collect()
    }

    /// The object of the error on standard error.
    #[track_caller]
    pub(crate) fn error(&self) -> Json {
        let parsed: Result<Json, _> = serde_json::from_str(&self.err);
        let mut object = parsed.unwrap_or_else(|error| panic!("{error}: {self:#?}"));
        object["error"].take()
    }

    /// The one line of the error on standard error.
    #[track_caller]
    pub(crate) fn error_line(&self) -> &str {
        let line = self.err.trim_end();
        assert!(
            line.starts_with("statepact: ") && !line.contains('\n'),
            "not one clear line: {self:#?}"
        );
        line
    }
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.folder.path().join("state.redb")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command, with nothing of the environment that would change it.
    pub(crate) fn command<A: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Command {
        // Whatever is ignored here, as under `nohup`.
        let mut command = Command::new("env");
        command
            .args(["--default-signal", env!("CARGO_BIN_EXE_statepact")])
            .args(arguments)
            .current_dir(self.folder.path())
            .env("STATEPACT_STORE", self.store())
            .env("TZ", "UTC")
            .env_remove("NO_COLOR")
            .env_remove("CLICOLOR")
            .env_remove("CLICOLOR_FORCE")
            .env_remove("COLUMNS")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub(crate) fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Ran {
        Running::start(self.command(arguments)).end()
    }

    /// The command line in one string, cut at spaces.
    pub(crate) fn words(&self, line: &str) -> Ran {
        self.run(line.split(' '))
    }

    pub(crate) fn start<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Running {
        Running::start(self.command(arguments))
    }

    /// `run backup` with options and a script for the shell.
    pub(crate) fn start_run(&self, options: &[&str], script: &str) -> Running {
        let command = ["--", "sh", "-c", script];
        self.start(["run", "backup"].iter().chain(options).chain(&command))
    }

    /// Waits for a file that a script writes, and gives what is in it.
    #[track_caller]
    pub(crate) fn wait_for_file(&self, name: &str) -> String {
        let path = self.path(name);
        let mut found = String::new();
        wait_until("the script to write its file", || {
            found = std::fs::read_to_string(&path).unwrap_or_default();
            found.ends_with('\n')
        });
        found.trim().to_owned()
    }

    /// Waits for a process id that a script writes.
    #[track_caller]
    pub(crate) fn wait_for_pid(&self, name: &str) -> Pid {
        let id = self.wait_for_file(name).parse().unwrap();
        Pid::from_raw(id).unwrap()
    }

    #[track_caller]
    pub(crate) fn lease_state(&self, resource: &str) -> String {
        let shown = self.run(["--json", "lease", "show", resource]).expect(0);
        shown.json()["lease_state"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub(crate) fn wait_until_held(&self, resource: &str) {
        wait_until("the lease to be taken", || {
            self.store().exists() && self.lease_state(resource) == "live"
        });
    }
}

pub(crate) fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}

#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = SystemClock.monotonic();
    while !holds() {
        let waited = SystemClock.monotonic().since(began);
        assert!(waited < HUNG, "waited {waited:?} for {what}");
        pause(10);
    }
}

/// The letter of a process's state; `None` when it is not there.
pub(crate) fn state_of(pid: Pid) -> Option<char> {
    let stat = Path::new("/proc")
        .join(pid.as_raw_nonzero().to_string())
        .join("stat");
    // The state stands after the name, which is in parentheses.
    let stat = std::fs::read_to_string(stat).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

/// Whether a process is there and has not ended.
pub(crate) fn is_alive(pid: Pid) -> bool {
    !matches!(state_of(pid), None | Some('Z'))
}

/// A process that is killed when it is dropped.
pub(crate) struct Running {
    child: Child,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        Self {
            child: command.spawn().unwrap(),
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    #[track_caller]
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn end(mut self) -> Ran {
        let reader = |mut pipe: Box<dyn Read + Send>| {
            std::thread::spawn(move || {
                let mut said = Vec::new();
                pipe.read_to_end(&mut said).unwrap();
                String::from_utf8(said).unwrap()
            })
        };
        let out = self.child.stdout.take().map(|pipe| reader(Box::new(pipe)));
        let err = self.child.stderr.take().map(|pipe| reader(Box::new(pipe)));
        wait_until("the process to end", || self.has_ended());
        let status = self.child.wait().unwrap().code();
        Ran {
            status,
            out: out.map(|out| out.join().unwrap()).unwrap_or_default(),
            err: err.map(|err| err.join().unwrap()).unwrap_or_default(),
        }
    }

    /// Standard output, to be read while it runs.
    pub(crate) fn take_out(&mut self) -> std::process::ChildStdout {
        self.child.stdout.take().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
