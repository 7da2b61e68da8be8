//! The groups of a volume, in which directories and files can be placed.
//!
//! ext4 has block groups. If the flex_bg feature is on, as by default, several form a flex group; the kernel
//! then chooses among them, so that only the flex group can be controlled. XFS has allocation groups. btrfs
//! has no such units.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::sys;
use crate::volume::{Kind, Superblock, Volume, node};

/// How a volume is divided.
#[derive(Clone, Debug, Serialize)]
pub struct Groups {
    pub count: u64,
    pub unit: Unit,
    /// The size of a group in bytes; the last one may be smaller.
    pub group_bytes: u64,
    #[serde(skip)]
    pub block_bytes: u64,
    /// The beginning of the first group on the device, in bytes.
    #[serde(skip)]
    first_byte: u64,
    #[serde(skip)]
    numbering: Numbering,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A block group of ext4.
    BlockGroup,
    /// This many block groups of ext4.
    FlexGroup(u64),
    /// An allocation group of XFS.
    AllocationGroup,
}

/// How a group follows from the number of an inode.
#[derive(Clone, Copy, Debug)]
enum Numbering {
    /// Inodes are counted from 1, with this many in each group.
    Counted(u64),
    /// The bits from this one on are the number of the group.
    Bits(u32),
}

impl Groups {
    pub fn of(directory: &Path) -> Result<Groups> {
        let at = || directory.display().to_string();
        let volume = Volume::of(directory)?;
        match volume.kind {
            Kind::Ext4 => of_ext4(&volume, directory).with_context(at),
            Kind::Xfs => {
                let open = File::open(directory).with_context(at)?;
                of_xfs(sys::xfs_geometry(&open).with_context(at)?).with_context(at)
            }
            Kind::Btrfs => bail!(
                "{}: btrfs writes everything to a new place, wherever its allocator is: no group \
                 can be chosen",
                at()
            ),
        }
    }

    pub fn of_inode(&self, inode: u64) -> u64 {
        match self.numbering {
            Numbering::Counted(per_group) => inode.saturating_sub(1) / per_group,
            Numbering::Bits(shift) => inode.checked_shr(shift).unwrap_or(0),
        }
    }

    /// The group of an offset on the device, in bytes.
    pub fn of_place(&self, physical: u64) -> u64 {
        physical.saturating_sub(self.first_byte) / self.group_bytes
    }

    /// The first inode of a group on ext4, which serves as the goal for the kernel.
    pub fn first_inode(&self, group: u64) -> u64 {
        match self.numbering {
            Numbering::Counted(per_group) => group * per_group + 1,
            Numbering::Bits(shift) => group << shift,
        }
    }

    /// The free bytes of each group, if the kernel reports them: in ext4's summary, or by XFS's ioctl.
    pub fn free_bytes(&self, directory: &Path) -> Result<Vec<u64>> {
        let volume = Volume::of(directory)?;
        let mut free = vec![0; self.count as usize];
        if self.unit == Unit::AllocationGroup {
            let open = File::open(directory).with_context(|| directory.display().to_string())?;
            for (group, free) in free.iter_mut().enumerate() {
                let blocks = sys::xfs_group_free_blocks(&open, group as u32)
                    .with_context(|| format!("query group {group}"))?;
                *free = blocks * volume.block_bytes;
            }
            return Ok(free);
        }
        let per_unit = if let Unit::FlexGroup(groups) = self.unit { groups } else { 1 };
        let summary = summary(&volume)?;
        // With bigalloc, the kernel counts clusters of a power of two of blocks.
        let all = rustix::fs::statfs(directory).context("query the free space")?.f_bfree as u64;
        let counted: u64 = summary.iter().map(|(_, free)| free).sum();
        let unit_bytes = volume.block_bytes * nearest_power_of_two(all, counted);
        for (group, units) in summary {
            if let Some(free) = free.get_mut((group / per_unit) as usize) {
                *free += units * unit_bytes;
            }
        }
        Ok(free)
    }

    /// All groups, the nearest to this one first.
    pub fn by_distance(&self, group: u64) -> Vec<u64> {
        let mut groups: Vec<u64> = (0..self.count).collect();
        groups.sort_by_key(|&other| other.abs_diff(group));
        groups
    }

    /// Refuses a number beyond the last group.
    pub fn check(&self, group: u64) -> Result<()> {
        match group < self.count {
            true => Ok(()),
            false => bail!("there is no group {group}: the last one is {}", self.count - 1),
        }
    }
}

const NOT_CONTROLLED: &str =
    "its files have no extents (ext2 or ext3): where their blocks go cannot be chosen";

fn of_ext4(volume: &Volume, directory: &Path) -> Result<Groups> {
    let shape = match Superblock::of(volume.device) {
        Some(superblock) if !superblock.has_extents => bail!(NOT_CONTROLLED),
        Some(superblock) => Shape {
            count: superblock.groups(),
            // As users other than root see it.
            per_flex: superblock.groups_per_flex.min(superblock.groups().next_power_of_two()),
            inodes: superblock.inodes_per_group,
            group_bytes: superblock.blocks_per_group * volume.block_bytes,
            first_byte: superblock.first_block * volume.block_bytes,
        },
        None => observed(volume, directory)?,
    };
    let Shape { count, per_flex, inodes, group_bytes, first_byte } = shape;
    Ok(Groups {
        count: count.div_ceil(per_flex),
        unit: if per_flex > 1 { Unit::FlexGroup(per_flex) } else { Unit::BlockGroup },
        group_bytes: per_flex * group_bytes,
        block_bytes: volume.block_bytes,
        first_byte,
        numbering: Numbering::Counted(per_flex * inodes),
    })
}

/// How ext4 is divided into block groups.
#[derive(Debug, PartialEq, Eq)]
struct Shape {
    count: u64,
    /// The block groups of a flex group; 1 without flex groups.
    per_flex: u64,
    inodes: u64,
    group_bytes: u64,
    first_byte: u64,
}

/// Determines without privileges how ext4 is divided. Its summary names each group. Its map of the device has
/// the copies of the superblock, one in each of the first two groups, and the adjacent block bitmaps of the
/// first flex group.
fn observed(volume: &Volume, directory: &Path) -> Result<Shape> {
    let unknown = "only root can find out how it is divided: it is not as mkfs.ext4 divides it";
    let count = summary(volume)?.len() as u64;
    let open = File::open(directory).context("open it")?;
    let (mut copies, mut bitmaps, mut end) = (Vec::new(), None, 0);
    let mut last = sys::MapRecord::default();
    loop {
        let records = sys::device_map(&open, &last).context("query the map of the device")?;
        for record in &records {
            match record.owner {
                sys::MAP_SUPERBLOCK => copies.push(record.physical),
                sys::MAP_BLOCK_BITMAP if bitmaps.is_none() => {
                    bitmaps = Some(record.length / volume.block_bytes);
                }
                _ => {}
            }
            end = record.physical + record.length;
        }
        match records.last() {
            Some(record) if copies.len() < 2 && !record.is_last() => last = *record,
            _ => break,
        }
    }
    let (Some(&first_byte), Some(bitmaps)) = (copies.first(), bitmaps) else { bail!(unknown) };
    let group_bytes = copies.get(1).copied().unwrap_or(end) - first_byte;
    let is_plausible = count > 0
        && volume.files.is_multiple_of(count)
        && (count > 1) == (copies.len() > 1)
        && first_byte + (count - 1) * group_bytes < device_bytes(volume)?;
    // In a volume with fewer groups, the only flex group is not full.
    let per_flex = if bitmaps == count { bitmaps.next_power_of_two() } else { bitmaps };
    if !is_plausible || !per_flex.is_power_of_two() {
        bail!(unknown);
    }
    Ok(Shape { count, per_flex, inodes: volume.files / count, group_bytes, first_byte })
}

fn device_bytes(volume: &Volume) -> Result<u64> {
    let attribute = Path::new("/sys/class/block").join(name_of(volume)?).join("size");
    let sectors =
        fs::read_to_string(&attribute).with_context(|| attribute.display().to_string())?;
    Ok(sectors.trim().parse::<u64>().context("the size of its device")? * 512)
}

/// The power of two that is nearest to a ratio; 1 for a ratio with zero.
fn nearest_power_of_two(above: u64, below: u64) -> u64 {
    match (above, below) {
        (0, _) | (_, 0) => 1,
        _ => 1 << (above as f64 / below as f64).log2().round().clamp(0.0, 20.0) as u32,
    }
}

/// ext4's own summary of its groups: each with its free space, in blocks or clusters.
fn summary(volume: &Volume) -> Result<Vec<(u64, u64)>> {
    let summary = Path::new("/proc/fs/ext4").join(name_of(volume)?).join("mb_groups");
    let text = fs::read_to_string(&summary).with_context(|| summary.display().to_string())?;
    Ok(text.lines().filter_map(free_of_line).collect())
}

fn name_of(volume: &Volume) -> Result<OsString> {
    let node = node(volume.device).context("its device is unknown")?;
    Ok(node.file_name().context("its device is unknown")?.to_owned())
}

fn of_xfs(geometry: sys::XfsGeometry) -> Result<Groups> {
    let sys::XfsGeometry { block_bytes, group_blocks, groups, inode_bytes, .. } = geometry;
    if inode_bytes == 0 || group_blocks == 0 || block_bytes < inode_bytes {
        bail!("XFS reports an invalid geometry");
    }
    let block_bits = group_blocks.next_power_of_two().trailing_zeros();
    let inode_bits = (block_bytes / inode_bytes).trailing_zeros();
    Ok(Groups {
        count: u64::from(groups),
        unit: Unit::AllocationGroup,
        group_bytes: u64::from(group_blocks) * u64::from(block_bytes),
        block_bytes: u64::from(block_bytes),
        first_byte: 0,
        numbering: Numbering::Bits(block_bits + inode_bits),
    })
}

/// A group and its free blocks, of a line such as `#12   : 32254 1     514   [ 0 …`.
fn free_of_line(line: &str) -> Option<(u64, u64)> {
    let (group, rest) = line.strip_prefix('#')?.split_once(':')?;
    let free = rest.split_whitespace().next()?;
    Some((group.trim().parse().ok()?, free.parse().ok()?))
}
