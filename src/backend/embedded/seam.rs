//! The seam between redb and the file: lock waits get a deadline (a process
//! stopped inside a write must not hang the others), failures are remembered,
//! and a [`StorageProbe`] can watch or fail every operation.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

use crate::clock::{Clock, Monotonic, SystemClock};

/// One of the files that a store is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum StoreFile {
    /// The store itself, which the path names: the tables.
    Tables,
    /// `NAME-log`: the log, one of two files that take turns.
    Log,
    /// `NAME-log2`: the other.
    SecondLog,
    /// `NAME-tail`: where the log ends, told by who appended to those who
    /// read. Never synced; of no use after the machine has stopped.
    Tail,
}

/// An operation on a file of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StorageOp<'a> {
    /// `len` bytes are read at `offset`.
    Read {
        /// Where.
        offset: u64,
        /// How many.
        len: usize,
    },
    /// `data` is written at `offset`.
    Write {
        /// Where.
        offset: u64,
        /// What.
        data: &'a [u8],
    },
    /// What was written reaches stable storage.
    Sync,
    /// The file is cut or grown to this length.
    SetLen(u64),
    /// The file is made, empty, under its name.
    Create,
    /// The file's name is removed.
    Remove,
    /// What was made and removed in the store's folder reaches stable storage.
    SyncFolder,
}

/// Watches what the engine does to its files, and can make it fail: the seam
/// for fault injection and for rebuilding what a power cut leaves.
pub trait StorageProbe: fmt::Debug + Send + Sync + 'static {
    /// Called before each operation.
    ///
    /// # Errors
    /// An error is what the engine sees instead of the operation.
    fn before(&self, file: StoreFile, op: StorageOp<'_>) -> io::Result<()>;
}

/// What the seam has seen, shared with the engine.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// A write, resize or sync failed: nothing is written from then on (R26).
    failed: AtomicBool,
    /// A read failed: redb's memory of the file is of no more use.
    read_failed: AtomicBool,
    /// Writes that make a commit the file's state, since the engine last
    /// looked: until there has been one, a commit that failed has certainly
    /// not happened.
    commit_points: AtomicU64,
    /// Threads that have waited for a lock longer than a moment.
    waiting: AtomicUsize,
}

impl Seen {
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(super) fn has_failed_to_read(&self) -> bool {
        self.read_failed.load(Ordering::Acquire)
    }

    pub(super) fn take_commit_points(&self) -> u64 {
        self.commit_points.swap(0, Ordering::AcqRel)
    }

    /// Whether some thread is stuck behind another process, so that a caller
    /// that must not block should not even try.
    pub(super) fn someone_waits(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0
    }
}

thread_local! {
    static DEADLINE: Cell<Option<Monotonic>> = const { Cell::new(None) };
}

/// Runs `work` with a deadline for all the locks that it waits for on this
/// thread.
pub(super) fn with_deadline<T>(deadline: Monotonic, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<Monotonic>);
    impl Drop for Restore {
        fn drop(&mut self) {
            DEADLINE.set(self.0);
        }
    }
    let _restore = Restore(DEADLINE.replace(Some(deadline)));
    work()
}

/// The machine's time, for lock waits: they are about other processes, which a
/// clock that a test moves knows nothing of.
pub(super) fn real_now() -> Monotonic {
    SystemClock.monotonic()
}

/// A lock was not to be had before the deadline.
#[derive(Debug)]
pub(super) struct LockTimeout;

impl fmt::Display for LockTimeout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("another process holds the store's lock")
    }
}

impl std::error::Error for LockTimeout {}

/// Whether an I/O error that redb handed through is a [`LockTimeout`].
pub(super) fn is_lock_timeout(error: &io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(<dyn std::error::Error + Send + Sync>::is::<LockTimeout>)
}

/// redb's header: its first bytes, which name the current root.
const HEADER_BYTES: u64 = 320;
/// Where redb 4.6 keeps the header's flags (`GOD_BYTE_OFFSET`).
const FLAGS_OFFSET: u64 = 9;
/// The flag that is set by the write that makes a commit the file's state, and
/// by no other (`PRIMARY_UNFLUSHED`).
const COMMITTING: u8 = 8;

/// Whether a write may make a commit the file's state.
fn is_commit_point(offset: u64, data: &[u8]) -> bool {
    if offset >= HEADER_BYTES {
        return false;
    }
    let flags = FLAGS_OFFSET
        .checked_sub(offset)
        .and_then(|at| data.get(usize::try_from(at).ok()?));
    flags.is_none_or(|flags| flags & COMMITTING != 0)
}

/// redb's backend over the file, with deadlines, memory and a probe.
#[derive(Debug)]
pub(super) struct Seam {
    file: FileBackend,
    seen: Arc<Seen>,
    probe: Option<Arc<dyn StorageProbe>>,
    busy_timeout: Duration,
}

impl Seam {
    pub(super) fn new(
        file: File,
        seen: Arc<Seen>,
        probe: Option<Arc<dyn StorageProbe>>,
        busy_timeout: Duration,
    ) -> Result<Self, redb::DatabaseError> {
        Ok(Self {
            file: FileBackend::new(file)?,
            seen,
            probe,
            busy_timeout,
        })
    }

    fn ask(&self, op: StorageOp<'_>) -> io::Result<()> {
        self.probe
            .as_ref()
            .map_or(Ok(()), |probe| probe.before(StoreFile::Tables, op))
    }

    /// Notes a failure of an operation that changes the file.
    fn changing(&self, op: StorageOp<'_>, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if self.seen.has_failed() {
            return Err(io::Error::other(
                "an earlier write failed; the store must be opened again",
            ));
        }
        self.ask(op)
            .and_then(|()| work())
            .inspect_err(|_| self.seen.failed.store(true, Ordering::Release))
    }

    fn wait(
        &self,
        mut attempt: impl FnMut() -> Result<bool, BackendError>,
    ) -> Result<(), BackendError> {
        if attempt()? {
            return Ok(());
        }
        let deadline = DEADLINE
            .get()
            .unwrap_or_else(|| real_now().plus(self.busy_timeout));
        // Other processes hold the header for microseconds and the writer's
        // lock for the length of a commit.
        let mut nap = Duration::from_micros(20);
        let _waiting = Waiting::begin(&self.seen);
        while real_now() < deadline {
            std::thread::sleep(nap);
            if attempt()? {
                return Ok(());
            }
            nap = (nap * 2).min(Duration::from_micros(1500));
        }
        Err(BackendError::Io(io::Error::new(
            io::ErrorKind::TimedOut,
            LockTimeout,
        )))
    }
}

struct Waiting<'a>(&'a Seen);

impl<'a> Waiting<'a> {
    fn begin(seen: &'a Seen) -> Self {
        seen.waiting.fetch_add(1, Ordering::AcqRel);
        Self(seen)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl StorageBackend for Seam {
    fn len(&self) -> io::Result<u64> {
        let len = self.file.len()?;
        if len == 0 {
            // redb would make a new database in it (R29).
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the store's file has been emptied",
            ));
        }
        Ok(len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let len = out.len();
        self.ask(StorageOp::Read { offset, len })
            .and_then(|()| self.file.read(offset, out))
            .inspect_err(|_| self.seen.read_failed.store(true, Ordering::Release))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.changing(StorageOp::SetLen(len), || self.file.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.changing(StorageOp::Sync, || self.file.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if is_commit_point(offset, data) {
            self.seen.commit_points.fetch_add(1, Ordering::AcqRel);
        }
        self.changing(StorageOp::Write { offset, data }, || {
            self.file.write(offset, data)
        })
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.wait(|| self.file.try_lock_range(start, end))
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.wait(|| self.file.try_lock_shared_range(start, end))
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}
