//! Many files at once.

use std::ffi::{c_char, c_int, c_void};
use std::num::NonZeroUsize;

use cffs::error::Result;

use crate::error::{failure, status};
use crate::pointers::{bytes, opened};
use crate::volume::Volume;

/// Receives a file from cffs_read_many: its position in the list of paths, and its contents, which are valid
/// until this function returns. If the file could not be read, `error` is a negative errno, the contents are
/// absent, and cffs_error gives the reason. `data` is the caller's. Several threads may call this function at
/// the same time.
pub type Visit = Option<
    unsafe extern "C" fn(
        data: *mut c_void,
        position: usize,
        error: c_int,
        contents: *const u8,
        count: usize,
    ),
>;

/// The caller's data, which threads share; the caller promises that this is allowed.
struct Shared(*mut c_void);

// SAFETY: the pointer is only passed back, never followed here.
unsafe impl Sync for Shared {}

impl Shared {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Reads whole files in device order. For many files in another order, this is many times as fast as reading
/// them one by one. Calls `visit` once per file, in any order, from `threads` threads (0 means one). For a
/// file that cannot be read, `visit` gets the error.
///
/// # Safety
/// `volume` is null or open; `paths` has `count` pointers, each null or a string; `visit` may be called with
/// `data` by `threads` threads at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cffs_read_many(
    volume: *const Volume,
    paths: *const *const c_char,
    count: usize,
    threads: usize,
    visit: Visit,
    data: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (volume, paths) = unsafe { (opened(volume)?, strings(paths, count)?) };
        let visit = visit.ok_or(cffs::error::Error::Invalid("the function to call is NULL"))?;
        let threads = NonZeroUsize::new(threads).unwrap_or(NonZeroUsize::MIN);
        let data = Shared(data);
        volume.files.read_many(&paths, threads, |position, read| {
            let (error, contents) = match read {
                Ok(contents) => (0, contents),
                Err(error) => (failure(&error) as c_int, &[][..]),
            };
            // SAFETY: the caller's promise; the contents live until it returns.
            unsafe { visit(data.get(), position, error, contents.as_ptr(), contents.len()) };
        });
        Ok(())
    })
}

/// # Safety
/// `list` has `count` pointers, each null or a string that lives as long as `'a`.
unsafe fn strings<'a>(list: *const *const c_char, count: usize) -> Result<Vec<&'a [u8]>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if list.is_null() {
        return Err(cffs::error::Error::Invalid("the list of paths is NULL"));
    }
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(list, count).iter().map(|path| bytes(*path)).collect() }
}
