//! A request for space: for what kind of file, and near the files of which owner.

use crate::format::Layout;
use crate::tuning::Placing;
use crate::units::{FragNo, Key};

/// The owner of a reservation: files or metadata that are placed side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// One key: most often a directory.
    Key(Key),
    /// All keys: files that fit no reservation of their key are placed here in the order in which they are
    /// written.
    Shared,
    /// Small files of several keys that an fsync waits for: they are placed near the sectors.
    Urgent,
    /// Files that are moved together, by a regrouping.
    Moved,
}

/// The kind of file that needs a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A small file, whole.
    Small,
    /// A larger file that is still placed among the files of its key, in pieces if necessary.
    Medium,
    /// A piece of a large file, which is not among the files of its key.
    Large,
    /// One block of metadata, aligned to a block.
    Metadata,
}

impl Kind {
    /// The kind of a file of this size.
    pub fn of_file(bytes: u64, layout: &Layout, placing: &Placing) -> Kind {
        match bytes {
            small if small <= layout.small_bytes_max() => Kind::Small,
            medium if medium <= placing.medium_bytes_max => Kind::Medium,
            _ => Kind::Large,
        }
    }
}

/// Space that a file needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// Small, medium, large or metadata.
    pub kind: Kind,
    /// The owner near whose files it should be.
    pub owner: Owner,
    /// The number of fragments.
    pub len: u32,
    /// The fragment after the file's last one, where the file continues without a seek.
    pub goal: Option<FragNo>,
    /// Whether the owner has grown: files of the directory were placed in an earlier epoch, or those of
    /// another key fill a segment.
    pub grown: bool,
    /// Whether the file frees as much space as it takes. The next file can use that hole as soon as the epoch
    /// is on the device, so no room has to be reserved after this one.
    pub replaces: bool,
    /// For sectors: the fragments to reserve for the directory when its reservation is used up.
    pub room: u32,
}

// A request is plain data. If it held a closure, the allocator would call its user while it holds its lock.
const _: fn() = || {
    fn is_data<T: Copy + Send + Sync + std::hash::Hash + 'static>() {}
    is_data::<Request>();
};
