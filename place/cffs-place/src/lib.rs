//! Shows and improves the placement of files on ext4, XFS and btrfs.
//!
//! ```text
//!   sys ──► extents ──► tree ──► predict ──► report
//!    └────► volume ──────┘  └──► warm, pack ◄── list ◄── trace
//!              └──► groups ──► shadow ──► room ──► controlled ──► trees
//! ```
//!
//! - [`sys`]: the system calls that no library wraps; all unsafe code is there;
//! - [`volume`]: the file system of a path, and how it reads;
//! - [`extents`]: the places of a file's contents;
//! - [`tree`]: the directories and files below a path;
//! - [`predict`]: how many requests a cold read of a directory takes, and why;
//! - [`warm`]: reading in device order;
//! - [`pack`]: moving contents side by side, in place;
//! - [`groups`]: the groups of a volume, in which files can be placed;
//! - [`shadow`]: a directory in each group, in which files for it are made;
//! - [`room`]: space in a chosen group; [`full`]: the error if a group has none;
//! - [`controlled`]: directories and files in a chosen group; [`trees`]: trees of them; `source`: the file or
//!   tree that they are copied from;
//! - [`list`]: lists of files, as traces and pipes have them;
//! - [`trace`]: the files that a command opens, in order;
//! - [`disk`]: the properties of a disk, measured by reading it;
//! - [`memory`]: the sizes of the caches above it.
//!
//! Nothing here depends on C-FFS: it uses only the kernel's interfaces. Writes go through the file system,
//! never to its device.

// No program outside the workspace uses this crate, so a comment only says what a name does not.
#![allow(missing_docs)]

pub mod controlled;
pub mod disk;
pub mod extents;
pub mod full;
pub mod groups;
pub mod list;
pub mod memory;
pub mod pack;
pub mod predict;
pub mod room;
pub mod shadow;
mod source;
pub mod sys;
pub mod trace;
pub mod tree;
pub mod trees;
pub mod volume;
pub mod warm;
