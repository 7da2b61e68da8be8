//! New maps of files, and the space for repairs.

use super::walk::Walk;
use super::{Code, Place};
use crate::format::extent::{Child, EXTENT_BYTES, Extent, MAP_DEPTH_MAX, Node, node_capacity};
use crate::format::inode::DATA_AREA_BYTES_MIN;
use crate::units::{CgIndex, FragNo, FragRun, InodeNo};

/// Gives files other extents, and takes the space that a repair needs from what the walk left free.
pub(super) struct MapWriter<'a, 'c> {
    pub walk: &'a mut Walk<'c>,
}

impl MapWriter<'_, '_> {
    /// Gives an inode these extents instead of those it has: in the inode if they fit into the
    /// smallest data area, in a new tree otherwise. The old tree's blocks become free, the old
    /// extents do not.
    pub(super) fn set_map(&mut self, ino: InodeNo, extents: &[Extent]) -> bool {
        let layout = self.walk.meta.layout;
        let Some(record) = self.walk.meta.load_record(ino) else { return false };
        let old = self.walk.meta.collect_map(&record.as_record());
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
                    self.walk.findings.problem(Code::NoSpace, Place::Inode(ino), message);
                    return false;
                }
            }
        }
        for block in old.tree_blocks {
            let start = layout.block_start(block);
            self.walk.space.used.release(FragRun::new(start, layout.block_fragments()));
        }
        let attributes = record.inode.attribute_run().map_or(0, |run| u64::from(run.len));
        let space: u64 = extents.iter().map(|extent| u64::from(extent.len)).sum();
        let fragments = space + attributes + tree_blocks * u64::from(layout.block_fragments());
        self.walk.meta.edit_record(ino, |record| {
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
        let layout = self.walk.meta.layout;
        let capacity = node_capacity(layout.block_bytes);
        let mut nodes: Vec<(u64, Node)> = extents
            .chunks(capacity)
            .map(|leaf| (leaf[0].logical, Node::Leaf(leaf.to_vec())))
            .collect();
        let mut depth = 0;
        let mut blocks = 0;
        loop {
            let mut children = Vec::new();
            for (logical, node) in &nodes {
                let start = self.allocate(layout.block_fragments())?;
                let block = layout.block_of(start);
                let bytes = layout.block_bytes;
                let image =
                    node.encode(ino, generation, depth, block, bytes, self.walk.meta.checksum);
                self.walk.meta.disk.change(layout.block_offset(block), &image);
                children.push(Child { logical: *logical, block });
                blocks += 1;
            }
            debug_assert!(depth <= MAP_DEPTH_MAX, "inode {ino}: the tree is too tall");
            debug_assert!(!children.is_empty(), "inode {ino}: a tree without blocks");
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

    /// Takes a run of free fragments, aligned to a block if it is at least as long. Fragments that are free
    /// in the volume's own bitmap are preferred: others may belong to lost files.
    pub(super) fn allocate(&mut self, fragments: u32) -> Option<FragNo> {
        // In a fast check, unclaimed fragments may be in use: only the bitmaps tell.
        let listed: Vec<u32> =
            self.walk.scope.iter().flat_map(|scope| scope.groups.keys().copied()).collect();
        let trusts: &[bool] = if self.walk.is_fast() { &[true] } else { &[true, false] };
        for trust_bitmap in trusts.iter().copied() {
            for cg in listed.iter().copied().chain(0..self.walk.meta.layout.cgs()).map(CgIndex) {
                if let Some(start) = self.find_free(cg, fragments, trust_bitmap) {
                    let run = FragRun::new(start, fragments);
                    let is_free = self.walk.space.used.claim(run);
                    debug_assert!(is_free, "{run:?} was taken and has a user");
                    if let Some(scope) = &mut self.walk.scope {
                        scope.groups.entry(cg.0).or_default();
                    }
                    self.walk.meta.disk.write_first(self.walk.meta.run_place(run));
                    return Some(start);
                }
            }
        }
        None
    }

    fn find_free(&mut self, cg: CgIndex, fragments: u32, trust_bitmap: bool) -> Option<FragNo> {
        let layout = self.walk.meta.layout;
        let mut bitmap = self.walk.space.used.free_bitmap(cg);
        if trust_bitmap && cg.0 < self.walk.meta.superblock.cgs_made {
            bitmap.iter_mut().zip(self.old_bitmap(cg)).for_each(|(byte, old)| *byte &= old);
        }
        let step = if fragments >= layout.block_fragments() { layout.block_fragments() } else { 1 };
        let is_free = |bit: u32| bitmap[bit as usize / 8] >> (bit % 8) & 1 != 0;
        let last = layout.cg_fragments(cg).checked_sub(fragments)?;
        let mut at = 0;
        while at <= last {
            match (at..at + fragments).rev().find(|bit| !is_free(*bit)) {
                None => {
                    let start = layout.block_start(layout.cg_start(cg));
                    return Some(FragNo(start.0 + u64::from(at)));
                }
                Some(used) => at = (used + 1).next_multiple_of(step),
            }
        }
        None
    }

    fn old_bitmap(&mut self, cg: CgIndex) -> &[u8] {
        let layout = self.walk.meta.layout;
        self.walk.space.old_bitmaps.entry(cg).or_insert_with(|| {
            let offset = layout.block_offset(layout.cg_bitmap(cg));
            let len = (layout.bitmap_blocks() * layout.block_bytes) as usize;
            self.walk.meta.disk.read(offset, len)
        })
    }
}
