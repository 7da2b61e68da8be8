//! Making and removing the mount.
//!
//! Root calls `mount(2)`. Other users run `fusermount3`, which is set-user-id root, checks the user's
//! permissions, mounts, and passes the device back over a socket.

mod direct;
mod fusermount;
mod namespace;

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

pub use namespace::sees_all_processes;

use crate::apart;
use crate::transport::device::Device;

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The device name in `/proc/mounts` and `df`.
    pub fsname: OsString,
    /// The type is shown as `fuse.SUBTYPE` or `fuseblk.SUBTYPE`; without the point if this is empty.
    pub subtype: String,
    /// Whether `fsname` is the path of a block device that contains the file system; root only, and only in
    /// the machine's initial mount namespace, since the kernel hangs if such a mount ends with the process
    /// that serves it. The kernel claims the device while it is mounted and forwards sync(2) and syncfs(2)
    /// (Linux 6.18), and unmounting waits until [`Handler::destroy`](crate::Handler::destroy) has returned.
    pub block_device: bool,
    /// Whether the kernel checks permissions by mode and owner. Otherwise the server must.
    pub default_permissions: bool,
    /// Whether users other than the mounter have access. An ordinary user needs `user_allow_other` in
    /// `/etc/fuse.conf` for this.
    pub allow_other: bool,
    /// The longest read in bytes, if it should be shorter than the longest request.
    pub max_read: Option<u32>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether set-id bits are honoured; root only.
    pub allow_suid: bool,
    /// Whether device files work; root only.
    pub allow_dev: bool,
    /// Whether programs cannot be executed.
    pub no_exec: bool,
    /// Whether symbolic links are not followed; root only.
    pub no_symlink_follow: bool,
    /// Whether access times are not updated.
    pub no_atime: bool,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            fsname: OsString::from("fuse-ring"),
            subtype: String::new(),
            block_device: false,
            default_permissions: true,
            allow_other: false,
            max_read: None,
            read_only: false,
            allow_suid: false,
            allow_dev: false,
            no_exec: false,
            no_symlink_follow: false,
            no_atime: false,
        }
    }
}

/// How to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Fail with `EBUSY` while anything is open.
    Now,
    /// Detach the mount at once; the session ends when the last file is closed.
    Lazy,
    /// Abort the connection: pending and later requests fail, dirty pages are lost. Root only.
    Force,
}

/// Mounts on a directory, which is resolved first. Returns the connection and the resolved path.
pub(crate) fn mount(path: &Path, options: &MountOptions) -> io::Result<(Device, PathBuf)> {
    let path = path.canonicalize()?;
    let by_root = options.block_device || options.no_symlink_follow;
    let device = if by_root || rustix::process::geteuid().is_root() {
        direct::mount(&path, options)?
    } else {
        fusermount::mount(&path, options)?
    };
    Ok((device, path))
}

/// Unmounts. The path must be resolved: unmounting does not follow symbolic links.
pub(crate) fn unmount(path: &Path, how: Unmount) -> io::Result<()> {
    let flags = match how {
        Unmount::Now => UnmountFlags::empty(),
        Unmount::Lazy => UnmountFlags::DETACH,
        Unmount::Force => UnmountFlags::FORCE | UnmountFlags::DETACH,
    } | UnmountFlags::NOFOLLOW;
    match unmount_apart(path, flags) {
        Err(error) if is_refused(&error) && how != Unmount::Force => fusermount::unmount(path, how),
        result => result,
    }
}

fn is_refused(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::PERM.raw_os_error())
}

/// The unmount of a block device waits for an answer of the server, which is usually this process.
fn unmount_apart(path: &Path, flags: UnmountFlags) -> io::Result<()> {
    let target = CString::new(path.as_os_str().as_bytes())?;
    let unmount = || rustix::mount::unmount(target.as_c_str(), flags);
    Ok(apart::run(unmount).unwrap_or_else(unmount)?)
}

/// The options that are passed to the file system itself, without those passed as flags.
fn data_options(options: &MountOptions) -> Vec<OsString> {
    let mut list = Vec::new();
    if options.default_permissions {
        list.push(OsString::from("default_permissions"));
    }
    if options.allow_other {
        list.push(OsString::from("allow_other"));
    }
    if let Some(max_read) = options.max_read {
        list.push(OsString::from(format!("max_read={max_read}")));
    }
    list
}

fn join(list: &[OsString]) -> OsString {
    list.join(OsStr::new(","))
}
