//! Many files at once.

use std::ffi::{c_char, c_int, c_void};
use std::num::NonZeroUsize;

use cffs::error::Result;

use crate::error::{failure, status};
use crate::pointers::{bytes, opened};
use crate::volume::Volume;

/// Gets a file that cffs_read_many has read: its position in the list of paths, and its contents, which are
/// valid until this returns; or a negative errno in `error` and no contents, and cffs_error says why. `data`
/// is what the caller gave. Several threads call this at once.
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

/// Reads whole files in the order in which they lie on the device, which for many files in another order is
/// many times as fast as one by one. `visit` gets them one by one, in no certain order, from as many threads
/// as asked for; 0 for one. A file that cannot be read is given to `visit` with its error.
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
        let visit =
            visit.ok_or(cffs::error::Error::Invalid("there is no function to call: NULL"))?;
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
        return Err(cffs::error::Error::Invalid("there is no list of paths: NULL"));
    }
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(list, count).iter().map(|path| bytes(*path)).collect() }
}
