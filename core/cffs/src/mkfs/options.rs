//! The options of a new volume, and their checks.

use crate::clock::Timestamp;
use crate::device::Geometry;
use crate::error::{Error, Result};
use crate::format::Superblock;
use crate::format::inode::{DATA_AREA_BYTES_MIN, Record};
use crate::format::journal::{JOURNAL_BLOCKS_MAX, JOURNAL_BLOCKS_MIN};
use crate::format::layout::Layout;
use crate::format::sector::{SECTOR_HEADER_BYTES, entry_bytes};
use crate::format::superblock::{
    Compression, ErrorsPolicy, Incompat, JournalArea, JournalFlags, Policy, Reserve, RoCompat,
    State,
};
use crate::units::{CgIndex, InodeNo};

/// The longest label of a volume, in bytes.
pub const LABEL_BYTES_MAX: usize = 64;

/// Options of a new volume. The default suits an image of any size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MkfsOptions {
    /// The volume's name: at most [`LABEL_BYTES_MAX`] bytes, none of them zero.
    pub label: Vec<u8>,
    /// The volume's UUID; a random one if not given.
    pub uuid: Option<[u8; 16]>,
    /// Bytes per block: a power of two from 4096 to 65536.
    pub block_bytes: u32,
    /// Bytes per fragment, the unit of allocation: a power of two from 512 to the block size, and
    /// at least a 64th of it.
    pub fragment_bytes: u32,
    /// Bytes per sector of a directory: a power of two from 512 to 4096, and at most the size of an atomic
    /// write of the device, which is the default.
    pub sector_bytes: Option<u32>,
    /// Bytes per segment, the unit of co-location: a power of two from the block size to 16 MiB.
    pub segment_bytes: u32,
    /// Blocks per cylinder group: a power of two from 64 to 1048576.
    pub cg_blocks: u32,
    /// The longest contents that are in an inode, in bytes; less if a sector has no room for them.
    pub inline_bytes_max: u16,
    /// Whether inodes are in their directories, or in a table as in other file systems.
    pub embed: bool,
    /// Whether contents of tiny files are in their inodes.
    pub inline: bool,
    /// The co-location policy: which files are placed together.
    pub policy: Policy,
    /// The seed of the hashes of names; a random one if not given.
    pub hash_seed: Option<[u8; 16]>,
    /// The times of the root directory, and the time at which the volume was made.
    pub now: Timestamp,
    /// The owner of the root directory.
    pub root_uid: u32,
    /// The group of the root directory.
    pub root_gid: u32,
    /// Whether to discard the whole device first.
    pub discard: bool,
    /// Bytes that are kept for root, at most half of the volume. None by default: most volumes are images
    /// that belong to a user, and the host can run without their space.
    pub reserve_bytes: u64,
    /// A user who may use the reserve in addition to root; 0 for none.
    pub reserve_uid: u32,
    /// A group whose members may use it; 0 for none.
    pub reserve_gid: u32,
    /// How a mount reacts to damage by default.
    pub errors: ErrorsPolicy,
    /// The size of the journal in bytes. 0 means none, or on a separate device the useful maximum.
    pub journal_bytes: u64,
    /// How contents are compressed; `None` for a volume whose contents can never be compressed, which keeps
    /// no counts of references.
    pub compression: Option<Compression>,
}

impl Default for MkfsOptions {
    fn default() -> MkfsOptions {
        MkfsOptions {
            label: Vec::new(),
            uuid: None,
            block_bytes: 4096,
            fragment_bytes: 1024,
            sector_bytes: None,
            segment_bytes: 64 << 10,
            cg_blocks: 32768,
            inline_bytes_max: 512,
            embed: true,
            inline: true,
            policy: Policy::Directory,
            hash_seed: None,
            now: Timestamp::default(),
            root_uid: 0,
            root_gid: 0,
            discard: false,
            reserve_bytes: 0,
            reserve_uid: 0,
            reserve_gid: 0,
            errors: ErrorsPolicy::Default,
            journal_bytes: 0,
            compression: None,
        }
    }
}

impl MkfsOptions {
    /// The superblock of a volume with these options on a device, or the reason why it is impossible.
    pub fn plan(&self, device: Geometry) -> Result<Superblock> {
        check_label(&self.label)?;
        power("block", self.block_bytes, 4096, 65536)?;
        let fragment_bytes_min = (self.block_bytes / 64).max(512);
        power("fragment", self.fragment_bytes, fragment_bytes_min, self.block_bytes)?;
        power("segment", self.segment_bytes, self.block_bytes, 16 << 20)?;
        let sector_bytes = self.sector_bytes(device)?;
        if self.compression.is_some() && self.block_bytes > 16384 {
            return refuse(format!(
                "contents are compressed with blocks of up to 16384 bytes, not of {}",
                self.block_bytes
            ));
        }
        if !self.cg_blocks.is_power_of_two() || !(64..=1 << 20).contains(&self.cg_blocks) {
            return refuse(format!(
                "the blocks of a cylinder group must be a power of two from 64 to 1048576, not {}",
                self.cg_blocks
            ));
        }
        if self.segment_bytes / self.block_bytes > self.cg_blocks {
            return refuse(format!(
                "a segment of {} bytes is larger than a cylinder group of {} blocks",
                self.segment_bytes, self.cg_blocks
            ));
        }
        let mut superblock = self.superblock(sector_bytes);
        let blocks = device.size_bytes / u64::from(self.block_bytes);
        superblock.intent_log_blocks =
            Layout::usual_intent_log_half_blocks(blocks, self.block_bytes, self.cg_blocks);
        superblock.blocks = blocks_of(&superblock, device.size_bytes)?;
        if self.journal_bytes > 0 {
            // Not the last group, which may be a short one.
            let cgs = Layout::new(&superblock).cgs();
            let middle = CgIndex((cgs / 2).min(cgs.saturating_sub(2)));
            place_journal(&mut superblock, self.journal_bytes, middle)?;
        }
        superblock.free_fragments = Layout::new(&superblock).allocatable_fragments();
        superblock.reserve = Reserve {
            fragments: self.reserve_bytes.div_ceil(self.fragment_bytes.into()),
            uid: self.reserve_uid,
            gid: self.reserve_gid,
        };
        check_reserve(&superblock, superblock.reserve.fragments)?;
        superblock.check()?;
        Ok(superblock)
    }

    /// The same with a journal on a device of its own.
    pub fn plan_with_journal_on(&self, medium: Geometry, device: Geometry) -> Result<Superblock> {
        let without = MkfsOptions { journal_bytes: 0, ..self.clone() };
        let mut superblock = without.plan(device)?;
        place_external_journal(&mut superblock, self.journal_bytes, medium.size_bytes)?;
        superblock.check()?;
        Ok(superblock)
    }

    fn sector_bytes(&self, device: Geometry) -> Result<u32> {
        let Some(sector_bytes) = self.sector_bytes else {
            return match device.sector_bytes {
                atomic if atomic.is_power_of_two() && atomic >= 512 => Ok(atomic.min(4096)),
                atomic => refuse(format!("the device has sectors of {atomic} bytes")),
            };
        };
        power("sector", sector_bytes, 512, 4096)?;
        if sector_bytes > device.sector_bytes {
            // A crash could leave half of a longer sector, with old and new entries of the directory.
            return refuse(format!(
                "the device writes {} bytes atomically, less than a sector of {sector_bytes}",
                device.sector_bytes
            ));
        }
        Ok(sector_bytes)
    }

    /// The superblock without the fields that depend on the size of the volume.
    fn superblock(&self, sector_bytes: u32) -> Superblock {
        let mut incompat = Incompat::empty();
        incompat.set(Incompat::EMBED, self.embed);
        incompat.set(Incompat::INLINE, self.inline);
        incompat.set(Incompat::CLUSTERS, self.compression.is_some());
        let inline_bytes_max = match self.inline {
            true => self.inline_bytes_max.min(inline_bytes_limit(sector_bytes)),
            false => 0,
        };
        // A random UUID has 122 random bits, which is enough for a seed of hashes.
        let random = || uuid::Uuid::new_v4().into_bytes();
        let uuid = self.uuid.unwrap_or_else(random);
        Superblock {
            uuid,
            label: self.label.clone(),
            compat: 0,
            ro_compat: RoCompat::all() - RoCompat::MARKS - RoCompat::QUOTAS,
            incompat,
            block_bytes: self.block_bytes,
            fragment_bytes: self.fragment_bytes,
            sector_bytes,
            segment_bytes: self.segment_bytes,
            inline_bytes_max,
            blocks: 0,
            cg_blocks: self.cg_blocks,
            cgs_made: 1,
            policy: self.policy,
            state: State::Clean,
            generation: 1,
            epoch: 0,
            free_fragments: 0,
            inodes: 0,
            inode_rotor: InodeNo::FIRST_USER.0,
            cg_rotor: 0,
            hash_seed: self.hash_seed.unwrap_or_else(random),
            made_at: self.now.seconds.max(0) as u64,
            mounted_at: 0,
            mounts: 0,
            checksum_seed: uuid,
            holder: None,
            errors_policy: self.errors,
            damage: None,
            reserve: Reserve::default(),
            journal: JournalArea::default(),
            object_id: [0; 16],
            intent_log_blocks: 0,
            compression: self.compression.unwrap_or_default(),
            marks: 0,
            marks_walked: 0,
        }
    }
}

/// Refuses a label that does not fit into the superblock.
pub(crate) fn check_label(label: &[u8]) -> Result<()> {
    if label.len() > LABEL_BYTES_MAX {
        return refuse(format!("the label has {} bytes, more than {LABEL_BYTES_MAX}", label.len()));
    }
    // The label is padded with zeros, so a zero would end it.
    if label.contains(&0) {
        return refuse("the label contains a zero byte".into());
    }
    Ok(())
}

/// Refuses a reserve of more than half of the volume.
pub(crate) fn check_reserve(superblock: &Superblock, fragments: u64) -> Result<()> {
    let max = Layout::new(superblock).allocatable_fragments() / 2;
    if fragments > max {
        let fragment_bytes = u64::from(superblock.fragment_bytes);
        return refuse(format!(
            "a reserve of {} is more than half of the space for files: it may have up to {}",
            in_kib(fragments.saturating_mul(fragment_bytes)),
            in_kib(max * fragment_bytes)
        ));
    }
    Ok(())
}

/// Places a journal of `bytes` bytes after the head of a group. On average, the middle group is nearest to
/// the arm of a disk.
pub(super) fn place_journal(superblock: &mut Superblock, bytes: u64, cg: CgIndex) -> Result<()> {
    let block_bytes = u64::from(superblock.block_bytes);
    let layout = Layout::new(superblock);
    let start = layout.journal_start(cg);
    let head = start.0 - layout.cg_start(cg).0;
    // A group needs room for files too, and a small volume more of it than the journal takes.
    let max = u64::from(layout.cg_len_blocks(cg)).saturating_sub(head) / 2;
    let mut blocks = bytes.div_ceil(block_bytes);
    if blocks <= u64::from(layout.cg_len_blocks(cg)) / 2 {
        // Half a group, a round number, may be requested: the group's head is subtracted from it.
        blocks = blocks.min(max);
    }
    if !(u64::from(JOURNAL_BLOCKS_MIN)..=max).contains(&blocks) {
        return refuse(format!(
            "a journal of {} is not possible on this volume: it may have from {} to {}",
            in_kib(bytes),
            in_kib(u64::from(JOURNAL_BLOCKS_MIN) * block_bytes),
            in_kib(max * block_bytes)
        ));
    }
    superblock.incompat |= Incompat::JOURNAL;
    superblock.journal =
        JournalArea { start: start.0, blocks: blocks as u32, ..JournalArea::default() };
    Ok(())
}

/// The largest useful journal: it is drained before it holds more.
const EXTERNAL_JOURNAL_BYTES: u64 = 64 << 20;

/// Puts a journal of `bytes` bytes on a separate device; 0 uses the device's size, up to the useful maximum.
pub(super) fn place_external_journal(
    superblock: &mut Superblock,
    bytes: u64,
    medium_bytes: u64,
) -> Result<()> {
    let block_bytes = u64::from(superblock.block_bytes);
    let wanted = match bytes {
        0 => medium_bytes.min(EXTERNAL_JOURNAL_BYTES) / block_bytes,
        bytes => bytes.div_ceil(block_bytes),
    };
    let max = (medium_bytes / block_bytes).min(JOURNAL_BLOCKS_MAX.into());
    if !(u64::from(JOURNAL_BLOCKS_MIN)..=max).contains(&wanted) {
        return refuse(format!(
            "a journal of {} is not possible on a device of {}: it may have from {} to {}",
            in_kib(wanted * block_bytes),
            in_kib(medium_bytes),
            in_kib(u64::from(JOURNAL_BLOCKS_MIN) * block_bytes),
            in_kib(max * block_bytes)
        ));
    }
    superblock.incompat |= Incompat::JOURNAL;
    superblock.journal = JournalArea {
        start: 0,
        blocks: wanted as u32,
        flags: JournalFlags::EXTERNAL,
        uuid: uuid::Uuid::new_v4().into_bytes(),
        ..JournalArea::default()
    };
    Ok(())
}

/// The blocks of a volume on `size_bytes` bytes. A last group that is too short for its fixed
/// blocks is left out.
pub(crate) fn blocks_of(superblock: &Superblock, size_bytes: u64) -> Result<u64> {
    let cg_blocks = u64::from(superblock.cg_blocks);
    let all = size_bytes / u64::from(superblock.block_bytes);
    if all >= 1 << 40 || all.div_ceil(cg_blocks) >= 1 << 31 {
        return refuse(format!(
            "{size_bytes} bytes are more than a volume can have with blocks of {} bytes",
            superblock.block_bytes
        ));
    }
    let fits = |blocks: u64| {
        let candidate = Superblock { blocks, ..superblock.clone() };
        candidate.check().is_ok()
    };
    let whole_groups = all - all % cg_blocks;
    [all, whole_groups].into_iter().find(|blocks| fits(*blocks)).ok_or_else(|| {
        let least = (1..=cg_blocks).find(|blocks| fits(*blocks)).unwrap_or(cg_blocks);
        Error::Unsupported(format!(
            "{} is too small for a volume; the minimum is {}",
            in_kib(size_bytes),
            in_kib(least * u64::from(superblock.block_bytes))
        ))
    })
}

/// A size for messages.
fn in_kib(bytes: u64) -> String {
    match (bytes % (1 << 20), bytes % (1 << 10)) {
        (0, _) if bytes > 0 => format!("{} MiB", bytes >> 20),
        (_, 0) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} bytes"),
    }
}

/// The longest contents with which the entry of a file with the shortest name fits into a sector.
fn inline_bytes_limit(sector_bytes: u32) -> u16 {
    let without = entry_bytes(1, Record::encoded_len(0, 0, 0)) - DATA_AREA_BYTES_MIN;
    (sector_bytes as usize - SECTOR_HEADER_BYTES - without) as u16
}

fn power(what: &str, value: u32, min: u32, max: u32) -> Result<()> {
    if value.is_power_of_two() && (min..=max).contains(&value) {
        return Ok(());
    }
    refuse(format!("the {what} size must be a power of two from {min} to {max} bytes, not {value}"))
}

fn refuse<T>(why: String) -> Result<T> {
    Err(Error::Unsupported(why))
}
