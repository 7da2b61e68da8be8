//! Extents and the blocks of the extent tree (FORMAT: extents).
//!
//! A file's space is a set of extents that do not overlap. A few are in the inode; the others in
//! a tree whose blocks are copied on write, so that a block, once written, never changes.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::block::{self, CHECKSUM_AT};
use super::cluster::{CLUSTER_BYTES_MAX, REFERENCES_MAX};
use super::{Checksum, Layout};
use crate::error::Corruption;
use crate::units::{BlockNo, FragNo, FragRun, InodeNo};

/// The bytes of an extent, and of an entry of an inner block.
pub const EXTENT_BYTES: usize = 16;
/// The tallest tree: three levels of blocks map more than the largest file.
pub const MAP_DEPTH_MAX: u8 = 4;
/// The longest extent, in fragments.
pub const EXTENT_FRAGMENTS_MAX: u32 = (1 << 24) - 1;

const MAGIC: u32 = u32::from_le_bytes(*b"CFxt");
const HEADER_BYTES: usize = 48;
const LOGICAL_BITS: u32 = 40;
const START_BITS: u32 = 48;
const UNWRITTEN: u64 = 1 << 63;
const IN_CLUSTER: u64 = 1 << 62;
const OFFSET_BITS: u32 = 14;
/// In an extent of a cluster, the length in the file and the length of the cluster share one field.
const CLUSTER_LEN_BITS: u32 = 12;
const CLUSTER_LEN_MASK: u32 = (1 << CLUSTER_LEN_BITS) - 1;

/// The part of a cluster that an extent maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterPart {
    /// The first fragment of the part in the expanded contents.
    pub offset: u16,
    /// The fragments that the cluster takes on the volume, from the extent's start on.
    pub stored: u16,
}

/// A run of a file's fragments, and the run of the volume that holds it or, compressed with others, the
/// cluster that does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first fragment within the file.
    pub logical: u64,
    /// The first fragment on the volume.
    pub start: FragNo,
    /// How many fragments.
    pub len: u32,
    /// Allocated but never written: reads as zeros.
    pub unwritten: bool,
    /// The cluster that begins at `start` and holds the contents; `None` if they are stored uncompressed.
    pub cluster: Option<ClusterPart>,
}

impl Extent {
    /// An extent of written, uncompressed contents.
    pub fn new(logical: u64, run: FragRun) -> Extent {
        Extent { logical, start: run.start, len: run.len, unwritten: false, cluster: None }
    }

    /// An extent of a cluster that takes `run` on the volume: `len` fragments from `offset` on in its
    /// expanded contents.
    pub fn of_cluster(logical: u64, len: u32, run: FragRun, offset: u32) -> Extent {
        assert!(
            len <= CLUSTER_LEN_MASK && run.len <= CLUSTER_LEN_MASK && offset < 1 << OFFSET_BITS
        );
        let cluster = ClusterPart { offset: offset as u16, stored: run.len as u16 };
        Extent { logical, start: run.start, len, unwritten: false, cluster: Some(cluster) }
    }

    /// The part of the extent that maps this range of the file, which must be in it.
    pub fn part(&self, range: std::ops::Range<u64>) -> Extent {
        debug_assert!(self.logical <= range.start && range.end <= self.logical_end());
        let into = range.start - self.logical;
        let len = (range.end - range.start) as u32;
        let part = Extent { logical: range.start, len, ..*self };
        match self.cluster {
            None => Extent { start: FragNo(self.start.0 + into), ..part },
            Some(of) => {
                let cluster = ClusterPart { offset: of.offset + into as u16, ..of };
                Extent { cluster: Some(cluster), ..part }
            }
        }
    }

    /// Why the extent cannot be one of a file on this volume.
    pub fn fault(&self, layout: &Layout) -> Option<&'static str> {
        let run = self.run();
        if !layout.is_allocatable(run.start, run.len) || self.len == 0 {
            return Some("outside of the volume's space for files");
        }
        if self.logical_end() > layout.file_fragments_max() {
            return Some("after the end of the largest file");
        }
        let of = self.cluster?;
        let end = u64::from(of.offset) + u64::from(self.len);
        let end_max = (CLUSTER_BYTES_MAX as u64 / u64::from(layout.fragment_bytes))
            .min(REFERENCES_MAX.into());
        match () {
            () if !layout.has_clusters() => Some("in a cluster, on a volume without clusters"),
            () if self.unwritten => Some("in a cluster, but never written"),
            () if run.len < layout.block_fragments() => Some("in a cluster of less than a block"),
            () if end > end_max => Some("after the end of the largest cluster"),
            () => None,
        }
    }

    /// The first fragment of the file after the extent.
    pub fn logical_end(&self) -> u64 {
        self.logical + u64::from(self.len)
    }

    /// The run on the volume: of an extent in a cluster, that of the whole cluster.
    pub fn run(&self) -> FragRun {
        FragRun::new(self.start, self.cluster.map_or(self.len, |of| of.stored.into()))
    }

    /// Whether it maps whole blocks to whole blocks that were written, as all extents of
    /// directories and of the system's files do.
    pub fn is_of_blocks(&self, block_fragments: u32) -> bool {
        let per_block = u64::from(block_fragments);
        [self.logical, self.start.0, self.len.into()].iter().all(|n| n.is_multiple_of(per_block))
            && !self.unwritten
            && self.cluster.is_none()
    }

    /// The extent's 16 bytes.
    pub fn encode(&self) -> [u8; EXTENT_BYTES] {
        let (len, offset) = match self.cluster {
            None => (self.len, 0),
            Some(of) => {
                let len = self.len | u32::from(of.stored) << CLUSTER_LEN_BITS;
                (len, IN_CLUSTER | u64::from(of.offset) << START_BITS)
            }
        };
        let first = self.logical | u64::from(len) << LOGICAL_BITS;
        let second = self.start.0 | offset | if self.unwritten { UNWRITTEN } else { 0 };
        let mut bytes = [0; EXTENT_BYTES];
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..].copy_from_slice(&second.to_le_bytes());
        bytes
    }

    /// Decodes 16 bytes. Whether the extent makes sense on this volume is for the caller to check.
    pub fn decode(bytes: &[u8; EXTENT_BYTES]) -> Extent {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let (first, second) = (word(0), word(8));
        let len = (first >> LOGICAL_BITS) as u32;
        let plain = Extent {
            logical: first & ((1 << LOGICAL_BITS) - 1),
            start: FragNo(second & ((1 << START_BITS) - 1)),
            len,
            unwritten: second & UNWRITTEN != 0,
            cluster: None,
        };
        if second & IN_CLUSTER == 0 {
            return plain;
        }
        let cluster = ClusterPart {
            offset: (second >> START_BITS) as u16 & ((1 << OFFSET_BITS) - 1),
            stored: (len >> CLUSTER_LEN_BITS) as u16,
        };
        Extent { len: len & CLUSTER_LEN_MASK, cluster: Some(cluster), ..plain }
    }

    /// Decodes a list of extents, such as an inode's data area.
    pub fn decode_list(bytes: &[u8]) -> impl Iterator<Item = Extent> {
        bytes.as_chunks::<EXTENT_BYTES>().0.iter().map(Extent::decode)
    }
}

/// An entry of an inner block: a block one level down, and where in the file it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child {
    /// The first fragment of the file that the block maps.
    pub logical: u64,
    /// The block.
    pub block: BlockNo,
}

/// A decoded block of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A block at the bottom, with extents in the order of the file.
    Leaf(Vec<Extent>),
    /// A block above, with the blocks below it in the order of the file.
    Inner(Vec<Child>),
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskHeader {
    magic: U32,
    checksum: U32,
    owner: U64,
    generation: U32,
    count: U16,
    depth: u8,
    pad: u8,
    block: U64,
    reserved: [u8; 16],
}

const _: () = assert!(size_of::<DiskHeader>() == HEADER_BYTES);

/// The number of extents or children that fit in a block of `block_bytes`.
pub fn node_capacity(block_bytes: u32) -> usize {
    (block_bytes as usize - HEADER_BYTES) / EXTENT_BYTES
}

impl Node {
    /// The bytes of the node for `block`, `depth` levels above the leaves.
    pub fn encode(
        &self,
        owner: InodeNo,
        generation: u32,
        depth: u8,
        block: BlockNo,
        block_bytes: u32,
        checksum: Checksum,
    ) -> Vec<u8> {
        let mut bytes = vec![0; block_bytes as usize];
        let (header, entries) = bytes.split_at_mut(HEADER_BYTES);
        let slots = entries.chunks_exact_mut(EXTENT_BYTES);
        let count = match self {
            Node::Leaf(extents) => {
                slots
                    .zip(extents)
                    .for_each(|(slot, extent)| slot.copy_from_slice(&extent.encode()));
                extents.len()
            }
            Node::Inner(children) => {
                for (slot, child) in slots.zip(children) {
                    slot[..8].copy_from_slice(&child.logical.to_le_bytes());
                    slot[8..].copy_from_slice(&child.block.0.to_le_bytes());
                }
                children.len()
            }
        };
        let disk = DiskHeader {
            magic: MAGIC.into(),
            checksum: U32::ZERO,
            owner: owner.0.into(),
            generation: generation.into(),
            count: (count as u16).into(),
            depth,
            pad: 0,
            block: block.0.into(),
            reserved: [0; 16],
        };
        header.copy_from_slice(disk.as_bytes());
        checksum.seal(&mut bytes, CHECKSUM_AT);
        bytes
    }

    /// Decodes the node that was read from `block`, which by the tree belongs to `owner` and is `depth`
    /// levels above the leaves. Entries are in order and not empty.
    pub fn decode(
        bytes: &[u8],
        owner: InodeNo,
        generation: u32,
        depth: u8,
        block: BlockNo,
        checksum: Checksum,
    ) -> Result<Node, Corruption> {
        let bad = |what| Corruption::ExtentBlock { ino: owner, block, what };
        let (header, entries): (&DiskHeader, _) =
            block::header(bytes, MAGIC, "not an extent block", checksum).map_err(bad)?;
        if header.owner.get() != owner.0 || header.generation.get() != generation {
            return Err(bad("it belongs to another inode"));
        }
        if header.block.get() != block.0 {
            return Err(bad("it was written for another place"));
        }
        if header.depth != depth {
            return Err(bad("it is at another level of the tree"));
        }
        let count = usize::from(header.count.get());
        let slots = entries.as_chunks::<EXTENT_BYTES>().0;
        let slots = slots.get(..count).ok_or_else(|| bad("more entries than fit"))?;
        if depth == 0 {
            let extents: Vec<Extent> = slots.iter().map(Extent::decode).collect();
            if extents.iter().any(|extent| extent.len == 0)
                || extents.windows(2).any(|pair| pair[0].logical_end() > pair[1].logical)
            {
                return Err(bad("its extents are out of order"));
            }
            Ok(Node::Leaf(extents))
        } else {
            let word = |slot: &[u8; EXTENT_BYTES], at: usize| {
                u64::from_le_bytes(std::array::from_fn(|index| slot[at + index]))
            };
            let children: Vec<Child> = slots
                .iter()
                .map(|slot| Child { logical: word(slot, 0), block: BlockNo(word(slot, 8)) })
                .collect();
            if children.windows(2).any(|pair| pair[0].logical >= pair[1].logical) {
                return Err(bad("its children are out of order"));
            }
            Ok(Node::Inner(children))
        }
    }
}
