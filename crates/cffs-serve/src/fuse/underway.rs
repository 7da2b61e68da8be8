//! The requests that the threads of a server work on, and since when, written without a lock.
//!
//! Each thread has its own place, so that recording a request costs four stores. The records are for people:
//! a place may change while it is read.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// More than the usual number of threads. Beyond that, some threads share a place, and one of them is not
/// shown.
const PLACES: usize = 256;

thread_local! {
    static PLACE: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % PLACES
    };
}

/// The work of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    /// Its kind.
    pub kind: u64,
    /// Its object: an inode, an offset.
    pub at: u64,
    /// How much of it: bytes.
    pub len: u64,
    /// The tick at which it began.
    pub since: u64,
}

#[derive(Default)]
#[repr(align(64))]
struct Place {
    /// One more than the tick; 0 if there is nothing.
    since: AtomicU64,
    kind: AtomicU64,
    at: AtomicU64,
    len: AtomicU64,
    /// How many have ended here.
    ended: AtomicU64,
}

/// Jobs of one sort, of which a thread has at most one.
pub(super) struct Underway {
    places: Vec<Place>,
}

impl Default for Underway {
    fn default() -> Underway {
        Underway { places: (0..PLACES).map(|_| Place::default()).collect() }
    }
}

impl Underway {
    /// This thread begins a job.
    pub fn begin(&self, job: Job) {
        let Some(place) = self.place() else { return };
        place.kind.store(job.kind, Ordering::Relaxed);
        place.at.store(job.at, Ordering::Relaxed);
        place.len.store(job.len, Ordering::Relaxed);
        place.since.store(job.since + 1, Ordering::Release);
    }

    /// This thread has ended its job.
    pub fn end(&self) {
        if let Some(place) = self.place() {
            place.since.store(0, Ordering::Release);
            place.ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many jobs have ended.
    pub fn ended(&self) -> u64 {
        self.places.iter().map(|place| place.ended.load(Ordering::Relaxed)).sum()
    }

    /// The jobs that began at a tick or before, the oldest first.
    pub fn since(&self, tick: u64) -> Vec<Job> {
        let job = |place: &Place| {
            let since = place.since.load(Ordering::Acquire).checked_sub(1)?;
            let get = |number: &AtomicU64| number.load(Ordering::Relaxed);
            Some(Job { kind: get(&place.kind), at: get(&place.at), len: get(&place.len), since })
        };
        let mut jobs: Vec<Job> =
            self.places.iter().filter_map(job).filter(|job| job.since <= tick).collect();
        jobs.sort_by_key(|job| job.since);
        jobs
    }

    fn place(&self) -> Option<&Place> {
        self.places.get(PLACE.with(|place| *place))
    }
}
