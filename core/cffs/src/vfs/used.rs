//! The files that are read together, as the volume observes them: regrouping can move them together.
//!
//! The files that a process reads are a stream. Two files of a stream with few others between them are a
//! pair; nearer files give it more weight. Pairs that occur often enough are joined to chains.
//!
//! ```text
//!   reads ──► streams ──► pairs, with counts ──► chains ──► admin::regroup::chains
//! ```
//!
//! Pairs of neighbours on the device are not counted, since one request reads both: a reader in the order of
//! directories adds nothing. The tables are of fixed size and are only in memory.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::ops::Range;

use foldhash::HashMap;

use crate::format::inode::FileType;
use crate::inode::{InodeCache, VnodeState, keys};
use crate::lock::{Mutex, Rank};
use crate::trace::process;
use crate::units::InodeNo;

#[cfg(test)]
mod tests;

/// A file forms a pair with each of this many files before it in its stream.
const WINDOW: usize = 4;
/// Streams that are followed at once. The one that was idle for longest makes room for a new one.
const STREAMS_MAX: usize = 64;
/// The most pairs: seven eighths of a hash table of 2^16 places, which has 1.6 MiB.
const PAIRS_MAX: usize = 7 << 13;
/// The count of a pair after one file was read right after the other, once.
const NEXT: u16 = WINDOW as u16;
/// The count from which on a pair is part of a chain.
const TOGETHER: u16 = 3 * NEXT;

/// The observed reads of a volume.
pub(super) struct Used {
    /// Files with at most this many blocks between them are neighbours.
    gap_blocks: u64,
    per_block: u64,
    bytes_max: u64,
    observed: Mutex<Observed>,
}

/// A file that is read from its beginning.
#[derive(Clone, Debug)]
struct Read {
    ino: InodeNo,
    /// The blocks from its first to its last one; `None` if it has a learned key. The pairs of such files are
    /// counted although they are neighbours, so that a chain stays whole.
    blocks: Option<Range<u64>>,
}

#[derive(Default)]
struct Stream {
    /// The last files, the newest first.
    last: VecDeque<Read>,
    /// The count of all reads at its last one.
    at: u64,
}

struct Observed {
    reads: u64,
    streams: HashMap<u32, Stream>,
    pairs: Pairs,
}

/// Pairs of files, the lower number first, with their counts.
#[derive(Default)]
struct Pairs {
    counts: HashMap<(InodeNo, InodeNo), u16>,
    /// How often a count reached [`TOGETHER`].
    found: u64,
}

impl Used {
    /// Nothing was read yet.
    pub fn new(inodes: &InodeCache) -> Used {
        let tuning = inodes.cache.tuning();
        let mut pairs = Pairs::default();
        pairs.counts.reserve(PAIRS_MAX);
        let observed = Observed { reads: 0, streams: HashMap::default(), pairs };
        Used {
            gap_blocks: tuning.reading.gap_bytes / u64::from(inodes.layout.block_bytes),
            per_block: u64::from(inodes.layout.block_fragments()),
            bytes_max: tuning.placing.medium_bytes_max,
            observed: Mutex::new(Rank::Leaf, observed),
        }
    }

    /// Records that the process of this thread reads a file from its beginning. Files that regrouping does
    /// not move are left out.
    pub fn note(&self, file: &VnodeState) {
        let inode = &file.inode;
        let Some(map) = inode.map().filter(|_| inode.file_type == FileType::Regular) else {
            return;
        };
        let is_clustered = || map.iter().any(|extent| extent.cluster.is_some());
        let is_hinted = inode.key.is_some_and(keys::is_hint);
        if map.is_empty() || inode.size > self.bytes_max || is_hinted || is_clustered() {
            return;
        }
        let runs = || map.iter().map(|extent| extent.run());
        let first = runs().map(|run| run.start.0).min().unwrap_or(0) / self.per_block;
        let last = runs().map(|run| run.end().0).max().unwrap_or(0).div_ceil(self.per_block);
        let blocks = (!inode.key.is_some_and(keys::is_learned)).then_some(first..last);
        self.observed.lock().note(process(), Read { ino: inode.ino, blocks }, self.gap_blocks);
    }

    /// The number of pairs that became parts of chains. While this is the same, no chain is new.
    pub fn found(&self) -> u64 {
        self.observed.lock().pairs.found
    }

    /// The files that are read together, chain by chain.
    pub fn chains(&self) -> Vec<Vec<InodeNo>> {
        self.observed.lock().pairs.chains()
    }
}

impl Observed {
    fn note(&mut self, process: u32, read: Read, gap_blocks: u64) {
        self.reads += 1;
        if self.streams.len() >= STREAMS_MAX && !self.streams.contains_key(&process) {
            let idle = self.streams.iter().min_by_key(|(_, stream)| stream.at);
            let idle = idle.map(|(process, _)| *process);
            idle.and_then(|process| self.streams.remove(&process));
        }
        let stream = self.streams.entry(process).or_default();
        stream.at = self.reads;
        if stream.last.iter().any(|before| before.ino == read.ino) {
            return;
        }
        for (between, before) in stream.last.iter().enumerate() {
            if !read.is_near(before, gap_blocks) {
                self.pairs.add(before.ino, read.ino, NEXT - between as u16);
            }
        }
        stream.last.truncate(WINDOW - 1);
        stream.last.push_front(read);
    }
}

impl Read {
    /// Whether one request reads this file and the other.
    fn is_near(&self, other: &Read, gap_blocks: u64) -> bool {
        let (Some(one), Some(other)) = (&self.blocks, &other.blocks) else { return false };
        one.start.max(other.start).saturating_sub(one.end.min(other.end)) <= gap_blocks
    }
}

impl Pairs {
    fn add(&mut self, one: InodeNo, other: InodeNo, weight: u16) {
        let pair = (one.min(other), one.max(other));
        if self.counts.len() >= PAIRS_MAX && !self.counts.contains_key(&pair) {
            self.make_room();
        }
        let count = self.counts.entry(pair).or_default();
        let before = *count;
        *count = before.saturating_add(weight);
        self.found += u64::from(before < TOGETHER && *count >= TOGETHER);
    }

    /// Halves all counts and drops pairs that were seen about once, until half of the table is free.
    fn make_room(&mut self) {
        while self.counts.len() > PAIRS_MAX / 2 {
            // Removing pairs one by one would leave tombstones, for which the table could grow.
            let halved = self.counts.drain().map(|(pair, count)| (pair, count / 2));
            let kept: Vec<_> = halved.filter(|(_, count)| *count >= NEXT).collect();
            self.counts.extend(kept);
        }
    }

    fn chains(&self) -> Vec<Vec<InodeNo>> {
        let found = self.counts.iter().filter(|(_, count)| **count >= TOGETHER);
        let mut found: Vec<_> = found.map(|(pair, count)| (Reverse(*count), *pair)).collect();
        found.sort_unstable();
        let found: Vec<_> = found.into_iter().map(|(_, pair)| pair).collect();
        joined(&found)
    }
}

/// Joins pairs to chains, in the order of the pairs. Each file is in one chain and has at most two neighbours
/// there. The chains are in the order of their lowest numbers, which is about that of a walk.
fn joined(pairs: &[(InodeNo, InodeNo)]) -> Vec<Vec<InodeNo>> {
    let mut files: Vec<InodeNo> = pairs.iter().flat_map(|(one, other)| [*one, *other]).collect();
    files.sort_unstable();
    files.dedup();
    let index = |ino: &InodeNo| files.partition_point(|file| file < ino);
    let mut neighbours = vec![[None; 2]; files.len()];
    // For each end of a chain, the other end.
    let mut ends: Vec<usize> = (0..files.len()).collect();
    for (one, other) in pairs {
        let (one, other) = (index(one), index(other));
        if neighbours[one][1].is_some() || neighbours[other][1].is_some() || ends[one] == other {
            continue;
        }
        for (file, next) in [(one, other), (other, one)] {
            let slot = usize::from(neighbours[file][0].is_some());
            neighbours[file][slot] = Some(next);
        }
        let (far, other_far) = (ends[one], ends[other]);
        (ends[far], ends[other_far]) = (other_far, far);
    }
    let mut chains = Vec::new();
    for first in 0..files.len() {
        if neighbours[first][1].is_some() || ends[first] <= first {
            continue;
        }
        let mut chain = vec![files[first]];
        let (mut before, mut next) = (first, neighbours[first][0]);
        while let Some(file) = next {
            chain.push(files[file]);
            next = neighbours[file].into_iter().flatten().find(|next| *next != before);
            before = file;
        }
        chains.push(chain);
    }
    chains.sort_by_key(|chain| chain.iter().min().copied());
    chains
}
