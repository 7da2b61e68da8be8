//! `cffs clone` of trees on mounted volumes, and copies by cp(1).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use serde_json::Value;

use crate::harness::{Scratch, assert_one_succeeded, at_once, can_mount, fail, succeed};

/// An ACL with an entry for a user: `u::rw-,u:65534:r--,g::r--,m::r--,o::---`.
const ACL: &[u8] = b"\x02\0\0\0\
    \x01\0\x06\0\xff\xff\xff\xff\x02\0\x04\0\xfe\xff\0\0\x04\0\x04\0\xff\xff\xff\xff\
    \x10\0\x04\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";
const ACL_NAME: &str = "system.posix_acl_access";

/// A mounted volume that compresses contents.
fn mounted() -> Scratch {
    let scratch = Scratch::new();
    let mut mkfs = scratch.cffs(["mkfs", "-q", "--size", "256M", "--compress", "zstd"]);
    succeed(mkfs.arg(scratch.image()));
    scratch.mount("rw");
    scratch
}

fn text(seed: usize, len: usize) -> Vec<u8> {
    let words = (0..).map(|at: usize| format!("word {} ", (at * 7 + seed) % 1000));
    words.flat_map(String::into_bytes).take(len).collect()
}

/// Makes files of all kinds. Returns the sum of the sizes of the regular ones.
fn fill(tree: &Path) -> u64 {
    let mut sum = 0;
    for number in 0..40 {
        let dir = tree.join(format!("d{}", number % 4)).join("below");
        fs::create_dir_all(&dir).expect("made");
        let contents = text(number, [50, 900, 3000, 20_000, 150_000][number % 5]);
        fs::write(dir.join(format!("f{number}")), &contents).expect("written");
        sum += contents.len() as u64;
    }
    let sparse = File::create(tree.join("sparse")).expect("made");
    sparse.write_all_at(&text(1, 5000), 3 << 20).expect("written");
    sparse.set_len(8 << 20).expect("a hole at the end");
    fs::hard_link(tree.join("sparse"), tree.join("d1/again")).expect("linked");
    fs::hard_link(tree.join("sparse"), tree.join("d2/once more")).expect("linked");
    symlink("d1/below", tree.join("link")).expect("linked");
    symlink("x".repeat(900), tree.join("long link")).expect("linked");
    let mode = Mode::from_raw_mode(0o640);
    rustix::fs::mknodat(CWD, tree.join("pipe"), FileType::Fifo, mode, 0).expect("made");
    let set = |path: &Path, name: &str, value: &[u8]| {
        rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).expect("set");
    };
    set(&tree.join("d1"), "user.note", b"of a directory");
    set(&tree.join("d1/below/f1"), "user.note", &[7; 3000]);
    set(&tree.join("d1/below/f1"), ACL_NAME, ACL);
    fs::set_permissions(tree.join("d3"), PermissionsExt::from_mode(0o2750)).expect("set");
    fs::set_permissions(tree.join("d3/below/f3"), PermissionsExt::from_mode(0o4711)).expect("set");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(tree.join("link"), Some(7), Some(8)).expect("set");
        std::os::unix::fs::chown(tree.join("d2/below/f2"), Some(1000), Some(1001)).expect("set");
    }
    let time = |tv_sec| Timespec { tv_sec, tv_nsec: 123_456_789 };
    for (name, second) in [("d1/below/f5", 1_000_000), ("d2", 2_000_000), ("link", 3_000_000)] {
        let times = Timestamps { last_access: time(second), last_modification: time(second + 1) };
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(CWD, tree.join(name), &times, flags).expect("set");
    }
    sum + (8 << 20)
}

/// The visible state of a file.
#[derive(Debug, PartialEq)]
struct Seen {
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    links: u64,
    blocks: u64,
    contents: Vec<u8>,
    xattrs: BTreeMap<String, Vec<u8>>,
}

fn seen(tree: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut all = BTreeMap::new();
    let mut pending = vec![tree.to_owned()];
    while let Some(path) = pending.pop() {
        let data = fs::symlink_metadata(&path).expect("there");
        let contents = match () {
            () if data.is_symlink() => {
                fs::read_link(&path).expect("read").into_os_string().into_encoded_bytes()
            }
            () if data.is_file() => fs::read(&path).expect("read"),
            () => Vec::new(),
        };
        if data.is_dir() {
            pending.extend(fs::read_dir(&path).expect("listed").map(|entry| entry.unwrap().path()));
        }
        let mut names = vec![0; 1000];
        let len = rustix::fs::llistxattr(&path, &mut names).expect("listed");
        let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let value = |name: &[u8]| {
            let name = String::from_utf8(name.to_vec()).expect("text");
            let mut value = vec![0; 10_000];
            let len = rustix::fs::lgetxattr(&path, &name, &mut value).expect("read");
            value.truncate(len);
            (name, value)
        };
        let seen = Seen {
            mode: data.mode(),
            owner: (data.uid(), data.gid()),
            mtime: (data.mtime(), data.mtime_nsec()),
            links: data.nlink(),
            blocks: if data.is_file() { data.blocks() } else { 0 },
            contents,
            xattrs: names.map(value).collect(),
        };
        all.insert(path.strip_prefix(tree).expect("below it").to_owned(), seen);
    }
    all
}

fn used_bytes(scratch: &Scratch) -> u64 {
    succeed(scratch.cffs(["sync"]).arg(scratch.mountpoint()));
    let stat = rustix::fs::statvfs(scratch.mountpoint()).expect("there");
    (stat.f_blocks - stat.f_bfree) * stat.f_frsize
}

#[test]
fn a_cloned_tree_equals_its_source_and_takes_no_space() {
    if !can_mount() {
        return;
    }
    let scratch = mounted();
    let (source, copy) = (scratch.mountpoint().join("tree"), scratch.mountpoint().join("copy"));
    fs::create_dir(&source).expect("made");
    let bytes = fill(&source);
    let before = used_bytes(&scratch);
    // Now the kernel has an entry for the missing copy in its cache.
    assert!(fs::metadata(&copy).is_err());
    let said = succeed(scratch.cffs(["clone", "--json"]).arg(&source).arg(&copy));
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let expected = [
        ("files", 41),
        ("directories", 9),
        ("symlinks", 2),
        ("hard_links", 2),
        ("special", 1),
        ("bytes", bytes),
    ];
    for (what, count) in expected {
        assert_eq!(said[what], count, "{what}: {said}");
    }
    assert_eq!(seen(&copy), seen(&source));
    assert!(fs::symlink_metadata(copy.join("pipe")).expect("there").file_type().is_fifo());
    let ino = |name: &str| fs::metadata(copy.join(name)).expect("there").ino();
    assert_eq!(ino("sparse"), ino("d1/again"));
    let taken = used_bytes(&scratch) - before;
    assert!(taken < 128 << 10, "{taken} bytes for {bytes}");
    // A change of the source leaves the copy as it is.
    let before = seen(&copy);
    for number in [3, 4, 9] {
        let file = source.join(format!("d{}/below/f{number}", number % 4));
        File::options().write(true).open(&file).expect("open").write_all_at(b"new", 9).expect("ok");
    }
    assert_eq!(seen(&copy), before);
    fs::remove_dir_all(&source).expect("removed");
    succeed(scratch.cffs(["clone", "-q"]).arg(&copy).arg(&source));
    assert_eq!(seen(&source), before);
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn a_clone_that_is_impossible_is_refused() {
    if !can_mount() {
        return;
    }
    let scratch = mounted();
    let tree = scratch.mountpoint();
    fs::create_dir_all(tree.join("a/b")).expect("made");
    fs::write(tree.join("file"), b"contents").expect("written");
    let refused = |from: PathBuf, to: PathBuf, why: &str| {
        let said = fail(1, scratch.cffs(["clone"]).arg(from).arg(to));
        assert!(said.contains(why), "{said}");
    };
    refused(tree.join("a"), tree.join("a/b/c"), "into itself");
    refused(tree.clone(), tree.join("all"), "into itself");
    refused(tree.join("a"), tree.join("file"), "file exists");
    refused(tree.join("a"), tree.join("none/c"), "No such file");
    refused(tree.join("none"), tree.join("c"), "No such file");
    refused(tree.join("a"), scratch.path().join("c"), "not in the same mount");
    refused(scratch.path().to_owned(), scratch.path().join("c"), "not a C-FFS volume");
    assert_eq!(fs::read_dir(&tree).expect("listed").count(), 2);
    succeed(scratch.cffs(["clone", "-q"]).arg(tree.join("file")).arg(tree.join("one")));
    assert_eq!(fs::read(tree.join("one")).expect("read"), b"contents");
    let said = fail(1, &mut scratch.cffs(["clone", "--json", "s3://b/t@version", "s3://b/new"]));
    assert!(said.contains("--json prints the counts of a copied tree"), "{said}");
    scratch.umount();
    scratch.mount("ro");
    refused(tree.join("a"), tree.join("c"), "ead-only");
    scratch.umount();
}

#[test]
fn cp_gives_copies_the_names_that_cp_gives_them() {
    if !can_mount() {
        return;
    }
    let scratch = mounted();
    let tree = scratch.mountpoint();
    fs::create_dir_all(tree.join("a/b")).expect("made");
    fs::create_dir(tree.join("into")).expect("made");
    fs::write(tree.join("a/b/f"), b"contents").expect("written");
    symlink("into", tree.join("link")).expect("linked");
    let copied = |sources: &[&str], target: &str| {
        let mut cp = scratch.cffs(["cp", "-a", "--json"]);
        let said =
            succeed(cp.args(sources.iter().map(|name| tree.join(name))).arg(tree.join(target)));
        serde_json::from_str::<Value>(&said).expect("JSON")["files"].clone()
    };
    assert_eq!(copied(&["a"], "new"), 1);
    assert_eq!(copied(&["a"], "slash/"), 1);
    assert_eq!(copied(&["a/", "a/b/f", "link"], "into"), 2);
    assert_eq!(copied(&["a/b"], "link"), 1, "the link names a directory");
    for name in ["new", "slash", "into/a"] {
        assert_eq!(seen(&tree.join(name)), seen(&tree.join("a")), "{name}");
    }
    assert_eq!(fs::read(tree.join("into/b/f")).expect("read"), b"contents");
    assert_eq!(fs::read_link(tree.join("into/link")).expect("a link"), Path::new("into"));
    let refused = |code, sources: &[&str], target: &str, why: &str| {
        let mut cp = scratch.cffs(["cp", "-qa"]);
        cp.args(sources.iter().map(|name| tree.join(name)));
        let said = fail(code, cp.arg(tree.join(target)));
        assert!(said.contains(why), "{said}");
    };
    refused(1, &["a"], "a", "into itself");
    refused(1, &["a", "a/b/f"], "missing", "not a directory");
    refused(1, &["a/b/f"], "missing/", "not a directory");
    refused(1, &["a/."], "into", "name the target of its copy");
    // A name that is taken keeps its file, and the other sources are copied.
    fs::write(tree.join("into/f"), b"kept").expect("written");
    fs::write(tree.join("other"), b"other").expect("written");
    refused(1, &["a/b/f", "other", "a"], "into", "into/f: file exists");
    assert_eq!(fs::read(tree.join("into/f")).expect("read"), b"kept");
    assert_eq!(fs::read(tree.join("into/other")).expect("read"), b"other");
    let said = fail(2, scratch.cffs(["cp"]).arg(tree.join("a")).arg(tree.join("c")));
    assert!(said.contains("--archive"), "{said}");
    scratch.umount();
    scratch.assert_clean();
}

/// Regression: the link itself was asked, which is in another file system or has no such attribute.
#[test]
fn a_copy_is_made_in_a_directory_that_a_symbolic_link_names() {
    if !can_mount() {
        return;
    }
    let scratch = mounted();
    let tree = scratch.mountpoint();
    fs::create_dir(tree.join("dir")).expect("made");
    fs::write(tree.join("file"), b"contents").expect("written");
    let outside = scratch.path().join("outside");
    symlink(tree.join("dir"), &outside).expect("linked");
    symlink("dir", tree.join("inside")).expect("linked");
    for (link, name) in [(outside, "1"), (tree.join("inside"), "2")] {
        succeed(scratch.cffs(["clone", "-q"]).arg(tree.join("file")).arg(link.join(name)));
        assert_eq!(fs::read(tree.join("dir").join(name)).expect("read"), b"contents");
    }
    // A link at the end of the source is copied itself.
    succeed(scratch.cffs(["clone", "-q"]).arg(tree.join("inside")).arg(tree.join("dir/3")));
    assert_eq!(fs::read_link(tree.join("dir/3")).expect("a link"), Path::new("dir"));
    scratch.umount();
    scratch.assert_clean();
}

/// The server reads with the rights of the user, who owns the copy.
#[test]
fn a_user_clones_what_it_may_read_and_owns_the_copy() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = mounted();
    let tree = scratch.mountpoint();
    let source = tree.join("tree");
    fs::create_dir_all(source.join("d")).expect("made");
    let set = |path: &Path, mode| {
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("set");
    };
    for (name, mode) in [("d/1", 0o644), ("d/2", 0o4755), ("d/3", 0o600), ("d/4", 0o644)] {
        fs::write(source.join(name), text(1, 3000)).expect("written");
        set(&source.join(name), mode);
    }
    set(&tree, 0o755);
    let clone = |to: &str| {
        let mut clone = scratch.cffs_by_nobody(["clone", "-q"]);
        clone.arg(&source).arg(tree.join(to));
        clone
    };
    let said = fail(1, &mut clone("copy"));
    assert!(said.contains("ermission denied"), "{said}");
    fs::create_dir(tree.join("home")).expect("made");
    std::os::unix::fs::chown(tree.join("home"), Some(65534), Some(65534)).expect("set");
    let said = fail(1, &mut clone("home/copy"));
    assert!(said.contains("d/3: permission denied"), "{said}");
    // The files that were copied before stay.
    assert!(fs::metadata(tree.join("home/copy/d/2")).is_ok());
    assert!(fs::metadata(tree.join("home/copy/d/4")).is_err());
    set(&source.join("d/3"), 0o640);
    fs::remove_dir_all(tree.join("home/copy")).expect("removed");
    rustix::fs::setxattr(source.join("d/3"), ACL_NAME, ACL, XattrFlags::empty()).expect("set");
    succeed(&mut clone("home/copy"));
    let expected = [("1", 0o644), ("2", 0o755), ("3", 0o640), ("4", 0o644)];
    for (name, mode) in expected {
        let data = fs::metadata(tree.join("home/copy/d").join(name)).expect("there");
        assert_eq!((data.uid(), data.gid()), (65534, 65534), "{name}");
        assert_eq!(data.mode() & 0o7777, mode, "{name}");
    }
    scratch.umount();
    scratch.assert_clean();
}

/// cp(1) of coreutils 9 uses copy_file_range(2), which shares contents that are on the device.
#[test]
fn cp_shares_compressed_contents() {
    if !can_mount() {
        return;
    }
    let scratch = mounted();
    let tree = scratch.mountpoint();
    let contents = text(3, 5 << 20);
    fs::write(tree.join("file"), &contents).expect("written");
    let before = used_bytes(&scratch);
    succeed(Command::new("cp").arg(tree.join("file")).arg(tree.join("copy")));
    let taken = used_bytes(&scratch) - before;
    assert!(taken <= 32 << 10, "{taken} bytes");
    File::options().write(true).open(tree.join("file")).expect("open").set_len(9).expect("cut off");
    assert!(fs::read(tree.join("copy")).expect("read") == contents);
    scratch.umount();
    scratch.assert_clean();
}

/// Regression: if another program made the target after the command had looked for it, the source was said to
/// exist.
#[test]
fn of_clones_with_one_target_one_succeeds_and_the_others_name_the_target() {
    if !can_mount() {
        return;
    }
    let scratch = mounted();
    let path = |name: &str| scratch.mountpoint().join(name);
    fs::write(path("source"), text(1, 5000)).expect("written");
    for round in 0..8 {
        let target = path(&format!("target {round}"));
        let outcomes = at_once(|| {
            let mut command = scratch.cffs([]);
            let arguments = if round % 2 == 0 { &["clone"][..] } else { &["cp", "-a"] };
            command.args(arguments).arg(path("source")).arg(&target);
            command
        });
        assert_one_succeeded(&outcomes, &format!("{}: file exists", target.display()));
    }
    scratch.umount();
}
