//! The places of structures on the volume: the arithmetic of FORMAT's chapter on layout.
//!
//! Each cylinder group begins with a block for a superblock, one for the system area, its header and its free
//! bitmap, and on a volume with clusters the counts of references to them; then come the fragments for files.
//! In most groups the first two are reserved but unused. Group 0 has the intent log in addition; the journal,
//! if any, is in one of the groups. The last two blocks of the volume are one more copy of the superblock and
//! the system area.

use std::ops::Range;

use super::Superblock;
use super::superblock::{Incompat, JournalFlags};
use crate::units::{
    BlockNo, CgIndex, Container, FileBlock, FileFrag, FragNo, FragRun, InodeNo, SectorIndex,
};

/// The geometry of a volume. Cheap to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes per block.
    pub block_bytes: u32,
    /// Bytes per fragment.
    pub fragment_bytes: u32,
    /// Bytes per sector.
    pub sector_bytes: u32,
    /// Bytes per segment.
    pub segment_bytes: u32,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Blocks per cylinder group; the last may be shorter.
    pub cg_blocks: u32,
    /// The blocks of each of the two halves of the intent log.
    pub intent_log_half_blocks: u32,
    /// The group whose head the journal prolongs.
    pub journal_cg: CgIndex,
    /// The blocks of the journal on the volume; 0 where there is none.
    pub journal_blocks: u32,
    /// The blocks after the bitmap of each group in which the references to its clusters are counted; 0 on
    /// a volume without clusters.
    pub count_blocks: u32,
}

/// Blocks at the head of each group before its bitmap: superblock, system area, header.
const CG_HEAD_BLOCKS: u64 = 3;

/// The intent log of a large volume.
const INTENT_LOG_BYTES_MAX: u32 = 512 << 10;

/// The blocks of a copy: the superblock and the system area.
const COPY_BLOCKS: u64 = 2;

/// Blocks at the end of the volume that hold the last copy.
const TAIL_BLOCKS: u64 = COPY_BLOCKS;

impl Layout {
    /// The geometry that a checked superblock describes.
    pub fn new(superblock: &Superblock) -> Layout {
        let is_external = superblock.journal.flags.contains(JournalFlags::EXTERNAL);
        let journal_blocks = match superblock.incompat.contains(Incompat::JOURNAL) && !is_external {
            true => superblock.journal.blocks,
            false => 0,
        };
        Layout {
            block_bytes: superblock.block_bytes,
            fragment_bytes: superblock.fragment_bytes,
            sector_bytes: superblock.sector_bytes,
            segment_bytes: superblock.segment_bytes,
            blocks: superblock.blocks,
            cg_blocks: superblock.cg_blocks,
            intent_log_half_blocks: superblock.intent_log_blocks,
            journal_cg: CgIndex(
                (superblock.journal.start / u64::from(superblock.cg_blocks)) as u32,
            ),
            journal_blocks,
            count_blocks: match superblock.incompat.contains(Incompat::CLUSTERS) {
                true => superblock.cg_blocks.div_ceil(superblock.block_bytes),
                false => 0,
            },
        }
    }

    /// The blocks of each half of the intent log of a new volume of this many blocks.
    pub fn usual_intent_log_half_blocks(blocks: u64, block_bytes: u32, cg_blocks: u32) -> u32 {
        let max = Layout::intent_log_half_blocks_max(block_bytes, cg_blocks);
        (blocks / 1024 / 2).clamp(1, max.into()) as u32
    }

    /// The most blocks that each half of the intent log may have.
    pub(super) fn intent_log_half_blocks_max(block_bytes: u32, cg_blocks: u32) -> u32 {
        (INTENT_LOG_BYTES_MAX / block_bytes).min(cg_blocks / 8) / 2
    }

    /// The same volume with another size.
    pub fn with_blocks(self, blocks: u64) -> Layout {
        Layout { blocks, ..self }
    }

    /// Fragments per block.
    pub fn block_fragments(&self) -> u32 {
        self.block_bytes / self.fragment_bytes
    }

    /// Sectors of a container file per block.
    pub fn block_sectors(&self) -> u32 {
        self.block_bytes / self.sector_bytes
    }

    /// Files up to this size are placed as a whole, and may have a checksum of their contents.
    pub fn small_bytes_max(&self) -> u64 {
        self.segment_bytes.into()
    }

    /// Fragments per segment.
    pub fn segment_fragments(&self) -> u32 {
        self.segment_bytes / self.fragment_bytes
    }

    /// Blocks per segment.
    pub fn segment_blocks(&self) -> u32 {
        self.segment_bytes / self.block_bytes
    }

    /// Fragments of the volume.
    pub fn fragments(&self) -> u64 {
        self.blocks * u64::from(self.block_fragments())
    }

    /// The fragments that hold `bytes`.
    pub fn fragments_for(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.fragment_bytes.into())
    }

    /// The fragments of the largest file: an extent may not end after them.
    pub fn file_fragments_max(&self) -> u64 {
        super::FILE_BYTES_MAX / u64::from(self.fragment_bytes)
    }

    /// The first fragment of a block.
    pub fn block_start(&self, block: BlockNo) -> FragNo {
        FragNo(block.0 * u64::from(self.block_fragments()))
    }

    /// The block that contains a fragment.
    pub fn block_of(&self, fragment: FragNo) -> BlockNo {
        BlockNo(fragment.0 / u64::from(self.block_fragments()))
    }

    /// The byte of the device at which a block begins.
    pub fn block_offset(&self, block: BlockNo) -> u64 {
        block.0 * u64::from(self.block_bytes)
    }

    /// How many cylinder groups there are.
    pub fn cgs(&self) -> u32 {
        self.blocks.div_ceil(self.cg_blocks.into()) as u32
    }

    /// The group that contains a block.
    pub fn cg_of(&self, block: BlockNo) -> CgIndex {
        CgIndex((block.0 / u64::from(self.cg_blocks)) as u32)
    }

    /// The group that contains a fragment.
    pub fn cg_of_fragment(&self, fragment: FragNo) -> CgIndex {
        self.cg_of(self.block_of(fragment))
    }

    /// The group of a fragment, and the fragment's position in it.
    pub fn cg_position(&self, fragment: FragNo) -> (CgIndex, u32) {
        let cg = self.cg_of_fragment(fragment);
        (cg, (fragment.0 - self.block_start(self.cg_start(cg)).0) as u32)
    }

    /// The run of `len` fragments at a position in a group.
    pub fn cg_run(&self, cg: CgIndex, at: u32, len: u32) -> FragRun {
        FragRun::new(FragNo(self.block_start(self.cg_start(cg)).0 + u64::from(at)), len)
    }

    /// The first block of a group.
    pub fn cg_start(&self, cg: CgIndex) -> BlockNo {
        BlockNo(u64::from(cg.0) * u64::from(self.cg_blocks))
    }

    /// The blocks of a group; the last group may have fewer than the others.
    pub fn cg_len_blocks(&self, cg: CgIndex) -> u32 {
        (self.blocks - self.cg_start(cg).0).min(self.cg_blocks.into()) as u32
    }

    /// The fragments of a group.
    pub fn cg_fragments(&self, cg: CgIndex) -> u32 {
        self.cg_len_blocks(cg) * self.block_fragments()
    }

    /// The block of a group's header.
    pub fn cg_header(&self, cg: CgIndex) -> BlockNo {
        BlockNo(self.cg_start(cg).0 + 2)
    }

    /// The first block of a group's free bitmap.
    pub fn cg_bitmap(&self, cg: CgIndex) -> BlockNo {
        BlockNo(self.cg_start(cg).0 + CG_HEAD_BLOCKS)
    }

    /// Whether contents may be in clusters.
    pub fn has_clusters(&self) -> bool {
        self.count_blocks > 0
    }

    /// The bytes of the counts of references to a group's clusters.
    pub fn count_bytes(&self) -> usize {
        (self.count_blocks * self.block_bytes) as usize
    }

    /// The blocks of the free bitmap of a group.
    pub fn bitmap_blocks(&self) -> u32 {
        let bytes = (self.cg_blocks * self.block_fragments()).div_ceil(8);
        bytes.div_ceil(self.block_bytes)
    }

    /// The first block of the counts of references to a group's clusters: a byte for each block of the group,
    /// for the cluster that begins in it.
    pub fn cg_counts(&self, cg: CgIndex) -> BlockNo {
        BlockNo(self.cg_bitmap(cg).0 + u64::from(self.bitmap_blocks()))
    }

    /// The block of a file that holds the byte at this offset.
    pub fn file_block(&self, offset: u64) -> FileBlock {
        FileBlock(offset / u64::from(self.block_bytes))
    }

    /// The first block of a file that begins at this offset or after it: that after the last one, if the
    /// offset is the file's size.
    pub fn file_block_from(&self, offset: u64) -> FileBlock {
        FileBlock(offset.div_ceil(u64::from(self.block_bytes)))
    }

    /// The byte of a file at which a block begins.
    pub fn file_offset(&self, block: FileBlock) -> u64 {
        block.0.saturating_mul(self.block_bytes.into())
    }

    /// The first fragment of a block of a file.
    pub fn file_frag(&self, block: FileBlock) -> FileFrag {
        FileFrag(block.0.saturating_mul(self.block_fragments().into()))
    }

    /// The fragments of a block of a file.
    pub fn file_frags(&self, block: FileBlock) -> Range<FileFrag> {
        let first = self.file_frag(block);
        first..first.plus(self.block_fragments().into())
    }

    /// The first block of the intent log, in group 0.
    pub fn intent_log(&self) -> BlockNo {
        BlockNo(CG_HEAD_BLOCKS + u64::from(self.bitmap_blocks() + self.count_blocks))
    }

    /// The first block of the half of the intent log in which marks of a generation are.
    pub fn intent_log_half(&self, generation: u64) -> BlockNo {
        let half = generation % 2;
        BlockNo(self.intent_log().0 + half * u64::from(self.intent_log_half_blocks))
    }

    /// The blocks at the head of a group that it never gives out.
    pub fn cg_reserved_blocks(&self, cg: CgIndex) -> u32 {
        let journal = if cg == self.journal_cg { self.journal_blocks } else { 0 };
        (self.cg_head_blocks(cg) + journal).min(self.cg_len_blocks(cg))
    }

    /// The blocks at the head of a group that every volume has, without the journal.
    fn cg_head_blocks(&self, cg: CgIndex) -> u32 {
        let intent_log = if cg.0 == 0 { 2 * self.intent_log_half_blocks } else { 0 };
        CG_HEAD_BLOCKS as u32 + self.bitmap_blocks() + self.count_blocks + intent_log
    }

    /// Where the journal begins, or would, if the group's head is prolonged by it.
    pub fn journal_start(&self, cg: CgIndex) -> BlockNo {
        BlockNo(self.cg_start(cg).0 + u64::from(self.cg_head_blocks(cg)))
    }

    /// The first run of system blocks that ends after `from`, of a volume in which the groups from
    /// `cgs_made` on were never used. System blocks hold metadata at fixed places: no file may have them,
    /// and nothing may discard them. In a group that was never used, the header and the bitmaps do not
    /// exist yet, so only copies of the superblock and the journal are system blocks there.
    pub fn next_system_run(&self, from: BlockNo, cgs_made: u32) -> Range<BlockNo> {
        let tail = BlockNo(self.blocks - TAIL_BLOCKS)..BlockNo(self.blocks);
        let cg = self.cg_of(from);
        // The head of this group may end before `from`.
        let heads = [cg, CgIndex(cg.0.saturating_add(1))].into_iter();
        let heads = heads.filter(|cg| cg.0 < cgs_made.min(self.cgs())).map(|cg| self.cg_head(cg));
        let others = match cgs_made < self.cgs() {
            true => self.system_runs_of_unused_groups(CgIndex(cgs_made)),
            false => Vec::new(),
        };
        let runs = heads.chain(others).chain([tail.clone()]);
        runs.filter(|run| run.end > from).min_by_key(|run| run.start).unwrap_or(tail)
    }

    /// The blocks at the head of a group.
    fn cg_head(&self, cg: CgIndex) -> Range<BlockNo> {
        let start = self.cg_start(cg);
        start..BlockNo(start.0 + u64::from(self.cg_reserved_blocks(cg)))
    }

    /// The system blocks of the groups from this one on, if they were never used.
    fn system_runs_of_unused_groups(&self, first: CgIndex) -> Vec<Range<BlockNo>> {
        let copies = self.superblock_copies();
        let copies = copies.into_iter().map(|copy| copy..BlockNo(copy.0 + COPY_BLOCKS));
        let journal = self.journal_start(self.journal_cg);
        let journal = journal..BlockNo(journal.0 + u64::from(self.journal_blocks));
        let runs = copies.chain((self.journal_blocks > 0).then_some(journal));
        runs.filter(|run| self.cg_of(run.start) >= first).collect()
    }

    /// Whether the block is a system block of a volume whose groups are all in use, so that no file may
    /// have it.
    pub fn is_reserved(&self, block: BlockNo) -> bool {
        self.next_system_run(block, self.cgs()).start <= block
    }

    /// Whether a run is within the volume and within one group, clear of all reserved blocks.
    pub fn is_allocatable(&self, start: FragNo, len: u32) -> bool {
        let end = start.0.saturating_add(len.into());
        if len == 0 || end > self.fragments() {
            return false;
        }
        let first = self.block_of(start);
        let last = self.block_of(FragNo(end - 1));
        // Reserved blocks are at the head of a group and at the end of the volume only.
        self.cg_of(first) == self.cg_of(last) && !self.is_reserved(first) && !self.is_reserved(last)
    }

    /// The fragments for files of an empty volume of this geometry.
    pub fn allocatable_fragments(&self) -> u64 {
        let cgs = self.cgs();
        let head: u64 = if cgs <= 2 {
            (0..cgs).map(|cg| u64::from(self.cg_reserved_blocks(CgIndex(cg)))).sum()
        } else {
            // All groups are alike, except the first, the last, and the one with the journal.
            let between = 1..cgs - 1;
            let journal =
                if between.contains(&self.journal_cg.0) { self.journal_blocks } else { 0 };
            u64::from(self.cg_reserved_blocks(CgIndex(0)))
                + u64::from(self.cg_head_blocks(CgIndex(1))) * u64::from(cgs - 2)
                + u64::from(journal)
                + u64::from(self.cg_reserved_blocks(CgIndex(cgs - 1)))
        };
        let last = CgIndex(cgs - 1);
        let last_free = self.cg_len_blocks(last) - self.cg_reserved_blocks(last);
        let tail = TAIL_BLOCKS.min(last_free.into());
        (self.blocks - head - tail) * u64::from(self.block_fragments())
    }

    /// The first block of the system area: the container of the root directory's inode, the
    /// locator's and the external inode table's.
    pub fn system_area(&self) -> BlockNo {
        BlockNo(1)
    }

    /// The sector of the system area in which a system inode is. The three share one sector if they fit;
    /// otherwise each has its own.
    pub fn system_container(&self, ino: InodeNo) -> Container {
        let index = (ino.0 - InodeNo::ROOT.0) as u32;
        let sector = if self.sector_bytes >= 1024 { 0 } else { index };
        Container { file: InodeNo::SYSTEM, sector: SectorIndex(sector) }
    }

    /// The blocks in which copies of the superblock are, the nearest first. The block after each
    /// holds a copy of the system area. As in ext4's sparse_super, the groups are 1 and the powers
    /// of 3, 5 and 7; the last copy is at the very end of the volume.
    pub fn superblock_copies(&self) -> Vec<BlockNo> {
        let mut groups = vec![1u64];
        for base in [3u64, 5, 7] {
            let mut power = base;
            while power < self.cgs().into() {
                groups.push(power);
                power *= base;
            }
        }
        groups.sort_unstable();
        let mut copies: Vec<BlockNo> = groups
            .into_iter()
            .filter(|cg| *cg < self.cgs().into())
            .map(|cg| CgIndex(cg as u32))
            .filter(|cg| self.cg_len_blocks(*cg) > self.cg_reserved_blocks(*cg) + 2)
            .map(|cg| self.cg_start(cg))
            .collect();
        copies.push(BlockNo(self.blocks - TAIL_BLOCKS));
        copies
    }
}
