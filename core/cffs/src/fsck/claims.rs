//! The fragments that files claim for extents, extent trees and attribute blocks, checked against each other.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::disk::Place as DiskPlace;
use super::findings::Findings;
use super::fix::{Fix, Patch};
use super::metadata::Metadata;
use super::records::{ClusterUse, MapCheck, PendingMap};
use super::used::UsedMap;
use super::{CheckOptions, Code, Place, Progress};
use crate::format::extent::{Extent, MAP_DEPTH_MAX, Node};
use crate::format::inode::{FileType, InodeFlags, Record};
use crate::format::{Layout, xattr};
use crate::printable::counted;
use crate::units::{BlockNo, CgIndex, FragNo, FragRun, InodeNo};

/// The largest position in a file that an extent can have, in fragments.
const LOGICAL_MAX: u64 = 1 << 40;
/// Blocks of extent trees that are read at once.
const BATCH_BLOCKS: usize = 512;

/// A block of attributes to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingAttributes {
    pub ino: InodeNo,
    pub generation: u32,
    pub run: FragRun,
}

/// A small file whose contents must still be read.
#[derive(Clone, Debug)]
pub(super) struct PendingContents {
    pub ino: InodeNo,
    pub size: u64,
    pub checksum: u32,
    pub extents: Vec<Extent>,
}

/// The use for which a run is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimKind {
    /// Blocks that contain their own address: they cannot be moved.
    Fixed,
    /// Contents.
    Data,
    /// Contents in a cluster, whose run several files may claim.
    Cluster,
}

/// A file that claims fragments that another file claims, too.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sharer {
    pub ino: InodeNo,
    pub kind: ClaimKind,
    pub run: FragRun,
}

struct TreeBlock {
    file: usize,
    block: BlockNo,
    depth: u8,
    logical: u64,
    logical_end: u64,
}

/// Distinguishes records of one inode that claim different space.
pub(super) fn fingerprint(record: &Record<'_>) -> u32 {
    let inline = record.inode.inode_flags().contains(InodeFlags::INLINE);
    let sum = if inline { 0 } else { crc32c::crc32c(record.data) };
    let sum = crc32c::crc32c_append(sum, &record.inode.map_root.get().to_le_bytes());
    crc32c::crc32c_append(sum, &record.inode.xattr_block.get().to_le_bytes())
}

/// The space that the walk has found in use, and the parts of files that must still be read.
pub(super) struct Space {
    pub used: UsedMap,
    /// In recovery: the extents of a file that refer to a cluster, by its first fragment.
    pub referrers: HashMap<(FragNo, InodeNo), u32>,
    /// Runs that were found to have two users.
    pub contested: Vec<FragRun>,
    /// The users of watched runs.
    pub sharers: Vec<Sharer>,
    /// Runs with two users in an earlier round: this round records the users.
    pub watched: Vec<FragRun>,
    pub pending_maps: Vec<PendingMap>,
    pub pending_attributes: Vec<PendingAttributes>,
    pub pending_contents: Vec<PendingContents>,
    /// The uses of clusters that must still be read.
    pub pending_clusters: Vec<ClusterUse>,
    /// Symbolic links whose targets must still be read.
    pub pending_targets: Vec<PendingContents>,
    /// The parts of lost ranges in which files have contents.
    pub lost_contents: Vec<Range<u64>>,
    /// Bitmaps from the device, of the groups in which a repair looked for space.
    pub old_bitmaps: HashMap<CgIndex, Vec<u8>>,
}

impl Space {
    pub fn new(layout: Layout) -> Space {
        Space {
            used: UsedMap::new(layout),
            referrers: HashMap::new(),
            contested: Vec::new(),
            sharers: Vec::new(),
            watched: Vec::new(),
            pending_maps: Vec::new(),
            pending_attributes: Vec::new(),
            pending_contents: Vec::new(),
            pending_clusters: Vec::new(),
            pending_targets: Vec::new(),
            lost_contents: Vec::new(),
            old_bitmaps: HashMap::new(),
        }
    }

    /// Checks that watched runs are in order and disjoint, and that the space in use adds up.
    pub fn check(&self) {
        self.used.check();
        let apart = |pair: &[FragRun]| pair[0].end() <= pair[1].start;
        assert!(self.watched.windows(2).all(apart), "watched runs are in order");
        assert!(self.watched.iter().all(|run| run.len > 0), "a watched run is empty");
        assert!(self.sharers.is_empty() || !self.watched.is_empty(), "sharers are of watched runs");
    }

    /// Forgets the findings of the last round. Watched runs and old bitmaps stay.
    pub fn start_round(&mut self, layout: Layout) {
        let watched = std::mem::take(&mut self.watched);
        let old_bitmaps = std::mem::take(&mut self.old_bitmaps);
        *self = Space { watched, old_bitmaps, ..Space::new(layout) };
    }
}

/// Records the space that files claim, and checks it and its contents.
pub(super) struct Claims<'a, 'c> {
    pub meta: &'a mut Metadata<'c>,
    pub findings: &'a mut Findings,
    pub space: &'a mut Space,
    pub fixes: &'a mut Vec<Fix>,
    pub options: &'a CheckOptions,
    pub progress: &'a dyn Progress,
}

impl Claims<'_, '_> {
    /// Claims the space named in a record: its extents and its attribute block.
    pub(super) fn start_map(&mut self, record: &Record<'_>) -> PendingMap {
        let mut pending = self.meta.describe_map(record);
        let extents: Vec<Extent> = match pending.inline {
            true => Vec::new(),
            false => Extent::decode_list(record.data).collect(),
        };
        for extent in extents {
            self.claim_extent(&mut pending, extent);
        }
        if let Some(run) = record.inode.attribute_run() {
            self.claim_attributes(&mut pending, run);
        }
        pending
    }

    fn claim_extent(&mut self, pending: &mut PendingMap, extent: Extent) {
        let layout = self.meta.layout;
        let is_container = pending.file_type == FileType::Directory || pending.ino.is_system();
        let is_part = is_container && !extent.is_of_blocks(layout.block_fragments());
        let is_foreign = extent.cluster.is_some() && pending.file_type != FileType::Regular;
        let fault = extent
            .fault(&layout)
            .or(is_part.then_some("not of whole blocks"))
            .or(is_foreign.then_some("in a cluster, but not of a regular file"));
        if let Some(what) = fault {
            let fragments = counted(extent.len.into(), "fragment");
            let message = format!("extent of {fragments} at {} is {what}", extent.start);
            self.findings.problem(Code::ExtentRange, Place::Inode(pending.ino), message);
            pending.check.damaged = true;
            return;
        }
        pending.check.extents.push(extent);
        let kind = if extent.cluster.is_some() { ClaimKind::Cluster } else { ClaimKind::Data };
        self.claim(pending.ino, kind, extent.run());
    }

    fn claim_attributes(&mut self, pending: &mut PendingMap, run: FragRun) {
        let layout = self.meta.layout;
        let bytes = u64::from(run.len) * u64::from(layout.fragment_bytes);
        let bytes_max = (xattr::XATTR_LIST_BYTES_MAX + xattr::HEADER_BYTES) as u64
            + u64::from(layout.block_bytes);
        if !layout.is_allocatable(run.start, run.len) || bytes > bytes_max {
            self.lose_attributes(pending.ino, "it is outside of the data area");
            return;
        }
        pending.attribute_fragments = run.len.into();
        self.claim(pending.ino, ClaimKind::Fixed, run);
        let (ino, generation) = (pending.ino, pending.generation);
        self.space.pending_attributes.push(PendingAttributes { ino, generation, run });
    }

    pub(super) fn lose_attributes(&mut self, ino: InodeNo, what: &str) {
        self.findings.problem(
            Code::AttributeBlock,
            Place::Inode(ino),
            format!("attribute block: {what}"),
        );
        let patch = Patch { drop_attribute_block: true, ..Patch::default() };
        self.fixes.push(Fix::Patch(ino, patch));
        self.fixes.push(Fix::Again);
    }

    /// Marks a valid run as used; records it if another file claims it, too.
    fn claim(&mut self, ino: InodeNo, kind: ClaimKind, run: FragRun) {
        let is_watched = !self.space.watched.is_empty() && {
            let after = self.space.watched.partition_point(|watched| watched.end() <= run.start);
            self.space.watched.get(after).is_some_and(|watched| watched.start < run.end())
        };
        if is_watched {
            self.space.sharers.push(Sharer { ino, kind, run });
        }
        let is_free = match kind {
            ClaimKind::Cluster => {
                if self.meta.epoch_min.is_some() {
                    *self.space.referrers.entry((run.start, ino)).or_default() += 1;
                }
                self.space.used.claim_cluster(run)
            }
            ClaimKind::Fixed | ClaimKind::Data => self.space.used.claim(run),
        };
        if !is_free && !is_watched {
            self.space.contested.push(run);
        }
    }

    /// Reads the extent trees of the files, level by level in the order of the disk.
    pub(super) fn read_trees(&mut self, files: &mut [PendingMap]) {
        let mut seen: HashSet<BlockNo> = HashSet::new();
        let mut level = Vec::new();
        for (file, pending) in files.iter_mut().enumerate() {
            if let Some((block, depth)) = pending.root {
                let root = TreeBlock { file, block, depth, logical: 0, logical_end: LOGICAL_MAX };
                self.enter(files_at(pending), root, &mut seen, &mut level);
            }
        }
        while !level.is_empty() {
            level.sort_unstable_by_key(|item| item.block);
            let mut next = Vec::new();
            for batch in level.chunks(BATCH_BLOCKS) {
                let places: Vec<DiskPlace> =
                    batch.iter().map(|item| self.meta.block_place(item.block)).collect();
                let blobs = self.meta.disk.read_many(&places);
                for (item, bytes) in batch.iter().zip(blobs) {
                    self.read_node(&mut files[item.file], item, &bytes, &mut seen, &mut next);
                }
            }
            level = next;
        }
    }

    /// Claims a block of a tree that is about to be read.
    fn enter(
        &mut self,
        pending: &mut PendingMap,
        item: TreeBlock,
        seen: &mut HashSet<BlockNo>,
        level: &mut Vec<TreeBlock>,
    ) {
        let layout = self.meta.layout;
        let start = layout.block_start(BlockNo(item.block.0.min(layout.blocks)));
        let run = FragRun::new(start, layout.block_fragments());
        if item.depth > MAP_DEPTH_MAX || !layout.is_allocatable(run.start, run.len) {
            self.lose_tree_block(pending, item.block, "it is outside of the data area");
        } else if !seen.insert(item.block) {
            self.lose_tree_block(pending, item.block, "the tree refers to it twice");
        } else {
            self.claim(pending.ino, ClaimKind::Fixed, run);
            pending.check.tree_blocks.push(item.block);
            level.push(item);
        }
    }

    fn lose_tree_block(&mut self, pending: &mut PendingMap, block: BlockNo, what: &str) {
        let message = format!("extent block {block}: {what}");
        self.findings.problem(Code::ExtentBlock, Place::Inode(pending.ino), message);
        pending.check.damaged = true;
    }

    fn read_node(
        &mut self,
        pending: &mut PendingMap,
        item: &TreeBlock,
        bytes: &[u8],
        seen: &mut HashSet<BlockNo>,
        next: &mut Vec<TreeBlock>,
    ) {
        let (ino, generation) = (pending.ino, pending.generation);
        match Node::decode(bytes, ino, generation, item.depth, item.block, self.meta.checksum) {
            Err(error) => {
                self.meta.disk.contradict(&[self.meta.block_place(item.block)], &error);
                self.findings.problem(Code::ExtentBlock, Place::Inode(ino), error.to_string());
                pending.check.damaged = true;
            }
            Ok(Node::Leaf(extents)) if extents.is_empty() => {
                self.lose_tree_block(pending, item.block, "it is empty");
            }
            Ok(Node::Inner(children)) if children.is_empty() => {
                self.lose_tree_block(pending, item.block, "it is empty");
            }
            Ok(Node::Leaf(extents)) => {
                for extent in extents {
                    if extent.logical < item.logical || extent.logical_end() > item.logical_end {
                        self.lose_tree_block(pending, item.block, "an extent is in the wrong leaf");
                    }
                    self.claim_extent(pending, extent);
                }
            }
            Ok(Node::Inner(children)) => {
                let ends = children.iter().skip(1).map(|child| child.logical);
                let ends: Vec<u64> = ends.chain([item.logical_end]).collect();
                debug_assert!(item.depth > 0, "a leaf has no children");
                for (child, logical_end) in children.iter().zip(ends) {
                    let item = TreeBlock {
                        file: item.file,
                        block: child.block,
                        depth: item.depth - 1,
                        logical: child.logical,
                        logical_end,
                    };
                    self.enter(pending, item, seen, next);
                }
            }
        }
    }

    /// Reads the tree, if there is one, now.
    pub(super) fn finish_at_once(&mut self, pending: PendingMap) -> MapCheck {
        let mut pending = [pending];
        if pending[0].root.is_some() {
            self.read_trees(&mut pending);
        }
        let [pending] = pending;
        self.finish_map(pending)
    }

    /// Sorts the extents, and checks them as a whole.
    pub(super) fn finish_map(&mut self, mut pending: PendingMap) -> MapCheck {
        let fragments = self.map_fragments(&pending);
        let check = &mut pending.check;
        if check.extents.len() > 1 {
            let by_age = check.extents.clone();
            check.extents.sort_by_key(|extent| extent.logical);
            let overlap = |pair: &[Extent]| pair[0].logical_end() > pair[1].logical;
            if check.extents.windows(2).any(overlap) {
                check.extents = without_overlap(&by_age);
                check.damaged = true;
                let place = Place::Inode(pending.ino);
                self.findings.problem(Code::ExtentOverlap, place, "two extents map the same part");
            }
        }
        let in_order = |pair: &[Extent]| pair[0].logical_end() <= pair[1].logical;
        debug_assert!(pending.check.extents.windows(2).all(in_order), "inode {}", pending.ino);
        self.check_space(&mut pending);
        let ino = pending.ino;
        if pending.file_type == FileType::Regular && !ino.is_system() {
            self.note_lost_contents(ino, &pending.check.extents);
            self.remember_clusters(&pending);
        }
        let check = pending.check;
        if check.damaged {
            self.fixes.push(Fix::SetMap(ino, check.extents.clone()));
        } else if fragments != pending.fragments_recorded {
            let recorded = counted(pending.fragments_recorded, "fragment");
            let message = format!("the inode records {recorded}, and has {fragments}");
            self.findings.problem(Code::FragmentCount, Place::Inode(ino), message);
            let patch = Patch { fragments: Some(fragments), ..Patch::default() };
            self.fixes.push(Fix::Patch(ino, patch));
        }
        check
    }

    fn map_fragments(&self, pending: &PendingMap) -> u64 {
        let data: u64 = pending.check.extents.iter().map(|extent| u64::from(extent.len)).sum();
        let blocks = pending.check.tree_blocks.len() as u64;
        data + blocks * u64::from(self.meta.layout.block_fragments()) + pending.attribute_fragments
    }

    /// Checks that the file has the space that its type needs, and none that it cannot have.
    fn check_space(&mut self, pending: &mut PendingMap) {
        let check = &mut pending.check;
        match pending.file_type {
            FileType::Regular | FileType::Directory => {}
            FileType::Symlink if pending.inline => {}
            FileType::Symlink => {
                let end = self.meta.layout.fragments_for(pending.size);
                let covered = check.extents.iter().try_fold(0, |at, extent| {
                    (extent.logical == at && !extent.unwritten).then(|| extent.logical_end())
                });
                if pending.size == 0 || covered.is_none_or(|covered| covered < end) {
                    let message = "the target of the symbolic link is not there in full";
                    self.findings.problem(
                        Code::UnexpectedSpace,
                        Place::Inode(pending.ino),
                        message,
                    );
                    check.damaged = false;
                    self.fixes.push(Fix::Forget(pending.ino));
                }
            }
            _ if check.extents.is_empty() && pending.size == 0 => {}
            _ => {
                let message = "a special file has a size or extents";
                self.findings.problem(Code::UnexpectedSpace, Place::Inode(pending.ino), message);
                check.extents.clear();
                check.damaged = true;
                let patch = Patch { size: Some(0), ..Patch::default() };
                self.fixes.push(Fix::Patch(pending.ino, patch));
            }
        }
    }

    /// Frees the space that a record claimed.
    pub(super) fn release_record(&mut self, record: &Record<'_>) {
        let layout = self.meta.layout;
        let ino = record.inode.number();
        let check = self.meta.collect_map(record);
        let is_unread = self.space.pending_maps.iter().any(|pending| pending.ino == ino);
        let own = if is_unread {
            // The blocks of its tree were not claimed yet.
            self.space.pending_maps.retain(|pending| pending.ino != ino);
            Extent::decode_list(record.data).collect()
        } else {
            for block in &check.tree_blocks {
                let start = layout.block_start(*block);
                self.release(FragRun::new(start, layout.block_fragments()));
            }
            check.extents
        };
        for extent in own {
            match extent.cluster {
                None => self.release(extent.run()),
                // One that cannot be was not claimed.
                Some(_) if extent.fault(&layout).is_some() => {}
                Some(_) => {
                    self.space.used.release_cluster(extent.run());
                    if let Some(extents) = self.space.referrers.get_mut(&(extent.start, ino)) {
                        *extents = extents.saturating_sub(1);
                    }
                }
            }
        }
        if let Some(run) = record.inode.attribute_run() {
            self.release(run);
        }
        self.space.pending_attributes.retain(|pending| pending.ino != ino);
        self.space.pending_contents.retain(|pending| pending.ino != ino);
        self.space.pending_clusters.retain(|pending| pending.ino != ino);
        self.space.pending_targets.retain(|pending| pending.ino != ino);
    }

    fn release(&mut self, run: FragRun) {
        if self.meta.layout.is_allocatable(run.start, run.len) {
            self.space.used.release(run);
        }
    }
}

/// Helps the borrow checker to see that a file and the list of blocks are different.
fn files_at(pending: &mut PendingMap) -> &mut PendingMap {
    pending
}

/// The extents in the order of the file, each without the parts that an earlier one in `by_age`
/// maps.
fn without_overlap(by_age: &[Extent]) -> Vec<Extent> {
    let mut kept: Vec<Extent> = Vec::new();
    for extent in by_age {
        let mut at = extent.logical;
        let mut pieces = Vec::new();
        let first = kept.partition_point(|other| other.logical_end() <= extent.logical);
        for other in kept[first..].iter().take_while(|o| o.logical < extent.logical_end()) {
            if other.logical > at {
                pieces.push(extent.part(at..other.logical));
            }
            at = at.max(other.logical_end());
        }
        if at < extent.logical_end() {
            pieces.push(extent.part(at..extent.logical_end()));
        }
        for piece in pieces {
            let position = kept.partition_point(|other| other.logical < piece.logical);
            kept.insert(position, piece);
        }
    }
    kept
}
