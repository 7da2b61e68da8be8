//! A dry run of an import: a walk over the source tree that reads names and attributes, but no contents.
//!
//! The space that the tree will take is computed from the format (FORMAT: sectors): entries with their inodes
//! packed into sectors in the order of their names, contents rounded up to fragments.

use std::collections::HashSet;
use std::fs::Metadata;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::copy::CopyCause;
use super::host::{self, Entry, Identity};
use super::import::Source;
use super::{CopyError, CopyOptions, Files, Node, Observer, Summary};
use crate::error::Error;
use crate::format::inode::FileType;
use crate::format::superblock::Incompat;
use crate::vfs::Volume;

#[cfg(test)]
mod tests;

/// An entry's header, the fixed part of an inode, and the least data area.
const ENTRY_BYTES: u64 = 12 + 168 + 32;
/// The data area that every inode has; more contents than this make the entry longer.
const DATA_AREA_BYTES: u64 = 32;
/// An entry that refers to an inode elsewhere.
const REFERENCE_BYTES: u64 = 12 + 12;
/// The header of a sector.
const SECTOR_HEADER_BYTES: u64 = 40;
/// Bytes of an inode in the locator table.
const LOCATOR_BYTES: u64 = 16;
const XATTR_HEADER_BYTES: u64 = 8;
/// A larger directory has an index, whose entries take `INDEX_BYTES` at half load.
const INDEXED_DIRECTORY_BYTES: u64 = 64 << 10;
const INDEX_BYTES: u64 = 16;

/// The result of a dry run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// The files to copy, and the number of files that would not be copied.
    pub summary: Summary,
    /// Existing files that would be replaced.
    pub replaced: u64,
    /// The space that the tree would take, in bytes, to within a few percent.
    pub needed_bytes: u64,
    /// The space that files can still have, in bytes.
    pub available_bytes: u64,
}

impl Survey {
    /// Whether the tree fits, by this estimate.
    pub fn fits(&self) -> bool {
        self.needed_bytes <= self.available_bytes
    }
}

/// The properties of a volume that determine how much space files take, and the space that they can have.
#[derive(Clone, Copy, Debug)]
pub struct SurveyedVolume {
    /// Bytes per fragment.
    pub fragment_bytes: u64,
    /// Bytes per sector.
    pub sector_bytes: u64,
    /// The longest contents that are stored in the inode; 0 for none.
    pub inline_bytes_max: u64,
    /// The space that files can still have, in bytes.
    pub available_bytes: u64,
}

impl From<&Volume> for SurveyedVolume {
    fn from(volume: &Volume) -> SurveyedVolume {
        let superblock = volume.writer().superblock.get();
        let has_inline = superblock.incompat.contains(Incompat::INLINE);
        let stat = volume.stat_fs();
        SurveyedVolume {
            fragment_bytes: superblock.fragment_bytes.into(),
            sector_bytes: superblock.sector_bytes.into(),
            inline_bytes_max: if has_inline { superblock.inline_bytes_max.into() } else { 0 },
            available_bytes: stat.available_fragments * u64::from(stat.fragment_bytes),
        }
    }
}

/// Finds out what [`import`](super::import()) with the same arguments would do, with `files` of this
/// `volume`. Changes nothing.
///
/// # Errors
///
/// Files that could not be copied are reported to the observer with the reason; an error is returned if
/// nothing could be copied: the `source` cannot be read, or the `target` cannot exist.
pub fn survey(
    files: &Files,
    volume: SurveyedVolume,
    source: &Path,
    target: &[u8],
    options: &CopyOptions,
    observer: &dyn Observer,
) -> Result<Survey, CopyError> {
    let mut walk = Walk {
        options,
        observer,
        volume,
        survey: Survey { available_bytes: volume.available_bytes, ..Survey::default() },
        seen: HashSet::new(),
        // Inodes with more than one name are together, apart from the directories.
        external: Packing::default(),
        waiting: Vec::new(),
    };
    walk.begin(files, source, target)
        .map_err(|cause| CopyError { path: source.to_owned(), cause })?;
    while let Some(task) = walk.waiting.pop() {
        if let Err(cause) = walk.directory(&task) {
            walk.failed(&task.path, cause);
        }
    }
    walk.survey.needed_bytes += walk.external.bytes(walk.volume.sector_bytes);
    Ok(walk.survey)
}

struct Walk<'a> {
    options: &'a CopyOptions,
    observer: &'a dyn Observer,
    volume: SurveyedVolume,
    survey: Survey,
    /// Files with several names that were found so far, by device and number.
    seen: HashSet<Identity>,
    external: Packing,
    waiting: Vec<Task>,
}

/// A source directory that is still to be examined.
struct Task {
    source: Source,
    /// Its path, for messages.
    path: PathBuf,
    /// The directory in the volume that it would be merged with.
    target: Option<Node>,
}

/// Entries in sectors: none of them crosses from one to the next.
#[derive(Default)]
struct Packing {
    sectors: u64,
    used: u64,
    entries: u64,
}

impl Packing {
    fn add(&mut self, bytes: u64, sector_bytes: u64) {
        if self.sectors == 0 || self.used + bytes > sector_bytes {
            self.sectors += 1;
            self.used = SECTOR_HEADER_BYTES;
        }
        self.used += bytes;
        self.entries += 1;
    }

    fn bytes(&self, sector_bytes: u64) -> u64 {
        let bytes = self.sectors * sector_bytes;
        let index = if bytes > INDEXED_DIRECTORY_BYTES { self.entries * INDEX_BYTES } else { 0 };
        bytes + index
    }
}

impl Walk<'_> {
    fn begin(&mut self, files: &Files, source: &Path, target: &[u8]) -> Result<(), CopyCause> {
        let dir = Entry::dir_itself(source)?;
        let node = match files.node(target) {
            Ok(node) => Some(node),
            Err(Error::NotFound) => None,
            Err(error) => return Err(error.into()),
        };
        let is_directory = match &node {
            Some(node) => node.file_type() == FileType::Directory,
            None => false,
        };
        if let Some(dir) = dir {
            if node.is_some() && !is_directory {
                return Err(Error::NotDirectory.into());
            }
            let path = source.to_owned();
            self.waiting.push(Task { source: Source::Open(dir), path, target: node });
            return Ok(());
        }
        let (outside, own_name) = host::parent(source)?;
        let (dir, name) = match node {
            Some(node) if is_directory => (node, own_name.as_bytes().to_vec()),
            _ => super::resolve::parent(&files.root(), target)?,
        };
        let found = outside.find(&own_name)?;
        let there = existing(Some(&dir), &name, false)?;
        let mut packing = Packing::default();
        self.file(source, &found, &name, there.as_ref(), &mut packing)?;
        self.survey.needed_bytes += packing.bytes(self.volume.sector_bytes);
        Ok(())
    }

    fn directory(&mut self, task: &Task) -> Result<(), CopyCause> {
        let dir = Arc::new(match &task.source {
            Source::Open(dir) => dir.try_clone()?,
            Source::Named(above, name) => above.dir(name)?,
        });
        let mut packing = Packing::default();
        for name in dir.names()? {
            let path = task.path.join(&name);
            let found = dir.find(&name).map_err(CopyCause::from);
            let surveyed = found.and_then(|found| {
                let is_dir = found.metadata()?.is_dir();
                let there = existing(task.target.as_ref(), name.as_bytes(), is_dir)?;
                if !is_dir {
                    return self.file(&path, &found, name.as_bytes(), there.as_ref(), &mut packing);
                }
                if there.is_none() {
                    let entry = ENTRY_BYTES + name.len() as u64;
                    packing.add(entry + self.xattrs(&found)?, self.volume.sector_bytes);
                    self.survey.needed_bytes += LOCATOR_BYTES;
                }
                let source = Source::Named(Arc::clone(&dir), name);
                self.waiting.push(Task { source, path: path.clone(), target: there });
                Ok(())
            });
            if let Err(cause) = surveyed {
                self.failed(&path, cause);
            }
        }
        self.survey.needed_bytes += packing.bytes(self.volume.sector_bytes);
        self.survey.summary.directories += 1;
        self.observer.copied(&task.path, 0);
        Ok(())
    }

    /// Counts a file that is not a directory, and would replace the existing one `there`.
    fn file(
        &mut self,
        path: &Path,
        found: &Entry,
        name: &[u8],
        there: Option<&Node>,
        packing: &mut Packing,
    ) -> Result<(), CopyCause> {
        let metadata = &found.metadata()?;
        let entry = ENTRY_BYTES + name.len() as u64;
        let is_regular = metadata.is_file();
        self.survey.replaced += u64::from(there.is_some());
        let has_names = metadata.nlink() > 1;
        if has_names && !self.seen.insert((metadata.dev(), metadata.ino())) {
            packing.add(REFERENCE_BYTES + name.len() as u64, self.volume.sector_bytes);
            self.survey.summary.hard_links += 1;
            self.observer.copied(path, 0);
            return Ok(());
        }
        let mut bytes = entry + self.xattrs(found)?;
        let copied = if is_regular { self.contents(found, metadata, &mut bytes)? } else { 0 };
        if metadata.is_symlink() {
            bytes += self.inlined(metadata.len());
        }
        if has_names {
            packing.add(REFERENCE_BYTES + name.len() as u64, self.volume.sector_bytes);
            self.external.add(bytes, self.volume.sector_bytes);
        } else {
            packing.add(bytes, self.volume.sector_bytes);
        }
        self.survey.needed_bytes += LOCATOR_BYTES;
        let summary = &mut self.survey.summary;
        match () {
            () if is_regular => summary.files += 1,
            () if metadata.is_symlink() => summary.symlinks += 1,
            () => summary.special += 1,
        }
        summary.bytes += copied;
        self.observer.copied(path, copied);
        Ok(())
    }

    /// Adds the space of a file's contents, and returns their length without holes. Contents that fit go into
    /// the entry.
    fn contents(&mut self, found: &Entry, metadata: &Metadata, entry: &mut u64) -> io::Result<u64> {
        let size = metadata.len();
        let is_whole = metadata.blocks() * 512 >= size;
        let ranges = match is_whole {
            true => Vec::from_iter([Range { start: 0, end: size }]),
            false => host::data_ranges(found.file(), metadata)?,
        };
        if size <= self.volume.inline_bytes_max {
            *entry += self.inlined(size);
        } else {
            let fragment = self.volume.fragment_bytes;
            let fragments = ranges.iter().map(|r| r.end.div_ceil(fragment) - r.start / fragment);
            self.survey.needed_bytes += fragments.sum::<u64>() * fragment;
        }
        Ok(ranges.iter().map(|range| range.end - range.start).sum())
    }

    /// How much longer the entry is for contents that are in it.
    fn inlined(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(DATA_AREA_BYTES)
    }

    /// The bytes of a file's extended attributes outside its inode.
    fn xattrs(&self, found: &Entry) -> io::Result<u64> {
        if !self.options.xattrs {
            return Ok(0);
        }
        let bytes = |(name, value): &(Vec<u8>, Vec<u8>)| name.len() + value.len();
        let of_each = |xattr| XATTR_HEADER_BYTES + bytes(xattr) as u64;
        Ok(found.xattrs()?.iter().map(of_each).sum())
    }

    fn failed(&mut self, path: &Path, cause: CopyCause) {
        self.survey.summary.failures += 1;
        self.observer.failed(&CopyError { path: path.to_owned(), cause });
    }
}

/// The file in the volume with this name, which a file from outside would replace, or a directory be merged
/// with.
fn existing(dir: Option<&Node>, name: &[u8], is_dir: bool) -> Result<Option<Node>, Error> {
    let there = match dir.map(|dir| dir.lookup(name)) {
        None | Some(Err(Error::NotFound)) => return Ok(None),
        Some(node) => node?,
    };
    match (is_dir, there.file_type() == FileType::Directory) {
        (true, false) => Err(Error::NotDirectory),
        (false, true) => Err(Error::IsDirectory),
        _ => Ok(Some(there)),
    }
}
