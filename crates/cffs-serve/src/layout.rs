//! Where a tree lies, as servers and commands report it.

use std::ops::Range;

use cffs::files::layout::{DirectoryLayout, Layout};
use serde::{Deserialize, Serialize};

/// A tree as it lies on the device; see [`Layout`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutReport {
    /// Bytes of the volume.
    pub volume_bytes: u64,
    /// The longest gap that a reader reads rather than skips.
    pub gap_bytes: u64,
    /// Read requests of a cold scan of the tree.
    pub requests: u64,
    /// Bytes that they read.
    pub read_bytes: u64,
    /// The directories, each before those in it.
    pub directories: Vec<DirectoryReport>,
    /// Pairs of files that follow each other on the device.
    pub neighbours: u64,
    /// Those of them that are placed by one key.
    pub of_one_key: u64,
}

/// One directory of it; see [`DirectoryLayout`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryReport {
    /// The path from the root of the tree; bytes that are not UTF-8 are replaced.
    pub path: String,
    /// Regular files.
    pub files: u64,
    /// Those with contents in the inode.
    pub inline_files: u64,
    /// Bytes of the files' contents.
    pub bytes: u64,
    /// Places that are so far from each other that a reader goes to each.
    pub places: u64,
    /// Files that lie alone, apart from all others of the directory.
    pub scattered_files: u64,
    /// Requests that a cold scan of the tree makes while it is in the directory.
    pub requests: u64,
    /// Bytes that they read.
    pub read_bytes: u64,
    /// The bytes of the device where contents lie, ascending.
    pub contents: Vec<Range<u64>>,
    /// The bytes of the device where names and inodes lie, ascending.
    pub names: Vec<Range<u64>>,
}

impl From<&Layout> for LayoutReport {
    fn from(layout: &Layout) -> LayoutReport {
        LayoutReport {
            volume_bytes: layout.volume_bytes,
            gap_bytes: layout.gap_bytes,
            requests: layout.requests(),
            read_bytes: layout.read_bytes(),
            neighbours: layout.neighbours,
            of_one_key: layout.of_one_key,
            directories: layout.directories.iter().map(DirectoryReport::from).collect(),
        }
    }
}

impl From<&DirectoryLayout> for DirectoryReport {
    fn from(dir: &DirectoryLayout) -> DirectoryReport {
        DirectoryReport {
            path: String::from_utf8_lossy(&dir.path).into_owned(),
            files: dir.files,
            inline_files: dir.inline_files,
            bytes: dir.bytes,
            places: dir.places,
            scattered_files: dir.scattered_files,
            requests: dir.requests,
            read_bytes: dir.read_bytes,
            contents: dir.contents.clone(),
            names: dir.names.clone(),
        }
    }
}
