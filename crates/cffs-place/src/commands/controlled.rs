//! `place mkdir`, `create`, `cp` and `mv`: directories and files in a chosen group.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::output::note;
use cffs_place::controlled;
use cffs_place::shadow::Shadow;

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
/// Files made in it later are placed near it, as far as the kernel does that. Needs place init.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  place mkdir --group 3 /srv/logs\n  place mkdir --near /srv/db /srv/db2"
)]
pub struct Mkdir {
    #[command(flatten)]
    place: Where,
    /// The directories.
    #[arg(required = true, value_name = "DIR")]
    paths: Vec<PathBuf>,
}

/// Make an empty file in a group
///
/// On XFS its contents go there, too. On ext4 contents of up to 64 KiB go where the kernel has space at hand;
/// place cp puts a file with its contents there. Needs place init.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  place create --outer /srv/journal")]
pub struct Create {
    #[command(flatten)]
    place: Where,
    /// The files.
    #[arg(required = true, value_name = "FILE")]
    paths: Vec<PathBuf>,
}

/// Copy a file into a group, with its contents
///
/// Mode, times, extended attributes and, for root, owner are those of the file. For others, attributes that
/// only root may set are left out and named, and the copy of another user's file is not set-user-id. If the
/// contents do not get there, as those of large files and in full groups, nothing is made. Needs place init.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  place cp --group 3 index /srv/index")]
pub struct Cp {
    #[command(flatten)]
    place: Where,
    /// The file.
    from: PathBuf,
    /// Its copy, which must not exist.
    to: PathBuf,
}

/// Copy a file into a group, and remove the old one
///
/// As place cp, for files that have no other names. Refuses where owner or attributes could not be kept. For
/// many files at once, place pack is what moves them in place. Needs place init.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  place mv --near /srv/db index /srv/index")]
pub struct Mv {
    #[command(flatten)]
    place: Where,
    /// The file.
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
            controlled::create_file(shadow, path, 0o666, group)
        })
    }
}

impl Cp {
    /// Copies the file.
    pub fn run(self) -> Result<ExitCode> {
        each(&self.place, &[self.to], |shadow, to, group| {
            let left_out = controlled::copy_file(shadow, &self.from, to, group)?;
            if !left_out.is_empty() {
                let to = to.display();
                note!("place: {to}: left out, since only root may set it: {}", left_out.join(", "));
            }
            Ok(())
        })
    }
}

impl Mv {
    /// Copies the file and removes the old one.
    pub fn run(self) -> Result<ExitCode> {
        each(&self.place, &[self.to], |shadow, to, group| {
            controlled::move_file(shadow, &self.from, to, group)
        })
    }
}

/// Calls a function for each path, with the tree of the first path.
fn each(
    place: &Where,
    paths: &[PathBuf],
    work: impl Fn(&Shadow, &Path, u64) -> Result<()>,
) -> Result<ExitCode> {
    let shadow = Shadow::find(paths.first().context("a path")?)?;
    let group = place.group(&shadow)?;
    paths.iter().try_for_each(|path| work(&shadow, path, group))?;
    Ok(ExitCode::SUCCESS)
}
