//! Copies that share clusters: they take no space, and a change of one file leaves the others as they are.

use std::ops::ControlFlow;
use std::sync::Arc;

use cffs::device::MemoryDevice;
use cffs::files::{CloneError, CloneStep, CloneWatch, Cloned, DirItem, Files, Need, clone_tree};
use cffs::format::cluster::REFERENCES_MAX;
use cffs::format::inode::FileType;
use cffs::units::InodeNo;
use cffs::vfs::{
    AllocateMode, Attr, Caller, Groups, OpenOptions, RegroupOptions, RegroupProgress, Scattered,
    SetAttr, Volume,
};

use crate::clusters::{ROOT, device, device_of, free_bytes, is_sound, open, read, text, write};
use cffs_testing::golden::listing;
use cffs_testing::random::Random;
use cffs_testing::setup::{DIRECTORY, FILE, recover};

const PAGE: u64 = 4096;

fn new(volume: &Volume, name: &str) -> InodeNo {
    let ino = volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &FILE).expect("made").ino;
    volume.release(ino, 1);
    ino
}

fn find(volume: &Volume, name: &str) -> InodeNo {
    let ino = volume.lookup(ROOT, name.as_bytes()).expect("found").ino;
    volume.release(ino, 1);
    ino
}

fn unlink(volume: &Volume, name: &str) {
    volume.unlink(&Caller::ROOT, ROOT, name.as_bytes()).expect("unlinked");
}

fn copy(volume: &Volume, from: (InodeNo, u64), to: (InodeNo, u64), len: u64) -> u64 {
    let mut done = 0;
    loop {
        let (source, target) = ((from.0, from.1 + done), (to.0, to.1 + done));
        match volume.copy(&Caller::ROOT, source, target, len - done).expect("copied") {
            0 => return done,
            bytes => done += bytes,
        }
    }
}

/// A new file with the contents of another.
fn copy_of(volume: &Volume, source: InodeNo, name: &str) -> InodeNo {
    let target = new(volume, name);
    let size = volume.attr(source).expect("its attributes").size;
    assert_eq!(copy(volume, (source, 0), (target, 0), u64::MAX), size);
    target
}

/// Files of these sizes, durable.
fn sources(volume: &Volume, sizes: &[usize]) -> Vec<(InodeNo, Vec<u8>)> {
    let make = |(number, size): (usize, &usize)| {
        let ino = new(volume, &format!("source {number}"));
        let contents = text(number as u64, *size);
        write(volume, ino, 0, &contents);
        (ino, contents)
    };
    let made = sizes.iter().enumerate().map(make).collect();
    volume.sync().expect("synced");
    made
}

const SIZES: [usize; 7] = [1500, 4096, 5000, 20_000, 65_536, 70_000, 3_000_000];

#[test]
fn copies_take_no_space_and_outlive_their_sources() {
    let device = device();
    let volume = open(&device);
    let sources = sources(&volume, &SIZES);
    let before = free_bytes(&volume);
    let copies: Vec<InodeNo> = (0..SIZES.len())
        .map(|number| copy_of(&volume, sources[number].0, &format!("copy {number}")))
        .collect();
    volume.sync().expect("synced");
    let taken = before - free_bytes(&volume);
    assert!(taken <= 16 << 10, "{taken} bytes for names and extents");
    for number in 0..SIZES.len() {
        unlink(&volume, &format!("source {number}"));
    }
    volume.close().expect("closed");
    is_sound(&device);
    let volume = open(&device);
    assert_eq!(listing::decoded(&device.snapshot()), listing::of(&volume).expect("listed"));
    for (copy, (_, contents)) in copies.iter().zip(&sources) {
        assert!(read(&volume, *copy) == *contents, "{} bytes", contents.len());
    }
    for number in 0..SIZES.len() {
        unlink(&volume, &format!("copy {number}"));
    }
    volume.sync().expect("synced");
    assert!(free_bytes(&volume) > before + 300_000, "the clusters are free");
    volume.close().expect("closed");
    is_sound(&device);
}

/// Nothing in a cluster changes in place: writes, holes and truncations move their file out of it.
#[test]
fn a_change_of_a_copy_or_of_its_source_leaves_the_other() {
    type Change = fn(&Volume, InodeNo, &mut Vec<u8>);
    let changes: [Change; 4] = [
        |volume, ino, expected| {
            let at = expected.len() / 2;
            write(volume, ino, at as u64, b"changed");
            expected[at..at + 7].copy_from_slice(b"changed");
        },
        |volume, ino, expected| {
            write(volume, ino, expected.len() as u64, b"appended");
            expected.extend(b"appended");
        },
        |volume, ino, expected| {
            let size = expected.len() / 3;
            let changes = SetAttr { size: Some(size as u64), ..SetAttr::default() };
            volume.set_attr(&Caller::ROOT, ino, &changes).expect("cut off");
            expected.truncate(size);
        },
        |volume, ino, expected| {
            let (from, to) = (expected.len() / 4, expected.len() / 2);
            let len = (to - from) as u64;
            let punched =
                volume.allocate(&Caller::ROOT, ino, from as u64, len, AllocateMode::PunchHole);
            punched.expect("a hole");
            expected[from..to].fill(0);
        },
    ];
    let device = device();
    let volume = open(&device);
    let sources = sources(&volume, &SIZES);
    for (number, change) in changes.iter().enumerate() {
        for (source, contents) in &sources {
            let one = copy_of(&volume, *source, &format!("one {number} of {source}"));
            volume.sync().expect("synced");
            let other = copy_of(&volume, one, &format!("other {number} of {source}"));
            let mut expected = contents.clone();
            change(&volume, one, &mut expected);
            for _ in 0..2 {
                assert!(read(&volume, one) == expected, "change {number}, {}", contents.len());
                assert!(read(&volume, other) == *contents, "change {number}, {}", contents.len());
                assert!(read(&volume, *source) == *contents);
                volume.sync().expect("synced");
            }
        }
    }
    volume.close().expect("closed");
    is_sound(&device);
}

/// Contents that are not durable yet are copied: the source may have no place on the device, or get another.
#[test]
fn a_copy_of_changed_contents_has_the_changes() {
    let device = device();
    let volume = open(&device);
    let sources = sources(&volume, &SIZES);
    for (number, (source, contents)) in sources.iter().enumerate() {
        let mut expected = contents.clone();
        let at = expected.len() - 1000;
        expected[at..at + 7].copy_from_slice(b"changed");
        write(&volume, *source, at as u64, b"changed");
        let first = copy_of(&volume, *source, &format!("first {number}"));
        volume.writer().background().write_early().expect("written");
        let second = copy_of(&volume, *source, &format!("second {number}"));
        volume.sync().expect("synced");
        for ino in [*source, first, second] {
            assert!(read(&volume, ino) == expected, "{} bytes", expected.len());
        }
    }
    volume.close().expect("closed");
    is_sound(&device);
}

#[test]
fn a_cluster_with_all_references_taken_is_copied() {
    for size in [3000, 65_536, 200_000] {
        let device = device();
        let volume = open(&device);
        let (source, contents) = sources(&volume, &[size]).remove(0);
        let copies = u64::from(REFERENCES_MAX) + 20;
        let names: Vec<String> = (0..copies).map(|number| format!("copy {number}")).collect();
        for (number, name) in names.iter().enumerate() {
            copy_of(&volume, source, name);
            if number % 50 == 0 {
                volume.sync().expect("synced");
            }
        }
        volume.close().expect("closed");
        is_sound(&device);
        let volume = open(&device);
        let before = free_bytes(&volume);
        for name in &names {
            assert!(read(&volume, find(&volume, name)) == contents);
            unlink(&volume, name);
        }
        assert!(read(&volume, source) == contents);
        volume.sync().expect("synced");
        // More than 20 copies have contents of their own.
        assert!(free_bytes(&volume) > before + 20 * 500, "{before}");
        volume.close().expect("closed");
        is_sound(&device);
    }
}

/// A change in the middle of an extent splits it in two, which takes a reference, and the cluster can have no
/// more.
#[test]
fn files_of_a_cluster_with_all_references_taken_can_change() {
    let device = device();
    let volume = open(&device);
    let (source, contents) = sources(&volume, &[190_000]).remove(0);
    let copies: Vec<InodeNo> = (1..u64::from(REFERENCES_MAX))
        .map(|number| copy_of(&volume, source, &format!("copy {number}")))
        .collect();
    volume.sync().expect("synced");
    let mut expected = vec![contents.clone(); copies.len()];
    let mut random = Random(7);
    for round in 0..6 {
        for (ino, expected) in copies.iter().zip(&mut expected) {
            let pages = expected.len() as u64 / PAGE;
            let at = random.below(pages) * PAGE;
            if round == 0 && ino.0 % 5 == 0 {
                // Of the last two pages, one is written early.
                let bytes = [7; PAGE as usize + 100];
                write(&volume, *ino, (pages - 1) * PAGE, &bytes);
                expected[(pages as usize - 1) * PAGE as usize..][..bytes.len()].fill(7);
                volume.writer().background().write_early().expect("written");
            } else if (ino.0 + round) % 3 == 0 {
                let mode = AllocateMode::PunchHole;
                volume.allocate(&Caller::ROOT, *ino, at, PAGE, mode).expect("a hole");
                let end = expected.len().min((at + PAGE) as usize);
                expected[at as usize..end].fill(0);
            } else {
                write(&volume, *ino, at + 100, b"a change");
                let at = at as usize + 100;
                expected.resize(expected.len().max(at + 8), 0);
                expected[at..at + 8].copy_from_slice(b"a change");
            }
        }
        if round % 2 == 1 {
            volume.sync().expect("synced");
        }
    }
    for (ino, expected) in copies.iter().zip(&expected) {
        assert!(read(&volume, *ino) == *expected);
    }
    assert!(read(&volume, source) == contents);
    volume.close().expect("closed");
    is_sound(&device);
}

/// Files that are changed and copied at random have the contents of byte vectors treated the same way.
#[test]
fn random_copies_have_the_right_contents() {
    for seed in 0..12 {
        let device = device();
        let volume = open(&device);
        let mut random = Random(seed);
        let mut files: Vec<(InodeNo, Vec<u8>)> =
            (0..6).map(|number| (new(&volume, &format!("file {number}")), Vec::new())).collect();
        for step in 0..300 {
            let pick = random.below(6) as usize;
            let aligned = |random: &mut Random, max| random.below(max / PAGE + 1) * PAGE;
            let (ino, _) = files[pick];
            match random.below(10) {
                0..2 => {
                    let at = aligned(&mut random, 150_000) + random.below(2) * 77;
                    let bytes = text(seed * 1000 + step, random.below(100_000) as usize + 1);
                    write(&volume, ino, at, &bytes);
                    let contents = &mut files[pick].1;
                    contents.resize(contents.len().max(at as usize + bytes.len()), 0);
                    contents[at as usize..][..bytes.len()].copy_from_slice(&bytes);
                }
                2 => {
                    let size = random.below(300_000);
                    let changes = SetAttr { size: Some(size), ..SetAttr::default() };
                    volume.set_attr(&Caller::ROOT, ino, &changes).expect("resized");
                    files[pick].1.resize(size as usize, 0);
                }
                3 => {
                    let (at, len) = (aligned(&mut random, 200_000), aligned(&mut random, 60_000));
                    let len = len + PAGE;
                    let punch = AllocateMode::PunchHole;
                    volume.allocate(&Caller::ROOT, ino, at, len, punch).expect("a hole");
                    let contents = &mut files[pick].1;
                    let end = contents.len().min((at + len) as usize);
                    contents[end.min(at as usize)..end].fill(0);
                }
                4..8 => {
                    let to = random.below(6) as usize;
                    let whole = random.below(2) == 0;
                    let from = if whole { 0 } else { aligned(&mut random, 100_000) };
                    let at = if whole { 0 } else { aligned(&mut random, 100_000) };
                    let len = if whole { 1 << 20 } else { aligned(&mut random, 200_000) + 7 };
                    copy_in_both(&volume, &mut files, (pick, from), (to, at), len);
                }
                8 => volume.sync().expect("synced"),
                _ => drop(volume.writer().background().write_early().expect("written")),
            }
            let (ino, contents) = &files[pick];
            assert!(read(&volume, *ino) == *contents, "seed {seed}, step {step}, {pick}");
        }
        for (ino, contents) in &files {
            assert!(read(&volume, *ino) == *contents, "seed {seed}");
        }
        volume.close().expect("closed");
        is_sound(&device);
        let volume = open(&device);
        for (ino, contents) in &files {
            assert!(read(&volume, *ino) == *contents, "seed {seed}, after a remount");
        }
        volume.close().expect("closed");
    }
}

fn copy_in_both(
    volume: &Volume,
    files: &mut [(InodeNo, Vec<u8>)],
    from: (usize, u64),
    to: (usize, u64),
    len: u64,
) {
    let size = files[from.0].1.len() as u64;
    let len = len.min(size.saturating_sub(from.1));
    if from.0 == to.0 && from.1.abs_diff(to.1) < len {
        return;
    }
    let (source, target) = (files[from.0].0, files[to.0].0);
    assert_eq!(copy(volume, (source, from.1), (target, to.1), len), len);
    let bytes = files[from.0].1[(from.1.min(size)) as usize..][..len as usize].to_vec();
    if len > 0 {
        let contents = &mut files[to.0].1;
        contents.resize(contents.len().max((to.1 + len) as usize), 0);
        contents[to.1 as usize..][..len as usize].copy_from_slice(&bytes);
    }
    let (ino, contents) = &files[to.0];
    assert!(read(volume, *ino) == *contents, "copied {from:?} to {to:?}, {len} bytes");
}

/// Contents that several files share are one part of the new cluster.
#[test]
fn compaction_keeps_copies_shared() {
    let device = device_of(64 << 20);
    let volume = open(&device);
    let sizes: Vec<usize> = (0..400).map(|number| 1500 + number * 37 % 5000).collect();
    let sources = sources(&volume, &sizes);
    let survives = |number: &usize| number % 8 == 5;
    let mut kept = Vec::new();
    for number in (0..sizes.len()).filter(survives) {
        let (ino, contents) = &sources[number];
        kept.push((*ino, contents));
        for copy in 0..3 {
            kept.push((copy_of(&volume, *ino, &format!("copy {copy} of {number}")), contents));
        }
    }
    for number in (0..sizes.len()).filter(|number| !survives(number)) {
        unlink(&volume, &format!("source {number}"));
    }
    volume.sync().expect("synced");
    let before = free_bytes(&volume);
    let watch = &mut |_: &RegroupProgress| ControlFlow::Continue(());
    let done = volume.regroup(Scattered::Tree(ROOT), &RegroupOptions::default(), watch);
    let freed = done.expect("regrouped").freed_bytes;
    assert_eq!(free_bytes(&volume), before + freed);
    // Copies with contents of their own would take more than was dead.
    let stored: usize = kept.iter().map(|(_, contents)| contents.len()).sum();
    assert!(freed > 200 << 10, "{freed} bytes are freed; the copies have {stored}");
    for (ino, contents) in &kept {
        assert!(read(&volume, *ino) == **contents);
    }
    volume.close().expect("closed");
    is_sound(&device);
}

#[test]
fn synced_copies_survive_a_crash() {
    let device = device();
    let volume = open(&device);
    let sources = sources(&volume, &SIZES);
    volume.writer().checkpoints().mark_clean().expect("a checkpoint");
    for (number, (source, _)) in sources.iter().enumerate() {
        let copy = copy_of(&volume, *source, &format!("copy {number}"));
        volume.sync_file(copy, false).expect("durable");
        unlink(&volume, &format!("source {number}"));
    }
    volume.sync().expect("synced");
    let crashed = Arc::new(MemoryDevice::from_image(device.snapshot()));
    drop(volume);
    let volume = recover(crashed.clone(), OpenOptions::default()).expect("recovered");
    for (number, (_, contents)) in sources.iter().enumerate() {
        assert!(read(&volume, find(&volume, &format!("copy {number}"))) == *contents);
    }
    volume.close().expect("closed");
    is_sound(&crashed);
}

/// Makes files in several directories, not in the order of their names.
fn tree(volume: Volume) -> Files {
    let files = Files::new(Arc::new(volume));
    for dir in ["/tree", "/tree/z", "/tree/a", "/tree/m"] {
        files.make_dir(dir).expect("made");
        for name in ["9", "1", "5", "tiny"] {
            let len = if name == "tiny" { 30 } else { 9000 };
            files.write(format!("{dir}/{name}"), &text(7, len)).expect("written");
        }
    }
    files
}

/// The names below a directory, in their order, with their inodes.
fn names(files: &Files, path: &str) -> Vec<(String, InodeNo)> {
    let below = |item: DirItem| {
        let path = format!("{path}/{}", String::from_utf8(item.name).expect("text"));
        let mut all = vec![(path.clone(), item.attr.ino)];
        if item.attr.file_type == FileType::Directory {
            all.extend(names(files, &path));
        }
        all
    };
    files.read_dir(path).expect("listed").into_iter().flat_map(below).collect()
}

#[test]
fn a_clone_is_made_in_the_order_of_its_source_and_shares_files_that_were_changed() {
    let device = device();
    let files = tree(open(&device));
    let cloned = files.clone_tree("/tree", "/copy").expect("cloned");
    assert_eq!((cloned.directories, cloned.files, cloned.bytes), (4, 16, 4 * 27_030));
    files.volume().sync().expect("synced");
    // Those of the source, in whole fragments.
    assert_eq!(files.volume().stats().compressed_bytes, 12 * 9 * 1024);
    let (source, copy) = (names(&files, "/tree"), names(&files, "/copy"));
    let paths = |all: &[(String, InodeNo)], from: &str| -> Vec<String> {
        all.iter().map(|(path, _)| path.trim_start_matches(from).to_owned()).collect()
    };
    assert_eq!(paths(&copy, "/copy"), paths(&source, "/tree"));
    for (path, _) in copy.iter().filter(|(path, _)| !path.ends_with(['a', 'm', 'z'])) {
        let len = if path.ends_with("tiny") { 30 } else { 9000 };
        assert!(files.read(path).expect("read") == text(7, len), "{path}");
    }
    let refused = files.clone_tree("/tree", "/tree/a/copy").expect_err("into itself");
    assert!(refused.to_string().contains("into itself"), "{refused}");
    let refused = files.clone_tree("/tree", "/copy").expect_err("it exists");
    assert_eq!(refused.to_string(), "file exists");
    files.close().expect("closed");
    is_sound(&device);
}

#[test]
fn a_clone_that_is_ended_leaves_what_it_has_made() {
    let device = device();
    let files = tree(open(&device));
    let (source, root) = (files.node("/tree").expect("found"), files.node("/").expect("found"));
    let mut entries = 0;
    let mut watch = |step: CloneStep<'_>, _: &Cloned| {
        entries += u32::from(matches!(step, CloneStep::Entry(..)));
        if entries == 10 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let ended = clone_tree(&Caller::ROOT, &|_, _, _| true, &source, &root, b"copy", &mut watch);
    assert!(matches!(ended, Err(CloneError::Ended)), "{ended:?}");
    let made = names(&files, "/copy");
    assert_eq!(made.len(), 9, "{made:?}");
    let may = |_: &Attr, _: Option<&[u8]>, need: Need| need != Need::Read;
    let watch: &mut CloneWatch<'_> = &mut |_, _| ControlFlow::Continue(());
    let failed = clone_tree(&Caller::ROOT, &may, &source, &root, b"other", watch);
    assert_eq!(failed.expect_err("refused").to_string(), "9: permission denied");
    drop((source, root));
    files.close().expect("closed");
    is_sound(&device);
}

/// Clones `/tree` to `/copy` for a caller that may use what its owner may read. Calls `change` with each new
/// entry.
fn clone_while(files: &Files, mut change: impl FnMut(&[u8])) -> Result<Cloned, CloneError> {
    let (source, root) = (files.node("/tree").expect("found"), files.node("/").expect("found"));
    let may = |attr: &Attr, _: Option<&[u8]>, need: Need| {
        need == Need::Change || attr.permissions & 0o400 != 0
    };
    let mut watch = |step: CloneStep<'_>, _: &Cloned| {
        if let CloneStep::Entry(_, name, _) = step {
            change(name);
        }
        ControlFlow::Continue(())
    };
    clone_tree(&Caller::ROOT, &may, &source, &root, b"copy", &mut watch)
}

/// Regression: a file whose group the user is not in got the user's group, also in a set-group-ID directory.
#[test]
fn a_clone_by_a_user_has_the_groups_of_new_files_or_of_its_source() {
    let device = device();
    let files = tree(open(&device));
    let set = |path: &str, permissions: u32, gid: u32| {
        let (permissions, gid) = (Some(permissions), Some(gid));
        files.set_attr(path, &SetAttr { permissions, gid, ..SetAttr::default() }).expect("set");
    };
    for dir in ["/plain", "/shared"] {
        files.make_dir(dir).expect("made");
    }
    set("/plain", 0o777, 300);
    set("/shared", 0o2777, 300);
    set("/tree/1", 0o2755, 50);
    set("/tree/5", 0o2755, 60);
    let user = Caller { uid: 1000, gid: 1000, groups: Groups::Listed(&[50]), ..Caller::ROOT };
    let source = files.node("/tree").expect("found");
    for (dir, group) in [("/plain", 1000), ("/shared", 300)] {
        let target = files.node(dir).expect("found");
        let watch: &mut CloneWatch<'_> = &mut |_, _| ControlFlow::Continue(());
        clone_tree(&user, &|_, _, _| true, &source, &target, b"copy", watch).expect("cloned");
        let expected =
            [("", 0o755, group), ("/a", 0o755, group), ("/1", 0o2755, 50), ("/5", 0o755, group)];
        for (name, permissions, gid) in expected {
            let attr = files.stat(format!("{dir}/copy{name}")).expect("there");
            assert_eq!((attr.permissions, attr.gid), (permissions, gid), "{dir}/copy{name}");
        }
    }
    drop(source);
    files.close().expect("closed");
    is_sound(&device);
}

/// Regression: the attributes that were listed decided, and files were read that had become private.
#[test]
fn a_clone_reads_no_file_and_lists_no_directory_that_has_become_private() {
    // The file is the next after the entry at which it changes. The directory has been made by then, and is
    // listed after all entries of the tree were made.
    for (private, change_at) in [("1", b"9"), ("a", b"m")] {
        let device = device();
        let files = tree(open(&device));
        let ino = files.stat(format!("/tree/{private}")).expect("found").ino;
        let cloned = clone_while(&files, |name| {
            if name == change_at {
                let changes = SetAttr { permissions: Some(0o077), ..SetAttr::default() };
                files.volume().set_attr(&Caller::ROOT, ino, &changes).expect("changed");
            }
        });
        let said = cloned.expect_err("refused").to_string();
        assert_eq!(said, format!("{private}: permission denied"));
        let copied: Vec<_> = names(&files, "/copy").into_iter().map(|(path, _)| path).collect();
        assert_eq!(copied.contains(&"/copy/a".to_owned()), private == "a", "{copied:?}");
        files.close().expect("closed");
        is_sound(&device);
    }
}

/// Regression: the directories that waited to be filled took memory quadratic in the depth.
#[test]
fn a_clone_ends_at_a_path_that_is_too_long() {
    let device = device();
    let files = tree(open(&device));
    let volume = files.volume();
    let name = [b'd'; 200];
    let mut dir = find(volume, "tree");
    // 20 names and the separators are 4019 bytes.
    for depth in 1..=21 {
        let made = volume.make(&Caller::ROOT, dir, &name, &DIRECTORY).expect("made").ino;
        volume.release(made, 1);
        dir = made;
        if depth == 20 {
            let cloned = files.clone_tree("/tree", "/first").expect("cloned");
            assert_eq!(cloned.directories, 24);
        }
    }
    let failed = files.clone_tree("/tree", "/second").expect_err("too long").to_string();
    assert!(failed.ends_with("file name too long"), "{failed}");
    assert!(failed.len() > 4000, "{failed}");
    files.close().expect("closed");
    is_sound(&device);
}
