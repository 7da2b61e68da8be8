//! The places of a tree on its device, and the reads of a cold scan of it.
//!
//! The cost is not predicted by a separate model, but by a simulated scan: a second, read-only volume is
//! opened over a device that reads metadata and only counts requests for contents (`hollow`), and the usual
//! code reads the tree through it. A change of read-ahead therefore changes the report.

mod clusters;
mod hollow;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

pub use self::clusters::ClusterUse;
use self::hollow::Hollow;
use super::walk::join;
use crate::clock::SystemClock;
use crate::device::BlockDevice;
use crate::error::Result;
use crate::format::inode::FileType;
use crate::runs;
use crate::tuning::Tuning;
use crate::units::{InodeNo, Key};
use crate::vfs::{OpenOptions, Volume};

/// A tree as it is on the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the volume.
    pub volume_bytes: u64,
    /// The longest gap, in bytes, that a reader reads rather than skips.
    pub gap_bytes: u64,
    /// The directories, each before those in it.
    pub directories: Vec<DirectoryLayout>,
    /// Pairs of files that follow each other on the device, whatever their directories.
    pub neighbours: u64,
    /// Those of them that are placed by one key.
    pub of_one_key: u64,
    /// The clusters with contents of the tree.
    pub clusters: ClusterUse,
}

/// A directory with its own files, without those of its subdirectories.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectoryLayout {
    /// The path from the top of the tree; empty for the top itself.
    pub path: Vec<u8>,
    /// Regular files.
    pub files: u64,
    /// Those with contents in the inode.
    pub inline_files: u64,
    /// Bytes of the files' contents.
    pub bytes: u64,
    /// The bytes of the device where contents are, ascending.
    pub contents: Vec<Range<u64>>,
    /// The bytes of the device where names and inodes are, ascending.
    pub names: Vec<Range<u64>>,
    /// Places that are so far apart that a reader seeks to each.
    pub places: u64,
    /// Files that are alone: at least a segment away from all others of the directory. A reader may still
    /// read them with others if it also reads the gap.
    pub scattered_files: u64,
    /// Read requests that a cold scan of the tree makes while it is in this directory.
    pub requests: u64,
    /// Bytes that they read.
    pub read_bytes: u64,
}

/// Examines the tree below a directory, on a device that is not written meanwhile.
///
/// # Errors
///
/// [`Error::NotDirectory`](crate::error::Error::NotDirectory); those of opening a volume, and of reading
/// names and inodes.
pub fn survey(device: Arc<dyn BlockDevice>, dir: InodeNo) -> Result<Layout> {
    let volume = open(Arc::clone(&device))?;
    let gap_bytes = Tuning::for_cache(volume.writer().options.cache_bytes).reading.gap_bytes;
    let segment_bytes = volume.writer().inodes.layout.segment_bytes.into();
    let mut found: Vec<Found> = Vec::new();
    let mut keys: Vec<(u64, Key)> = Vec::new();
    let mut clusters = clusters::Found::default();
    walk(&volume, dir, |visit| {
        match visit.file {
            None => found.push(Found::new(visit.path, volume.admin().places(visit.ino)?)),
            Some((size, FileType::Regular)) => {
                clusters.pass(&volume, visit.ino)?;
                let places = volume.admin().places(visit.ino)?;
                let first = places.iter().map(|place| place.start).min();
                if let Some(first) = first {
                    keys.push((first, volume.admin().placement_key(visit.ino)?));
                }
                found[visit.directory].add(size, places);
            }
            Some(_) => {}
        }
        Ok(())
    })?;
    let clusters = clusters.finish(&volume)?;
    drop(volume);
    keys.sort_unstable_by_key(|(first, _)| *first);
    let pairs = || keys.windows(2);
    let mut layout = Layout {
        neighbours: pairs().count() as u64,
        of_one_key: pairs().filter(|pair| pair[0].1 == pair[1].1).count() as u64,
        clusters,
        volume_bytes: device.geometry().size_bytes,
        gap_bytes,
        directories: found.into_iter().map(|dir| dir.finish(gap_bytes, segment_bytes)).collect(),
    };
    rehearse(device, dir, &mut layout)?;
    Ok(layout)
}

/// The same for a volume in use: everything is made durable first, and calls that need an epoch wait during
/// the examination.
///
/// # Errors
///
/// As of [`survey`], and of [`sync`](Volume::sync).
pub fn survey_in_use(volume: &Volume, dir: InodeNo) -> Result<Layout> {
    volume.writer().checkpoints().freeze(|device, _| survey(Arc::clone(device), dir))?
}

/// Counts the cost of a cold scan, directory by directory.
fn rehearse(device: Arc<dyn BlockDevice>, dir: InodeNo, layout: &mut Layout) -> Result<()> {
    let contents = layout.directories.iter().flat_map(|dir| dir.contents.iter().cloned()).collect();
    let hollow = Arc::new(Hollow::new(device, runs::merged(contents, 0)));
    let volume = open(hollow.clone())?;
    let mut before = hollow.counts();
    walk(&volume, dir, |visit| {
        if visit.file.is_some_and(|(_, file_type)| file_type == FileType::Regular) {
            volume.fetch(visit.ino)?;
        }
        let now = hollow.counts();
        let charged = &mut layout.directories[visit.directory];
        charged.requests += now.requests - before.requests;
        charged.read_bytes += now.bytes - before.bytes;
        before = now;
        Ok(())
    })
}

fn open(device: Arc<dyn BlockDevice>) -> Result<Volume> {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    Volume::open(device, Arc::new(SystemClock), options)
}

/// A step of a walk.
struct Visit<'a> {
    /// The number of the directory, in the order of the walk, that this is or is in.
    directory: usize,
    ino: InodeNo,
    /// Of a directory, its path.
    path: &'a [u8],
    /// Of anything else, its size and type.
    file: Option<(u64, FileType)>,
}

/// An entry that a walk has still to visit.
struct Pending {
    ino: InodeNo,
    path: Vec<u8>,
    parent: usize,
    file: Option<(u64, FileType)>,
}

/// Visits a tree in the order in which [`Files::walk`](super::Files::walk) does, each directory when it was
/// listed.
fn walk(
    volume: &Volume,
    dir: InodeNo,
    mut visit: impl FnMut(&Visit<'_>) -> Result<()>,
) -> Result<()> {
    let mut pending = vec![Pending { ino: dir, path: Vec::new(), parent: 0, file: None }];
    let mut directories = 0;
    while let Some(next) = pending.pop() {
        if next.file.is_some() {
            let Pending { ino, path, parent, file } = &next;
            visit(&Visit { directory: *parent, ino: *ino, path, file: *file })?;
            continue;
        }
        let directory = directories;
        directories += 1;
        let at = pending.len();
        let mut references = Vec::new();
        let listed = volume.read_dir(next.ino, 0, true, &mut |entry| {
            if let Some(attr) = &entry.attr {
                references.push(attr.ino);
                let is_dir = attr.file_type == FileType::Directory;
                pending.push(Pending {
                    ino: attr.ino,
                    path: if is_dir { join(&next.path, entry.name) } else { Vec::new() },
                    parent: directory,
                    file: (!is_dir).then_some((attr.size, attr.file_type)),
                });
            }
            true
        });
        references.into_iter().for_each(|ino| volume.release(ino, 1));
        listed?;
        pending[at..].reverse();
        visit(&Visit { directory, ino: next.ino, path: &next.path, file: None })?;
    }
    Ok(())
}

impl Layout {
    /// Requests of a cold scan.
    pub fn requests(&self) -> u64 {
        self.directories.iter().map(|dir| dir.requests).sum()
    }

    /// Bytes that a cold scan reads.
    pub fn read_bytes(&self) -> u64 {
        self.directories.iter().map(|dir| dir.read_bytes).sum()
    }

    /// Bytes that a cold scan reads in addition to names and contents of the tree, or twice: gaps between
    /// files that take less time to read than to skip, and metadata outside of directories, such as extent
    /// trees.
    pub fn surplus_bytes(&self) -> u64 {
        let dirs = self.directories.iter();
        let tree = dirs.flat_map(|dir| dir.contents.iter().chain(&dir.names).cloned()).collect();
        let tree_bytes: u64 = runs::merged(tree, 0).iter().map(|run| run.end - run.start).sum();
        self.read_bytes().saturating_sub(tree_bytes)
    }
}

/// A directory of which the files are being found.
struct Found {
    layout: DirectoryLayout,
    /// Where each file with contents of its own is.
    files: Vec<Vec<Range<u64>>>,
}

impl Found {
    fn new(path: &[u8], names: Vec<Range<u64>>) -> Found {
        let names = runs::merged(names, 0);
        let layout = DirectoryLayout { path: path.to_vec(), names, ..DirectoryLayout::default() };
        Found { layout, files: Vec::new() }
    }

    fn add(&mut self, size: u64, places: Vec<Range<u64>>) {
        self.layout.files += 1;
        self.layout.bytes += size;
        if !places.is_empty() {
            self.files.push(places);
        } else if size > 0 {
            self.layout.inline_files += 1;
        }
    }

    fn finish(mut self, gap_bytes: u64, segment_bytes: u64) -> DirectoryLayout {
        let contents = || self.files.iter().flatten().cloned().collect();
        let near = runs::merged(contents(), gap_bytes.min(segment_bytes));
        let piece_of = |run: &Range<u64>| near.partition_point(|piece| piece.end <= run.start);
        let mut files_at = vec![0; near.len()];
        let touched: Vec<Vec<usize>> = self
            .files
            .iter()
            .map(|runs| {
                let mut touched: Vec<usize> = runs.iter().map(piece_of).collect();
                touched.sort_unstable();
                touched.dedup();
                touched
            })
            .collect();
        touched.iter().flatten().for_each(|piece| files_at[*piece] += 1);
        let is_alone = |at: &&Vec<usize>| at.iter().all(|piece| files_at[*piece] == 1);
        if near.len() > 1 {
            self.layout.scattered_files = touched.iter().filter(is_alone).count() as u64;
        }
        self.layout.places = runs::merged(contents(), gap_bytes).len() as u64;
        self.layout.contents = runs::merged(contents(), 0);
        self.layout
    }
}
