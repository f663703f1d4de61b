//! What a sequence is made of. Numbers stand for things that are found out
//! when the step is taken, so that a sequence still makes sense when some of
//! its steps are left out.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// How many resources, owners and fields the sequences use.
pub(crate) const RESOURCES: u8 = 4;
pub(crate) const OWNERS: u8 = 3;
pub(crate) const FIELDS: u8 = 3;

#[derive(Debug, Clone)]
pub(crate) enum Step {
    Advance(u64),
    Acquire {
        resources: Vec<u8>,
        owner: u8,
        ttl: u64,
        create: bool,
    },
    /// Of one of the leases granted so far.
    Renew {
        lease: usize,
        ttl: u64,
        as_another: bool,
    },
    Release {
        lease: usize,
        as_another: bool,
    },
    Revoke(u8),
    Status(u8),
    Guard {
        lease: usize,
    },
    Read(Vec<u8>),
    Commit(Commit),
    /// One of the commits with an id made so far, once more.
    CommitAgain(usize),
    List {
        prefix: u8,
        after: Option<u8>,
        limit: usize,
    },
    Events {
        back: u64,
        limit: usize,
    },
    Export,
    Import(Import),
    Check,
}

/// What another store might have held.
#[derive(Debug, Clone)]
pub(crate) struct Import {
    pub(crate) entries: Vec<(u8, Foreign)>,
    pub(crate) newer: bool,
    /// How many events come along, and from how far after the newest.
    pub(crate) events: Option<(u8, u64)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Foreign {
    pub(crate) mark: Option<u64>,
    /// Owner, by how much its token is below the mark, and the time left;
    /// 0: it was released.
    pub(crate) lease: Option<(u8, u64, u64)>,
    /// Version, whether it exists, whether it is fenced, and a field's value.
    pub(crate) state: Option<(u64, bool, bool, Option<i64>)>,
}

#[derive(Debug, Clone)]
pub(crate) struct Commit {
    pub(crate) id: Option<u8>,
    pub(crate) fences: Vec<(u8, Pick, bool)>,
    pub(crate) checks: Vec<(u8, Option<u8>, Seen)>,
    pub(crate) writes: Vec<(u8, Change, Option<bool>)>,
}

/// A token, by its distance to the mark.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pick {
    Mark(i64),
    /// Above what a double holds exactly.
    Above53Bits(u64),
    /// Below the last token.
    Last(u64),
}

/// A version that a commit says it has seen.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Seen {
    Current,
    Absent,
    Version(u64),
}

#[derive(Debug, Clone)]
pub(crate) enum Change {
    Fields(Vec<(u8, Option<i64>)>),
    Replace(Vec<(u8, i64)>),
    Delete,
}

pub(crate) fn sequences() -> impl Strategy<Value = Vec<Step>> {
    vec(step(), 1..25)
}

fn step() -> impl Strategy<Value = Step> {
    let lease = 0_usize..8;
    prop_oneof![
        3 => prop_oneof![1 => 0_u64..60, 1 => Just(50), 1 => Just(100)].prop_map(Step::Advance),
        6 => (distinct(1..3), 0..OWNERS, ttl(), prop::bool::weighted(0.8)).prop_map(
            |(resources, owner, ttl, create)| Step::Acquire { resources, owner, ttl, create }
        ),
        3 => (lease.clone(), ttl(), prop::bool::weighted(0.1)).prop_map(
            |(lease, ttl, as_another)| Step::Renew { lease, ttl, as_another }
        ),
        3 => (lease.clone(), prop::bool::weighted(0.1)).prop_map(
            |(lease, as_another)| Step::Release { lease, as_another }
        ),
        1 => (0..RESOURCES).prop_map(Step::Revoke),
        1 => (0..RESOURCES).prop_map(Step::Status),
        1 => lease.prop_map(|lease| Step::Guard { lease }),
        1 => distinct(1..4).prop_map(Step::Read),
        8 => commit().prop_map(Step::Commit),
        1 => (0_usize..4).prop_map(Step::CommitAgain),
        1 => (0_u8..6, option::of(0..RESOURCES), 0_usize..5).prop_map(
            |(prefix, after, limit)| Step::List { prefix, after, limit }
        ),
        1 => (0_u64..12, 0_usize..6).prop_map(|(back, limit)| Step::Events { back, limit }),
        1 => Just(Step::Export),
        1 => import().prop_map(Step::Import),
        1 => Just(Step::Check),
    ]
}

fn ttl() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1), Just(50), Just(100), 1_u64..200]
}

/// Different resources, in any order.
fn distinct(how_many: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    (
        Just((0..RESOURCES).collect::<Vec<u8>>()).prop_shuffle(),
        how_many,
    )
        .prop_map(|(mut all, many)| {
            all.truncate(many);
            all
        })
}

fn commit() -> impl Strategy<Value = Commit> {
    let pick = prop_oneof![
        6 => (-2_i64..4).prop_map(Pick::Mark),
        1 => (0_u64..4).prop_map(Pick::Above53Bits),
        1 => (0_u64..2).prop_map(Pick::Last),
    ];
    let fence = (0..RESOURCES, pick, prop::bool::weighted(0.3));
    let seen = prop_oneof![
        5 => Just(Seen::Current),
        1 => Just(Seen::Absent),
        1 => (1_u64..6).prop_map(Seen::Version),
    ];
    let check = (0..RESOURCES, option::of(0..FIELDS), seen);
    let write = (
        0..RESOURCES,
        change(),
        option::weighted(0.15, any::<bool>()),
    );
    (
        option::weighted(0.2, 0_u8..4),
        vec(fence, 0..3),
        vec(check, 0..3),
        vec(write, 0..3),
    )
        .prop_map(|(id, fences, checks, writes)| Commit {
            id,
            fences,
            checks,
            writes,
        })
}

fn import() -> impl Strategy<Value = Import> {
    let foreign = (
        option::weighted(0.8, 1_u64..6),
        option::of((0..OWNERS, 0_u64..2, prop_oneof![Just(0), 1_u64..200])),
        option::weighted(
            0.8,
            (
                1_u64..6,
                prop::bool::weighted(0.8),
                any::<bool>(),
                option::of(any::<i64>()),
            ),
        ),
    )
        .prop_map(|(mark, lease, state)| Foreign { mark, lease, state });
    let events = option::weighted(0.4, (0_u8..3, prop_oneof![4 => Just(1), 1 => 0_u64..4]));
    (distinct(0..3), vec(foreign, 2), any::<bool>(), events).prop_map(
        |(resources, foreign, newer, events)| Import {
            entries: resources.into_iter().zip(foreign).collect(),
            newer,
            events,
        },
    )
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => vec((0..FIELDS, option::weighted(0.8, any::<i64>())), 0..3).prop_map(Change::Fields),
        1 => vec((0..FIELDS, any::<i64>()), 0..3).prop_map(Change::Replace),
        1 => Just(Change::Delete),
    ]
}
