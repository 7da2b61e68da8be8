use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{CopyError, CopyOptions, Files, Observer, export, import};
use crate::clock::TestClock;
use crate::device::{FileDevice, MemoryDevice, PairedDevice};
use crate::error::Error;
use crate::format::inode::FileType;
use crate::mkfs::{self, MkfsOptions};
use crate::vfs::Volume;
use crate::vfs::types::OpenOptions;

mod cloning;
mod failing;
mod outside;

fn files_of(size_bytes: u64) -> Files {
    let device = Arc::new(MemoryDevice::new(size_bytes));
    mkfs::make(&device, &MkfsOptions::default()).expect("the volume is made");
    let clock = Arc::new(TestClock::default());
    let volume = Volume::open(device, clock, OpenOptions::default()).expect("it opens");
    Files::new(Arc::new(volume))
}

fn files() -> Files {
    files_of(64 << 20)
}

/// As open(2) with O_CREAT does. The target of a link is relative to the link's directory.
#[test]
fn a_file_is_made_through_a_symbolic_link_without_a_target() {
    let files = files();
    files.make_dir_all("/a/b").expect("made");
    for (link, target, made) in [
        ("/one", "first", "/first"),
        ("/a/two", "b/second", "/a/b/second"),
        ("/a/b/three", "../third", "/a/third"),
        ("/four", "/a/b/fourth", "/a/b/fourth"),
        ("/five", "one too", "/last"),
    ] {
        files.symlink(target.as_bytes(), link).expect("linked");
        if link == "/five" {
            files.symlink(b"last", "/one too").expect("linked");
        }
        files.write(link, link.as_bytes()).expect("written");
        assert_eq!(files.read(made).expect("read"), link.as_bytes());
        assert_eq!(files.read_link(link).expect("a link"), target.as_bytes());
        files.write(link, b"").expect("emptied");
    }
    files.symlink(b"missing/f", "/six").expect("linked");
    files.symlink(b"loop", "/loop").expect("linked");
    assert!(matches!(files.write("/six", b""), Err(Error::NotFound)));
    assert!(matches!(files.write("/loop", b""), Err(Error::Loop)));
    assert!(matches!(files.create_new("/one", 0o644), Err(Error::Exists)));
    files.symlink(b"new/", "/seven").expect("linked");
    for path in ["/seven", "/new/", "/a/"] {
        assert!(matches!(files.write(path, b""), Err(Error::IsDirectory)), "{path}");
    }
}

#[test]
fn a_slash_after_a_name_requires_a_directory() {
    let files = files();
    files.write("/f", b"contents").expect("written");
    files.make_dir("/d/").expect("made");
    for (found, expected) in [
        (files.remove_file("/f/"), Error::NotDirectory),
        (files.remove_file("/d/"), Error::IsDirectory),
        (files.remove_dir("/f/"), Error::NotDirectory),
        (files.rename("/f/", "/g"), Error::NotDirectory),
        (files.rename("/f", "/g/"), Error::NotDirectory),
        (files.rename("/none/", "/g"), Error::NotFound),
        (files.hard_link("/f/", "/g"), Error::NotDirectory),
        (files.hard_link("/f", "/g/"), Error::NotFound),
        (files.hard_link("/f", "/f/"), Error::Exists),
        (files.symlink(b"f", "/g/"), Error::NotFound),
        (files.symlink(b"f", "/d/"), Error::Exists),
        (files.create_new("/g/", 0o644).map(drop), Error::IsDirectory),
    ] {
        let found = found.expect_err("refused");
        assert_eq!(found.to_string(), expected.to_string());
    }
    files.rename("/d/", "/e/").expect("renamed");
    files.remove_dir("/e/").expect("removed");
    assert_eq!(files.read("/f").expect("read"), b"contents");
    assert_eq!(files.read_dir("/").expect("listed").len(), 1);
}

#[test]
fn contents_written_by_path_are_read_by_path() {
    let files = files();
    files.make_dir_all("/a/b//c/").expect("made");
    files.make_dir_all("a/b/c").expect("it is there already");
    files.write("/a/b/c/f", b"first, and longer").expect("written");
    files.write("a/b/c/f", b"second").expect("written again");
    assert_eq!(files.read("/a/./b/../b/c/f").expect("read"), b"second");
    assert!(matches!(files.read("/a/b"), Err(Error::IsDirectory)));
    assert!(matches!(files.make_dir_all("/a/b/c/f"), Err(Error::NotDirectory)));
    assert!(matches!(files.read("/a/b/c/f/"), Err(Error::NotDirectory)));
}

#[test]
fn symbolic_links_are_followed_within_the_volume() {
    let files = files();
    files.make_dir_all("/real/dir").expect("made");
    files.write("/real/file", b"found").expect("written");
    files.symlink(b"../real", "/real/up").expect("made");
    files.symlink(b"/real/up/file", "/absolute").expect("made");
    files.symlink(b"../file", "/real/dir/relative").expect("made");
    files.symlink(b"loop", "/loop").expect("made");
    assert_eq!(files.read("/absolute").expect("read"), b"found");
    assert_eq!(files.read("/real/up/dir/relative").expect("read"), b"found");
    assert_eq!(files.read_link("/absolute").expect("read"), b"/real/up/file");
    assert_eq!(files.stat_itself("/absolute").expect("there").file_type, FileType::Symlink);
    assert!(matches!(files.read("/loop"), Err(Error::Loop)));
    assert_eq!(files.read("/../../real/file").expect("the root is above itself"), b"found");
}

#[test]
fn names_can_be_linked_moved_and_removed() {
    let files = files();
    files.write("one", b"1").expect("written");
    files.hard_link("one", "two").expect("linked");
    assert_eq!(files.stat("two").expect("there").nlink, 2);
    files.rename("one", "three").expect("renamed");
    files.remove_file("two").expect("removed");
    assert!(matches!(files.stat("one"), Err(Error::NotFound)));
    assert_eq!(files.stat("three").expect("there").nlink, 1);
    files.make_dir("d").expect("made");
    files.write("d/x", b"").expect("written");
    assert!(matches!(files.remove_dir("d"), Err(Error::NotEmpty)));
    files.remove_file("d/x").expect("removed");
    files.remove_dir("d").expect("removed");
}

#[test]
fn a_file_in_use_outlives_its_name() {
    let files = files();
    let mut file = files.create("f").expect("made");
    file.write_all(b"still here").expect("written");
    files.remove_file("f").expect("removed");
    file.seek(SeekFrom::End(-4)).expect("moved");
    let mut rest = String::new();
    file.read_to_string(&mut rest).expect("read");
    assert_eq!(rest, "here");
    drop(file);
    files.close().expect("closed");
}

/// Appends by two handles that asked for the size first, and wrote there after, overwrote each other.
#[test]
fn appended_data_is_whole_and_none_of_it_is_overwritten() {
    const LINE_BYTES: [usize; 4] = [20, 700, 70_000, (2 << 20) + 77];
    let files = files_of(256 << 20);
    files.write("/log", b"").expect("made");
    let append = |letter: u8| {
        let file = files.open("/log").expect("opened");
        for len in LINE_BYTES.iter().cycle().take(40) {
            let mut line = vec![letter; *len];
            line[len - 1] = b'\n';
            let end = file.append_all(&line).expect("appended");
            assert!(end >= *len as u64, "{end} is behind the line");
        }
    };
    std::thread::scope(|scope| {
        for letter in *b"abcd" {
            let append = &append;
            scope.spawn(move || append(letter));
        }
    });
    let log = files.read("/log").expect("read");
    let behind = files.open("/log").expect("opened").append_all(b"").expect("nothing to append");
    assert_eq!(behind, log.len() as u64);
    assert_eq!(log.len(), 4 * 10 * LINE_BYTES.iter().sum::<usize>());
    for line in log.split_inclusive(|byte| *byte == b'\n') {
        assert!(LINE_BYTES.contains(&line.len()), "a line of {} bytes", line.len());
        assert!(line[1..line.len() - 1].iter().all(|byte| *byte == line[0]), "lines are mixed");
    }
}

/// A full volume: the file ends with the last complete append.
#[test]
fn an_append_that_finds_no_space_leaves_what_there_was() {
    let files = files_of(16 << 20);
    files.write("/log", b"the first line\n").expect("made");
    let file = files.open("/log").expect("opened");
    let error = file.append_all(&vec![b'x'; 32 << 20]).expect_err("there is no room");
    assert!(matches!(error, Error::NoSpace), "{error}");
    let log = files.read("/log").expect("read");
    assert!(log.starts_with(b"the first line\n") && log.len() > 1 << 20);
    assert!(log[15..].iter().all(|byte| *byte == b'x'));
}

#[test]
fn a_walk_tells_directories_before_what_is_in_them() {
    let files = files();
    for path in ["/t/a/x", "/t/b/y/z", "/t/c"] {
        files.make_dir_all(path).expect("made");
        files.write([path, "/file"].concat(), b"").expect("written");
    }
    let found: Vec<(String, usize)> = files
        .walk("/t")
        .expect("it begins")
        .map(|entry| entry.expect("readable"))
        .map(|entry| (String::from_utf8_lossy(&entry.path).into_owned(), entry.depth))
        .collect();
    let expected = [
        ("/t", 0),
        ("/t/a", 1),
        ("/t/a/x", 2),
        ("/t/a/x/file", 3),
        ("/t/b", 1),
        ("/t/b/y", 2),
        ("/t/b/y/z", 3),
        ("/t/b/y/z/file", 4),
        ("/t/c", 1),
        ("/t/c/file", 2),
    ];
    assert_eq!(found, expected.map(|(path, depth)| (path.to_owned(), depth)));
}

/// A tree with one of everything that an ordinary user can make.
fn build_tree(root: &Path) {
    fs::create_dir_all(root.join("sub/deep")).expect("made");
    for index in 0..200 {
        let contents = vec![index as u8; index * 97];
        fs::write(root.join(format!("sub/f{index}")), contents).expect("written");
    }
    fs::write(root.join("first"), b"two names").expect("written");
    fs::hard_link(root.join("first"), root.join("sub/second")).expect("linked");
    symlink("sub/f1", root.join("link")).expect("linked");
    symlink("nowhere", root.join("sub/dangling")).expect("linked");
    let sparse = fs::File::create(root.join("sparse")).expect("made");
    sparse.write_all_at(b"end", 5 << 20).expect("written");
    sparse.set_len(6 << 20).expect("extended");
    fs::write(root.join("tight"), b"secret").expect("written");
    fs::set_permissions(root.join("tight"), fs::Permissions::from_mode(0o4711)).expect("set");
    fs::set_permissions(root.join("sub/deep"), fs::Permissions::from_mode(0o2750)).expect("set");
}

fn assert_same(left: &Path, right: &Path) {
    let (a, b) = (fs::symlink_metadata(left).expect("there"), fs::symlink_metadata(right));
    let b = b.unwrap_or_else(|error| panic!("{}: {error}", right.display()));
    assert_eq!(a.mode(), b.mode(), "mode of {}", right.display());
    assert_eq!((a.uid(), a.gid()), (b.uid(), b.gid()), "owner of {}", right.display());
    let times = |m: &fs::Metadata| (m.mtime(), m.mtime_nsec());
    assert_eq!(times(&a), times(&b), "time of {}", right.display());
    if a.is_dir() {
        let mut names: Vec<_> = fs::read_dir(left)
            .expect("readable")
            .map(|entry| entry.expect("readable").file_name())
            .collect();
        names.sort();
        assert_eq!(names.len(), fs::read_dir(right).expect("readable").count());
        names.iter().for_each(|name| assert_same(&left.join(name), &right.join(name)));
    } else if a.is_symlink() {
        assert_eq!(fs::read_link(left).expect("read"), fs::read_link(right).expect("read"));
    } else {
        assert_eq!(a.nlink(), b.nlink());
        assert!(fs::read(left).expect("read") == fs::read(right).expect("read"), "{left:?}");
    }
}

#[test]
fn a_tree_comes_out_as_it_went_in() {
    let host = tempfile::tempdir().expect("a directory");
    let (source, target) = (host.path().join("source"), host.path().join("target"));
    build_tree(&source);
    let files = files();
    let options = CopyOptions::default();
    let there = import(&files, &source, b"/into/here", &options, &()).expect("imported");
    let back = export(&files, b"/into/here", &target, &options, &()).expect("exported");
    assert_eq!(there, back);
    assert_eq!((there.files, there.directories), (203, 3));
    assert_eq!((there.symlinks, there.hard_links, there.failures), (2, 1, 0));
    assert_same(&source, &target);
    assert_eq!(
        files.stat("/into/here/first").expect("there").ino,
        files.stat("/into/here/sub/second").expect("there").ino
    );
    // The hole stayed one on both sides.
    assert!(there.bytes < 3 << 20, "{} bytes were copied", there.bytes);
    assert!(files.stat("/into/here/sparse").expect("there").allocated_bytes < 64 << 10);
    assert!(fs::metadata(target.join("sparse")).expect("there").blocks() * 512 < 1 << 20);
    files.close().expect("closed");
}

#[test]
fn a_second_import_replaces_files_and_keeps_others() {
    let host = tempfile::tempdir().expect("a directory");
    fs::write(host.path().join("f"), b"old").expect("written");
    let files = files();
    files.write("/other", b"stays").expect("written");
    let options = CopyOptions::default();
    import(&files, host.path(), b"/", &options, &()).expect("imported");
    fs::write(host.path().join("f"), b"new").expect("written");
    import(&files, host.path(), b"/", &options, &()).expect("imported again");
    assert_eq!(files.read("f").expect("read"), b"new");
    assert_eq!(files.read("other").expect("read"), b"stays");
}

/// Counts failures.
#[derive(Default)]
struct Failures(AtomicUsize);

impl Observer for Failures {
    fn failed(&self, _: &CopyError) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_file_that_cannot_be_copied_is_reported_and_the_others_are_copied() {
    let host = tempfile::tempdir().expect("a directory");
    fs::create_dir(host.path().join("x")).expect("made");
    fs::write(host.path().join("y"), b"fine").expect("written");
    let files = files();
    files.write("/x", b"in the way of the directory").expect("written");
    let failures = Failures::default();
    let options = CopyOptions::default();
    let summary = import(&files, host.path(), b"/", &options, &failures).expect("goes on");
    assert_eq!((summary.failures, failures.0.into_inner()), (1, 1));
    assert_eq!(files.read("/y").expect("read"), b"fine");
}

/// Ends the copy as soon as a file was copied.
#[derive(Default)]
struct FirstIsEnough(AtomicUsize);

impl Observer for FirstIsEnough {
    fn copied(&self, _: &Path, _: u64) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// A program that wanted to stop a copy had to wait until the whole tree was copied.
#[test]
fn an_observer_can_end_a_copy() {
    let host = tempfile::tempdir().expect("a directory");
    let (source, target) = (host.path().join("source"), host.path().join("target"));
    for number in 0..50 {
        let dir = source.join((number % 5).to_string());
        fs::create_dir_all(&dir).expect("made");
        fs::write(dir.join(number.to_string()), b"contents").expect("written");
    }
    let files = files();
    let options = CopyOptions { threads: NonZeroUsize::new(1), ..CopyOptions::default() };
    let summary = import(&files, &source, b"/part", &options, &FirstIsEnough::default());
    let summary = summary.expect("copied");
    assert_eq!((summary.files + summary.directories, summary.failures), (1, 0));
    import(&files, &source, b"/whole", &options, &()).expect("imported");
    let summary = export(&files, b"/whole", &target, &options, &FirstIsEnough::default());
    let summary = summary.expect("copied");
    assert_eq!((summary.files + summary.directories, summary.failures), (1, 0));
}

/// Ends the copy from the beginning on.
struct Never;

impl Observer for Never {
    fn is_cancelled(&self) -> bool {
        true
    }
}

#[test]
fn the_copy_of_a_single_file_can_be_ended() {
    let host = tempfile::tempdir().expect("a directory");
    let source = host.path().join("large");
    fs::write(&source, vec![1; 3 << 20]).expect("written");
    let error = import(&files(), &source, b"/large", &CopyOptions::default(), &Never);
    assert!(error.expect_err("it was ended").to_string().ends_with("the copy was cancelled"));
}

#[test]
fn an_import_that_finds_no_space_ends_and_says_so() {
    let host = tempfile::tempdir().expect("a directory");
    for index in 0..40 {
        fs::write(host.path().join(index.to_string()), vec![1; 1 << 20]).expect("written");
    }
    let files = files_of(16 << 20);
    let copied = import(&files, host.path(), b"/", &CopyOptions::default(), &());
    let error = copied.expect_err("there is no room").to_string();
    assert!(error.contains("no space left"), "{error}");
    files.close().expect("the volume is none the worse");
}

/// Regression: the commands found the journal in the file `IMAGE.journal`, and this did not.
#[test]
fn an_image_is_opened_with_the_journal_in_the_file_next_to_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("image");
    let sibling = directory.path().join("image.journal");
    let create = |path, size_bytes| FileDevice::create_new(path, size_bytes).expect("made");
    let paired = PairedDevice::new(create(&path, 64 << 20), Arc::new(create(&sibling, 4 << 20)));
    mkfs::make(&paired, &MkfsOptions::default()).expect("made");
    drop(paired);

    let files = Files::open_image(&path, OpenOptions::default()).expect("opened");
    files.write("/file", b"contents").expect("written");
    files.close().expect("closed");
    drop(files);
    let files = Files::open_image(&path, OpenOptions::default()).expect("opened again");
    assert_eq!(files.read("/file").expect("read"), b"contents");
    files.close().expect("closed");
    drop(files);

    fs::remove_file(&sibling).expect("removed");
    let missing = Files::open_image(&path, OpenOptions::default()).map(drop).expect_err("refused");
    assert!(missing.to_string().contains("journal"), "{missing}");
}
