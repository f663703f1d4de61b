//! Every call, with its connection cut at every message of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use statepact::backend::Backend;
use statepact::clock::{Clock, ManualClock};
use statepact::rules::Op;
use statepact::{Error, Result};

use crate::calls::{Answer, Call, Scene, decided};
use crate::proxy::{Cut, Direction, Passes, Proxy};
use crate::support::{Kind, Open, POOL_SIZE, Server, is_unknown, recovered, within};
use crate::transactions::Sessions;

/// More messages than any call has.
const MANY: usize = 200;

/// How a call is prepared for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// A connection is at hand.
    Connected,
    /// Its connections have been cut while nobody used them.
    Disconnected,
    /// The server has forgotten its scripts.
    Forgotten,
}

/// How often an answer came that left the store as it was, and how often one
/// that came with the call done.
#[derive(Debug, Default)]
struct Seen {
    answers: BTreeMap<(&'static str, &'static str), usize>,
    struck: BTreeMap<(&'static str, Passes), usize>,
}

/// One call with one cut.
struct Ended {
    /// The call came to the cut.
    struck: bool,
    /// The store is another since.
    changed: bool,
    answered: &'static str,
}

struct World {
    server: Server,
    proxy: Proxy,
    clock: Arc<ManualClock>,
    /// Past the proxy.
    direct: Arc<dyn Backend>,
    tested: Arc<dyn Backend>,
    /// Of a server that has transactions.
    sessions: Option<Sessions>,
    scenes: u64,
    seen: Seen,
}

impl World {
    async fn start(kind: Kind) -> Self {
        let server = Server::start(kind);
        let clock = Arc::new(ManualClock::new());
        let proxy = Proxy::before(server.address()).await;
        let open = |port| Open {
            port,
            clock: Some(clock.clone()),
            timeout: None,
        };
        let direct = server.open(open(None)).await;
        let tested = server.open(open(Some(proxy.port()))).await;
        let sessions = match &server {
            Server::Postgres(server) => Some(Sessions::of(server).await),
            Server::Redis(_) => None,
        };
        Self {
            server,
            sessions,
            proxy,
            clock,
            direct,
            tested,
            scenes: 0,
            seen: Seen::default(),
        }
    }

    async fn new_scene(&mut self) -> Scene {
        self.scenes += 1;
        Scene::set_up(&*self.direct, self.scenes).await
    }

    async fn prepare(&self, start: Start) {
        recovered(&*self.tested).await;
        match (start, &self.server) {
            (Start::Connected, _) => {}
            (Start::Disconnected, _) => self.proxy.cut_all().await,
            (Start::Forgotten, Server::Redis(server)) => {
                server.done(&["SCRIPT", "FLUSH"]).unwrap();
            }
            (Start::Forgotten, Server::Postgres(_)) => panic!("it has no scripts"),
        }
    }

    /// Cuts the call at each of its messages, until it has none left.
    async fn sweep(&mut self, at: usize, start: Start) {
        for (passes, stays_down) in [
            (Passes::Nothing, false),
            (Passes::Nothing, true),
            (Passes::Half, true),
            (Passes::All, false),
        ] {
            let mut scene = self.new_scene().await;
            let mut after = 0;
            loop {
                assert!(after < MANY, "the cut is never passed by");
                let cut = Cut {
                    after,
                    passes,
                    stays_down,
                };
                let ended = self.cut(&scene, at, start, cut).await;
                if ended.changed {
                    scene = self.new_scene().await;
                }
                match (ended.struck, ended.answered) {
                    (true, _) => after += 1,
                    (false, "answer") => break,
                    // The idle connection's end was not noticed in time.
                    _ => assert_eq!(start, Start::Disconnected),
                }
            }
        }
    }

    async fn cut(&mut self, scene: &Scene, at: usize, start: Start, cut: Cut) -> Ended {
        let (name, call) = scene.calls().swap_remove(at);
        let before = scene.look(&*self.direct).await;
        let (expected, after) = match call.op() {
            Some(op) => decided(op, &before, scene.newest, self.clock.wall()),
            None => (call.send(&*self.direct).await, before.clone()),
        };
        self.prepare(start).await;
        self.proxy.arm(cut);
        let answer = within(name, call.send(&*self.tested)).await;
        let struck = self.proxy.heal();
        self.proxy.settled().await;

        let held = scene.look(&*self.direct).await;
        let context = format!("{name}, {start:?}, {cut:?} ({struck:?}): {answer:?}");
        if let Some(sessions) = &self.sessions {
            sessions.none_is_open(2 * POOL_SIZE, &context).await;
        }
        let unchanged = held == before;
        assert!(
            unchanged || held == after,
            "neither undone nor done once: {context}\n{held:#?}\ninstead of\n{after:#?}"
        );
        let answered = judge(&answer, &expected, &call, &context);
        match answered {
            "answer" => assert_eq!(held, after, "answered and not done: {context}"),
            "unavailable" => assert!(unchanged, "unavailable, and done: {context}"),
            _ => {}
        }
        if struck.is_none() && start != Start::Disconnected {
            assert_eq!(answered, "answer", "{context}");
        }
        let became = if unchanged { "unchanged" } else { "done" };
        if call.op().is_some() && after != before {
            *self.seen.answers.entry((answered, became)).or_default() += 1;
        }
        if let Some(direction) = struck {
            let direction = match direction {
                Direction::ToServer => "to the server",
                Direction::ToClient => "to the client",
            };
            let key = (direction, cut.passes);
            *self.seen.struck.entry(key).or_default() += 1;
        }

        let mut changed = !unchanged;
        if let Call::Write(Op::Commit(request)) = &call
            && request.id.is_some()
        {
            // R26: sent again, it is done once in all, with the first outcome.
            recovered(&*self.tested).await;
            let again = call.send(&*self.tested).await;
            assert_eq!(shown(&again), shown(&expected), "sent again: {context}");
            let held = scene.look(&*self.direct).await;
            assert_eq!(held, after, "sent again: {context}");
            changed = held != before;
        }
        Ended {
            struck: struck.is_some(),
            changed,
            answered,
        }
    }
}

/// Whether it is the answer of the rules, an unavailable server, or an unknown
/// outcome; nothing else may come.
fn judge(
    answer: &Result<Answer>,
    expected: &Result<Answer>,
    call: &Call,
    context: &str,
) -> &'static str {
    if shown(answer) == shown(expected) {
        return "answer";
    }
    match answer {
        Err(Error::Unavailable { .. }) => "unavailable",
        Err(error) if is_unknown(error) => {
            // A call that only reads has no outcome that could be unknown.
            assert!(call.op().is_some(), "{context}");
            "unknown"
        }
        _ => panic!("a wrong answer: {context}\ninstead of {expected:?}"),
    }
}

/// Errors have no equality.
fn shown(answer: &Result<Answer>) -> Result<&Answer, String> {
    answer.as_ref().map_err(ToString::to_string)
}

async fn every_call_cut_everywhere(kind: Kind) {
    let mut world = World::start(kind).await;
    let calls = world.new_scene().await.calls();
    for (at, (name, _)) in calls.iter().enumerate() {
        world.sweep(at, Start::Connected).await;
        if matches!(*name, "large commit" | "read") {
            world.sweep(at, Start::Disconnected).await;
        }
        if kind == Kind::Redis {
            world.sweep(at, Start::Forgotten).await;
        }
    }
    world.direct.check(&|_| {}).await.unwrap();
    println!("{:?}", world.seen);
    let answers = &world.seen.answers;
    // Otherwise something was not tested.
    for each in [
        ("answer", "done"),
        ("unavailable", "unchanged"),
        ("unknown", "unchanged"),
        ("unknown", "done"),
    ] {
        assert!(answers.contains_key(&each), "never came: {each:?}");
    }
    assert_eq!(world.seen.struck.len(), 6, "{:?}", world.seen.struck);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_calls_cut_at_every_message() {
    every_call_cut_everywhere(Kind::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_calls_cut_at_every_message() {
    every_call_cut_everywhere(Kind::Postgres).await;
}
