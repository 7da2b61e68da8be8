//! Names: created, linked, removed and resolved.

use std::ffi::{c_char, c_int, c_void};

use cffs::error::Error;

use crate::error::{counted, status};
use crate::pointers::{bytes, copy_out, opened};
use crate::volume::Volume;

/// Creates a directory, with `mode` as for mkdir(2): on a mounted volume the umask applies, and the
/// set-group-ID bit is that of the directory above.
///
/// # Safety
/// `volume` is null or open, `path` null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_mkdir(
    volume: *const Volume,
    path: *const c_char,
    mode: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { opened(volume)?.files.make_dir_with(bytes(path)?, mode) })
}

/// Creates a directory and its missing ancestors, with mode 0755.
///
/// # Safety
/// `volume` is null or open, `path` null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_mkdir_all(volume: *const Volume, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { opened(volume)?.files.make_dir_all(bytes(path)?) })
}

/// Removes an empty directory.
///
/// # Safety
/// `volume` is null or open, `path` null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_rmdir(volume: *const Volume, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { opened(volume)?.files.remove_dir(bytes(path)?) })
}

/// Removes a name of a file that is not a directory.
///
/// # Safety
/// `volume` is null or open, `path` null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_unlink(volume: *const Volume, path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { opened(volume)?.files.remove_file(bytes(path)?) })
}

/// Renames a file, replacing an existing file with the new name.
///
/// # Safety
/// `volume` is null or open, `path` and `new_path` are null or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_rename(
    volume: *const Volume,
    path: *const c_char,
    new_path: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { opened(volume)?.files.rename(bytes(path)?, bytes(new_path)?) })
}

/// Gives a file another name.
///
/// # Safety
/// `volume` is null or open, `path` and `new_path` are null or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_link(
    volume: *const Volume,
    path: *const c_char,
    new_path: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { opened(volume)?.files.hard_link(bytes(path)?, bytes(new_path)?) })
}

/// Creates a symbolic link.
///
/// # Safety
/// `volume` is null or open, `target` and `path` are null or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_symlink(
    volume: *const Volume,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { opened(volume)?.files.symlink(bytes(target)?, bytes(path)?) })
}

/// Copies the target of a symbolic link to `target`, followed by a zero byte, and returns its length without
/// that byte. Fails with ERANGE if it does not fit into `count` bytes.
///
/// # Safety
/// `volume` is null or open, `path` null or a string, `target` null or writable for `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_readlink(
    volume: *const Volume,
    path: *const c_char,
    target: *mut c_char,
    count: usize,
) -> i64 {
    counted(|| {
        // SAFETY: the caller's promise.
        let (volume, path) = unsafe { (opened(volume)?, bytes(path)?) };
        let mut found = volume.files.read_link(path)?;
        let length = found.len() as i64;
        found.push(0);
        if count == 0 {
            return Err(Error::Range);
        }
        // SAFETY: the caller's promise.
        unsafe { copy_out(&found, target.cast::<c_void>(), count) }?;
        Ok(length)
    })
}
