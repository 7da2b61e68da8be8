//! Tests of the codecs: against their own inverse, against plain models, against bytes that no
//! writer made, and against the tables of `docs/FORMAT.md`.

use std::ops::Range;

use proptest::prelude::*;
use zerocopy::FromZeros;

use super::inode::{DiskInode, FileType, InodeFlags, LinkTag, LinkTagKind, Record};
use super::superblock::{
    Compression, Damage, ErrorsPolicy, Holder, Incompat, JournalArea, JournalFlags, Policy,
    Reserve, RoCompat, State,
};
use super::{Checksum, Superblock};
use crate::units::{Container, EpochNo, InodeNo, SectorIndex};

mod blocks;
mod document;
mod inode;
mod intent_log;
mod layout;
mod quota;
mod sector;
mod superblock;

const UUID: [u8; 16] = *b"0123456789abcdef";

fn checksum() -> Checksum {
    Checksum::new(&UUID)
}

/// A superblock in which no two fields have the same value.
fn superblock() -> Superblock {
    Superblock {
        uuid: UUID,
        label: b"label".to_vec(),
        compat: 0x0102_0304,
        ro_compat: RoCompat::all(),
        incompat: Incompat::EMBED.union(Incompat::CLUSTERS),
        block_bytes: 8192,
        fragment_bytes: 1024,
        sector_bytes: 2048,
        segment_bytes: 65536,
        inline_bytes_max: 300,
        blocks: 1_000_000,
        cg_blocks: 32768,
        cgs_made: 3,
        policy: Policy::Hint,
        state: State::InUse,
        generation: 0x1122_3344_5566,
        epoch: 0x2233_4455_6677,
        free_fragments: 123_456,
        inodes: 654_321,
        inode_rotor: 777,
        cg_rotor: 9,
        hash_seed: *b"fedcba9876543210",
        made_at: 1_700_000_000,
        mounted_at: 1_800_000_000,
        mounts: 55,
        checksum_seed: *b"seeds and grains",
        holder: Some(Holder {
            host: *b"one host of many",
            boot: *b"one of its boots",
            name: b"host.example".to_vec(),
            pid: 4242,
            process_started: 0x5152_5354,
            started: 1_900_000_000,
        }),
        errors_policy: ErrorsPolicy::RemountReadOnly,
        damage: Some(Damage {
            code: 201,
            count: 0x6162_6364,
            first_at: 1_810_000_000,
            last_at: 1_820_000_000,
            ino: InodeNo(0x7172_7374_7576),
        }),
        reserve: Reserve { fragments: 33, uid: 1001, gid: 1002 },
        journal: JournalArea {
            start: 444_444,
            blocks: 2048,
            flags: JournalFlags::from_bits_retain(0x0a0b),
            uuid: *b"a journal's UUID",
            sequence: 0x8182_8384,
            era: 0x9192_9394,
        },
        object_id: *b"a heap of object",
        intent_log_blocks: 29,
        compression: Compression::Zstd(7),
        marks: 0x0203_0405,
        marks_walked: 0x0607_0809,
    }
}

/// A regular file without contents.
fn disk_inode(ino: u64) -> DiskInode {
    DiskInode {
        ino: ino.into(),
        mode: 0o100_644.into(),
        nlink: 1.into(),
        ..DiskInode::new_zeroed()
    }
}

fn container(file: u64, sector: u32) -> Container {
    Container { file: InodeNo(file), sector: SectorIndex(sector) }
}

fn link_tag() -> LinkTag {
    LinkTag {
        epoch: EpochNo(0x0102_0304_0506),
        kind: LinkTagKind::Unlinked,
        place: container(77, 88),
        count: 99,
    }
}

/// Bytes and a few places in them to damage: the way from a valid structure to a broken one.
fn mutations() -> impl Strategy<Value = Vec<(usize, u8)>> {
    prop::collection::vec((any::<usize>(), any::<u8>()), 1..8)
}

fn mutate(bytes: &mut [u8], mutations: &[(usize, u8)], within: Range<usize>) {
    for (at, value) in mutations {
        bytes[within.start + at % within.len()] = *value;
    }
}
