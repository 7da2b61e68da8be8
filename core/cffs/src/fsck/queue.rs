//! The queue of sectors to be read, in the order of the disk.

use std::collections::{BTreeMap, HashMap};

use super::disk::Place;
use crate::units::InodeNo;

/// Bytes that are read before any of them is checked.
const BATCH_BYTES: usize = 4 << 20;

/// Sectors of one container that are read together.
pub(super) struct Job {
    pub file: InodeNo,
    pub first: u32,
    pub places: Vec<Place>,
}

/// An entry of a directory: the hash of its name, its sector and its slot.
pub(super) type NameEntry = (u32, u32, u16);

/// A container of which sectors are still to be read.
struct Open {
    jobs: usize,
    names: Vec<NameEntry>,
}

/// Jobs in the order of the disk, served as by an elevator: from the place of the last job on.
#[derive(Default)]
pub(super) struct Queue {
    jobs: BTreeMap<(u64, u64), Job>,
    open: HashMap<InodeNo, Open>,
    next: u64,
    position: u64,
}

impl Queue {
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Adds the jobs of a container.
    pub fn insert(&mut self, file: InodeNo, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        self.open.insert(file, Open { jobs: jobs.len(), names: Vec::new() });
        for job in jobs {
            let offset = job.places.first().map_or(0, |place| place.offset);
            self.jobs.insert((offset, self.next), job);
            self.next += 1;
        }
    }

    /// Records an entry of a directory whose sectors are being read.
    pub fn add_name(&mut self, dir: InodeNo, entry: NameEntry) {
        if let Some(open) = self.open.get_mut(&dir) {
            open.names.push(entry);
        }
    }

    /// Records that a job of a container is done. After the last one, returns the recorded entries.
    pub fn finish_job(&mut self, file: InodeNo) -> Option<Vec<NameEntry>> {
        let open = self.open.get_mut(&file)?;
        debug_assert!(open.jobs > 0, "inode {file}: a container without jobs is in the queue");
        open.jobs -= 1;
        match open.jobs {
            0 => self.open.remove(&file).map(|open| open.names),
            _ => None,
        }
    }

    /// The next jobs in the order of the disk; from its start again when the end is reached.
    pub fn next_batch(&mut self) -> Option<Vec<Job>> {
        let mut bytes = 0;
        let mut batch = Vec::new();
        while bytes < BATCH_BYTES {
            let ahead = self.jobs.range((self.position, 0)..).next().map(|(key, _)| *key);
            let key = match ahead {
                Some(key) => key,
                // New jobs may be ahead, so look again before starting over.
                None if !batch.is_empty() => break,
                None => *self.jobs.first_key_value()?.0,
            };
            self.position = key.0;
            let job = self.jobs.remove(&key)?;
            bytes += job.places.iter().map(|place| place.len).sum::<usize>();
            batch.push(job);
        }
        Some(batch)
    }
}
