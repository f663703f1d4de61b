//! Making a store and opening one, without ever putting a new store where one
//! was (R29).

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Bound;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{
    ConcurrencyMode, Database, ReadOnlyDatabase, ReadTransaction, ReadableDatabase, StorageBackend,
};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::EmbeddedOptions;
use super::codec::{ClockAnchor, StoreMeta};
use super::failure::{database_error, next_step, transaction_error, without_panics};
use super::seam::{Seam, Seen};
use super::tables::{self, META_CLOCK, META_STORE, Snapshot, Tables};
use super::time::StoreTime;
use crate::error::{Error, Result};

/// Which file a handle has open, to notice when the path names another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }

    /// Fails when `path` is no longer this file: a mark read from the file that
    /// was there before would not fence anybody.
    pub(super) fn still_at(self, path: &Path) -> Result<()> {
        let problem = match std::fs::metadata(path) {
            Ok(metadata) if Self::of(&metadata) == self => return Ok(()),
            Ok(_) => "another file has taken its place".to_owned(),
            Err(error) => format!("it is gone: {error}"),
        };
        Err(Error::Storage {
            message: format!(
                "{}: the store's file was replaced while it was open: {problem}; open the store again",
                path.display()
            ),
        })
    }
}

/// A database that is closed when this is dropped, without panics: one that
/// redb has panicked in, over damage, panics again when it is closed.
pub(super) struct Guarded<D = Database>(Option<D>);

impl<D> fmt::Debug for Guarded<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").finish_non_exhaustive()
    }
}

impl<D> Guarded<D> {
    fn new(database: D) -> Self {
        Self(Some(database))
    }

    pub(super) fn get(&self) -> Result<&D> {
        self.0.as_ref().ok_or_else(|| Error::Storage {
            message: "the store is closed".to_owned(),
        })
    }
}

impl<D: ReadableDatabase> Guarded<D> {
    pub(super) fn begin_read(&self) -> Result<ReadTransaction> {
        self.get()?.begin_read().map_err(transaction_error)
    }
}

impl<D> Drop for Guarded<D> {
    fn drop(&mut self) {
        let _ = without_panics(|| {
            drop(self.0.take());
            Ok(())
        });
    }
}

/// A database that is open.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) database: Guarded,
    pub(super) seen: Arc<Seen>,
    pub(super) identity: FileIdentity,
}

fn failed(path: &Path, doing: &str, error: &io::Error) -> Error {
    Error::Storage {
        message: format!(
            "cannot {doing} {}: {error}{}",
            path.display(),
            next_step(error.kind())
        ),
    }
}

/// Opens the store at `path`, making it first if `options` say so and nothing
/// is there.
pub(super) fn open(path: &Path, options: &EmbeddedOptions) -> Result<Opened> {
    let file = match open_file(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if !options.create {
                return Err(Error::Storage {
                    message: format!(
                        "there is no store at {}: name another, or create it by acquiring a lease or writing",
                        path.display()
                    ),
                });
            }
            create(path, options)?;
            open_file(path).map_err(|error| failed(path, "open", &error))?
        }
        Err(error) => return Err(failed(path, "open", &error)),
    };
    let metadata = file
        .metadata()
        .map_err(|error| failed(path, "look at", &error))?;
    if !metadata.is_file() {
        return Err(Error::invalid(
            "store",
            format!(
                "{} is not a file; give the path of a store's file",
                path.display()
            ),
        ));
    }
    if metadata.len() == 0 {
        return Err(Error::Corrupt {
            location: path.display().to_string(),
            message: "the file is empty; a store is never made in a file that exists: remove it, or restore a backup".to_owned(),
        });
    }
    let identity = FileIdentity::of(&metadata);
    let verify = metadata.len() <= options.verify_up_to;
    let foreign = || Error::Corrupt {
        location: path.display().to_string(),
        message: "it is a redb file, but not a statepact store".to_owned(),
    };
    // Opening for writing marks the file as open: not one of another program.
    // What cannot be read this way, the opening below repairs or refuses.
    let looked = without_panics(|| tables::is_store(&open_reader(path, options)?.begin_read()?));
    if let Ok(false) = looked {
        return Err(foreign());
    }
    let (database, seen) = open_database(file, options, verify)?;
    let txn = database.begin_read()?;
    if !tables::is_store(&txn)? {
        return Err(foreign());
    }
    let store: Option<StoreMeta> = Snapshot::new(txn).meta(META_STORE)?;
    if store.is_none() {
        return Err(Error::Corrupt {
            location: "table `meta`, key `store`".to_owned(),
            message: "it is missing".to_owned(),
        });
    }
    Ok(Opened {
        database,
        seen,
        identity,
    })
}

/// A folder opens for reading only, so that it can be told apart.
fn open_file(path: &Path) -> io::Result<File> {
    match OpenOptions::new().read(true).write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => File::open(path),
        result => result,
    }
}

/// The byte that every process that has the file open for writing holds
/// (redb 4.6, `SHARED_WRITER_BYTE`).
const SHARED_WRITER_BYTE: u64 = (1 << 62) + 1;

fn open_database(
    file: File,
    options: &EmbeddedOptions,
    verify: bool,
) -> Result<(Guarded, Arc<Seen>)> {
    let seen = Arc::new(Seen::default());
    let seam = Seam::new(
        file,
        seen.clone(),
        options.probe.clone(),
        options.busy_timeout,
    )
    .map_err(database_error)?;
    // The first to open the file verifies it; those that join it need not.
    let alone = !seam
        .query_lock_range(
            Bound::Included(SHARED_WRITER_BYTE),
            Bound::Included(SHARED_WRITER_BYTE),
        )
        .unwrap_or(false);
    let database = Database::builder()
        .set_concurrency_mode(ConcurrencyMode::MultiWriter)
        .set_cache_size(options.cache_bytes)
        .set_check_integrity_on_open(verify && alone)
        .create_with_backend(seam)
        .map_err(database_error)?;
    Ok((Guarded::new(database), seen))
}

/// Opens the file once more with its checksums verified, whatever its size.
pub(super) fn open_verified(path: &Path, options: &EmbeddedOptions) -> Result<Guarded> {
    let file = open_file(path).map_err(|error| failed(path, "open", &error))?;
    let seen = Arc::new(Seen::default());
    let probe = options.probe.clone();
    let seam = Seam::new(file, seen, probe, options.busy_timeout).map_err(database_error)?;
    Database::builder()
        .set_concurrency_mode(ConcurrencyMode::MultiWriter)
        .set_cache_size(options.cache_bytes)
        .set_check_integrity_on_open(true)
        .create_with_backend(seam)
        .map(Guarded::new)
        .map_err(database_error)
}

/// Opens the file for reads alone, beside a handle whose writes have failed:
/// redb refuses everything to that one.
pub(super) fn open_reader(
    path: &Path,
    options: &EmbeddedOptions,
) -> Result<Guarded<ReadOnlyDatabase>> {
    let file = File::open(path).map_err(|error| failed(path, "open", &error))?;
    let seen = Arc::new(Seen::default());
    let probe = options.probe.clone();
    let seam = Seam::new(file, seen, probe, options.busy_timeout).map_err(database_error)?;
    Database::builder()
        .set_concurrency_mode(ConcurrencyMode::MultiWriter)
        .set_cache_size(options.cache_bytes)
        .open_read_only_with_backend(seam)
        .map(Guarded::new)
        .map_err(database_error)
}

/// Makes a store under another name beside `path` and moves it there whole,
/// unless something is there by then.
fn create(path: &Path, options: &EmbeddedOptions) -> Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let Some(name) = path.file_name() else {
        return Err(Error::invalid(
            "store",
            format!("{} does not name a file", path.display()),
        ));
    };
    let mut new_name = std::ffi::OsString::from(".");
    new_name.push(name);
    new_name.push(format!(".{:016x}.new", options.random.next_u64()));
    let new = Unfinished(folder.join(new_name));
    fill(&new.0, path, options).map_err(|error| match error {
        Error::Storage { message } if !message.starts_with("cannot create") => Error::Storage {
            message: format!("cannot create {}: {message}", path.display()),
        },
        other => other,
    })?;
    match renameat_with(CWD, &new.0, CWD, path, RenameFlags::NOREPLACE) {
        // Another process was faster: its store is the one.
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        // A file system without that rename: a second name for the file is
        // refused just as well where there is one already.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            match std::fs::hard_link(&new.0, path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(path, "create", &error)),
            }
        }
        Err(error) => return Err(failed(path, "create", &error.into())),
    }
    // Without this a power cut can take the file's name away again.
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|error| failed(folder, "sync the folder", &error))
}

/// A file that is removed unless it has been moved.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After a successful rename there is nothing under this name.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Makes a whole store in the new file `path`, which is to become `store`.
fn fill(path: &Path, store: &Path, options: &EmbeddedOptions) -> Result<()> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(|error| failed(store, "create", &error))?;
    let backend = redb::backends::FileBackend::new(file).map_err(database_error)?;
    let database = Database::builder()
        .set_concurrency_mode(ConcurrencyMode::MultiWriter)
        .set_cache_size(options.cache_bytes)
        .create_with_backend(backend)
        .map_err(database_error)?;
    let txn = database.begin_write().map_err(transaction_error)?;
    Tables::begin(&txn)?;
    {
        let mut tables = Tables::open(&txn)?;
        let id =
            u128::from(options.random.next_u64()) << 64 | u128::from(options.random.next_u64());
        tables.put_meta(META_STORE, &StoreMeta { id })?;
    }
    tables::commit(txn)?;
    drop(database);
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(|error| failed(store, "create", &error))
}

/// The store's time line, tied to this boot of the machine; writes only when
/// this is the first opening in it.
pub(super) fn store_time(database: &Guarded, options: &EmbeddedOptions) -> Result<StoreTime> {
    let txn = database.begin_read()?;
    let anchor: Option<ClockAnchor> = Snapshot::new(txn).meta(META_CLOCK)?;
    if let Some(time) = anchor
        .as_ref()
        .and_then(|anchor| StoreTime::resume(&options.clock, anchor))
    {
        return Ok(time);
    }
    let txn = database.get()?.begin_write().map_err(transaction_error)?;
    let time = {
        let mut tables = Tables::open(&txn)?;
        // Another process may have been first.
        let anchor: Option<ClockAnchor> = tables.meta(META_CLOCK)?;
        let resumed = anchor
            .as_ref()
            .and_then(|anchor| StoreTime::resume(&options.clock, anchor));
        if let Some(time) = resumed {
            time
        } else {
            let (time, anchor) = StoreTime::begin(&options.clock, anchor.as_ref());
            tables.put_meta(META_CLOCK, &anchor)?;
            time
        }
    };
    tables::commit(txn)?;
    Ok(time)
}
