//! Private Redis servers: each in a folder of its own, on a free port, gone
//! with the test process however that ends.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use statepact::clock::{Clock, SystemClock};
use tempfile::TempDir;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Kills the server when its standard input ends: when the test process closes
/// it, or is gone.
const KEEPER: &str = r#""$@" >log 2>&1 & echo $!; read -r _; kill -9 $! 2>/dev/null; wait"#;

/// How long a server may take to start; it is no measure of speed.
const START: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Server {
    program: &'static str,
    settings: Vec<String>,
    folder: TempDir,
    port: u16,
    process: Mutex<Option<Process>>,
}

#[derive(Debug)]
struct Process {
    keeper: Child,
    pid: i32,
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

impl Server {
    /// A server that syncs every write before it answers, with more settings
    /// in the words of its command line.
    pub(crate) fn start(program: &'static str, settings: &[&str]) -> Result<Self, Failure> {
        let always = ["--appendonly", "yes", "--appendfsync", "always"];
        Self::start_with(program, &[&always[..], settings].concat())
    }

    /// A server with these settings alone.
    pub(crate) fn start_with(program: &'static str, settings: &[&str]) -> Result<Self, Failure> {
        let server = Self {
            program,
            settings: settings.iter().map(|word| (*word).to_owned()).collect(),
            folder: tempfile::tempdir()?,
            port: TcpListener::bind("127.0.0.1:0")?.local_addr()?.port(),
            process: Mutex::new(None),
        };
        server.restart()?;
        Ok(server)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The server's process, to be stopped or killed.
    pub(crate) fn pid(&self) -> Option<rustix::process::Pid> {
        let process = self.lock();
        rustix::process::Pid::from_raw(process.as_ref()?.pid)
    }

    /// Kills it with SIGKILL, as the system does when memory runs out.
    pub(crate) fn kill(&self) {
        self.lock().take();
    }

    /// Starts it again on the same folder and port, killing it first if it
    /// runs.
    pub(crate) fn restart(&self) -> Result<(), Failure> {
        let mut process = self.lock();
        process.take();
        *process = Some(self.spawn()?);
        drop(process);
        self.wait_until_ready()
    }

    fn spawn(&self) -> Result<Process, Failure> {
        let mut keeper = Command::new("sh")
            .args(["-c", KEEPER, "keeper", self.program])
            .args(["--port", &self.port.to_string()])
            .args(["--bind", "127.0.0.1", "--save", "", "--dir", "."])
            .args(&self.settings)
            .current_dir(self.folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = keeper.stdout.take().ok_or("no output of the keeper")?;
        let mut process = Process { keeper, pid: 0 };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        process.pid = line.trim().parse()?;
        Ok(process)
    }

    fn wait_until_ready(&self) -> Result<(), Failure> {
        let start = SystemClock.monotonic();
        while SystemClock.monotonic().since(start) < START {
            // Also an error says that it has come up, when it wants a password.
            match self.command(&["PING"]) {
                Ok(answer) if answer == "+PONG" || answer.starts_with("-NOAUTH") => return Ok(()),
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        Err(format!("{} did not start: {}", self.program, self.log()).into())
    }

    /// What it logged.
    pub(crate) fn log(&self) -> String {
        let path: PathBuf = self.folder.path().join("log");
        std::fs::read_to_string(path).unwrap_or_default()
    }

    /// Sends one command past the crate under test, and returns the first line
    /// of the answer.
    pub(crate) fn command(&self, words: &[&str]) -> Result<String, Failure> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(START))?;
        let mut message = format!("*{}\r\n", words.len());
        for word in words {
            write!(message, "${}\r\n{word}\r\n", word.len())?;
        }
        stream.write_all(message.as_bytes())?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// As [`Server::command`]; fails on an error.
    pub(crate) fn done(&self, words: &[&str]) -> Result<String, Failure> {
        let answer = self.command(words)?;
        if answer.starts_with('-') || answer.is_empty() {
            return Err(format!("{words:?}: {answer}").into());
        }
        Ok(answer)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
