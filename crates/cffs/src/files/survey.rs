//! A dry run of an import: a walk over the tree outside that reads names and attributes, but no
//! contents.
//!
//! The space that the tree will take is reckoned as the format lays it out (FORMAT: sectors): entries
//! with their inodes packed into sectors in the order of their names, contents rounded up to fragments.

use std::collections::HashSet;
use std::ffi::CString;
use std::fs::{self, File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat, lgetxattr, llistxattr};
use rustix::io::Errno;

use super::copy::CopyCause;
use super::{CopyError, CopyOptions, Files, Node, Observer, Summary, host};
use crate::error::Error;
use crate::format::inode::FileType;
use crate::format::superblock::Incompat;

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
/// The longest list of names of extended attributes that the kernel hands out.
const XATTR_LIST_BYTES_MAX: usize = 64 << 10;
const XATTR_HEADER_BYTES: u64 = 8;
/// A larger directory has an index, whose entries take `INDEX_BYTES` at half load.
const INDEXED_DIRECTORY_BYTES: u64 = 64 << 10;
const INDEX_BYTES: u64 = 16;

/// The result of a dry run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// The files to copy, and the number of files that would not be copied.
    pub summary: Summary,
    /// Files that are there already and would give way.
    pub replaced: u64,
    /// The space that the tree would take, in bytes: reckoned, a few percent more or less.
    pub needed_bytes: u64,
    /// The space that files can still have, in bytes.
    pub available_bytes: u64,
}

impl Survey {
    /// Whether the tree fits, as far as that can be reckoned.
    pub fn fits(&self) -> bool {
        self.needed_bytes <= self.available_bytes
    }
}

/// Finds out what [`import`](super::import()) with the same arguments would do. Changes nothing.
///
/// # Errors
///
/// Files that could not be copied are reported to the observer with the reason; an error is returned
/// where there would be no copy at all: the `source` cannot be read, or there is no place for the
/// `target`.
pub fn survey(
    files: &Files,
    source: &Path,
    target: &[u8],
    options: &CopyOptions,
    observer: &dyn Observer,
) -> Result<Survey, CopyError> {
    let superblock = files.volume().writer().superblock();
    let has_inline = superblock.incompat.contains(Incompat::INLINE);
    let stat = files.volume().stat_fs();
    let mut walk = Walk {
        options,
        observer,
        fragment_bytes: superblock.fragment_bytes.into(),
        sector_bytes: superblock.sector_bytes.into(),
        inline_bytes_max: if has_inline { superblock.inline_bytes_max.into() } else { 0 },
        survey: Survey {
            available_bytes: stat.available_fragments * u64::from(stat.fragment_bytes),
            ..Survey::default()
        },
        seen: HashSet::new(),
        // Inodes with more than one name lie together, apart from the directories.
        external: Packing::default(),
        waiting: Vec::new(),
    };
    walk.begin(files, source, target)
        .map_err(|cause| CopyError { path: source.to_owned(), cause })?;
    while let Some((path, target)) = walk.waiting.pop() {
        if let Err(cause) = walk.directory(&path, target.as_ref()) {
            walk.failed(&path, cause);
        }
    }
    walk.survey.needed_bytes += walk.external.bytes(walk.sector_bytes);
    Ok(walk.survey)
}

struct Walk<'a> {
    options: &'a CopyOptions,
    observer: &'a dyn Observer,
    fragment_bytes: u64,
    sector_bytes: u64,
    inline_bytes_max: u64,
    survey: Survey,
    /// Files with several names that were met, by device and number.
    seen: HashSet<(u64, u64)>,
    external: Packing,
    /// Directories outside, and what they would be merged with.
    waiting: Vec<(PathBuf, Option<Node>)>,
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
        let metadata = fs::symlink_metadata(source)?;
        let node = match files.node(target) {
            Ok(node) => Some(node),
            Err(Error::NotFound) => None,
            Err(error) => return Err(error.into()),
        };
        let is_directory = match &node {
            Some(node) => node.file_type() == FileType::Directory,
            None => false,
        };
        if metadata.is_dir() {
            if node.is_some() && !is_directory {
                return Err(Error::NotDirectory.into());
            }
            self.waiting.push((source.to_owned(), node));
            return Ok(());
        }
        let (dir, name) = match node {
            Some(node) if is_directory => (node, name_of(source).to_vec()),
            _ => super::resolve::parent(files.volume(), target)?,
        };
        let mut packing = Packing::default();
        self.entry(source, &metadata, Some(&dir), &name, &mut packing)?;
        self.survey.needed_bytes += packing.bytes(self.sector_bytes);
        Ok(())
    }

    fn directory(&mut self, path: &Path, target: Option<&Node>) -> Result<(), CopyCause> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(path)? {
            paths.push(entry?.path());
        }
        paths.sort_unstable_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
        let mut packing = Packing::default();
        for path in paths {
            let found = fs::symlink_metadata(&path).map_err(CopyCause::from);
            let reckoned = found.and_then(|metadata| {
                self.entry(&path, &metadata, target, name_of(&path), &mut packing)
            });
            if let Err(cause) = reckoned {
                self.failed(&path, cause);
            }
        }
        self.survey.needed_bytes += packing.bytes(self.sector_bytes);
        self.survey.summary.directories += 1;
        self.observer.copied(path, 0);
        Ok(())
    }

    fn entry(
        &mut self,
        path: &Path,
        metadata: &Metadata,
        dir: Option<&Node>,
        name: &[u8],
        packing: &mut Packing,
    ) -> Result<(), CopyCause> {
        let there = match dir.map(|dir| dir.lookup(name)) {
            None | Some(Err(Error::NotFound)) => None,
            Some(node) => Some(node?),
        };
        let is_directory = |node: &Node| node.file_type() == FileType::Directory;
        let there_is_directory = there.as_ref().map(is_directory);
        match (metadata.is_dir(), there_is_directory) {
            (true, Some(false)) => return Err(Error::NotDirectory.into()),
            (false, Some(true)) => return Err(Error::IsDirectory.into()),
            _ => {}
        }
        let entry = ENTRY_BYTES + name.len() as u64;
        if metadata.is_dir() {
            if there.is_none() {
                packing.add(entry + self.xattrs(path)?, self.sector_bytes);
                self.survey.needed_bytes += LOCATOR_BYTES;
            }
            self.waiting.push((path.to_owned(), there));
            return Ok(());
        }
        let is_regular = metadata.is_file();
        if is_regular && metadata.len() > 0 {
            accessat(CWD, path, Access::READ_OK, AtFlags::EACCESS)?;
        }
        self.survey.replaced += u64::from(there.is_some());
        let has_names = metadata.nlink() > 1;
        if has_names && !self.seen.insert((metadata.dev(), metadata.ino())) {
            packing.add(REFERENCE_BYTES + name.len() as u64, self.sector_bytes);
            self.survey.summary.hard_links += 1;
            self.observer.copied(path, 0);
            return Ok(());
        }
        let mut bytes = entry + self.xattrs(path)?;
        let copied = if is_regular { self.contents(path, metadata, &mut bytes)? } else { 0 };
        if metadata.is_symlink() {
            bytes += self.inlined(metadata.len());
        }
        if has_names {
            packing.add(REFERENCE_BYTES + name.len() as u64, self.sector_bytes);
            self.external.add(bytes, self.sector_bytes);
        } else {
            packing.add(bytes, self.sector_bytes);
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

    /// Reckons the contents of a file and returns how much of them is no hole. What fits goes into
    /// the entry.
    fn contents(
        &mut self,
        path: &Path,
        metadata: &Metadata,
        entry: &mut u64,
    ) -> Result<u64, CopyCause> {
        let size = metadata.len();
        let is_whole = metadata.blocks() * 512 >= size;
        // A file with holes is opened to be asked for them.
        let ranges = match is_whole {
            true => Vec::from_iter([Range { start: 0, end: size }]),
            false => host::data_ranges(&File::open(path)?, metadata)?,
        };
        if size <= self.inline_bytes_max {
            *entry += self.inlined(size);
        } else {
            let fragment = self.fragment_bytes;
            let fragments = ranges.iter().map(|r| r.end.div_ceil(fragment) - r.start / fragment);
            self.survey.needed_bytes += fragments.sum::<u64>() * fragment;
        }
        Ok(ranges.iter().map(|range| range.end - range.start).sum())
    }

    /// How much longer the entry is for contents that lie in it.
    fn inlined(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(DATA_AREA_BYTES)
    }

    fn xattrs(&self, path: &Path) -> Result<u64, CopyCause> {
        if !self.options.xattrs {
            return Ok(0);
        }
        Ok(xattr_bytes(path)?)
    }

    fn failed(&mut self, path: &Path, cause: CopyCause) {
        self.survey.summary.failures += 1;
        self.observer.failed(&CopyError { path: path.to_owned(), cause });
    }
}

fn name_of(path: &Path) -> &[u8] {
    path.file_name().map_or(b"", |name| name.as_bytes())
}

/// The bytes of a file's extended attributes outside its inode. Only the lengths of names and values are
/// read.
fn xattr_bytes(path: &Path) -> io::Result<u64> {
    let mut list = vec![0u8; XATTR_LIST_BYTES_MAX];
    let len = match llistxattr(path, &mut list) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP) => 0,
        Err(errno) => return Err(errno.into()),
    };
    let mut bytes = 0;
    for name in list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        match lgetxattr(path, &CString::new(name)?, &mut [0u8; 0]) {
            Ok(value_len) => bytes += XATTR_HEADER_BYTES + (name.len() + value_len) as u64,
            // It went meanwhile, or is not ours to read: an import leaves it out, too.
            Err(Errno::NODATA | Errno::PERM | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(bytes)
}
