//! Write-back: places the changed pages of a file, and encodes its inode.
//!
//! Runs with the gate closed. A small file is written as a whole to a new place near the files of its key,
//! with a checksum. A page of a large file is overwritten in place, or written to a new place if it has none
//! or is in a cluster. Pages of containers and of the locator table are whole blocks.

use std::ops::Range;
use std::sync::Arc;

use super::map::TreeWriter;
use super::{
    Attributes, Content, DIRECT_EXTENTS_MAX, DIRECT_EXTENTS_MIN, DirtyLevel, EncodedInode,
    InodeCache, Mapping, SpacePlan, Vnode, VnodeGuard, VnodeState, body_bytes_max,
};
use crate::alloc::{Allocator, Kind, Owner, Request};
use crate::cache::{Block, Phase, WriteSet};
use crate::error::Result;
use crate::format::extent::{EXTENT_BYTES, Node};
use crate::format::inode::{DISK_INODE_BYTES, FileType, LINK_TAG_BYTES, Record};
use crate::format::sector::promised_bytes;
use crate::format::{LiveLayout, checksum, xattr};
use crate::runs;
use crate::trace::Causes;
use crate::units::{BlockNo, EpochNo, FileBlock, FileFrag, FragNo, FragRun, InodeNo, Key};

/// The files near which a file is placed.
#[derive(Clone, Copy, Debug)]
pub struct Neighbours {
    /// The files of its placement key, or urgent ones.
    pub owner: Owner,
    /// Whether the owner has grown ([`Request::grown`]).
    pub grown: bool,
    /// Whether the epoch is for an fsync. Such an epoch has few files, and the next one fills the holes that
    /// they leave.
    pub asked: bool,
}

/// The write-back of one epoch: places files, encodes inodes, and collects the writes.
pub struct WriteBack<'a> {
    /// The inodes.
    pub inodes: &'a InodeCache,
    /// The epoch that is written.
    pub epoch: EpochNo,
    /// The writes so far.
    pub writes: WriteSet,
    pub(super) layout: &'a LiveLayout,
    pub(super) alloc: &'a Allocator,
    pub(super) space: SpacePlan<'a>,
}

impl<'a> WriteBack<'a> {
    /// The write-back of the open epoch, which adds to these writes.
    pub fn new(inodes: &'a InodeCache, writes: WriteSet) -> WriteBack<'a> {
        WriteBack {
            inodes,
            epoch: inodes.epoch(),
            writes,
            layout: &inodes.layout,
            alloc: &inodes.alloc,
            space: inodes.space(),
        }
    }

    /// Places changed pages of a regular file or symbolic link, all of them if it is small, and adds them
    /// to the epoch. Returns those that are in flight from now on.
    pub fn place_file(
        &mut self,
        file: &mut VnodeGuard<'_>,
        positions: Vec<FileBlock>,
        neighbours: Neighbours,
    ) -> Result<Vec<FileBlock>> {
        if positions.is_empty() {
            return Ok(positions);
        }
        let staying = file.pages.dirty_count() - positions.len();
        let reserved = self.take_promise(file, positions.len());
        // A file that was large when its pages changed has promises for some of them only. It had no checksum
        // either, so it may be overwritten in place.
        let needed: u64 = self.dirty_runs(file).iter().map(|run| run.end - run.start).sum();
        let small = file.inode.size <= self.layout.small_bytes_max() && self.is_owned(file);
        if small && needed <= reserved {
            self.place_small(file, neighbours)?;
        } else {
            self.place_pages(file, &positions, neighbours)?;
        }
        file.promised.lacks_tail &= staying > 0;
        self.start_writes(file, &positions);
        Ok(positions)
    }

    /// Withdraws the promises to this count of a file's changed pages, and returns how many fragments they
    /// had.
    pub(super) fn take_promise(&self, file: &mut VnodeGuard<'_>, pages: usize) -> u64 {
        // Each of the pages that stay may have been promised a block.
        let staying = (file.pages.dirty_count() - pages) as u64;
        let kept = file.promised.fragments.min(staying * u64::from(self.layout.block_fragments()));
        let reserved = std::mem::replace(&mut file.promised.fragments, kept) - kept;
        self.alloc.withdraw(reserved);
        reserved
    }

    pub(super) fn start_writes(&self, file: &mut VnodeGuard<'_>, positions: &[FileBlock]) {
        file.changes.note(DirtyLevel::Contents);
        self.inodes.count_dirty(file, |file| {
            for position in positions {
                file.pages.start_write(*position, self.epoch);
            }
        });
        file.settle_placed(self.layout);
    }

    /// Whether all mapped pages of a small file are dirty in memory, so that the whole file can move.
    pub fn is_owned(&self, file: &VnodeState) -> bool {
        let fragments = u64::from(self.layout.block_fragments());
        let Some(map) = file.inode.map() else { return false };
        self.inodes.features.content_checksum
            && map.iter().all(|extent| {
                let pages = extent.logical / fragments..extent.logical_end().div_ceil(fragments);
                !extent.unwritten
                    && pages.into_iter().all(|page| file.pages.is_dirty(FileBlock(page)))
            })
    }

    fn place_small(&mut self, file: &mut VnodeGuard<'_>, neighbours: Neighbours) -> Result<()> {
        let size = file.inode.size;
        let block_bytes = u64::from(self.layout.block_bytes);
        let mut sum = 0;
        for position in 0..size.div_ceil(block_bytes) {
            let len = (size - position * block_bytes).min(block_bytes) as usize;
            sum = match file.pages.get(FileBlock(position)) {
                Some(page) => checksum::contents(sum, &page[..len]),
                None => checksum::contents(sum, &vec![0; len]),
            };
        }
        let extents = file.inode.map().into_iter().flat_map(|map| map.iter());
        let own = extents.filter(|extent| extent.cluster.is_none());
        let mapped: u64 = own.map(|extent| u64::from(extent.len)).sum();
        let replaces = neighbours.asked && mapped >= self.layout.fragments_for(size);
        self.free_mapped(file, FileFrag::ALL);
        for run in self.dirty_runs(file) {
            self.place_run(file, run, Kind::Small, neighbours, replaces)?;
        }
        file.inode.content_checksum = (file.inode.file_type == FileType::Regular).then_some(sum);
        file.verified.store(true, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    /// Frees the fragments of a range. The inode on the device points there until it is rewritten, so the
    /// inode must be written in this epoch.
    pub(super) fn free_mapped(&self, file: &mut VnodeGuard<'_>, range: Range<FileFrag>) {
        let Some(map) = file.inode.map_mut() else { return };
        let removed = map.remove(range);
        if !removed.is_empty() {
            file.changes.level = DirtyLevel::Anything;
        }
        self.space.free(file, removed);
    }

    /// The dirty pages as runs of the file's fragments, up to its end.
    fn dirty_runs(&self, file: &VnodeState) -> Vec<Range<u64>> {
        let end = self.layout.fragments_for(file.inode.size);
        let mut runs: Vec<Range<u64>> = Vec::new();
        for position in file.pages.dirty_in(FileBlock::ALL) {
            let Range { start, end: page_end } = self.layout.file_frags(position);
            let page = start.0..page_end.0.min(end);
            if !page.is_empty() {
                runs::append(&mut runs, page, 0);
            }
        }
        runs
    }

    fn place_run(
        &mut self,
        file: &mut VnodeGuard<'_>,
        run: Range<u64>,
        kind: Kind,
        neighbours: Neighbours,
        replaces: bool,
    ) -> Result<()> {
        let mut at = run.start;
        while at < run.end {
            let len = (run.end - at).min(1 << 20) as u32;
            let before = file.inode.map().and_then(|map| map.last_before(FileFrag(at)));
            let place = self.alloc.place(&Request {
                kind,
                owner: neighbours.owner,
                len,
                goal: before.map(|before| before.run().end()),
                grown: neighbours.grown,
                replaces,
                room: 0,
            })?;
            if let Some(map) = file.inode.map_mut() {
                map.insert(FileFrag(at), place, false);
            }
            self.write_range(file, at, place);
            at += u64::from(place.len);
        }
        Ok(())
    }

    /// Adds a run of the file's fragments, all in dirty pages, to the epoch.
    fn write_range(&mut self, file: &VnodeState, first: u64, place: FragRun) {
        let per_block = u64::from(self.layout.block_fragments());
        let fragment_bytes = self.layout.fragment_bytes as usize;
        let mut at = first;
        let end = first + u64::from(place.len);
        while at < end {
            let position = at / per_block;
            let to = ((position + 1) * per_block).min(end);
            let start = FragNo(place.start.0 + (at - first));
            if let Some(page) = file.pages.get(FileBlock(position)) {
                let into = (at % per_block) as usize * fragment_bytes;
                let len = (to - at) as usize * fragment_bytes;
                if let Some(causes) = file.pages.causes(FileBlock(position)) {
                    self.writes.note_causes(self.layout.block_of(start), causes);
                }
                if len == page.len() && start.0.is_multiple_of(per_block) {
                    self.writes.put_block(Phase::New, self.layout.block_of(start), page.clone());
                } else {
                    let bytes = &page[into..into + len];
                    self.writes.put_fragments(self.layout, start, bytes);
                }
            }
            at = to;
        }
    }

    fn place_pages(
        &mut self,
        file: &mut VnodeGuard<'_>,
        positions: &[FileBlock],
        neighbours: Neighbours,
    ) -> Result<()> {
        file.inode.content_checksum = None;
        let end = self.layout.fragments_for(file.inode.size);
        let mut unplaced: Vec<Range<u64>> = Vec::new();
        for position in positions {
            let whole = self.layout.file_frags(*position);
            let page = whole.start.0..whole.end.0.min(end.max(1));
            if page.is_empty() {
                continue;
            }
            if !file.changes.moves && self.write_in_place(file, page.clone()) {
                continue;
            }
            // A page that is mapped in part moves as a whole: it was the tail, and grew.
            self.free_mapped(file, whole);
            runs::append(&mut unplaced, page, 0);
        }
        for run in unplaced {
            let kind = self.space.kind_of(file.inode.size);
            self.place_run(file, run, kind, neighbours, false)?;
        }
        Ok(())
    }

    /// Adds a page to the epoch in place, if all of it is mapped.
    fn write_in_place(&mut self, file: &mut VnodeGuard<'_>, page: Range<u64>) -> bool {
        let Some(map) = file.inode.map_mut() else { return false };
        let mut pieces = Vec::new();
        let mut at = page.start;
        while at < page.end {
            let Mapping::Mapped { start, len, unwritten } = map.find(FileFrag(at)) else {
                return false;
            };
            let len = len.min(page.end - at) as u32;
            pieces.push((at, FragRun::new(start, len), unwritten));
            at += u64::from(len);
        }
        for (at, run, unwritten) in &pieces {
            if *unwritten {
                map.remove(FileFrag(*at)..FileFrag(*at).plus(run.len.into()));
                map.insert(FileFrag(*at), *run, false);
            }
        }
        for (at, run, _) in pieces {
            self.write_range(file, at, run);
        }
        true
    }

    /// Gives a block to each changed page of a container or of the locator table that has none, near the
    /// files of `file`'s key. Returns the positions of these pages.
    pub fn place_blocks(
        &self,
        file: &mut VnodeGuard<'_>,
        range: Range<FileBlock>,
    ) -> Result<Vec<FileBlock>> {
        let fragments = self.layout.block_fragments();
        let owner = Owner::Key(file.inode.placement_key());
        let Some(map) = file.inode.map() else { return Ok(Vec::new()) };
        let grown = !map.is_empty();
        let is_unplaced = |position: &FileBlock| map.block_at(*position, fragments).is_none();
        let unplaced: Vec<FileBlock> = file.pages.dirty_in(range).filter(is_unplaced).collect();
        for (i, position) in unplaced.iter().enumerate() {
            let logical = self.layout.file_frag(*position);
            let Some(map) = file.inode.map() else { break };
            // A container's first blocks are placed before the files of its key, later ones after the first.
            let before = map.last_before(logical).filter(|_| grown);
            let rest = (unplaced.len() - i) as u64 * u64::from(fragments);
            // A walk of the tree reads the unused part of the room with the sectors of other directories; a
            // reader of this directory alone seeks from one run to the next.
            let part = self.inodes.cache.tuning().placing.sectors_part;
            let room = (map.mapped() / part).max(rest);
            let goal = before.map(|before| before.run().end());
            if file.promised.blocks > 0 {
                file.promised.blocks -= 1;
                self.alloc.withdraw_blocks(1);
            }
            let run = self.alloc.place(&Request {
                kind: Kind::Metadata,
                owner,
                len: fragments,
                goal,
                grown: false,
                replaces: false,
                room: u32::try_from(room).unwrap_or(u32::MAX),
            })?;
            if let Some(map) = file.inode.map_mut() {
                map.insert(logical, run, false);
            }
            file.changes.note(DirtyLevel::Times);
        }
        Ok(unplaced)
    }

    /// Encodes the inode for `room` bytes of its sector. Attributes and extents that do not fit go to an
    /// attribute block and to the extent tree, which are added to the epoch.
    pub fn encode_to_fit(
        &mut self,
        file: &mut VnodeGuard<'_>,
        room: usize,
    ) -> Result<EncodedInode> {
        // Pages of derived state may have no place yet, and will change the map later.
        let waiting = file.promised.blocks;
        self.space.settle_spill(file);
        let known = file.inode.known_attributes();
        // Attributes that are not in memory have a block of their own, and stay there.
        let list_len = known.map_or(usize::MAX / 2, Attributes::encoded_len);
        let (data_min, data_max) = match &file.inode.content {
            Content::Inline(bytes) => (bytes.len(), bytes.len()),
            Content::Map(_) => {
                (DIRECT_EXTENTS_MIN * EXTENT_BYTES, DIRECT_EXTENTS_MAX * EXTENT_BYTES)
            }
        };
        let tags = file.motion.tags.clone();
        let smallest = Record::encoded_len(data_min, 0, 0);
        let tags_fit = room.saturating_sub(smallest) / LINK_TAG_BYTES;
        let is_external = file.container.is_some_and(|place| place.file == InodeNo::EXTERNAL);
        let promised = if is_external { promised_bytes(tags.iter().copied()) } else { 0 };
        let room = room.saturating_sub(tags.len().min(tags_fit) * LINK_TAG_BYTES + promised);
        let room = room.max(smallest);
        let room = room.min(body_bytes_max(self.layout));
        let is_embedded = smallest + list_len <= room;
        self.put_attributes(file, !is_embedded && list_len > 0)?;
        let attributes = if is_embedded { list_len } else { 0 };
        let area = room.saturating_sub(DISK_INODE_BYTES + attributes);
        let direct = (area.min(data_max) / EXTENT_BYTES).max(DIRECT_EXTENTS_MIN);
        let (ino, generation) = (file.inode.ino, file.inode.generation);
        let is_dir = file.inode.is_dir();
        let causes = file.changes.causes.clone();
        if let Some(map) = file.inode.map_mut()
            && !map.fits(direct)
        {
            // A directory's tree is placed among its sectors, because a reader of these needs it.
            let last = map.last_before(FileFrag::END).filter(|_| is_dir);
            let goal = last.map(|last| last.run().end());
            let mut writer = NodeWriter {
                inodes: self.inodes,
                ino,
                generation,
                goal,
                writes: &mut self.writes,
                causes,
            };
            map.write_tree(direct, self.layout.block_bytes, &mut writer)?;
            file.spilled = self.epoch;
        }
        if waiting > 0 {
            // If no more blocks can be promised, the pool must be enough.
            let _ = self.space.promise_spill(file, waiting, true);
        }
        let tags = &tags[..tags.len().min(tags_fit)];
        Ok(file.inode.encode(is_embedded, tags, self.layout.block_fragments()))
    }

    /// Writes the attributes of an inode without a name to a block if they would not fit into a sector, so
    /// that they need not stay in memory.
    pub fn encode_nameless(&mut self, vnode: &Arc<Vnode>) -> Result<()> {
        let file = &mut VnodeGuard::new(vnode);
        self.space.settle_spill(file);
        let len = file.inode.known_attributes().map_or(0, Attributes::encoded_len);
        if file.changes.xattrs {
            self.put_attributes(file, len > body_bytes_max(self.layout))?;
        }
        file.set_encoded();
        Ok(())
    }

    /// Writes attributes to a block if they are `apart` and the block is not up to date. Frees the block if
    /// they are in the sector.
    fn put_attributes(&mut self, file: &mut VnodeGuard<'_>, apart: bool) -> Result<()> {
        if !apart || file.changes.xattrs || file.inode.xattr_block.len == 0 {
            self.alloc.free(std::mem::take(&mut file.inode.xattr_block));
            if apart {
                let list = file.inode.attributes().encode();
                self.write_xattr_block(file, &list)?;
            }
        }
        self.alloc.free(std::mem::take(&mut file.promised.xattr_space));
        file.changes.xattrs = false;
        Ok(())
    }

    fn write_xattr_block(&mut self, file: &mut VnodeGuard<'_>, list: &[u8]) -> Result<()> {
        let fragment_bytes = self.layout.fragment_bytes as usize;
        let len = (xattr::HEADER_BYTES + list.len()).div_ceil(fragment_bytes) as u32;
        let run = if file.promised.xattr_space.len >= len {
            self.space.cut_off(std::mem::take(&mut file.promised.xattr_space), len)
        } else {
            self.space.place_xattrs(file, len)?
        };
        let inode = &mut file.inode;
        let total = len as usize * fragment_bytes;
        let bytes = xattr::encode_block(
            list,
            inode.ino,
            inode.generation,
            run.start,
            total,
            self.inodes.checksum,
        );
        inode.xattr_block = run;
        file.spilled = self.epoch;
        self.writes.put_fragments(self.layout, run.start, &bytes);
        let last = self.layout.block_of(FragNo(run.end().0 - 1));
        for number in self.layout.block_of(run.start).0..=last.0 {
            self.writes.note_causes(BlockNo(number), &file.changes.causes);
        }
        Ok(())
    }
}

struct NodeWriter<'a> {
    inodes: &'a InodeCache,
    ino: InodeNo,
    generation: u32,
    goal: Option<FragNo>,
    writes: &'a mut WriteSet,
    causes: Causes,
}

impl TreeWriter for NodeWriter<'_> {
    fn allocate(&mut self) -> Result<BlockNo> {
        let run = self.inodes.alloc.place(&Request {
            kind: Kind::Metadata,
            owner: Owner::Key(Key(self.ino.0)),
            len: self.inodes.layout.block_fragments(),
            goal: self.goal,
            grown: false,
            replaces: false,
            room: 0,
        })?;
        Ok(self.inodes.layout.block_of(run.start))
    }

    fn write(&mut self, block: BlockNo, depth: u8, node: &Node) {
        let layout = &self.inodes.layout;
        let checksum = self.inodes.checksum;
        let bytes =
            node.encode(self.ino, self.generation, depth, block, layout.block_bytes, checksum);
        self.writes.put_block(Phase::New, block, Arc::new(Block::new(&bytes)));
        self.writes.note_causes(block, &self.causes);
    }

    fn free(&mut self, block: BlockNo) {
        let layout = &self.inodes.layout;
        let run = FragRun::new(layout.block_start(block), layout.block_fragments());
        self.inodes.alloc.free(run);
    }
}
