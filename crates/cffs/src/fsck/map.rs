//! The fragments that a file's extents, extent tree and attribute block claim, and whether they may.

use std::collections::HashSet;

use super::disk::Place as DiskPlace;
use super::editor::{Fix, Patch};
use super::{Checker, Code, Place};
use crate::format::extent::{Extent, MAP_DEPTH_MAX, Node};
use crate::format::inode::{FileType, InodeFlags, Record};
use crate::format::xattr;
use crate::units::{BlockNo, FragNo, FragRun, InodeNo};

/// The largest position in a file that an extent can have, in fragments.
const LOGICAL_MAX: u64 = 1 << 40;
/// Blocks of extent trees that are read at once.
const BATCH_BLOCKS: usize = 512;

/// A file's extents as far as they are valid.
#[derive(Clone, Debug, Default)]
pub(super) struct MapCheck {
    /// In the order of the file, once finished; before, those of the inode first.
    pub extents: Vec<Extent>,
    pub tree_blocks: Vec<BlockNo>,
    pub damaged: bool,
}

/// A file whose extents are being collected.
#[derive(Clone, Debug)]
pub(super) struct PendingMap {
    pub ino: InodeNo,
    pub generation: u32,
    pub file_type: FileType,
    pub inline: bool,
    pub size: u64,
    pub fragments_recorded: u64,
    pub attribute_fragments: u64,
    pub root: Option<(BlockNo, u8)>,
    pub check: MapCheck,
}

/// A block of attributes to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingAttributes {
    pub ino: InodeNo,
    pub generation: u32,
    pub run: FragRun,
}

/// A small file whose contents are to be read.
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
    /// Blocks that know their own address: they cannot be moved.
    Fixed,
    /// Contents.
    Data,
}

/// A file that claims fragments which another claims too.
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

/// Distinguishes two records of one inode that claim different space.
pub(super) fn fingerprint(record: &Record<'_>) -> u32 {
    let inline = record.inode.inode_flags().contains(InodeFlags::INLINE);
    let sum = if inline { 0 } else { crc32c::crc32c(record.data) };
    let sum = crc32c::crc32c_append(sum, &record.inode.map_root.get().to_le_bytes());
    crc32c::crc32c_append(sum, &record.inode.xattr_block.get().to_le_bytes())
}

impl Checker<'_> {
    /// Claims what a record itself holds: its extents and its attribute block.
    pub(super) fn start_map(&mut self, record: &Record<'_>) -> PendingMap {
        let mut pending = self.describe_map(record);
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

    fn describe_map(&self, record: &Record<'_>) -> PendingMap {
        let inode = record.inode;
        let root = inode.map_root.get();
        PendingMap {
            ino: inode.number(),
            generation: inode.generation.get(),
            file_type: inode.file_type().unwrap_or(FileType::Regular),
            inline: inode.inode_flags().contains(InodeFlags::INLINE),
            size: inode.size.get(),
            fragments_recorded: inode.fragments.get(),
            attribute_fragments: 0,
            root: (root != 0).then_some((BlockNo(root), inode.map_depth)),
            check: MapCheck::default(),
        }
    }

    fn claim_extent(&mut self, pending: &mut PendingMap, extent: Extent) {
        let fits = self.layout.is_allocatable(extent.start, extent.len)
            && extent.logical_end() <= self.layout.file_fragments_max();
        let is_container = pending.file_type == FileType::Directory || pending.ino.is_system();
        let whole = !is_container || extent.is_of_blocks(self.layout.block_fragments());
        if !fits || !whole {
            let what = if fits { "not of whole blocks" } else { "outside of the data area" };
            let message =
                format!("extent of {} fragments at {} is {what}", extent.len, extent.start);
            self.problem(Code::ExtentRange, Place::Inode(pending.ino), message);
            pending.check.damaged = true;
            return;
        }
        pending.check.extents.push(extent);
        self.claim(pending.ino, ClaimKind::Data, extent.run());
    }

    fn claim_attributes(&mut self, pending: &mut PendingMap, run: FragRun) {
        let bytes = u64::from(run.len) * u64::from(self.layout.fragment_bytes);
        let bytes_max = (xattr::XATTR_LIST_BYTES_MAX + xattr::HEADER_BYTES) as u64
            + u64::from(self.layout.block_bytes);
        if !self.layout.is_allocatable(run.start, run.len) || bytes > bytes_max {
            self.lose_attributes(pending.ino, "it is outside of the data area");
            return;
        }
        pending.attribute_fragments = run.len.into();
        self.claim(pending.ino, ClaimKind::Fixed, run);
        let (ino, generation) = (pending.ino, pending.generation);
        self.walk.pending_attributes.push(PendingAttributes { ino, generation, run });
    }

    pub(super) fn lose_attributes(&mut self, ino: InodeNo, what: &str) {
        self.problem(Code::AttributeBlock, Place::Inode(ino), format!("attribute block: {what}"));
        let patch = Patch { drop_attribute_block: true, ..Patch::default() };
        self.walk.fixes.push(Fix::Patch(ino, patch));
        self.walk.fixes.push(Fix::Again);
    }

    /// Marks a valid run as used; notes it if something else claims it too.
    fn claim(&mut self, ino: InodeNo, kind: ClaimKind, run: FragRun) {
        let is_watched = !self.watched.is_empty() && {
            let after = self.watched.partition_point(|watched| watched.end() <= run.start);
            self.watched.get(after).is_some_and(|watched| watched.start < run.end())
        };
        if is_watched {
            self.walk.sharers.push(Sharer { ino, kind, run });
        }
        if !self.walk.used.claim(run) && !is_watched {
            self.walk.contested.push(run);
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
                    batch.iter().map(|item| self.block_place(item.block)).collect();
                let blobs = self.disk.read_many(&places);
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
        let start = self.layout.block_start(BlockNo(item.block.0.min(self.layout.blocks)));
        let run = FragRun::new(start, self.layout.block_fragments());
        if item.depth > MAP_DEPTH_MAX || !self.layout.is_allocatable(run.start, run.len) {
            self.lose_tree_block(pending, item.block, "it is outside of the data area");
        } else if !seen.insert(item.block) {
            self.lose_tree_block(pending, item.block, "the tree leads to it twice");
        } else {
            self.claim(pending.ino, ClaimKind::Fixed, run);
            pending.check.tree_blocks.push(item.block);
            level.push(item);
        }
    }

    fn lose_tree_block(&mut self, pending: &mut PendingMap, block: BlockNo, what: &str) {
        let message = format!("extent block {block}: {what}");
        self.problem(Code::ExtentBlock, Place::Inode(pending.ino), message);
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
        match Node::decode(bytes, ino, generation, item.depth, item.block, self.checksum) {
            Err(error) => {
                self.problem(Code::ExtentBlock, Place::Inode(ino), error.to_string());
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

    /// Puts the extents in order, and checks what concerns all of them.
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
                self.problem(Code::ExtentOverlap, place, "two extents map the same part");
            }
        }
        self.check_space(&mut pending);
        let ino = pending.ino;
        let check = pending.check;
        if check.damaged {
            self.walk.fixes.push(Fix::SetMap(ino, check.extents.clone()));
        } else if fragments != pending.fragments_recorded {
            let recorded = pending.fragments_recorded;
            let message = format!("the inode says {recorded} fragments, it has {fragments}");
            self.problem(Code::FragmentCount, Place::Inode(ino), message);
            let patch = Patch { fragments: Some(fragments), ..Patch::default() };
            self.walk.fixes.push(Fix::Patch(ino, patch));
        }
        check
    }

    fn map_fragments(&self, pending: &PendingMap) -> u64 {
        let data: u64 = pending.check.extents.iter().map(|extent| u64::from(extent.len)).sum();
        let blocks = pending.check.tree_blocks.len() as u64;
        data + blocks * u64::from(self.layout.block_fragments()) + pending.attribute_fragments
    }

    /// Checks that the file has the space that its type needs, and none that it cannot have.
    fn check_space(&mut self, pending: &mut PendingMap) {
        let check = &mut pending.check;
        match pending.file_type {
            FileType::Regular | FileType::Directory => {}
            FileType::Symlink if pending.inline => {}
            FileType::Symlink => {
                let end = self.layout.fragments_for(pending.size);
                let covered = check.extents.iter().try_fold(0, |at, extent| {
                    (extent.logical == at && !extent.unwritten).then(|| extent.logical_end())
                });
                if pending.size == 0 || covered.is_none_or(|covered| covered < end) {
                    let message = "the target of the symbolic link is not there in full";
                    self.problem(Code::UnexpectedSpace, Place::Inode(pending.ino), message);
                    check.damaged = false;
                    self.walk.fixes.push(Fix::Forget(pending.ino));
                }
            }
            _ if check.extents.is_empty() && pending.size == 0 => {}
            _ => {
                let message = "a special file has a size or extents";
                self.problem(Code::UnexpectedSpace, Place::Inode(pending.ino), message);
                check.extents.clear();
                check.damaged = true;
                let patch = Patch { size: Some(0), ..Patch::default() };
                self.walk.fixes.push(Fix::Patch(pending.ino, patch));
            }
        }
    }

    /// The extents of a record that was checked before, and the blocks of its tree, without
    /// claiming them.
    pub(super) fn collect_map(&mut self, record: &Record<'_>) -> MapCheck {
        let mut pending = self.describe_map(record);
        if !pending.inline {
            pending.check.extents = Extent::decode_list(record.data).collect();
        }
        let Some((root, depth)) = pending.root else {
            return pending.check;
        };
        let mut seen = HashSet::new();
        let mut level = vec![(root, depth)];
        while let Some((block, depth)) = level.pop() {
            if depth > MAP_DEPTH_MAX || block.0 >= self.layout.blocks || !seen.insert(block) {
                continue;
            }
            let place = self.block_place(block);
            let bytes = self.disk.read(place.offset, place.len);
            let (ino, generation) = (pending.ino, pending.generation);
            match Node::decode(&bytes, ino, generation, depth, block, self.checksum) {
                Ok(Node::Leaf(extents)) => pending.check.extents.extend(extents),
                Ok(Node::Inner(children)) => {
                    level.extend(children.iter().map(|child| (child.block, depth - 1)));
                }
                Err(_) => continue,
            }
            pending.check.tree_blocks.push(block);
        }
        pending.check
    }

    /// Frees what a record claimed.
    pub(super) fn release_record(&mut self, record: &Record<'_>) {
        let ino = record.inode.number();
        let check = self.collect_map(record);
        let is_unread = self.walk.pending_maps.iter().any(|pending| pending.ino == ino);
        let own = if is_unread {
            // The blocks of its tree were not claimed yet.
            self.walk.pending_maps.retain(|pending| pending.ino != ino);
            Extent::decode_list(record.data).collect()
        } else {
            for block in &check.tree_blocks {
                let start = self.layout.block_start(*block);
                self.release(FragRun::new(start, self.layout.block_fragments()));
            }
            check.extents
        };
        for extent in own {
            self.release(extent.run());
        }
        if let Some(run) = record.inode.attribute_run() {
            self.release(run);
        }
        self.walk.pending_attributes.retain(|pending| pending.ino != ino);
        self.walk.pending_contents.retain(|pending| pending.ino != ino);
        self.walk.pending_targets.retain(|pending| pending.ino != ino);
    }

    fn release(&mut self, run: FragRun) {
        if self.layout.is_allocatable(run.start, run.len) {
            self.walk.used.release(run);
        }
    }
}

/// Helps the borrow checker to see that a file and the list of blocks are apart.
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
        let cut = |from: u64, to: u64| Extent {
            logical: from,
            start: FragNo(extent.start.0 + (from - extent.logical)),
            len: (to - from) as u32,
            unwritten: extent.unwritten,
        };
        let first = kept.partition_point(|other| other.logical_end() <= extent.logical);
        for other in kept[first..].iter().take_while(|o| o.logical < extent.logical_end()) {
            if other.logical > at {
                pieces.push(cut(at, other.logical));
            }
            at = at.max(other.logical_end());
        }
        if at < extent.logical_end() {
            pieces.push(cut(at, extent.logical_end()));
        }
        for piece in pieces {
            let position = kept.partition_point(|other| other.logical < piece.logical);
            kept.insert(position, piece);
        }
    }
    kept
}
