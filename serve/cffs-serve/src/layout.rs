//! The layout of a tree on the device, as servers and commands report it.

use std::ops::Range;

use cffs::files::layout::{ClusterUse, DirectoryLayout, Layout};
use serde::{Deserialize, Serialize};

/// The layout of a tree; see [`Layout`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutReport {
    pub volume_bytes: u64,
    /// The longest gap that a reader reads instead of skipping.
    pub gap_bytes: u64,
    /// Read requests of a cold scan of the tree.
    pub requests: u64,
    /// The bytes of these requests.
    pub read_bytes: u64,
    /// Those of them that are neither names nor contents of the tree, or were read before.
    #[serde(default)]
    pub surplus_bytes: u64,
    /// The directories, each before its subdirectories.
    pub directories: Vec<DirectoryReport>,
    /// Pairs of files that are adjacent on the device.
    pub neighbours: u64,
    /// Those of them with the same placement key.
    pub of_one_key: u64,
    /// The clusters with contents of the tree.
    #[serde(default)]
    pub clusters: ClusterUse,
}

/// The layout of one directory of the tree; see [`DirectoryLayout`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryReport {
    /// The path from the root of the tree; bytes that are not UTF-8 are replaced.
    pub path: String,
    pub files: u64,
    /// Those with contents in the inode.
    pub inline_files: u64,
    /// Bytes of the files' contents.
    pub bytes: u64,
    /// The number of places that a reader must seek to.
    pub places: u64,
    /// Files far from all others of the directory.
    pub scattered_files: u64,
    /// The requests of a cold scan of the tree within this directory.
    pub requests: u64,
    /// The bytes of these requests.
    pub read_bytes: u64,
    /// The byte ranges of the device with contents, ascending.
    pub contents: Vec<Range<u64>>,
    /// The byte ranges of the device with names and inodes, ascending.
    pub names: Vec<Range<u64>>,
}

impl From<&Layout> for LayoutReport {
    fn from(layout: &Layout) -> LayoutReport {
        LayoutReport {
            volume_bytes: layout.volume_bytes,
            gap_bytes: layout.gap_bytes,
            requests: layout.requests(),
            read_bytes: layout.read_bytes(),
            surplus_bytes: layout.surplus_bytes(),
            neighbours: layout.neighbours,
            of_one_key: layout.of_one_key,
            clusters: layout.clusters,
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
