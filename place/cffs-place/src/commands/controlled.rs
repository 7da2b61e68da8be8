//! `place mkdir`, `create`, `cp` and `mv`: directories and files in a chosen group.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use super::size;
use crate::output::note;
use cffs_place::controlled;
use cffs_place::shadow::Shadow;
use cffs_place::trees;

/// The target group.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct Where {
    /// Into this group (place groups).
    #[arg(long, value_name = "N")]
    group: Option<u64>,
    /// Into the group of this file or directory.
    #[arg(long, value_name = "PATH")]
    near: Option<PathBuf>,
    /// Into group 0, which is the outermost and fastest of a disk.
    #[arg(long)]
    outer: bool,
}

/// The target group, and others.
#[derive(Debug, Args)]
pub struct Target {
    #[command(flatten)]
    place: Where,
    /// If the group is full, take the nearest one that is not, and name it.
    #[arg(long)]
    nearby: bool,
}

impl Where {
    fn group(&self, shadow: &Shadow) -> Result<u64> {
        match (self.group, &self.near) {
            (Some(group), _) => Ok(group),
            (None, Some(near)) => controlled::group_of(shadow, near),
            (None, None) => Ok(0),
        }
    }
}

/// Make a directory in a group
///
/// On XFS, files made in it later are placed in its group. On ext4 only their inodes are: place pack --group
/// moves their contents there. Needs place init.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  place mkdir --group 3 /srv/logs\n  place mkdir --near /srv/db /srv/db2"
)]
pub struct Mkdir {
    #[command(flatten)]
    place: Target,
    /// The directories.
    #[arg(required = true, value_name = "DIR")]
    paths: Vec<PathBuf>,
}

/// Make an empty file in a group
///
/// On XFS its contents go there, too. On ext4 the kernel chooses their place, unless --room allocates their
/// space now; a program that truncates the file frees that space. Needs place init.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  place create --outer --room 64M /srv/journal")]
pub struct Create {
    #[command(flatten)]
    place: Target,
    /// Allocate space for this many bytes that will be written later.
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0")]
    room: u64,
    /// The files.
    #[arg(required = true, value_name = "FILE")]
    paths: Vec<PathBuf>,
}

/// Copy a file or a tree into a group, with its contents
///
/// Mode, times, extended attributes and, for root, owner are those of the original. For others, attributes
/// that only root may set are left out and named, and the copy of another user's file is not set-user-id.
/// Names of one file in a tree stay names of one file. If the contents cannot be placed there, as in full
/// groups, nothing is made. Needs place init.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  place cp --group 3 index /srv/index\n  place cp --near /srv/db --nearby site /srv/site"
)]
pub struct Cp {
    #[command(flatten)]
    place: Target,
    /// The file or directory.
    from: PathBuf,
    /// Its copy, which must not exist.
    to: PathBuf,
}

/// Copy a file or a tree into a group, and remove the old one
///
/// As place cp, for files that have no other names, at least not outside the tree. Refuses where owner or
/// attributes could not be kept. The old one stays if another program changes it meanwhile: the command
/// fails, and says if an older copy has the new name. The last check is immediately before the removal, and a
/// write between the two is lost, as is one by a program that keeps the file open. To move the contents of
/// files in use, in place, use place pack --group. Needs place init.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  place mv --near /srv/db index /srv/index")]
pub struct Mv {
    #[command(flatten)]
    place: Target,
    /// The file or directory.
    from: PathBuf,
    /// Its new name, which must not exist.
    to: PathBuf,
}

impl Mkdir {
    pub fn run(self) -> Result<ExitCode> {
        each(&self.place, &self.paths, |shadow, path, group| {
            controlled::make_directory(shadow, path, 0o777, group).map(drop)
        })
    }
}

impl Create {
    pub fn run(self) -> Result<ExitCode> {
        each(&self.place, &self.paths, |shadow, path, group| {
            controlled::create_file(shadow, path, 0o666, group, self.room)
        })
    }
}

impl Cp {
    /// Copies the file or tree.
    pub fn run(self) -> Result<ExitCode> {
        each(&self.place, &[self.to], |shadow, to, group| {
            let left_out = trees::copy(shadow, &self.from, to, group)?;
            if !left_out.is_empty() {
                let to = to.display();
                note!("place: {to}: left out, since only root may set it: {}", left_out.join(", "));
            }
            Ok(())
        })
    }
}

impl Mv {
    /// Copies the file or tree and removes the old one.
    pub fn run(self) -> Result<ExitCode> {
        each(&self.place, &[self.to], |shadow, to, group| {
            trees::relocate(shadow, &self.from, to, group)
        })
    }
}

/// Calls a function for each path, with the tree of the first path.
fn each(
    target: &Target,
    paths: &[PathBuf],
    work: impl Fn(&Shadow, &Path, u64) -> Result<()>,
) -> Result<ExitCode> {
    let shadow = Shadow::find(paths.first().context("a path")?)?;
    let group = target.place.group(&shadow)?;
    for path in paths {
        if !target.nearby {
            work(&shadow, path, group)?;
            continue;
        }
        let ((), taken) = controlled::nearby(&shadow, group, |group| work(&shadow, path, group))?;
        if taken != group {
            note!("place: {}: in group {taken}, since group {group} is full", path.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}
