//! `place.h`: placement by group for programs in C.
//!
//! The header documents each function. Pointers come from the caller: each function states in its
//! safety section what they must be, and refuses null.

use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cffs_place::controlled;
use cffs_place::room;
use cffs_place::shadow::Shadow;
use cffs_place::trees;

/// An open tree.
pub struct Tree {
    shadow: Shadow,
    /// The path on its volume by which it was found.
    at: PathBuf,
}

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// Stores the reason of a failure for `place_error`.
fn reported<T>(result: Result<T>) -> Option<T> {
    result
        .inspect_err(|error| {
            // A message without a zero byte is a C string.
            let message = CString::new(format!("{error:#}")).unwrap_or_default();
            ERROR.with(|last| *last.borrow_mut() = message);
        })
        .ok()
}

/// # Safety
/// `path` is null or a string that ends with a zero byte.
unsafe fn path<'a>(path: *const c_char) -> Result<&'a Path> {
    if path.is_null() {
        anyhow::bail!("a path is NULL");
    }
    // SAFETY: as above.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// # Safety
/// `tree` is null or comes from `place_init` or `place_open`, and was not closed.
unsafe fn opened<'a>(tree: *const Tree) -> Result<&'a Tree> {
    // SAFETY: as above.
    unsafe { tree.as_ref() }.context("the tree is NULL")
}

fn hand_out(tree: Result<Tree>) -> *mut Tree {
    reported(tree).map_or(std::ptr::null_mut(), |tree| Box::into_raw(Box::new(tree)))
}

fn status(result: Result<()>) -> c_int {
    reported(result).map_or(-1, |()| 0)
}

/// See place.h.
///
/// # Safety
/// `directory` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn place_init(directory: *const c_char) -> *mut Tree {
    // SAFETY: the caller's promise.
    let at = unsafe { path(directory) };
    hand_out(at.and_then(|at| Ok(Tree { shadow: Shadow::init(at)?.0, at: at.to_owned() })))
}

/// See place.h.
///
/// # Safety
/// `of` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn place_open(of: *const c_char) -> *mut Tree {
    // SAFETY: the caller's promise.
    let at = unsafe { path(of) };
    hand_out(at.and_then(|at| {
        let shadow = Shadow::find(at)?;
        let at = shadow.root().to_owned();
        Ok(Tree { shadow, at })
    }))
}

/// See place.h.
///
/// # Safety
/// `tree` is null, or open and not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn place_close(tree: *mut Tree) {
    if !tree.is_null() {
        // SAFETY: `hand_out` made it, and it is returned once.
        drop(unsafe { Box::from_raw(tree) });
    }
}

/// See place.h.
///
/// # Safety
/// `tree` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn place_groups(tree: *const Tree) -> i64 {
    // SAFETY: the caller's promise.
    let tree = unsafe { opened(tree) };
    reported(tree).map_or(-1, |tree| tree.shadow.groups().count as i64)
}

/// See place.h.
///
/// # Safety
/// `tree` is null or open, `of` null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn place_group_of(tree: *const Tree, of: *const c_char) -> i64 {
    // SAFETY: the caller's promise.
    let given = unsafe { opened(tree).and_then(|tree| Ok((tree, path(of)?))) };
    let group = given.and_then(|(tree, of)| controlled::group_of(&tree.shadow, of));
    reported(group).map_or(-1, |group| group as i64)
}

/// See place.h.
///
/// # Safety
/// `tree` is null or open; `free_bytes` has room for `count` numbers, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn place_free_bytes(
    tree: *const Tree,
    free_bytes: *mut u64,
    count: usize,
) -> i64 {
    // SAFETY: the caller's promise.
    let tree = unsafe { opened(tree) };
    let found = tree.and_then(|tree| tree.shadow.groups().free_bytes(&tree.at));
    let Some(found) = reported(found) else { return -1 };
    if !free_bytes.is_null() {
        let copied = found.len().min(count);
        // SAFETY: the caller promises room for `count` numbers, and `found` has `copied`.
        unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), free_bytes, copied) };
    }
    found.len() as i64
}

/// See place.h.
///
/// # Safety
/// `tree` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn place_largest(tree: *const Tree, group: u64) -> i64 {
    // SAFETY: the caller's promise.
    let tree = unsafe { opened(tree) };
    let largest = tree.and_then(|tree| room::largest(&tree.shadow, group));
    reported(largest).map_or(-1, |bytes| bytes.try_into().unwrap_or(i64::MAX))
}

/// See place.h.
///
/// # Safety
/// `tree` is null or open, `at` null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn place_create_dir(
    tree: *const Tree,
    at: *const c_char,
    mode: u32,
    group: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let given = unsafe { opened(tree).and_then(|tree| Ok((tree, path(at)?))) };
    status(given.and_then(|(Tree { shadow, .. }, at)| {
        placed(shadow, group, |group| controlled::make_directory(shadow, at, mode, group).map(drop))
    }))
}

/// See place.h.
///
/// # Safety
/// `tree` is null or open, `at` null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn place_create_file(
    tree: *const Tree,
    at: *const c_char,
    mode: u32,
    group: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { place_create_file_with_room(tree, at, mode, group, 0) }
}

/// See place.h.
///
/// # Safety
/// `tree` is null or open, `at` null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn place_create_file_with_room(
    tree: *const Tree,
    at: *const c_char,
    mode: u32,
    group: u64,
    room: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let given = unsafe { opened(tree).and_then(|tree| Ok((tree, path(at)?))) };
    status(given.and_then(|(Tree { shadow, .. }, at)| {
        placed(shadow, group, |group| controlled::create_file(shadow, at, mode, group, room))
    }))
}

/// See place.h.
///
/// # Safety
/// `tree` is null or open, `from` and `to` are null or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn place_copy_file(
    tree: *const Tree,
    from: *const c_char,
    to: *const c_char,
    group: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let given = unsafe { opened(tree).and_then(|tree| Ok((tree, path(from)?, path(to)?))) };
    status(given.and_then(|(Tree { shadow, .. }, from, to)| {
        placed(shadow, group, |group| trees::copy(shadow, from, to, group).map(drop))
    }))
}

/// See place.h.
///
/// # Safety
/// `tree` is null or open, `from` and `to` are null or strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn place_move(
    tree: *const Tree,
    from: *const c_char,
    to: *const c_char,
    group: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let given = unsafe { opened(tree).and_then(|tree| Ok((tree, path(from)?, path(to)?))) };
    status(given.and_then(|(Tree { shadow, .. }, from, to)| {
        placed(shadow, group, |group| trees::relocate(shadow, from, to, group))
    }))
}

/// `PLACE_NEARBY` of place.h, a bit of the number of a group.
const NEARBY: u64 = 1 << 63;

/// Calls a function for a group, and with `PLACE_NEARBY` for the groups near it.
fn placed(shadow: &Shadow, group: u64, work: impl Fn(u64) -> Result<()>) -> Result<()> {
    match group & NEARBY {
        0 => work(group),
        _ => controlled::nearby(shadow, group & !NEARBY, work).map(|((), _)| ()),
    }
}

/// See place.h.
#[unsafe(no_mangle)]
pub extern "C" fn place_error() -> *const c_char {
    ERROR.with(|last| last.borrow().as_ptr())
}
