//! What a failure of the driver, the pool or the server means to a caller.

use std::error::Error as _;
use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use deadpool_postgres::{PoolError, TimeoutType};
use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::error::{Error, Result};

/// The driver's error with its causes, on one line.
pub(super) fn describe(error: &tokio_postgres::Error) -> String {
    if let Some(server) = error.as_db_error() {
        return describe_server(server);
    }
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let next_text = next.to_string();
        if !text.contains(&next_text) {
            let _ = write!(text, ": {next_text}");
        }
        cause = next.source();
    }
    text
}

fn describe_server(error: &DbError) -> String {
    let mut text = format!("{} (SQLSTATE {})", error.message(), error.code().code());
    for more in [error.detail(), error.hint()].into_iter().flatten() {
        let _ = write!(text, ": {more}");
    }
    text.replace('\n', " ")
}

/// Whether the connection has gone, or goes to a server that has become a
/// standby: then what was sent on it may or may not have arrived.
pub(super) fn is_lost(error: &tokio_postgres::Error) -> bool {
    match error.as_db_error() {
        // A pooler speaks of a lost server in its own name, with class 08.
        Some(server) => {
            is_fatal(server)
                || server.code().code().starts_with("08")
                || *server.code() == SqlState::READ_ONLY_SQL_TRANSACTION
        }
        None => true,
    }
}

fn is_fatal(error: &DbError) -> bool {
    matches!(
        error.parsed_severity(),
        Some(Severity::Fatal | Severity::Panic)
    ) || matches!(error.severity(), "FATAL" | "PANIC")
}

/// A failure before anything was sent that could commit: nothing changed.
pub(super) fn before_commit(error: &tokio_postgres::Error, waited: Duration) -> Error {
    if let Some(server) = error.as_db_error() {
        return of_server(server, waited);
    }
    let message = describe(error);
    if is_certificate(error) {
        return Error::Storage {
            message: format!(
                "the server's certificate was refused: {message}: check sslmode, sslrootcert and \
                 the host's name in the URL"
            ),
        };
    }
    let text = error.to_string();
    if text.starts_with("error performing TLS handshake") && io_cause(error).is_none() {
        return Error::Storage {
            message: format!("{message}: check sslmode in the URL"),
        };
    }
    if text.starts_with("authentication error") {
        return Error::Storage {
            message: format!("{message}: check user and password in the URL"),
        };
    }
    if text.starts_with("invalid configuration") {
        return Error::invalid("store", message);
    }
    Error::Unavailable { message }
}

/// A failure of the round trip that has the `COMMIT`: R26.
pub(super) fn while_committing(error: &tokio_postgres::Error, waited: Duration) -> Error {
    match error.as_db_error() {
        // The transaction was rolled back before the `COMMIT`, or by it.
        Some(server)
            if !is_lost(error) || *server.code() == SqlState::READ_ONLY_SQL_TRANSACTION =>
        {
            of_server(server, waited)
        }
        _ => Error::OutcomeUnknown {
            message: format!(
                "the connection was lost while committing: {}",
                describe(error)
            ),
        },
    }
}

fn io_cause(error: &tokio_postgres::Error) -> Option<&io::Error> {
    let mut cause = error.source();
    while let Some(next) = cause {
        if let Some(io) = next.downcast_ref::<io::Error>() {
            return Some(io);
        }
        cause = next.source();
    }
    None
}

fn is_certificate(error: &tokio_postgres::Error) -> bool {
    io_cause(error)
        .and_then(io::Error::get_ref)
        .is_some_and(<dyn std::error::Error + Send + Sync>::is::<rustls::Error>)
}

fn of_server(error: &DbError, waited: Duration) -> Error {
    let busy = |what| Error::Busy { what, waited };
    let code = error.code();
    if *code == SqlState::LOCK_NOT_AVAILABLE {
        return busy("a lock that another transaction holds");
    }
    if *code == SqlState::T_R_SERIALIZATION_FAILURE || *code == SqlState::T_R_DEADLOCK_DETECTED {
        return busy("another transaction, which was in the way of this one");
    }
    if *code == SqlState::QUERY_CANCELED {
        return busy("a statement, which took longer than its time");
    }
    if *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT {
        return busy("this process, which did not go on with its transaction");
    }
    let message = describe_server(error);
    let storage = |next: &str| Error::Storage {
        message: format!("{message}: {next}"),
    };
    match (code.code(), code.code().get(..2)) {
        ("57P04", _) => storage("the database was dropped"),
        ("25006", _) => Error::Unavailable {
            message: format!("{message}: the server is a standby, or set to read only"),
        },
        ("53100", _) => storage("the server's disk is full: make space"),
        ("42501", _) => storage(
            "grant the role the rights on the schema, or open the store once as a role that may \
             create it",
        ),
        ("3D000", _) => storage("create the database, or correct its name in the URL"),
        ("42P01" | "3F000" | "42703" | "42883", _) => {
            storage("the store's tables are missing or were altered: restore them")
        }
        ("53200" | "53300" | "55006", _) | (_, Some("08" | "57")) => Error::Unavailable { message },
        (_, Some("28")) => {
            storage("check user and password in the URL, and the server's pg_hba.conf")
        }
        (_, Some("XX")) if code.code() != "XX000" => Error::Corrupt {
            location: "the server's files".to_owned(),
            message,
        },
        ("23514" | "23505" | "22P02" | "22003", _) => Error::Corrupt {
            location: error.table().map_or_else(
                || "the store".to_owned(),
                |table| format!("table `{table}`"),
            ),
            message,
        },
        ("42939", _) => Error::invalid("schema", message),
        _ => Error::Storage { message },
    }
}

/// A failure to get a connection of the pool.
pub(super) fn of_pool(error: &PoolError, waited: Duration) -> Error {
    match error {
        PoolError::Backend(error) => before_commit(error, waited),
        PoolError::Timeout(TimeoutType::Wait) => Error::Busy {
            what: "a connection of the pool",
            waited,
        },
        PoolError::Timeout(_) => Error::Unavailable {
            message: format!("the server did not answer within {waited:?} of connecting"),
        },
        other => Error::Unavailable {
            message: other.to_string(),
        },
    }
}

/// A row that does not hold what this crate writes (R29).
pub(super) fn corrupt(table: &str, key: &str, message: impl Into<String>) -> Error {
    Error::Corrupt {
        location: format!("table `{table}`, key `{key}`"),
        message: message.into(),
    }
}

/// A name, token or the like that was read from a row: its limits are broken
/// by damage, not by a caller.
pub(super) fn intact<T>(value: Result<T>, table: &str, key: &str) -> Result<T> {
    value.map_err(|error| corrupt(table, key, error.to_string()))
}
