//! R29: a stored value reads back as it was, or not at all.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn res(name: &str) -> ResourceName {
    ResourceName::new(name).unwrap()
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

fn lease() -> LeaseRecord {
    LeaseRecord {
        owner: OwnerName::new("worker-a").unwrap(),
        token: Token::MAX,
        expires_at: Timestamp::from_millis(1_767_225_600_123),
        ttl: Ttl::MAX,
    }
}

fn resource(fields: &[(&str, &str)]) -> ResourceRecord {
    let fields = fields
        .iter()
        .zip(1..)
        .map(|((name, text), version)| {
            let value = Value::parse(text).unwrap();
            (FieldName::new(name).unwrap(), FieldState { value, version })
        })
        .collect();
    ResourceRecord {
        exists: true,
        state: ResourceState {
            version: 300,
            fenced: true,
            fields,
        },
    }
}

fn receipt() -> StoredReceipt {
    StoredReceipt {
        fingerprint: u64::MAX,
        receipt: CommitReceipt {
            sequence: 70_000,
            versions: vec![(res("a"), 1), (res("ü"), 251)],
        },
    }
}

fn change(fields: Vec<(FieldName, Option<Value>)>) -> ResourceChange {
    ResourceChange {
        resource: res("orders/7"),
        version: 2,
        deleted: false,
        fenced: true,
        fields,
    }
}

fn committed(changes: Vec<ResourceChange>) -> EventKind {
    EventKind::Committed {
        agent: AgentName::new("agent").unwrap(),
        id: Some(CommitId::from_bits(u128::MAX - 1)),
        fences: vec![(res("job-42"), token(1 << 53))],
        changes,
    }
}

fn events() -> Vec<EventKind> {
    let owner = OwnerName::new("o").unwrap();
    let total = FieldName::new("total").unwrap();
    let gone = FieldName::new("gone").unwrap();
    vec![
        EventKind::Acquired {
            resource: res("job-42"),
            owner: owner.clone(),
            token: token(1),
            expires_at: Timestamp::from_millis(-1),
            ttl: Ttl::MIN,
            created: Some(4),
        },
        EventKind::Acquired {
            resource: res("job-42"),
            owner: owner.clone(),
            token: token(300),
            expires_at: Timestamp::EPOCH,
            ttl: Ttl::MAX,
            created: None,
        },
        EventKind::Released {
            resource: res("job-42"),
            owner,
            token: token(1),
        },
        EventKind::Revoked {
            resource: res("job-42"),
            mark: token(70_000),
        },
        committed(vec![change(vec![
            (total, Some(Value::parse("1.5").unwrap())),
            (gone, None),
        ])]),
        EventKind::Committed {
            agent: AgentName::new("agent").unwrap(),
            id: None,
            fences: Vec::new(),
            changes: Vec::new(),
        },
    ]
}

/// A stored value, and how to read it back.
struct Case {
    table: &'static str,
    key: Vec<u8>,
    bytes: Vec<u8>,
    shown: String,
    decode: fn(Place<'_>, &[u8]) -> Result<String>,
}

fn case<T: Stored + std::fmt::Debug>(table: &'static str, key: &[u8], value: &T) -> Case {
    Case {
        table,
        key: key.to_vec(),
        bytes: encode(Place { table, key }, value).unwrap(),
        shown: format!("{value:?}"),
        decode: |place, bytes| decode::<T>(place, bytes).map(|value| format!("{value:?}")),
    }
}

impl Case {
    fn place(&self) -> Place<'_> {
        Place {
            table: self.table,
            key: &self.key,
        }
    }

    fn read(&self, bytes: &[u8]) -> Result<String> {
        (self.decode)(self.place(), bytes)
    }

    #[track_caller]
    fn assert_corrupt(&self, bytes: &[u8], says: &str) {
        assert_corrupt(self.read(bytes), self.table, says);
    }
}

#[track_caller]
fn assert_corrupt<T: std::fmt::Debug>(answer: Result<T>, place: &str, says: &str) {
    match answer {
        Err(Error::Corrupt { location, message }) => {
            assert!(location.contains(place), "{location}");
            assert!(message.contains(says), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

/// Every kind of record.
fn cases() -> Vec<Case> {
    let mut cases = vec![
        case("fences", b"job-42", &token(1)),
        case("fences", b"job-42", &Token::MAX),
        case("leases", b"job-42", &lease()),
        case("resources", b"orders/7", &resource(&[])),
        case(
            "resources",
            "käse".as_bytes(),
            &resource(&[("total", "[1,null]"), ("größe", r#"{"a":"ö"}"#)]),
        ),
        case("commits", &7_u128.to_be_bytes(), &receipt()),
        case("meta", b"store", &StoreMeta { id: u128::MAX }),
        case(
            "meta",
            b"clock",
            &ClockAnchor {
                boot: "9f0a".to_owned(),
                monotonic: 5,
                store: Timestamp::from_millis(i64::MAX),
                ceiling: Timestamp::from_millis(i64::MIN),
            },
        ),
    ];
    for (kind, sequence) in events().into_iter().zip(1_u64..) {
        let at = Timestamp::from_millis(1000);
        let event = Event { sequence, at, kind };
        cases.push(case("log", &sequence.to_be_bytes(), &event));
    }
    cases
}

/// A body with the checksum that belongs to it.
fn sealed(place: Place<'_>, body: &[u8]) -> Vec<u8> {
    let mut bytes = place.checksum(body).to_le_bytes().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

#[test]
fn every_kind_of_record_reads_back_as_it_was() {
    for case in cases() {
        assert_eq!(case.read(&case.bytes).unwrap(), case.shown);
    }
}

#[test]
fn every_single_flipped_bit_is_found() {
    for case in cases() {
        for bit in 0..case.bytes.len() * 8 {
            let mut bytes = case.bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            case.assert_corrupt(&bytes, "checksum");
        }
    }
}

#[test]
fn every_truncation_is_found() {
    for case in cases() {
        for length in 0..case.bytes.len() {
            let says = if length < 4 { "too few" } else { "" };
            case.assert_corrupt(&case.bytes[..length], says);
        }
    }
}

#[test]
fn bytes_after_the_value_are_found() {
    for case in cases() {
        for extra in [&[0][..], &[0xFF; 9]] {
            let longer = [&case.bytes, extra].concat();
            case.assert_corrupt(&longer, "checksum");
            let resealed = sealed(case.place(), &longer[4..]);
            case.assert_corrupt(&resealed, &format!("{} bytes too many", extra.len()));
        }
    }
}

#[test]
fn a_truncation_with_a_right_checksum_is_found() {
    for case in cases() {
        for length in 4..case.bytes.len() {
            let resealed = sealed(case.place(), &case.bytes[4..length]);
            case.assert_corrupt(&resealed, "it ");
        }
    }
}

#[test]
fn a_record_under_another_key_is_found() {
    for case in cases() {
        for key in [&b"job-43"[..], b"", &[&case.key[..], b"\xFF"].concat()] {
            let place = Place {
                table: case.table,
                key,
            };
            assert_corrupt((case.decode)(place, &case.bytes), case.table, "checksum");
        }
    }
}

#[test]
fn a_record_in_another_table_is_found() {
    for case in cases() {
        let tables = ["resources", "leases", "fences", "log", "commits", "meta"];
        for table in tables.into_iter().filter(|table| *table != case.table) {
            let place = Place {
                table,
                key: &case.key,
            };
            assert_corrupt((case.decode)(place, &case.bytes), table, "checksum");
        }
    }
}

#[test]
fn table_and_key_cannot_be_confused_with_each_other() {
    let one = Place {
        table: "leases",
        key: b"a",
    };
    let other = Place {
        table: "lease",
        key: b"sa",
    };
    assert_ne!(one.checksum(b""), other.checksum(b""));
}

#[test]
fn an_unknown_format_is_named() {
    for case in cases() {
        for format in (0..=u8::MAX).filter(|format| *format != FORMAT) {
            let mut body = case.bytes[4..].to_vec();
            body[0] = format;
            let says = format!("format {format} is not one that this version reads");
            case.assert_corrupt(&sealed(case.place(), &body), &says);
        }
    }
}

#[test]
fn a_length_that_is_a_lie_allocates_nothing() {
    // 253: a number of eight bytes follows.
    for claim in [1_u64 << 56, u64::MAX, 200 << 20, 256 << 10] {
        let length = [&[FORMAT, 253][..], &claim.to_le_bytes()].concat();
        let place = Place {
            table: "leases",
            key: b"a",
        };
        let says = "LimitExceeded";
        let text = decode::<LeaseRecord>(place, &sealed(place, &length));
        assert_corrupt(text, "leases", says);
        let list = [&[FORMAT, 1, 1, 1][..], &length[1..]].concat();
        let list = decode::<ResourceRecord>(place, &sealed(place, &list));
        assert_corrupt(list, "leases", says);
    }
}

#[test]
fn r27_values_beyond_the_limits_of_their_types_are_found() {
    let place = Place {
        table: "leases",
        key: b"a",
    };
    let number = |number: u64| [&[FORMAT, 253][..], &number.to_le_bytes()].concat();
    for wrong in [0, 1 << 63, u64::MAX] {
        let answer = decode::<Token>(place, &sealed(place, &number(wrong)));
        assert_corrupt(answer, "leases", "invalid token");
    }
    // An owner, a token, an expiry and a ttl of a byte each.
    for (body, says) in [
        (&[FORMAT, 1, b'o', 1, 1, 0][..], "invalid ttl"),
        (&[FORMAT, 1, b'o', 0, 1, 1], "invalid token"),
        (&[FORMAT, 1, b'\n', 1, 1, 1], "invalid owner"),
        (&[FORMAT, 0, 1, 1, 1], "invalid owner"),
        (&[FORMAT, 1, 0xFF, 1, 1, 1], "does not decode"),
    ] {
        let answer = decode::<LeaseRecord>(place, &sealed(place, body));
        assert_corrupt(answer, "leases", says);
    }
    decode::<LeaseRecord>(place, &sealed(place, &[FORMAT, 1, b'o', 1, 1, 1])).unwrap();
}

#[test]
fn a_key_that_is_not_text_is_shown_escaped() {
    for (key, shown) in [
        (&b"job-42"[..], "key `job-42`"),
        (&[0, 0xAB], r"key `\x00\xab`"),
        (b"\x1b[31m", r"key `\x1b[31m`"),
    ] {
        let place = Place {
            table: "leases",
            key,
        };
        assert_corrupt(decode::<Token>(place, &[]), shown, "too few");
    }
}

/// Names as short as they can be, all different.
fn short(number: u32) -> String {
    let digit = char::from_u32(u32::from('!') + number % 90).unwrap();
    if number < 90 {
        digit.to_string()
    } else {
        short(number / 90 - 1) + &digit.to_string()
    }
}

/// A limit on what decoding may allocate that is too low would call a sound
/// record corrupt: many short fields take the most memory for their bytes.
#[test]
fn many_short_fields_are_read_back() {
    // 1000 and 200,000 deletions have nearly as many bytes as the two lower
    // limits are made for.
    for count in [1, 90, 1000, 1100, 200_000, 250_000] {
        let names: Vec<_> = (0..count)
            .map(|number| FieldName::new(short(number)).unwrap())
            .collect();
        let value = Value::parse("0").unwrap();
        let state = FieldState { value, version: 1 };
        let mut record = resource(&[]);
        record.state.fields = names
            .iter()
            .map(|name| (name.clone(), state.clone()))
            .collect::<BTreeMap<_, _>>();
        let sequence = 1;
        let fields = names.iter().map(|name| (name.clone(), None)).collect();
        let event = Event {
            sequence,
            at: Timestamp::EPOCH,
            kind: committed(vec![change(fields)]),
        };
        let place = Place {
            table: "t",
            key: b"a",
        };
        let bytes = encode(place, &record).unwrap();
        assert!(decode::<ResourceRecord>(place, &bytes).unwrap() == record);
        let bytes = encode(place, &event).unwrap();
        assert!(decode::<Event>(place, &bytes).unwrap() == event);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_corrupt(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for case in cases() {
            let answer = case.read(&bytes);
            prop_assert!(matches!(answer, Err(Error::Corrupt { .. })), "{answer:?}");
        }
    }

    #[test]
    fn random_bytes_with_a_right_checksum_never_panic(
        payload in prop::collection::vec(prop_oneof![0..4_u8, 250..255_u8, any::<u8>()], 0..100),
    ) {
        for case in cases() {
            let body = [&[FORMAT][..], &payload].concat();
            let answer = case.read(&sealed(case.place(), &body));
            prop_assert!(matches!(answer, Ok(_) | Err(Error::Corrupt { .. })), "{answer:?}");
        }
    }

    #[test]
    fn damage_with_a_right_checksum_never_panics(at in any::<prop::sample::Index>(), byte: u8) {
        for case in cases() {
            let mut body = case.bytes[4..].to_vec();
            let at = at.index(body.len());
            body[at] = byte;
            let answer = case.read(&sealed(case.place(), &body));
            prop_assert!(matches!(answer, Ok(_) | Err(Error::Corrupt { .. })), "{answer:?}");
        }
    }

    #[test]
    fn random_resources_read_back(
        named in prop::collection::btree_map("[a-zä-ü]{1,20}", any::<(i64, u64)>(), 0..20),
        exists: bool,
        fenced: bool,
        version: u64,
    ) {
        let fields = named
            .iter()
            .map(|(name, (number, version))| {
                let value = Value::encode(number).unwrap();
                let field = FieldState { value, version: *version };
                (FieldName::new(name).unwrap(), field)
            })
            .collect();
        let state = ResourceState { version, fenced, fields };
        let record = ResourceRecord { exists, state };
        let place = Place { table: "resources", key: b"a" };
        let bytes = encode(place, &record).unwrap();
        prop_assert_eq!(decode::<ResourceRecord>(place, &bytes).unwrap(), record);
    }
}
