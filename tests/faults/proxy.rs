//! A TCP proxy that cuts connections at a chosen message: what one side sends
//! before it pauses. Both directions and all connections are counted together.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::support::within;

/// A pause as long as this ends a message. A shorter message only means that a
/// request or answer is cut in more places.
const PAUSE: Duration = Duration::from_millis(2);

/// How much of the message still passes before the connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Passes {
    Nothing,
    Half,
    All,
}

/// Where to cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    /// After this many messages.
    pub(crate) after: usize,
    pub(crate) passes: Passes,
    /// All other connections are cut as well, and none can be made until
    /// [`Proxy::heal`].
    pub(crate) stays_down: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    ToServer,
    ToClient,
}

#[derive(Debug, Default)]
struct State {
    plan: Option<Cut>,
    passed: usize,
    struck: Option<Direction>,
    down: bool,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    state: Mutex<State>,
    /// Connections that were cut, and whose end the server has not seen yet.
    ending: watch::Sender<usize>,
    /// Changes when all connections are to be cut.
    cut_all: watch::Sender<u64>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much of the next message passes; `None` when the connection stays.
    fn count(&self, direction: Direction) -> Option<Passes> {
        let mut state = self.lock();
        let plan = state.plan?;
        state.passed += 1;
        if state.passed <= plan.after {
            return None;
        }
        state.plan = None;
        state.struck = Some(direction);
        if plan.stays_down {
            state.down = true;
            drop(state);
            self.cut_all.send_modify(|epoch| *epoch += 1);
        }
        Some(plan.passes)
    }
}

#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    pub(crate) async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            server,
            state: Mutex::default(),
            ending: watch::Sender::new(0),
            cut_all: watch::Sender::new(0),
        });
        let accepting = shared.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, accepting.clone()));
            }
        });
        Self { port, shared, task }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn arm(&self, cut: Cut) {
        *self.shared.lock() = State {
            plan: Some(cut),
            ..State::default()
        };
    }

    /// Connections pass again; where the cut was, if there was one.
    pub(crate) fn heal(&self) -> Option<Direction> {
        std::mem::take(&mut *self.shared.lock()).struck
    }

    /// Cuts all connections at rest.
    pub(crate) async fn cut_all(&self) {
        self.shared.cut_all.send_modify(|epoch| *epoch += 1);
        // Each connection gets to hear of it.
        tokio::task::yield_now().await;
        self.settled().await;
    }

    /// Waits until the server has done with what it received over the
    /// connections that were cut: it ends them after that.
    pub(crate) async fn settled(&self) {
        let mut ending = self.shared.ending.subscribe();
        within("the server ends the cut connections", async {
            ending.wait_for(|ending| *ending == 0).await.unwrap();
        })
        .await;
    }
}

async fn carry(mut client: TcpStream, shared: Arc<Shared>) {
    let mut cut_all = shared.cut_all.subscribe();
    if shared.lock().down {
        return;
    }
    let Ok(mut server) = TcpStream::connect(shared.server).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let (direction, length) = tokio::select! {
            read = client.read(&mut asked) => (Direction::ToServer, read),
            read = server.read(&mut answered) => (Direction::ToClient, read),
            _ = cut_all.changed() => break,
        };
        let Ok(mut length @ 1..) = length else { break };
        let (from, to, bytes) = match direction {
            Direction::ToServer => (&mut client, &mut server, &mut asked),
            Direction::ToClient => (&mut server, &mut client, &mut answered),
        };
        while let Ok(Ok(more @ 1..)) =
            tokio::time::timeout(PAUSE, from.read(&mut bytes[length..])).await
        {
            length += more;
        }
        let passes = shared.count(direction);
        let length = match passes {
            Some(Passes::Nothing) => 0,
            Some(Passes::Half) => length / 2,
            Some(Passes::All) | None => length,
        };
        if to.write_all(&bytes[..length]).await.is_err() || passes.is_some() {
            break;
        }
    }
    shared.ending.send_modify(|ending| *ending += 1);
    drop(client);
    // The server gets the end of the connection behind what was sent.
    let _ = server.shutdown().await;
    while let Ok(1..) = server.read(&mut answered).await {}
    shared.ending.send_modify(|ending| *ending -= 1);
}
