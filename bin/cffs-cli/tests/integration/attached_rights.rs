//! The rights of attached programs, compared with those of system calls.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use cffs::clock::Timestamp;
use cffs::device::Access;
use cffs::error::Error;
use cffs::files::Files;
use cffs::vfs::errno;
use cffs::vfs::types::{Attr, SetAttr, SetTime};
use rustix::fs::{
    AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, XattrFlags, getxattr, listxattr, removexattr,
    setxattr, utimensat,
};
use rustix::process::{DumpableBehavior, Gid, Uid, set_dumpable_behavior};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::harness::{Scratch, can_mount};

const OWNER: u32 = 1000;
const MEMBER: u32 = 1001;
const STRANGER: u32 = 1002;
const GROUP: u32 = 2000;

/// An ACL by which `STRANGER` may read and execute, and otherwise the owner alone.
const ACL: &[u8] = b"\x02\0\0\0\
    \x01\0\x07\0\xff\xff\xff\xff\x02\0\x05\0\xea\x03\0\0\x04\0\0\0\xff\xff\xff\xff\
    \x10\0\x07\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";

const CALLS: [&str; 23] = [
    "read",
    "read many",
    "stat",
    "lstat",
    "list",
    "read link",
    "xattr",
    "xattr names",
    "append",
    "write",
    "truncate",
    "times now",
    "times",
    "set xattr",
    "remove xattr",
    "create",
    "make dir",
    "symlink",
    "chmod",
    "chgrp",
    "chown",
    "link",
    "rename",
];
/// These remove the file, and come last.
const REMOVING: [&str; 3] = ["remove dir", "rename away", "unlink"];

/// The result of a call, or its error number.
type Outcome = Result<String, i32>;

/// Makes directories of many modes with files of many modes.
fn fill(top: &Path) {
    let own = |path: &Path, uid, mode| {
        chown(path, Some(uid), Some(GROUP)).expect("given away");
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
    };
    let acl = |path: &Path| {
        setxattr(path, "system.posix_acl_access", ACL, XattrFlags::empty()).expect("set");
    };
    fs::create_dir(top).expect("made");
    let directories = [
        ("open", 0, 0o777),
        ("owned", OWNER, 0o755),
        ("private", OWNER, 0o700),
        ("group", OWNER, 0o770),
        ("listed", OWNER, 0o744),
        ("searched", OWNER, 0o711),
        ("filled", OWNER, 0o733),
        ("sticky", 0, 0o1777),
        ("sticky group", OWNER, 0o1775),
        ("set-group-id", 0, 0o2777),
        ("acl", OWNER, 0o700),
    ];
    for (name, uid, mode) in directories {
        let dir = top.join(name);
        fs::create_dir(&dir).expect("made");
        let files = [
            ("public", OWNER, 0o644),
            ("private", OWNER, 0o600),
            ("group", OWNER, 0o660),
            ("written", OWNER, 0o222),
            ("read", STRANGER, 0o444),
            ("of root", 0, 0o604),
            ("set-id", OWNER, 0o6777),
            ("acl", OWNER, 0o600),
        ];
        for (name, uid, mode) in files {
            let path = dir.join(name);
            fs::write(&path, format!("contents of {name}")).expect("written");
            setxattr(&path, "user.a", b"value", XattrFlags::empty()).expect("set");
            own(&path, uid, mode);
        }
        acl(&dir.join("acl"));
        fs::create_dir(dir.join("below")).expect("made");
        fs::write(dir.join("below/file"), "below").expect("written");
        own(&dir.join("below"), OWNER, 0o750);
        fs::create_dir(dir.join("empty")).expect("made");
        own(&dir.join("empty"), STRANGER, 0o755);
        symlink("loop", dir.join("loop")).expect("linked");
        symlink("missing", dir.join("dangling")).expect("linked");
        symlink("../open/public", dir.join("link")).expect("linked");
        symlink("../private/public", dir.join("link to private")).expect("linked");
        own(&dir, uid, mode);
        if name == "acl" {
            acl(&dir);
        }
    }
}

fn paths() -> Vec<String> {
    let directories = [
        "open",
        "owned",
        "private",
        "group",
        "listed",
        "searched",
        "filled",
        "sticky",
        "sticky group",
        "set-group-id",
        "acl",
    ];
    let names = [
        "public",
        "private",
        "group",
        "written",
        "read",
        "of root",
        "set-id",
        "acl",
        "below/file",
        "below",
        "below/..",
        "empty",
        "empty/.",
        "loop",
        "dangling",
        "link",
        "link to private",
        "missing",
        "public/x",
        "public/",
        "",
    ];
    let all = directories.iter().flat_map(|dir| names.map(|name| format!("{dir}/{name}")));
    all.collect()
}

fn shown(mode: u32, uid: u32, gid: u32, size: u64) -> String {
    let size = if mode & 0o170_000 == 0o040_000 { 0 } else { size };
    format!("{mode:o} {uid} {gid} {size}")
}

fn of_metadata(data: &fs::Metadata) -> String {
    shown(data.mode(), data.uid(), data.gid(), data.size())
}

fn of_attr(attr: &Attr) -> String {
    shown(attr.mode(), attr.uid, attr.gid, attr.size)
}

fn joined(mut parts: Vec<String>) -> String {
    parts.sort();
    parts.join(", ")
}

fn by_kernel(call: &str, top: &Path, name: &str) -> io::Result<String> {
    let path = &top.join(name);
    let next_to = |suffix: &str| top.join(format!("{}{suffix}", name.trim_end_matches('/')));
    let text = |contents: Vec<u8>| String::from_utf8(contents).expect("text");
    let done = |()| String::new();
    let open = |options: &mut OpenOptions| options.open(path);
    match call {
        "read" | "read many" => fs::read(path).map(text),
        "stat" => fs::metadata(path).map(|data| of_metadata(&data)),
        "lstat" => fs::symlink_metadata(path).map(|data| of_metadata(&data)),
        "list" => {
            let item = |entry: io::Result<fs::DirEntry>| {
                let entry = entry?;
                let data = fs::symlink_metadata(entry.path())?;
                Ok(format!("{:?} {}", entry.file_name(), of_metadata(&data)))
            };
            fs::read_dir(path)?.map(item).collect::<io::Result<_>>().map(joined)
        }
        "read link" => fs::read_link(path).map(|target| text(target.as_os_str().as_bytes().into())),
        "xattr" => {
            let mut value = vec![0; 100];
            let len = getxattr(path, "user.a", &mut value)?;
            Ok(text(value[..len].into()))
        }
        "xattr names" => {
            let mut names = vec![0; 1000];
            let len = listxattr(path, &mut names)?;
            let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
            Ok(joined(names.map(|name| text(name.into())).collect()))
        }
        "append" => {
            let file = open(OpenOptions::new().append(true))?;
            file.write_all_at(b"appended", 0).map(done)
        }
        "write" => open(OpenOptions::new().write(true))?.write_all_at(b"written", 2).map(done),
        "truncate" => open(OpenOptions::new().write(true))?.set_len(9).map(done),
        "times now" | "times" => {
            let nanoseconds = if call == "times" { 5 } else { UTIME_NOW };
            let time = Timespec { tv_sec: 7, tv_nsec: nanoseconds };
            let times = Timestamps { last_access: time, last_modification: time };
            utimensat(CWD, path, &times, AtFlags::empty()).map(done).map_err(io::Error::from)
        }
        "set xattr" => {
            setxattr(path, "user.b", b"new", XattrFlags::empty()).map(done).map_err(io::Error::from)
        }
        "remove xattr" => removexattr(path, "user.a").map(done).map_err(io::Error::from),
        "create" => {
            let options = &mut OpenOptions::new();
            options.write(true).create_new(true).open(next_to(".new"))?;
            fs::set_permissions(next_to(".new"), Permissions::from_mode(0o640)).map(done)
        }
        "make dir" => fs::create_dir(next_to(".dir")).map(done),
        "symlink" => symlink("public", next_to(".link")).map(done),
        "chmod" => fs::set_permissions(path, Permissions::from_mode(0o6751)).map(done),
        "chgrp" => chown(path, None, Some(GROUP)).map(done),
        "chown" => chown(path, Some(STRANGER), None).map(done),
        "link" => fs::hard_link(path, next_to(".hard")).map(done),
        "rename" => fs::rename(path, next_to(".moved")).map(done),
        "remove dir" => fs::remove_dir(path).map(done),
        "rename away" => fs::rename(next_to(".moved"), top.join("open/moved here")).map(done),
        "unlink" => fs::remove_file(path).map(done),
        other => panic!("{other}"),
    }
}

fn by_server(call: &str, files: &Files, path: &str) -> cffs::error::Result<String> {
    let next_to = |suffix: &str| format!("{}{suffix}", path.trim_end_matches('/'));
    let text = |contents: Vec<u8>| String::from_utf8(contents).expect("text");
    let done = |()| String::new();
    let set = |changes: SetAttr| files.set_attr(path, &changes).map(done);
    let none = SetAttr::default();
    match call {
        "read" => files.read(path).map(text),
        "read many" => {
            let found = Mutex::new(None);
            files.read_many(&[path], NonZeroUsize::MIN, |_, read| {
                *found.lock().unwrap() = Some(read.map(|contents| text(contents.into())));
            });
            found.into_inner().unwrap().expect("visited")
        }
        "stat" => files.stat(path).map(|attr| of_attr(&attr)),
        "lstat" => files.stat_itself(path).map(|attr| of_attr(&attr)),
        "list" => {
            let name = |name: Vec<u8>| format!("{:?}", text(name));
            let items = files.read_dir(path)?.into_iter();
            Ok(joined(
                items.map(|item| format!("{} {}", name(item.name), of_attr(&item.attr))).collect(),
            ))
        }
        "read link" => files.read_link(path).map(text),
        "xattr" => files.node(path)?.xattr(b"user.a").map(text),
        "xattr names" => {
            let names = files.node(path)?.xattr_names()?;
            Ok(joined(names.into_iter().map(text).collect()))
        }
        "append" => files.open(path)?.append_all(b"appended").map(|_| String::new()),
        "write" => files.open(path)?.write_all_at(2, b"written").map(done),
        "truncate" => set(SetAttr { size: Some(9), ..none }),
        "times now" => {
            set(SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..none })
        }
        "times" => {
            let time = Some(SetTime::To(Timestamp { seconds: 7, nanoseconds: 5 }));
            set(SetAttr { atime: time, mtime: time, ..none })
        }
        "set xattr" => files.node(path)?.set_xattr(b"user.b", b"new").map(done),
        "remove xattr" => files.node(path)?.remove_xattr(b"user.a").map(done),
        "create" => files.create_new(next_to(".new"), 0o640).map(|_| String::new()),
        "make dir" => files.make_dir(next_to(".dir")).map(done),
        "symlink" => files.symlink(b"public", next_to(".link")).map(done),
        "chmod" => set(SetAttr { permissions: Some(0o6751), ..none }),
        "chgrp" => set(SetAttr { gid: Some(GROUP), ..none }),
        "chown" => set(SetAttr { uid: Some(STRANGER), ..none }),
        "link" => files.hard_link(path, next_to(".hard")).map(done),
        "rename" => files.rename(path, next_to(".moved")).map(done),
        "remove dir" => files.remove_dir(path).map(done),
        "rename away" => files.rename(next_to(".moved"), "open/moved here").map(done),
        "unlink" => files.remove_file(path).map(done),
        other => panic!("{other}"),
    }
}

/// All that shows of the files below a directory, except for the times.
fn tree(top: &Path) -> BTreeMap<String, String> {
    let (mut all, mut pending) = (BTreeMap::new(), vec![top.to_owned()]);
    while let Some(path) = pending.pop() {
        let data = fs::symlink_metadata(&path).expect("there");
        if data.is_dir() {
            pending.extend(fs::read_dir(&path).expect("listed").map(|entry| entry.unwrap().path()));
        }
        let name = path.strip_prefix(top).expect("below").display().to_string();
        let contents = if data.is_file() { fs::read(&path).expect("read") } else { Vec::new() };
        let names = match data.is_symlink() {
            true => String::new(),
            false => by_kernel("xattr names", top, &name).expect("listed"),
        };
        let text =
            format!("{} {} {names} {}", of_metadata(&data), data.nlink(), contents.escape_ascii());
        all.insert(name, text);
    }
    all
}

/// Runs a program of a user: a thread has its own identity.
fn as_user<T: Send>(uid: u32, groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
    let run = || {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(uid));
        let groups: Vec<Gid> = groups.iter().copied().map(Gid::from_raw).collect();
        set_thread_groups(&groups).expect("set");
        set_thread_res_gid(gid, gid, gid).expect("set");
        set_thread_res_uid(uid, uid, uid).expect("set");
        // Otherwise the user may not look into /proc/self.
        set_dumpable_behavior(DumpableBehavior::Dumpable).expect("set");
        work()
    };
    thread::scope(|scope| scope.spawn(run).join().expect("it ends"))
}

/// Whether the server may be stricter than this kernel, which may follow each link
/// (`fs.protected_symlinks`).
fn is_protected_link(path: &str) -> bool {
    path.starts_with("sticky") && (path.contains("link") || path.contains("loop"))
}

const EACCES: i32 = 13;

/// The library refuses to change `.` and `..`, and ignores a slash at the end of a name to change.
fn has_same_meaning(call: &str, path: &str) -> bool {
    let changes_name = ["rename", "link"].contains(&call) || REMOVING.contains(&call);
    !changes_name || !path.ends_with(['/', '.'])
}

#[test]
fn every_call_of_each_user_equals_its_system_call() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("allow_other");
    let top = scratch.mountpoint();
    fs::set_permissions(&top, Permissions::from_mode(0o755)).expect("set");
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).expect("set");
    let users: [(&str, u32, &[u32]); 4] = [
        ("root", 0, &[]),
        ("the owner", OWNER, &[]),
        ("a member", MEMBER, &[GROUP]),
        ("a stranger", STRANGER, &[]),
    ];
    let mut differences = Vec::new();
    for (who, uid, groups) in users {
        let [kernel, server] = ["kernel", "server"].map(|way| top.join(format!("{uid} {way}")));
        fill(&kernel);
        fill(&server);
        let found = as_user(uid, groups, || {
            let files = Files::attach(&server, Access::ReadWrite).expect("attached");
            let mut found = Vec::new();
            let calls = [&CALLS[..], &REMOVING].map(|calls| {
                calls.iter().flat_map(|call| paths().into_iter().map(move |path| (*call, path)))
            });
            for (call, path) in calls.into_iter().flatten() {
                if !has_same_meaning(call, &path) {
                    continue;
                }
                let expected: Outcome = by_kernel(call, &kernel, &path)
                    .map_err(|error| error.raw_os_error().expect("of the kernel"));
                let done: Outcome =
                    by_server(call, &files, &path).map_err(|error: Error| errno(&error));
                let is_stricter = is_protected_link(&path) && done == Err(EACCES);
                if done != expected && !is_stricter {
                    found.push(format!("{call} {path:?}: {done:?}, kernel: {expected:?}"));
                }
            }
            found
        });
        differences.extend(found.into_iter().map(|text| format!("{who}: {text}")));
        let (expected, left) = (tree(&kernel), tree(&server));
        for (path, text) in &expected {
            if left.get(path) != Some(text) {
                let other = left.get(path);
                differences.push(format!("{who}: {path:?} is {other:?}, kernel: {text:?}"));
            }
        }
        differences.extend(left.keys().filter(|path| !expected.contains_key(*path)).cloned());
    }
    assert!(differences.is_empty(), "{}:\n{}", differences.len(), differences.join("\n"));
    scratch.umount();
    scratch.assert_clean();
}

/// Regression: such a link was refused as if it were the last name of the path.
#[test]
fn a_name_is_made_below_a_link_of_another_user_in_a_shared_directory() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("allow_other");
    let top = scratch.mountpoint();
    fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).expect("set");
    for (name, mode) in [("", 0o755), ("open", 0o777), ("shared", 0o1777)] {
        fs::create_dir_all(top.join(name)).expect("made");
        fs::set_permissions(top.join(name), Permissions::from_mode(mode)).expect("set");
    }
    symlink("../open", top.join("shared/link")).expect("linked");
    std::os::unix::fs::lchown(top.join("shared/link"), Some(OWNER), Some(OWNER)).expect("set");
    as_user(STRANGER, &[], || {
        fs::write(top.join("shared/link/by kernel"), "").expect("written");
        let files = Files::attach(&top, Access::ReadWrite).expect("attached");
        files.write("shared/link/by server", b"").expect("written");
        files.make_dir("shared/link/dir").expect("made");
        files.rename("shared/link/dir", "shared/link/other").expect("renamed");
        assert!(matches!(files.make_dir("shared/missing/dir"), Err(Error::NotFound)));
        assert!(matches!(files.make_dir("open/by server/dir"), Err(Error::NotDirectory)));
    });
    assert_eq!(fs::read_dir(top.join("open")).expect("listed").count(), 3);
    scratch.umount();
    scratch.assert_clean();
}
