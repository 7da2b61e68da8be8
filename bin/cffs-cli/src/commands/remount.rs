//! `mount -o remount`: changes the given options of an existing mount, and no others.
//!
//! The flags of the kernel's mount (ro, nosuid, nodev, noexec, nosymfollow) change at once. The server cannot
//! change any other option while it runs, so another value is refused by name.
//!
//! `ro` and `rw` apply to the volume, in all of its mounts, as with other file systems. The other flags apply
//! to the one mount: a bind mount of the volume has its own.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use cffs_serve::attached;
use cffs_serve::served::control::{self, Question};
use rustix::fs::getxattr;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};

use crate::mount_options::{self, Flags, MountOptions};
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
        bail!("only root may change the options of a mount; unmount it and mount it again");
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
    // If this stays the same, only this mount changes: the volume's own state applies to all of its mounts.
    let Some(read_only) =
        options.flags.read_only.filter(|wanted| *wanted != is_read_only(&mounted))
    else {
        return change(flags | MountFlags::BIND);
    };
    if !read_only && control::identity(&mounted.directory)?.opened_read_only {
        bail!(
            "{} was mounted read-only and its server cannot write; unmount it and mount it again",
            directory.display()
        );
    }
    if read_only {
        check_exports(&mounted.directory)?;
    }
    control::sync(&mounted.directory)?;
    change(flags)?;
    if read_only {
        if let Err(error) = end_changes(&mounted.directory) {
            // Restores the flags of the mount, which was writable.
            change(changed(&mounted, &Flags::default()))?;
            return Err(error);
        }
        // Makes writes between the two durable.
        control::sync(&mounted.directory)?;
    }
    Ok(())
}

/// Fails if NFS clients could still change the volume: the kernel only refuses changes through the mount.
fn check_exports(directory: &Path) -> anyhow::Result<()> {
    let shown = control::ask(directory, Question::Exports)?;
    let mut exports = shown["exports"].as_array().into_iter().flatten();
    if let Some(writable) = exports.find(|export| export["read_only"] == false) {
        let path = writable["path"].as_str().unwrap_or_default();
        bail!(
            "NFS clients could still change the volume through its export {path}; remove that first: \
             cffs serve --export-remove {path} {}",
            directory.display()
        );
    }
    Ok(())
}

/// Makes the server end the sessions of attached programs. The kernel does not see their changes.
fn end_changes(directory: &Path) -> anyhow::Result<()> {
    match getxattr(directory, attached::END, &mut [0; 0]) {
        // A server of an earlier version does not know the attribute, and supports no attached programs.
        Ok(_) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        Err(Errno::BUSY) => {
            let directory = directory.display();
            bail!("{directory}: an attached program, a clone or a regrouping is changing it")
        }
        Err(error) => Err(error).with_context(|| directory.display().to_string()),
    }
}

/// Fails if the server has another value of an option than requested. mount(8) adds the options of fstab to a
/// remount, which the server also has unless fstab has changed. The kernel shows `relatime` for each mount
/// that is not `noatime`, and mount(8) passes that back, so `relatime` also matches `strictatime`.
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
            "a remount changes only {}; it is mounted with {value}: for {wanted}, unmount it and mount it \
             again",
            mount_options::changeable()
        )
    }
    Ok(())
}

fn is_read_only(mounted: &Mounted) -> bool {
    mounted.is_read_only || mounted.has("ro")
}

/// The current flags of a mount with the requested changes. Flags for access times are omitted: the kernel
/// then keeps them.
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
