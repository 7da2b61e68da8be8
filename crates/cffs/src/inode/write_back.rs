//! Placement at write-back: what an epoch does with the changed pages and inodes of one file.
//!
//! Called with the volume's changes held still. A small file goes whole to a new place beside its
//! neighbours, with a checksum; a page of a large file goes where it lies, or to a new place if it
//! has none that fits. Pages of containers and of the locator table are whole blocks.

use std::ops::Range;
use std::sync::Arc;

use super::map::TreeWriter;
use super::{
    Attributes, Changed, Content, DIRECT_EXTENTS_MAX, DIRECT_EXTENTS_MIN, EncodedInode, Locked,
    Mapping, Store, Vnode, VnodeState, body_bytes_max,
};
use crate::alloc::{Kind, Owner, Request};
use crate::cache::{Block, Phase, WriteSet};
use crate::error::{Error, Result};
use crate::format::extent::{EXTENT_BYTES, Node};
use crate::format::inode::{DISK_INODE_BYTES, FileType, LINK_TAG_BYTES, Record};
use crate::format::sector::promised_bytes;
use crate::format::{checksum, xattr};
use crate::runs;
use crate::trace::Causes;
use crate::units::{BlockNo, EpochNo, FileBlock, FileFrag, FragNo, FragRun, InodeNo, Key};

/// Beside whose files a file is placed.
#[derive(Clone, Copy, Debug)]
pub struct Neighbours {
    /// Those of its placement key, or urgent ones.
    pub owner: Owner,
    /// Whether files of the owner were placed in an earlier epoch; the allocator knows them then.
    pub grown: bool,
    /// Whether an fsync asks for the epoch: it has few files, and the next one finds the holes that they
    /// leave.
    pub asked: bool,
}

impl Store {
    /// Places changed pages of a regular file or symbolic link, all of them if it is small, and adds them
    /// to the epoch. Returns those that are in flight from now on.
    pub fn place_file(
        &self,
        file: &mut Locked<'_>,
        positions: Vec<FileBlock>,
        neighbours: Neighbours,
        writes: &mut WriteSet,
        epoch: EpochNo,
    ) -> Result<Vec<FileBlock>> {
        if positions.is_empty() {
            return Ok(positions);
        }
        // Each of the pages that stay may have been promised a block.
        let staying = (file.pages.dirty_count() - positions.len()) as u64;
        let kept = file.promised.fragments.min(staying * u64::from(self.layout.block_fragments()));
        let reserved = std::mem::replace(&mut file.promised.fragments, kept) - kept;
        self.alloc.unreserve(reserved);
        // A file that was large when its pages changed has no promise for all of them; it had no
        // checksum either, so that it may be overwritten where it lies.
        let needed: u64 = self.dirty_runs(file).iter().map(|run| run.end - run.start).sum();
        let small = file.inode.size <= self.small_bytes_max() && self.is_owned(file);
        if small && needed <= reserved {
            self.place_small(file, neighbours, writes)?;
        } else {
            self.place_pages(file, &positions, neighbours, writes)?;
        }
        file.promised.lacks_tail &= staying > 0;
        file.changes.note(Changed::Contents);
        self.count_dirty(file, |file| {
            for position in &positions {
                file.pages.start_write(*position, epoch);
            }
        });
        Ok(positions)
    }

    /// Whether every mapped page of a small file is dirty in memory, so that it can move as a whole.
    fn is_owned(&self, file: &VnodeState) -> bool {
        let fragments = u64::from(self.layout.block_fragments());
        let Some(map) = file.inode.map() else { return false };
        self.features.content_checksum
            && map.iter().all(|extent| {
                let pages = extent.logical / fragments..extent.logical_end().div_ceil(fragments);
                !extent.unwritten
                    && pages.into_iter().all(|page| file.pages.is_dirty(FileBlock(page)))
            })
    }

    fn place_small(
        &self,
        file: &mut Locked<'_>,
        neighbours: Neighbours,
        writes: &mut WriteSet,
    ) -> Result<()> {
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
        let mapped = file
            .inode
            .map()
            .map_or(0, |map| map.iter().map(|extent| u64::from(extent.len)).sum::<u64>());
        let replaces = neighbours.asked && mapped >= self.layout.fragments_for(size);
        self.free_mapped(file, FileFrag::ALL);
        for run in self.dirty_runs(file) {
            self.place_run(file, run, Kind::Small, neighbours, replaces, writes)?;
        }
        file.inode.content_checksum = (file.inode.file_type == FileType::Regular).then_some(sum);
        file.verified.store(true, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    }

    /// Gives back what is mapped in a range. The device has the inode lead there until it has it as it is
    /// in memory, so it has to go with the epoch.
    fn free_mapped(&self, file: &mut Locked<'_>, range: Range<FileFrag>) {
        let Some(map) = file.inode.map_mut() else { return };
        let runs = map.remove(range);
        if !runs.is_empty() {
            file.changes.most = Changed::Anything;
        }
        runs.into_iter().for_each(|run| self.alloc.free(run));
    }

    /// The dirty pages as runs of the file's fragments, cut off at its end.
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
        &self,
        file: &mut Locked<'_>,
        run: Range<u64>,
        kind: Kind,
        neighbours: Neighbours,
        replaces: bool,
        writes: &mut WriteSet,
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
            self.write_range(file, at, place, writes);
            at += u64::from(place.len);
        }
        Ok(())
    }

    /// Adds a run of the file's fragments, all in dirty pages, to the epoch.
    fn write_range(&self, file: &VnodeState, first: u64, place: FragRun, writes: &mut WriteSet) {
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
                    writes.note_causes(self.layout.block_of(start), causes);
                }
                if len == page.len() && start.0.is_multiple_of(per_block) {
                    writes.put_block(Phase::New, self.layout.block_of(start), page.clone());
                } else {
                    let bytes = &page[into..into + len];
                    writes.put_fragments(&self.layout, start, bytes);
                }
            }
            at = to;
        }
    }

    fn place_pages(
        &self,
        file: &mut Locked<'_>,
        positions: &[FileBlock],
        neighbours: Neighbours,
        writes: &mut WriteSet,
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
            if !file.changes.moves && self.write_in_place(file, page.clone(), writes) {
                continue;
            }
            // A page that lies there in part moves as a whole: it was the tail, and grew.
            self.free_mapped(file, whole);
            runs::append(&mut unplaced, page, 0);
        }
        for run in unplaced {
            let kind = self.kind_of(file.inode.size);
            self.place_run(file, run, kind, neighbours, false, writes)?;
        }
        Ok(())
    }

    /// Adds a page to the epoch where it lies, if all of it is mapped.
    fn write_in_place(
        &self,
        file: &mut Locked<'_>,
        page: Range<u64>,
        writes: &mut WriteSet,
    ) -> bool {
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
            self.write_range(file, at, run, writes);
        }
        true
    }

    /// Gives the changed pages of a container or of the locator table that have no block one each,
    /// beside the files of `file`'s key. Returns the positions of the new ones.
    pub fn place_blocks(
        &self,
        file: &mut Locked<'_>,
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
            // What is new lies at the head of its files, what has grown behind itself.
            let before = map.last_before(logical).filter(|_| grown);
            let rest = (unplaced.len() - i) as u64 * u64::from(fragments);
            let room = self.alloc.room_to_grow(map.mapped()).max(rest);
            let goal = before.map(|before| before.run().end());
            if file.promised.blocks > 0 {
                file.promised.blocks -= 1;
                self.alloc.unreserve_blocks(1);
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
            file.changes.note(Changed::Times);
        }
        Ok(unplaced)
    }

    /// The inode as it fits into `room` bytes of its sector. What does not fit beside it goes to an
    /// attribute block or to the extent tree, which are added to the epoch.
    pub fn encode_to_fit(
        &self,
        file: &mut Locked<'_>,
        room: usize,
        writes: &mut WriteSet,
    ) -> Result<EncodedInode> {
        // Pages of derived state may still be without a place, and change the map later.
        let waiting = file.promised.blocks;
        self.settle_spill(file);
        let known = file.inode.known_attributes();
        // What is on the device alone has a block of its own, and stays there.
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
        let room = room.min(body_bytes_max(&self.layout));
        let beside = smallest + list_len <= room;
        self.put_attributes(file, !beside && list_len > 0, writes)?;
        let attributes = if beside { list_len } else { 0 };
        let area = room.saturating_sub(DISK_INODE_BYTES + attributes);
        let direct = (area.min(data_max) / EXTENT_BYTES).max(DIRECT_EXTENTS_MIN);
        let (ino, generation) = (file.inode.ino, file.inode.generation);
        let is_dir = file.inode.is_dir();
        let causes = file.changes.causes.clone();
        if let Some(map) = file.inode.map_mut()
            && !map.fits(direct)
        {
            // A directory's tree lies among its sectors, since reading these needs it.
            let last = map.last_before(FileFrag::END).filter(|_| is_dir);
            let goal = last.map(|last| last.run().end());
            let mut writer = NodeWriter { store: self, ino, generation, goal, writes, causes };
            map.write_tree(direct, self.layout.block_bytes, &mut writer)?;
            file.spilled = self.epoch();
        }
        if waiting > 0 {
            // If there is none to be had, the blocks that are set aside have to do.
            let _ = self.promise_spill(file, waiting, true);
        }
        let tags = &tags[..tags.len().min(tags_fit)];
        Ok(file.inode.encode(beside, tags, self.layout.block_fragments()))
    }

    /// The attributes of an inode without a name go to a block of their own if they are more than
    /// others have beside the inode, so that they need not stay in memory.
    pub fn encode_nameless(&self, vnode: &Arc<Vnode>, writes: &mut WriteSet) -> Result<()> {
        let file = &mut Locked::new(vnode);
        self.settle_spill(file);
        let len = file.inode.known_attributes().map_or(0, Attributes::encoded_len);
        if file.changes.xattrs {
            self.put_attributes(file, len > body_bytes_max(&self.layout), writes)?;
        }
        file.set_encoded();
        Ok(())
    }

    /// Writes attributes that lie `apart` to a block, unless they are there; of others that block is
    /// freed.
    fn put_attributes(
        &self,
        file: &mut Locked<'_>,
        apart: bool,
        writes: &mut WriteSet,
    ) -> Result<()> {
        if !apart || file.changes.xattrs || file.inode.xattr_block.len == 0 {
            self.alloc.free(std::mem::take(&mut file.inode.xattr_block));
            if apart {
                let list = file.inode.attributes().encode();
                self.write_xattr_block(file, &list, writes)?;
            }
        }
        self.alloc.free(std::mem::take(&mut file.promised.xattr_space));
        file.changes.xattrs = false;
        Ok(())
    }

    /// Takes space for a list of attributes of this many bytes before the list is changed: it has to
    /// lie in one piece, and a full volume may have none when the epoch comes. Up to a block there
    /// always is one.
    pub fn take_xattr_space(&self, file: &mut Locked<'_>, list_bytes: usize) -> Result<()> {
        let bytes = (xattr::HEADER_BYTES + list_bytes) as u64;
        let len = self.layout.fragments_for(bytes) as u32;
        self.promise_spill(file, 0, false)?;
        if bytes <= u64::from(self.layout.block_bytes) || len <= file.promised.xattr_space.len {
            return Ok(());
        }
        self.alloc.reserve(len.into(), file.spender)?;
        self.alloc.unreserve(len.into());
        let run = self.place_xattrs(file, len)?;
        self.alloc.free(std::mem::replace(&mut file.promised.xattr_space, run));
        Ok(())
    }

    /// Places attributes of `len` fragments, in one piece.
    fn place_xattrs(&self, file: &VnodeState, len: u32) -> Result<FragRun> {
        let block = self.layout.block_fragments();
        let owner = Owner::Key(file.inode.placement_key());
        let place = |kind, len| {
            self.alloc.place(&Request {
                kind,
                owner,
                len,
                goal: None,
                grown: false,
                replaces: false,
                room: 0,
            })
        };
        match place(Kind::Small, len) {
            Ok(run) if run.len == len => return Ok(run),
            Ok(short) => self.alloc.free(short),
            Err(Error::NoSpace) => {}
            Err(error) => return Err(error),
        }
        if len > block {
            return Err(Error::NoSpace);
        }
        Ok(self.cut(place(Kind::Metadata, block)?, len))
    }

    /// The head of a run; the rest is given back.
    fn cut(&self, run: FragRun, len: u32) -> FragRun {
        self.alloc.free(FragRun::new(FragNo(run.start.0 + u64::from(len)), run.len - len));
        FragRun::new(run.start, len)
    }

    fn write_xattr_block(
        &self,
        file: &mut Locked<'_>,
        list: &[u8],
        writes: &mut WriteSet,
    ) -> Result<()> {
        let fragment_bytes = self.layout.fragment_bytes as usize;
        let len = (xattr::HEADER_BYTES + list.len()).div_ceil(fragment_bytes) as u32;
        let run = if file.promised.xattr_space.len >= len {
            self.cut(std::mem::take(&mut file.promised.xattr_space), len)
        } else {
            self.place_xattrs(file, len)?
        };
        let inode = &mut file.inode;
        let total = len as usize * fragment_bytes;
        let bytes =
            xattr::encode_block(list, inode.ino, inode.generation, run.start, total, self.checksum);
        inode.xattr_block = run;
        file.spilled = self.epoch();
        writes.put_fragments(&self.layout, run.start, &bytes);
        let last = self.layout.block_of(FragNo(run.end().0 - 1));
        for number in self.layout.block_of(run.start).0..=last.0 {
            writes.note_causes(BlockNo(number), &file.changes.causes);
        }
        Ok(())
    }
}

struct NodeWriter<'a> {
    store: &'a Store,
    ino: InodeNo,
    generation: u32,
    goal: Option<FragNo>,
    writes: &'a mut WriteSet,
    causes: Causes,
}

impl TreeWriter for NodeWriter<'_> {
    fn allocate(&mut self) -> Result<BlockNo> {
        let run = self.store.alloc.place(&Request {
            kind: Kind::Metadata,
            owner: Owner::Key(Key(self.ino.0)),
            len: self.store.layout.block_fragments(),
            goal: self.goal,
            grown: false,
            replaces: false,
            room: 0,
        })?;
        Ok(self.store.layout.block_of(run.start))
    }

    fn write(&mut self, block: BlockNo, depth: u8, node: &Node) {
        let layout = &self.store.layout;
        let checksum = self.store.checksum;
        let bytes =
            node.encode(self.ino, self.generation, depth, block, layout.block_bytes, checksum);
        self.writes.put_block(Phase::New, block, Arc::new(Block::new(&bytes)));
        self.writes.note_causes(block, &self.causes);
    }

    fn free(&mut self, block: BlockNo) {
        let layout = &self.store.layout;
        let run = FragRun::new(layout.block_start(block), layout.block_fragments());
        self.store.alloc.free(run);
    }
}
