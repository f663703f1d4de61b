//! A private PostgreSQL server in a temporary folder, and a pooler before it.
//! Both end with the test, however it ends.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, mpsc};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use statepact::clock::{Clock, SystemClock};
use tempfile::TempDir;

/// The role that owns everything; trusted on this machine.
pub(crate) const ROLE: &str = "statepact";
/// A role that has to give its password over TCP.
pub(crate) const GUARDED_ROLE: &str = "guarded";
pub(crate) const PASSWORD: &str = "correct horse";

/// A server of this test binary alone.
pub(crate) struct Server {
    folder: TempDir,
    port: u16,
    settings: &'static [&'static str],
    process: Mutex<Option<Child>>,
}

impl Server {
    /// Makes a cluster and starts it. It does not wait for the disk: it is not
    /// meant to outlive the machine.
    pub(crate) fn start() -> Self {
        Self::start_with(&["fsync=off"])
    }

    /// Makes a cluster that syncs as one in production does, and starts it.
    pub(crate) fn start_durable() -> Self {
        Self::start_with(&[])
    }

    fn start_with(settings: &'static [&'static str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        give_to_server(folder.path());
        let data = folder.path().join("data");
        let initdb = program("initdb");
        run(as_server(&initdb, "TERM").args([
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--auth=trust",
            &format!("--username={ROLE}"),
            &format!("--pgdata={}", data.display()),
        ]));
        certificates(folder.path());
        fs::write(
            data.join("pg_hba.conf"),
            format!(
                "local all all trust\n\
                 host all {ROLE} 127.0.0.1/32 trust\n\
                 host all all 127.0.0.1/32 scram-sha-256\n"
            ),
        )
        .expect("pg_hba.conf");
        let server = Self {
            folder,
            port: free_port(),
            settings,
            process: Mutex::default(),
        };
        server.launch();
        server.sql(&format!(
            "CREATE ROLE {GUARDED_ROLE} LOGIN PASSWORD '{PASSWORD}'"
        ));
        server
    }

    /// Starts the server, again if it was killed, and waits until it answers.
    pub(crate) fn launch(&self) {
        let folder = self.folder.path();
        let mut command = as_server(&program("postgres"), "QUIT");
        command.args(["-D", &folder.join("data").display().to_string()]);
        for setting in [
            format!("port={}", self.port),
            format!("unix_socket_directories={}", folder.display()),
            "listen_addresses=127.0.0.1".to_owned(),
            "max_connections=300".to_owned(),
            "shared_buffers=32MB".to_owned(),
            "ssl=on".to_owned(),
            format!("ssl_cert_file={}", folder.join("server.crt").display()),
            format!("ssl_key_file={}", folder.join("server.key").display()),
        ] {
            command.args(["-c", &setting]);
        }
        for setting in self.settings {
            command.args(["-c", setting]);
        }
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.join("log"))
            .expect("the server's log");
        command.stdout(Stdio::null()).stderr(log);
        *self.process() = Some(spawn(command));
        let waits = SystemClock.monotonic();
        while !self
            .try_sql("SELECT 1")
            .is_ok_and(|out| out.status.success())
        {
            let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
            let ended = self
                .process()
                .as_mut()
                .is_some_and(|child| child.try_wait().is_ok_and(|status| status.is_some()));
            let slow = SystemClock.monotonic().since(waits) > Duration::from_secs(60);
            assert!(!ended && !slow, "the server does not start:\n{log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills the server and all its processes, as a power cut would.
    pub(crate) fn kill(&self) {
        let process = self.process().take();
        let Some(mut child) = process else { return };
        let parent = Pid::from_child(&child);
        // Stopped, it starts no more children, which would outlive it for a
        // moment and hold the lock on its folder.
        kill_process(parent, Signal::STOP).expect("the server");
        let children = children_of(parent);
        for pid in [parent].iter().chain(&children) {
            // One that has ended meanwhile is no failure.
            let _ = kill_process(*pid, Signal::KILL);
        }
        child.wait().expect("the killed server");
        let waits = SystemClock.monotonic();
        while children.iter().any(|pid| is_running(*pid)) {
            let slow = SystemClock.monotonic().since(waits) > Duration::from_secs(60);
            assert!(!slow, "a killed process of the server does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Stops it for good.
    pub(crate) fn stop(&self) {
        let process = self.process().take();
        let Some(mut child) = process else { return };
        let asked = Command::new("kill")
            .args(["-QUIT", &child.id().to_string()])
            .status();
        if !asked.is_ok_and(|status| status.success()) {
            let _ = child.kill();
        }
        let _ = child.wait();
    }

    fn process(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// A URL over the socket in the folder.
    pub(crate) fn url(&self, schema: &str) -> String {
        let folder = self.folder.path().display().to_string().replace('/', "%2F");
        let port = self.port;
        format!("postgres://{ROLE}@{folder}:{port}/postgres?schema={schema}")
    }

    /// A URL over TCP, without its query.
    pub(crate) fn tcp(&self, user: &str, host: &str) -> String {
        format!("postgres://{user}@{host}:{}/postgres", self.port)
    }

    /// Runs SQL outside of the library; its output, columns separated by `|`.
    pub(crate) fn sql(&self, sql: &str) -> String {
        let out = self.try_sql(sql).expect("psql");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{sql}: {said}");
        String::from_utf8_lossy(&out.stdout).trim_end().to_owned()
    }

    /// As [`Server::sql`], with what came of it.
    pub(crate) fn try_sql(&self, sql: &str) -> io::Result<Output> {
        self.psql().args(["-c", sql]).output()
    }

    /// `psql` onto this server, to be given commands.
    pub(crate) fn psql(&self) -> Command {
        let mut command = Command::new(program("psql"));
        command
            .args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1"])
            .args(["-v", "VERBOSITY=verbose", "-U", ROLE, "-d", "postgres"])
            .args(["-p", &self.port.to_string()])
            .arg("-h")
            .arg(self.folder.path())
            .stdin(Stdio::null());
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// PgBouncer in transaction mode before a server.
pub(crate) struct Pooler {
    port: u16,
    process: Mutex<Child>,
    _folder: TempDir,
}

impl Pooler {
    pub(crate) fn start(server: &Server) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let port = free_port();
        let at = folder.path();
        let users = at.join("users");
        fs::write(&users, format!("\"{ROLE}\" \"\"\n")).expect("the pooler's users");
        let settings = at.join("pgbouncer.ini");
        fs::write(
            &settings,
            format!(
                "[databases]\n\
                 * = host={} port={}\n\
                 [pgbouncer]\n\
                 listen_addr = 127.0.0.1\n\
                 listen_port = {port}\n\
                 unix_socket_dir =\n\
                 auth_type = trust\n\
                 auth_file = {}\n\
                 pool_mode = transaction\n\
                 server_round_robin = 1\n\
                 max_client_conn = 1000\n\
                 default_pool_size = 40\n\
                 logfile = {}\n",
                server.folder().display(),
                server.port(),
                users.display(),
                at.join("log").display(),
            ),
        )
        .expect("the pooler's settings");
        give_to_server(at);
        let mut command = as_server(Path::new("/usr/sbin/pgbouncer"), "TERM");
        command.arg("-q").arg(&settings);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = Mutex::new(spawn(command));
        let pooler = Self {
            port,
            process,
            _folder: folder,
        };
        let waits = SystemClock.monotonic();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            let slow = SystemClock.monotonic().since(waits) > Duration::from_secs(30);
            assert!(!slow, "the pooler does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        pooler
    }

    pub(crate) fn url(&self, schema: &str) -> String {
        let port = self.port;
        format!("postgres://{ROLE}@127.0.0.1:{port}/postgres?schema={schema}&sslmode=disable")
    }

    pub(crate) fn stop(&self) {
        let mut child = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A name for a schema that no other case of this binary has.
pub(crate) fn new_schema() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("store_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// The newest installed server's program: Debian keeps them out of the path.
fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let newest = versions
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|version| Path::new(&format!("/usr/lib/postgresql/{version}/bin/{name}")).exists())
        .max();
    match newest {
        Some(version) => format!("/usr/lib/postgresql/{version}/bin/{name}").into(),
        None => name.into(),
    }
}

/// Whether it has not ended; one that nobody has waited for is still listed.
fn is_running(process: Pid) -> bool {
    fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()))
        .is_ok_and(|stat| !stat.contains(") Z "))
}

/// The processes that a process has started.
pub(crate) fn children_of(parent: Pid) -> Vec<Pid> {
    let found = Command::new("pgrep")
        .args(["-P", &parent.as_raw_nonzero().to_string()])
        .output()
        .expect("pgrep");
    String::from_utf8_lossy(&found.stdout)
        .split_whitespace()
        .filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
        .collect()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A program as the user that runs servers, which refuse to be run by root;
/// it gets the signal when this process dies.
fn as_server(program: &Path, on_death: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", on_death]);
    if is_root() {
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    }
    command.arg(program).stdin(Stdio::null());
    command
}

/// Gives a folder and what is in it to the user that runs servers.
fn give_to_server(folder: &Path) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).expect("permissions");
    if is_root() {
        run(Command::new("chown")
            .args(["-R", "postgres:postgres"])
            .arg(folder));
    }
}

/// An authority, a certificate of it for `localhost`, and another authority
/// that has nothing to do with them.
fn certificates(folder: &Path) {
    let openssl = |arguments: &str| {
        let mut command = Command::new("openssl");
        command.args(arguments.split(' ')).current_dir(folder);
        run(&mut command);
    };
    for authority in ["authority", "stranger"] {
        openssl(&format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 \
             -keyout {authority}.key -out {authority}.crt -subj /CN={authority}"
        ));
    }
    openssl(
        "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout server.key \
         -out server.csr -subj /CN=localhost",
    );
    fs::write(folder.join("names"), "subjectAltName=DNS:localhost\n").expect("names");
    openssl(
        "x509 -req -in server.csr -CA authority.crt -CAkey authority.key -CAcreateserial \
         -days 2 -extfile names -out server.crt",
    );
    let key = folder.join("server.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("permissions");
    give_to_server(folder);
}

fn run(command: &mut Command) {
    let out = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {said}");
}

type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts a process from a thread that lives as long as this process: the
/// signal on death is sent when the thread that started it ends.
fn spawn(command: Command) -> Child {
    static STARTER: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (orders, taken) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, reply) in taken {
                let _ = reply.send(command.spawn());
            }
        });
        Mutex::new(orders)
    });
    let (reply, answer) = mpsc::channel();
    let shown = format!("{command:?}");
    starter
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, reply))
        .expect("the thread that starts processes");
    answer
        .recv()
        .expect("the thread that starts processes")
        .unwrap_or_else(|error| panic!("{shown}: {error}"))
}
