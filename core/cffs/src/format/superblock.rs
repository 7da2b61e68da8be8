//! The superblock (FORMAT: superblock).
//!
//! It fits in 512 bytes, one sector of any device, and is written as a whole. It has the choices of mkfs, and
//! the state in which the volume was left. Operations do not change it: the inodes that change often (above
//! all the root directory's) are in the system area after it.

use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

mod records;

use self::records::ErrorFlags;
pub use self::records::{
    Compression, Damage, ErrorsPolicy, HOLDER_NAME_BYTES, Holder, JournalArea, JournalFlags,
    Reserve,
};
use super::{Checksum, Layout, journal};
use crate::error::{Corruption, Error, Result};
use crate::units::{CgIndex, InodeNo};

/// The first eight bytes of a volume. The line ends reveal a transfer in text mode.
pub const MAGIC: [u8; 8] = *b"CFFS\r\n\x1a\n";
/// The version of the format that this code writes.
pub const VERSION: u32 = 2;
/// The bytes of a superblock.
pub const SUPERBLOCK_BYTES: usize = 512;

const CHECKSUM_AT: usize = 8;

bitflags::bitflags! {
    /// Features that an implementation must know to use the volume at all.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Incompat: u32 {
        /// Inodes of files with one name are in the directory next to the name. Without it all
        /// inodes are in the external inode table.
        const EMBED = 1 << 0;
        /// Contents of tiny files are in the inode.
        const INLINE = 1 << 1;
        /// Files may be immutable or append-only.
        const PROTECTION = 1 << 2;
        /// The volume has a journal: a block at its place may be older than its image in the journal.
        const JOURNAL = 1 << 3;
        /// Contents may be in clusters, and each group counts the references to its clusters.
        const CLUSTERS = 1 << 4;
    }
}

bitflags::bitflags! {
    /// Features that an implementation must know to change the volume.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RoCompat: u32 {
        /// Large directories have a hash index.
        const DIR_INDEX = 1 << 0;
        /// Small files have a checksum of their contents.
        const CONTENT_CHECKSUM = 1 << 1;
        /// The volume has marks: changes are stamped with their count.
        const MARKS = 1 << 2;
        /// Directories may have quotas.
        const QUOTAS = 1 << 3;
    }
}

/// How a file finds its co-location key (DESIGN: placement at write-back).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Policy {
    /// The key is the parent directory; hints win.
    Directory = 1,
    /// Only files with a hint are placed together.
    Hint = 2,
    /// Conventional allocation: no file is placed by its neighbours, or read with them.
    None = 3,
    /// The same, as on a volume that has been in use for years (USENIX'97 4.1), for comparison.
    Scattered = 4,
    /// The key is the owner; hints win.
    Owner = 5,
    /// The key is the minute in which the file was made; hints win.
    Time = 6,
    /// The key is the process that made the file, or its directory if the process is unknown; hints win.
    Process = 7,
    /// The key is the minute in which the file was last read, or made; hints win.
    Access = 8,
}

impl Policy {
    /// All of them, in the order of their numbers.
    pub const ALL: [Policy; 8] = [
        Policy::Directory,
        Policy::Hint,
        Policy::None,
        Policy::Scattered,
        Policy::Owner,
        Policy::Time,
        Policy::Process,
        Policy::Access,
    ];

    /// Its name, as commands have it.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Directory => "directory",
            Policy::Hint => "hint",
            Policy::None => "none",
            Policy::Scattered => "scattered",
            Policy::Owner => "owner",
            Policy::Time => "time",
            Policy::Process => "process",
            Policy::Access => "access",
        }
    }

    /// Whether files of one key are placed together, and read together.
    pub fn groups(self) -> bool {
        !matches!(self, Policy::None | Policy::Scattered)
    }

    pub(crate) fn from_byte(byte: u8) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| *policy as u8 == byte)
    }
}

/// How the volume was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Everything derived matches the truth.
    Clean = 1,
    /// Mounted for writing, or left without unmounting.
    InUse = 2,
    /// Something was found that only a full check can mend.
    Damaged = 3,
}

impl State {
    fn from_byte(byte: u8) -> Option<State> {
        [State::Clean, State::InUse, State::Damaged].into_iter().find(|s| *s as u8 == byte)
    }
}

/// The superblock as the rest of the program sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Identifies this volume, and seeds the checksum of the superblock.
    pub uuid: [u8; 16],
    /// The volume's name, at most 64 bytes, without the padding.
    pub label: Vec<u8>,
    /// Features that need no support.
    pub compat: u32,
    /// Features that need support to write.
    pub ro_compat: RoCompat,
    /// Features that need support to read.
    pub incompat: Incompat,
    /// Bytes per block: a power of two from 4096 to 65536.
    pub block_bytes: u32,
    /// Bytes per fragment: a power of two from 512 to the block size.
    pub fragment_bytes: u32,
    /// Bytes that the device writes atomically: a power of two from 512 to 4096.
    pub sector_bytes: u32,
    /// Bytes per segment: a power of two from the block size to 16 MiB.
    pub segment_bytes: u32,
    /// The longest contents that are in an inode, in bytes.
    pub inline_bytes_max: u16,
    /// The size of the volume in blocks.
    pub blocks: u64,
    /// The size of a cylinder group in blocks.
    pub cg_blocks: u32,
    /// The groups from this one on were never used and have nothing valid on the device.
    pub cgs_made: u32,
    /// How files find their neighbours.
    pub policy: Policy,
    /// How the volume was left.
    pub state: State,
    /// Counts checkpoints: each one invalidates all earlier records of the intent log.
    pub generation: u64,
    /// The last epoch that was complete when the superblock was written.
    pub epoch: u64,
    /// Free fragments, valid if the volume is clean.
    pub free_fragments: u64,
    /// Inodes in use, the system's own not counted; valid if the volume is clean.
    pub inodes: u64,
    /// Where to look for a free inode number first.
    pub inode_rotor: u64,
    /// Where the hot spot was.
    pub cg_rotor: u32,
    /// The seed of [`name_hash`](super::checksum::name_hash).
    pub hash_seed: [u8; 16],
    /// When the volume was made, in seconds since 1970.
    pub made_at: u64,
    /// When it was last mounted for writing, in seconds since 1970.
    pub mounted_at: u64,
    /// How often it was mounted for writing.
    pub mounts: u32,
    /// The seed of the checksums of metadata. It outlives a change of the UUID.
    pub checksum_seed: [u8; 16],
    /// The process that has the volume open for writing, if any.
    pub holder: Option<Holder>,
    /// How a mount reacts to damage by default.
    pub errors_policy: ErrorsPolicy,
    /// Damage that was seen since the last full check.
    pub damage: Option<Damage>,
    /// Space that only some may use.
    pub reserve: Reserve,
    /// Where the journal is, with [`Incompat::JOURNAL`]; else without meaning.
    pub journal: JournalArea,
    /// Reserved for volumes in object stores: the identity of the volume's objects.
    pub object_id: [u8; 16],
    /// The blocks of each half of the intent log.
    pub intent_log_blocks: u32,
    /// How new contents are compressed, with [`Incompat::CLUSTERS`].
    pub compression: Compression,
    /// How many marks the volume has been given.
    pub marks: u32,
    /// Up to this count, stamps of directories are not valid, because of repairs or unread directories.
    pub marks_walked: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskSuperblock {
    magic: [u8; 8],
    checksum: U32,
    version: U32,
    uuid: [u8; 16],
    label: [u8; 64],
    compat: U32,
    ro_compat: U32,
    incompat: U32,
    block_bytes: U32,
    fragment_bytes: U32,
    sector_bytes: U32,
    segment_bytes: U32,
    inline_bytes_max: U16,
    policy: u8,
    state: u8,
    blocks: U64,
    cg_blocks: U32,
    cgs_made: U32,
    generation: U64,
    epoch: U64,
    free_fragments: U64,
    inodes: U64,
    inode_rotor: U64,
    cg_rotor: U32,
    mounts: U32,
    hash_seed: [u8; 16],
    made_at: U64,
    mounted_at: U64,
    checksum_seed: [u8; 16],
    holder: DiskHolder,
    errors_policy: u8,
    error_flags: u8,
    error_code: U16,
    error_count: U32,
    error_first_at: U64,
    error_last_at: U64,
    error_ino: U64,
    reserve_fragments: U64,
    reserve_uid: U32,
    reserve_gid: U32,
    journal_start: U64,
    journal_blocks: U32,
    journal_flags: U32,
    journal_uuid: [u8; 16],
    object_id: [u8; 16],
    intent_log_blocks: U32,
    codec: u8,
    compression_level: u8,
    pad: [u8; 2],
    journal_sequence: U64,
    journal_era: U64,
    marks: U32,
    marks_walked: U32,
    reserved: [u8; 64],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DiskHolder {
    host: [u8; 16],
    boot: [u8; 16],
    name: [u8; HOLDER_NAME_BYTES],
    pid: U32,
    process_started: U32,
    started: U64,
}

const _: () = assert!(size_of::<DiskSuperblock>() == SUPERBLOCK_BYTES);
const _: () = assert!(std::mem::offset_of!(DiskSuperblock, checksum) == CHECKSUM_AT);
const _: () = assert!(std::mem::offset_of!(DiskSuperblock, checksum_seed) == 224);
const _: () = assert!(std::mem::offset_of!(DiskSuperblock, errors_policy) == 320);
const _: () = assert!(std::mem::offset_of!(DiskSuperblock, journal_sequence) == 424);
const _: () = assert!(std::mem::offset_of!(DiskSuperblock, reserved) == 448);

impl Superblock {
    /// Decodes the superblock that was read from byte `offset` of the device.
    pub fn decode(bytes: &[u8], offset: u64) -> Result<Superblock> {
        let bytes = bytes
            .get(..SUPERBLOCK_BYTES)
            .ok_or(Error::Corruption(Corruption::SuperblockMagic { offset }))?;
        let disk = DiskSuperblock::ref_from_bytes(bytes)
            .map_err(|_| Corruption::SuperblockMagic { offset })?;
        if disk.magic != MAGIC {
            return Err(Corruption::SuperblockMagic { offset }.into());
        }
        if !Checksum::new(&disk.uuid).verify(bytes, CHECKSUM_AT) {
            return Err(Corruption::SuperblockChecksum { offset }.into());
        }
        if disk.version.get() != VERSION {
            return Err(Error::Unsupported(format!(
                "the volume has format version {}, this program knows version {VERSION}",
                disk.version
            )));
        }
        let incompat = Incompat::from_bits(disk.incompat.get()).ok_or_else(|| {
            Error::Unsupported(format!(
                "the volume has features that this program does not know (incompat {:#x})",
                disk.incompat.get() & !Incompat::all().bits()
            ))
        })?;
        let field = |field, value| Corruption::SuperblockField { field, value };
        let superblock = Superblock {
            uuid: disk.uuid,
            label: unpadded(&disk.label),
            compat: disk.compat.get(),
            ro_compat: RoCompat::from_bits_retain(disk.ro_compat.get()),
            incompat,
            block_bytes: disk.block_bytes.get(),
            fragment_bytes: disk.fragment_bytes.get(),
            sector_bytes: disk.sector_bytes.get(),
            segment_bytes: disk.segment_bytes.get(),
            inline_bytes_max: disk.inline_bytes_max.get(),
            blocks: disk.blocks.get(),
            cg_blocks: disk.cg_blocks.get(),
            cgs_made: disk.cgs_made.get(),
            policy: Policy::from_byte(disk.policy)
                .ok_or_else(|| field("policy", disk.policy.into()))?,
            state: State::from_byte(disk.state).ok_or_else(|| field("state", disk.state.into()))?,
            generation: disk.generation.get(),
            epoch: disk.epoch.get(),
            free_fragments: disk.free_fragments.get(),
            inodes: disk.inodes.get(),
            inode_rotor: disk.inode_rotor.get(),
            cg_rotor: disk.cg_rotor.get(),
            hash_seed: disk.hash_seed,
            made_at: disk.made_at.get(),
            mounted_at: disk.mounted_at.get(),
            mounts: disk.mounts.get(),
            checksum_seed: disk.checksum_seed,
            holder: disk.holder.decode(),
            errors_policy: ErrorsPolicy::from_byte(disk.errors_policy)
                .ok_or_else(|| field("errors_policy", disk.errors_policy.into()))?,
            damage: disk.damage(),
            reserve: Reserve {
                fragments: disk.reserve_fragments.get(),
                uid: disk.reserve_uid.get(),
                gid: disk.reserve_gid.get(),
            },
            journal: JournalArea {
                start: disk.journal_start.get(),
                blocks: disk.journal_blocks.get(),
                flags: JournalFlags::from_bits_retain(disk.journal_flags.get()),
                uuid: disk.journal_uuid,
                sequence: disk.journal_sequence.get(),
                era: disk.journal_era.get(),
            },
            object_id: disk.object_id,
            intent_log_blocks: disk.intent_log_blocks.get(),
            compression: Compression::from_bytes(disk.codec, disk.compression_level)
                .ok_or_else(|| field("codec", disk.codec.into()))?,
            marks: disk.marks.get(),
            marks_walked: disk.marks_walked.get(),
        };
        superblock.check()?;
        Ok(superblock)
    }

    /// The bytes of the superblock, sealed.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let damage = self.damage.unwrap_or_default();
        let error_flags = match self.damage {
            Some(_) => ErrorFlags::SEEN,
            None => ErrorFlags::empty(),
        };
        let disk = DiskSuperblock {
            magic: MAGIC,
            checksum: U32::ZERO,
            version: VERSION.into(),
            uuid: self.uuid,
            label: padded(&self.label),
            compat: self.compat.into(),
            ro_compat: self.ro_compat.bits().into(),
            incompat: self.incompat.bits().into(),
            block_bytes: self.block_bytes.into(),
            fragment_bytes: self.fragment_bytes.into(),
            sector_bytes: self.sector_bytes.into(),
            segment_bytes: self.segment_bytes.into(),
            inline_bytes_max: self.inline_bytes_max.into(),
            policy: self.policy as u8,
            state: self.state as u8,
            blocks: self.blocks.into(),
            cg_blocks: self.cg_blocks.into(),
            cgs_made: self.cgs_made.into(),
            generation: self.generation.into(),
            epoch: self.epoch.into(),
            free_fragments: self.free_fragments.into(),
            inodes: self.inodes.into(),
            inode_rotor: self.inode_rotor.into(),
            cg_rotor: self.cg_rotor.into(),
            mounts: self.mounts.into(),
            hash_seed: self.hash_seed,
            made_at: self.made_at.into(),
            mounted_at: self.mounted_at.into(),
            checksum_seed: self.checksum_seed,
            holder: DiskHolder::encode(self.holder.as_ref()),
            errors_policy: self.errors_policy as u8,
            error_flags: error_flags.bits(),
            error_code: damage.code.into(),
            error_count: damage.count.into(),
            error_first_at: damage.first_at.into(),
            error_last_at: damage.last_at.into(),
            error_ino: damage.ino.0.into(),
            reserve_fragments: self.reserve.fragments.into(),
            reserve_uid: self.reserve.uid.into(),
            reserve_gid: self.reserve.gid.into(),
            journal_start: self.journal.start.into(),
            journal_blocks: self.journal.blocks.into(),
            journal_flags: self.journal.flags.bits().into(),
            journal_uuid: self.journal.uuid,
            object_id: self.object_id,
            intent_log_blocks: self.intent_log_blocks.into(),
            codec: self.compression.to_bytes().0,
            compression_level: self.compression.to_bytes().1,
            pad: [0; 2],
            journal_sequence: self.journal.sequence.into(),
            journal_era: self.journal.era.into(),
            marks: self.marks.into(),
            marks_walked: self.marks_walked.into(),
            reserved: [0; 64],
        };
        let mut bytes = [0; SUPERBLOCK_BYTES];
        bytes.copy_from_slice(disk.as_bytes());
        Checksum::new(&self.uuid).seal(&mut bytes, CHECKSUM_AT);
        bytes
    }

    /// The checksum of this volume's metadata. The checksum of the superblock itself and of its copies is
    /// always seeded with their own UUID.
    pub fn checksum(&self) -> Checksum {
        Checksum::new(&self.checksum_seed)
    }

    /// Checks that each size is in its range and that they fit each other, so that the arithmetic
    /// of [`Layout`] cannot fail.
    pub fn check(&self) -> Result<(), Corruption> {
        let power = |field, value: u32, min: u32, max: u32| {
            if value.is_power_of_two() && (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(Corruption::SuperblockField { field, value: value.into() })
            }
        };
        let below = |field, value: u64, limit: u64| {
            if value < limit { Ok(()) } else { Err(Corruption::SuperblockField { field, value }) }
        };
        power("block_bytes", self.block_bytes, 4096, 65536)?;
        power("fragment_bytes", self.fragment_bytes, 512, self.block_bytes)?;
        power("block_bytes", self.block_bytes, self.fragment_bytes, self.fragment_bytes * 64)?;
        power("sector_bytes", self.sector_bytes, 512, 4096)?;
        power("segment_bytes", self.segment_bytes, self.block_bytes, 16 << 20)?;
        power("cg_blocks", self.cg_blocks, 64, 1 << 20)?;
        if self.segment_bytes / self.block_bytes > self.cg_blocks {
            return Err(Corruption::SuperblockField {
                field: "segment_bytes",
                value: self.segment_bytes.into(),
            });
        }
        below("inline_bytes_max", self.inline_bytes_max.into(), self.sector_bytes.into())?;
        let cgs = self.blocks.div_ceil(self.cg_blocks.into());
        below("blocks", self.blocks, 1 << 40)?;
        below("blocks", cgs, 1 << 31)?;
        if self.blocks < 64 {
            return Err(Corruption::SuperblockField { field: "blocks", value: self.blocks });
        }
        below("cgs_made", self.cgs_made.into(), cgs + 1)?;
        below("cg_rotor", self.cg_rotor.into(), cgs)?;
        let fragments = self.blocks * u64::from(self.block_bytes / self.fragment_bytes);
        below("reserve_fragments", self.reserve.fragments, fragments)?;
        let intent_log_max = Layout::intent_log_half_blocks_max(self.block_bytes, self.cg_blocks);
        if !(1..=intent_log_max).contains(&self.intent_log_blocks) {
            let value = self.intent_log_blocks.into();
            return Err(Corruption::SuperblockField { field: "intent_log_blocks", value });
        }
        if self.incompat.contains(Incompat::CLUSTERS) {
            power("block_bytes", self.block_bytes, 4096, 16384)?;
        }
        if self.compression != Compression::Off && !self.incompat.contains(Incompat::CLUSTERS) {
            let value = self.compression.to_bytes().0.into();
            return Err(Corruption::SuperblockField { field: "codec", value });
        }
        self.check_journal()?;
        let layout = Layout::new(self);
        for cg in [CgIndex(0), CgIndex(layout.cgs() - 1)] {
            // A group has room for its head and, if it is the last, for the end of the volume.
            if layout.cg_len_blocks(cg) < layout.cg_reserved_blocks(cg) + 8 {
                return Err(Corruption::SuperblockField { field: "blocks", value: self.blocks });
            }
        }
        Ok(())
    }

    /// Checks that the journal, if there is one on the volume, follows the head of a group and leaves room in
    /// it.
    fn check_journal(&self) -> Result<(), Corruption> {
        if !self.incompat.contains(Incompat::JOURNAL) {
            return Ok(());
        }
        let field = |field, value| Err(Corruption::SuperblockField { field, value });
        if JournalFlags::from_bits(self.journal.flags.bits()).is_none() {
            return field("journal_flags", self.journal.flags.bits().into());
        }
        if self.journal.sequence > journal::SEQUENCE_MAX {
            return field("journal_sequence", self.journal.sequence);
        }
        if self.journal.flags.contains(JournalFlags::EXTERNAL) {
            return match self.journal.blocks {
                _ if self.journal.start != 0 => field("journal_start", self.journal.start),
                journal::JOURNAL_BLOCKS_MIN..=journal::JOURNAL_BLOCKS_MAX => Ok(()),
                blocks => field("journal_blocks", blocks.into()),
            };
        }
        if !(journal::JOURNAL_BLOCKS_MIN..=self.cg_blocks).contains(&self.journal.blocks) {
            return field("journal_blocks", self.journal.blocks.into());
        }
        if self.journal.start >= self.blocks {
            return field("journal_start", self.journal.start);
        }
        let layout = Layout::new(self);
        let cg = layout.journal_cg;
        if layout.journal_start(cg).0 != self.journal.start
            || layout.cg_reserved_blocks(cg) + 8 > layout.cg_len_blocks(cg)
        {
            return field("journal_start", self.journal.start);
        }
        Ok(())
    }
}

impl DiskSuperblock {
    fn damage(&self) -> Option<Damage> {
        let is_seen = ErrorFlags::from_bits_retain(self.error_flags).contains(ErrorFlags::SEEN);
        is_seen.then(|| Damage {
            code: self.error_code.get(),
            count: self.error_count.get(),
            first_at: self.error_first_at.get(),
            last_at: self.error_last_at.get(),
            ino: InodeNo(self.error_ino.get()),
        })
    }
}

impl DiskHolder {
    /// A field of zeros means that no process has the volume open.
    fn decode(&self) -> Option<Holder> {
        self.as_bytes().iter().any(|byte| *byte != 0).then(|| Holder {
            host: self.host,
            boot: self.boot,
            name: unpadded(&self.name),
            pid: self.pid.get(),
            process_started: self.process_started.get(),
            started: self.started.get(),
        })
    }

    fn encode(holder: Option<&Holder>) -> DiskHolder {
        let Some(holder) = holder else { return DiskHolder::new_zeroed() };
        DiskHolder {
            host: holder.host,
            boot: holder.boot,
            name: padded(&holder.name),
            pid: holder.pid.into(),
            process_started: holder.process_started.into(),
            started: holder.started.into(),
        }
    }
}

/// A text without the zeros that fill its field.
fn unpadded(field: &[u8]) -> Vec<u8> {
    field.iter().take_while(|byte| **byte != 0).copied().collect()
}

/// A text in a field of `N` bytes, cut off if it is longer.
fn padded<const N: usize>(text: &[u8]) -> [u8; N] {
    let mut field = [0; N];
    let len = text.len().min(N);
    field[..len].copy_from_slice(&text[..len]);
    field
}
