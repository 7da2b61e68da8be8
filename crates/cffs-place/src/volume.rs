//! Which file system a path is on, and how it reads.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Serialize;

/// A file system that this program knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// ext4, and ext3 and ext2 that its driver has mounted.
    Ext4,
    /// XFS.
    Xfs,
    /// btrfs.
    Btrfs,
}

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
        }
    }
}

/// What is known of a mounted file system.
#[derive(Clone, Debug)]
pub struct Volume {
    /// The file system.
    pub kind: Kind,
    /// `st_dev` of its files.
    pub device: u64,
    /// The block of its space, in bytes.
    pub block_bytes: u64,
    /// How far the kernel reads ahead in a file, in bytes.
    pub read_ahead_bytes: u64,
    /// How its inodes lie.
    pub inodes: Inodes,
}

/// How the inodes of a volume lie, as far as reading them goes.
#[derive(Clone, Debug)]
pub enum Inodes {
    /// ext4: tables, one in each group, read in aligned windows.
    Tables(Tables),
    /// XFS: clusters of as many inodes, each read as a whole.
    Clusters {
        /// The inodes of a cluster.
        inodes: u64,
    },
    /// btrfs: items in leaves of a tree.
    Leaves {
        /// The size of a leaf.
        bytes: u64,
    },
}

/// The inode tables of ext4.
#[derive(Clone, Debug)]
pub struct Tables {
    /// The inodes of a group.
    pub inodes_per_group: u64,
    /// The inodes of a block of a table.
    pub inodes_per_block: u64,
    /// The blocks that are read at once, aligned to their number.
    pub window_blocks: u64,
    /// The first block of each group's table; empty where the device cannot be read.
    pub starts: Vec<u64>,
}

const EXT4_MAGIC: u64 = 0xEF53;
const XFS_MAGIC: u64 = 0x5846_5342;
const BTRFS_MAGIC: u64 = 0x9123_683E;

impl Volume {
    /// The volume that a path is on.
    pub fn of(path: &Path) -> Result<Volume> {
        let at = || path.display().to_string();
        let status = rustix::fs::statfs(path).with_context(at)?;
        let device = fs::metadata(path).with_context(at)?.dev();
        let kind = match status.f_type as u64 {
            EXT4_MAGIC => Kind::Ext4,
            XFS_MAGIC => Kind::Xfs,
            BTRFS_MAGIC => Kind::Btrfs,
            other => bail!(
                "{}: a file system that place does not know (type {other:#x}); it works on ext4, XFS \
                 and btrfs",
                at()
            ),
        };
        let block_bytes = status.f_bsize as u64;
        let inodes = match kind {
            Kind::Ext4 => Inodes::Tables(tables(device, block_bytes)),
            // 8 KiB for inodes of 256 bytes, in proportion for larger ones: always as many inodes.
            Kind::Xfs => Inodes::Clusters { inodes: 32 },
            Kind::Btrfs => Inodes::Leaves { bytes: 16 << 10 },
        };
        let read_ahead_bytes = read_ahead(kind, device);
        Ok(Volume { kind, device, block_bytes, read_ahead_bytes, inodes })
    }
}

/// The usual tables where the device may not be read, which is root's.
fn tables(device: u64, block_bytes: u64) -> Tables {
    let usual = Tables {
        inodes_per_group: 8192,
        inodes_per_block: (block_bytes / 256).max(1),
        window_blocks: 32,
        starts: Vec::new(),
    };
    let mut tables = read_tables(device).unwrap_or(usual);
    if let Some(blocks) = node(device).and_then(|node| {
        let name = node.file_name()?.to_owned();
        let attribute = Path::new("/sys/fs/ext4").join(name).join("inode_readahead_blks");
        fs::read_to_string(attribute).ok()?.trim().parse().ok()
    }) {
        tables.window_blocks = u64::max(blocks, 1);
    }
    tables
}

fn read_tables(device: u64) -> Option<Tables> {
    let disk = File::open(node(device)?).ok()?;
    let mut superblock = [0; 1024];
    disk.read_exact_at(&mut superblock, 1024).ok()?;
    let word = |at: usize| {
        u64::from(u32::from_le_bytes(superblock[at..at + 4].try_into().unwrap_or([0; 4])))
    };
    let half = |at: usize| u64::from(u16::from_le_bytes([superblock[at], superblock[at + 1]]));
    let (has_64_bits, has_meta_groups) = (word(0x60) & 0x80 != 0, word(0x60) & 0x10 != 0);
    let log_block = word(0x18);
    let (per_block_group, inodes_per_group, first) = (word(0x20), word(0x28), word(0x14));
    let inode_bytes = half(0x58).max(128);
    if half(0x38) != EXT4_MAGIC || has_meta_groups || log_block > 6 || inodes_per_group == 0 {
        return None;
    }
    let block_bytes = 1024 << log_block;
    let blocks = word(0x4) | if has_64_bits { word(0x150) << 32 } else { 0 };
    let groups = blocks.checked_sub(first)?.div_ceil(per_block_group.max(1)).min(1 << 20);
    let descriptor_bytes = if has_64_bits { half(0xFE).max(32) } else { 32 };
    let mut descriptors = vec![0; (groups * descriptor_bytes) as usize];
    disk.read_exact_at(&mut descriptors, (first + 1) * block_bytes).ok()?;
    let starts = descriptors
        .chunks(descriptor_bytes as usize)
        .map(|descriptor| {
            let part = |at: usize| {
                let bytes = descriptor.get(at..at + 4).and_then(|part| part.try_into().ok());
                u64::from(u32::from_le_bytes(bytes.unwrap_or([0; 4])))
            };
            part(8) | if descriptor_bytes >= 64 { part(0x28) << 32 } else { 0 }
        })
        .collect();
    let inodes_per_block = (block_bytes / inode_bytes).max(1);
    Some(Tables { inodes_per_group, inodes_per_block, window_blocks: 32, starts })
}

/// The node of a block device.
fn node(device: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let link = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    Some(Path::new("/dev").join(link.file_name()?))
}

const READ_AHEAD_USUAL: u64 = 128 << 10;

fn read_ahead(kind: Kind, device: u64) -> u64 {
    // btrfs has files on a device of its own making, and reads ahead further than its disks.
    if kind == Kind::Btrfs {
        return 4 << 20;
    }
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let read = |path: String| -> io::Result<u64> {
        fs::read_to_string(path)?.trim().parse::<u64>().map_err(io::Error::other)
    };
    read(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"))
        .map_or(READ_AHEAD_USUAL, |kib| kib << 10)
}
