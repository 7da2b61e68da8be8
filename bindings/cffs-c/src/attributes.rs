//! Attributes and extended attributes.

use std::ffi::{c_char, c_int, c_void};

use cffs::clock::Timestamp;
use cffs::error::{Error, Result};
use cffs::vfs::types::{Attr, SetAttr, SetTime};

use crate::error::{counted, status};
use crate::pointers::{bytes, copy_out, opened, place, readable};
use crate::volume::Volume;

/// A time.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Time {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub seconds: i64,
    /// Nanoseconds past the second, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// The attributes of a file.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stat {
    /// The inode number.
    pub ino: u64,
    /// Distinguishes this file from earlier files with the same inode number.
    pub generation: u32,
    /// Type and permissions, as in st_mode.
    pub mode: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Size of the contents in bytes.
    pub size: u64,
    /// Space that the file occupies on the volume, in bytes.
    pub allocated_bytes: u64,
    /// The device number: major << 32 | minor.
    pub device: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of the contents.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation.
    pub btime: Time,
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Time {
        Time { seconds: time.seconds, nanoseconds: time.nanoseconds }
    }
}

impl From<Attr> for Stat {
    fn from(attr: Attr) -> Stat {
        Stat {
            ino: attr.ino.0,
            generation: attr.generation,
            mode: attr.mode(),
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            allocated_bytes: attr.allocated_bytes,
            device: attr.device,
            atime: attr.atime.into(),
            mtime: attr.mtime.into(),
            ctime: attr.ctime.into(),
            btime: attr.btime.into(),
        }
    }
}

/// Gets the attributes of a file; follows a symbolic link.
///
/// # Safety
/// `volume` is null or open, `path` null or a string, `stat` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_stat(
    volume: *const Volume,
    path: *const c_char,
    stat: *mut Stat,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path, stat) = unsafe { (opened(volume)?, bytes(path)?, place(stat)?) };
        *stat = volume.files.stat(path)?.into();
        Ok(())
    })
}

/// Gets the attributes of a file; of a symbolic link, those of the link itself.
///
/// # Safety
/// `volume` is null or open, `path` null or a string, `stat` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_lstat(
    volume: *const Volume,
    path: *const c_char,
    stat: *mut Stat,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path, stat) = unsafe { (opened(volume)?, bytes(path)?, place(stat)?) };
        *stat = volume.files.stat_itself(path)?.into();
        Ok(())
    })
}

/// Sets the lower 12 bits of a mode.
///
/// # Safety
/// `volume` is null or open, `path` null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_chmod(
    volume: *const Volume,
    path: *const c_char,
    mode: u32,
) -> c_int {
    let changes = SetAttr { permissions: Some(mode & 0o7777), ..SetAttr::default() };
    // SAFETY: the caller's promise.
    status(|| unsafe { change(volume, path, &changes) })
}

/// Sets owner and group; (uid_t)-1 and (gid_t)-1 leave the current one.
///
/// # Safety
/// `volume` is null or open, `path` null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_chown(
    volume: *const Volume,
    path: *const c_char,
    uid: u32,
    gid: u32,
) -> c_int {
    let given = |id| (id != u32::MAX).then_some(id);
    let changes = SetAttr { uid: given(uid), gid: given(gid), ..SetAttr::default() };
    // SAFETY: the caller's promise.
    status(|| unsafe { change(volume, path, &changes) })
}

/// Sets the times of the last access and of the last change of the contents; NULL leaves the current one.
///
/// # Safety
/// `volume` is null or open, `path` null or a string, `atime` and `mtime` null or readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_utimens(
    volume: *const Volume,
    path: *const c_char,
    atime: *const Time,
    mtime: *const Time,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (atime, mtime) = unsafe { (time(atime)?, time(mtime)?) };
        let changes = SetAttr { atime, mtime, ..SetAttr::default() };
        // SAFETY: the caller's promise.
        unsafe { change(volume, path, &changes) }
    })
}

/// # Safety
/// `time` is null or readable.
unsafe fn time(time: *const Time) -> Result<Option<SetTime>> {
    // SAFETY: as above.
    let Some(time) = (unsafe { time.as_ref() }) else { return Ok(None) };
    if time.nanoseconds >= 1_000_000_000 {
        return Err(Error::Invalid("a time has a second's nanoseconds or more"));
    }
    let Time { seconds, nanoseconds } = *time;
    Ok(Some(SetTime::To(Timestamp { seconds, nanoseconds })))
}

/// # Safety
/// `volume` is null or open, `path` null or a string.
unsafe fn change(volume: *const Volume, path: *const c_char, changes: &SetAttr) -> Result<()> {
    // SAFETY: as above.
    let (volume, path) = unsafe { (opened(volume)?, bytes(path)?) };
    volume.files.set_attr(path, changes)
}

/// Copies an extended attribute to `value`, a buffer of `count` bytes, and returns its length. With `count` 0
/// it only returns the length. Fails with ERANGE if the buffer is too small.
///
/// # Safety
/// `volume` is null or open, `path` and `name` are null or strings, `value` null or writable for `count`
/// bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_getxattr(
    volume: *const Volume,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    count: usize,
) -> i64 {
    counted(|| {
        // SAFETY: the caller's promise.
        let (volume, path, name) = unsafe { (opened(volume)?, bytes(path)?, bytes(name)?) };
        let found = volume.files.node(path)?.xattr(name)?;
        // SAFETY: the caller's promise.
        unsafe { copy_out(&found, value, count) }
    })
}

/// Copies the names of a file's extended attributes to `names`, each followed by a zero byte. `count` and the
/// result are as for cffs_getxattr.
///
/// # Safety
/// `volume` is null or open, `path` null or a string, `names` null or writable for `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_listxattr(
    volume: *const Volume,
    path: *const c_char,
    names: *mut c_void,
    count: usize,
) -> i64 {
    counted(|| {
        // SAFETY: the caller's promise.
        let (volume, path) = unsafe { (opened(volume)?, bytes(path)?) };
        let found = volume.files.node(path)?.xattr_names()?;
        let list: Vec<u8> = found.iter().flat_map(|name| name.iter().copied().chain([0])).collect();
        // SAFETY: the caller's promise.
        unsafe { copy_out(&list, names, count) }
    })
}

/// Sets an extended attribute.
///
/// # Safety
/// `volume` is null or open, `path` and `name` are null or strings, `value` null or readable for `count`
/// bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_setxattr(
    volume: *const Volume,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    count: usize,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path, name) = unsafe { (opened(volume)?, bytes(path)?, bytes(name)?) };
        // SAFETY: the caller's promise.
        let value = unsafe { readable(value, count) }?;
        volume.files.node(path)?.set_xattr(name, value)
    })
}

/// Removes an extended attribute.
///
/// # Safety
/// `volume` is null or open, `path` and `name` are null or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_removexattr(
    volume: *const Volume,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path, name) = unsafe { (opened(volume)?, bytes(path)?, bytes(name)?) };
        volume.files.node(path)?.remove_xattr(name)
    })
}
