//! Space for a file in a chosen group.
//!
//! XFS allocates near the directory. ext4 continues a large allocation in the group of the last one; it
//! remembers one group for each processor. So a short write makes it use the group, and the space is
//! allocated after that ([decision 022](../../../docs/decisions/022-place.md)). The places are then checked.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use rustix::fs::{FallocateFlags, fallocate, syncfs};
use rustix::io::Errno;

use crate::extents;
use crate::full::Full;
use crate::groups::{Groups, Unit};
use crate::shadow::Shadow;

/// How the size of a file relates to the space that it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// The file is as long as its space.
    Grows,
    /// The file stays empty, and its space is for later writes.
    Stays,
}

/// The number of attempts to make the kernel use a group.
const TRIES: u32 = 4;
/// The size of the write that makes ext4 use a group: smaller ones are placed where the processor has
/// preallocated space.
const LEAD_BYTES: u64 = 64 << 10;
/// The longest piece to allocate at once.
const PIECE_BYTES_MAX: u64 = 4 << 20;
/// The same on XFS.
const XFS_PIECE_BYTES_MAX: u64 = 1 << 30;
/// The shortest: ext4 places shorter ones where the processor has preallocated space.
const PIECE_BLOCKS_MIN: u64 = 32;

/// A file without a name in a group, with at least `bytes` of space there.
pub fn set_aside(shadow: &Shadow, group: u64, bytes: u64, size: Size) -> Result<File> {
    let _all = shadow.search_from_goal();
    for attempt in 0..=TRIES {
        if attempt > 1 {
            // Pages that are written back meanwhile make the kernel continue elsewhere, and blocks that were
            // freed cannot be used before the next commit.
            syncfs(File::open(shadow.root())?).context("syncfs")?;
        }
        let file = match attempt {
            // Usually the last large allocation was in this group, too.
            0 => shadow.nameless(0o600, group)?,
            _ => led(shadow, group)?,
        };
        if extend(shadow.groups(), &file, group, bytes, size)? >= bytes {
            return Ok(file);
        }
        file.set_len(0).context("free the space")?;
        if free_bytes(shadow, group).is_some_and(|free| free < bytes) {
            break;
        }
    }
    Err(short(shadow, group, bytes).into())
}

/// The size of the largest file that can be placed in a group now: as much as the kernel allocates before it
/// uses another group.
pub fn largest(shadow: &Shadow, group: u64) -> Result<u64> {
    let _all = shadow.search_from_goal();
    let file = led(shadow, group)?;
    // Its blocks are free after the commit.
    file.sync_all().context("write back")?;
    let largest = extend(shadow.groups(), &file, group, u64::MAX, Size::Grows)?;
    // Truncated at once: XFS frees the space of a closed file in the background.
    file.set_len(0).context("free the space")?;
    Ok(largest)
}

fn free_bytes(shadow: &Shadow, group: u64) -> Option<u64> {
    shadow.groups().free_bytes(shadow.root()).ok()?.get(group as usize).copied()
}

/// The error for a group that lacks space.
fn short(shadow: &Shadow, group: u64, bytes: u64) -> Full {
    let why = match free_bytes(shadow, group) {
        Some(free) if free < bytes => format!(
            "is full: {} KiB are free, and {} KiB are needed; place groups shows which are emptier",
            free >> 10,
            bytes.div_ceil(1024)
        ),
        _ => String::from(
            "has no room that the kernel uses for it: its free space is in pieces, or the kernel \
             prefers another group, which only root can change; place groups --largest shows what \
             fits",
        ),
    };
    Full { group, why }
}

/// Allocates pieces as long as they are in the group, and returns their total size.
fn extend(groups: &Groups, file: &File, group: u64, bytes: u64, size: Size) -> Result<u64> {
    let block = groups.block_bytes;
    let least = block * PIECE_BLOCKS_MIN;
    let most = match groups.unit {
        // The kernel finds powers of two fast, in the group where it begins, up to as many blocks as a block
        // has bytes.
        Unit::BlockGroup | Unit::FlexGroup(_) => PIECE_BYTES_MAX.min(block * block).max(least),
        Unit::AllocationGroup => XFS_PIECE_BYTES_MAX,
    };
    let (mut piece, mut at) = (most, 0);
    while at < bytes && piece >= least {
        let left = (bytes - at).min(most).next_power_of_two();
        let length = piece.min(left).max(least);
        let flags = match size {
            Size::Grows => FallocateFlags::empty(),
            Size::Stays => FallocateFlags::KEEP_SIZE,
        };
        let allocated = match fallocate(file, flags, at, length) {
            Err(Errno::NOSPC) => false,
            result => result.map(|()| true).context("allocate space")?,
        };
        if allocated && is_inside(groups, file, at, group)? {
            at += length;
        } else if size == Size::Stays {
            // Space after the end of a file can only be freed together.
            return Ok(at);
        } else {
            file.set_len(at).context("free the rest")?;
            piece = length / 2;
        }
    }
    Ok(at)
}

/// Whether a file from an offset on is in a group.
fn is_inside(groups: &Groups, file: &File, from: u64, group: u64) -> io::Result<bool> {
    let extents = extents::from(file, from, false)?;
    Ok(extents.iter().all(|extent| {
        let skipped = from.saturating_sub(extent.logical);
        let ends = [extent.physical + skipped, extent.physical_end() - 1];
        ends.into_iter().all(|place| groups.of_place(place) == group)
    }))
}

/// A file without a name in a group; on ext4, also makes this group the one where large allocations continue.
///
/// Contents of a file that no program has open for writing, and that does not count as small, are placed near
/// its inode. Later contents, when it is open again, count as large and are placed after them. A file with
/// blocks elsewhere cannot be used: its next blocks are placed there, too.
fn led(shadow: &Shadow, group: u64) -> Result<File> {
    if shadow.groups().unit == Unit::AllocationGroup {
        return shadow.nameless(0o600, group);
    }
    // The kernel skips groups whose block bitmap it has not read yet.
    shadow.learn_free_space();
    let zeros = vec![0; 4 * LEAD_BYTES as usize];
    let mut refused = Vec::new();
    for _ in 0..TRIES {
        let mut file = shadow.nameless(0o600, group)?;
        file.write_all_at(&zeros, LEAD_BYTES).context("make the kernel use the group")?;
        file = closed(file, |reading| reading.sync_data()).context("write back")?;
        // The space after the remaining blocks is free after the commit.
        file.set_len(2 * LEAD_BYTES).context("cut the file")?;
        file.sync_all().context("write back")?;
        let next = &zeros[..LEAD_BYTES as usize];
        file.write_all_at(next, 2 * LEAD_BYTES).context("make the kernel use the group")?;
        file.sync_data().context("write back")?;
        if is_inside(shadow.groups(), &file, 0, group)? {
            file.set_len(0).context("free the space")?;
            return Ok(file);
        }
        // The file keeps its blocks until the end, so that the next file gets others.
        refused.push(file);
    }
    shadow.nameless(0o600, group)
}

/// Calls a function while a file is not open for writing.
fn closed(file: File, work: impl FnOnce(&File) -> io::Result<()>) -> io::Result<File> {
    let link = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd());
    let reading = File::open(link(&file))?;
    drop(file);
    work(&reading)?;
    OpenOptions::new().read(true).write(true).open(link(&reading))
}
