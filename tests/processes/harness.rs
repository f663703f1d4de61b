//! Worker processes: this binary again, told its role by the environment,
//! spoken to by lines on its standard input and output.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use statepact::backend::embedded::{Embedded, EmbeddedOptions};

/// The variable that makes a process a worker.
pub(crate) const ROLE: &str = "STATEPACT_TEST_ROLE";

/// How long a worker may be silent before the test calls it a hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A worker must not outlive the test, whatever becomes of it, and not even
/// when it is stopped.
pub(crate) fn die_with_parent() {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let parent = std::env::var("STATEPACT_TEST_PARENT").unwrap();
    let actual = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    assert_eq!(parent, actual.to_string(), "the test is gone already");
}

/// A worker process. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Worker {
    /// Starts a worker. The thread that calls this must outlive it.
    pub(crate) fn start(role: &str, arguments: &[&str]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .env(ROLE, role)
            .env("STATEPACT_TEST_PARENT", std::process::id().to_string())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            let mut line = String::new();
            // A line that was cut off by a kill was not said.
            while reader.read_line(&mut line).is_ok_and(|n| n > 0) && line.ends_with('\n') {
                if sender.send(line.trim_end().to_owned()).is_err() {
                    return;
                }
                line.clear();
            }
        });
        Self {
            child,
            stdin,
            lines,
        }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        writeln!(stdin, "{line}").unwrap();
        stdin.flush().unwrap();
    }

    /// The next line; `None` at the end of the worker.
    pub(crate) fn next(&self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => {
                assert!(!line.starts_with("failed"), "worker: {line}");
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("worker {} hangs", self.child.id()),
        }
    }

    /// The next line, which must come.
    pub(crate) fn hear(&self) -> String {
        self.next().expect("the worker ended without a word")
    }

    /// The words after `word`, with which the next line must begin.
    pub(crate) fn hear_after(&self, word: &str) -> String {
        let line = self.hear();
        match line.strip_prefix(word) {
            Some(rest) => rest.trim_start().to_owned(),
            None => panic!("heard `{line}`, not `{word}`"),
        }
    }

    /// What it said and was not heard yet.
    pub(crate) fn drain(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Stops it with SIGSTOP, and comes back when it has stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        self.wait_until_stopped();
    }

    pub(crate) fn wait_until_stopped(&self) {
        let stat = format!("/proc/{}/stat", self.child.id());
        for _ in 0..10_000 {
            let text = std::fs::read_to_string(&stat).unwrap();
            let state = text.rsplit(')').next().unwrap().trim_start();
            if state.starts_with('T') {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("worker {} does not stop", self.child.id());
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills it with SIGKILL; all that it had said.
    pub(crate) fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let mut said = Vec::new();
        while let Some(line) = self.next() {
            said.push(line);
        }
        said
    }

    /// Lets it come to its end by itself; the rest of what it said.
    pub(crate) fn finish(mut self) -> Vec<String> {
        self.stdin = None;
        let mut said = Vec::new();
        while let Some(line) = self.next() {
            said.push(line);
        }
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
        said
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder with a store in it.
#[derive(Debug)]
pub(crate) struct Place {
    _folder: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.redb");
        Self {
            _folder: folder,
            path,
        }
    }

    pub(crate) fn text(&self) -> &str {
        self.path.to_str().unwrap()
    }

    pub(crate) fn open(&self) -> Embedded {
        open(&self.path)
    }
}

/// Opens a store with time enough for a crowd on a slow machine.
pub(crate) fn open(path: &Path) -> Embedded {
    EmbeddedOptions::new()
        .busy_timeout(Duration::from_secs(30))
        .open_blocking(path)
        .unwrap()
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

/// `check` passes.
pub(crate) fn check(store: &Embedded) -> statepact::backend::CheckReport {
    use statepact::Backend;
    runtime().block_on(store.check(&|_| {})).unwrap()
}

/// The whole history.
pub(crate) fn history(store: &Embedded) -> Vec<statepact::event::Event> {
    use statepact::Backend;
    runtime().block_on(async {
        let mut events = Vec::new();
        let mut after = 0;
        loop {
            let page = store.events(after, 10_000).await.unwrap();
            if page.events.is_empty() {
                return events;
            }
            after = page.next_after;
            events.extend(page.events);
        }
    })
}
