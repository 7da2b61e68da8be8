//! The file system of a path, and how it reads.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Serialize;

/// A supported file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// ext4, and ext3 and ext2 mounted by its driver.
    Ext4,
    Xfs,
    Btrfs,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
        }
    }
}

/// The properties of a mounted file system.
#[derive(Clone, Debug)]
pub struct Volume {
    /// The file system.
    pub kind: Kind,
    /// `st_dev` of its files.
    pub device: u64,
    /// The size of its allocation block, in bytes.
    pub block_bytes: u64,
    /// The number of its inodes, used and free.
    pub files: u64,
    /// The kernel's read-ahead limit for a file, in bytes.
    pub read_ahead_bytes: u64,
    pub inodes: Inodes,
}

/// The layout of a volume's inodes, as far as it affects reading them.
#[derive(Clone, Debug)]
pub enum Inodes {
    /// ext4: tables, one in each group, read in aligned windows.
    Tables(Tables),
    /// XFS: clusters of this many inodes, each read as a whole.
    Clusters {
        /// The inodes per cluster.
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
    pub inodes_per_group: u64,
    /// The inodes per block of a table.
    pub inodes_per_block: u64,
    /// The number of blocks read at once, an aligned window.
    pub window_blocks: u64,
    /// The first block of each group's table; empty where the device cannot be read.
    pub starts: Vec<u64>,
}

const EXT4_MAGIC: u64 = 0xEF53;
const XFS_MAGIC: u64 = 0x5846_5342;
const BTRFS_MAGIC: u64 = 0x9123_683E;

/// The type of the file system with this device number, from the kernel's list of mounts.
fn type_name(device: u64) -> Option<String> {
    let list = fs::read(mount_list::OWN).ok()?;
    let device = (rustix::fs::major(device), rustix::fs::minor(device));
    let mount = mount_list::parse(&list).find(|mount| mount.device == device)?;
    Some(String::from_utf8_lossy(mount.kind).into_owned())
}

impl Volume {
    pub fn of(path: &Path) -> Result<Volume> {
        let at = || path.display().to_string();
        let status = rustix::fs::statfs(path).with_context(at)?;
        let device = fs::metadata(path).with_context(at)?.dev();
        let kind = match status.f_type as u64 {
            EXT4_MAGIC => Kind::Ext4,
            XFS_MAGIC => Kind::Xfs,
            BTRFS_MAGIC => Kind::Btrfs,
            other => bail!(
                "{}: unsupported file system ({}); place works on ext4, XFS and btrfs",
                at(),
                type_name(device).unwrap_or_else(|| format!("type {other:#x}"))
            ),
        };
        let block_bytes = status.f_bsize as u64;
        let inodes = match kind {
            Kind::Ext4 => Inodes::Tables(tables(device, block_bytes)),
            // 8 KiB for inodes of 256 bytes, in proportion for larger ones: always this many
            // inodes.
            Kind::Xfs => Inodes::Clusters { inodes: 32 },
            Kind::Btrfs => Inodes::Leaves { bytes: 16 << 10 },
        };
        let read_ahead_bytes = read_ahead(kind, device);
        let files = status.f_files as u64;
        Ok(Volume { kind, device, block_bytes, files, read_ahead_bytes, inodes })
    }
}

/// The usual layout of the tables is assumed if the device cannot be read, which needs root.
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
    let superblock = Superblock::read(&disk)?;
    let Superblock { block_bytes, inodes_per_group, inode_bytes, .. } = superblock;
    let descriptor_bytes = superblock.descriptor_bytes?;
    let mut descriptors = vec![0; (superblock.groups() * descriptor_bytes) as usize];
    disk.read_exact_at(&mut descriptors, (superblock.first_block + 1) * block_bytes).ok()?;
    let starts = descriptors
        .chunks(descriptor_bytes as usize)
        .map(|descriptor| {
            let high = if descriptor_bytes >= 64 { word(descriptor, 0x28) << 32 } else { 0 };
            word(descriptor, 8) | high
        })
        .collect();
    let inodes_per_block = (block_bytes / inode_bytes).max(1);
    Some(Tables { inodes_per_group, inodes_per_block, window_blocks: 32, starts })
}

/// The fields of ext4's superblock that describe its groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Superblock {
    pub block_bytes: u64,
    pub blocks: u64,
    pub blocks_per_group: u64,
    pub inodes_per_group: u64,
    pub inode_bytes: u64,
    /// The first block of the first group.
    pub first_block: u64,
    /// The number of groups whose tables are adjacent; 1 without flex groups.
    pub groups_per_flex: u64,
    /// Whether files have extents; those of ext2 and ext3 do not.
    pub has_extents: bool,
    /// The size of a group descriptor, if all are in one table.
    pub descriptor_bytes: Option<u64>,
}

impl Superblock {
    /// Reads it from a device; nothing if that is not ext4 or cannot be read.
    pub fn of(device: u64) -> Option<Superblock> {
        Superblock::read(&File::open(node(device)?).ok()?)
    }

    pub fn groups(&self) -> u64 {
        let blocks = self.blocks.saturating_sub(self.first_block);
        blocks.div_ceil(self.blocks_per_group).min(GROUPS_MAX)
    }

    fn read(disk: &File) -> Option<Superblock> {
        let mut bytes = [0; 1024];
        disk.read_exact_at(&mut bytes, 1024).ok()?;
        let half = |at: usize| word(&bytes, at) & 0xFFFF;
        let features = word(&bytes, 0x60);
        let (has_64_bits, log_block) = (features & 0x80 != 0, word(&bytes, 0x18));
        let (blocks_per_group, inodes_per_group) = (word(&bytes, 0x20), word(&bytes, 0x28));
        if half(0x38) != EXT4_MAGIC || log_block > 6 || blocks_per_group * inodes_per_group == 0 {
            return None;
        }
        let descriptor_bytes = if has_64_bits { half(0xFE).max(32) } else { 32 };
        let log_flex = if features & 0x200 != 0 { bytes[0x174].min(31) } else { 0 };
        Some(Superblock {
            block_bytes: 1024 << log_block,
            blocks: word(&bytes, 4) | if has_64_bits { word(&bytes, 0x150) << 32 } else { 0 },
            blocks_per_group,
            inodes_per_group,
            inode_bytes: half(0x58).max(128),
            first_block: word(&bytes, 0x14),
            groups_per_flex: 1 << log_flex,
            has_extents: features & 0x40 != 0,
            descriptor_bytes: (features & 0x10 == 0).then_some(descriptor_bytes),
        })
    }
}

/// A superblock with more groups than this is rejected.
const GROUPS_MAX: u64 = 1 << 20;

/// A little-endian word; zero beyond the end.
fn word(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    u64::from(u32::from_le_bytes(bytes.unwrap_or([0; 4])))
}

/// The node of a block device.
pub(crate) fn node(device: u64) -> Option<PathBuf> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let link = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    Some(Path::new("/dev").join(link.file_name()?))
}

const READ_AHEAD_USUAL: u64 = 128 << 10;

fn read_ahead(kind: Kind, device: u64) -> u64 {
    // Files of btrfs have a virtual device of their own, with more read-ahead than its disks.
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
