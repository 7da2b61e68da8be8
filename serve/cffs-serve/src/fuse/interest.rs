//! Estimates whether programs use the inodes of the names that they list.
//!
//! A listing may carry the answer of a lookup with each name. That saves a program that then examines the
//! files (`ls -l`, `du`, `rm -r`) one request per file. For a program that only lists names (`find -name`),
//! the kernel and the server create inodes that are never used. The kernel decides for all parts of a listing
//! except the first, by whether the directory's names were looked up meanwhile. For the first part it always
//! requests inodes, and most directories have only one part.
//!
//! So a sample of the names is returned without inodes: a program that examines files of that directory looks
//! the sample up. If none of many samples was looked up, all names are returned without inodes, until some
//! are looked up or no directory was listed for a while. Then the kernel must drop its cached listings
//! without inodes.
//!
//! Directories are always returned with inodes: a program that lists a tree opens them next.

use std::cell::Cell;
use std::collections::HashMap;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cffs::units::InodeNo;
use parking_lot::RwLock;

#[cfg(test)]
mod tests;

const NAMES_PER_SAMPLE: u32 = 128;

/// The number of consecutive samples without a lookup after which names are returned without inodes.
const UNSEEN_MAX: u32 = 16;

/// Listings without inodes are dropped after this many lookups of their names.
const LOOKS: u32 = 4;

/// After a pause of this length, other programs may be listing, so the observations are discarded.
const PAUSE: Duration = Duration::from_secs(1);

/// The most directories remembered, 16 bytes each.
const DIRECTORIES_MAX: usize = 4096;

/// Observations of the programs that list directories.
///
/// These counters need no memory ordering: a wrong guess costs one request.
pub(super) struct Interest {
    started: Instant,
    /// When a listing last began, in milliseconds since the start.
    listed_ms: AtomicU64,
    /// The number of names listed, by which samples are chosen.
    names: AtomicU32,
    /// The number of samples since the last lookup of a name that was returned without an inode.
    unseen: AtomicU32,
    /// The number of such lookups.
    looks: AtomicU32,
    /// Directories with names returned without inodes: all names, or samples.
    alone: RwLock<HashMap<InodeNo, Alone>>,
    /// Whether the map is not empty.
    is_any_alone: AtomicBool,
}

#[derive(Clone, Copy, PartialEq)]
enum Alone {
    All,
    Samples,
}

/// One request for a part of a listing.
pub(super) struct Listing<'a> {
    interest: &'a Interest,
    dir: InodeNo,
    looks: bool,
    names: Cell<u32>,
    samples: Cell<u32>,
    alone: Cell<Option<Alone>>,
}

impl Interest {
    /// Without observations, programs are assumed to use inodes.
    pub fn new() -> Interest {
        Interest {
            started: Instant::now(),
            listed_ms: AtomicU64::new(0),
            names: AtomicU32::new(0),
            unseen: AtomicU32::new(0),
            looks: AtomicU32::new(0),
            alone: RwLock::default(),
            is_any_alone: AtomicBool::new(false),
        }
    }

    /// Records a request for a part of a listing.
    pub fn list(&self, dir: InodeNo) -> Listing<'_> {
        self.list_at(dir, self.started.elapsed())
    }

    fn list_at(&self, dir: InodeNo, now: Duration) -> Listing<'_> {
        let now_ms = now.as_millis() as u64;
        let before_ms = self.listed_ms.swap(now_ms, Ordering::Relaxed);
        if now_ms.saturating_sub(before_ms) > PAUSE.as_millis() as u64 {
            self.unseen.store(0, Ordering::Relaxed);
        }
        Listing {
            interest: self,
            dir,
            looks: self.unseen.load(Ordering::Relaxed) < UNSEEN_MAX,
            names: Cell::new(self.names.load(Ordering::Relaxed)),
            samples: Cell::new(0),
            alone: Cell::new(None),
        }
    }

    /// Records that a file was looked up by name. Returns the directories whose listings the kernel must
    /// drop, usually none.
    pub fn looked_up(&self, dir: InodeNo) -> Vec<InodeNo> {
        if !self.is_any_alone.load(Ordering::Relaxed) || !self.alone.read().contains_key(&dir) {
            return Vec::new();
        }
        self.unseen.store(0, Ordering::Relaxed);
        if self.looks.fetch_add(1, Ordering::Relaxed) + 1 < LOOKS {
            return Vec::new();
        }
        let mut alone = self.alone.write();
        self.looks.store(0, Ordering::Relaxed);
        self.is_any_alone.store(false, Ordering::Relaxed);
        let directories = mem::take(&mut *alone).into_iter();
        directories.filter(|(_, what)| *what == Alone::All).map(|(dir, _)| dir).collect()
    }
}

impl Listing<'_> {
    /// Whether the next file is returned with its inode.
    pub fn wants_inode(&self) -> bool {
        let name = self.names.get();
        self.names.set(name.wrapping_add(1));
        let is_sample = name % NAMES_PER_SAMPLE == NAMES_PER_SAMPLE - 1;
        self.samples.set(self.samples.get() + u32::from(is_sample));
        if !self.looks {
            self.alone.set(Some(Alone::All));
        } else if is_sample {
            self.alone.set(Some(Alone::Samples));
        }
        self.looks && !is_sample
    }
}

impl Drop for Listing<'_> {
    fn drop(&mut self) {
        let interest = self.interest;
        interest.names.store(self.names.get(), Ordering::Relaxed);
        interest.unseen.fetch_add(self.samples.get(), Ordering::Relaxed);
        let Some(what) = self.alone.get() else { return };
        let mut alone = interest.alone.write();
        if alone.len() >= DIRECTORIES_MAX {
            alone.clear();
        }
        // The parts of one listing may differ.
        let before = alone.insert(self.dir, what);
        if before == Some(Alone::All) {
            alone.insert(self.dir, Alone::All);
        }
        interest.is_any_alone.store(true, Ordering::Relaxed);
    }
}
