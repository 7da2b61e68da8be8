//! Repairs of the truth, made in the overlay.

use super::sectors::OwnedRecord;
use super::{Checker, Code, Place};
use crate::clock::Timestamp;
use crate::format::extent::{Child, EXTENT_BYTES, Extent, Node, node_capacity};
use crate::format::index::INDEX_OFFSET_BYTES;
use crate::format::inode::{DATA_AREA_BYTES_MIN, InodeFlags};
use crate::format::sector::{self, Body};
use crate::units::{CgIndex, Container, FragNo, FragRun, InodeNo, SectorIndex};

/// More changes of a directory than an epoch that a crash took can have.
const CHANGES_LOST_MAX: u64 = 1 << 32;

/// A repair. Those that the walk's own record cannot follow are followed by another round.
#[derive(Clone, Debug)]
pub(super) enum Fix {
    /// Sets fields of an inode.
    Patch(InodeNo, Patch),
    /// Removes an entry with what lies in it.
    RemoveEntry { container: Container, slot: u16 },
    /// Makes an entry a name of an external inode.
    ToReference { container: Container, slot: u16, ino: InodeNo, sector: SectorIndex },
    /// Removes the index of a directory.
    DropIndex(InodeNo),
    /// Gives a file these extents, and only these. Another round.
    SetMap(InodeNo, Vec<Extent>),
    /// Cuts the target of a symbolic link to this many bytes. Another round.
    CutTarget(InodeNo, usize),
    /// Gives an inode a new attribute block with this list. Another round.
    SetAttributes(InodeNo, Vec<u8>),
    /// Makes a sector empty. Another round.
    ResetSector(Container),
    /// Makes a sector of what is valid in the old one. Another round.
    RebuildSector(Container),
    /// Gives a container blocks where it has none, up to a size in bytes. Another round.
    FillHoles(InodeNo, u64),
    /// Removes an inode. Another round.
    Forget(InodeNo),
    /// Gives an inode a name in lost+found, and takes the one it has. Another round.
    Reconnect(InodeNo),
    /// Moves an embedded inode to the external table. Another round.
    Externalize(InodeNo),
    /// Gives a directory that was found without an inode a new one. Another round.
    Resurrect { ino: InodeNo, generation: u32, extents: Vec<Extent> },
    /// Restores a sector of the system area. Another round.
    RestoreSystem(u32),
    /// Makes an empty inode for a file of the system's. Another round.
    RemakeSystem(InodeNo),
    /// Nothing but another round.
    Again,
}

impl Fix {
    /// Whether the external table has inodes after it that it seems to lack before.
    pub fn restores_table(&self) -> bool {
        match self {
            Fix::RebuildSector(container) => container.file == InodeNo::EXTERNAL,
            Fix::SetMap(ino, _) => *ino == InodeNo::EXTERNAL,
            Fix::Patch(..)
            | Fix::RemoveEntry { .. }
            | Fix::ToReference { .. }
            | Fix::DropIndex(_)
            | Fix::CutTarget(..)
            | Fix::SetAttributes(..)
            | Fix::ResetSector(_)
            | Fix::FillHoles(..)
            | Fix::Forget(_)
            | Fix::Reconnect(_)
            | Fix::Externalize(_)
            | Fix::Resurrect { .. }
            | Fix::RestoreSystem(_)
            | Fix::RemakeSystem(_)
            | Fix::Again => false,
        }
    }

    fn needs_round(&self) -> bool {
        match self {
            Fix::Patch(..)
            | Fix::RemoveEntry { .. }
            | Fix::ToReference { .. }
            | Fix::DropIndex(_) => false,
            Fix::SetMap(..)
            | Fix::CutTarget(..)
            | Fix::SetAttributes(..)
            | Fix::ResetSector(_)
            | Fix::RebuildSector(_)
            | Fix::FillHoles(..)
            | Fix::Forget(_)
            | Fix::Reconnect(_)
            | Fix::Externalize(_)
            | Fix::Resurrect { .. }
            | Fix::RestoreSystem(_)
            | Fix::RemakeSystem(_)
            | Fix::Again => true,
        }
    }
}

/// Fields of an inode to be set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Patch {
    pub nlink: Option<u32>,
    pub generation: Option<u32>,
    pub parent: Option<InodeNo>,
    pub fragments: Option<u64>,
    pub size: Option<u64>,
    /// The size, unless it is larger already.
    pub size_min: Option<u64>,
    /// A directory's count of entries.
    pub entries: Option<u32>,
    /// A directory was changed later than its inode says: at this time, or after it.
    pub changed_by: Option<Timestamp>,
    pub clear_flags: InodeFlags,
    pub attributes: Option<Vec<u8>>,
    pub attribute_block: Option<FragRun>,
    pub drop_attribute_block: bool,
    pub drop_hint: bool,
}

impl Default for Patch {
    fn default() -> Patch {
        Patch {
            nlink: None,
            generation: None,
            parent: None,
            fragments: None,
            size: None,
            size_min: None,
            entries: None,
            changed_by: None,
            clear_flags: InodeFlags::empty(),
            attributes: None,
            attribute_block: None,
            drop_attribute_block: false,
            drop_hint: false,
        }
    }
}

impl Patch {
    fn apply(&self, record: &mut OwnedRecord, layout: &crate::format::Layout) {
        let dropped = self.drop_attribute_block.then(|| record.inode.attribute_run());
        let inode = &mut record.inode;
        if let Some(nlink) = self.nlink {
            inode.nlink = nlink.into();
        }
        if let Some(generation) = self.generation {
            inode.generation = generation.into();
        }
        if let Some(parent) = self.parent {
            inode.parent = parent.0.into();
        }
        if let Some(fragments) = self.fragments {
            inode.fragments = fragments.into();
        }
        if let Some(size) = self.size {
            inode.size = size.into();
        }
        if let Some(size) = self.size_min {
            inode.size = inode.size.get().max(size).into();
        }
        if let Some(entries) = self.entries {
            inode.set_entries(entries, inode.buckets());
        }
        if let Some(time) = self.changed_by {
            if time > inode.ctime() {
                inode.set_changed(time);
            }
            // Past all values that were reported before the crash.
            inode.change = inode.change.get().wrapping_add(CHANGES_LOST_MAX).into();
        }
        inode.flags = (inode.flags.get() & !self.clear_flags.bits()).into();
        if self.clear_flags.contains(InodeFlags::CONTENT_CHECKSUM) {
            inode.content_checksum = 0.into();
        }
        if self.drop_hint {
            inode.hint_start = 0.into();
            inode.hint_len = 0.into();
        }
        if let Some(attributes) = &self.attributes {
            record.xattrs.clone_from(attributes);
        }
        if let Some(run) = self.attribute_block {
            inode.set_attribute_run(Some(run));
        }
        if let Some(Some(run)) = dropped {
            inode.set_attribute_run(None);
            if layout.is_allocatable(run.start, run.len) {
                inode.fragments = inode.fragments.get().saturating_sub(run.len.into()).into();
            }
        }
    }
}

impl Checker<'_> {
    /// Applies the noted repairs; returns true if the truth must be walked again.
    pub(super) fn apply_fixes(&mut self) -> bool {
        let fixes = std::mem::take(&mut self.walk.fixes);
        let mut again = false;
        // Repairs that identify an entry by its slot come before those that renumber the slots.
        let (late, early): (Vec<Fix>, Vec<Fix>) = fixes.into_iter().partition(Fix::needs_round);
        for fix in early {
            self.apply(&fix);
        }
        for fix in late {
            again = true;
            self.apply(&fix);
        }
        again
    }

    /// Whether repairs are noted that the walk's own record cannot follow.
    pub(super) fn has_late_fixes(&self) -> bool {
        self.walk.fixes.iter().any(Fix::needs_round)
    }

    fn apply(&mut self, fix: &Fix) {
        match fix {
            Fix::Patch(ino, patch) => drop(self.patch(*ino, patch)),
            Fix::RemoveEntry { container, slot } => {
                self.edit(*container, |image| sector::remove(image, *slot));
            }
            Fix::ToReference { container, slot, ino, sector } => {
                self.make_reference(*container, *slot, *ino, *sector);
            }
            Fix::DropIndex(dir) => self.drop_index(*dir),
            Fix::SetMap(ino, extents) => {
                self.set_map(*ino, extents);
                let clear_flags = InodeFlags::CONTENT_CHECKSUM;
                self.patch(*ino, &Patch { clear_flags, ..Patch::default() });
            }
            Fix::CutTarget(ino, len) => self.cut_target(*ino, *len),
            Fix::SetAttributes(ino, list) => self.set_attributes(*ino, list),
            Fix::ResetSector(container) => self.reset_sector(*container),
            Fix::RebuildSector(container) => self.rebuild_sector(*container),
            Fix::FillHoles(ino, end) => self.fill_holes(*ino, *end),
            Fix::Forget(ino) => self.remove_inode(*ino),
            Fix::Reconnect(ino) => self.reconnect(*ino),
            Fix::Externalize(ino) => self.externalize(*ino),
            Fix::Resurrect { ino, generation, extents } => {
                self.resurrect(*ino, *generation, extents);
            }
            Fix::RestoreSystem(index) => self.restore_system(*index),
            Fix::RemakeSystem(ino) => self.remake_system(*ino),
            Fix::Again => {}
        }
    }

    fn make_reference(
        &mut self,
        container: Container,
        slot: u16,
        ino: InodeNo,
        sector: SectorIndex,
    ) {
        let body = Body::Reference { ino, sector };
        let file_type = self.walk.inventory.get(ino).map(|found| found.file_type);
        self.edit(container, |image| {
            sector::replace(image, slot, &body);
            if let Some(file_type) = file_type {
                sector::set_file_type(image, slot, file_type);
            }
        });
    }

    pub(super) fn edit(&mut self, container: Container, change: impl FnOnce(&mut [u8])) -> bool {
        let Some(mut image) = self.load_good_sector(container) else { return false };
        change(&mut image);
        self.store_sector(container, &mut image);
        true
    }

    /// Changes a record in its place; it must not become longer.
    pub(super) fn edit_record(
        &mut self,
        ino: InodeNo,
        change: impl FnOnce(&mut OwnedRecord),
    ) -> bool {
        let Some(found) = self.walk.inventory.get(ino).copied() else { return false };
        let Some(mut record) = self.load_record(ino) else { return false };
        change(&mut record);
        let body = record.as_record();
        self.edit(found.container, |image| {
            sector::replace(image, found.slot, &Body::Embedded(body));
        })
    }

    pub(super) fn patch(&mut self, ino: InodeNo, patch: &Patch) -> bool {
        let layout = self.layout;
        self.edit_record(ino, |record| patch.apply(record, &layout))
    }

    fn drop_index(&mut self, dir: InodeNo) {
        let base = INDEX_OFFSET_BYTES / u64::from(self.layout.fragment_bytes);
        let Some(file) = self.walk.inventory.containers.get(&dir) else { return };
        let (index, data): (Vec<Extent>, Vec<Extent>) =
            file.map.iter().copied().partition(|extent| extent.logical >= base);
        if !index.is_empty() && !self.set_map(dir, &data) {
            return;
        }
        for extent in &index {
            self.walk.used.release(extent.run());
        }
        self.edit_record(dir, |record| {
            let flags = record.inode.flags.get() & !InodeFlags::INDEXED.bits();
            record.inode.flags = flags.into();
            record.inode.set_entries(record.inode.entries(), 0);
        });
    }

    /// Gives an inode these extents instead of those it has: in the inode if they fit into the
    /// smallest data area, in a new tree otherwise. The old tree's blocks become free, the old
    /// extents do not.
    pub(super) fn set_map(&mut self, ino: InodeNo, extents: &[Extent]) -> bool {
        let Some(record) = self.load_record(ino) else { return false };
        let old = self.collect_map(&record.as_record());
        let generation = record.inode.generation.get();
        let in_inode = (record.data.len().max(DATA_AREA_BYTES_MIN)) / EXTENT_BYTES;
        let mut data = Vec::new();
        let (mut root, mut depth, mut tree_blocks) = (0, 0, 0);
        if extents.len() <= in_inode {
            extents.iter().for_each(|extent| data.extend_from_slice(&extent.encode()));
        } else {
            match self.write_tree(ino, generation, extents) {
                Some(tree) => (root, depth, tree_blocks) = tree,
                None => {
                    let message = "no space for a new extent tree";
                    self.problem(Code::NoSpace, Place::Inode(ino), message);
                    return false;
                }
            }
        }
        for block in old.tree_blocks {
            let start = self.layout.block_start(block);
            self.walk.used.release(FragRun::new(start, self.layout.block_fragments()));
        }
        let attributes = record.inode.attribute_run().map_or(0, |run| u64::from(run.len));
        let space: u64 = extents.iter().map(|extent| u64::from(extent.len)).sum();
        let fragments = space + attributes + tree_blocks * u64::from(self.layout.block_fragments());
        self.edit_record(ino, |record| {
            record.data = data;
            record.inode.map_root = root.into();
            record.inode.map_depth = depth;
            record.inode.fragments = fragments.into();
        })
    }

    /// Writes an extent tree; its root, its depth and its count of blocks.
    fn write_tree(
        &mut self,
        ino: InodeNo,
        generation: u32,
        extents: &[Extent],
    ) -> Option<(u64, u8, u64)> {
        let capacity = node_capacity(self.layout.block_bytes);
        let mut nodes: Vec<(u64, Node)> = extents
            .chunks(capacity)
            .map(|leaf| (leaf[0].logical, Node::Leaf(leaf.to_vec())))
            .collect();
        let mut depth = 0;
        let mut blocks = 0;
        loop {
            let mut children = Vec::new();
            for (logical, node) in &nodes {
                let start = self.allocate(self.layout.block_fragments())?;
                let block = self.layout.block_of(start);
                let bytes = self.layout.block_bytes;
                let image = node.encode(ino, generation, depth, block, bytes, self.checksum);
                self.disk.change(self.layout.block_offset(block), &image);
                children.push(Child { logical: *logical, block });
                blocks += 1;
            }
            if let [root] = children[..] {
                return Some((root.block.0, depth, blocks));
            }
            nodes = children
                .chunks(capacity)
                .map(|inner| (inner[0].logical, Node::Inner(inner.to_vec())))
                .collect();
            depth += 1;
        }
    }

    /// Takes a run of free fragments, aligned to a block if it is at least as long. What the
    /// volume's own bitmap calls free is preferred: the rest may belong to what was lost.
    pub(super) fn allocate(&mut self, fragments: u32) -> Option<FragNo> {
        // What a fast check did not claim is not free, but what the bitmaps say is.
        let busy: Vec<u32> =
            self.fast.scope.iter().flat_map(|scope| scope.groups.keys().copied()).collect();
        let trusts: &[bool] = if self.is_fast() { &[true] } else { &[true, false] };
        for trust_bitmap in trusts.iter().copied() {
            for cg in busy.iter().copied().chain(0..self.layout.cgs()).map(CgIndex) {
                if let Some(start) = self.find_free(cg, fragments, trust_bitmap) {
                    let run = FragRun::new(start, fragments);
                    self.walk.used.claim(run);
                    if let Some(scope) = &mut self.fast.scope {
                        scope.groups.entry(cg.0).or_default();
                    }
                    self.disk.write_first(self.run_place(run));
                    return Some(start);
                }
            }
        }
        None
    }

    fn find_free(&mut self, cg: CgIndex, fragments: u32, trust_bitmap: bool) -> Option<FragNo> {
        let mut bitmap = self.walk.used.free_bitmap(cg);
        if trust_bitmap && cg.0 < self.superblock.cgs_made {
            bitmap.iter_mut().zip(self.old_bitmap(cg)).for_each(|(byte, old)| *byte &= old);
        }
        let step = if fragments >= self.layout.block_fragments() {
            self.layout.block_fragments()
        } else {
            1
        };
        let is_free = |bit: u32| bitmap[bit as usize / 8] >> (bit % 8) & 1 != 0;
        let last = self.layout.cg_fragments(cg).checked_sub(fragments)?;
        let mut at = 0;
        while at <= last {
            match (at..at + fragments).rev().find(|bit| !is_free(*bit)) {
                None => {
                    let start = self.layout.block_start(self.layout.cg_start(cg));
                    return Some(FragNo(start.0 + u64::from(at)));
                }
                Some(used) => at = (used + 1).next_multiple_of(step),
            }
        }
        None
    }

    fn old_bitmap(&mut self, cg: CgIndex) -> &[u8] {
        self.old_bitmaps.entry(cg).or_insert_with(|| {
            let offset = self.layout.block_offset(self.layout.cg_bitmap(cg));
            let len = (self.layout.bitmap_blocks() * self.layout.block_bytes) as usize;
            self.disk.read(offset, len)
        })
    }
}
