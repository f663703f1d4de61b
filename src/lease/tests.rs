use super::*;

fn lease() -> Lease {
    Lease {
        resource: ResourceName::new("job-42").unwrap(),
        owner: OwnerName::new("worker-a").unwrap(),
        token: Token::new(7).unwrap(),
        expires_at: Timestamp::from_millis(1000),
        ttl: Ttl::from_millis(500).unwrap(),
    }
}

#[test]
fn r27_a_token_is_1_to_i64_max() {
    for good in [1, 2, 1 << 53, (1 << 53) + 1, i64::MAX as u64] {
        assert_eq!(Token::new(good).unwrap().get(), good);
    }
    for bad in [0, 1 << 63, u64::MAX] {
        let message = Token::new(bad).unwrap_err().to_string();
        let expected = format!("invalid token: {bad} is outside 1 to 9223372036854775807");
        assert_eq!(message, expected);
    }
}

#[test]
fn r27_a_token_out_of_range_is_not_read_from_json() {
    assert_eq!(serde_json::from_str::<Token>("7").unwrap().get(), 7);
    for bad in ["0", "-1", "9223372036854775808", "1.5", "\"1\"", "null"] {
        serde_json::from_str::<Token>(bad).unwrap_err();
    }
}

#[test]
fn r28_there_is_no_token_after_the_last() {
    assert_eq!(Token::MIN.next(), Some(Token::new(2).unwrap()));
    let before_last = Token::new(Token::MAX.get() - 1).unwrap();
    assert_eq!(before_last.next(), Some(Token::MAX));
    assert_eq!(Token::MAX.next(), None);
}

#[test]
fn r10_a_lease_is_expired_from_the_moment_it_ends() {
    for (now, expired) in [(0, false), (999, false), (1000, true), (5000, true)] {
        assert_eq!(lease().is_expired(Timestamp::from_millis(now)), expired);
    }
}

#[test]
fn r13_the_fence_of_a_lease_carries_its_resource_and_token() {
    let fence = lease().fence();
    assert_eq!(
        (fence.resource, fence.token),
        (lease().resource, lease().token)
    );
    assert!(!fence.must_be_live, "R16 is the caller's choice");
}

#[test]
fn a_lease_reads_back_from_json() {
    let text = serde_json::to_string(&lease()).unwrap();
    assert_eq!(serde_json::from_str::<Lease>(&text).unwrap(), lease());
    let zero = text.replace("\"token\":7", "\"token\":0");
    assert_ne!(zero, text);
    serde_json::from_str::<Lease>(&zero).unwrap_err();
}
