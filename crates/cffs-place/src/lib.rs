//! Sees and mends where files lie, for people who stay on ext4, XFS or btrfs.
//!
//! ```text
//!   sys ──► extents ──► tree ──► predict ──► report
//!    └────► volume ──────┘  └──► warm, pack ◄── list ◄── trace
//!              └──► groups ──► shadow ──► controlled
//! ```
//!
//! - [`sys`]: the system calls that no library wraps; all unsafe code is there;
//! - [`volume`]: which file system a path is on, and how it reads;
//! - [`extents`]: where the contents of a file lie;
//! - [`tree`]: the directories and files below a path;
//! - [`predict`]: how many requests a cold read of a directory takes, and why;
//! - [`warm`]: reading in the order of the device;
//! - [`pack`]: moving contents side by side, in place;
//! - [`groups`]: the groups of a volume, in which files can be placed;
//! - [`shadow`]: a directory in each group, for what is made there;
//! - [`controlled`]: directories and files in a group of one's choice;
//! - [`list`]: lists of files, as traces and pipes have them;
//! - [`trace`]: which files a command opens, in order.
//! - [`disk`]: what a disk can do, found by reading it.
//!
//! Nothing here knows C-FFS: it works through the kernel's interfaces alone. Writes go through the file
//! system, never to its device.

pub mod controlled;
pub mod disk;
pub mod extents;
pub mod groups;
pub mod list;
pub mod pack;
pub mod predict;
pub mod shadow;
pub mod sys;
pub mod trace;
pub mod tree;
pub mod volume;
pub mod warm;
