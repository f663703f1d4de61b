//! Writers that are stopped with SIGSTOP while they hold the store's locks.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use statepact::backend::embedded::{Embedded, EmbeddedOptions, StorageOp, StorageProbe, StoreFile};
use statepact::backend::{Change, CommitRequest, ResourceWrite};
use statepact::clock::{Clock, SystemClock};
use statepact::random::{Random, SeededRandom};
use statepact::{Backend, Error, Result, Value};

use crate::harness::{Place, Worker, check, runtime};

const BUSY_TIMEOUT: Duration = Duration::from_millis(500);
/// Longer than that is a hang.
const CEILING: Duration = Duration::from_secs(10);

/// The operations that the others try, and how often each of them was `Busy`.
const TRIED: [&str; 5] = ["open", "read", "write", "read, async", "write, async"];

fn options() -> EmbeddedOptions {
    EmbeddedOptions::new().busy_timeout(BUSY_TIMEOUT)
}

fn request(resource: &str, number: u64) -> CommitRequest {
    let value = Value::encode(&number).unwrap();
    CommitRequest {
        id: None,
        agent: "writer".try_into().unwrap(),
        fences: Vec::new(),
        checks: Vec::new(),
        writes: vec![ResourceWrite {
            resource: resource.try_into().unwrap(),
            change: Change::Fields([("n".try_into().unwrap(), Some(value))].into()),
            fenced: None,
        }],
    }
}

/// Stops this process before one of the operations that change the file.
#[derive(Debug)]
struct StopBefore {
    /// Counts down to the operation; below zero when there is none.
    left: AtomicI64,
}

impl StorageProbe for StopBefore {
    fn before(&self, _: StoreFile, op: StorageOp<'_>) -> std::io::Result<()> {
        if !matches!(op, StorageOp::Read { .. }) && self.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            kill_process(getpid(), Signal::STOP)?;
        }
        Ok(())
    }
}

/// The worker: commits for ever and says each commit; stops itself before the
/// operation with that number, if one is given, counted from its sixth commit.
pub(crate) fn work(path: &str, stop_at: Option<&str>) {
    let probe = Arc::new(StopBefore {
        left: AtomicI64::new(-1),
    });
    let store = EmbeddedOptions::new()
        .busy_timeout(Duration::from_secs(30))
        .probe(probe.clone())
        .open_blocking(path)
        .unwrap();
    for number in 1.. {
        if number == 6
            && let Some(stop_at) = stop_at
        {
            probe.left.store(stop_at.parse().unwrap(), Ordering::SeqCst);
        }
        store.commit_blocking(&request("theirs", number)).unwrap();
        println!("did {number}");
    }
}

/// What the rest of the world does while a writer is stopped.
struct Others {
    place: Place,
    store: Embedded,
    committed: Arc<Mutex<u64>>,
    busy: [u32; TRIED.len()],
}

impl Others {
    fn new() -> Self {
        let place = Place::new();
        let store = options().open_blocking(&place.path).unwrap();
        store.commit_blocking(&request("ours", 0)).unwrap();
        Self {
            place,
            store,
            committed: Arc::new(Mutex::new(1)),
            busy: [0; TRIED.len()],
        }
    }

    /// Tries one operation in a thread of its own; whether it was `Busy`.
    fn attempt(&self, what: usize) -> impl Fn() -> Result<()> + Send + 'static {
        let (store, path) = (self.store.clone(), self.place.path.clone());
        let committed = self.committed.clone();
        move || {
            let names = ["ours".try_into().unwrap()];
            let mut outcome = Ok(());
            match what {
                0 => drop(options().open_blocking(&path)?),
                1 => drop(store.read_blocking(&names)?),
                2 => outcome = store.commit_blocking(&request("ours", 2)).map(drop),
                3 => drop(runtime().block_on(store.read(&names))?),
                _ => {
                    outcome = runtime()
                        .block_on(store.commit(&request("ours", 3)))
                        .map(drop);
                }
            }
            if matches!(what, 2 | 4) && outcome.is_ok() {
                *committed.lock().unwrap() += 1;
            }
            outcome
        }
    }

    /// Tries everything at once: all of it succeeds or is `Busy`, in time.
    fn try_all(&mut self) {
        let (sender, answers) = channel();
        for what in 0..TRIED.len() {
            let attempt = self.attempt(what);
            let sender = sender.clone();
            std::thread::spawn(move || {
                let began = SystemClock.monotonic();
                let answer = attempt();
                let took = SystemClock.monotonic().since(began);
                let _ = sender.send((what, answer, took));
            });
        }
        for _ in TRIED {
            let (what, answer, took) = answers
                .recv_timeout(3 * CEILING)
                .expect("an attempt hangs, or panicked");
            assert!(took < CEILING, "{} took {took:?}", TRIED[what]);
            match answer {
                Ok(()) => {}
                Err(Error::Busy { waited, .. }) => {
                    self.busy[what] += 1;
                    assert!(took >= Duration::from_millis(400), "gave up after {took:?}");
                    assert!(waited <= CEILING, "{waited:?}");
                }
                Err(other) => panic!("{}: {other:?}", TRIED[what]),
            }
        }
    }

    /// All go on: nothing of what happened stays in the way.
    fn all_go_on(&self) {
        for (what, name) in TRIED.iter().enumerate() {
            let attempt = self.attempt(what);
            let began = SystemClock.monotonic();
            // A writer that loops beside this one may be in the way at times.
            while let Err(error) = attempt() {
                assert!(matches!(error, Error::Busy { .. }), "{error:?}");
                let waited = SystemClock.monotonic().since(began);
                assert!(waited < 3 * CEILING, "{name} stays busy");
            }
        }
    }

    /// Every commit that was acknowledged was made, and none that was `Busy`.
    fn finish(self) {
        let states = self
            .store
            .read_blocking(&["ours".try_into().unwrap()])
            .unwrap();
        assert_eq!(
            states[0].as_ref().unwrap().version,
            *self.committed.lock().unwrap()
        );
        check(&self.store);
    }
}

/// A writer is stopped at random moments of a loop of writes, until the others
/// have been `Busy` and at least 30 times; then it goes on, or is killed.
pub(crate) fn stop_at_random() {
    let mut others = Others::new();
    let random = SeededRandom::new(5);
    let mut writer = Worker::start("write", &[others.place.text()]);
    for round in 1.. {
        for _ in 0..=random.next_u64() % 3 {
            writer.hear_after("did");
        }
        std::thread::sleep(Duration::from_micros(random.next_u64() % 5_000));
        writer.stop();
        others.try_all();
        if round % 3 == 0 {
            writer.kill();
            others.all_go_on();
            writer = Worker::start("write", &[others.place.text()]);
        } else {
            writer.go_on();
            writer.drain();
            others.all_go_on();
            writer.hear_after("did");
        }
        let [open, _, write, ..] = others.busy;
        if round >= 30 && open > 0 && write > 0 {
            break;
        }
        assert!(round < 100, "no stop hit inside a write: {:?}", others.busy);
    }
    drop(writer);
    others.finish();
}

/// A writer is stopped before each of the first operations of a commit in
/// turn: while it holds the writer's lock, and while it holds the header's.
pub(crate) fn stop_at_each_operation() {
    let mut others = Others::new();
    for operation in 0..24 {
        let writer = Worker::start("write", &[others.place.text(), &operation.to_string()]);
        for _ in 0..5 {
            writer.hear_after("did");
        }
        writer.wait_until_stopped();
        writer.drain();
        let before = others.busy;
        others.try_all();
        let [open, _, write, ..] = others.busy;
        assert!(open > before[0], "an open inside operation {operation}");
        assert!(write > before[2], "a write inside operation {operation}");
        if operation % 2 == 0 {
            writer.kill();
        } else {
            writer.go_on();
            writer.hear_after("did");
        }
        others.all_go_on();
    }
    for (what, busy) in TRIED.iter().zip(others.busy) {
        assert!(busy > 0, "{what} was never busy: {:?}", others.busy);
    }
    others.finish();
}
