//! The current job of each thread of a server, with its start, recorded without a lock.
//!
//! Each thread has its own slot, so that recording a request costs four stores. The records are only
//! informative: a slot may change while it is read.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The number of slots, more than the usual number of threads. With more threads, some share a slot, and only
/// one of them is shown.
const PLACES: usize = 256;

thread_local! {
    static PLACE: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % PLACES
    };
}

/// The current job of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub kind: u64,
    /// Its object: an inode or an offset.
    pub at: u64,
    /// Its size, in bytes.
    pub len: u64,
    /// The tick of its start.
    pub since: u64,
}

#[derive(Default)]
#[repr(align(64))]
struct Place {
    /// One more than the start tick; 0 without a job.
    since: AtomicU64,
    kind: AtomicU64,
    at: AtomicU64,
    len: AtomicU64,
    /// The number of jobs that have ended here.
    ended: AtomicU64,
}

/// Jobs of one kind; each thread has at most one.
pub(super) struct Underway {
    places: Vec<Place>,
}

impl Default for Underway {
    fn default() -> Underway {
        Underway { places: (0..PLACES).map(|_| Place::default()).collect() }
    }
}

impl Underway {
    /// Records that this thread begins a job.
    pub fn begin(&self, job: Job) {
        let Some(place) = self.place() else { return };
        place.kind.store(job.kind, Ordering::Relaxed);
        place.at.store(job.at, Ordering::Relaxed);
        place.len.store(job.len, Ordering::Relaxed);
        place.since.store(job.since + 1, Ordering::Release);
    }

    /// Records that this thread has ended its job.
    pub fn end(&self) {
        if let Some(place) = self.place() {
            place.since.store(0, Ordering::Release);
            place.ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The number of ended jobs.
    pub fn ended(&self) -> u64 {
        self.places.iter().map(|place| place.ended.load(Ordering::Relaxed)).sum()
    }

    /// The jobs that began no later than a tick, oldest first.
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
