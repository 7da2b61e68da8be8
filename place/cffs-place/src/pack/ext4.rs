//! ext4: exchanges the blocks of files with those of a donor.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::fs::{FallocateFlags, OFlags, fallocate};

use super::{Outcome, PAUSE, TRIES, nameless, outcome_of};
use crate::extents::{self, Extent};
use crate::sys::{self, PAGE_BYTES};
use crate::tree::FileEntry;
use crate::volume::Volume;

#[cfg(test)]
mod tests;

/// Moves files into the space of one donor; false if it was interrupted.
pub fn pack(
    volume: &Volume,
    files: &[FileEntry],
    space: &dyn Fn(u64) -> Result<File>,
    done: &mut dyn FnMut(&FileEntry, Outcome),
    stop: &dyn Fn() -> bool,
) -> Result<bool> {
    let block_bytes = volume.block_bytes;
    refuse_clusters(&files[0].path, block_bytes)?;
    let blocks: Vec<u64> = files.iter().map(|file| file.bytes.div_ceil(block_bytes)).collect();
    let donor = space(blocks.iter().sum::<u64>() * block_bytes)?;
    let space = extents::of(&donor, false).context("find space for it")?;
    let mut slots = slots(&joined(&space), &blocks, block_bytes);
    align(&donor, &mut slots, block_bytes).context("align the donor")?;
    let mut waiting = Vec::with_capacity(files.len());
    for ((file, count), slot) in files.iter().zip(&blocks).zip(slots) {
        match slot {
            Some(slot) => waiting.push(Exchange { file, slot, count: *count, moved: 0 }),
            None => done(file, Outcome::Left(String::from("there is no contiguous space for it"))),
        }
    }
    for last in (0..TRIES).rev() {
        let mut busy = Vec::new();
        for mut exchange in waiting {
            if stop() {
                return Ok(false);
            }
            let outcome = exchange.go_on(&donor).unwrap_or_else(|error| outcome_of(&error));
            match outcome {
                Outcome::Busy if last > 0 => busy.push(exchange),
                outcome => done(exchange.file, outcome),
            }
        }
        waiting = busy;
        if waiting.is_empty() {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    // Before the donor is freed, and with it the blocks that it got in exchange.
    rustix::fs::syncfs(&donor).context("syncfs")?;
    Ok(true)
}

/// Refuses a volume with bigalloc, whose blocks the kernel does not exchange. A block takes a cluster there.
fn refuse_clusters(near: &Path, block_bytes: u64) -> Result<()> {
    let file = nameless(near)?;
    fallocate(&file, FallocateFlags::empty(), 0, block_bytes).context("allocate a block")?;
    // One block may have extended attributes.
    if file.metadata().context("read the attributes of a file")?.blocks() * 512 > 2 * block_bytes {
        bail!(
            "the kernel exchanges no blocks on ext4 with bigalloc; place cp and place mv put \
             copies into a group there"
        );
    }
    Ok(())
}

/// Moves each slot to an offset in the donor that is a multiple of a page, without moving it on the device,
/// where blocks are smaller than pages: the kernel exchanges only blocks at the same offset in their pages.
fn align(donor: &File, slots: &mut [Option<u64>], block_bytes: u64) -> io::Result<()> {
    let blocks_per_page = (PAGE_BYTES / block_bytes).max(1);
    let mut shift = 0;
    let mut holes = Vec::new();
    for slot in slots.iter_mut().flatten() {
        let aligned = (*slot + shift).next_multiple_of(blocks_per_page);
        holes.push((*slot, aligned - *slot - shift));
        shift = aligned - *slot;
        *slot = aligned;
    }
    // From the last on, so that the offsets of the others stay.
    for (before, blocks) in holes.into_iter().rev().filter(|(_, blocks)| *blocks > 0) {
        let (offset, length) = (before * block_bytes, blocks * block_bytes);
        fallocate(donor, FallocateFlags::INSERT_RANGE, offset, length)?;
    }
    Ok(())
}

/// A file that is being moved into the donor's space; counts are in blocks.
struct Exchange<'a> {
    file: &'a FileEntry,
    /// The offset of its place in the donor.
    slot: u64,
    count: u64,
    /// How many blocks have been moved. A second exchange would undo the first.
    moved: u64,
}

impl Exchange<'_> {
    /// Moves the remaining blocks.
    fn go_on(&mut self, donor: &File) -> io::Result<Outcome> {
        let original = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
            .open(&self.file.path)?;
        let status = original.metadata()?;
        if status.ino() != self.file.inode || status.len() != self.file.bytes {
            return Ok(Outcome::Left(String::from("changed meanwhile")));
        }
        while self.moved < self.count {
            // The kernel refuses dirty pages, and moving a block dirties the other blocks of its folio: then
            // it moves one block at a time.
            extents::of(&original, true)?;
            let (at, left) = (self.moved, self.count - self.moved);
            let (moved, result) = sys::move_extents(&original, at, donor, self.slot + at, left);
            self.moved += moved;
            match (moved, result) {
                (0, Ok(())) => return Ok(Outcome::Busy),
                (0, Err(error)) => return Err(error),
                _ => {}
            }
        }
        Ok(Outcome::Moved)
    }
}

/// Joins extents that follow each other in the file and on the device: ext4 splits long ones.
fn joined(space: &[Extent]) -> Vec<Extent> {
    let mut joined: Vec<Extent> = Vec::new();
    for next in space {
        match joined.last_mut() {
            Some(last)
                if last.logical + last.length == next.logical
                    && last.physical_end() == next.physical =>
            {
                last.length += next.length;
            }
            _ => joined.push(*next),
        }
    }
    joined
}

/// The offset of each file in the donor, in blocks: consecutive, and none across two runs of space.
fn slots(space: &[Extent], blocks: &[u64], block_bytes: u64) -> Vec<Option<u64>> {
    let mut runs = space
        .iter()
        .map(|run| (run.logical / block_bytes, (run.logical + run.length) / block_bytes))
        .collect::<Vec<_>>()
        .into_iter();
    let mut current = runs.next();
    let mut slots = Vec::with_capacity(blocks.len());
    for &count in blocks {
        while let Some((begin, end)) = current
            && begin + count > end
        {
            current = runs.next();
        }
        slots.push(current.map(|(begin, _)| begin));
        current = current.map(|(begin, end)| (begin + count, end));
    }
    slots
}
