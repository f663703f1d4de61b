//! A proxy that counts round trips, and cuts connections where it is told.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Where to cut a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Before what has this text reaches the server.
    Before(&'static str),
    /// Before the server's answer that has it reaches the client.
    After(&'static str),
}

#[derive(Debug, Default)]
struct State {
    trips: u64,
    cut: Option<Cut>,
    /// How many connections were cut.
    cuts: u64,
}

pub(crate) struct Proxy {
    port: u16,
    state: Arc<Mutex<State>>,
}

/// Whether the client spoke last on a connection.
type Line = bool;

impl Proxy {
    pub(crate) fn start(to: u16) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = state.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else {
                    continue;
                };
                let line: Arc<Mutex<Line>> = Arc::default();
                for (from, to, is_client) in [
                    (client.try_clone(), server.try_clone(), true),
                    (server.try_clone(), client.try_clone(), false),
                ] {
                    let (Ok(from), Ok(to)) = (from, to) else {
                        continue;
                    };
                    let (state, line) = (shared.clone(), line.clone());
                    std::thread::spawn(move || {
                        pass(&from, &to, is_client, &state, &line);
                        let _ = from.shutdown(Shutdown::Both);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Ok(Self { port, state })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The times that the client spoke after the server had.
    pub(crate) fn trips(&self) -> u64 {
        lock(&self.state).trips
    }

    /// Cuts connections there from now on; `None` for nowhere.
    pub(crate) fn cut(&self, cut: Option<Cut>) {
        lock(&self.state).cut = cut;
    }

    pub(crate) fn cuts(&self) -> u64 {
        lock(&self.state).cuts
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pass(
    mut from: &TcpStream,
    mut to: &TcpStream,
    is_client: bool,
    state: &Mutex<State>,
    line: &Mutex<Line>,
) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let Ok(length @ 1..) = from.read(&mut buffer) else {
            return;
        };
        let chunk = &buffer[..length];
        {
            let (mut state, mut line) = (lock(state), lock(line));
            if is_client && !*line {
                state.trips += 1;
            }
            *line = is_client;
            let has = |text: &str| {
                chunk
                    .windows(text.len())
                    .any(|part| part == text.as_bytes())
            };
            let cut = match state.cut {
                Some(Cut::Before(text)) => is_client && has(text),
                Some(Cut::After(text)) => !is_client && has(text),
                None => false,
            };
            if cut {
                state.cuts += 1;
                return;
            }
        }
        if to.write_all(chunk).is_err() {
            return;
        }
    }
}
