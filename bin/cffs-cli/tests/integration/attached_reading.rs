//! Programs that read a mounted volume through its server.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use cffs::device::Access;
use cffs::error::Error;
use cffs::files::{CopyOptions, Files, Observer, export, import};
use cffs::vfs::OpenOptions;
use cffs::wire::CONTENTS_BYTES_MAX;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::mount::{MountFlags, mount_remount};

use crate::harness::{Scratch, can_mount, wait_for};

const ONE: NonZeroUsize = NonZeroUsize::MIN;

/// A mounted volume, and this program attached to it.
fn attached(scratch: &Scratch) -> Files {
    scratch.mount("");
    Files::attach(&scratch.mountpoint(), Access::ReadWrite).expect("attached")
}

/// Makes files of all kinds and sizes, and a directory with more names than one answer has.
fn fill(top: &Path) {
    fs::create_dir_all(top.join("deep/er")).expect("made");
    let limit = CONTENTS_BYTES_MAX as usize;
    for bytes in [0, 1, 4096, 70_000, limit - 1, limit, limit + 1, 3 * limit] {
        let contents: Vec<u8> = (0..bytes).map(|at| (at / 7) as u8).collect();
        fs::write(top.join(format!("{bytes}")), contents).expect("written");
    }
    fs::create_dir(top.join("many")).expect("made");
    for number in 0..3000 {
        fs::write(top.join(format!("many/{number}")), format!("number {number}")).expect("written");
    }
    let sparse = File::create(top.join("deep/sparse")).expect("made");
    sparse.set_len(5 << 20).expect("sized");
    sparse.write_all_at(b"in the middle", 2 << 20).expect("written");
    symlink("../4096", top.join("deep/link")).expect("linked");
    setxattr(top.join("1"), "user.a", b"value", XattrFlags::empty()).expect("set");
}

#[test]
fn contents_and_listings_equal_those_of_the_mount() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let files = attached(&scratch);
    let top = scratch.mountpoint();
    fill(&top);
    let mut walked = 0;
    for entry in files.walk("/").expect("begun") {
        let entry = entry.expect("read");
        walked += 1;
        let path = top.join(std::str::from_utf8(&entry.path[1..]).expect("text"));
        let data = fs::symlink_metadata(&path).expect("there");
        let shown = (data.ino(), data.mode(), data.size(), data.mtime(), data.mtime_nsec());
        let attr = entry.attr;
        let (seconds, nanoseconds) = (attr.mtime.seconds, attr.mtime.nanoseconds.into());
        assert_eq!((attr.ino.0, attr.mode(), attr.size, seconds, nanoseconds), shown);
        if data.is_file() {
            let contents = files.read(&entry.path).expect("read");
            assert!(contents == fs::read(&path).expect("read"), "{path:?}");
            let open = files.open(&entry.path).expect("opened");
            let mut part = [0; 100];
            let read = open.read_at(50, &mut part).expect("read");
            let end = contents.len().min(150).max(50.min(contents.len()));
            assert_eq!(part[..read], contents[50.min(contents.len())..end]);
        }
    }
    assert_eq!(walked, 1 + 8 + 4 + 1 + 3000);
    let listed: Vec<Vec<u8>> =
        files.read_dir("/many").expect("listed").into_iter().map(|item| item.name).collect();
    let expected: Vec<Vec<u8>> = (0..3000).map(|number| number.to_string().into_bytes()).collect();
    assert_eq!(listed, expected, "in the order in which they were made");
    assert_eq!(files.read("/deep/link").expect("read"), fs::read(top.join("4096")).expect("read"));
    assert_eq!(files.read_link("/deep/link").expect("read"), b"../4096");
    let node = files.node("/1").expect("found");
    assert_eq!(node.xattr(b"user.a").expect("read"), b"value");
    assert_eq!(node.xattr_names().expect("listed"), [b"user.a".to_vec()]);
    assert!(matches!(node.xattr(b"system.cffs.attach.1"), Err(Error::NotSupported)));
    let sizes = files.stat_fs().expect("by the kernel");
    assert!(sizes.inodes > 3000 && sizes.free_fragments > 0);
    files.close().expect("closed");
    assert!(matches!(files.read("/1"), Err(Error::Stale)));
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn many_files_are_read_with_the_outcome_of_each() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let files = attached(&scratch);
    let top = scratch.mountpoint();
    fill(&top);
    let mut paths: Vec<String> = (0..3000).rev().map(|at| format!("/many/{at}")).collect();
    let huge = format!("/{}", 3 * CONTENTS_BYTES_MAX);
    let others = ["/missing", "/many", &huge, "/deep/link", "/many/1/x", "/many/7", "/a\0"];
    paths.extend(others.map(str::to_owned));
    paths.push(format!("/{}", "x".repeat(5000)));
    paths.extend([1, 0].map(|more| format!("/{}", CONTENTS_BYTES_MAX + more)));
    let found = Mutex::new(BTreeMap::new());
    files.read_many(&paths, ONE, |position, read| {
        // The session can be used meanwhile.
        assert!(files.stat("/").is_ok());
        let before = found.lock().unwrap().insert(position, read.map(<[u8]>::to_vec));
        assert!(before.is_none(), "{position} was given out twice");
    });
    let found = found.into_inner().unwrap();
    assert_eq!(found.len(), paths.len());
    for (position, path) in paths.iter().enumerate() {
        match (&path[..], &found[&position]) {
            ("/missing", Err(Error::NotFound)) => {}
            ("/many", Err(Error::IsDirectory)) => {}
            ("/many/1/x", Err(Error::NotDirectory)) => {}
            ("/a\0", Err(Error::Invalid(_))) => {}
            (path, Err(Error::NameTooLong)) if path.len() > 4095 => {}
            (path, Ok(contents)) => {
                let expected = fs::read(top.join(&path[1..])).expect("read");
                assert!(*contents == expected, "{path}");
            }
            (path, Err(error)) => panic!("{path}: {error}"),
        }
    }
    drop(files);
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn a_path_and_a_link_cannot_leave_the_directory_of_the_session() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    drop(attached(&scratch));
    let top = scratch.mountpoint();
    fs::create_dir_all(top.join("outside/inside/below")).expect("made");
    fs::write(top.join("outside/secret"), "secret").expect("written");
    let inside = top.join("outside/inside");
    fs::write(inside.join("secret"), "the one inside").expect("written");
    for (name, target) in [
        ("up", "../secret"),
        ("further", "below/../../../../secret"),
        ("absolute", "/secret"),
        ("through", "up"),
        ("directory", "../.."),
    ] {
        symlink(target, inside.join(name)).expect("linked");
    }
    let files = Files::attach(&inside, Access::ReadWrite).expect("attached");
    let paths = ["up", "further", "absolute", "through", "../secret", "directory/secret"];
    for path in paths {
        assert_eq!(files.read(path).expect("read"), b"the one inside", "{path}");
        assert_eq!(files.open(path).expect("opened").contents().expect("read"), b"the one inside");
    }
    let root = files.root();
    let ino = root.ino();
    for path in ["..", "/..", "below/../..", "directory"] {
        assert_eq!(files.stat(path).expect("found").ino, ino, "{path}");
    }
    assert!(matches!(root.lookup(b".."), Err(Error::Invalid(_))));
    symlink("loop", inside.join("loop")).expect("linked");
    assert!(matches!(files.read("loop"), Err(Error::Loop)));
    drop((files, root));
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn each_side_sees_the_changes_of_the_other_at_once() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let files = attached(&scratch);
    let top = scratch.mountpoint();
    for turn in 0..50 {
        let (name, text) = (format!("f{}", turn % 7), format!("turn {turn}"));
        fs::write(top.join(&name), &text).expect("written");
        assert_eq!(files.read(&name).expect("read"), text.as_bytes());
        let text = format!("{text} again");
        files.write(&name, text.as_bytes()).expect("written");
        assert_eq!(fs::read_to_string(top.join(&name)).expect("read"), text);
        let file = files.open(&name).expect("opened");
        assert_eq!(file.append_all(b"!").expect("written"), text.len() as u64 + 1);
        assert_eq!(fs::read_to_string(top.join(&name)).expect("read"), text + "!");
        let (moved, to) = (top.join("moved"), format!("moved{turn}"));
        assert!(fs::metadata(top.join(&to)).is_err());
        fs::rename(top.join(&name), &moved).expect("renamed");
        assert!(matches!(files.read(&name), Err(Error::NotFound)));
        files.rename("moved", &to).expect("renamed");
        assert!(fs::metadata(&moved).is_err() && fs::metadata(top.join(&to)).is_ok());
        let names = fs::read_dir(&top).expect("listed").count();
        files.make_dir("dir").expect("made");
        files.remove_file(&to).expect("removed");
        assert!(fs::metadata(top.join(&to)).is_err() && fs::metadata(top.join("dir")).is_ok());
        assert_eq!(fs::read_dir(&top).expect("listed").count(), names);
        fs::write(top.join("dir/in"), "").expect("written");
        assert!(matches!(files.remove_dir("dir"), Err(Error::NotEmpty)));
        fs::remove_file(top.join("dir/in")).expect("removed");
        files.remove_dir("dir").expect("removed");
        assert!(fs::metadata(top.join("dir")).is_err());
    }
    files.sync().expect("durable");
    drop(files);
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn an_attached_read_leaves_the_access_time() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("strictatime");
    let top = scratch.mountpoint();
    fs::create_dir(top.join("dir")).expect("made");
    fs::write(top.join("dir/f"), "contents").expect("written");
    let files = Files::attach(&top, Access::ReadOnly).expect("attached");
    let times = || {
        let of = |path: &str| files.stat(path).expect("found").atime;
        (of("dir"), of("dir/f"))
    };
    let before = times();
    assert_eq!(files.read("dir/f").expect("read"), b"contents");
    assert_eq!(files.read_dir("dir").expect("listed").len(), 1);
    assert_eq!(files.open("dir/f").expect("opened").contents().expect("read").len(), 8);
    assert_eq!(times(), before);
    fs::read(top.join("dir/f")).expect("read");
    assert_ne!(times(), before, "the mount notes it");
    assert!(matches!(files.write("dir/f", b""), Err(Error::ReadOnly)), "attached to read");
    assert!(matches!(files.make_dir("new"), Err(Error::ReadOnly)));
    drop(files);
    scratch.umount();
    scratch.assert_clean();
}

struct NoObserver;

impl Observer for NoObserver {}

#[test]
fn a_tree_is_imported_and_exported_through_the_server() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let files = attached(&scratch);
    let (source, target) = (scratch.path().join("source"), scratch.path().join("target"));
    fill(&source);
    let options = CopyOptions::default();
    let imported = import(&files, &source, b"/tree", &options, &NoObserver).expect("imported");
    let exported = export(&files, b"/tree", &target, &options, &NoObserver).expect("exported");
    assert_eq!((imported.failures, exported.failures), (0, 0));
    assert_eq!((exported.files, exported.symlinks), (imported.files, imported.symlinks));
    for name in ["0", "1", "70000", "many/2999", "deep/sparse", "deep/link"] {
        let read = |top: &Path| fs::read(top.join(name)).expect("read");
        assert!(read(&source) == read(&target), "{name}");
    }
    let sparse = fs::metadata(target.join("deep/sparse")).expect("there");
    assert!(sparse.blocks() * 512 < 1 << 20, "holes stay");
    let mut value = [0; 10];
    assert_eq!(getxattr(target.join("1"), "user.a", &mut value).expect("there"), 5);
    assert!(matches!(files.node_by_number(files.root().ino()), Err(Error::Mounted(_))));
    assert!(files.clone_tree("/tree", "/clone").is_err(), "it needs the image");
    drop(files);
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn a_directory_of_a_mounted_volume_is_exported() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("");
    let top = scratch.mountpoint().join("tree");
    fill(&top);
    let target = scratch.path().join("target");
    let export = |from: &Path, path: &str, target: &Path| {
        let mut command = scratch.cffs(["export"]);
        command.arg(from).arg(path).arg(target).output().expect("run")
    };
    let exported = export(&top, "/", &target);
    assert!(exported.status.success(), "{exported:?}");
    for name in ["0", "1", "70000", "many/2999", "deep/sparse", "deep/link"] {
        let read = |top: &Path| fs::read(top.join(name)).expect("read");
        assert!(read(&top) == read(&target), "{name}");
    }
    let part = scratch.path().join("part");
    assert!(export(&top, "deep", &part).status.success());
    assert_eq!(fs::read_link(part.join("link")).expect("a link"), Path::new("../4096"));
    let missing = export(&top, "missing", &scratch.path().join("missing"));
    assert_eq!(missing.status.code(), Some(1));
    scratch.umount();
    scratch.assert_clean();
}

#[test]
fn a_read_only_mount_is_read_through_its_server() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let scratch = Scratch::with_image();
    scratch.mount("");
    let top = scratch.mountpoint();
    fs::write(top.join("f"), "contents").expect("written");
    let are_read = || {
        let refused = Files::attach(&top, Access::ReadWrite).err().map(Error::from);
        assert!(matches!(refused, Some(Error::ReadOnly)), "{refused:?}");
        let files = Files::attach(&top, Access::ReadOnly).expect("attached");
        assert_eq!(files.read("f").expect("read"), b"contents");
        assert_eq!(files.read_dir("/").expect("listed").len(), 1);
        assert!(matches!(files.write("f", b""), Err(Error::ReadOnly)));
    };
    let bound = MountFlags::BIND | MountFlags::RDONLY;
    wait_for(|| mount_remount(&top, bound, "").is_ok());
    are_read();
    scratch.umount();
    scratch.mount("ro");
    are_read();
    scratch.umount();
    scratch.assert_clean();
}

/// Regression: an append of nothing returned 0.
#[test]
fn an_append_of_nothing_returns_the_end() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let files = attached(&scratch);
    files.write("f", b"contents").expect("written");
    assert_eq!(files.open("f").expect("opened").append_all(b"").expect("appended"), 8);
    let paths = ["f", "f"];
    let (batch, missed) = files.batch(&paths);
    assert_eq!((batch.sizes().count(), missed.len()), (0, 2));
    assert!(missed.iter().all(|(_, error)| matches!(error, Error::Mounted(_))), "{missed:?}");
    drop((batch, files));
    scratch.umount();
    scratch.assert_clean();
}

/// Regression: the kernel appends at the size that it knows, where an attached program had just appended.
#[test]
fn appends_of_both_sides_are_kept() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let files = attached(&scratch);
    let path = scratch.mountpoint().join("log");
    fs::write(&path, "").expect("made");
    let mut own = fs::OpenOptions::new().append(true).open(&path).expect("opened");
    let other = files.open("log").expect("opened");
    // Lines that do not cross a page, where the kernel may divide an append.
    let line = |text: String| format!("{text:63}\n");
    let mut expected = String::new();
    let mut append = |line: &str, is_attached: bool| {
        match is_attached {
            true => drop(other.append_all(line.as_bytes()).expect("appended")),
            false => own.write_all(line.as_bytes()).expect("appended"),
        }
        expected.push_str(line);
    };
    for round in 0..64 {
        append(&line(format!("attached {round}")), true);
        append(&line(format!("kernel {round}")), false);
        append(&line(format!("kernel again {round}")), false);
    }
    // The kernel drops its copy of the end of the file after the last append has returned.
    wait_for(|| fs::read_to_string(&path).is_ok_and(|shown| shown == expected));
    // Several threads of each side at the same time.
    thread::scope(|scope| {
        for thread in 0..4 {
            let (path, other) = (&path, &other);
            scope.spawn(move || {
                let mut own = fs::OpenOptions::new().append(true).open(path).expect("opened");
                for number in 0..200 {
                    let line = line(format!("thread {thread} line {number}"));
                    match thread % 2 {
                        0 => own.write_all(line.as_bytes()).expect("appended"),
                        _ => drop(other.append_all(line.as_bytes()).expect("appended")),
                    }
                }
            });
        }
    });
    drop((own, other, files));
    scratch.umount();
    let image = Files::open_image(&scratch.image(), OpenOptions::default()).expect("opened");
    let kept = String::from_utf8(image.read("log").expect("read")).expect("text");
    assert!(kept.starts_with(&expected));
    let mut lines: Vec<&str> = kept[expected.len()..].lines().collect();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 4 * 200);
    assert!(lines.iter().all(|line| line.starts_with("thread ")));
}

/// Regression: the copy did not end until the volume was full.
#[test]
fn a_directory_is_not_exported_into_itself() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::with_image();
    let files = attached(&scratch);
    let top = scratch.mountpoint();
    fs::create_dir_all(top.join("a/b")).expect("made");
    fs::write(top.join("a/file"), "contents").expect("written");
    for (source, target) in [("/", "new/er"), ("/a", "a"), ("/a", "a/b"), ("/a", "a/b/new")] {
        let copied =
            export(&files, source.as_bytes(), &top.join(target), &CopyOptions::default(), &());
        let error = copied.expect_err("refused").to_string();
        assert!(error.contains("cannot be exported into itself"), "{source} {target}: {error}");
    }
    assert!(!top.join("new").exists() && !top.join("a/b/new").exists());
    let copied = export(&files, b"/a", &top.join("c"), &CopyOptions::default(), &());
    assert_eq!(copied.expect("copied").files, 1);
    // The target is in the directory through a path that does not show it.
    let hidden = top.join("new/../a/hidden");
    let copied = export(&files, b"/a", &hidden, &CopyOptions::default(), &()).expect("copied");
    assert_eq!((copied.files, copied.failures), (1, 1));
    assert!(top.join("a/hidden/hidden").exists() && !top.join("a/hidden/hidden/hidden").exists());
    drop(files);
    scratch.umount();
}
