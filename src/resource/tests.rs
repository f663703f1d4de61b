use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

#[track_caller]
fn assert_invalid<T: fmt::Debug>(answer: Result<T>, named: &str, says: &str) {
    match answer {
        Err(Error::InvalidArgument { argument, message }) => {
            assert_eq!(argument, named);
            assert!(message.contains(says), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn r27_a_name_has_1_to_512_bytes() {
    for good in ["a", " ", "orders/7", "job 42", "*", &"n".repeat(512)] {
        assert_eq!(ResourceName::new(good).unwrap().as_str(), good);
    }
    assert_invalid(ResourceName::new(""), "resource", "1 to 512 bytes");
    let long = ResourceName::new("n".repeat(513));
    assert_invalid(long, "resource", "has 513 bytes; a name has 1 to 512");
}

#[test]
fn r27_a_name_is_measured_in_bytes_and_not_in_characters() {
    for good in ["käse", "東京", "🦀", "e\u{301}", &"ü".repeat(256)] {
        assert_eq!(FieldName::new(good).unwrap().as_str(), good);
    }
    assert_invalid(FieldName::new("ü".repeat(257)), "field", "has 514 bytes");
    assert_invalid(FieldName::new("🦀".repeat(129)), "field", "has 516 bytes");
}

#[test]
fn r27_a_name_has_no_control_characters() {
    for (control, shown) in [
        ('\0', "U+0000"),
        ('\n', "U+000A"),
        ('\t', "U+0009"),
        ('\u{1b}', "U+001B"),
        ('\u{7f}', "U+007F"),
        ('\u{85}', "U+0085"),
    ] {
        for name in [format!("{control}"), format!("a{control}b")] {
            assert_invalid(OwnerName::new(&name), "owner", shown);
        }
    }
}

#[test]
fn r27_a_refused_name_is_shown_short_and_without_its_control_characters() {
    let error = ResourceName::new("x".repeat(5000) + "\x1b[31m").unwrap_err();
    let message = error.to_string();
    assert!(message.len() < 200, "{message}");
    let error = ResourceName::new("\x1b[31m").unwrap_err().to_string();
    assert!(!error.contains('\x1b'), "{error}");
}

#[test]
fn r27_each_kind_of_name_is_named_in_its_error() {
    assert_invalid(ResourceName::new(""), "resource", "empty");
    assert_invalid(OwnerName::new(""), "owner", "empty");
    assert_invalid(AgentName::new(""), "agent", "empty");
    assert_invalid(FieldName::new(""), "field", "empty");
}

#[test]
fn r27_a_name_that_breaks_the_limit_is_not_read_from_json() {
    let name: ResourceName = serde_json::from_str("\"käse\"").unwrap();
    assert_eq!(serde_json::to_string(&name).unwrap(), "\"käse\"");
    for bad in ["\"\"", r#""a\u0000""#, "1"] {
        serde_json::from_str::<ResourceName>(bad).unwrap_err();
    }
}

#[test]
fn names_order_by_their_bytes() {
    let mut names = ["b", "a/2", "ä", "a/10", "B"].map(|name| ResourceName::new(name).unwrap());
    names.sort();
    let sorted = names.each_ref().map(ResourceName::as_str);
    assert_eq!(sorted, ["B", "a/10", "a/2", "b", "ä"]);
}

#[test]
fn r27_a_ttl_is_1_ms_to_366_days() {
    let year = 366 * 24 * 60 * 60 * 1000;
    for good in [1, 30_000, year] {
        assert_eq!(Ttl::from_millis(good).unwrap().as_millis(), good);
        let duration = Duration::from_millis(good);
        assert_eq!(Ttl::try_from(duration).unwrap().as_duration(), duration);
    }
    for bad in [0, year + 1, 10_000 * year, u64::MAX] {
        let says = "outside 1 ms to 366 days";
        assert_invalid(Ttl::from_millis(bad), "ttl", says);
        assert_invalid(Ttl::try_from(Duration::from_millis(bad)), "ttl", says);
    }
    for bad in [Duration::MAX, Duration::from_micros(999)] {
        assert_invalid(Ttl::try_from(bad), "ttl", "366 days");
    }
}

#[test]
fn r27_a_ttl_out_of_range_is_not_read_from_json() {
    assert_eq!(serde_json::from_str::<Ttl>("500").unwrap().as_millis(), 500);
    for bad in ["0", "31622400001", "-1", "1.5"] {
        serde_json::from_str::<Ttl>(bad).unwrap_err();
    }
}

#[test]
fn r27_a_value_is_one_json_value() {
    for good in [
        "null",
        "true",
        "-0",
        "1e5",
        "\"\"",
        "[]",
        "{}",
        r#"{"a":[1,{}]}"#,
    ] {
        assert_eq!(Value::parse(good).unwrap().as_str(), good);
    }
    for bad in [
        "",
        " ",
        "nul",
        "1 2",
        "01",
        "+1",
        "1e999",
        "NaN",
        "'a'",
        "{a:1}",
        "[1,]",
        "{\"a\":1",
        "\"a",
        "\"\n\"",
        r#""\ud800""#,
        "\u{feff}1",
        "// a\n1",
    ] {
        assert_invalid(Value::parse(bad), "value", "not JSON");
    }
}

#[test]
fn a_value_keeps_its_text_but_for_white_space_outside_of_strings() {
    for (text, kept) in [
        (" { \"a b\" :\t[ 1 ,\r\n2 ] } ", "{\"a b\":[1,2]}"),
        (r#" "a \" b \\" "#, r#""a \" b \\""#),
        (r#"[ "\\" , " x " ]"#, r#"["\\"," x "]"#),
        ("1.0", "1.0"),
        ("18446744073709551617", "18446744073709551617"),
        ("0.10000000000000000000001", "0.10000000000000000000001"),
        (r#"{"b":1,"a":2}"#, r#"{"b":1,"a":2}"#),
    ] {
        assert_eq!(Value::parse(text).unwrap().as_str(), kept);
    }
}

#[test]
fn a_value_decodes_to_what_was_encoded() {
    let large = Value::encode(&u128::MAX).unwrap();
    assert_eq!(large.decode::<u128>().unwrap(), u128::MAX);
    let text = "  \"\\ ü\n";
    let value = Value::encode(text).unwrap();
    assert_eq!(value.decode::<String>().unwrap(), text);
    value.decode::<u8>().unwrap_err();
}

#[test]
fn r27_what_cannot_be_json_is_refused() {
    let keys = BTreeMap::from([((1, 2), 3)]);
    assert_invalid(Value::encode(&keys), "value", "not JSON");
}

#[test]
fn r27_a_value_has_at_most_16_mib() {
    let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    Value::parse(&text(MAX_VALUE_BYTES)).unwrap();
    let says = "16777217 bytes of JSON; a field holds at most 16777216";
    assert_invalid(Value::parse(&text(MAX_VALUE_BYTES + 1)), "value", says);
    let long = "x".repeat(MAX_VALUE_BYTES - 1);
    assert_invalid(Value::encode(&long), "value", says);
}

fn nested(depth: usize) -> String {
    "[".repeat(depth) + &"]".repeat(depth)
}

#[test]
fn r27_a_value_nests_at_most_127_deep() {
    let deepest = Value::parse(&nested(MAX_VALUE_DEPTH)).unwrap();
    deepest.decode::<serde_json::Value>().unwrap();
    assert_invalid(Value::parse(&nested(128)), "value", "nested too deep");
    let mixed = "{\"a\":[".repeat(64) + &"]}".repeat(64);
    assert_invalid(Value::parse(&mixed), "value", "nested too deep");
}

#[test]
fn r27_very_deep_nesting_does_not_exhaust_the_stack() {
    for depth in [10_000, 1_000_000] {
        assert_invalid(Value::parse(&nested(depth)), "value", "nested too deep");
        let unclosed = "[{\"a\":".repeat(depth);
        assert_invalid(Value::parse(&unclosed), "value", "nested too deep");
    }
}

#[test]
fn a_commit_id_is_32_hexadecimal_digits() {
    let id = CommitId::from_bits(0xAB);
    let text = "000000000000000000000000000000ab";
    assert_eq!(id.to_string(), text);
    assert_eq!(text.parse::<CommitId>().unwrap(), id);
    assert_eq!(text.to_uppercase().parse::<CommitId>().unwrap(), id);
    for bad in [
        "",
        "ab",
        &text[1..],
        &format!("0{text}"),
        &text.replace("ab", "+b"),
    ] {
        assert_invalid(
            bad.parse::<CommitId>(),
            "commit_id",
            "32 hexadecimal digits",
        );
    }
}

#[test]
fn commit_ids_use_all_their_bits() {
    let random = crate::random::SeededRandom::new(1);
    let ids: Vec<_> = (0..64)
        .map(|_| CommitId::random(&random).as_bits())
        .collect();
    let ever = ids.iter().fold(0, |ever, id| ever | id);
    let always = ids.iter().fold(u128::MAX, |always, id| always & id);
    assert_eq!((ever, always), (u128::MAX, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn r27_no_text_makes_a_name_panic(text: String) {
        let mut bad = text.is_empty() || text.len() > 512;
        bad |= text.chars().any(char::is_control);
        prop_assert_eq!(ResourceName::new(&text).is_err(), bad);
    }

    #[test]
    fn a_value_means_what_its_text_meant(text: String, number: f64, pretty: bool) {
        let json = serde_json::json!({ "text": text, "list": [number, null, { "": text }] });
        let written = if pretty {
            serde_json::to_string_pretty(&json).unwrap()
        } else {
            let mut written = String::new();
            write!(written, "\n {json}\t").unwrap();
            written
        };
        let value = Value::parse(&written).unwrap();
        prop_assert_eq!(value.decode::<serde_json::Value>().unwrap(), json.clone());
        prop_assert_eq!(value.as_str(), json.to_string());
    }

    #[test]
    fn no_text_makes_a_value_panic(text in r#"[\[\]{}":,\\0-9eE.+ u-]{0,30}"#) {
        let expected = serde_json::from_str::<serde_json::Value>(&text).is_ok();
        prop_assert_eq!(Value::parse(&text).is_ok(), expected);
    }
}
