//! Error numbers and messages.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use cffs::error::{Error, Result};
use cffs::vfs::errno::errno;

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// The error message of the last failed call in this thread; valid until the next call fails.
#[unsafe(no_mangle)]
pub extern "C" fn cffs_error() -> *const c_char {
    ERROR.with(|last| last.borrow().as_ptr())
}

/// Stores a message for `cffs_error`.
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

/// The negative errno of an error, whose message is stored for `cffs_error`.
pub(crate) fn failure(error: &Error) -> i64 {
    keep(&error.to_string());
    -i64::from(errno(error))
}

/// Runs a function and returns its outcome in the form of the C interface: a number, or a negative
/// errno.
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
