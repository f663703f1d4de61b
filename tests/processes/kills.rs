//! Writers that are killed with SIGKILL.

use std::collections::BTreeSet;
use std::time::Duration;

use statepact::backend::embedded::Embedded;
use statepact::backend::{Change, CommitRequest, ResourceWrite};
use statepact::event::EventKind;
use statepact::random::{Random, SeededRandom};
use statepact::{ResourceName, Value};

use crate::harness::{Place, Worker, check, history, open};

const KILLS: u32 = 200;

fn pair(slot: &str) -> [ResourceName; 2] {
    ["left", "right"].map(|side| format!("{side}-{slot}").try_into().unwrap())
}

/// The number that both resources of a pair hold.
fn value(store: &Embedded, slot: &str) -> u64 {
    let states = store.read_blocking(&pair(slot)).unwrap();
    let [left, right] = [0, 1].map(|side: usize| {
        let state = states[side].as_ref();
        state.map_or(0, |state| state.fields["n"].value.decode::<u64>().unwrap())
    });
    assert_eq!(left, right, "half of a commit");
    left
}

/// The worker: writes the next number to both resources of its pair, for
/// ever, and says each number once it is committed.
pub(crate) fn work(path: &str, slot: &str) {
    let store = open(path.as_ref());
    let mut number = value(&store, slot);
    println!("at {number}");
    loop {
        number += 1;
        let fields: std::collections::BTreeMap<_, _> = [(
            "n".try_into().unwrap(),
            Some(Value::encode(&number).unwrap()),
        )]
        .into();
        store
            .commit_blocking(&CommitRequest {
                id: None,
                agent: "writer".try_into().unwrap(),
                fences: Vec::new(),
                checks: Vec::new(),
                writes: pair(slot)
                    .into_iter()
                    .map(|resource| ResourceWrite {
                        resource,
                        change: Change::Fields(fields.clone()),
                        fenced: None,
                    })
                    .collect(),
            })
            .unwrap();
        println!("did {number}");
    }
}

/// What is known of a writer, over all its lives.
#[derive(Debug)]
struct Slot {
    name: &'static str,
    worker: Option<Worker>,
    acknowledged: u64,
}

impl Slot {
    fn hear(&mut self, line: &str) {
        let (word, number) = line.split_once(' ').unwrap();
        let number: u64 = number.parse().unwrap();
        match word {
            // At most the one commit that was under way is there as well.
            "at" => assert!(
                number == self.acknowledged || number == self.acknowledged + 1,
                "{}: {} was acknowledged, and {number} is there",
                self.name,
                self.acknowledged
            ),
            "did" => assert_eq!(number, self.acknowledged + 1),
            _ => panic!("heard `{line}`"),
        }
        self.acknowledged = number;
    }

    fn kill(&mut self) {
        for line in self.worker.take().unwrap().kill() {
            self.hear(&line);
        }
    }

    fn start(&mut self, place: &Place) {
        self.worker = Some(Worker::start("pair", &[place.text(), self.name]));
    }
}

/// R20, with 200 kills: of one of two writers, or of both at once, while they
/// open the store and while they write.
pub(crate) fn kill_writers() {
    let place = Place::new();
    let random = SeededRandom::new(20);
    let mut slots = ["a", "b"].map(|name| Slot {
        name,
        worker: None,
        acknowledged: 0,
    });
    for slot in &mut slots {
        slot.start(&place);
    }
    let mut kills = 0;
    while kills < KILLS {
        let victim = usize::try_from(random.next_u64() % 2).unwrap();
        // Now and then before it has said anything: while it opens.
        let wait_for = random.next_u64() % 6;
        let slot = &mut slots[victim];
        for _ in 0..wait_for {
            let line = slot.worker.as_ref().unwrap().hear();
            slot.hear(&line);
        }
        std::thread::sleep(Duration::from_micros(random.next_u64() % 8_000));
        let both = random.next_u64().is_multiple_of(8);
        for (n, slot) in slots.iter_mut().enumerate() {
            if both || n == victim {
                slot.kill();
                kills += 1;
            }
        }
        if both {
            // Nobody has it open: the next to open repairs it.
            let store = place.open();
            check(&store);
            for slot in &mut slots {
                let there = value(&store, slot.name);
                slot.hear(&format!("at {there}"));
            }
        }
        for slot in slots.iter_mut().filter(|slot| slot.worker.is_none()) {
            slot.start(&place);
        }
    }
    for slot in &mut slots {
        slot.kill();
    }

    let store = place.open();
    check(&store);
    let events = history(&store);
    for slot in &mut slots {
        let there = value(&store, slot.name);
        slot.hear(&format!("at {there}"));
        // Each commit is in the history, once, with both its halves.
        let [left, right] = pair(slot.name);
        let numbers: Vec<u64> = events
            .iter()
            .filter(|event| event.kind.concerns(&left) || event.kind.concerns(&right))
            .map(|event| {
                let EventKind::Committed { changes, .. } = &event.kind else {
                    panic!("{event:?}");
                };
                let values: BTreeSet<u64> = changes
                    .iter()
                    .map(|change| change.fields[0].1.as_ref().unwrap().decode().unwrap())
                    .collect();
                assert_eq!((changes.len(), values.len()), (2, 1), "{changes:?}");
                *values.first().unwrap()
            })
            .collect();
        assert!(numbers.into_iter().eq(1..=there), "slot {}", slot.name);
        assert!(there > 100, "{there} commits are too few to mean anything");
    }
}
