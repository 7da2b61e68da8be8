//! Files and their contents.

use std::ffi::{c_char, c_int, c_void};

use cffs::error::{Error, Result};
use cffs::files;
use cffs::vfs::types::SetAttr;

use crate::attributes::Stat;
use crate::error::{counted, status};
use crate::pointers::{bytes, hand_out, opened, place, readable, take_back, writable};
use crate::volume::Volume;

/// A regular file that is open for reading and writing. It continues to exist while it is open, even if its
/// last name is removed.
pub struct File {
    file: files::File,
}

/// Creates the file if it does not exist.
pub const CFFS_CREATE: u32 = 1;
/// With CFFS_CREATE: fails with EEXIST if it exists.
pub const CFFS_EXCLUSIVE: u32 = 2;
/// Truncates the file to no bytes.
pub const CFFS_TRUNCATE: u32 = 4;

/// Opens a file and sets *file. `flags` is 0 or a combination of CFFS_CREATE, CFFS_EXCLUSIVE and
/// CFFS_TRUNCATE; `mode` is the mode of a file that is created.
///
/// # Safety
/// `volume` is null or open, `path` null or a string, `file` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_file_open(
    volume: *const Volume,
    path: *const c_char,
    flags: u32,
    mode: u32,
    file: *mut *mut File,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path, file) = unsafe { (opened(volume)?, bytes(path)?, place(file)?) };
        *file = hand_out(File { file: open(volume, path, flags, mode)? });
        Ok(())
    })
}

fn open(volume: &Volume, path: &[u8], flags: u32, mode: u32) -> Result<files::File> {
    if flags & !(CFFS_CREATE | CFFS_EXCLUSIVE | CFFS_TRUNCATE) != 0 {
        return Err(Error::Invalid("flags that cffs_file_open does not know"));
    }
    let file = match (flags & CFFS_CREATE != 0, flags & CFFS_EXCLUSIVE != 0) {
        (true, true) => return volume.files.create_new(path, mode),
        (true, false) => volume.files.open_or_create(path, mode)?,
        (false, _) => volume.files.open(path)?,
    };
    if flags & CFFS_TRUNCATE != 0 {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Reads up to `count` bytes from `offset` on, and returns their number, which is less than `count` only at
/// the end of the file.
///
/// # Safety
/// `file` is null or open, `buffer` null or writable for `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_pread(
    file: *const File,
    buffer: *mut c_void,
    count: usize,
    offset: u64,
) -> i64 {
    counted(|| {
        // SAFETY: the caller's promise.
        let (file, buffer) = unsafe { (opened(file)?, writable(buffer, count)?) };
        Ok(file.file.read_at(offset, buffer)? as i64)
    })
}

/// Writes `count` bytes at `offset` and returns `count`; the file grows as needed. After an error, part of
/// the bytes may have been written.
///
/// # Safety
/// `file` is null or open, `buffer` null or readable for `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_pwrite(
    file: *const File,
    buffer: *const c_void,
    count: usize,
    offset: u64,
) -> i64 {
    counted(|| {
        // SAFETY: the caller's promise.
        let (file, data) = unsafe { (opened(file)?, readable(buffer, count)?) };
        file.file.write_all_at(offset, data)?;
        Ok(count as i64)
    })
}

/// Writes `count` bytes at the end of the file and returns `count`. Several threads may append at the same
/// time: the bytes of each call stay together (with cffs_attach, each MiB of them), and do not overwrite
/// those of another. After an error, part of the bytes may have been written.
///
/// # Safety
/// `file` is null or open, `buffer` null or readable for `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_append(
    file: *const File,
    buffer: *const c_void,
    count: usize,
) -> i64 {
    counted(|| {
        // SAFETY: the caller's promise.
        let (file, data) = unsafe { (opened(file)?, readable(buffer, count)?) };
        file.file.append_all(data)?;
        Ok(count as i64)
    })
}

/// Truncates an open file, or extends it by a hole.
///
/// # Safety
/// `file` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_ftruncate(file: *const File, size_bytes: u64) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { opened(file) }?.file.set_len(size_bytes))
}

/// Makes a file's contents and attributes durable.
///
/// # Safety
/// `file` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_fsync(file: *const File) -> c_int {
    // SAFETY: the caller's promise.
    status(|| unsafe { opened(file) }?.file.sync())
}

/// Gets the attributes of an open file.
///
/// # Safety
/// `file` is null or open, `stat` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_fstat(file: *const File, stat: *mut Stat) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (file, stat) = unsafe { (opened(file)?, place(stat)?) };
        *stat = file.file.node().attr()?.into();
        Ok(())
    })
}

/// Closes a file; NULL is allowed. Closing makes nothing durable.
///
/// # Safety
/// `file` is null, or open and not used after this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_file_close(file: *mut File) {
    // SAFETY: the caller's promise.
    drop(unsafe { take_back(file) });
}

/// Reads a whole file and sets *contents, which the caller must free with cffs_free, and *count.
///
/// # Safety
/// `volume` is null or open, `path` null or a string, `contents` and `count` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_read_file(
    volume: *const Volume,
    path: *const c_char,
    contents: *mut *mut u8,
    count: *mut usize,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path, contents, count) =
            unsafe { (opened(volume)?, bytes(path)?, place(contents)?, place(count)?) };
        let read = volume.files.read(path)?.into_boxed_slice();
        *count = read.len();
        *contents = Box::into_raw(read).cast();
        Ok(())
    })
}

/// Frees the contents that cffs_read_file has set, given with their count; NULL is allowed.
///
/// # Safety
/// Both come from one call of `cffs_read_file`, and are not used after this; or `contents` is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_free(contents: *mut u8, count: usize) {
    if !contents.is_null() {
        // SAFETY: `cffs_read_file` returned a box of this length.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(contents, count)) });
    }
}

/// Creates a file with these contents, or replaces the contents of an existing file.
///
/// # Safety
/// `volume` is null or open, `path` null or a string, `contents` null or readable for `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_write_file(
    volume: *const Volume,
    path: *const c_char,
    contents: *const c_void,
    count: usize,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path, data) =
            unsafe { (opened(volume)?, bytes(path)?, readable(contents, count)?) };
        volume.files.write(path, data)
    })
}

/// Truncates the file at a path, or extends it by a hole.
///
/// # Safety
/// `volume` is null or open, `path` null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_truncate(
    volume: *const Volume,
    path: *const c_char,
    size_bytes: u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path) = unsafe { (opened(volume)?, bytes(path)?) };
        let changes = SetAttr { size: Some(size_bytes), ..SetAttr::default() };
        volume.files.set_attr(path, &changes)
    })
}
