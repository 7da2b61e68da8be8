//! Tests of the facade: each makes a volume in memory, changes it, and looks at it again after it
//! was closed and opened.

use std::sync::Arc;

use super::*;
use crate::clock::TestClock;
use crate::device::MemoryDevice;
use crate::format::inode::FileType;
use crate::fsck::{self, CheckOptions, Repair};
use crate::mkfs::{self, MkfsOptions};

const ROOT: InodeNo = InodeNo::ROOT;

fn new_file(kind: NewKind<'_>) -> NewFile<'_> {
    NewFile { kind, permissions: 0o644, uid: 0, gid: 0, times: None }
}

fn device(options: &MkfsOptions) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    mkfs::make(&*device, options).expect("mkfs");
    device
}

fn open(device: &Arc<MemoryDevice>) -> Volume {
    let options = OpenOptions { cache_bytes: 1 << 20, ..OpenOptions::default() };
    Volume::open(device.clone(), Arc::new(TestClock::default()), options).expect("open")
}

/// Every combination of the switches that mkfs has.
fn variants() -> Vec<MkfsOptions> {
    use crate::format::superblock::Policy;
    let mut variants = Vec::new();
    for (embed, inline) in [(true, true), (true, false), (false, true), (false, false)] {
        for policy in [Policy::Directory, Policy::None, Policy::Scattered] {
            for sector_bytes in [512, 4096] {
                let sector_bytes = Some(sector_bytes);
                let default = MkfsOptions::default();
                variants.push(MkfsOptions { embed, inline, policy, sector_bytes, ..default });
            }
        }
    }
    // The key of a file only affects its placement.
    for policy in [Policy::Owner, Policy::Time, Policy::Process, Policy::Access, Policy::Hint] {
        variants.push(MkfsOptions { policy, ..MkfsOptions::default() });
    }
    variants
}

fn read_all(volume: &Volume, ino: InodeNo) -> Vec<u8> {
    let size = volume.attr(ino).expect("attr").size as usize;
    let mut bytes = vec![0; size];
    assert_eq!(volume.read(ino, 0, &mut bytes).expect("read"), size);
    bytes
}

fn contents(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(seed * 2 + 1) >> 3) as u8).collect()
}

fn names(volume: &Volume, dir: InodeNo) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    volume
        .read_dir(dir, 0, false, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })
        .expect("read_dir");
    names
}

/// A file that lost its last name in use, after a rename that left a linktag, still had the tag
/// when it got another name, and the device could have it in two places.
#[test]
fn a_file_without_a_name_has_no_tags_and_waits_for_its_epoch_to_get_one_again() {
    let volume = open(&device(&MkfsOptions::default()));
    let make = |name: &[u8]| {
        volume.make(&Caller::ROOT, ROOT, name, &new_file(NewKind::Regular)).unwrap().ino
    };
    let tags = |ino| volume.inodes().peek(ino).unwrap().state.read().motion.tags.len();
    let forced = || volume.stats().epochs_forced;
    let (new, _) = (make(b"new"), make(b"replaced"));
    volume.rename(&Caller::ROOT, ROOT, b"new", ROOT, b"replaced", RenameMode::Replace).unwrap();
    assert!(tags(new) > 0, "the rename needs none");
    volume.unlink(&Caller::ROOT, ROOT, b"replaced").unwrap();
    assert_eq!(tags(new), 0);
    volume.link(new, ROOT, b"again").unwrap();
    assert_eq!(forced(), 0, "the device does not have it");

    volume.sync().unwrap();
    volume.unlink(&Caller::ROOT, ROOT, b"again").unwrap();
    volume.link(new, ROOT, b"and again").unwrap();
    assert_eq!(forced(), 1, "the device has it under the other name");

    volume.sync().unwrap();
    volume.unlink(&Caller::ROOT, ROOT, b"and again").unwrap();
    volume.sync().unwrap();
    volume.link(new, ROOT, b"last").unwrap();
    assert_eq!(forced(), 1, "the device has it no more");
    assert_eq!(volume.inodes().peek(new).unwrap().state.read().durable, None);
    volume.close().unwrap();
}

#[test]
fn files_of_all_sizes_survive_reopening() {
    for options in variants() {
        let device = device(&options);
        let volume = open(&device);
        let sizes = [0, 1, 100, 511, 512, 513, 1024, 4095, 4096, 4097, 65_536, 65_537, 300_000];
        for (index, size) in sizes.into_iter().enumerate() {
            let name = format!("file{size}");
            let ino = volume
                .make(&Caller::ROOT, ROOT, name.as_bytes(), &new_file(NewKind::Regular))
                .unwrap()
                .ino;
            let bytes = contents(index as u64, size);
            assert_eq!(volume.write(&Caller::ROOT, ino, 0, &bytes).unwrap(), size);
            assert_eq!(read_all(&volume, ino), bytes, "before the epoch");
            if index % 3 == 0 {
                volume.sync().unwrap();
                assert_eq!(read_all(&volume, ino), bytes, "after the epoch");
            }
        }
        volume.close().unwrap();
        let volume = open(&device);
        for (index, size) in sizes.into_iter().enumerate() {
            let name = format!("file{size}");
            let attr = volume.lookup(ROOT, name.as_bytes()).unwrap();
            assert_eq!(attr.size, size as u64);
            assert_eq!(read_all(&volume, attr.ino), contents(index as u64, size), "{options:?}");
        }
        assert_eq!(names(&volume, ROOT).len(), sizes.len());
        volume.close().unwrap();
    }
}

#[test]
fn space_is_freed_when_everything_is_deleted() {
    for options in variants() {
        let device = device(&options);
        let volume = open(&device);
        volume.sync().unwrap();
        let before = volume.stat_fs();
        let dir =
            volume.make(&Caller::ROOT, ROOT, b"dir", &new_file(NewKind::Directory)).unwrap().ino;
        for index in 0..2000 {
            let name = format!("name-{index}");
            let ino = volume
                .make(&Caller::ROOT, dir, name.as_bytes(), &new_file(NewKind::Regular))
                .unwrap()
                .ino;
            volume
                .write(&Caller::ROOT, ino, 0, &contents(index, (index * 7 % 9000) as usize))
                .unwrap();
            volume.release(ino, 1);
        }
        assert_eq!(names(&volume, dir).len(), 2000);
        volume.sync().unwrap();
        for index in 0..2000 {
            volume.unlink(&Caller::ROOT, dir, format!("name-{index}").as_bytes()).unwrap();
        }
        volume.remove_dir(&Caller::ROOT, ROOT, b"dir").unwrap();
        volume.release(dir, 1);
        volume.sync().unwrap();
        let after = volume.stat_fs();
        assert_eq!(after.inodes, before.inodes, "{options:?}");
        // The tables keep the blocks that they have grown by.
        let tables = before.free_fragments - after.free_fragments;
        assert!(tables <= 4 * 400, "{tables} fragments are gone with {options:?}");
        volume.close().unwrap();
    }
}

#[test]
fn hard_links_move_out_and_the_last_name_gets_the_inode_back() {
    for options in variants() {
        let device = device(&options);
        let volume = open(&device);
        let file = volume.make(&Caller::ROOT, ROOT, b"a", &new_file(NewKind::Regular)).unwrap().ino;
        volume.write(&Caller::ROOT, file, 0, b"linked").unwrap();
        volume.sync().unwrap();
        let dir =
            volume.make(&Caller::ROOT, ROOT, b"dir", &new_file(NewKind::Directory)).unwrap().ino;
        assert_eq!(volume.link(file, dir, b"b").unwrap().nlink, 2);
        volume.sync().unwrap();
        assert_eq!(volume.lookup(ROOT, b"a").unwrap().ino, file);
        assert_eq!(volume.lookup(dir, b"b").unwrap().ino, file);
        volume.unlink(&Caller::ROOT, ROOT, b"a").unwrap();
        assert_eq!(volume.attr(file).unwrap().nlink, 1);
        volume.close().unwrap();
        let volume = open(&device);
        let attr = volume.lookup(dir_of(&volume, b"dir"), b"b").unwrap();
        assert_eq!((attr.ino, attr.nlink), (file, 1));
        assert_eq!(read_all(&volume, file), b"linked");
        let container = volume.admin().explain(file).unwrap().container.unwrap();
        assert_eq!(container.file == InodeNo::EXTERNAL, !options.embed);
        volume.close().unwrap();
        let volume = open(&device);
        let attr = volume.lookup(dir_of(&volume, b"dir"), b"b").unwrap();
        assert_eq!(read_all(&volume, attr.ino), b"linked");
    }
}

fn dir_of(volume: &Volume, name: &[u8]) -> InodeNo {
    volume.lookup(ROOT, name).expect("lookup").ino
}

#[test]
fn renames_keep_number_and_contents() {
    for options in variants() {
        let device = device(&options);
        let volume = open(&device);
        let one =
            volume.make(&Caller::ROOT, ROOT, b"one", &new_file(NewKind::Directory)).unwrap().ino;
        let two =
            volume.make(&Caller::ROOT, ROOT, b"two", &new_file(NewKind::Directory)).unwrap().ino;
        let file = volume.make(&Caller::ROOT, one, b"f", &new_file(NewKind::Regular)).unwrap().ino;
        volume.write(&Caller::ROOT, file, 0, &contents(5, 5000)).unwrap();
        let old = volume.make(&Caller::ROOT, two, b"g", &new_file(NewKind::Regular)).unwrap();
        volume.write(&Caller::ROOT, old.ino, 0, b"old").unwrap();
        volume.release(old.ino, 1);
        volume.sync().unwrap();
        volume.rename(&Caller::ROOT, one, b"f", two, b"g", RenameMode::Replace).unwrap();
        volume.rename(&Caller::ROOT, two, b"g", ROOT, b"h", RenameMode::Replace).unwrap();
        volume.rename(&Caller::ROOT, ROOT, b"h", one, b"f", RenameMode::Replace).unwrap();
        volume.rename(&Caller::ROOT, ROOT, b"two", one, b"sub", RenameMode::Replace).unwrap();
        assert!(matches!(
            volume.rename(&Caller::ROOT, ROOT, b"one", two, b"loop", RenameMode::Replace),
            Err(Error::Invalid(_))
        ));
        let other = volume
            .make(&Caller::ROOT, two, b"x", &new_file(NewKind::Symlink(b"target")))
            .unwrap()
            .ino;
        volume.rename(&Caller::ROOT, two, b"x", one, b"f", RenameMode::Exchange).unwrap();
        volume.close().unwrap();
        let volume = open(&device);
        let one = dir_of(&volume, b"one");
        let two = volume.lookup(one, b"sub").unwrap();
        assert_eq!(two.nlink, 2);
        assert_eq!(volume.attr(one).unwrap().nlink, 3);
        assert_eq!(volume.attr(ROOT).unwrap().nlink, 3);
        assert_eq!(volume.lookup(two.ino, b"x").unwrap().ino, file);
        assert_eq!(read_all(&volume, file), contents(5, 5000), "{options:?}");
        assert_eq!(volume.lookup(one, b"f").unwrap().ino, other);
        assert_eq!(volume.read_link(other).unwrap(), b"target");
        // Its number may be another file's by now: an epoch ended on the way.
        let reused = volume.attr(old.ino).ok();
        assert!(reused.is_none_or(|attr| attr.generation != old.generation));
        assert!(matches!(volume.lookup(two.ino, b"g"), Err(Error::NotFound)));
    }
}

#[test]
fn a_large_directory_finds_every_name() {
    for options in variants().into_iter().step_by(3) {
        let device = device(&options);
        let volume = open(&device);
        let dir =
            volume.make(&Caller::ROOT, ROOT, b"large", &new_file(NewKind::Directory)).unwrap().ino;
        for index in 0..5000 {
            let name = format!("entry number {index}");
            let attr =
                volume.make(&Caller::ROOT, dir, name.as_bytes(), &new_file(NewKind::Fifo)).unwrap();
            volume.release(attr.ino, 1);
        }
        for index in (0..5000).step_by(3) {
            volume.unlink(&Caller::ROOT, dir, format!("entry number {index}").as_bytes()).unwrap();
        }
        volume.close().unwrap();
        let volume = open(&device);
        let dir = dir_of(&volume, b"large");
        for index in 0..5000 {
            let found = volume.lookup(dir, format!("entry number {index}").as_bytes());
            assert_eq!(found.is_ok(), index % 3 != 0, "{index} with {options:?}");
        }
        assert_eq!(names(&volume, dir).len(), 5000 - 1667);
    }
}

#[test]
fn a_full_volume_loses_nothing_and_can_be_emptied() {
    for options in variants().into_iter().step_by(5) {
        let device = Arc::new(MemoryDevice::new(8 << 20));
        mkfs::make(&*device, &options).unwrap();
        let volume = open(&device);
        let mut written = Vec::new();
        let error = loop {
            let index = written.len() as u64;
            let name = format!("{index}");
            let made =
                volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &new_file(NewKind::Regular));
            let ino = match made {
                Ok(attr) => attr.ino,
                Err(error) => break error,
            };
            let bytes = contents(index, (index * 977 % 20_000) as usize);
            match volume.write(&Caller::ROOT, ino, 0, &bytes) {
                Ok(len) => written.push((ino, bytes[..len].to_vec())),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, Error::NoSpace), "{error}");
        assert!(written.len() > 300, "only {} files fit", written.len());
        volume.close().unwrap();
        let volume = open(&device);
        for (index, (ino, bytes)) in written.iter().enumerate() {
            let attr = volume.lookup(ROOT, format!("{index}").as_bytes()).unwrap();
            assert_eq!(attr.ino, *ino);
            assert_eq!(read_all(&volume, *ino)[..bytes.len()], bytes[..], "{options:?}");
            volume.release(*ino, 1);
        }
        for name in names(&volume, ROOT) {
            volume.unlink(&Caller::ROOT, ROOT, &name).unwrap();
        }
        volume.sync().unwrap();
        let space = volume.stat_fs();
        assert!(space.free_fragments * 100 > space.fragments * 90, "{space:?}");
        volume.close().unwrap();
    }
}

#[test]
fn a_whiteout_takes_a_name_that_the_device_still_has() {
    // A name that leaves the device in the last phase cannot be given again before that epoch is over. The
    // whiteout met that rule, and then the whole rename was tried again, although its old name was gone: it
    // failed after it had succeeded.
    for options in variants() {
        let device = device(&options);
        let volume = open(&device);
        let file =
            volume.make(&Caller::ROOT, ROOT, b"old", &new_file(NewKind::Regular)).unwrap().ino;
        volume.sync().unwrap();
        let mode = RenameMode::Whiteout { no_replace: false };
        volume
            .rename(
                &Caller::ROOT,
                ROOT,
                b"old",
                ROOT,
                b"a much longer name for the same file",
                mode,
            )
            .unwrap();
        let left = volume.lookup(ROOT, b"old").unwrap();
        assert_eq!((left.file_type, left.device), (FileType::CharDevice, 0), "{options:?}");
        let moved = volume.lookup(ROOT, b"a much longer name for the same file").unwrap();
        assert_eq!(moved.ino, file);
        volume.link(file, ROOT, b"second").unwrap();
        // Two names of one file both stay, so there is no place for a whiteout.
        volume.rename(&Caller::ROOT, ROOT, b"second", ROOT, b"second", mode).unwrap();
        assert_eq!(volume.lookup(ROOT, b"second").unwrap().ino, file);
        volume.close().unwrap();
    }
}

#[test]
fn emptying_a_file_frees_the_blocks_of_its_extent_tree() {
    // A file of size 0 returns into its inode, and its map was the only record of the blocks of its extent
    // tree: they were leaked until the next check.
    for options in variants() {
        let device = device(&options);
        let volume = open(&device);
        let file =
            volume.make(&Caller::ROOT, ROOT, b"pieces", &new_file(NewKind::Regular)).unwrap().ino;
        volume.sync().unwrap();
        let before = volume.stat_fs().free_fragments;
        for piece in 0..20 {
            volume.write(&Caller::ROOT, file, piece << 20, b"a piece").unwrap();
        }
        volume.sync().unwrap();
        let empty = SetAttr { size: Some(0), ..SetAttr::default() };
        assert_eq!(volume.set_attr(&Caller::ROOT, file, &empty).unwrap().size, 0);
        volume.sync().unwrap();
        assert_eq!(volume.stat_fs().free_fragments, before, "{options:?}");
        volume.close().unwrap();
    }
}

#[test]
fn attributes_of_a_full_volume_do_not_latch_it() {
    // Attributes that are in a block of their own went to a new place in every epoch, changed or not, without
    // a promise of the space: on a full volume the epoch failed, and the volume became read-only.
    for options in variants().into_iter().step_by(3) {
        let device = Arc::new(MemoryDevice::new(4 << 20));
        mkfs::make(&*device, &options).unwrap();
        let volume = open(&device);
        let value = contents(1, 20_000);
        let set =
            |ino, name: &[u8]| volume.set_xattr(&Caller::ROOT, ino, name, &value, XattrMode::Any);
        let first =
            volume.make(&Caller::ROOT, ROOT, b"first", &new_file(NewKind::Regular)).unwrap().ino;
        set(first, b"user.large").unwrap();
        let error = loop {
            let index = names(&volume, ROOT).len() as u64;
            let name = format!("{index}");
            let made =
                volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &new_file(NewKind::Regular));
            let written = made
                .and_then(|attr| volume.write(&Caller::ROOT, attr.ino, 0, &contents(index, 3000)));
            if let Err(error) = written {
                break error;
            }
        };
        assert!(matches!(error, Error::NoSpace), "{error}");
        for index in (2..100).step_by(2) {
            volume.unlink(&Caller::ROOT, ROOT, format!("{index}").as_bytes()).unwrap();
        }
        volume.sync().unwrap();
        // There is space, but in pieces.
        let refused = set(first, b"user.second");
        assert!(refused.is_ok() || matches!(refused, Err(Error::NoSpace)));
        volume
            .set_attr(&Caller::ROOT, first, &SetAttr { uid: Some(3), ..SetAttr::default() })
            .unwrap();
        volume.sync().unwrap();
        volume.close().unwrap();
        let volume = open(&device);
        let names: &[&[u8]] =
            if refused.is_ok() { &[b"user.large", b"user.second"] } else { &[b"user.large"] };
        assert_eq!(volume.xattr_names(first).unwrap(), names, "{options:?}");
        assert_eq!(volume.xattr(first, b"user.large").unwrap(), value);
        assert_eq!(volume.attr(first).unwrap().uid, 3);
    }
}

/// The first attribute of a file had no promise of a block, so on a full volume the epoch took blocks that
/// were promised to others, or found none: the volume became read-only, and could not be recovered.
#[test]
fn first_attributes_on_a_full_volume_are_refused_by_the_call() {
    for value_bytes in [100, 400, 3000, 9000] {
        let device = Arc::new(MemoryDevice::new(16 << 20));
        mkfs::make(&*device, &MkfsOptions::default()).expect("mkfs");
        let volume = open(&device);
        let write = |name: &str, len: usize| {
            let made =
                volume.make(&Caller::ROOT, ROOT, name.as_bytes(), &new_file(NewKind::Regular));
            made.and_then(|file| {
                volume.write(&Caller::ROOT, file.ino, 0, &vec![1; len]).map(|_| file.ino)
            })
        };
        let small = (0..900).map(|index| write(&format!("f{index}"), [10, 700, 3000][index % 3]));
        let small: Vec<InodeNo> = small.collect::<Result<_>>().expect("made");
        let full = (0..).find_map(|index| write(&format!("big{index}"), 100_000).err());
        assert!(matches!(full, Some(Error::NoSpace)), "{full:?}");
        let mut refused = 0;
        for ino in &small {
            match volume.set_xattr(
                &Caller::ROOT,
                *ino,
                b"user.a",
                &vec![2; value_bytes],
                XattrMode::Any,
            ) {
                Ok(()) => {}
                Err(Error::NoSpace) => refused += 1,
                Err(error) => panic!("{value_bytes} bytes, after {refused} refusals: {error}"),
            }
        }
        volume.sync().expect("all that was granted has its space");
        let crashed = MemoryDevice::from_image(device.snapshot());
        let preen = CheckOptions { repair: Repair::Preen, ..CheckOptions::default() };
        let report = fsck::check(&crashed, &preen, &()).expect("checked");
        assert!(report.exit_code() <= 1, "{value_bytes} bytes: {:?}", report.problems);
        volume.close().expect("closed");
    }
}

#[test]
fn a_name_that_changed_is_found_as_it_is() {
    for options in variants() {
        let volume = open(&device(&options));
        let make = |dir, name: &[u8]| {
            volume.make(&Caller::ROOT, dir, name, &new_file(NewKind::Regular)).expect("made").ino
        };
        let found = |dir, name: &[u8]| volume.lookup(dir, name).ok().map(|attr| attr.ino);
        let dir = volume
            .make(&Caller::ROOT, ROOT, b"dir", &new_file(NewKind::Directory))
            .expect("made")
            .ino;
        let (a, b) = (make(ROOT, b"a"), make(ROOT, b"b"));
        assert_eq!((found(ROOT, b"a"), found(ROOT, b"b")), (Some(a), Some(b)));

        volume
            .rename(&Caller::ROOT, ROOT, b"a", ROOT, b"b", RenameMode::Exchange)
            .expect("exchanged");
        assert_eq!((found(ROOT, b"a"), found(ROOT, b"b")), (Some(b), Some(a)));
        volume.rename(&Caller::ROOT, ROOT, b"a", dir, b"a", RenameMode::Replace).expect("moved");
        assert_eq!((found(ROOT, b"a"), found(dir, b"a")), (None, Some(b)));
        assert!(
            volume
                .rename(&Caller::ROOT, ROOT, b"b", dir, b"a", RenameMode::Replace)
                .expect("replaced")
        );
        assert_eq!((found(ROOT, b"b"), found(dir, b"a")), (None, Some(a)));
        volume.link(a, ROOT, b"b").expect("linked");
        assert!(
            !volume
                .rename(&Caller::ROOT, ROOT, b"b", dir, b"a", RenameMode::Replace)
                .expect("nothing to do")
        );
        assert_eq!((found(ROOT, b"b"), found(dir, b"a")), (Some(a), Some(a)));
        volume.unlink(&Caller::ROOT, dir, b"a").expect("gone");
        assert_eq!((found(ROOT, b"b"), found(dir, b"a")), (Some(a), None));

        volume.remove_dir(&Caller::ROOT, ROOT, b"dir").expect("gone");
        assert_eq!((found(ROOT, b"dir"), found(dir, b"a")), (None, None));
        let again = make(ROOT, b"a");
        assert_eq!(found(ROOT, b"a"), Some(again));
    }
}

/// Extents that a write of one block visits in a file with this many extents, without those of a
/// write-back: `preallocated` only half of them were ever written.
fn extents_visited(extents: u64, preallocated: bool) -> u64 {
    use crate::inode::EXTENT_VISITS;
    let volume = open(&device(&MkfsOptions::default()));
    let ino = volume
        .make(&Caller::ROOT, ROOT, b"scattered", &new_file(NewKind::Regular))
        .expect("made")
        .ino;
    let block = contents(1, 4096);
    let write = |nth: u64| volume.write(&Caller::ROOT, ino, nth * 8192, &block).expect("written");
    for nth in 0..extents {
        volume
            .allocate(&Caller::ROOT, ino, nth * 8192, 4096, AllocateMode::Reserve)
            .expect("reserved");
    }
    let written = if preallocated { extents / 2 } else { extents };
    for nth in 0..written {
        write(nth);
    }
    volume.sync().expect("synced");
    let before = EXTENT_VISITS.get();
    write(extents - 1);
    EXTENT_VISITS.get() - before
}

#[test]
fn writing_to_a_scattered_file_costs_the_same_with_few_extents_and_with_many() {
    for preallocated in [false, true] {
        let (few, many) = (extents_visited(64, preallocated), extents_visited(1024, preallocated));
        assert_eq!(few, many, "extents visited, preallocated: {preallocated}");
    }
}

/// Another front end can remove a name between the lookup of a file and the reference on it.
#[test]
fn a_file_that_is_deleted_before_its_reference_is_taken_is_stale() {
    let volume = open(&device(&MkfsOptions::default()));
    let make = |name: &[u8]| {
        volume.make(&Caller::ROOT, ROOT, name, &new_file(NewKind::Regular)).unwrap().ino
    };
    let (gone, used) = (make(b"gone"), make(b"used"));
    let [deleted, open] = [gone, used].map(|ino| volume.writer.vnode(ino).unwrap());
    volume.release(gone, 1);
    for name in [b"gone", b"used"] {
        volume.unlink(&Caller::ROOT, ROOT, name).unwrap();
    }
    assert!(matches!(volume.attr_with_reference(&deleted), Err(Error::Stale)));
    assert!(!volume.is_referenced(gone, 0));
    assert_eq!(volume.attr_with_reference(&open).unwrap().nlink, 0);
    volume.release(used, 2);
    assert!(volume.references.orphans().is_empty());
}

/// Regression: between the removal of its last name and the note of that, a file in use seemed deleted.
#[test]
fn a_file_in_use_is_found_while_its_last_name_is_removed() {
    let volume = open(&device(&MkfsOptions::default()));
    let ino = volume.make(&Caller::ROOT, ROOT, b"used", &new_file(NewKind::Regular)).unwrap().ino;
    let root = volume.writer.vnode(ROOT).unwrap();
    let vnode = volume.names.unlink(&root, b"used", &|_, _| Ok(())).unwrap();
    assert_eq!(volume.find(ino).map(|attr| attr.nlink).ok(), Some(0));
    assert_eq!(volume.note_unnamed(&vnode), None);
    volume.release(ino, 2);
    assert!(matches!(volume.find(ino), Err(Error::Stale)));
}

#[test]
fn an_owner_of_no_number_in_a_forged_image_is_shown_as_nobody() {
    let volume = open(&device(&MkfsOptions::default()));
    let ino = volume.make(&Caller::ROOT, ROOT, b"forged", &new_file(NewKind::Regular)).unwrap().ino;
    let vnode = volume.writer.vnode(ino).unwrap();
    let mut state = vnode.state.write();
    (state.inode.uid, state.inode.gid) = (u32::MAX, u32::MAX);
    drop(state);
    let attr = volume.attr(ino).unwrap();
    assert_eq!((attr.uid, attr.gid), (65534, 65534));
}
