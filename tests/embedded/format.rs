//! A store written by the first version of the format opens for ever.
//!
//! `tests/data/format-1.redb` was written by [`write`] with the version that
//! introduced the format, and is never written again. A new format gets a file
//! of its own beside it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use statepact::backend::embedded::{Embedded, EmbeddedOptions};
use statepact::backend::{Change, CommitRequest, ExportRange, Exported, LeaseState, ResourceWrite};
use statepact::clock::ManualClock;
use statepact::event::Event;
use statepact::{Backend, CommitId, Fence, Result, Token, Value};

use crate::support::{folder, name, request, runtime, ttl};

fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/format-1.redb")
}

fn open(path: &Path) -> Embedded {
    EmbeddedOptions::new()
        .clock(Arc::new(ManualClock::new()))
        .open_blocking(path)
        .unwrap()
}

/// A commit with everything that a commit can have.
fn full_commit() -> CommitRequest {
    let field = |text: &str| text.try_into().unwrap();
    let json = |text: &str| Some(Value::parse(text).unwrap());
    CommitRequest {
        id: Some(CommitId::from_bits(
            0x0123_4567_89ab_cdef_0011_2233_4455_6677,
        )),
        fences: vec![Fence {
            resource: name("job"),
            token: Token::new(1).unwrap(),
            must_be_live: true,
        }],
        writes: vec![
            ResourceWrite {
                resource: name("job"),
                change: Change::Fields(
                    [
                        (field("text"), json(r#""zoë 🦀 \u0000""#)),
                        (
                            field("number"),
                            json("340282366920938463463374607431768211455"),
                        ),
                        (field("list"), json(r#"[1,2.5,null,{"a":true}]"#)),
                    ]
                    .into(),
                ),
                fenced: Some(true),
            },
            ResourceWrite {
                resource: name("other"),
                change: Change::Replace([(field("x"), Value::parse("1").unwrap())].into()),
                fenced: None,
            },
        ],
        ..request([], 0)
    }
}

/// Every kind of record and of event.
fn write(path: &Path) -> Result<()> {
    let store = open(path);
    let lease = |resource: &str, owner: &str| {
        store.lease_blocking(&name(resource), &owner.try_into().unwrap(), ttl())
    };
    let held = lease("job", "worker-a")?;
    assert_eq!(held.token.get(), 1);
    store.commit_blocking(&full_commit())?;
    let ended = lease("ended", "worker-b")?;
    store.release_blocking(&ended)?;
    runtime().block_on(store.revoke(&ended.resource))?;
    store.commit_blocking(&CommitRequest {
        writes: vec![ResourceWrite {
            resource: name("other"),
            change: Change::Delete,
            fenced: None,
        }],
        ..request([], 0)
    })?;
    Ok(())
}

fn contents(store: &Embedded) -> (Vec<Exported>, Vec<Event>) {
    let all = ExportRange::After {
        after: None,
        limit: 100,
    };
    let runtime = runtime();
    let entries = runtime.block_on(store.export(&all)).unwrap().entries;
    let events = runtime.block_on(store.events(0, 100)).unwrap().events;
    (entries, events)
}

#[test]
fn a_store_of_format_1_opens_and_goes_on() {
    let folder = folder();
    let path = folder.path().join("old.redb");
    std::fs::copy(kept(), &path).unwrap();
    let fresh = folder.path().join("fresh.redb");
    write(&fresh).unwrap();
    let old = open(&path);
    assert_eq!(contents(&old), contents(&open(&fresh)));
    crate::support::check(&old).unwrap();

    // R26: the commit is known by its id, and is not made again.
    let receipt = old.commit_blocking(&full_commit()).unwrap();
    assert_eq!(receipt.sequence, 2);
    // R1
    let status = old.lease_status_blocking(&name("job")).unwrap();
    let (lease, state) = status.lease.unwrap();
    assert_eq!(
        (lease.owner.as_str(), state),
        ("worker-a", LeaseState::Live)
    );
    let next = crate::support::lease(&old, "ended", "worker-c").unwrap();
    assert_eq!(next.token.get(), 3);
}
