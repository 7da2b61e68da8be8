//! `mount(2)`, for root.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::mount::MountFlags;

use super::{MountOptions, data_options, join, namespace};
use crate::transport::device::Device;

pub(super) fn mount(path: &Path, options: &MountOptions) -> io::Result<Device> {
    if options.block_device {
        namespace::check_outlives_us()?;
    }
    let device = Device::open()?;
    // The root's type is passed as an option because the kernel needs it before it can send
    // requests.
    let file_type = rustix::fs::stat(path)?.st_mode & 0o170_000;
    let mut list = vec![
        OsString::from(format!("fd={}", device.as_fd().as_raw_fd())),
        OsString::from(format!("rootmode={file_type:o}")),
        OsString::from(format!("user_id={}", rustix::process::getuid().as_raw())),
        OsString::from(format!("group_id={}", rustix::process::getgid().as_raw())),
    ];
    list.extend(data_options(options));
    if options.block_device {
        // The kernel caches files in pages, as it does without a block device.
        list.push(OsString::from(format!("blksize={}", rustix::param::page_size())));
    }
    let data = CString::new(join(&list).into_vec())?;
    let base = if options.block_device { "fuseblk" } else { "fuse" };
    let fstype = match options.subtype.as_str() {
        "" => String::from(base),
        subtype => format!("{base}.{subtype}"),
    };
    rustix::mount::mount(&options.fsname, path, fstype, flags(options), Some(data.as_c_str()))?;
    Ok(device)
}

/// `MS_NOSYMFOLLOW` (Linux 5.10).
const NOSYMFOLLOW: MountFlags = MountFlags::from_bits_retain(256);

fn flags(options: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, !options.allow_suid);
    flags.set(MountFlags::NODEV, !options.allow_dev);
    flags.set(MountFlags::NOEXEC, options.no_exec);
    flags.set(MountFlags::NOATIME, options.no_atime);
    flags.set(NOSYMFOLLOW, options.no_symlink_follow);
    flags
}
