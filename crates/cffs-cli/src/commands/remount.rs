//! `mount -o remount`: changes a mount that is there, in what was asked for and nothing else.
//!
//! What the kernel watches over (ro, nosuid, nodev, noexec, nosymfollow) changes at once. Everything else
//! was set when the server started, and stays as it is: another value is refused by name.
//!
//! `ro` and `rw` are the volume's, for all mounts of it, as with other file systems. The others are those
//! of the one mount: a bind mount of the volume has its own.

use std::path::Path;

use anyhow::{Context, bail};
use cffs::vfs::types::AtimeMode;
use cffs_serve::fuse::control;
use rustix::mount::{MountFlags, mount_remount};

use crate::mount_options::{Flags, MountOptions};
use crate::mounts::{self, Mounted};

/// `MS_NOSYMFOLLOW` (Linux 5.10).
const NOSYMFOLLOW: MountFlags = MountFlags::from_bits_retain(256);

/// Gives the mount on this directory other options. If it becomes read-only or writable, what was
/// written before is durable when this returns.
pub fn remount(directory: &Path, options: &MountOptions) -> anyhow::Result<()> {
    let mounted = mounts::on(directory)?;
    if !rustix::process::geteuid().is_root() {
        bail!("only root can remount; unmount and mount again");
    }
    let mut fixed = options.fixed_and_asked().peekable();
    if options.atime.is_some() || fixed.peek().is_some() {
        let server = control::identity(&mounted.directory)?;
        options.atime.map_or(Ok(()), |wanted| check_atime(&server.atime, wanted))?;
        fixed
            .try_for_each(|(name, wanted)| check_fixed(server.fixed_options.get(&name), &wanted))?;
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
        // What was written between the two.
        control::sync(&mounted.directory)?;
    }
    Ok(())
}

/// Fails if the server sets times of access otherwise than is wanted. The kernel shows `relatime` of each
/// mount that is not `noatime`, and mount(8) hands that back: it is taken for nothing that was asked for.
fn check_atime(mode: &str, wanted: AtimeMode) -> anyhow::Result<()> {
    let is_as_wanted = match wanted {
        AtimeMode::Relative => mode != AtimeMode::Never.name(),
        AtimeMode::Strict | AtimeMode::Never => mode == wanted.name(),
    };
    if !is_as_wanted {
        bail!(
            "it is mounted with {mode}, and its server keeps that as long as it runs; to have {}, unmount \
             it and mount it again",
            wanted.name()
        );
    }
    Ok(())
}

/// Fails if the server has another value of an option than is wanted. mount(8) adds to a remount what
/// fstab has, which the server has, too, unless somebody has changed that since.
fn check_fixed(value: Option<&String>, wanted: &str) -> anyhow::Result<()> {
    if value.is_some_and(|value| value == wanted) {
        return Ok(());
    }
    let value = value.map_or("a value that its server does not report", String::as_str);
    bail!(
        "it is mounted with {value}, and its server keeps that as long as it runs; to have {wanted}, \
         unmount it and mount it again"
    )
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
