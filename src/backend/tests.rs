//! R27: the limits of requests. R26: which requests are the same.

use proptest::prelude::*;

use super::*;

fn res(name: impl fmt::Display) -> ResourceName {
    ResourceName::new(name.to_string()).unwrap()
}

fn field(name: &str) -> FieldName {
    FieldName::new(name).unwrap()
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn fence(name: impl fmt::Display, number: u64) -> Fence {
    Fence {
        resource: res(name),
        token: token(number),
        must_be_live: false,
    }
}

fn write(name: impl fmt::Display, change: Change) -> ResourceWrite {
    ResourceWrite {
        resource: res(name),
        change,
        fenced: None,
    }
}

fn check(name: impl fmt::Display, of: &str) -> Check {
    Check::Field {
        resource: res(name),
        field: field(of),
        version: None,
    }
}

fn empty() -> CommitRequest {
    CommitRequest {
        id: None,
        agent: AgentName::new("agent").unwrap(),
        fences: Vec::new(),
        checks: Vec::new(),
        writes: Vec::new(),
    }
}

fn acquire(resources: impl IntoIterator<Item = ResourceName>) -> AcquireRequest {
    AcquireRequest {
        resources: resources.into_iter().collect(),
        owner: OwnerName::new("me").unwrap(),
        ttl: Ttl::MIN,
        create: true,
    }
}

#[track_caller]
fn assert_invalid(answer: Result<()>, named: &str, says: &str) {
    match answer {
        Err(Error::InvalidArgument { argument, message }) => {
            assert_eq!(argument, named);
            assert!(message.contains(says), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

const TOO_MANY: &str = "1025 resources in one call; the limit is 1024";

#[test]
fn r27_an_acquisition_names_1_to_1024_resources_each_once() {
    acquire([res("a")]).validate().unwrap();
    acquire((0..1024).map(res)).validate().unwrap();
    assert_invalid(acquire([]).validate(), "resources", "none is named");
    assert_invalid(
        acquire((0..1025).map(res)).validate(),
        "resources",
        TOO_MANY,
    );
    let twice = acquire(["a", "b", "a"].map(res));
    assert_invalid(twice.validate(), "resources", "`a` is named twice");
}

#[test]
fn r27_a_commit_may_be_empty() {
    empty().validate().unwrap();
}

#[test]
fn r27_a_commit_carries_at_most_1024_fences_each_resource_once() {
    let fences = |count: u64| CommitRequest {
        fences: (0..count).map(|name| fence(name, 1)).collect(),
        ..empty()
    };
    fences(1024).validate().unwrap();
    assert_invalid(fences(1025).validate(), "fences", TOO_MANY);
    let twice = CommitRequest {
        fences: vec![fence("a", 1), fence("b", 1), fence("a", 1)],
        ..empty()
    };
    assert_invalid(twice.validate(), "fences", "`a` is named twice");
}

#[test]
fn r27_a_commit_writes_at_most_1024_resources_each_once() {
    let writes = |count: u64| CommitRequest {
        writes: (0..count).map(|name| write(name, Change::Delete)).collect(),
        ..empty()
    };
    writes(1024).validate().unwrap();
    assert_invalid(writes(1025).validate(), "writes", TOO_MANY);
    let twice = CommitRequest {
        writes: ["a", "b", "a"]
            .map(|name| write(name, Change::Delete))
            .into(),
        ..empty()
    };
    assert_invalid(twice.validate(), "writes", "`a` is named twice");
}

#[test]
fn r27_a_commit_checks_at_most_1024_resources_and_many_fields_of_each() {
    let checks = |count: u64| CommitRequest {
        checks: (0..count)
            .flat_map(|name| ["x", "y"].map(|of| check(name, of)))
            .collect(),
        ..empty()
    };
    checks(1024).validate().unwrap();
    assert_invalid(checks(1025).validate(), "checks", TOO_MANY);
}

#[test]
fn r27_a_commit_writes_at_most_64_mib_names_included() {
    let value = |bytes: usize| Value::from_stored(&"1".repeat(bytes));
    let quarter = value(MAX_COMMIT_BYTES / 4);
    // Names: of the resource 1 byte, of the four fields 1 byte each.
    let room = MAX_COMMIT_BYTES / 4 - 5;
    for (last, fits) in [(room, true), (room + 1, false)] {
        let three = ["a", "b", "c"].map(|name| (field(name), quarter.clone()));
        let mut all = BTreeMap::from(three);
        all.insert(field("d"), value(last));
        let named = all
            .iter()
            .map(|(name, value)| (name.clone(), Some(value.clone())));
        for change in [
            Change::Fields(named.collect()),
            Change::Replace(all.clone()),
        ] {
            let request = CommitRequest {
                writes: vec![write("r", change)],
                ..empty()
            };
            let answer = request.validate();
            if fits {
                answer.unwrap();
            } else {
                let says = "67108865 bytes in one commit; the limit is 67108864";
                assert_invalid(answer, "writes", says);
            }
        }
    }
}

#[test]
fn r27_the_limit_is_on_the_whole_commit() {
    let half = Value::from_stored(&"1".repeat(MAX_COMMIT_BYTES / 2));
    let writes = |name: &str| {
        let fields = BTreeMap::from([(field("x"), half.clone())]);
        write(name, Change::Replace(fields))
    };
    let request = CommitRequest {
        writes: vec![writes("a"), writes("b")],
        ..empty()
    };
    assert_invalid(request.validate(), "writes", "64");
}

/// Requests that do different things.
fn different() -> Vec<CommitRequest> {
    let x = |value: Option<&str>| {
        let value = value.map(|text| Value::parse(text).unwrap());
        Change::Fields(BTreeMap::from([(field("x"), value)]))
    };
    let replace = |text: &str| {
        let value = Value::parse(text).unwrap();
        Change::Replace(BTreeMap::from([(field("x"), value)]))
    };
    let writes = |writes: Vec<ResourceWrite>| CommitRequest { writes, ..empty() };
    let fences = |fences: Vec<Fence>| CommitRequest { fences, ..empty() };
    let with_fenced = |fenced| {
        writes(vec![ResourceWrite {
            fenced,
            ..write("a", x(Some("1")))
        }])
    };
    vec![
        empty(),
        CommitRequest {
            agent: AgentName::new("another").unwrap(),
            ..empty()
        },
        fences(vec![fence("a", 1)]),
        fences(vec![fence("a", 2)]),
        fences(vec![fence("b", 1)]),
        fences(vec![fence("a", 1), fence("b", 1)]),
        fences(vec![fence("a", 11)]),
        fences(vec![fence("a1", 1)]),
        with_fenced(None),
        with_fenced(Some(true)),
        with_fenced(Some(false)),
        writes(vec![write("b", x(Some("1")))]),
        writes(vec![write("a", x(Some("2")))]),
        writes(vec![write("a", x(Some("null")))]),
        writes(vec![write("a", x(Some("\"\"")))]),
        writes(vec![write("a", x(None))]),
        writes(vec![write("a", Change::Fields(BTreeMap::new()))]),
        writes(vec![write("a", replace("1"))]),
        writes(vec![write("a", Change::Replace(BTreeMap::new()))]),
        writes(vec![write("a", Change::Delete)]),
        writes(vec![write("a", Change::Delete), write("b", Change::Delete)]),
    ]
}

#[test]
fn r26_requests_that_do_different_things_have_different_fingerprints() {
    let requests = different();
    let distinct: BTreeSet<_> = requests.iter().map(CommitRequest::fingerprint).collect();
    assert_eq!(distinct.len(), requests.len());
}

#[test]
fn r26_the_same_request_has_the_same_fingerprint_under_any_id() {
    for request in different() {
        let again = CommitRequest {
            id: Some(CommitId::from_bits(9)),
            ..request.clone()
        };
        assert_eq!(again.fingerprint(), request.fingerprint());
    }
}

/// Receipts are stored with fingerprints: a version that made others would
/// refuse a commit that was sent again over an update.
#[test]
fn r26_fingerprints_stay_the_same_from_version_to_version() {
    let value = Value::parse("1").unwrap();
    let fields = BTreeMap::from([(field("x"), Some(value)), (field("y"), None)]);
    let request = CommitRequest {
        fences: vec![fence("a", 7)],
        writes: vec![ResourceWrite {
            fenced: Some(true),
            ..write("r", Change::Fields(fields))
        }],
        ..empty()
    };
    assert_eq!(request.fingerprint(), 0xb276_d363_320d_f66e);
}

#[test]
fn what_became_of_a_lease_is_why_it_is_lost() {
    let by = token(9);
    for (state, name, loss) in [
        (LeaseState::Live, "live", None),
        (LeaseState::Expired, "expired", Some(LossReason::Expired)),
        (LeaseState::Released, "released", Some(LossReason::Released)),
        (
            LeaseState::Superseded,
            "superseded",
            Some(LossReason::Superseded { by }),
        ),
    ] {
        assert_eq!((state.as_str(), state.loss(by)), (name, loss));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn r26_random_requests_differ_in_their_fingerprints(
        one in prop::collection::btree_map("[ab]{1,3}", prop::option::of(0..3_u8), 0..4),
        other in prop::collection::btree_map("[ab]{1,3}", prop::option::of(0..3_u8), 0..4),
    ) {
        let request = |named: &BTreeMap<String, Option<u8>>| {
            let value = |number: &u8| Value::parse(&number.to_string()).unwrap();
            let fields = named
                .iter()
                .map(|(name, number)| (field(name), number.as_ref().map(value)));
            CommitRequest {
                writes: vec![write("a", Change::Fields(fields.collect()))],
                ..empty()
            }
        };
        let same = request(&one).fingerprint() == request(&other).fingerprint();
        prop_assert_eq!(same, one == other);
    }
}
