//! Directories, entry by entry.

use std::ffi::{CString, c_char, c_int};

use cffs::error::Error;
use cffs::files::DirItem;

use crate::attributes::Stat;
use crate::error::{counted, status};
use crate::pointers::{bytes, hand_out, opened, place, take_back};
use crate::volume::Volume;

/// A directory that is being read. Its entries are those that it had when it was opened.
pub struct Directory {
    entries: std::vec::IntoIter<DirItem>,
    /// The name of the last entry read.
    name: CString,
}

/// An entry of a directory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The name; valid until the next call for this directory.
    pub name: *const c_char,
    /// The attributes, which are read together with the name.
    pub stat: Stat,
}

/// Opens a directory and sets *directory. The entries are in the order of their creation, without . and ..
///
/// # Safety
/// `volume` is null or open, `path` null or a string, `directory` null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_opendir(
    volume: *const Volume,
    path: *const c_char,
    directory: *mut *mut Directory,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, path, directory) =
            unsafe { (opened(volume)?, bytes(path)?, place(directory)?) };
        let entries = volume.files.read_dir(path)?.into_iter();
        *directory = hand_out(Directory { entries, name: CString::default() });
        Ok(())
    })
}

/// Sets *entry to the next entry and returns 1; returns 0 at the end.
///
/// # Safety
/// `directory` is null, or open and not in use by another thread; `entry` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_readdir(directory: *mut Directory, entry: *mut Entry) -> c_int {
    counted(|| {
        // SAFETY: the caller's promise.
        let (directory, entry) = unsafe { (place(directory)?, place(entry)?) };
        let Some(item) = directory.entries.next() else { return Ok(0) };
        directory.name =
            CString::new(item.name).map_err(|_| Error::Invalid("a name has a zero byte"))?;
        *entry = Entry { name: directory.name.as_ptr(), stat: item.attr.into() };
        Ok(1)
    }) as c_int
}

/// Closes a directory; NULL is allowed.
///
/// # Safety
/// `directory` is null, or open and not used after this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_closedir(directory: *mut Directory) {
    // SAFETY: the caller's promise.
    drop(unsafe { take_back(directory) });
}
