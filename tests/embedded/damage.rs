//! R29: a damaged store gives `Corrupt`, or the right answer: never a wrong
//! one, never a panic, never a new store in its place.

use std::os::unix::fs::FileExt;

use statepact::ErrorKind;
use statepact::backend::embedded::Embedded;
use statepact::{Backend, Error, Result};

use crate::support::{Contents, Sample, check, put, request, runtime, value};

/// Silences what the storage library's panics print: the engine catches them,
/// and there are thousands. A panic of anything else is still seen.
fn silence_caught_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !panic
                .location()
                .is_some_and(|at| at.file().contains("redb-"))
            {
                usual(panic);
            }
        }));
    });
}

/// What a damaged store answered.
#[derive(Debug, Default)]
struct Answers {
    corrupt: u32,
    right: u32,
    wrong: Vec<String>,
}

impl Answers {
    fn note<T: PartialEq + std::fmt::Debug>(&mut self, asked: &str, answer: Result<T>, right: &T) {
        match answer {
            Ok(answer) if answer == *right => self.right += 1,
            Err(Error::Corrupt { location, message }) => {
                assert!(!location.is_empty() && !message.is_empty());
                self.corrupt += 1;
            }
            other => {
                let text: String = format!("{asked}: {other:?}").chars().take(300).collect();
                self.wrong.push(text);
            }
        }
    }
}

/// Puts an image in a file of its own, opens it, and asks it everything.
fn ask(sample: &Sample, image: &[u8], right: &Contents, verify: u64) -> Answers {
    let path = sample.file("damaged.redb");
    put(&path, image);
    let mut answers = Answers::default();
    let opened = sample.options().verify_up_to(verify).open_blocking(&path);
    let store: Embedded = match opened {
        Ok(store) => store,
        Err(error) => {
            answers.note::<()>("open", Err(error), &());
            assert_eq!(
                std::fs::metadata(&path).unwrap().len(),
                image.len() as u64,
                "the damaged file was replaced or cut"
            );
            return answers;
        }
    };
    for (n, name) in sample.names.iter().enumerate() {
        let state = store
            .read_blocking(std::slice::from_ref(name))
            .map(|mut states| states.pop().unwrap());
        answers.note(name.as_str(), state, &right.states[n]);
        let status = store.lease_status_blocking(name);
        answers.note(name.as_str(), status, &right.statuses[n]);
    }
    let absent = store.read_blocking(std::slice::from_ref(&sample.absent));
    answers.note("what is absent", absent, &vec![None]);
    runtime().block_on(async {
        let list = store.list("", None, usize::MAX).await;
        let names = list.map(|list| list.into_iter().map(|each| each.resource).collect());
        answers.note("list", names, &right.names);
        let events = store.events(0, usize::MAX).await;
        answers.note("events", events.map(|page| page.events), &right.events);
        let report = store.check(&|_| {}).await;
        answers.note("check", report, &right.report);
    });
    let name = &sample.names[0];
    let commit = store.commit_blocking(&request([name], 77));
    let committed = commit.is_ok();
    answers.note("commit", commit.map(|_| ()), &());
    if committed {
        answers.note("the commit", value(&store, name.as_str()), &Some(77));
    }
    answers
}

/// Asks a store with each of the damages in turn.
fn ask_all(verify: u64, damages: impl FnOnce(&[u8]) -> Vec<Damage>) -> Seen {
    silence_caught_panics();
    let sample = Sample::new(60);
    let store = sample.options().open_blocking(sample.path()).unwrap();
    let right = sample.contents(&store).unwrap();
    drop(store);
    let image = std::fs::read(sample.path()).unwrap();
    // The questions themselves are right.
    let answers = ask(&sample, &image, &right, verify);
    assert_eq!((answers.corrupt, &answers.wrong), (0, &Vec::new()));

    let mut seen = Seen::default();
    let mut wrong = Vec::new();
    for damage in damages(&image) {
        let mut image = image.clone();
        damage.apply(&mut image);
        let answers = ask(&sample, &image, &right, verify);
        seen.images += 1;
        seen.noticed += u32::from(answers.corrupt > 0);
        seen.refused += u32::from(answers.corrupt == 1 && answers.right == 0);
        if !answers.wrong.is_empty() {
            wrong.push((damage, answers.wrong));
        }
    }
    let first: Vec<_> = wrong.iter().take(20).collect();
    assert!(wrong.is_empty(), "{} wrong: {first:#?}", wrong.len());
    seen
}

#[derive(Debug, Default)]
struct Seen {
    images: u32,
    /// Some question was answered with `Corrupt`.
    noticed: u32,
    /// It did not open.
    refused: u32,
}

const PAGE: usize = 4096;

#[derive(Debug, Clone, Copy)]
enum Damage {
    Flip {
        at: usize,
        bits: u8,
    },
    Zero {
        page: usize,
    },
    /// A page was written to another's place.
    Misplaced {
        from: usize,
        to: usize,
    },
    Cut {
        len: usize,
    },
}

impl Damage {
    fn apply(self, image: &mut Vec<u8>) {
        match self {
            Self::Flip { at, bits } => image[at] ^= bits,
            Self::Zero { page } => image[page * PAGE..(page + 1) * PAGE].fill(0),
            Self::Misplaced { from, to } => {
                image.copy_within(from * PAGE..(from + 1) * PAGE, to * PAGE);
            }
            Self::Cut { len } => image.truncate(len),
        }
    }
}

/// Flips in the header, then in the head of each page and in a sample of the
/// rest. `stride` thins them out.
fn flips(image: &[u8], stride: usize) -> Vec<Damage> {
    let bits = |at: usize| 1_u8 << (at % 8);
    let header = (0..320).flat_map(|at| [1, 0x80, 0xFF].map(|bits| Damage::Flip { at, bits }));
    let first_page = (320..PAGE).step_by(3 * stride);
    let pages = image.chunks(PAGE).enumerate().skip(1);
    let pages = pages
        .filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0))
        .flat_map(|(page, _)| {
            let within = (0..48)
                .step_by(stride)
                .chain((48..PAGE).step_by(53 * stride));
            within.map(move |at| page * PAGE + at)
        });
    header
        .chain(first_page.chain(pages).map(|at| Damage::Flip {
            at,
            bits: bits(at / stride + at / PAGE),
        }))
        .collect()
}

/// A store that is verified when it opens: what opens is right.
#[test]
fn a_flipped_byte_gives_corrupt_or_the_right_answer_r29() {
    let seen = ask_all(u64::MAX, |image| flips(image, 2));
    assert!(seen.images > 1000, "{seen:?}");
    assert!(seen.noticed > seen.images / 10, "{seen:?}");
    assert_eq!(seen.noticed, seen.refused, "noticed later than on opening");
}

/// A store too large to be verified when it opens: the records' own checksums,
/// and the proof that an absent record is absent, have to find it.
#[test]
fn a_flipped_byte_in_an_unverified_store_gives_corrupt_or_the_right_answer_r29() {
    let seen = ask_all(0, |image| flips(image, 2));
    assert!(seen.images > 1000, "{seen:?}");
    assert!(seen.noticed > seen.images / 10, "{seen:?}");
}

/// Pages that were lost, or written in the wrong place.
#[test]
fn a_lost_or_misplaced_page_gives_corrupt_or_the_right_answer_r29() {
    let seen = ask_all(u64::MAX, |image| {
        let pages = image.len() / PAGE;
        let lost = (0..pages).map(|page| Damage::Zero { page });
        let misplaced = (1..pages).flat_map(|to| {
            [1, 2, 5, 11].map(|by| Damage::Misplaced {
                from: 1 + (to + by) % (pages - 1),
                to,
            })
        });
        lost.chain(misplaced).collect()
    });
    assert!(seen.noticed > 20, "{seen:?}");
}

/// A store that was cut short, at page boundaries and between.
#[test]
fn a_truncated_store_is_corrupt_and_never_made_anew_r29() {
    for verify in [u64::MAX, 0] {
        let seen = ask_all(verify, |image| {
            let odd = [0, 1, 2, 4, 8, 9, 63, 64, 319, 320, 321, 511, 4095, 4097];
            let pages = (1..image.len() / PAGE).map(|page| page * PAGE);
            let between = (1..image.len()).step_by(7919);
            let near = [1, 2, 512].map(|by| image.len() - by);
            odd.into_iter()
                .chain(pages)
                .chain(between)
                .chain(near)
                .map(|len| Damage::Cut { len })
                .collect()
        });
        assert!(seen.noticed > 50, "{seen:?}");
        assert_eq!(seen.noticed, seen.images, "a cut was not noticed");
    }
}

/// `check` finds what was damaged since the store was opened.
#[test]
fn check_finds_damage_that_came_after_opening_r29() {
    let sample = Sample::new(60);
    let path = sample.path();
    let store = sample.options().open_blocking(&path).unwrap();
    check(&store).unwrap();
    let image = std::fs::read(&path).unwrap();
    // A name in the middle of a page of the tables' present version: flip it
    // wherever it is found.
    let needle = sample.names[30].as_str().as_bytes();
    let mut damaged = image.clone();
    let mut found = 0;
    for at in 0..image.len() - needle.len() {
        if &image[at..at + needle.len()] == needle {
            damaged[at + needle.len() - 1] ^= 0x40;
            found += 1;
        }
    }
    assert!(found > 0);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&damaged[PAGE..], PAGE as u64).unwrap();
    let error = check(&store).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
}

/// R1: a mark from before the last lease, whole by its checksum, as an older
/// copy of a page has it, would issue a token twice.
#[test]
fn a_mark_that_is_older_than_its_lease_is_damage() {
    use statepact::backend::embedded::redb::{self, ReadableDatabase};
    const FENCES: redb::TableDefinition<'_, &str, &[u8]> =
        redb::TableDefinition::new("statepact.fences");
    let folder = crate::support::folder();
    let path = folder.path().join("state.redb");
    let job = crate::support::name("job");
    let acquire = |owner: &str| {
        let store = Embedded::open_blocking(&path).unwrap();
        let lease = store
            .lease_blocking(&job, &owner.try_into().unwrap(), crate::support::ttl())
            .unwrap();
        store.release_blocking(&lease).unwrap();
        lease
    };
    let first = acquire("a");
    let old = {
        let database = redb::Database::open(&path).unwrap();
        let table = database.begin_read().unwrap().open_table(FENCES).unwrap();
        table.get("job").unwrap().unwrap().value().to_vec()
    };
    let last = acquire("b");
    {
        let database = redb::Database::open(&path).unwrap();
        let txn = database.begin_write().unwrap();
        txn.open_table(FENCES)
            .unwrap()
            .insert("job", old.as_slice())
            .unwrap();
        txn.commit().unwrap();
    }
    let store = Embedded::open_blocking(&path).unwrap();
    let owner = "thief".try_into().unwrap();
    let fenced = |lease: &statepact::Lease| crate::support::fenced_request(&job, 1, lease.fence());
    for (what, answer) in [
        (
            "acquire",
            store
                .lease_blocking(&job, &owner, crate::support::ttl())
                .map(drop),
        ),
        ("guard", store.guard_blocking(&first)),
        ("status", store.lease_status_blocking(&job).map(drop)),
        (
            "stale commit",
            store.commit_blocking(&fenced(&first)).map(drop),
        ),
        ("commit", store.commit_blocking(&fenced(&last)).map(drop)),
    ] {
        let error = answer.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{what}: {error}");
        assert!(
            error.to_string().contains("above the mark"),
            "{what}: {error}"
        );
    }
}
