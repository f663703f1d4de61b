//! redb's errors as ours.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use super::seam::is_lock_timeout;
use crate::error::{Error, Result};

/// A lock timeout, before the engine says how long it waited.
pub(super) fn busy(waited: Duration) -> Error {
    Error::Busy {
        what: "another process to let go of the store",
        waited,
    }
}

pub(super) fn storage_error(error: redb::StorageError) -> Error {
    use redb::StorageError as E;
    match error {
        E::Corrupted(message) => corrupt(message),
        E::Io(error) if is_lock_timeout(&error) => busy(Duration::ZERO),
        E::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            corrupt(error.to_string())
        }
        E::Io(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            corrupt("the file ends before what it should hold".to_owned())
        }
        E::Io(error) => Error::Storage {
            message: format!(
                "cannot read or write the store: {error}{}",
                next_step(error.kind())
            ),
        },
        E::ValueTooLarge(bytes) => Error::invalid(
            "writes",
            format!("a record of {bytes} bytes is more than the store can hold"),
        ),
        E::LockPoisoned(_) => corrupt("an earlier operation stopped half way".to_owned()),
        E::PreviousIo => Error::Storage {
            message: "an earlier read or write of the store failed; open it again".to_owned(),
        },
        other => Error::Storage {
            message: format!("cannot use the store: {other}"),
        },
    }
}

/// What to do about an error of the system.
pub(super) fn next_step(error: std::io::ErrorKind) -> &'static str {
    use std::io::ErrorKind as E;
    match error {
        E::NotFound => "; create the folder first",
        E::PermissionDenied => "; the store and its folder must be readable and writable",
        E::ReadOnlyFilesystem => "; a store needs a file system that it can write to",
        E::StorageFull | E::QuotaExceeded => "; free some space",
        _ => "",
    }
}

fn corrupt(message: String) -> Error {
    let message = if message.starts_with("Not a redb database") {
        "it is not a store".to_owned()
    } else {
        message
    };
    Error::Corrupt {
        location: "the store's file".to_owned(),
        message,
    }
}

pub(super) fn table_error(error: redb::TableError) -> Error {
    match error {
        redb::TableError::Storage(error) => storage_error(error),
        other => corrupt(other.to_string()),
    }
}

/// Of a table of the caller's own: what is wrong with it is the caller's call.
pub(super) fn own_table_error(error: redb::TableError) -> Error {
    match error {
        redb::TableError::Storage(error) => storage_error(error),
        other => Error::invalid("table", other.to_string()),
    }
}

pub(super) fn transaction_error(error: redb::TransactionError) -> Error {
    match error {
        redb::TransactionError::Storage(error) => storage_error(error),
        other => Error::Storage {
            message: format!("cannot begin a transaction: {other}"),
        },
    }
}

pub(super) fn commit_error(error: redb::CommitError) -> Error {
    match error {
        redb::CommitError::Storage(error) => storage_error(error),
        other => Error::Storage {
            message: format!("cannot commit: {other}"),
        },
    }
}

pub(super) fn database_error(error: redb::DatabaseError) -> Error {
    use redb::DatabaseError as E;
    match error {
        E::Storage(error) => storage_error(error),
        E::DatabaseAlreadyOpen => Error::Busy {
            what: "a program that has the file for itself",
            waited: Duration::ZERO,
        },
        E::RepairAborted => corrupt("it was not closed cleanly and is not repairable".to_owned()),
        E::UpgradeRequired(version) => corrupt(format!("its file format {version} is too old")),
        other => Error::Storage {
            message: format!("cannot open the store: {other}"),
        },
    }
}

/// Says which file an error of the engine is about, and how long a wait was.
pub(super) fn located(error: Error, path: &Path, busy_for: Duration) -> Error {
    match error {
        Error::Corrupt { location, message } if location == "the store's file" => Error::Corrupt {
            location: path.display().to_string(),
            message,
        },
        Error::Corrupt { location, message } if location != path.to_string_lossy() => {
            Error::Corrupt {
                location: format!("{}: {location}", path.display()),
                message,
            }
        }
        Error::Storage { message } if !message.contains(&*path.to_string_lossy()) => {
            Error::Storage {
                message: format!("{}: {message}", path.display()),
            }
        }
        Error::Busy { what, waited } if waited.is_zero() => Error::Busy {
            what,
            waited: busy_for,
        },
        other => other,
    }
}

/// Runs `work` so that a panic of redb over a damaged file is an error (R29).
pub(super) fn without_panics<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(panic.as_ref())))
}

fn panicked(panic: &(dyn Any + Send)) -> Error {
    let said = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no reason given");
    corrupt(format!("reading it failed an assertion: {said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r29_a_corrupt_error_names_the_file_once() {
        let path = Path::new("/var/lib/state.redb");
        for (location, located_as) in [
            ("the store's file", "/var/lib/state.redb"),
            ("/var/lib/state.redb", "/var/lib/state.redb"),
            (
                "table `log`, key 3",
                "/var/lib/state.redb: table `log`, key 3",
            ),
        ] {
            let error = Error::Corrupt {
                location: location.to_owned(),
                message: "it is damaged".to_owned(),
            };
            let Error::Corrupt { location, .. } = located(error, path, Duration::ZERO) else {
                panic!("another error");
            };
            assert_eq!(location, located_as);
        }
    }
}
