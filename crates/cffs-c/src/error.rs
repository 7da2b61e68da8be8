//! Errors by number and in words, and pointers as they come from C.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use cffs::error::{Error, Result};
use cffs::vfs::errno::errno;

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// Why the last function of this thread failed, in words; valid until the next one fails.
#[unsafe(no_mangle)]
pub extern "C" fn cffs_error() -> *const c_char {
    ERROR.with(|last| last.borrow().as_ptr())
}

/// Keeps a reason for `cffs_error`.
fn keep(words: &str) {
    // A message without a zero byte is a C string.
    let words = CString::new(words).unwrap_or_default();
    ERROR.with(|last| *last.borrow_mut() = words);
}

fn panicked(payload: &(dyn Any + Send)) -> String {
    let words = payload.downcast_ref::<String>().map(String::as_str);
    let words = words.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic");
    format!("an error of the program libcffs itself: {words}")
}

/// The negative errno of an error, whose words are kept for `cffs_error`.
pub(crate) fn failure(error: &Error) -> i64 {
    keep(&error.to_string());
    -i64::from(errno(error))
}

/// What a function does, with its outcome as C has it: a number, or a negative errno.
pub(crate) fn counted(work: impl FnOnce() -> Result<i64>) -> i64 {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(count)) => count,
        Ok(Err(error)) => failure(&error),
        Err(payload) => {
            keep(&panicked(&*payload));
            -i64::from(errno(&Error::Io(std::io::Error::other("panic"))))
        }
    }
}

/// The same for a function that returns 0.
pub(crate) fn status(work: impl FnOnce() -> Result<()>) -> c_int {
    counted(|| work().map(|()| 0)) as c_int
}

/// The bytes of a string.
///
/// # Safety
/// `string` is null, or a string that ends with a zero byte and lives as long as `'a`.
pub(crate) unsafe fn bytes<'a>(string: *const c_char) -> Result<&'a [u8]> {
    if string.is_null() {
        return Err(Error::Invalid("a string is NULL"));
    }
    // SAFETY: as above.
    Ok(unsafe { CStr::from_ptr(string) }.to_bytes())
}

/// What a handle leads to.
///
/// # Safety
/// `handle` is null, or comes from a function of this library and is not closed within `'a`.
pub(crate) unsafe fn opened<'a, T>(handle: *const T) -> Result<&'a T> {
    // SAFETY: as above.
    unsafe { handle.as_ref() }.ok_or(Error::Invalid("a handle is NULL"))
}

/// Where a result goes.
///
/// # Safety
/// `place` is null, or may be written within `'a`, and nobody else looks at it.
pub(crate) unsafe fn place<'a, T>(place: *mut T) -> Result<&'a mut T> {
    // SAFETY: as above.
    unsafe { place.as_mut() }.ok_or(Error::Invalid("there is no place for the result: NULL"))
}

/// A handle for the caller.
pub(crate) fn hand_out<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// Takes a handle back; none if it is null.
///
/// # Safety
/// `handle` is null, or comes from [`hand_out`] and is not used any more.
pub(crate) unsafe fn take_back<T>(handle: *mut T) -> Option<Box<T>> {
    // SAFETY: as above.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle) })
}
