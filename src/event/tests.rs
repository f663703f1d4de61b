use super::*;
use crate::resource::CommitId;

fn res(name: &str) -> ResourceName {
    ResourceName::new(name).unwrap()
}

fn events() -> [EventKind; 4] {
    let owner = OwnerName::new("me").unwrap();
    [
        EventKind::Acquired {
            resource: res("a"),
            owner: owner.clone(),
            token: Token::MIN,
            expires_at: Timestamp::EPOCH,
            ttl: Ttl::MIN,
            created: None,
        },
        EventKind::Released {
            resource: res("a"),
            owner,
            token: Token::MIN,
        },
        EventKind::Revoked {
            resource: res("a"),
            mark: Token::MIN,
        },
        EventKind::Committed {
            agent: AgentName::new("me").unwrap(),
            id: Some(CommitId::from_bits(1)),
            fences: vec![(res("fence"), Token::MIN)],
            changes: ["a", "b"].map(changed).into(),
        },
    ]
}

fn changed(name: &str) -> ResourceChange {
    ResourceChange {
        resource: res(name),
        version: 1,
        deleted: false,
        fenced: false,
        fields: Vec::new(),
    }
}

#[test]
fn each_kind_of_event_has_its_name() {
    let names = events().map(|event| event.name());
    assert_eq!(names, ["acquired", "released", "revoked", "committed"]);
}

#[test]
fn an_event_concerns_the_resource_of_its_lease_or_those_that_it_changed() {
    for (name, expected) in [
        ("a", [true; 4]),
        ("b", [false, false, false, true]),
        ("fence", [false; 4]),
    ] {
        let concerns = |event: &EventKind| event.concerns(&res(name));
        assert_eq!(events().each_ref().map(concerns), expected, "{name}");
    }
}
