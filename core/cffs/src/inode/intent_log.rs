//! The intent log in use: changes are noted in memory, and the notes go to the device with the epoch that has
//! the change, ahead of it (FORMAT: intent log).
//!
//! Offers the notes that the layers above make, [`IntentLog::write`] for an epoch and [`IntentLog::begin`]
//! for a checkpoint. Stands on `format` and `cache`.
//!
//! Invariants: a block is noted once in a generation, before its first change, so the note describes its
//! state at the checkpoint. The notes of an epoch are written in its first phase, and the changes in a later
//! one. A full log is marked as incomplete; after a crash, a full check recovers the volume.

use foldhash::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

mod parts;

pub use parts::Holder;
use parts::Noted;

use super::{ExtentMap, Vnode, VnodeState};
use crate::alloc::{ChangedCluster, Changes, NamelessSpace};
use crate::cache::{Block, Phase, WriteSet};
use crate::format::extent::Extent;
use crate::format::inode::FileType;
use crate::format::intent_log::{self, Position, Record};
use crate::format::sector::{Body, Entry, Sector};
use crate::format::{Checksum, Layout, locator};
use crate::lock::{Mutex, Rank};
use crate::units::{BlockNo, FileBlock, FragNo, FragRun, InodeNo};

#[derive(Default)]
struct State {
    directories: HashMap<InodeNo, Noted>,
    /// Blocks of directories and of the external table, and of indexes of large directories.
    blocks: HashSet<(InodeNo, FileBlock)>,
    /// The bytes of records of parts of directories.
    parts_bytes: u32,
    locator: HashSet<u64>,
    /// Space of files that lost their last name, and may be in use.
    nameless: Vec<FragRun>,
    /// Clusters with changed references: whether each existed at the checkpoint and still exists.
    clusters: HashMap<FragNo, bool>,
    /// Clusters and files whose extents refer to them more or less often than at the checkpoint.
    referrers: HashSet<(FragNo, InodeNo)>,
    /// Changes of references that are not noted yet, with the extents of the file that referred to the
    /// cluster before.
    referred: Vec<(InodeNo, FragRun, u8)>,
    pending: Vec<Record>,
    /// The block of the log that is being filled.
    tail: Vec<u8>,
    /// The position of the sector that is being filled.
    position: Position,
    /// The log says that derived state is being written.
    settling: bool,
    /// More changes than can be remembered; the next write marks the log as incomplete.
    overflown: bool,
    /// The log is incomplete.
    incomplete: bool,
}

/// The most notes in memory. With more changes in one generation, the log is incomplete.
const NOTES_MAX: usize = 1 << 20;
/// With more notes, debug builds do not check all of them after each write.
const CHECKED_MAX: usize = 1 << 12;
/// Approximate memory of a note.
const NOTE_BYTES: u64 = 40;

impl State {
    fn notes(&self) -> usize {
        self.directories.len()
            + self.blocks.len()
            + self.locator.len()
            + self.clusters.len()
            + self.referrers.len()
            + self.pending.len()
    }

    /// Whether a note is useful. Once the log is incomplete, no note is, and earlier ones are dropped.
    fn takes_notes(&mut self) -> bool {
        self.overflown |= self.notes() >= NOTES_MAX;
        if self.overflown || self.incomplete {
            (self.directories, self.blocks) = Default::default();
            (self.locator, self.pending) = Default::default();
            (self.clusters, self.referrers) = Default::default();
        }
        !self.overflown && !self.incomplete
    }
}

/// Changes since the last checkpoint.
pub struct IntentLog {
    layout: Layout,
    checksum: Checksum,
    state: Mutex<State>,
    /// Directories with more bytes of sectors are noted in parts.
    large_dir_bytes: u64,
    /// Changes of references to clusters since the volume was opened.
    reference_changes: AtomicU64,
}

/// The fill level of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// Sectors of the log in use.
    pub sectors: u32,
    /// Sectors available for a generation.
    pub sectors_max: u32,
    /// The log is incomplete.
    pub incomplete: bool,
    /// The number of notes in memory.
    pub notes: usize,
}

impl Fill {
    /// Whether a checkpoint should come before the log is full.
    pub fn is_high(&self) -> bool {
        self.incomplete || self.sectors > self.sectors_max / 2 || self.notes > NOTES_MAX / 2
    }
}

impl IntentLog {
    /// The log of a volume that is clean, or was recovered.
    pub fn new(
        layout: Layout,
        checksum: Checksum,
        generation: u64,
        large_dir_bytes: u64,
    ) -> IntentLog {
        let intent_log = IntentLog {
            layout,
            checksum,
            large_dir_bytes,
            state: Mutex::new(Rank::Leaf, State::default()),
            reference_changes: AtomicU64::new(0),
        };
        intent_log.begin(generation);
        intent_log
    }

    /// A checkpoint was reached: earlier notes are invalid. Call only while no change is in progress.
    pub fn begin(&self, generation: u64) {
        let tail = vec![0; self.layout.block_bytes as usize];
        let position = Position { generation, ..Position::default() };
        *self.state.lock() = State { position, tail, ..State::default() };
    }

    /// How far the log is filled.
    pub fn fill(&self) -> Fill {
        let state = self.state.lock();
        let is_begun = state.tail.iter().any(|byte| *byte != 0);
        Fill {
            sectors: state.position.sequence + u32::from(is_begun),
            sectors_max: self.sectors_max(),
            incomplete: state.incomplete || state.overflown,
            notes: state.notes(),
        }
    }

    /// Approximate memory of the notes, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.state.lock().notes() as u64 * NOTE_BYTES
    }

    /// The limit of that memory, in bytes.
    pub fn memory_bytes_max() -> u64 {
        NOTES_MAX as u64 * NOTE_BYTES
    }

    fn sectors_max(&self) -> u32 {
        self.layout.intent_log_half_blocks * self.layout.block_sectors()
    }

    /// Notes that a block of a container is about to change; `block` is its contents, `None` if it
    /// is new.
    pub fn container(&self, holder: &Holder, position: FileBlock, block: Option<&[u8]>) {
        let mut state = self.state.lock();
        let is_noted = holder.ino != InodeNo::SYSTEM && state.takes_notes();
        if !is_noted || !state.blocks.insert((holder.ino, position)) {
            return;
        }
        let (dir, position) = (holder.ino, position.0 as u32);
        let sectors = block.into_iter().flat_map(|block| {
            block.chunks_exact(self.layout.sector_bytes as usize).map(Sector::new)
        });
        let entries: Vec<_> =
            sectors.flat_map(|sector| sector.entries().collect::<Vec<_>>()).collect();
        if dir == InodeNo::EXTERNAL {
            state.pending.push(Record::Table { position });
        } else if self.is_in_parts(&mut state, holder) {
            let is_dir = |entry: &&Entry<'_>| entry.file_type == FileType::Directory;
            let subdirectories = entries.iter().filter(is_dir).count() as u16;
            let names = entries.len() as u16;
            state.push_part(Record::DirectoryBlock { dir, position, names, subdirectories });
        }
        for entry in entries {
            match entry.body {
                Body::Embedded(record) if dir == InodeNo::EXTERNAL => {
                    let is_dir = entry.file_type == FileType::Directory;
                    let names = if is_dir { 1 } else { record.inode.nlink.get() };
                    let ino = record.inode.number();
                    state.pending.push(Record::External { ino, names });
                }
                Body::Reference { ino, .. } => {
                    state.pending.push(Record::Reference { dir, position, ino });
                }
                Body::Embedded(_) => {}
            }
        }
    }

    /// Notes that a block of the locator table is about to change.
    pub fn locator(&self, position: u64, block: &[u8]) {
        let mut state = self.state.lock();
        if state.takes_notes() && state.locator.insert(position) {
            let used = locator::used_count(block) as u16;
            state.pending.push(Record::Locator { position, used });
        }
    }

    /// Notes that a file is about to lose its last name: after a crash its space is free.
    pub fn nameless(&self, file: &VnodeState) {
        let space = own_space(file, &self.layout);
        if !space.is_empty() {
            self.state.lock().nameless.extend(space);
        }
        self.referred(file, clusters_of(file));
    }

    /// Notes that a file without a name got one: its references to clusters count from now on.
    pub fn named(&self, file: &VnodeState) {
        let mut clusters = clusters_of(file);
        clusters.iter_mut().for_each(|(_, extents)| *extents = 0);
        self.referred(file, clusters);
    }

    /// Notes the clusters to which a file's references change or stop counting, each with the number of
    /// extents that referred to it before. References of files without a name do not count.
    pub fn referred(&self, file: &VnodeState, clusters: Vec<(FragRun, u8)>) {
        if !clusters.is_empty() && file.container.is_some() {
            self.reference_changes.fetch_add(clusters.len() as u64, Ordering::Relaxed);
            let ino = file.inode.ino;
            let changes = clusters.into_iter().map(|(run, before)| (ino, run, before));
            self.state.lock().referred.extend(changes);
        }
    }

    /// How often references of files to clusters changed since the volume was opened.
    pub fn reference_changes(&self) -> u64 {
        self.reference_changes.load(Ordering::Relaxed)
    }

    /// Takes the space of files that lost their last name.
    pub fn take_nameless(&self) -> Vec<FragRun> {
        std::mem::take(&mut self.state.lock().nameless)
    }

    /// The clusters whose references have changed since the last call of [`IntentLog::space`].
    pub fn touched_clusters(&self) -> Vec<FragRun> {
        self.state.lock().referred.iter().map(|(_, run, _)| *run).collect()
    }

    /// Notes which groups and clusters have changed and which runs become free.
    pub fn space(&self, changes: Changes) {
        let Changes { groups, freed, clusters } = changes;
        let state = &mut *self.state.lock();
        let referred = std::mem::take(&mut state.referred);
        if !state.takes_notes() {
            return;
        }
        for ChangedCluster { run, before, now } in clusters {
            // Once a cluster is freed, earlier records of it are irrelevant.
            let remains = before > 0 && now > 0;
            let noted = state.clusters.get(&run.start);
            if noted.is_none_or(|remained| *remained && !remains) {
                state.clusters.insert(run.start, remains);
                let references = if remains { before } else { 0 };
                state.pending.push(Record::Cluster { run, references });
            }
        }
        for (ino, run, extents) in referred {
            let start = run.start;
            if state.clusters.get(&start) == Some(&true) && state.referrers.insert((start, ino)) {
                state.pending.push(Record::Referrer { start, ino, extents });
            }
        }
        let group = |(cg, free)| Record::Group { cg, free };
        state.pending.extend(groups.into_iter().map(group));
        state.pending.extend(freed.into_iter().map(Record::Freed));
    }

    /// Notes that derived state is about to be written for the next checkpoint.
    pub fn settling(&self) {
        let state = &mut *self.state.lock();
        if !std::mem::replace(&mut state.settling, true) {
            state.pending.push(Record::Settling);
        }
    }

    /// Adds the notes to the first phase of an epoch.
    pub fn write(&self, writes: &mut WriteSet) {
        let state = &mut *self.state.lock();
        let mut pending = std::mem::take(&mut state.pending);
        merge_freed(&mut pending);
        if state.overflown && !state.incomplete {
            self.give_up(state);
            self.put_tail(state, writes);
        }
        if pending.is_empty() || state.incomplete {
            return;
        }
        pending.push(Record::End);
        for record in pending {
            while !state.incomplete && !self.append(state, &record) {
                self.next_sector(state, writes);
            }
        }
        self.put_tail(state, writes);
        if cfg!(debug_assertions) && state.notes() <= CHECKED_MAX {
            self.check(state);
        }
    }

    /// The invariants of the log after a write of it.
    fn check(&self, state: &State) {
        assert!(state.position.sequence < self.sectors_max(), "the log is longer than its half");
        assert_eq!(state.tail.len(), self.layout.block_bytes as usize, "one block is being filled");
        assert!(state.pending.is_empty(), "the notes are written");
        assert!(!state.overflown || state.incomplete, "a log that lacks notes says so");
        let is_listed = |(holder, _): &(InodeNo, FileBlock)| {
            *holder == InodeNo::EXTERNAL || state.directories.contains_key(holder)
        };
        assert!(state.blocks.iter().all(is_listed), "the directory of a noted block is noted");
        self.check_parts(state);
        assert!(state.nameless.iter().all(|run| run.len > 0), "an empty run is to become free");
        let remains = |(start, _): &(FragNo, InodeNo)| state.clusters.contains_key(start);
        assert!(state.referrers.iter().all(remains), "the cluster of a noted file is noted");
    }

    fn sector_at<'a>(&self, state: &'a mut State) -> &'a mut [u8] {
        let len = self.layout.sector_bytes as usize;
        let at = (state.position.sequence % self.layout.block_sectors()) as usize * len;
        &mut state.tail[at..at + len]
    }

    fn append(&self, state: &mut State, record: &Record) -> bool {
        let position = state.position;
        let sector = self.sector_at(state);
        if sector[..4] == [0; 4] {
            intent_log::init(sector, position);
        }
        intent_log::append(sector, record)
    }

    /// Continues in the next sector, or marks the log as incomplete if there is none.
    fn next_sector(&self, state: &mut State, writes: &mut WriteSet) {
        if state.position.sequence + 1 == self.sectors_max() {
            self.give_up(state);
            return;
        }
        state.position.previous = intent_log::seal(self.sector_at(state), self.checksum);
        state.position.sequence += 1;
        if state.position.sequence.is_multiple_of(self.layout.block_sectors()) {
            let number = self.block_before(state);
            writes.put_block(Phase::New, number, Arc::new(Block::new(&state.tail)));
            state.tail.fill(0);
        }
    }

    /// Marks the log as incomplete.
    fn give_up(&self, state: &mut State) {
        state.incomplete = true;
        let position = state.position;
        let sector = self.sector_at(state);
        if sector[..4] == [0; 4] {
            intent_log::init(sector, position);
        }
        intent_log::set_incomplete(sector);
    }

    fn block_before(&self, state: &State) -> BlockNo {
        let index = u64::from((state.position.sequence - 1) / self.layout.block_sectors());
        BlockNo(self.layout.intent_log_half(state.position.generation).0 + index)
    }

    fn put_tail(&self, state: &mut State, writes: &mut WriteSet) {
        let _ = intent_log::seal(self.sector_at(state), self.checksum);
        let index = u64::from(state.position.sequence / self.layout.block_sectors());
        let number = BlockNo(self.layout.intent_log_half(state.position.generation).0 + index);
        writes.put_block(Phase::New, number, Arc::new(Block::new(&state.tail)));
    }
}

/// The clusters that a file refers to, with the number of its extents that refer to each.
fn clusters_of(file: &VnodeState) -> Vec<(FragRun, u8)> {
    file.inode.map().map(ExtentMap::all_clusters).unwrap_or_default()
}

/// All space of files without a name.
pub fn nameless_space(nameless: &[Arc<Vnode>], layout: &Layout) -> NamelessSpace {
    let mut space = NamelessSpace::default();
    for vnode in nameless {
        let file = vnode.state.read();
        space.runs.extend(own_space(&file, layout));
        let clusters = clusters_of(&file);
        let each_extent = |(run, extents)| std::iter::repeat_n(run, usize::from(extents));
        space.clusters.extend(clusters.into_iter().flat_map(each_extent));
    }
    space
}

/// All space that a file has for itself, without that of clusters.
fn own_space(file: &VnodeState, layout: &Layout) -> Vec<FragRun> {
    let map = file.inode.map();
    let block = |number| FragRun::new(layout.block_start(number), layout.block_fragments());
    let own = |extent: &&Extent| extent.cluster.is_none();
    let data = map.into_iter().flat_map(|map| map.iter().filter(own).map(Extent::run));
    let tree = map.into_iter().flat_map(|map| map.tree_blocks().map(block));
    data.chain(tree)
        .chain([file.inode.xattr_block, file.promised.xattr_space])
        .filter(|run| run.len > 0)
        .collect()
}

/// Joins adjacent freed runs into one record.
fn merge_freed(records: &mut Vec<Record>) {
    let mut runs: Vec<FragRun> = Vec::new();
    records.retain(|record| match record {
        Record::Freed(run) => {
            runs.push(*run);
            false
        }
        _ => true,
    });
    runs.sort_unstable();
    for run in runs {
        match records.last_mut() {
            Some(Record::Freed(before)) if before.end() == run.start => before.len += run.len,
            _ => records.push(Record::Freed(run)),
        }
    }
}

#[cfg(test)]
mod tests;
