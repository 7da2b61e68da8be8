//! How many requests a cold read of a directory takes, and why.
//!
//! The reader is like most programs: it lists a directory, and opens and reads each file from beginning to
//! end, in the order of the names, with cold caches. The layout determines what the kernel reads for it:
//!
//! 1. contents: for each file, a request for each contiguous piece of a read-ahead window. Adjacent files do
//!    not share a request, since the reader asks for one after the other;
//! 2. inodes: ext4 reads aligned windows of its tables, XFS clusters, btrfs leaves of its tree;
//! 3. names: the blocks of the directories, and their indexes;
//! 4. maps: extent blocks where a file has more extents than its inode holds; on btrfs, checksums.
//!
//! A shared structure, such as a window with inodes of two directories, counts for the first. Tests on this
//! repository's emulated disk compare the sums with the disk's counts.

use std::collections::{BTreeSet, HashSet};
use std::path::PathBuf;

use serde::Serialize;

use crate::extents::{Extent, Kind as Keeping};
use crate::tree::{Directory, FileEntry};
use crate::volume::{Inodes, Kind, Tables, Volume};

/// The requests of a cold read, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Requests {
    pub contents: u64,
    pub inodes: u64,
    pub names: u64,
    /// For maps of extents, and checksums.
    pub maps: u64,
}

impl Requests {
    pub fn total(&self) -> u64 {
        self.contents + self.inodes + self.names + self.maps
    }

    /// The sums of both, by purpose.
    pub fn plus(&self, other: &Requests) -> Requests {
        Requests {
            contents: self.contents + other.contents,
            inodes: self.inodes + other.inodes,
            names: self.names + other.names,
            maps: self.maps + other.maps,
        }
    }
}

/// The prediction for a directory, without its subdirectories.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub path: PathBuf,
    pub files: u64,
    pub bytes: u64,
    /// The requests of a cold read.
    pub requests: Requests,
    pub extents: u64,
    /// The contiguous runs that these form on the device: the number of seeks of a reader in device order.
    pub runs: u64,
    /// How many files begin where the previous one, by name, ends.
    pub adjacent: u64,
    /// The main reason, in a few words.
    pub why: String,
}

/// Predicts the requests of a cold read of some directories, in the given order.
pub fn predict(volume: &Volume, directories: &[Directory]) -> Vec<Finding> {
    let (windows, files) = (BTreeSet::new(), HashSet::new());
    let inode_bytes = inode_items(directories);
    let mut reader =
        Reader { volume, windows, files, name_bytes: 0, inode_bytes, checksum_bytes: 0 };
    directories.iter().map(|directory| reader.read(directory)).collect()
}

struct Reader<'a> {
    volume: &'a Volume,
    /// The windows of inodes read, by the number of their first block or cluster.
    windows: BTreeSet<u64>,
    /// The files read, by inode.
    files: HashSet<u64>,
    /// btrfs: the bytes of the names read.
    name_bytes: u64,
    /// btrfs: the average bytes per inode.
    inode_bytes: u64,
    /// btrfs: the bytes of the checksums read.
    checksum_bytes: u64,
}

impl Reader<'_> {
    fn read(&mut self, directory: &Directory) -> Finding {
        let files = &directory.files;
        let mut requests = Requests::default();
        for file in files {
            // A further name of a file that has been read: it is in the cache.
            if self.files.insert(file.inode) {
                requests.contents += contents(self.volume.read_ahead_bytes, file);
            }
        }
        match &self.volume.inodes {
            Inodes::Tables(tables) => {
                let inodes = inodes_of(directory);
                requests.inodes = self.count(inodes.map(|inode| tables.window(inode)));
                requests.names = directory.bytes.div_ceil(self.volume.block_bytes);
                requests.maps = files.iter().map(|file| extent_blocks(self.volume, file)).sum();
            }
            Inodes::Clusters { inodes } => {
                let of_cluster = *inodes;
                requests.inodes = self.count(inodes_of(directory).map(|inode| inode / of_cluster));
                requests.names = names_of_xfs(self.volume, directory);
                requests.maps = files.iter().map(|file| btree_blocks(self.volume, file)).sum();
            }
            Inodes::Leaves { bytes } => {
                let leaf = *bytes * LEAF_FILL_PERCENT / 100;
                requests.names = leaves(&mut self.name_bytes, name_items(directory), leaf);
                let of_inode = self.inode_bytes;
                requests.inodes = self.count(inodes_of(directory).map(|i| i * of_inode / leaf));
                let checksums = checksums(self.volume, files);
                requests.maps = leaves(&mut self.checksum_bytes, checksums, leaf);
            }
        }
        let layout = Layout::of(files.iter());
        Finding {
            path: directory.path.clone(),
            files: files.len() as u64,
            bytes: files.iter().map(|file| file.bytes).sum(),
            requests,
            extents: layout.extents,
            runs: layout.runs,
            adjacent: layout.adjacent,
            why: why(self.volume.kind, &requests, &layout, files.len() as u64),
        }
    }

    /// How many of some windows have not been read yet.
    fn count(&mut self, windows: impl Iterator<Item = u64>) -> u64 {
        windows.filter(|window| self.windows.insert(*window)).count() as u64
    }
}

fn inodes_of(directory: &Directory) -> impl Iterator<Item = u64> {
    std::iter::once(directory.inode).chain(directory.files.iter().map(|file| file.inode))
}

/// The layout of the contents of some files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    pub extents: u64,
    /// The contiguous runs that these form on the device.
    pub runs: u64,
    /// How many of the files begin where the previous one ends.
    pub adjacent: u64,
    /// The number of files that have blocks.
    pub placed: u64,
}

impl Layout {
    /// The layout of files in the given order.
    pub fn of<'a>(files: impl Iterator<Item = &'a FileEntry>) -> Layout {
        let mut layout = Layout::default();
        let mut all: Vec<(u64, u64)> = Vec::new();
        let mut end_before = None;
        let mut known = HashSet::new();
        for file in files.filter(|file| known.insert(file.inode)) {
            let plain = || file.extents.iter().filter(|extent| extent.kind == Keeping::Plain);
            let Some(last) = plain().next_back() else { continue };
            layout.placed += 1;
            layout.adjacent += u64::from(end_before.is_some() && end_before == file.begin());
            end_before = Some(last.physical_end());
            all.extend(plain().map(|extent| (extent.physical, extent.physical_end())));
        }
        layout.extents = all.len() as u64;
        all.sort_unstable();
        let breaks = all.windows(2).filter(|pair| pair[0].1 != pair[1].0).count() as u64;
        layout.runs = breaks + u64::from(!all.is_empty());
        layout
    }
}

/// The pages that a program reads at a time; more makes no difference.
const ASKED_PAGES: u64 = 32;
const PAGE_BYTES: u64 = 4096;

/// The requests for the contents of one file: the kernel reads in windows, and a window in several runs takes
/// several requests.
fn contents(read_ahead_bytes: u64, file: &FileEntry) -> u64 {
    let max = (read_ahead_bytes / PAGE_BYTES).max(1);
    let mut requests = 0;
    let mut window = first_window(ASKED_PAGES.min(file.bytes.div_ceil(PAGE_BYTES)), max);
    let mut at = 0;
    let mut extents = file.extents.iter().filter(|e| e.kind != Keeping::Inline).peekable();
    while let Some(extent) = extents.peek() {
        let extent_end = (extent.logical + extent.length).min(file.bytes);
        if extent.logical >= file.bytes {
            break;
        }
        let window_end = at + window * PAGE_BYTES;
        let overlaps = extent.logical < window_end && extent_end > at;
        requests += u64::from(overlaps && extent.kind != Keeping::Unwritten);
        if extent_end <= window_end {
            extents.next();
        } else {
            (at, window) = (window_end, next_window(window, max));
        }
    }
    requests
}

/// The kernel's `get_init_ra_size`.
fn first_window(asked: u64, max: u64) -> u64 {
    let size = asked.next_power_of_two();
    match () {
        () if size <= max / 32 => size * 4,
        () if size <= max / 4 => size * 2,
        () => max,
    }
}

/// The kernel's `get_next_ra_size`.
fn next_window(size: u64, max: u64) -> u64 {
    match () {
        () if size < max / 16 => size * 4,
        () if size <= max / 2 => size * 2,
        () => max,
    }
}

impl Tables {
    /// The window of an inode: the first block of its read, or the inode's number if the tables are unknown.
    fn window(&self, inode: u64) -> u64 {
        let index = inode.saturating_sub(1);
        let (group, in_group) = (index / self.inodes_per_group, index % self.inodes_per_group);
        match self.starts.get(group as usize) {
            Some(start) => {
                let block = start + in_group / self.inodes_per_block;
                (block / self.window_blocks * self.window_blocks).max(*start)
            }
            None => index / (self.inodes_per_block * self.window_blocks),
        }
    }
}

/// Extents that ext4 keeps in the inode.
const EXT4_EXTENTS_INSIDE: u64 = 4;
/// The size of an entry in an extent block.
const EXT4_EXTENT_BYTES: u64 = 12;

fn extent_blocks(volume: &Volume, file: &FileEntry) -> u64 {
    let extents = file.extents.len() as u64;
    if extents <= EXT4_EXTENTS_INSIDE {
        return 0;
    }
    extents.div_ceil(volume.block_bytes / EXT4_EXTENT_BYTES - 1)
}

/// Extents that XFS keeps in an inode of 512 bytes.
const XFS_EXTENTS_INSIDE: u64 = 21;
const XFS_EXTENT_BYTES: u64 = 16;

fn btree_blocks(volume: &Volume, file: &FileEntry) -> u64 {
    let extents = file.extents.len() as u64;
    if extents <= XFS_EXTENTS_INSIDE {
        return 0;
    }
    extents.div_ceil(volume.block_bytes / XFS_EXTENT_BYTES)
}

/// The requests for an XFS directory that is too large for its inode: its blocks, and those of the
/// index of hashed names, which the first lookups read one by one.
fn names_of_xfs(volume: &Volume, directory: &Directory) -> u64 {
    let blocks = directory.bytes / volume.block_bytes;
    match blocks {
        0 => 0,
        1 => 1,
        _ => {
            let index = (directory.entries * 8).div_ceil(volume.block_bytes * 3 / 4);
            blocks.div_ceil(8) + index + u64::from(index > 1)
        }
    }
}

/// The average fill of btrfs leaves.
const LEAF_FILL_PERCENT: u64 = 75;

/// The key and the pointer of an item in a leaf of btrfs.
const ITEM: u64 = 25;

/// The bytes of a directory's names in the btrfs tree, which stores each twice in addition to the inode.
fn name_items(directory: &Directory) -> u64 {
    2 * (directory.entries * (ITEM + 30) + directory.names_bytes)
}

/// The average bytes per file in the btrfs tree: the inode, its name, and its extents. Inodes are sorted by
/// number, so this tells which of them share a leaf.
fn inode_items(directories: &[Directory]) -> u64 {
    let (mut files, mut bytes) = (0, 0);
    for directory in directories {
        files += directory.files.len() as u64;
        bytes += directory.names_bytes;
        let extents = directory.files.iter().flat_map(|file| &file.extents);
        bytes += extents.map(|extent| ITEM + extent_item(extent)).sum::<u64>();
    }
    ITEM + 160 + ITEM + 10 + bytes / u64::max(files, 1)
}

fn extent_item(extent: &Extent) -> u64 {
    if extent.kind == Keeping::Inline { 21 + extent.length.min(2048) } else { 53 }
}

/// The bytes of checksums: 4 for each block of contents.
fn checksums(volume: &Volume, files: &[FileEntry]) -> u64 {
    let extents = files.iter().flat_map(|file| &file.extents);
    let plain = extents.filter(|extent| extent.kind == Keeping::Plain);
    plain.map(|extent| extent.length).sum::<u64>() / volume.block_bytes * 4
}

/// The number of leaves that begin within the next `more` bytes, after the `before` bytes already read.
fn leaves(before: &mut u64, more: u64, leaf_bytes: u64) -> u64 {
    let read = before.div_ceil(leaf_bytes);
    *before += more;
    before.div_ceil(leaf_bytes) - read
}

fn why(kind: Kind, requests: &Requests, layout: &Layout, files: u64) -> String {
    let metadata = requests.total() - requests.contents;
    if files == 0 {
        return String::from("no files");
    }
    if layout.placed == 0 {
        return String::from("stored inline or empty (no data blocks)");
    }
    let mut why = if layout.extents > 2 * layout.placed {
        format!("fragmented files: {} for {} files", layout.extents, layout.placed)
    } else if layout.runs * 4 > layout.placed && layout.placed > 1 {
        format!("scattered: {} runs for {} files", layout.runs, layout.placed)
    } else {
        let runs = if layout.runs == 1 { "run" } else { "runs" };
        format!(
            "contiguous ({} {runs}), but read one file per request; use place warm",
            layout.runs
        )
    };
    if metadata > requests.contents {
        let what = if kind == Kind::Btrfs { "leaves of the tree" } else { "inodes and names" };
        why.push_str(&format!("; more for {what} than for contents"));
    }
    why
}
