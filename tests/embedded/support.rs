//! What the tests of this crate share.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use statepact::backend::embedded::{Embedded, EmbeddedOptions, StorageOp, StorageProbe, StoreFile};
use statepact::backend::{
    AcquireRequest, Change, CheckReport, CommitRequest, Fence, LeaseStatus, ResourceWrite,
};
use statepact::clock::ManualClock;
use statepact::event::Event;
use statepact::random::SeededRandom;
use statepact::{Backend, Lease, ResourceName, ResourceState, Result, Ttl, Value};

/// A folder for stores: in memory where there is such a file system, so that
/// thousands of syncs cost nothing.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap()
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

pub(crate) fn name(text: &str) -> ResourceName {
    text.try_into().unwrap()
}

pub(crate) fn ttl() -> Ttl {
    Ttl::from_millis(60_000).unwrap()
}

/// A commit that writes `value` to the field `n` of each of the resources.
pub(crate) fn request<'a>(
    resources: impl IntoIterator<Item = &'a ResourceName>,
    value: u64,
) -> CommitRequest {
    let fields = [(
        "n".try_into().unwrap(),
        Some(Value::encode(&value).unwrap()),
    )];
    CommitRequest {
        id: None,
        agent: "writer".try_into().unwrap(),
        fences: Vec::new(),
        checks: Vec::new(),
        writes: resources
            .into_iter()
            .map(|resource| ResourceWrite {
                resource: resource.clone(),
                change: Change::Fields(fields.clone().into()),
                fenced: None,
            })
            .collect(),
    }
}

/// As [`request`], carrying a fence.
pub(crate) fn fenced_request(resource: &ResourceName, value: u64, fence: Fence) -> CommitRequest {
    CommitRequest {
        fences: vec![fence],
        ..request([resource], value)
    }
}

pub(crate) fn lease(store: &Embedded, resource: &str, owner: &str) -> Result<Lease> {
    store.lease_blocking(&name(resource), &owner.try_into().unwrap(), ttl())
}

/// The value of the field `n`.
pub(crate) fn value(store: &Embedded, resource: &str) -> Result<Option<u64>> {
    let states = store.read_blocking(&[name(resource)])?;
    Ok(states[0]
        .as_ref()
        .map(|state| state.fields["n"].value.decode().unwrap()))
}

pub(crate) fn check(store: &Embedded) -> Result<CheckReport> {
    runtime().block_on(store.check(&|_| {}))
}

/// Everything that a store answers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) states: Vec<Option<ResourceState>>,
    pub(crate) statuses: Vec<LeaseStatus>,
    pub(crate) names: Vec<ResourceName>,
    pub(crate) events: Vec<Event>,
    pub(crate) report: CheckReport,
}

/// A store with enough in it for its tables to have several pages, cleanly
/// closed.
#[derive(Debug)]
pub(crate) struct Sample {
    folder: tempfile::TempDir,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) names: Vec<ResourceName>,
    pub(crate) absent: ResourceName,
}

impl Sample {
    pub(crate) fn new(resources: usize) -> Self {
        let sample = Self {
            folder: folder(),
            clock: Arc::new(ManualClock::new()),
            names: (0..resources)
                .map(|n| name(&format!("a/rather/long/name/of/a/resource/{n:04}")))
                .collect(),
            absent: name("a/rather/long/name/of/a/resource/0003x"),
        };
        let store = sample.options().open_blocking(sample.path()).unwrap();
        let leases = store
            .acquire_all_blocking(&AcquireRequest {
                resources: sample.names.clone(),
                owner: "owner".try_into().unwrap(),
                ttl: ttl(),
                create: true,
            })
            .unwrap();
        store.commit_blocking(&request(&sample.names, 1)).unwrap();
        for (n, lease) in (2..).zip(leases.iter().step_by(7)) {
            let fenced = fenced_request(&lease.resource, n, lease.fence());
            store.commit_blocking(&fenced).unwrap();
        }
        for lease in leases.iter().step_by(5) {
            assert!(store.release_blocking(lease).unwrap());
        }
        drop(store);
        sample
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("sample.redb")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn options(&self) -> EmbeddedOptions {
        EmbeddedOptions::new()
            .clock(self.clock.clone())
            .random(Arc::new(SeededRandom::new(29)))
    }

    pub(crate) fn states(&self, store: &Embedded) -> Result<Vec<Option<ResourceState>>> {
        store.read_blocking(&self.names)
    }

    pub(crate) fn contents(&self, store: &Embedded) -> Result<Contents> {
        runtime().block_on(async {
            let list = store.list("", None, usize::MAX).await?;
            Ok(Contents {
                states: self.states(store)?,
                statuses: self
                    .names
                    .iter()
                    .map(|name| store.lease_status_blocking(name))
                    .collect::<Result<_>>()?,
                names: list.into_iter().map(|summary| summary.resource).collect(),
                events: store.events(0, usize::MAX).await?.events,
                report: store.check(&|_| {}).await?,
            })
        })
    }
}

/// Puts the image of a store at `path`.
pub(crate) fn put(path: &Path, image: &[u8]) {
    std::fs::write(path, image).unwrap();
}

/// An operation that changed the file, or a mark that a test set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Write {
        offset: u64,
        data: Vec<u8>,
    },
    SetLen(u64),
    Sync,
    /// The commit with this number was acknowledged.
    Acknowledged(u64),
}

/// Records what is done to a file, and fails what it is told to.
#[derive(Debug, Default)]
pub(crate) struct Probe {
    state: Mutex<ProbeState>,
}

#[derive(Debug, Default)]
struct ProbeState {
    steps: Vec<Step>,
    reads: u64,
    fault: Option<Fault>,
    failed: u32,
}

/// What fails, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    /// Reads are counted, or else what changes the file.
    pub(crate) reads: bool,
    /// How many operations still pass.
    pub(crate) after: u32,
    /// All later ones fail as well, or else just this one.
    pub(crate) lasting: bool,
    pub(crate) errno: i32,
}

impl Probe {
    fn lock(&self) -> std::sync::MutexGuard<'_, ProbeState> {
        self.state.lock().unwrap()
    }

    pub(crate) fn push(&self, step: Step) {
        self.lock().steps.push(step);
    }

    pub(crate) fn steps(&self) -> Vec<Step> {
        self.lock().steps.clone()
    }

    pub(crate) fn syncs(&self) -> usize {
        let steps = self.steps();
        steps.iter().filter(|step| **step == Step::Sync).count()
    }

    pub(crate) fn fault(&self, fault: Option<Fault>) {
        self.lock().fault = fault;
    }

    /// How many operations were failed.
    pub(crate) fn failed(&self) -> u32 {
        self.lock().failed
    }
}

impl StorageProbe for Probe {
    fn before(&self, _: StoreFile, op: StorageOp<'_>) -> std::io::Result<()> {
        let mut state = self.lock();
        let is_read = matches!(op, StorageOp::Read { .. });
        if let Some(mut fault) = state.fault
            && fault.reads == is_read
        {
            if fault.after == 0 {
                state.failed += 1;
                if !fault.lasting {
                    state.fault = None;
                }
                return Err(std::io::Error::from_raw_os_error(fault.errno));
            }
            fault.after -= 1;
            state.fault = Some(fault);
        }
        match op {
            StorageOp::Write { offset, data } => {
                let data = data.to_vec();
                state.steps.push(Step::Write { offset, data });
            }
            StorageOp::SetLen(len) => state.steps.push(Step::SetLen(len)),
            StorageOp::Sync => state.steps.push(Step::Sync),
            _ => state.reads += 1,
        }
        Ok(())
    }
}
