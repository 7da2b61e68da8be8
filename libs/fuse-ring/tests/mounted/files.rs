//! Operations of programs on files.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

use fuse_ring::Transport;
use rustix::fs::{CWD, RenameFlags, XattrFlags, renameat_with};

use crate::harness::{Setup, eventually};
use crate::on_both_transports;
use crate::tree::Tree;

on_both_transports! {
    files_are_made_and_found
    names_move
    directories_list_what_they_have
    attributes_are_kept
    xattrs_are_kept
    large_requests_are_one
    direct_io_goes_through
    threads_do_not_mix
    lookups_are_forgotten
    files_without_a_name
    truncation_is_not_lost_with_opening_elided
    rarer_requests_are_understood
}

const O_DIRECT: i32 = 0o40_000;

/// Bytes that differ from page to page and from seed to seed.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn files_are_made_and_found(setup: Setup) {
    let mounted = setup.mount(Tree::default());
    let path = mounted.path.join("file");
    assert_eq!(fs::read(&path).unwrap_err().raw_os_error(), Some(2));
    fs::write(&path, "contents").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"contents");
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b", more").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"contents, more");
    File::create(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    let again = OpenOptions::new().write(true).create_new(true).open(&path);
    assert_eq!(again.unwrap_err().raw_os_error(), Some(17));
    fs::remove_file(&path).unwrap();
    assert!(!path.exists());
    mounted.end().unwrap();
}

fn names_move(setup: Setup) {
    let mounted = setup.mount(Tree::default());
    let at = |name: &str| mounted.path.join(name);
    fs::create_dir(at("a")).unwrap();
    fs::create_dir(at("b")).unwrap();
    fs::write(at("a/one"), "1").unwrap();
    fs::write(at("b/two"), "2").unwrap();
    fs::rename(at("a/one"), at("b/uno")).unwrap();
    assert_eq!((names(&at("a")).len(), fs::read(at("b/uno")).unwrap()), (0, b"1".to_vec()));
    let move_with = |flags| renameat_with(CWD, at("b/uno"), CWD, at("b/two"), flags);
    assert_eq!(move_with(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    move_with(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(at("b/two")).unwrap(), b"1");
    fs::rename(at("b/uno"), at("b/two")).unwrap();
    assert_eq!(fs::read(at("b/two")).unwrap(), b"2");
    fs::hard_link(at("b/two"), at("a/deux")).unwrap();
    assert_eq!(fs::metadata(at("a/deux")).unwrap().nlink(), 2);
    symlink("b/two", at("link")).unwrap();
    assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("b/two"));
    assert_eq!(fs::read(at("link")).unwrap(), b"2");
    assert_eq!(fs::remove_dir(at("b")).unwrap_err().raw_os_error(), Some(39));
    fs::remove_dir_all(at("b")).unwrap();
    assert_eq!(fs::metadata(at("a/deux")).unwrap().nlink(), 1);
    // A target that is too long for a name, and shorter than a page, is sent in another way.
    let long = "x/".repeat(2000);
    symlink(&long, at("long")).unwrap();
    assert_eq!(fs::read_link(at("long")).unwrap(), Path::new(&long));
    mounted.end().unwrap();
}

fn directories_list_what_they_have(setup: Setup) {
    let mounted = setup.mount(Tree::default());
    let directory = mounted.path.join("many");
    fs::create_dir(&directory).unwrap();
    let expected: BTreeSet<String> = (0..3000).map(|i| format!("file-number-{i}")).collect();
    for name in &expected {
        File::create(directory.join(name)).unwrap();
    }
    assert_eq!(names(&directory), expected);
    // With the attributes of each, so that the kernel requests attributes together with names.
    let sizes = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    assert_eq!(sizes.map(|metadata| metadata.len()).sum::<u64>(), 0);
    // While the directory shrinks, and the reader keeps its position.
    for entry in fs::read_dir(&directory).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert_eq!(names(&directory), BTreeSet::new());
    mounted.end().unwrap();
}

fn attributes_are_kept(setup: Setup) {
    let mounted = setup.mount(Tree::default());
    let path = mounted.path.join("file");
    let file = File::create(&path).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(&path, Some(1), Some(2)).unwrap();
    file.set_len(5000).unwrap();
    let then = std::time::UNIX_EPOCH - std::time::Duration::new(1, 5);
    file.set_modified(then).unwrap();
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (0o640, 1, 2));
    assert_eq!((found.len(), found.modified().unwrap()), (5000, then));
    assert_eq!(fs::read(&path).unwrap(), vec![0; 5000]);
    let statfs = rustix::fs::statvfs(&path).unwrap();
    assert_eq!((statfs.f_namemax, statfs.f_blocks), (255, 1 << 20));
    drop(file);
    mounted.end().unwrap();
}

fn xattrs_are_kept(setup: Setup) {
    let mounted = setup.mount(Tree::default());
    let path = mounted.path.join("file");
    File::create(&path).unwrap();
    let set = |name: &str, value: &[u8]| {
        rustix::fs::setxattr(&path, name, value, XattrFlags::empty()).unwrap();
    };
    let get = |name: &str| {
        let mut value = vec![0; 1 << 16];
        let len = rustix::fs::getxattr(&path, name, &mut value)?;
        value.truncate(len);
        Ok::<_, rustix::io::Errno>(value)
    };
    let values = [vec![], noise(1, 1), noise(600, 2), noise(5000, 3), noise(1 << 16, 4)];
    for (index, value) in values.iter().enumerate() {
        let name = format!("user.number-{index}");
        set(&name, value);
        assert_eq!(get(&name).unwrap(), *value);
    }
    let mut small = [0; 10];
    let result = rustix::fs::getxattr(&path, "user.number-2", &mut small);
    assert_eq!(result, Err(rustix::io::Errno::RANGE));
    rustix::fs::removexattr(&path, "user.number-0").unwrap();
    assert_eq!(get("user.number-0"), Err(rustix::io::Errno::NODATA));
    let mut list = [0; 1000];
    let len = rustix::fs::listxattr(&path, &mut list).unwrap();
    assert_eq!(list[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()).count(), 4);
    mounted.end().unwrap();
}

fn large_requests_are_one(setup: Setup) {
    let tree = Tree::default();
    let mounted = setup.mount(tree.clone());
    let path = mounted.path.join("file");
    let data = noise((8 << 20) + 4321, 5);
    fs::write(&path, &data).unwrap();
    assert_eq!(tree.seen().largest.1, 1 << 20, "a write of 1 MiB is one request");
    // No part of it may be read from the page cache.
    rustix::fs::fadvise(File::open(&path).unwrap(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
    assert!(fs::read(&path).unwrap() == data);
    assert!(tree.seen().largest.0 >= 128 << 10, "read-ahead is long: {:?}", tree.seen());
    mounted.end().unwrap();
}

fn direct_io_goes_through(setup: Setup) {
    let tree = Tree::default();
    let mounted = setup.mount(tree.clone());
    let path = mounted.path.join("file");
    let open = || {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).custom_flags(O_DIRECT);
        options.open(&path).unwrap()
    };
    let data = noise(3 << 20, 6);
    open().write_all_at(&data, 1 << 20).unwrap();
    let mut found = vec![1; 4 << 20];
    open().read_exact_at(&mut found, 0).unwrap();
    assert!(found[..1 << 20].iter().all(|&byte| byte == 0) && found[1 << 20..] == data);
    assert_eq!(tree.seen().largest, (1 << 20, 1 << 20));
    assert_eq!(open().read_at(&mut found, 4 << 20).unwrap(), 0, "at the end of the file");
    mounted.end().unwrap();
}

fn threads_do_not_mix(setup: Setup) {
    let tree = Tree::default();
    let mounted = setup.mount(tree.clone());
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let root = &mounted.path;
            scope.spawn(move || {
                for round in 0..60 {
                    let data = noise(1 + (round as usize * 977) % 70_000, thread << 32 | round);
                    let path = root.join(format!("{thread}-{round}"));
                    let moved = root.join(format!("{thread}-{round}-moved"));
                    fs::write(&path, &data).unwrap();
                    fs::rename(&path, &moved).unwrap();
                    let mut file = File::open(&moved).unwrap();
                    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                    let mut found = Vec::new();
                    file.seek(SeekFrom::Start(0)).unwrap();
                    file.read_to_end(&mut found).unwrap();
                    assert!(found == data, "{}", moved.display());
                    if round % 3 != 0 {
                        fs::remove_file(&moved).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(names(&mounted.path).len(), 8 * 20);
    mounted.end().unwrap();
    assert!(!tree.seen().forgotten_too_often);
}

/// Lookup counts must be exact: one forgotten too few leaks inodes, one too many frees an inode that the
/// kernel still uses.
fn lookups_are_forgotten(setup: Setup) {
    let tree = Tree::default();
    let mounted = setup.mount(tree.clone());
    let directory = mounted.path.join("directory");
    fs::create_dir(&directory).unwrap();
    for index in 0..500 {
        fs::write(directory.join(index.to_string()), "x").unwrap();
    }
    for entry in fs::read_dir(&directory).unwrap() {
        entry.unwrap().metadata().unwrap();
    }
    fs::hard_link(directory.join("0"), directory.join("more")).unwrap();
    assert!(tree.lookups() >= 501);
    fs::remove_dir_all(&directory).unwrap();
    // The kernel forgets inodes without a name once they are not in use, and the server must do so as well.
    eventually(|| tree.inodes() == 1);
    assert_eq!(tree.lookups(), 0);
    assert!(!tree.seen().forgotten_too_often);
    mounted.end().unwrap();
    assert!(!tree.seen().forgotten_too_often);
}

fn files_without_a_name(setup: Setup) {
    const O_TMPFILE: i32 = 0o20_200_000;
    let tree = Tree::default();
    let mounted = setup.mount(tree.clone());
    let mut options = OpenOptions::new();
    let mut file =
        options.read(true).write(true).custom_flags(O_TMPFILE).open(&mounted.path).unwrap();
    file.write_all(b"nameless").unwrap();
    file.rewind().unwrap();
    let mut found = String::new();
    file.read_to_string(&mut found).unwrap();
    assert_eq!((found.as_str(), file.metadata().unwrap().nlink()), ("nameless", 0));
    drop(file);
    eventually(|| tree.inodes() == 1);
    mounted.end().unwrap();
}

/// See `negotiate`: the truncation would be part of an `OPEN` that is never sent.
fn truncation_is_not_lost_with_opening_elided(mut setup: Setup) {
    setup.config.wishes.elide_open = true;
    setup.config.wishes.elide_opendir = true;
    let tree = Tree::default();
    let mounted = setup.mount(tree.clone());
    let path = mounted.path.join("file");
    fs::write(&path, "long contents").unwrap();
    for _ in 0..3 {
        assert!(!fs::read(&path).unwrap().is_empty());
    }
    fs::write(&path, "short").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"short");
    assert_eq!(names(&mounted.path).len(), 1);
    assert_eq!(tree.seen().opens, 0);
    mounted.end().unwrap();
}

fn rarer_requests_are_understood(setup: Setup) {
    let tree = Tree::default();
    let mounted = setup.mount(tree.clone());
    let at = |name: &str| mounted.path.join(name);
    let before = std::time::SystemTime::now() - std::time::Duration::from_secs(10);
    fs::write(at("file"), noise(10_000, 7)).unwrap();
    assert!(fs::metadata(at("file")).unwrap().created().unwrap() > before, "by STATX");

    let file = OpenOptions::new().read(true).write(true).open(at("file")).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 20_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 20_000);
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(5));
    assert_eq!(hole, Ok(20_000));
    let beyond = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(20_000));
    assert_eq!(beyond, Err(rustix::io::Errno::NXIO));

    let copy = File::create(at("copy")).unwrap();
    let (mut from, mut to) = (3, 5);
    let copied =
        rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), 6000).unwrap();
    assert_eq!((copied, tree.seen().copies), (6000, 1));
    assert!(fs::read(at("copy")).unwrap()[5..] == noise(10_000, 7)[3..6003]);

    let device = rustix::fs::makedev(13, 300);
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let kind = rustix::fs::FileType::BlockDevice;
    match rustix::fs::mknodat(CWD, at("device"), kind, mode, device) {
        Err(rustix::io::Errno::PERM) => println!("SKIPPED: no permission to make devices"),
        made => {
            made.unwrap();
            assert_eq!(fs::metadata(at("device")).unwrap().rdev(), device);
        }
    }
    drop((file, copy));
    mounted.end().unwrap();
}

#[test]
fn the_transport_is_reported() {
    crate::harness::on_dev(|setup| {
        let (_directory, session) = setup.session(Tree::default());
        let Transport::Dev { why_not_uring, .. } = session.transport() else {
            panic!("{:?}", session.transport());
        };
        assert_eq!(why_not_uring, "not asked for");
    });
    crate::harness::on_uring(|setup| {
        let (_directory, session) = setup.session(Tree::default());
        assert!(matches!(session.transport(), Transport::Uring { cores: 1.., .. }));
    });
}
