//! A nearly full volume whose free space is in pieces smaller than a block: accepted changes reach the
//! device, and calls refuse changes for which there is no space.

use std::sync::Arc;

use cffs::device::MemoryDevice;
use cffs::error::Error;
use cffs::format::inode::FileType;
use cffs::fsck::{self, CheckOptions};
use cffs::mkfs::MkfsOptions;
use cffs::units::InodeNo;
use cffs::vfs::{AllocateMode, Caller, NewKind, RenameMode, SetAttr, Volume, XattrMode};

use cffs_testing::golden::sample;
use cffs_testing::setup;

const FRAGMENT: usize = 1024;

/// A volume in which only reserved blocks are free: every other fragment is free.
fn in_pieces(options: &MkfsOptions) -> (Arc<MemoryDevice>, Volume) {
    let empty = sample::empty_of(options, 8 << 20).unwrap();
    let (device, volume) = sample::open(&empty, false).unwrap();
    let dir = sample::make(&volume, InodeNo::ROOT, b"small", NewKind::Directory).unwrap();
    let name = |number: u32| format!("{number}").into_bytes();
    let mut made = 0;
    loop {
        let file = sample::make(&volume, dir, &name(made), NewKind::Regular);
        let written = file.and_then(|file| volume.write(&Caller::ROOT, file, 0, &[7; FRAGMENT]));
        match written {
            Ok(_) => made += 1,
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    volume.sync().unwrap();
    (0..made)
        .step_by(2)
        .for_each(|number| volume.unlink(&Caller::ROOT, dir, &name(number)).unwrap());
    volume.sync().unwrap();
    (device, volume)
}

fn closes_clean(device: &MemoryDevice, volume: &Volume) {
    volume.sync().unwrap();
    volume.close().unwrap();
    let options = CheckOptions { force: true, contents: true, ..CheckOptions::default() };
    let report = fsck::check(device, &options, &()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

/// Each file has more extents than fit into its inode, and so needs a block for their list.
#[test]
fn files_in_many_pieces_find_room_for_their_extents() {
    for (_, options) in sample::kinds() {
        let (device, volume) = in_pieces(&options);
        let mut written = Vec::new();
        for number in 0..4000u32 {
            let name = format!("pieces {number}").into_bytes();
            let contents = vec![number as u8; 9 * FRAGMENT];
            let file = sample::make(&volume, InodeNo::ROOT, &name, NewKind::Regular);
            match file.and_then(|file| volume.write(&Caller::ROOT, file, 0, &contents)) {
                Ok(len) if len == contents.len() => written.push((name, contents)),
                Ok(_) | Err(Error::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(!written.is_empty());
        volume.sync().unwrap();
        for (name, contents) in &written {
            let ino = volume.lookup(InodeNo::ROOT, name).unwrap().ino;
            let mut read = vec![0; contents.len()];
            volume.read(ino, 0, &mut read).unwrap();
            assert!(read == *contents, "{}", String::from_utf8_lossy(name));
            volume.release(ino, 1);
        }
        closes_clean(&device, &volume);
    }
}

/// A directory takes a whole block. No more blocks are reserved than exist.
#[test]
fn directories_are_made_as_long_as_there_are_blocks() {
    for (_, options) in sample::kinds() {
        let (device, volume) = in_pieces(&options);
        for number in 0..4000u32 {
            let name = format!("directory {number}").into_bytes();
            match sample::make(&volume, InodeNo::ROOT, &name, NewKind::Directory) {
                Ok(_) => {}
                Err(Error::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
        }
        closes_clean(&device, &volume);
    }
}

/// It is overwritten in place, since there is no other space.
#[test]
fn a_small_file_on_a_full_volume_can_be_overwritten() {
    for (_, options) in sample::kinds() {
        let empty = sample::empty_of(&options, 8 << 20).unwrap();
        let (device, volume) = sample::open(&empty, false).unwrap();
        let small = sample::make(&volume, InodeNo::ROOT, b"small", NewKind::Regular).unwrap();
        volume.write(&Caller::ROOT, small, 0, &[1; 9000]).unwrap();
        let large = sample::make(&volume, InodeNo::ROOT, b"large", NewKind::Regular).unwrap();
        for piece in [64 * FRAGMENT, FRAGMENT] {
            let mut size = volume.attr(large).unwrap().size;
            loop {
                match volume.write(&Caller::ROOT, large, size, &vec![3; piece]) {
                    Ok(len) => size += len as u64,
                    Err(Error::NoSpace) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        for number in 2..20 {
            assert_eq!(volume.write(&Caller::ROOT, small, 0, &[number; 9000]).unwrap(), 9000);
            volume.sync().unwrap();
        }
        closes_clean(&device, &volume);
        let (_, volume) = sample::open(&device.snapshot(), true).unwrap();
        let mut bytes = vec![0; 9000];
        volume.read(small, 0, &mut bytes).unwrap();
        assert_eq!(bytes, [19; 9000]);
    }
}

/// The change of a file's end before it grows.
#[derive(Clone, Copy, Debug)]
enum End {
    /// Unchanged.
    Kept,
    /// Overwritten in place.
    Overwritten,
    /// Overwritten, and then truncated in the middle of a block.
    CutOff,
}

/// The last block of a growing file is relocated, since other files follow it: without space for that, the
/// write fails, not the epoch.
#[test]
fn the_last_block_of_a_file_on_a_full_volume_grows_only_if_there_is_room() {
    const FILES: u64 = 40;
    const BLOCK: u64 = 4 * FRAGMENT as u64;
    for end in [End::Kept, End::Overwritten, End::CutOff] {
        let (whole, part) = (17 * BLOCK, 2 * FRAGMENT as u64);
        let size = if matches!(end, End::CutOff) { whole } else { whole + part };
        let empty = sample::empty_of(&MkfsOptions::default(), 16 << 20).unwrap();
        let (device, volume) = sample::open(&empty, false).unwrap();
        let make = |number| {
            let name = format!("{number}").into_bytes();
            let file = sample::make(&volume, InodeNo::ROOT, &name, NewKind::Regular).unwrap();
            volume.write(&Caller::ROOT, file, 0, &vec![number as u8; size as usize]).unwrap();
            file
        };
        let files: Vec<InodeNo> = (0..FILES).map(make).collect();
        let large = sample::make(&volume, InodeNo::ROOT, b"large", NewKind::Regular).unwrap();
        volume.sync().unwrap();
        let mut at = 0;
        while let Ok(len) = volume.write(&Caller::ROOT, large, at, &[3; FRAGMENT]) {
            at += len as u64;
        }
        volume.sync().unwrap();
        let mut refused = 0;
        for file in &files {
            if !matches!(end, End::Kept) {
                assert_eq!(volume.write(&Caller::ROOT, *file, size - 9, &[9; 9]).unwrap(), 9);
            }
            let mut from = size;
            if matches!(end, End::CutOff) {
                from = whole - BLOCK + part;
                let cut = SetAttr { size: Some(from), ..SetAttr::default() };
                volume.set_attr(&Caller::ROOT, *file, &cut).unwrap();
            }
            match volume.write(&Caller::ROOT, *file, from, &[8; FRAGMENT]) {
                Ok(len) => assert_eq!(len, FRAGMENT),
                Err(Error::NoSpace) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        closes_clean(&device, &volume);
        assert!(refused > 0, "{end:?}: {refused} were refused");
    }
}

/// A small file with a hole in its middle is overwritten from beginning to end: a refused part keeps the old
/// contents, whatever space there was for the rest.
#[test]
fn a_refused_part_of_an_overwrite_leaves_the_old_contents() {
    const BLOCK: usize = 4 * FRAGMENT;
    let old = [[1; BLOCK], [0; BLOCK], [1; BLOCK], [1; BLOCK]].concat();
    let mut refused = 0;
    for room in 0..24 {
        let empty = sample::empty_of(&MkfsOptions::default(), 8 << 20).unwrap();
        let (device, volume) = sample::open(&empty, false).unwrap();
        let small = sample::make(&volume, InodeNo::ROOT, b"small", NewKind::Regular).unwrap();
        volume.write(&Caller::ROOT, small, 0, &old[..BLOCK]).unwrap();
        volume.write(&Caller::ROOT, small, 2 * BLOCK as u64, &old[2 * BLOCK..]).unwrap();
        let large = sample::make(&volume, InodeNo::ROOT, b"large", NewKind::Regular).unwrap();
        let mut size = 0;
        while let Ok(len) = volume.write(&Caller::ROOT, large, size, &[3; FRAGMENT]) {
            size += len as u64;
        }
        let size = Some(size - room * FRAGMENT as u64);
        volume.set_attr(&Caller::ROOT, large, &SetAttr { size, ..SetAttr::default() }).unwrap();
        volume.close().unwrap();
        let (device, volume) = sample::open(&device.snapshot(), false).unwrap();
        let len = volume.write(&Caller::ROOT, small, 0, &vec![2; old.len()]).unwrap_or(0);
        refused += usize::from(len < old.len());
        closes_clean(&device, &volume);
        let (_, volume) = sample::open(&device.snapshot(), true).unwrap();
        let mut bytes = vec![0; old.len()];
        volume.read(small, 0, &mut bytes).unwrap();
        for (index, (block, old)) in bytes.chunks(BLOCK).zip(old.chunks(BLOCK)).enumerate() {
            let expected = if index * BLOCK < len { &[2; BLOCK][..] } else { old };
            assert!(block == expected, "room {room}: block {index} of {len} bytes: {}", block[0]);
        }
    }
    assert!(0 < refused && refused < 24, "{refused}");
}

/// A file with as many extents as possible, then with holes, and partly preallocated.
#[test]
fn a_file_of_thousands_of_pieces_can_be_changed_on_a_full_volume() {
    for (_, options) in sample::kinds() {
        let (device, volume) = in_pieces(&options);
        let file = sample::make(&volume, InodeNo::ROOT, b"file", NewKind::Regular).unwrap();
        let mut size = 0;
        loop {
            match volume.write(&Caller::ROOT, file, size, &[1; 64 * FRAGMENT]) {
                Ok(len) => size += len as u64,
                Err(Error::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
        }
        volume.sync().unwrap();
        for at in (0..size).step_by(5 * 4096) {
            match volume.allocate(&Caller::ROOT, file, at, 4096, AllocateMode::PunchHole) {
                Ok(()) | Err(Error::NoSpace) => {}
                Err(error) => panic!("{error}"),
            }
        }
        volume.sync().unwrap();
        for at in (0..size).step_by(10 * 4096) {
            match volume.allocate(&Caller::ROOT, file, at, 4096, AllocateMode::Reserve) {
                Ok(()) => {
                    volume.write(&Caller::ROOT, file, at, &[2; 100]).unwrap();
                }
                Err(Error::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
        }
        closes_clean(&device, &volume);
    }
}

/// The inode of a file with two names is in the external table, which grows while blocks are free.
#[test]
fn files_get_further_names_as_long_as_there_are_blocks() {
    for (_, options) in sample::kinds() {
        let (device, volume) = in_pieces(&options);
        let dir = volume.lookup(InodeNo::ROOT, b"small").unwrap().ino;
        let mut refused = 0;
        for number in (1..).step_by(2) {
            let Ok(file) = volume.lookup(dir, format!("{number}").as_bytes()) else { break };
            // Another change to write, since that might fulfil the reservation for the name.
            let mode = SetAttr { permissions: Some(0o600), ..SetAttr::default() };
            volume.set_attr(&Caller::ROOT, InodeNo::ROOT, &mode).unwrap();
            match volume.link(file.ino, dir, format!("{}", number - 1).as_bytes()) {
                Ok(_) => assert_eq!(volume.attr(file.ino).unwrap().nlink, 2),
                Err(Error::NoSpace) => {
                    assert_eq!(volume.attr(file.ino).unwrap().nlink, 1);
                    refused += 1;
                }
                Err(error) => panic!("{number}: {error}"),
            }
        }
        assert!(refused > 0 || !options.embed, "the external table found room for all inodes");
        closes_clean(&device, &volume);
    }
}

/// A whiteout takes as much as a new file: there is none without space, and then no rename either.
#[test]
fn a_rename_on_a_full_volume_leaves_a_whiteout_or_changes_nothing() {
    const NAME_BYTES: usize = 250;
    let root = InodeNo::ROOT;
    let name = |kind: &str, number: u32| format!("{kind}{number:0>NAME_BYTES$}").into_bytes();
    for (_, options) in sample::kinds() {
        let (device, volume) = in_pieces(&options);
        let fits =
            |number: &u32| match sample::make(&volume, root, &name("f", *number), NewKind::Regular)
            {
                Err(Error::NoSpace) => false,
                made => made.is_ok(),
            };
        let made = (0..20_000).take_while(fits).count() as u32;
        let (mut refused, mut renamed) = (0, 0);
        for number in 0..made {
            // A longer name needs a place of its own.
            let (old, new) = (name("f", number), name("to", number));
            let mode = RenameMode::Whiteout { no_replace: true };
            match volume.rename(&Caller::ROOT, root, &old, root, &new, mode) {
                Ok(_) => renamed += 1,
                Err(Error::NoSpace) => refused += 1,
                Err(error) => panic!("{error}"),
            }
            let file_type = |name: &[u8]| {
                let attr = volume.lookup(root, name).ok()?;
                volume.release(attr.ino, 1);
                Some(attr.file_type)
            };
            let found = (file_type(&old), file_type(&new));
            let whole = (Some(FileType::CharDevice), Some(FileType::Regular));
            assert!(found == whole || found == (Some(FileType::Regular), None), "{found:?}");
        }
        assert!(refused > 0, "{renamed} of {made} were renamed");
        closes_clean(&device, &volume);
    }
}

/// The kernel forgets a removed file by a message without an answer. An operation that finds no space waits
/// for that, but not for files that a program keeps using.
#[test]
fn space_of_a_file_that_was_just_removed_is_waited_for() {
    let (_, options) = sample::kinds().swap_remove(0);
    let empty = sample::empty_of(&options, 8 << 20).unwrap();
    let (device, volume) = sample::open(&empty, false).unwrap();
    let make = |name: &[u8]| sample::make(&volume, InodeNo::ROOT, name, NewKind::Regular).unwrap();
    let (used, large, other) = (make(b"used"), make(b"large"), make(b"other"));
    let block = vec![7; 64 << 10];
    volume.write(&Caller::ROOT, used, 0, &block).unwrap();
    let append =
        |at: u64| volume.write(&Caller::ROOT, large, at * block.len() as u64, &block).err();
    assert!(matches!((0..).find_map(append), Some(Error::NoSpace)));
    volume.sync().unwrap();
    let remove = |name: &[u8]| {
        volume.lookup(InodeNo::ROOT, name).unwrap();
        volume.unlink(&Caller::ROOT, InodeNo::ROOT, name).unwrap();
    };
    remove(b"used");
    assert!(matches!(volume.write(&Caller::ROOT, other, 0, &block), Err(Error::NoSpace)));

    remove(b"large");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            volume.release(large, 1);
        });
        assert_eq!(volume.write(&Caller::ROOT, other, 0, &block).unwrap(), block.len());
    });
    volume.release(used, 1);
    closes_clean(&device, &volume);
}

/// Regression: a file that was truncated in the middle of a block, emptied, and enlarged kept a reservation
/// for a page that no longer existed.
#[test]
fn a_file_that_is_emptied_after_a_cut_has_no_promises_left() {
    // A file longer than a segment is overwritten in place.
    let options = MkfsOptions { segment_bytes: 4096, ..MkfsOptions::default() };
    let (_, volume) = sample::open(&sample::empty_of(&options, 8 << 20).unwrap(), false).unwrap();
    let ino = setup::make_with(&volume, "file", &[7; 65_536]);
    volume.sync().unwrap();
    let free = volume.stat_fs().free_fragments;
    for size in [1, 0, 1] {
        volume
            .set_attr(&Caller::ROOT, ino, &SetAttr { size: Some(size), ..SetAttr::default() })
            .unwrap();
    }
    volume.sync().unwrap();
    assert_eq!(volume.stat_fs().free_fragments, free + 64, "all of the file's space");
    volume.close().unwrap();
}

/// The rest of a list of attributes is written to another block, for which blocks are set aside.
#[test]
fn attributes_are_removed_from_a_full_volume() {
    for (_, options) in sample::kinds() {
        let empty = sample::empty_of(&options, 8 << 20).unwrap();
        let (device, volume) = sample::open(&empty, false).unwrap();
        let set = |file, name: &[u8]| {
            volume.set_xattr(&Caller::ROOT, file, name, &[7; 900], XattrMode::Any)
        };
        let mut files = Vec::new();
        loop {
            let name = format!("{}", files.len()).into_bytes();
            let file = sample::make(&volume, InodeNo::ROOT, &name, NewKind::Regular);
            let made = file.and_then(|file| {
                set(file, b"user.first")?;
                set(file, b"user.second").map(|()| file)
            });
            match made {
                Ok(file) => files.push(file),
                Err(Error::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(files.len() > 100, "the volume is full");
        volume.sync().unwrap();
        for file in &files {
            volume.remove_xattr(*file, b"user.first").expect("removed");
        }
        let names = volume.xattr_names(files[0]).unwrap();
        assert_eq!(names, [b"user.second"]);
        closes_clean(&device, &volume);
    }
}
