//! Conversion of pointers from and to C.

use std::ffi::{CStr, c_char, c_void};

use cffs::error::{Error, Result};

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

/// The object that a handle refers to.
///
/// # Safety
/// `handle` is null, or comes from a function of this library and is not closed within `'a`.
pub(crate) unsafe fn opened<'a, T>(handle: *const T) -> Result<&'a T> {
    // SAFETY: as above.
    unsafe { handle.as_ref() }.ok_or(Error::Invalid("a handle is NULL"))
}

/// The destination of a result.
///
/// # Safety
/// `place` is null, or may be written within `'a` and is not accessed by other code.
pub(crate) unsafe fn place<'a, T>(place: *mut T) -> Result<&'a mut T> {
    // SAFETY: as above.
    unsafe { place.as_mut() }.ok_or(Error::Invalid("the pointer for the result is NULL"))
}

/// Passes a value to the caller as a handle.
pub(crate) fn hand_out<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// Takes a handle back; `None` if it is null.
///
/// # Safety
/// `handle` is null, or comes from [`hand_out`] and is not used afterwards.
pub(crate) unsafe fn take_back<T>(handle: *mut T) -> Option<Box<T>> {
    // SAFETY: as above.
    (!handle.is_null()).then(|| unsafe { Box::from_raw(handle) })
}

/// The bytes of a readable buffer.
///
/// # Safety
/// `buffer` is null or readable for `count` bytes within `'a`.
pub(crate) unsafe fn readable<'a>(buffer: *const c_void, count: usize) -> Result<&'a [u8]> {
    match count {
        0 => Ok(&[]),
        // No object can be larger.
        _ if buffer.is_null() || isize::try_from(count).is_err() => Err(NO_BUFFER),
        // SAFETY: as above.
        _ => Ok(unsafe { std::slice::from_raw_parts(buffer.cast(), count) }),
    }
}

/// A writable buffer as a slice.
///
/// # Safety
/// `buffer` is null or writable for `count` bytes within `'a`, and is not accessed by other code.
pub(crate) unsafe fn writable<'a>(buffer: *mut c_void, count: usize) -> Result<&'a mut [u8]> {
    match count {
        0 => Ok(&mut []),
        _ if buffer.is_null() || isize::try_from(count).is_err() => Err(NO_BUFFER),
        _ => {
            // SAFETY: as above. Memory that C has not initialized is set first: a Rust slice must be
            // initialized.
            unsafe {
                buffer.cast::<u8>().write_bytes(0, count);
                Ok(std::slice::from_raw_parts_mut(buffer.cast(), count))
            }
        }
    }
}

const NO_BUFFER: Error = Error::Invalid("the buffer is NULL or too large");

/// Copies a result to a buffer that is large enough, and returns its length; with `count` 0 it only returns
/// the length.
///
/// # Safety
/// `to` is null or writable for `count` bytes.
pub(crate) unsafe fn copy_out(from: &[u8], to: *mut c_void, count: usize) -> Result<i64> {
    if count > 0 {
        if to.is_null() {
            return Err(Error::Invalid("the pointer for the result is NULL"));
        }
        if from.len() > count {
            return Err(Error::Range);
        }
        // SAFETY: the buffer has room, as above, and `from` is the library's own memory.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }
    Ok(from.len() as i64)
}
