//! `place init`: a tree of directories, one in each group.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::output::{counted, say};
use cffs_place::shadow::Shadow;

/// Create the directories that place needs to put files into groups
///
/// Creates a directory .place with an empty directory in each group of the volume. It belongs to the user who
/// creates it, and serves that user for everything below DIR on the same file system. No other user should
/// have permission to write to DIR. Running it again creates what is missing.
///
/// Works on ext4 and XFS. Root reaches all groups of ext4; others most. The kernel places the
/// files of ext2 and ext3 itself, and btrfs has no groups, so these are refused.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Init {
    /// The directory.
    directory: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  place init /srv
  place init ~                 a tree of one's own, without root";

impl Init {
    /// Makes the tree and prints how far it reaches.
    pub fn run(self) -> Result<ExitCode> {
        let (shadow, made) = Shadow::init(&self.directory)?;
        let count = shadow.groups().count;
        say!(
            "{} of {} can be placed in ({} made)",
            made.reached,
            counted(count, "group"),
            counted(made.tries, "directory")
        )?;
        Ok(if made.reached == count { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
