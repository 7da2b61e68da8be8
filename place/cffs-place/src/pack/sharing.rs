//! XFS and btrfs: lets files share the blocks of a donor with the same contents, then frees the donor.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use anyhow::{Context, Result};
use rustix::fs::OFlags;

use super::{Outcome, TRIES, nameless, outcome_of};
use crate::extents;
use crate::predict::Layout;
use crate::sys::{self, Dedupe};
use crate::tree::FileEntry;
use crate::volume::Volume;
use crate::warm::open_files_max;

/// XFS: one donor has the contents of all files, in space that was allocated in one run.
///
/// A partly filled block can only be shared if both files end in it. So the files are processed from last to
/// first, and the donor is truncated to the end of each.
pub fn pack_by_one(
    volume: &Volume,
    files: &[FileEntry],
    space: &dyn Fn(u64) -> Result<File>,
    done: &mut dyn FnMut(&FileEntry, Outcome),
    stop: &dyn Fn() -> bool,
) -> Result<bool> {
    let spaces = files.iter().map(|file| file.bytes.next_multiple_of(volume.block_bytes));
    let donor = space(spaces.clone().sum())?;
    let mut filled = Vec::with_capacity(files.len());
    let mut offset = 0;
    for (file, space) in files.iter().zip(spaces) {
        if stop() {
            return Ok(false);
        }
        match open(file) {
            Ok(Some(original)) => {
                copy(&original, &donor, offset, file.bytes).context("fill the donor")?;
                filled.push((file, original, offset));
                offset += space;
            }
            Ok(None) => done(file, Outcome::Left(String::from("changed meanwhile"))),
            Err(error) => done(file, outcome_of(&error)),
        }
    }
    donor.sync_data().context("write the donor")?;
    for (file, original, offset) in filled.iter().rev() {
        if stop() {
            return Ok(false);
        }
        donor.set_len(offset + file.bytes).context("cut the donor")?;
        done(file, share(file, original, &donor, *offset));
    }
    rustix::fs::syncfs(&donor).context("syncfs")?;
    Ok(true)
}

/// btrfs: each file has its own donor. Truncating a common donor would move its last block, and files that
/// are written in sequence are placed in sequence.
pub fn pack_by_many(
    _volume: &Volume,
    files: &[FileEntry],
    done: &mut dyn FnMut(&FileEntry, Outcome),
    stop: &dyn Fn() -> bool,
) -> Result<bool> {
    for files in files.chunks(open_files_max() / 2) {
        if !pack_some(files, done, stop)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn pack_some(
    files: &[FileEntry],
    done: &mut dyn FnMut(&FileEntry, Outcome),
    stop: &dyn Fn() -> bool,
) -> Result<bool> {
    let mut donors = Vec::with_capacity(files.len());
    for file in files {
        if stop() {
            return Ok(false);
        }
        match open(file) {
            Ok(Some(original)) => {
                let donor = nameless(&file.path)?;
                copy(&original, &donor, 0, file.bytes).context("fill a donor")?;
                donors.push((file, original, donor));
            }
            Ok(None) => done(file, Outcome::Left(String::from("changed meanwhile"))),
            Err(error) => done(file, outcome_of(&error)),
        }
    }
    // Asking for the extents of a file writes it back, and so allocates the files in this order.
    let mut placed = Vec::with_capacity(donors.len());
    for (file, _, donor) in &donors {
        let extents = extents::of(donor, true).context("place a donor")?;
        placed.push(FileEntry { extents, ..(*file).clone() });
    }
    let (before, after) = (Layout::of(files.iter()), Layout::of(placed.iter()));
    let is_better = after.adjacent > before.adjacent || after.extents < before.extents;
    for (file, original, donor) in &donors {
        if stop() {
            return Ok(false);
        }
        done(
            file,
            match is_better {
                true => share(file, original, donor, 0),
                false => Outcome::Left(String::from("free space is no better connected")),
            },
        );
    }
    if let Some((_, _, donor)) = donors.first() {
        rustix::fs::syncfs(donor).context("syncfs")?;
    }
    Ok(true)
}

/// Lets a file share the donor's blocks from `offset` on, which have its contents. If another program has
/// written to the file since, the donor gets the new contents.
fn share(file: &FileEntry, original: &File, donor: &File, offset: u64) -> Outcome {
    let attempt = || -> io::Result<Outcome> {
        if original.metadata()?.len() != file.bytes {
            return Ok(Outcome::Left(String::from("changed meanwhile")));
        }
        let mut at = 0;
        while at < file.bytes {
            match sys::dedupe(donor, offset + at, file.bytes - at, original, at)? {
                Dedupe::Shared(0) | Dedupe::Differs => {
                    copy(original, donor, offset, file.bytes)?;
                    return Ok(Outcome::Busy);
                }
                Dedupe::Shared(bytes) => at += bytes,
            }
        }
        Ok(Outcome::Moved)
    };
    for _ in 0..TRIES {
        match attempt().unwrap_or_else(|error| outcome_of(&error)) {
            Outcome::Busy => {}
            other => return other,
        }
    }
    Outcome::Busy
}

/// Opens a file if it is still the one found earlier, without changing its time of last access if this
/// process may suppress that.
fn open(file: &FileEntry) -> io::Result<Option<File>> {
    let with = |flags: OFlags| {
        let flags = (flags | OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        OpenOptions::new().read(true).custom_flags(flags).open(&file.path)
    };
    let original = match with(OFlags::NOATIME) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => with(OFlags::empty())?,
        result => result?,
    };
    let status = original.metadata()?;
    Ok((status.ino() == file.inode && status.len() == file.bytes).then_some(original))
}

/// Copies the first `bytes` of a file. If the file has become shorter, the donor's rest stays and differs.
fn copy(from: &File, to: &File, to_offset: u64, bytes: u64) -> io::Result<()> {
    let mut buffer = vec![0; bytes.min(1 << 20) as usize];
    let mut at = 0;
    while at < bytes {
        let part = buffer.len().min((bytes - at) as usize);
        let read = from.read_at(&mut buffer[..part], at)?;
        if read == 0 {
            return Ok(());
        }
        to.write_all_at(&buffer[..read], to_offset + at)?;
        at += read as u64;
    }
    Ok(())
}
