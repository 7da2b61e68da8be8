//! `cffs umount`: unmounts, and waits for the image to be complete.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use cffs::device::BlockDevice;
use cffs::device::file::{Access, FileDevice, OpenError};
use cffs::format::Superblock;
use cffs::format::superblock::{SUPERBLOCK_BYTES, State};
use clap::Args;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::{mounts, output};

/// How long the server may take without a word to the user.
const QUIET: Duration = Duration::from_secs(2);
/// How long it may take at all: a server writes what is dirty at the speed of the device.
const PATIENCE: Duration = Duration::from_secs(600);

/// Unmount a volume and wait until its image is complete
///
/// umount(8) and fusermount3 -u unmount as well, but cannot wait: there, the next cffs command on
/// the image does.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cffs umount mnt
  cffs umount -l mnt      take it out of the tree now, though somebody still uses it")]
pub struct Umount {
    /// The directory that the volume is mounted on.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Unmount though somebody has files open; they keep them, and the server ends with the last.
    #[arg(short, long)]
    lazy: bool,
}

impl Umount {
    /// Unmounts and waits.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let mounted = mounts::on(&self.directory)?;
        unmount(&mounted.directory, self.lazy)?;
        if self.lazy {
            return Ok(ExitCode::SUCCESS);
        }
        match wait_for_image(&mounted.source) {
            Ok(Some(State::InUse)) => bail!(
                "the server of {} ended before the image was complete; the next mount recovers \
                 it, or: cffs fsck -p {}",
                mounted.source.display(),
                mounted.source.display()
            ),
            Ok(_) => Ok(ExitCode::SUCCESS),
            Err(error) => Err(error),
        }
    }
}

fn unmount(directory: &Path, lazy: bool) -> anyhow::Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(directory, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => bail!(
            "{} is busy: somebody has files open or a working directory there (fuser -vm shows \
             who); cffs umount -l does not mind",
            directory.display()
        ),
        Err(Errno::PERM) => by_helper(directory, lazy),
        Err(errno) => Err(errno).with_context(|| directory.display().to_string()),
    }
}

/// As an ordinary user, who may unmount what is theirs by way of a program.
fn by_helper(directory: &Path, lazy: bool) -> anyhow::Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let ended = command.arg("--").arg(directory).stdin(Stdio::null()).output();
    let ended = ended.context("fusermount3 (package fuse3) unmounts for ordinary users")?;
    if !ended.status.success() {
        bail!("{}", output::printable(ended.stderr.trim_ascii()));
    }
    Ok(())
}

/// Waits until nobody writes the image and returns how it was left. `None` where that cannot be
/// told: the image is out of reach, or was mounted again at once.
fn wait_for_image(image: &Path) -> anyhow::Result<Option<State>> {
    let device = match FileDevice::open_waiting(image, Access::ReadOnly, QUIET) {
        Err(OpenError::InUse { .. }) => {
            if mounts::of_source(image).is_some() {
                return Ok(None);
            }
            eprintln!("cffs umount: waiting until {} is complete", image.display());
            FileDevice::open_waiting(image, Access::ReadOnly, PATIENCE)
        }
        outcome => outcome,
    };
    let device = match device {
        Ok(device) => device,
        Err(error @ OpenError::InUse { .. }) => return Err(error.into()),
        Err(_) => return Ok(None),
    };
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(0, &mut bytes)?;
    Ok(Superblock::decode(&bytes, 0).ok().map(|superblock| superblock.state))
}
