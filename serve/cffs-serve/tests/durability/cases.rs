//! Every kind of change, the calls that make it durable, and a check of its presence.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{IoSlice, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use cffs::files::Files;
use rustix::fs::{AtFlags, Mode, OFlags, XattrFlags};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

use crate::aio;

/// The call that makes a change durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Fsync(&'static str),
    Fdatasync(&'static str),
    /// Nothing: the change must be durable when it returns.
    Nothing,
}

use Call::{Fdatasync, Fsync, Nothing};

/// A kind of change. All paths are relative to the case's own directory; `""` is that directory.
pub struct Case {
    pub name: &'static str,
    /// Creates the initial state.
    pub before: fn(&Path),
    pub change: fn(&Path),
    /// Each of these makes the change durable.
    pub calls: &'static [Call],
    /// Whether a volume contains the change; the second argument is the path of the directory.
    pub has: fn(&Files, &str) -> bool,
}

const LARGE: usize = 1 << 20;
const OLD: u8 = b'o';
const NEW: u8 = b'n';

fn put(path: &Path, len: usize) {
    fs::write(path, vec![OLD; len]).expect("written");
}

fn small(dir: &Path) {
    put(&dir.join("f"), 50);
}

fn large(dir: &Path) {
    put(&dir.join("f"), LARGE);
}

fn nothing(_: &Path) {}

fn opened(dir: &Path, flags: OFlags) -> File {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(flags.bits().cast_signed());
    options.open(dir.join("f")).expect("opened")
}

/// Created with `O_CREAT`, which the kernel sends to the server as one request.
fn created(dir: &Path, flags: OFlags) -> File {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).custom_flags(flags.bits().cast_signed());
    options.open(dir.join("f")).expect("made")
}

fn contents(files: &Files, at: &str, name: &str) -> Option<Vec<u8>> {
    files.read(format!("{at}/{name}")).ok()
}

fn is_new(files: &Files, at: &str, range: std::ops::Range<usize>) -> bool {
    let bytes = contents(files, at, "f").unwrap_or_default();
    bytes.get(range).is_some_and(|bytes| bytes.iter().all(|byte| *byte == NEW))
}

fn exists(files: &Files, at: &str, name: &str) -> bool {
    files.stat_itself(format!("{at}/{name}")).is_ok()
}

fn write_page(dir: &Path, flags: OFlags) {
    let page = aio::Aligned::filled(aio::ALIGNMENT, NEW);
    opened(dir, flags).write_all_at(page.get(), 0).expect("written");
}

fn write_page_asynchronously(file: &File) {
    let page = aio::Aligned::filled(aio::ALIGNMENT, NEW);
    let written = aio::write(file.as_fd(), &page, 0).expect("written");
    assert_eq!(written, aio::ALIGNMENT);
}

fn has_page(files: &Files, at: &str) -> bool {
    is_new(files, at, 0..aio::ALIGNMENT)
}

/// Stores through a shared mapping, and runs a function before the mapping is removed.
fn store(dir: &Path, then: impl FnOnce(*mut std::ffi::c_void)) {
    let file = OpenOptions::new().read(true).write(true).open(dir.join("f")).expect("opened");
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: A new mapping of a file that is long enough; it is accessed within its length, before
    // it is unmapped, and by no other code.
    unsafe {
        let map = rustix::mm::mmap(std::ptr::null_mut(), 4096, protection, flags, &file, 0);
        let map = map.expect("mapped");
        std::slice::from_raw_parts_mut(map.cast::<u8>(), 4096).fill(NEW);
        then(map);
        rustix::mm::munmap(map, 4096).expect("unmapped");
    }
}

fn xattr(dir: &Path, len: usize) {
    let value = vec![NEW; len];
    rustix::fs::setxattr(dir.join("f"), "user.x", &value, XattrFlags::empty()).expect("set");
}

fn xattr_len(files: &Files, at: &str) -> Option<usize> {
    let ino = files.stat(format!("{at}/f")).ok()?.ino;
    files.volume().xattr(ino, b"user.x").ok().map(|value| value.len())
}

const WHOLE: &[Call] = &[Fsync("f"), Fdatasync("f")];
const NAME: &[Call] = &[Fsync("f"), Fdatasync("f"), Fsync("")];
const MOVED: &[Call] = &[Fsync("g"), Fdatasync("g"), Fsync("")];

#[rustfmt::skip]
pub const CASES: &[Case] = &[
    Case { name: "contents in the inode", before: small, calls: WHOLE,
        change: |dir| opened(dir, OFlags::empty()).write_all_at(&[NEW; 60], 0).expect("written"),
        has: |files, at| is_new(files, at, 0..60) },
    Case { name: "contents in blocks", before: |dir| put(&dir.join("f"), 20_000), calls: WHOLE,
        change: |dir| opened(dir, OFlags::TRUNC).write_all(&[NEW; 30_000]).expect("written"),
        has: |files, at| is_new(files, at, 0..30_000) },
    Case { name: "out of the inode into blocks", before: small, calls: WHOLE,
        change: |dir| opened(dir, OFlags::empty()).write_all_at(&[NEW; 9000], 0).expect("written"),
        has: |files, at| is_new(files, at, 0..9000) },
    Case { name: "overwritten in place", before: large, calls: WHOLE,
        change: |dir| opened(dir, OFlags::empty()).write_all_at(&[NEW; 9000], 5000).expect("written"),
        has: |files, at| is_new(files, at, 5000..14_000) },
    Case { name: "appended", before: large, calls: WHOLE,
        change: |dir| opened(dir, OFlags::APPEND).write_all(&[NEW; 9000]).expect("written"),
        has: |files, at| is_new(files, at, LARGE..LARGE + 9000) },
    Case { name: "cut off", before: large, calls: WHOLE,
        change: |dir| opened(dir, OFlags::empty()).set_len(100).expect("cut"),
        has: |files, at| files.stat(format!("{at}/f")).is_ok_and(|attr| attr.size == 100) },
    Case { name: "punched", before: large, calls: WHOLE,
        change: |dir| {
            let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(opened(dir, OFlags::empty()), flags, 0, 1 << 16).expect("punched");
        },
        has: |files, at| contents(files, at, "f").is_some_and(|bytes| bytes[0] == 0) },
    Case { name: "a copied range", before: |dir| { large(dir); put(&dir.join("from"), 9000) }, calls: WHOLE,
        change: |dir| {
            fs::write(dir.join("from"), [NEW; 9000]).expect("written");
            let from = File::open(dir.join("from")).expect("opened");
            let to = opened(dir, OFlags::empty());
            let copied = rustix::fs::copy_file_range(&from, None, &to, None, 9000).expect("copied");
            assert_eq!(copied, 9000);
        },
        has: |files, at| is_new(files, at, 0..9000) },
    Case { name: "the mode", before: small, calls: WHOLE,
        change: |dir| fs::set_permissions(dir.join("f"), Permissions::from_mode(0o640)).expect("changed"),
        has: |files, at| files.stat(format!("{at}/f")).is_ok_and(|attr| attr.permissions == 0o640) },
    Case { name: "the owner", before: small, calls: WHOLE,
        change: |dir| chown(dir.join("f"), Some(1234), Some(4321)).expect("changed"),
        has: |files, at| {
            let attr = files.stat(format!("{at}/f"));
            attr.is_ok_and(|attr| (attr.uid, attr.gid) == (1234, 4321))
        } },
    Case { name: "times", before: small, calls: &[Fsync("f")],
        change: |dir| {
            let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(77);
            opened(dir, OFlags::empty()).set_modified(long_ago).expect("changed");
        },
        has: |files, at| files.stat(format!("{at}/f")).is_ok_and(|attr| attr.mtime.seconds == 77) },
    Case { name: "the mode of a directory", before: |dir| fs::create_dir(dir.join("f")).expect("made"),
        calls: WHOLE,
        change: |dir| fs::set_permissions(dir.join("f"), Permissions::from_mode(0o700)).expect("changed"),
        has: |files, at| files.stat(format!("{at}/f")).is_ok_and(|attr| attr.permissions == 0o700) },
    Case { name: "a small attribute", before: small, calls: WHOLE, change: |dir| xattr(dir, 10),
        has: |files, at| xattr_len(files, at) == Some(10) },
    Case { name: "a large attribute", before: small, calls: WHOLE, change: |dir| xattr(dir, 50_000),
        has: |files, at| xattr_len(files, at) == Some(50_000) },
    Case { name: "an attribute that goes", before: |dir| { small(dir); xattr(dir, 10) }, calls: WHOLE,
        change: |dir| rustix::fs::removexattr(dir.join("f"), "user.x").expect("removed"),
        has: |files, at| xattr_len(files, at).is_none() },
    Case { name: "a new file", before: nothing, calls: NAME, change: small,
        has: |files, at| contents(files, at, "f").is_some_and(|bytes| bytes.len() == 50) },
    Case { name: "a new empty file", before: nothing, calls: NAME, change: |dir| put(&dir.join("f"), 0),
        has: |files, at| exists(files, at, "f") },
    Case { name: "a new directory", before: nothing, calls: NAME,
        change: |dir| fs::create_dir(dir.join("f")).expect("made"),
        has: |files, at| exists(files, at, "f") },
    Case { name: "a new symbolic link", before: nothing, calls: &[Fsync("")],
        change: |dir| symlink("target", dir.join("f")).expect("made"),
        has: |files, at| exists(files, at, "f") },
    Case { name: "a new file deep down", before: nothing, calls: &[Fsync("a/b/f"), Fsync("a/b")],
        change: |dir| { fs::create_dir_all(dir.join("a/b")).expect("made"); small(&dir.join("a/b")) },
        has: |files, at| exists(files, at, "a/b/f") },
    Case { name: "a second name", before: small, calls: &[Fsync("f"), Fsync("g"), Fsync("")],
        change: |dir| fs::hard_link(dir.join("f"), dir.join("g")).expect("linked"),
        has: |files, at| exists(files, at, "g") },
    Case { name: "one name less",
        before: |dir| {
            small(dir);
            fs::hard_link(dir.join("f"), dir.join("g")).expect("linked");
        },
        calls: &[Fsync("f"), Fsync("")],
        change: |dir| fs::remove_file(dir.join("g")).expect("removed"),
        has: |files, at| !exists(files, at, "g") && exists(files, at, "f") },
    Case { name: "the last name", before: small, calls: &[Fsync("")],
        change: |dir| fs::remove_file(dir.join("f")).expect("removed"),
        has: |files, at| !exists(files, at, "f") },
    Case { name: "a directory that goes", before: |dir| fs::create_dir(dir.join("f")).expect("made"),
        calls: &[Fsync("")],
        change: |dir| fs::remove_dir(dir.join("f")).expect("removed"),
        has: |files, at| !exists(files, at, "f") },
    Case { name: "another name", before: small, calls: MOVED,
        change: |dir| fs::rename(dir.join("f"), dir.join("g")).expect("renamed"),
        has: |files, at| exists(files, at, "g") && !exists(files, at, "f") },
    Case { name: "a name taken from another file", before: |dir| { small(dir); put(&dir.join("g"), 70) },
        calls: MOVED,
        change: |dir| fs::rename(dir.join("f"), dir.join("g")).expect("renamed"),
        has: |files, at| contents(files, at, "g").is_some_and(|bytes| bytes.len() == 50) },
    Case { name: "another directory",
        before: |dir| {
            small(dir);
            fs::create_dir(dir.join("d")).expect("made");
        },
        calls: &[Fsync("d/g"), Fsync("d"), Fsync("")],
        change: |dir| fs::rename(dir.join("f"), dir.join("d/g")).expect("renamed"),
        has: |files, at| exists(files, at, "d/g") && !exists(files, at, "f") },
    Case { name: "a file that had no name", before: nothing, calls: NAME,
        change: |dir| {
            let flags = OFlags::TMPFILE | OFlags::WRONLY;
            let file = rustix::fs::open(dir, flags, Mode::from_raw_mode(0o600)).expect("made");
            rustix::io::write(&file, &[NEW; 9000]).expect("written");
            let name = dir.join("f");
            rustix::fs::linkat(&file, c"", rustix::fs::CWD, &name, AtFlags::EMPTY_PATH).expect("linked");
        },
        has: |files, at| is_new(files, at, 0..9000) },
    Case { name: "another name above a file that did not change",
        before: |dir| { fs::create_dir_all(dir.join("A/b")).expect("made"); small(&dir.join("A/b")) },
        calls: &[Fsync("B/b/f"), Fdatasync("B/b/f"), Fsync("B/b"), Fsync("B"), Fsync("")],
        change: |dir| fs::rename(dir.join("A"), dir.join("B")).expect("renamed"),
        has: |files, at| exists(files, at, "B/b/f") && !exists(files, at, "A") },
    Case { name: "another place above a file with two names",
        before: |dir| {
            fs::create_dir_all(dir.join("A/b")).expect("made");
            fs::create_dir_all(dir.join("c")).expect("made");
            small(&dir.join("A/b"));
            fs::hard_link(dir.join("A/b/f"), dir.join("g")).expect("linked");
        },
        calls: &[Fsync("c/B/b/f"), Fdatasync("c/B/b/f"), Fsync("g")],
        change: |dir| fs::rename(dir.join("A"), dir.join("c/B")).expect("renamed"),
        has: |files, at| exists(files, at, "c/B/b/f") && !exists(files, at, "A") },
    Case { name: "stored through a mapping", before: large, calls: WHOLE, change: |dir| store(dir, |_| ()),
        has: has_page },
    Case { name: "msync of a mapping", before: large, calls: &[Nothing],
        change: |dir| store(dir, |map| {
            // SAFETY: `store` removes the mapping only after this.
            unsafe { rustix::mm::msync(map, 4096, MsyncFlags::SYNC) }.expect("synced");
        }),
        has: has_page },
    Case { name: "O_DSYNC", before: large, calls: &[Nothing], change: |dir| write_page(dir, OFlags::DSYNC),
        has: has_page },
    Case { name: "O_SYNC", before: large, calls: &[Nothing], change: |dir| write_page(dir, OFlags::SYNC),
        has: has_page },
    Case { name: "O_SYNC in the inode", before: small, calls: &[Nothing],
        change: |dir| opened(dir, OFlags::SYNC).write_all_at(&[NEW; 60], 0).expect("written"),
        has: |files, at| is_new(files, at, 0..60) },
    Case { name: "O_SYNC of a new file", before: nothing, calls: &[Nothing],
        change: |dir| created(dir, OFlags::SYNC).write_all(&[NEW; 9000]).expect("written"),
        has: |files, at| is_new(files, at, 0..9000) },
    Case { name: "O_DSYNC of a new file that is read, too", before: nothing, calls: &[Nothing],
        change: |dir| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true);
            options.custom_flags(OFlags::DSYNC.bits().cast_signed());
            options.open(dir.join("f")).expect("made").write_all(&[NEW; 9000]).expect("written");
        },
        has: |files, at| is_new(files, at, 0..9000) },
    Case { name: "RWF_DSYNC", before: large, calls: &[Nothing],
        change: |dir| {
            let flags = rustix::io::ReadWriteFlags::DSYNC;
            let data = [NEW; 4096];
            let file = opened(dir, OFlags::empty());
            let written = rustix::io::pwritev2(file, &[IoSlice::new(&data)], 0, flags).expect("written");
            assert_eq!(written, data.len());
        },
        has: has_page },
    Case { name: "RWF_SYNC of a new file", before: nothing, calls: &[Nothing],
        change: |dir| {
            let flags = rustix::io::ReadWriteFlags::SYNC;
            let data = [NEW; 4096];
            let file = created(dir, OFlags::empty());
            let written = rustix::io::pwritev2(file, &[IoSlice::new(&data)], 0, flags).expect("written");
            assert_eq!(written, data.len());
        },
        has: has_page },
    Case { name: "O_DIRECT", before: large, calls: WHOLE, change: |dir| write_page(dir, OFlags::DIRECT),
        has: has_page },
    Case { name: "O_DIRECT and O_DSYNC", before: large, calls: &[Nothing],
        change: |dir| write_page(dir, OFlags::DIRECT | OFlags::DSYNC),
        has: has_page },
    Case { name: "asynchronous O_DIRECT", before: large, calls: WHOLE,
        change: |dir| write_page_asynchronously(&opened(dir, OFlags::DIRECT)),
        has: has_page },
    Case { name: "asynchronous O_DIRECT and O_DSYNC", before: large, calls: &[Nothing],
        change: |dir| write_page_asynchronously(&opened(dir, OFlags::DIRECT | OFlags::DSYNC)),
        has: has_page },
    Case { name: "asynchronous O_DIRECT and O_SYNC of a new file", before: nothing, calls: &[Nothing],
        change: |dir| write_page_asynchronously(&created(dir, OFlags::DIRECT | OFlags::SYNC)),
        has: has_page },
    Case { name: "asynchronous O_DSYNC", before: large, calls: &[Nothing],
        change: |dir| write_page_asynchronously(&opened(dir, OFlags::DSYNC)),
        has: has_page },
];
