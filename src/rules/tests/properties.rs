//! Properties of random sequences of calls. A failure prints the shortest
//! sequence that was found to fail.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::model::{Answer, Fenced, Held, Model, Seen, Why, Writing, Written};
use super::*;

const RESOURCES: [&str; 3] = ["r0", "r1", "r2"];
const OWNERS: [&str; 3] = ["o0", "o1", "o2"];
const FIELDS: [&str; 2] = ["f0", "f1"];

/// A lease or token that a call presents: one that was granted earlier in the
/// sequence, or one from elsewhere.
#[derive(Debug, Clone, Copy)]
enum Shown {
    Granted(prop::sample::Index),
    Elsewhere(Held),
}

#[derive(Debug, Clone)]
enum Step {
    Wait(i64),
    Acquire(Vec<u8>, u8, i64, bool),
    Renew(Shown, i64),
    Release(Shown),
    Revoke(u8),
    /// A session reads: a field, or all of a resource.
    Read(u8, Option<u8>),
    /// A session commits what it has read since it last did, if it is
    /// validated.
    Commit(Vec<(Shown, bool)>, bool, Vec<Written>),
}

fn shown() -> impl Strategy<Value = Shown> {
    let number = prop_oneof![
        12 => 1..12_u64,
        1 => Just(Token::MAX.get()),
        1 => Just(Token::MAX.get() - 1),
    ];
    let elsewhere = (0..3_u8, 0..3_u8, number).prop_map(|(resource, owner, token)| {
        Shown::Elsewhere(Held {
            resource,
            owner,
            token,
        })
    });
    prop_oneof![
        3 => any::<prop::sample::Index>().prop_map(Shown::Granted),
        1 => elsewhere,
    ]
}

fn written() -> impl Strategy<Value = Vec<Written>> {
    let writing = prop_oneof![
        6 => btree_map(0..2_u8, any::<Option<i32>>(), 0..3).prop_map(Writing::Fields),
        2 => btree_map(0..2_u8, any::<i32>(), 0..3).prop_map(Writing::Replace),
        1 => Just(Writing::Delete),
    ];
    let fenced = prop_oneof![8 => Just(None), 1 => Just(Some(true)), 2 => Just(Some(false))];
    btree_map(0..3_u8, (writing, fenced), 0..3).prop_map(|writes| {
        let write = |(resource, (writing, fenced))| Written {
            resource,
            writing,
            fenced,
        };
        writes.into_iter().map(write).collect()
    })
}

fn step() -> impl Strategy<Value = Step> {
    let resources = Just(vec![0_u8, 1, 2])
        .prop_shuffle()
        .prop_flat_map(|all| (1..3_usize).prop_map(move |count| all[..count].to_vec()));
    let read = (0..3_u8, prop::option::of(0..2_u8));
    prop_oneof![
        3 => (0..12_i64).prop_map(Step::Wait),
        4 => (resources, 0..3_u8, 1..20_i64, prop::bool::weighted(0.8))
            .prop_map(|(names, owner, ttl, create)| Step::Acquire(names, owner, ttl, create)),
        2 => (shown(), 1..20_i64).prop_map(|(lease, ttl)| Step::Renew(lease, ttl)),
        2 => shown().prop_map(Step::Release),
        1 => (0..3_u8).prop_map(Step::Revoke),
        4 => read.prop_map(|(resource, field)| Step::Read(resource, field)),
        4 => (vec((shown(), prop::bool::weighted(0.2)), 0..3), prop::bool::weighted(0.6), written())
            .prop_map(|(fences, checked, writes)| Step::Commit(fences, checked, writes)),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    vec(step(), 1..60)
}

/// A call in both languages, with its time.
struct Call {
    op: Op,
    model: Asked,
    now: i64,
}

enum Asked {
    Acquire(Vec<u8>, u8, i64, bool),
    Renew(Held, i64),
    Release(Held),
    Revoke(u8),
    Commit(Vec<Fenced>, Vec<Seen>, Vec<Written>),
}

/// The sequence as it is played: what the steps refer to.
struct Play {
    store: Store,
    model: Model,
    now: i64,
    granted: Vec<Held>,
    read: Vec<(Check, Seen)>,
}

impl Play {
    fn new() -> Self {
        Self {
            store: Store::default(),
            model: Model::default(),
            now: 1000,
            granted: Vec::new(),
            read: Vec::new(),
        }
    }

    fn held(&self, shown: Shown) -> Held {
        match shown {
            Shown::Elsewhere(held) => held,
            Shown::Granted(_) if self.granted.is_empty() => Held {
                resource: 0,
                owner: 0,
                token: 1,
            },
            Shown::Granted(index) => *index.get(&self.granted),
        }
    }

    /// The call of a step, if it makes one.
    fn call(&mut self, step: &Step) -> Option<Call> {
        let (op, model) = match step {
            Step::Wait(millis) => {
                self.now += millis;
                return None;
            }
            Step::Read(resource, field) => {
                let seen = self.model.see(*resource, *field);
                let check = self.check(*resource, *field);
                self.read.push((check, seen));
                return None;
            }
            Step::Acquire(resources, owner, millis, create) => {
                let names: Vec<_> = resources.iter().map(|name| resource(*name)).collect();
                let millis_u64 = millis.unsigned_abs();
                let op = acquire_of(&names, OWNERS[usize::from(*owner)], millis_u64, *create);
                let asked = Asked::Acquire(resources.clone(), *owner, *millis, *create);
                (op, asked)
            }
            Step::Renew(shown, millis) => {
                let held = self.held(*shown);
                let op = Op::Renew(lease_of(held), ttl(millis.unsigned_abs()));
                (op, Asked::Renew(held, *millis))
            }
            Step::Release(shown) => {
                let held = self.held(*shown);
                (Op::Release(lease_of(held)), Asked::Release(held))
            }
            Step::Revoke(name) => (Op::Revoke(res(resource(*name))), Asked::Revoke(*name)),
            Step::Commit(shown, checked, writes) => {
                let mut fences: Vec<Fenced> = Vec::new();
                for (shown, live) in shown {
                    let held = self.held(*shown);
                    // Naming a resource twice is refused before anything.
                    if fences.iter().all(|fence| fence.resource != held.resource) {
                        fences.push(Fenced {
                            resource: held.resource,
                            token: held.token,
                            live: *live,
                        });
                    }
                }
                let (checks, seen) = if *checked {
                    std::mem::take(&mut self.read).into_iter().unzip()
                } else {
                    Default::default()
                };
                let request = CommitRequest {
                    checks,
                    ..commit_of(
                        fences.iter().map(fence_of).collect::<Vec<_>>(),
                        [],
                        writes.iter().map(write_of).collect::<Vec<_>>(),
                    )
                };
                let asked = Asked::Commit(fences, seen, writes.clone());
                (Op::Commit(request), asked)
            }
        };
        let now = self.now;
        Some(Call { op, model, now })
    }

    fn check(&self, name: u8, of: Option<u8>) -> Check {
        let state = self.store.state(resource(name));
        match of {
            None => check_whole(resource(name), state.map(|state| state.version)),
            Some(of) => {
                let of = FIELDS[usize::from(of)];
                let found = state.and_then(|state| state.fields.get(of));
                check(resource(name), of, found.map(|found| found.version))
            }
        }
    }

    /// Makes the call on the store; the steps that follow may show the leases
    /// that it granted.
    fn make(&mut self, call: &Call) -> Result<Outcome> {
        let answer = self.store.run(&call.op, call.now);
        if let Ok(Outcome::Acquired(leases)) = &answer {
            self.granted.extend(leases.iter().map(held_of));
        }
        answer
    }

    fn make_on_model(&mut self, call: &Call) -> Answer {
        let now = call.now;
        match &call.model {
            Asked::Acquire(resources, owner, ttl, create) => {
                self.model.acquire(resources, *owner, *ttl, *create, now)
            }
            Asked::Renew(held, ttl) => self.model.renew(*held, *ttl, now),
            Asked::Release(held) => self.model.release(*held, now),
            Asked::Revoke(resource) => self.model.revoke(*resource),
            Asked::Commit(fences, seen, writes) => self.model.commit(fences, seen, writes, now),
        }
    }
}

fn resource(number: u8) -> &'static str {
    RESOURCES[usize::from(number)]
}

fn number(name: &str) -> u8 {
    name[1..].parse().unwrap()
}

fn lease_of(held: Held) -> Lease {
    let by = OWNERS[usize::from(held.owner)];
    lease(resource(held.resource), by, held.token)
}

fn held_of(lease: &Lease) -> Held {
    Held {
        resource: number(lease.resource.as_str()),
        owner: number(lease.owner.as_str()),
        token: lease.token.get(),
    }
}

fn fence_of(fenced: &Fenced) -> Fence {
    Fence {
        must_be_live: fenced.live,
        ..fence(resource(fenced.resource), fenced.token)
    }
}

fn write_of(written: &Written) -> ResourceWrite {
    let name = |name: &u8| field(FIELDS[usize::from(*name)]);
    let json = |value: &i32| json(&value.to_string());
    let writing = match &written.writing {
        Writing::Delete => Change::Delete,
        Writing::Fields(named) => Change::Fields(
            named
                .iter()
                .map(|(of, value)| (name(of), value.as_ref().map(json)))
                .collect(),
        ),
        Writing::Replace(named) => Change::Replace(
            named
                .iter()
                .map(|(of, value)| (name(of), json(value)))
                .collect(),
        ),
    };
    ResourceWrite {
        fenced: written.fenced,
        ..change(resource(written.resource), writing)
    }
}

/// The answer in the model's words.
fn answer_of(answer: Result<Outcome>) -> Answer {
    let of = |resource: &ResourceName| number(resource.as_str());
    match answer {
        Ok(Outcome::Acquired(leases)) => Answer::Acquired(
            leases
                .iter()
                .map(|lease| (lease.token.get(), lease.expires_at.as_millis()))
                .collect(),
        ),
        Ok(Outcome::Renewed(lease)) => Answer::Renewed(lease.expires_at.as_millis()),
        Ok(Outcome::Released(was_live)) => Answer::Released(was_live),
        Ok(Outcome::Revoked(mark)) => Answer::Revoked(mark.get()),
        Ok(Outcome::Committed(receipt)) => {
            Answer::Committed(receipt.versions.iter().map(|(name, _)| of(name)).collect())
        }
        Ok(Outcome::Imported(report)) => panic!("{report:?}, and nothing is imported here"),
        Err(Error::LeaseNotAvailable {
            resource,
            owner,
            expires_at,
        }) => Answer::NotAvailable(
            of(&resource),
            number(owner.as_str()),
            expires_at.as_millis(),
        ),
        Err(Error::ResourceNotFound { resource }) => Answer::NotFound(of(&resource)),
        Err(Error::LeaseLost {
            resource,
            token,
            reason,
        }) => {
            let why = match reason {
                LossReason::Expired => Why::Expired,
                LossReason::Released => Why::Released,
                LossReason::Superseded { by } => Why::Superseded(by.get()),
            };
            Answer::Lost(of(&resource), token.get(), why)
        }
        Err(Error::FenceRequired { resource }) => Answer::FenceRequired(of(&resource)),
        Err(Error::Conflict { resource, field }) => {
            Answer::Conflict(of(&resource), field.map(|field| number(field.as_str())))
        }
        Err(Error::TokensExhausted { resource }) => Answer::Exhausted(of(&resource)),
        Err(other) => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn r1_tokens_only_grow_and_none_is_issued_twice(steps in steps()) {
        let mut play = Play::new();
        // What has been issued or seen, and to whom.
        let mut known: BTreeMap<u8, BTreeMap<u64, Option<u8>>> = BTreeMap::new();
        for step in &steps {
            let Some(call) = play.call(step) else { continue };
            let marks = RESOURCES.map(|name| play.store.mark(name));
            let answer = play.make(&call);
            match (&call.model, &answer) {
                (_, Ok(Outcome::Acquired(leases))) => for held in leases.iter().map(held_of) {
                    let known = known.entry(held.resource).or_default();
                    let highest = known.last_key_value().map(|(token, owner)| (*token, *owner));
                    // R3 alone gives a token again, the newest, to its owner.
                    let again = highest == Some((held.token, Some(held.owner)));
                    let new = highest.is_none_or(|(highest, _)| held.token > highest);
                    prop_assert!(again || new, "{held:?} after {highest:?}");
                    known.insert(held.token, Some(held.owner));
                },
                (Asked::Revoke(resource), Ok(Outcome::Revoked(mark))) => {
                    let known = known.entry(*resource).or_default();
                    let highest = known.last_key_value().map(|(token, _)| *token);
                    prop_assert!(highest < Some(mark.get()), "{mark} after {highest:?}");
                    known.insert(mark.get(), None);
                }
                (Asked::Commit(fences, ..), Ok(_)) => for fence in fences {
                    known.entry(fence.resource).or_default().entry(fence.token).or_insert(None);
                },
                _ => {}
            }
            for (before, name) in marks.iter().zip(RESOURCES) {
                prop_assert!(*before <= play.store.mark(name), "the mark of {name} fell");
            }
        }
    }

    #[test]
    fn r13_a_stale_token_never_changes_anything(steps in steps()) {
        let mut play = Play::new();
        let mut highest = [0; 3];
        for step in &steps {
            let Some(call) = play.call(step) else { continue };
            let before = play.store.clone();
            let answer = play.make(&call);
            let stale = |resource: u8, token| token < highest[usize::from(resource)];
            let shows_stale = match &call.model {
                Asked::Renew(held, _) | Asked::Release(held) => stale(held.resource, held.token),
                Asked::Commit(fences, ..) => {
                    fences.iter().any(|fence| stale(fence.resource, fence.token))
                }
                _ => false,
            };
            if shows_stale {
                prop_assert!(
                    matches!(answer, Err(Error::LeaseLost { .. }) | Ok(Outcome::Released(false))),
                    "{answer:?}"
                );
                prop_assert_eq!(&play.store, &before);
            }
            let mut saw = |resource: u8, token: u64| {
                let highest = &mut highest[usize::from(resource)];
                *highest = token.max(*highest);
            };
            match (&call.model, &answer) {
                (_, Ok(Outcome::Acquired(leases))) => {
                    for held in leases.iter().map(held_of) {
                        saw(held.resource, held.token);
                    }
                }
                (Asked::Revoke(resource), Ok(Outcome::Revoked(mark))) => saw(*resource, mark.get()),
                (Asked::Commit(fences, ..), Ok(_)) => {
                    for fence in fences {
                        saw(fence.resource, fence.token);
                    }
                }
                _ => {}
            }
        }
    }

    #[test]
    fn r13_what_is_refused_changes_nothing_and_what_is_granted_does(steps in steps()) {
        let mut play = Play::new();
        for step in &steps {
            let Some(call) = play.call(step) else { continue };
            let before = play.store.clone();
            match play.make(&call) {
                Err(_) | Ok(Outcome::Released(false)) => prop_assert_eq!(&play.store, &before),
                Ok(Outcome::Committed(receipt)) if receipt.sequence == before.events.len() as u64 => {
                    prop_assert_eq!(&play.store, &before);
                }
                // In the same millisecond as the last, an extension repeats it.
                Ok(Outcome::Acquired(_) | Outcome::Renewed(_)) => {}
                Ok(_) => prop_assert_ne!(&play.store, &before),
            }
        }
    }

    #[test]
    fn the_records_that_an_operation_needs_are_enough(steps in steps()) {
        let mut play = Play::new();
        for step in &steps {
            let Some(call) = play.call(step) else { continue };
            let all = Records {
                entries: play.store.entries.clone(),
                receipt: None,
                newest: play.store.events.len() as u64,
            };
            let with_all = decide(&call.op, &all, at(call.now));
            let with_needed = play.store.decide(&call.op, call.now);
            prop_assert_eq!(format!("{with_all:?}"), format!("{with_needed:?}"));
            let _ = play.make(&call);
        }
    }

    #[test]
    fn the_rules_agree_with_a_model_of_them(steps in steps()) {
        let mut play = Play::new();
        for step in &steps {
            let Some(call) = play.call(step) else { continue };
            let answer = answer_of(play.make(&call));
            let expected = play.make_on_model(&call);
            prop_assert_eq!(answer, expected, "at {}", call.now);
            for (number, name) in (0..).zip(RESOURCES) {
                let thing = play.model.thing(number).clone();
                let state = play.store.state(name);
                prop_assert_eq!(play.store.mark(name), thing.mark());
                prop_assert_eq!(state.is_some(), thing.fields.is_some());
                let Some((state, fields)) = state.zip(thing.fields) else { continue };
                prop_assert_eq!((state.version, state.fenced), (thing.changes, thing.fenced));
                let named: BTreeSet<_> = state
                    .fields
                    .iter()
                    .map(|(name, of)| (name.to_string(), of.value.to_string()))
                    .collect();
                let expected: BTreeSet<_> = fields
                    .iter()
                    .map(|(of, (value, _))| (format!("f{of}"), value.to_string()))
                    .collect();
                prop_assert_eq!(named, expected);
            }
        }
    }
}
