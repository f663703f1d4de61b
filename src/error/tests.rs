use std::collections::BTreeSet;

use super::*;

fn res() -> ResourceName {
    ResourceName::new("job-42").unwrap()
}

fn owner() -> OwnerName {
    OwnerName::new("worker-a").unwrap()
}

fn lost(reason: LossReason) -> Error {
    Error::LeaseLost {
        resource: res(),
        token: Token::new(5).unwrap(),
        reason,
    }
}

/// One of each variant, and `LeaseLost` for each reason.
fn all() -> Vec<Error> {
    let by = Token::new(6).unwrap();
    let field = FieldName::new("total").unwrap();
    let expires_at = Timestamp::from_millis(1_767_225_600_000);
    let waited = Duration::from_secs(5);
    let message = "it said so".to_owned();
    vec![
        Error::invalid("ttl", "0 ms is outside 1 ms to 366 days"),
        Error::ResourceNotFound { resource: res() },
        Error::LeaseNotAvailable {
            resource: res(),
            owner: owner(),
            expires_at,
        },
        Error::WaitTimedOut {
            resource: res(),
            owner: owner(),
            expires_at,
            waited,
        },
        lost(LossReason::Expired),
        lost(LossReason::Superseded { by }),
        lost(LossReason::Released),
        Error::FenceRequired { resource: res() },
        Error::Conflict {
            resource: res(),
            field: Some(field),
        },
        Error::ResourceExists { resource: res() },
        Error::TokensExhausted { resource: res() },
        Error::WrongType {
            resource: res(),
            field: "total".to_owned(),
            message: message.clone(),
        },
        Error::HistoryPruned {
            after: 3,
            oldest: 9,
        },
        Error::Busy {
            what: "a write",
            waited,
        },
        Error::Unavailable {
            message: message.clone(),
        },
        Error::OutcomeUnknown {
            message: message.clone(),
        },
        Error::Corrupt {
            location: "table `leases`, key `job-42`".to_owned(),
            message: message.clone(),
        },
        Error::Storage { message },
    ]
}

/// What each variant is; a variant that is added does not compile until it is
/// told here, and `all` is held to have it.
fn expected(error: &Error) -> (ErrorKind, &'static str, bool) {
    match error {
        Error::InvalidArgument { .. } => (ErrorKind::InvalidArgument, "invalid_argument", false),
        Error::ResourceNotFound { .. } => {
            (ErrorKind::ResourceNotFound, "resource_not_found", false)
        }
        Error::LeaseNotAvailable { .. } => {
            (ErrorKind::LeaseNotAvailable, "lease_not_available", false)
        }
        Error::WaitTimedOut { .. } => (ErrorKind::TimedOut, "timed_out", false),
        Error::LeaseLost { .. } => (ErrorKind::LeaseLost, "lease_lost", false),
        Error::FenceRequired { .. } => (ErrorKind::FenceRequired, "fence_required", false),
        Error::Conflict { .. } => (ErrorKind::Conflict, "conflict", true),
        Error::ResourceExists { .. } => (ErrorKind::ResourceExists, "resource_exists", false),
        Error::TokensExhausted { .. } => (ErrorKind::TokensExhausted, "tokens_exhausted", false),
        Error::WrongType { .. } => (ErrorKind::WrongType, "wrong_type", false),
        Error::HistoryPruned { .. } => (ErrorKind::HistoryPruned, "history_pruned", false),
        Error::Busy { .. } => (ErrorKind::Busy, "busy", true),
        Error::Unavailable { .. } => (ErrorKind::Unavailable, "unavailable", true),
        Error::OutcomeUnknown { .. } => (ErrorKind::OutcomeUnknown, "outcome_unknown", false),
        Error::Corrupt { .. } => (ErrorKind::Corrupt, "corrupt", false),
        Error::Storage { .. } => (ErrorKind::Storage, "storage", false),
    }
}

#[test]
fn each_error_has_its_kind_and_name() {
    let mut names = BTreeSet::new();
    for error in all() {
        let (kind, name, _) = expected(&error);
        assert_eq!(error.kind(), kind);
        assert_eq!(kind.to_string(), name);
        names.insert(name);
    }
    assert_eq!(names.len(), 16, "every kind");
}

#[test]
fn r19_a_lost_lease_is_never_retryable_and_only_what_can_pass_is() {
    for error in all() {
        let (_, _, retryable) = expected(&error);
        assert_eq!(error.is_retryable(), retryable, "{error}");
    }
}

#[test]
fn messages_name_the_argument_and_limit_or_what_was_refused_and_the_next_step() {
    let told = [
        "invalid ttl: 0 ms is outside 1 ms to 366 days",
        "resource `job-42` does not exist: write to it or lease it through a manager to create it",
        "resource `job-42` is leased to `worker-a` until 2026-01-01T00:00:00.000Z",
        "timed out after 5s waiting for resource `job-42`, leased to `worker-a` until 2026-01-01T00:00:00.000Z",
        "lease on resource `job-42` with token 5 is lost: it expired",
        "lease on resource `job-42` with token 5 is lost: token 6 superseded it",
        "lease on resource `job-42` with token 5 is lost: it was released",
        "resource `job-42` is fenced: a write to it must carry a fence",
        "conflict on resource `job-42`, field `total`: it changed since the session read it; run the session again",
        "resource `job-42` exists already and is not the same: say how to merge the two",
        "resource `job-42` has no tokens left: its mark is 9223372036854775807; use another resource name",
        "field `total` of resource `job-42` does not fit the type asked for: it said so",
        "history after 3 is gone: the oldest event kept is 9; start again from the state",
        "the store is busy: waited 5s for a write; try again, or look for a stopped process",
        "the backend is unavailable: it said so",
        "the outcome is unknown: it said so; read the state, or send a commit again with its id",
        "the store is corrupt at table `leases`, key `job-42`: it said so",
        "it said so",
    ];
    let all = all();
    assert_eq!(all.len(), told.len());
    for (error, told) in all.iter().zip(told) {
        assert_eq!(error.to_string(), told);
    }
}

#[test]
fn r22_a_conflict_on_a_whole_resource_names_no_field() {
    let error = Error::Conflict {
        resource: res(),
        field: None,
    };
    assert!(
        error
            .to_string()
            .starts_with("conflict on resource `job-42`: it changed")
    );
}

#[test]
fn an_error_can_be_sent_between_threads_and_boxed() {
    let boxed: Box<dyn std::error::Error + Send + Sync> = Box::new(lost(LossReason::Expired));
    assert!(boxed.downcast_ref::<Error>().is_some());
}
