//! Moves the contents of files side by side, in place and while they are in use.
//!
//! A file keeps its inode, its names, its times and its attributes; programs that have it open notice
//! nothing. Contents are moved by an ioctl of each kernel driver that locks the file and is atomic:
//!
//! - ext4 exchanges the file's blocks with those of a donor (`EXT4_IOC_MOVE_EXT`), copying the contents under
//!   its locks: `ext4.rs`;
//! - XFS and btrfs let the file share a donor's blocks if the contents are the same (`FIDEDUPERANGE`), which
//!   they compare under their locks: `sharing.rs`.
//!
//! A donor is a file without a name, which the file system frees even if this process or the machine crashes.
//! So nothing is left behind.
//!
//! If another program writes to a file, ext4 refuses the exchange and the others find different contents; the
//! file is tried again, and reported at the end if it stays busy.

mod ext4;
mod sharing;

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::fs::OFlags;
use serde::Serialize;

use crate::extents::Kind as Keeping;
use crate::predict::Layout;
use crate::room::{self, Size};
use crate::shadow::Shadow;
use crate::tree::FileEntry;
use crate::volume::{Kind, Volume};

/// How to pack.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Larger files are not moved: they take many requests anyway.
    pub file_bytes_max: u64,
    /// Only report what would be moved.
    pub dry_run: bool,
    /// The group to move the contents to, instead of where the kernel finds space.
    pub group: Option<(&'a Shadow, u64)>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options { file_bytes_max: 1 << 20, dry_run: false, group: None }
    }
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Packed {
    /// Files that were moved, or would be in a dry run.
    pub moved: u64,
    pub moved_bytes: u64,
    /// Files that were side by side already.
    pub in_place: u64,
    /// Files that are not moved, with the reason.
    pub left: Vec<Left>,
    /// Files to which other programs kept writing.
    pub busy: Vec<PathBuf>,
    pub interrupted: bool,
}

/// A file that is not moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Left {
    pub path: PathBuf,
    pub why: String,
}

#[derive(Debug)]
enum Outcome {
    Moved,
    Busy,
    Left(String),
}

/// Files to place side by side, in this order.
pub type Group = Vec<FileEntry>;

/// The size of a donor in bytes: bounded, so that little contiguous space is needed at a time.
const BATCH_BYTES: u64 = 64 << 20;
const BATCH_FILES: usize = 2048;

/// Puts the files of each group side by side. Calls `seen` after each file; starts no further file once
/// `stop` returns true.
pub fn pack(
    volume: &Volume,
    groups: Vec<Group>,
    options: &Options<'_>,
    seen: &dyn Fn(),
    stop: &dyn Fn() -> bool,
) -> Result<Packed> {
    if let (Some(_), Kind::Btrfs) = (options.group, volume.kind) {
        bail!("btrfs has no groups");
    }
    let mut packed = Packed::default();
    let mut known = HashSet::new();
    let mut files = Vec::new();
    for group in groups {
        files.extend(chosen(volume, group, options, &mut known, &mut packed, seen));
    }
    for batch in batches(volume, &files) {
        if stop() {
            packed.interrupted = true;
            break;
        }
        if options.dry_run {
            packed.moved += batch.len() as u64;
            packed.moved_bytes += batch.iter().map(|file| file.bytes).sum::<u64>();
            batch.iter().for_each(|_| seen());
            continue;
        }
        let at = batch[0].path.display().to_string();
        let mut done = |file: &FileEntry, outcome| {
            packed.note(file, outcome);
            seen();
        };
        let space = |bytes| donor(options, &batch[0].path, bytes);
        let whole = match volume.kind {
            Kind::Ext4 => ext4::pack(volume, batch, &space, &mut done, stop),
            Kind::Xfs => sharing::pack_by_one(volume, batch, &space, &mut done, stop),
            Kind::Btrfs => sharing::pack_by_many(volume, batch, &mut done, stop),
        }
        .with_context(|| format!("pack {at} and what follows it"))?;
        packed.interrupted |= !whole;
    }
    Ok(packed)
}

impl Packed {
    fn note(&mut self, file: &FileEntry, outcome: Outcome) {
        match outcome {
            Outcome::Moved => {
                self.moved += 1;
                self.moved_bytes += file.bytes;
            }
            Outcome::Busy => self.busy.push(file.path.clone()),
            Outcome::Left(why) => self.left.push(Left { path: file.path.clone(), why }),
        }
    }
}

/// The files of a group to move: all movable ones, or none if they are side by side already.
fn chosen(
    volume: &Volume,
    group: Group,
    options: &Options<'_>,
    known: &mut HashSet<u64>,
    packed: &mut Packed,
    seen: &dyn Fn(),
) -> Vec<FileEntry> {
    let mut movable = Vec::new();
    for file in group {
        if !known.insert(file.inode) {
            // Another name of a file that is placed already.
            seen();
            continue;
        }
        match obstacle(volume, &file, options) {
            Some(why) => {
                packed.note(&file, Outcome::Left(why.to_owned()));
                seen();
            }
            None => movable.push(file),
        }
    }
    let layout = Layout::of(movable.iter());
    let is_in_group = options.group.is_none_or(|(shadow, group)| {
        let mut extents = movable.iter().flat_map(|file| &file.extents);
        extents.all(|extent| shadow.groups().of_place(extent.physical) == group)
    });
    if is_in_group
        && layout.adjacent + 1 + layout.placed / LOOSE_OF >= layout.placed
        && layout.extents <= layout.placed + layout.placed / LOOSE_OF
    {
        packed.in_place += movable.len() as u64;
        movable.iter().for_each(|_| seen());
        movable.clear();
    }
    movable
}

/// A directory counts as packed if at most one of this many files is elsewhere.
const LOOSE_OF: u64 = 50;

/// Why a file cannot or need not be moved.
fn obstacle(volume: &Volume, file: &FileEntry, options: &Options<'_>) -> Option<&'static str> {
    if file.bytes == 0 {
        return Some("empty");
    }
    if file.bytes > options.file_bytes_max {
        return Some("larger than --max-size");
    }
    let mut end = 0;
    for extent in &file.extents {
        match extent.kind {
            Keeping::Inline => return Some("stored inline (no data blocks)"),
            Keeping::Unwritten => return Some("has preallocated space"),
            Keeping::Opaque => return Some("compressed or encrypted"),
            Keeping::Plain => {}
        }
        if extent.is_shared {
            return Some("shared with a clone or a snapshot, which moving would undo");
        }
        if extent.logical != end {
            return Some("sparse");
        }
        end = extent.logical + extent.length;
    }
    (end != file.bytes.next_multiple_of(volume.block_bytes)).then_some("sparse or preallocated")
}

/// Divides a list of files into batches, one for each donor.
fn batches<'a>(volume: &Volume, files: &'a [FileEntry]) -> Vec<&'a [FileEntry]> {
    let mut batches = Vec::new();
    let (mut begin, mut bytes) = (0, 0);
    for (number, file) in files.iter().enumerate() {
        let space = file.bytes.next_multiple_of(volume.block_bytes);
        if number > begin && (bytes + space > BATCH_BYTES || number - begin >= BATCH_FILES) {
            batches.push(&files[begin..number]);
            (begin, bytes) = (number, 0);
        }
        bytes += space;
    }
    if begin < files.len() {
        batches.push(&files[begin..]);
    }
    batches
}

/// Makes a file without a name in the directory of `path`.
fn nameless(path: &Path) -> Result<File> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    OpenOptions::new()
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(OFlags::TMPFILE.bits() as i32)
        .open(directory)
        .with_context(|| format!("make a file without a name in {}", directory.display()))
}

/// How often a busy file is tried.
const TRIES: u32 = 5;
/// The time between tries, if trying again at once does not help.
const PAUSE: Duration = Duration::from_millis(50);

/// The outcome that an error means for its file.
fn outcome_of(error: &io::Error) -> Outcome {
    use rustix::io::Errno;
    match Errno::from_io_error(error) {
        Some(Errno::BUSY | Errno::AGAIN | Errno::TXTBSY | Errno::NODATA) => Outcome::Busy,
        _ if error.kind() == io::ErrorKind::NotFound => {
            Outcome::Left(String::from("removed meanwhile"))
        }
        _ => Outcome::Left(error.to_string()),
    }
}

/// A donor with this much space, as contiguous as free space in the volume or the group permits. Without a
/// chosen group, the donor is made in the directory of `near`.
fn donor(options: &Options<'_>, near: &Path, bytes: u64) -> Result<File> {
    if let Some((shadow, group)) = options.group {
        return room::set_aside(shadow, group, bytes, Size::Grows);
    }
    let donor = nameless(near)?;
    let flags = rustix::fs::FallocateFlags::empty();
    match rustix::fs::fallocate(&donor, flags, 0, bytes) {
        Ok(()) => Ok(donor),
        Err(rustix::io::Errno::NOSPC) => bail!("{bytes} bytes of free space are needed"),
        Err(error) => Err(error).context("reserve space"),
    }
}
