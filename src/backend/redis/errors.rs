//! What the server and the connection say, as errors of this crate.

use std::time::Duration;

use ::redis::{ErrorKind, RedisError};

use crate::error::Error;

/// What a call would have done, had it been answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// Nothing was sent, or nothing that changes anything.
    Harmless,
    /// Something that changes the store may have been sent.
    Write,
}

/// No answer: whether that matters depends on what was sent (R26).
pub(super) fn unanswered(sent: Sent, server: &str, why: &str) -> Error {
    match sent {
        Sent::Harmless => Error::Unavailable {
            message: format!("Redis at {server}: {why}"),
        },
        Sent::Write => Error::OutcomeUnknown {
            message: format!(
                "Redis at {server} did not answer ({why}): what was asked for may have been done"
            ),
        },
    }
}

/// Whether the server says that it does not know the script: it did not run.
pub(super) fn is_no_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

/// Whether the connection is of no more use.
pub(super) fn breaks_connection(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Io | ErrorKind::Parse | ErrorKind::AuthenticationFailed
    ) || matches!(error.code(), Some("READONLY" | "MOVED" | "NOAUTH"))
}

/// An error that came instead of an answer.
pub(super) fn from_redis(error: &RedisError, sent: Sent, server: &str, waited: Duration) -> Error {
    if let Some(code) = error.code() {
        return refused(code, error.detail().unwrap_or_default(), server, waited);
    }
    let said = error.to_string();
    match error.kind() {
        ErrorKind::AuthenticationFailed => refused("WRONGPASS", &said, server, waited),
        ErrorKind::InvalidClientConfig => Error::invalid("store", said),
        ErrorKind::RESP3NotSupported => refused("NOPROTO", &said, server, waited),
        _ if said.contains("certificate") => storage(
            server,
            &said,
            "the certificate must be one that this machine trusts, for the name in the URL",
        ),
        // A reply that was cut off half way is no reply.
        ErrorKind::Parse if sent == Sent::Harmless && !said.contains("Unexpected end of input") => {
            storage(server, &said, "is it a Redis or Valkey server?")
        }
        _ => unanswered(sent, server, &said),
    }
}

/// An error that the server answered: the call changed nothing.
fn refused(code: &str, said: &str, server: &str, waited: Duration) -> Error {
    match code {
        "NOAUTH" | "WRONGPASS" => storage(
            server,
            said,
            "give the right user and password in the URL: redis://USER:PASSWORD@HOST",
        ),
        "NOPERM" => storage(server, said, "grant the user what docs/redis-keys.md lists"),
        "NOPROTO" => storage(server, said, "Redis 6.2 or later, or Valkey, is needed"),
        "OOM" => storage(
            server,
            said,
            "raise its `maxmemory`, or delete what is not needed",
        ),
        "MISCONF" => storage(server, said, "it cannot save to its disk: see its log"),
        "DENIED" => storage(server, said, "set a password, or bind it to an address"),
        "BUSY" => Error::Busy {
            what: "a script that another client runs on the Redis server",
            waited,
        },
        "LOADING" | "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "NOREPLICAS"
        | "ASK" => Error::Unavailable {
            message: format!("Redis at {server}: {code} {said}"),
        },
        "MOVED" => Error::invalid(
            "store",
            format!(
                "Redis at {server} is a cluster node that does not serve this store's slot \
                 (MOVED {said}): all keys of a store are in the slot of its hash tag \
                 {{prefix}}; give the address of the node named there, or another prefix"
            ),
        ),
        "CROSSSLOT" => cross_slot(server, said),
        _ if said.contains("same slot") || said.contains("non local key") => {
            cross_slot(server, said)
        }
        _ if said.contains("max number of clients") => Error::Unavailable {
            message: format!("Redis at {server}: {said}"),
        },
        _ => storage(server, &format!("{code} {said}"), "see the server's log"),
    }
}

fn cross_slot(server: &str, said: &str) -> Error {
    Error::invalid(
        "store",
        format!(
            "Redis at {server} is a cluster and took the keys of one call for keys of several \
             slots ({said}): they share the hash tag {{prefix}}, which something between here \
             and the server must have changed"
        ),
    )
}

fn storage(server: &str, said: &str, next: &str) -> Error {
    Error::Storage {
        message: format!("Redis at {server} refused: {said}: {next}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(code: &str, said: &str) -> Error {
        let reply = format!("-{code} {said}\r\n");
        let error = ::redis::parse_redis_value(reply.as_bytes())
            .unwrap()
            .extract_error()
            .unwrap_err();
        from_redis(&error, Sent::Write, "here:1", Duration::ZERO)
    }

    /// R26: an error that was answered says that nothing happened, so the
    /// outcome is known.
    #[test]
    fn an_answered_error_is_never_an_unknown_outcome() {
        for (code, retryable, says) in [
            ("NOAUTH", false, "password"),
            ("WRONGPASS", false, "password"),
            ("NOPERM", false, "docs/redis-keys.md"),
            ("OOM", false, "maxmemory"),
            ("MISCONF", false, "disk"),
            ("NOPROTO", false, "6.2"),
            ("LOADING", true, "LOADING"),
            ("READONLY", true, "READONLY"),
            ("MASTERDOWN", true, "MASTERDOWN"),
            ("CLUSTERDOWN", true, "CLUSTERDOWN"),
            ("BUSY", true, "busy"),
            ("CROSSSLOT", false, "hash tag {prefix}"),
            ("MOVED", false, "hash tag {prefix}"),
            ("NEWCODE", false, "NEWCODE"),
        ] {
            let error = answered(code, "something 3999 10.0.0.1:6379");
            assert_eq!(error.is_retryable(), retryable, "{error}");
            assert!(!matches!(error, Error::OutcomeUnknown { .. }), "{error}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }

    #[test]
    fn no_answer_to_a_write_is_an_unknown_outcome() {
        let gone = || RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        let error = from_redis(&gone(), Sent::Write, "here:1", Duration::ZERO);
        assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
        let error = from_redis(&gone(), Sent::Harmless, "here:1", Duration::ZERO);
        assert!(matches!(error, Error::Unavailable { .. }), "{error}");
    }
}
