//! Units: files that are read one after the other, as many as one request reads.

use std::ops::Range;

use super::cost::Cost;
use crate::format::Layout;
use crate::inode::{InodeCache, VnodeState};
use crate::units::{InodeNo, Key, SectorIndex};

/// A file that may be moved.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub ino: InodeNo,
    /// Its contents.
    pub bytes: u64,
    fragments: u32,
    /// The blocks in which they are.
    pub blocks: Vec<Range<u64>>,
    /// Its rank in the new run: the order in which its directory, or a walk, lists it.
    pub rank: usize,
    /// The sector of its inode.
    pub sector: Option<SectorIndex>,
    /// The learned key that it gets when it is moved.
    pub learned: Option<Key>,
}

impl Candidate {
    /// The candidate for a file with contents in places of their own; `None` if they exceed a unit, or are in
    /// clusters, which already hold neighbours together and would be expanded.
    pub fn new(layout: &Layout, file: &VnodeState) -> Option<Candidate> {
        let map = file.inode.map()?;
        if map.iter().any(|extent| extent.cluster.is_some()) {
            return None;
        }
        let per_block = u64::from(layout.block_fragments());
        let blocks = map.iter().map(|extent| {
            let run = extent.run();
            run.start.0 / per_block..run.end().0.div_ceil(per_block)
        });
        Some(Candidate {
            ino: file.inode.ino,
            bytes: file.inode.size,
            fragments: u32::try_from(map.mapped()).ok()?,
            blocks: blocks.collect(),
            rank: 0,
            sector: file.container.map(|container| container.sector),
            learned: None,
        })
    }

    fn first_block(&self) -> u64 {
        self.blocks.first().map_or(0, |run| run.start)
    }
}

/// Files that are read together.
#[derive(Clone, Debug)]
pub(super) struct Unit {
    pub files: Vec<Candidate>,
    pub fragments: u32,
    fragments_max: u32,
    per_block: u64,
    cost: Cost,
    ranks: usize,
}

impl Unit {
    pub fn new(inodes: &InodeCache) -> Unit {
        let cost = Cost::of(inodes);
        let per_block = u64::from(inodes.layout.block_fragments());
        let fragments_max = u32::try_from(cost.request * per_block).unwrap_or(u32::MAX);
        Unit { files: Vec::new(), fragments: 0, fragments_max, per_block, cost, ranks: 0 }
    }

    /// The files of a key, in the order of the device, in which a reader of all of them reads them. The units
    /// of a large key that is already stored in order are then in order, too. Each file gets its rank first.
    pub fn in_device_order(&mut self, mut files: Vec<Candidate>) -> Vec<Candidate> {
        self.rank(&mut files);
        files.sort_by_key(Candidate::first_block);
        files
    }

    fn rank(&mut self, files: &mut [Candidate]) {
        for file in files {
            self.ranks += 1;
            file.rank = self.ranks;
        }
    }

    /// Whether the unit has no room for another file.
    pub fn is_full_with(&self, file: &Candidate) -> bool {
        !self.files.is_empty() && self.fragments + file.fragments > self.fragments_max
    }

    pub fn add(&mut self, file: Candidate) {
        self.fragments += file.fragments;
        self.files.push(file);
    }

    /// Adds a file that follows the others in the new run.
    pub fn append(&mut self, mut file: Candidate) {
        self.rank(std::slice::from_mut(&mut file));
        self.add(file);
    }

    /// The files so far; the next unit begins.
    pub fn take(&mut self) -> Unit {
        let files = std::mem::take(&mut self.files);
        let fragments = std::mem::take(&mut self.fragments);
        Unit { files, fragments, ..*self }
    }

    /// The first files and the others, about as many blocks each; itself if one of them were shorter than the
    /// break-even of the device. Reading longer ones one by one costs less than twice as much as reading them
    /// in one run, so they are not moved again when such a run is free.
    pub fn halves(mut self) -> Result<[Unit; 2], Unit> {
        let (mut middle, mut first) = (0, 0);
        for file in &self.files {
            if first + file.fragments > self.fragments / 2 {
                break;
            }
            (middle, first) = (middle + 1, first + file.fragments);
        }
        let second = self.fragments - first;
        if u64::from(first.min(second)) < self.cost.access * self.per_block {
            return Err(self);
        }
        let files = self.files.split_off(middle);
        let rest = Unit { files, fragments: second, ..self };
        Ok([Unit { fragments: first, ..self }, rest])
    }

    /// The accesses that reading the files takes now, and side by side; `None` if that is not `gain` times as
    /// cheap.
    pub fn gain(&self, gain: u64) -> Option<(u64, u64)> {
        let runs: Vec<Range<u64>> =
            self.files.iter().flat_map(|file| file.blocks.clone()).collect();
        let blocks = u64::from(self.fragments).div_ceil(self.per_block);
        self.cost.gain(runs, blocks, gain).filter(|_| blocks > 0)
    }

    pub fn in_order_of_device(&self) -> Vec<&Candidate> {
        let mut files: Vec<&Candidate> = self.files.iter().collect();
        files.sort_by_key(|file| file.first_block());
        files
    }
}
