//! `mount -o remount`: changes a mount that is there.
//!
//! What the kernel watches over (ro, nosuid, nodev, noexec) changes at once. Everything else was told
//! to the server when it started, and stays as it is.

use std::path::Path;

use anyhow::{Context, bail};
use cffs_serve::fuse::control::{self, Question};
use rustix::mount::{MountFlags, mount_remount};

use crate::mount_options::MountOptions;
use crate::mounts;

/// Gives the mount on this directory other options. What was written before the call is durable when
/// it returns.
pub fn remount(directory: &Path, options: &MountOptions) -> anyhow::Result<()> {
    let mounted = mounts::on(directory)?;
    if !rustix::process::geteuid().is_root() {
        bail!("only root can remount; unmount and mount again");
    }
    let info = control::ask(&mounted.directory, Question::Info)?;
    if info["server"]["read_only"] == true && !options.open.read_only {
        bail!(
            "{} was mounted read-only and its server cannot write; unmount it and mount it again",
            directory.display()
        );
    }
    control::sync(&mounted.directory)?;
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.open.read_only);
    flags.set(MountFlags::NOSUID, !options.suid);
    flags.set(MountFlags::NODEV, !options.dev);
    flags.set(MountFlags::NOEXEC, !options.exec);
    mount_remount(&mounted.directory, flags, "")
        .with_context(|| format!("remounting {}", directory.display()))
}
