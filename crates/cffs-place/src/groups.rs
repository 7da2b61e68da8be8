//! The groups of a volume, in which directories and files can be placed.
//!
//! ext4 has block groups. If the flex_bg feature is on, as by default, several form a flex group; the kernel
//! then chooses among them, so that only the flex group can be controlled. XFS has allocation groups. On
//! btrfs, contents do not stay in any unit.

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
            Kind::Ext4 => of_ext4(&volume).with_context(at),
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
        physical / self.group_bytes
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
                    .with_context(|| format!("ask for group {group}"))?;
                *free = blocks * volume.block_bytes;
            }
            return Ok(free);
        }
        let text = summary(&volume)?;
        let per_unit = if let Unit::FlexGroup(groups) = self.unit { groups } else { 1 };
        for (group, blocks) in text.lines().filter_map(free_of_line) {
            if let Some(free) = free.get_mut((group / per_unit) as usize) {
                *free += blocks * volume.block_bytes;
            }
        }
        Ok(free)
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

fn of_ext4(volume: &Volume) -> Result<Groups> {
    let (per_flex, inodes, blocks, count) = match Superblock::of(volume.device) {
        Some(superblock) if !superblock.has_extents => bail!(NOT_CONTROLLED),
        Some(superblock) => (
            superblock.groups_per_flex,
            superblock.inodes_per_group,
            superblock.blocks_per_group,
            superblock.groups(),
        ),
        None => guess_ext4(volume)?,
    };
    let unit = if per_flex > 1 { Unit::FlexGroup(per_flex) } else { Unit::BlockGroup };
    Ok(Groups {
        count: count.div_ceil(per_flex),
        unit,
        group_bytes: per_flex * blocks * volume.block_bytes,
        numbering: Numbering::Counted(per_flex * inodes),
    })
}

/// A guess that needs no privileges: mkfs gives a group as many blocks as a block has bits, and each group
/// the same number of inodes.
fn guess_ext4(volume: &Volume) -> Result<(u64, u64, u64, u64)> {
    let attribute = Path::new("/sys/class/block").join(name_of(volume)?).join("size");
    let sectors =
        fs::read_to_string(&attribute).with_context(|| attribute.display().to_string())?;
    let bytes = sectors.trim().parse::<u64>().context("the size of its device")? * 512;
    let blocks = 8 * volume.block_bytes;
    let count = bytes.div_ceil(blocks * volume.block_bytes).max(1);
    if volume.files == 0 || !volume.files.is_multiple_of(count) {
        bail!("only root can find out how it is divided: it is not as mkfs.ext4 divides by itself");
    }
    // A group whose blocks are all free has no inode table: its table lies in the first group of its flex
    // group. Without an empty group this guess may be wrong; then fewer groups are reachable than shown, but
    // none is mistaken for another.
    let is_flex = summary(volume)?.lines().filter_map(free_of_line).any(|(_, free)| free == blocks);
    let per_flex = if is_flex { FLEX_USUAL } else { 1 };
    Ok((per_flex, volume.files / count, blocks, count))
}

/// The number of groups of a flex group that mkfs.ext4 uses.
const FLEX_USUAL: u64 = 16;

/// ext4's own summary of its groups.
fn summary(volume: &Volume) -> Result<String> {
    let summary = Path::new("/proc/fs/ext4").join(name_of(volume)?).join("mb_groups");
    fs::read_to_string(&summary).with_context(|| summary.display().to_string())
}

/// The name of the device.
fn name_of(volume: &Volume) -> Result<OsString> {
    let node = node(volume.device).context("its device is unknown")?;
    Ok(node.file_name().context("its device is unknown")?.to_owned())
}

fn of_xfs(geometry: sys::XfsGeometry) -> Result<Groups> {
    let sys::XfsGeometry { block_bytes, group_blocks, groups, inode_bytes, .. } = geometry;
    if inode_bytes == 0 || group_blocks == 0 || block_bytes < inode_bytes {
        bail!("XFS reports a geometry that makes no sense");
    }
    let block_bits = group_blocks.next_power_of_two().trailing_zeros();
    let inode_bits = (block_bytes / inode_bytes).trailing_zeros();
    Ok(Groups {
        count: u64::from(groups),
        unit: Unit::AllocationGroup,
        group_bytes: u64::from(group_blocks) * u64::from(block_bytes),
        numbering: Numbering::Bits(block_bits + inode_bits),
    })
}

/// A group and its free blocks, of a line such as `#12   : 32254 1     514   [ 0 …`.
fn free_of_line(line: &str) -> Option<(u64, u64)> {
    let (group, rest) = line.strip_prefix('#')?.split_once(':')?;
    let free = rest.split_whitespace().next()?;
    Some((group.trim().parse().ok()?, free.parse().ok()?))
}
