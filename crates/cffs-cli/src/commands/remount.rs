//! `mount -o remount`: changes the given options of an existing mount, and no others.
//!
//! The flags of the kernel's mount (ro, nosuid, nodev, noexec, nosymfollow) change at once. The server keeps
//! every other option while it runs, so another value is refused by name.
//!
//! `ro` and `rw` apply to the volume, in all of its mounts, as with other file systems. The other flags apply
//! to the one mount: a bind mount of the volume has its own.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use cffs_serve::served::control;
use rustix::mount::{MountFlags, mount_remount};

use crate::mount_options::{Flags, MountOptions};
use crate::mounts::{self, Mounted};

/// `MS_NOSYMFOLLOW` (Linux 5.10).
const NOSYMFOLLOW: MountFlags = MountFlags::from_bits_retain(256);

/// Changes the options of the mount on this directory. If it becomes read-only or writable, earlier writes
/// are durable when this returns.
pub fn remount(directory: &Path, options: &MountOptions) -> anyhow::Result<()> {
    let Some(mounted) = mounts::on(directory)? else {
        bail!("no C-FFS volume is mounted on {}", directory.display());
    };
    mounts::answers(&mounted)?;
    if !rustix::process::geteuid().is_root() {
        bail!("only root can remount; unmount and mount again");
    }
    let given = options.kept_and_given();
    if !given.is_empty() {
        check_kept(&control::identity(&mounted.directory)?.fixed_options, &given)?;
    }
    let flags = changed(&mounted, &options.flags);
    let change = |flags| {
        mount_remount(&mounted.directory, flags, "")
            .with_context(|| format!("remounting {}", directory.display()))
    };
    // As it is, it need not be touched: the volume's own state is not this mount's alone.
    let Some(read_only) =
        options.flags.read_only.filter(|wanted| *wanted != is_read_only(&mounted))
    else {
        return change(flags | MountFlags::BIND);
    };
    if !read_only && control::identity(&mounted.directory)?.read_only {
        bail!(
            "{} was mounted read-only and its server cannot write; unmount it and mount it again",
            directory.display()
        );
    }
    control::sync(&mounted.directory)?;
    change(flags)?;
    if read_only {
        // Writes between the two.
        control::sync(&mounted.directory)?;
    }
    Ok(())
}

/// Fails if the server keeps another value of an option than is wanted. mount(8) adds to a remount what
/// fstab has, which the server has, too, unless fstab has changed since. The kernel shows `relatime` of each
/// mount that is not `noatime`, and mount(8) hands that back, so `relatime` also matches `strictatime`.
fn check_kept(
    server: &BTreeMap<String, String>,
    wanted: &BTreeMap<String, String>,
) -> anyhow::Result<()> {
    for (name, wanted) in wanted {
        let value = server.get(name).map(String::as_str);
        if value == Some(wanted) || (value, wanted.as_str()) == (Some("strictatime"), "relatime") {
            continue;
        }
        let value = value.unwrap_or("a value that its server does not report");
        bail!(
            "it is mounted with {value}, and its server keeps that as long as it runs; to have {wanted}, \
             unmount it and mount it again"
        )
    }
    Ok(())
}

fn is_read_only(mounted: &Mounted) -> bool {
    mounted.is_read_only || mounted.has("ro")
}

/// The flags of a mount as they are, but for those that were asked for. Those for times of access are
/// left out: the kernel keeps them as they are then.
fn changed(mounted: &Mounted, asked: &Flags) -> MountFlags {
    let mut flags = MountFlags::empty();
    let allows = |option: &str, asked: Option<bool>| asked.unwrap_or(!mounted.has(option));
    flags.set(MountFlags::RDONLY, asked.read_only.unwrap_or(mounted.has("ro")));
    flags.set(MountFlags::NOSUID, !allows("nosuid", asked.suid));
    flags.set(MountFlags::NODEV, !allows("nodev", asked.dev));
    flags.set(MountFlags::NOEXEC, !allows("noexec", asked.exec));
    flags.set(NOSYMFOLLOW, !allows("nosymfollow", asked.symlink_follow));
    flags
}

#[cfg(test)]
mod tests;
