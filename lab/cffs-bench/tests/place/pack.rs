//! `place pack` and `place warm`: their promises, on each file system.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use cffs_bench::peer::{Peer, Volume};
use cffs_bench::workload::Site;
use cffs_bench::workload::random::Random;
use cffs_place::pack::{Options, Packed, pack};
use cffs_place::predict::Layout;
use cffs_place::{tree, warm};

use crate::trees::{PEERS, bytes, cold_reads, interleaved, turn, volume, write};

const FILES: u64 = 2000;
const DIRECTORIES: u64 = 5;

/// The properties of each file that a program can see.
fn seen(directory: &Path) -> BTreeMap<PathBuf, (Vec<u8>, [i64; 9])> {
    let look = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.expect("entry").path();
        let status = fs::symlink_metadata(&path).expect("status");
        let facts = [
            status.ino() as i64,
            status.nlink() as i64,
            i64::from(status.mode()),
            i64::from(status.uid()),
            status.size() as i64,
            status.mtime(),
            status.mtime_nsec(),
            status.atime(),
            status.atime_nsec(),
        ];
        (path.clone(), (fs::read(&path).expect("contents"), facts))
    };
    fs::read_dir(directory).expect("list").map(look).collect()
}

fn pack_directory(directory: &Path) -> Packed {
    let known = cffs_place::volume::Volume::of(directory).expect("known");
    let (found, _) = tree::walk(directory, true, |_| {}).expect("walk");
    let groups = found.into_iter().map(|directory| directory.files).collect();
    pack(&known, groups, &Options::default(), &|| {}, &|| false).expect("pack")
}

fn layout(directory: &Path) -> Layout {
    let (found, _) = tree::walk(directory, true, |_| {}).expect("walk");
    Layout::of(found.iter().flat_map(|directory| &directory.files))
}

fn setfattr(path: &Path) {
    let status =
        Command::new("setfattr").args(["-n", "user.colour", "-v", "green"]).arg(path).status();
    assert!(status.expect("setfattr").success());
}

fn getfattr(path: &Path) -> Vec<u8> {
    Command::new("getfattr")
        .args(["-d", "--absolute-names"])
        .arg(path)
        .output()
        .expect("getfattr")
        .stdout
}

#[test]
fn two_thousand_files_are_side_by_side_and_unchanged() {
    let _turn = turn();
    for peer in PEERS {
        let Some(mut volume) = volume(peer) else { return };
        let directory = interleaved(&volume, FILES, DIRECTORIES).join("d0");
        let first = directory.join("f0000");
        setfattr(&first);
        fs::hard_link(&first, directory.join("link")).expect("link");
        let before = (seen(&directory), getfattr(&first), layout(&directory));
        assert!(before.2.adjacent < FILES / 10, "{peer}: not scattered: {:?}", before.2);
        let packed = pack_directory(&directory);
        assert_eq!(
            (packed.moved, packed.left.len(), packed.busy.len()),
            (FILES, 0, 0),
            "{peer}: {packed:?}"
        );
        let after = layout(&directory);
        println!("{peer}: {:?} -> {after:?}", before.2);
        volume.check().expect("the file system's own check");
        assert_eq!(layout(&directory), after, "{peer}: it stays so");
        assert_eq!(seen(&directory), before.0, "{peer}");
        assert_eq!(getfattr(&first), before.1, "{peer}");
        assert_eq!((after.runs, after.adjacent), (1, FILES - 1), "{peer}: {after:?}");
        let again = pack_directory(&directory);
        assert_eq!(
            (again.moved, again.in_place),
            (0, FILES),
            "{peer}: packing again moves nothing"
        );
        volume.set_free(false);
        let read = cold_reads(&mut volume, |root| {
            let (files, _) = warm::files_below(&[root.join("d0")]).expect("files");
            let (warmed, unseen) = warm::warm(files, u64::MAX, || {});
            assert_eq!((warmed.files, unseen.len()), (FILES, 0));
            fs::read_dir(root.join("d0")).expect("list").for_each(|entry| {
                fs::read(entry.expect("entry").path()).expect("read");
            });
        });
        println!("{peer}: {read} requests for {FILES} files, packed and warm");
        // On btrfs the inodes of this directory share their leaves with those of the others.
        let most = if peer == Peer::Btrfs { 400 } else { 250 };
        assert!(read <= most, "{peer}: {read} requests");
        volume.set_free(true);
        volume.dismantle().expect("dismantle");
    }
}

/// Regression: ext4 moved a block of each such file and refused the next, since the page cache held both in
/// one folio, which the first move had made dirty. A retry from the beginning moved that block back.
#[test]
fn files_of_several_blocks_that_are_in_the_cache_are_moved_whole() {
    let _turn = turn();
    for peer in PEERS {
        let Some(mut volume) = volume(peer) else { return };
        let directory = volume.root().join("tree");
        fs::create_dir(&directory).expect("a directory");
        let mut random = Random::new(1);
        for file in 0..60 {
            write(&directory.join(format!("f{file:02}")), 9000 + 500 * file, &mut random);
            write(&volume.root().join(format!("other{file}")), 9000, &mut random);
            volume.settle().expect("settle");
        }
        let before = seen(&directory);
        let packed = pack_directory(&directory);
        let after = layout(&directory);
        assert_eq!(
            (packed.moved + packed.in_place, packed.busy.len()),
            (60, 0),
            "{peer}: {packed:?}"
        );
        assert_eq!((after.extents, after.adjacent), (60, 59), "{peer}: {after:?}");
        assert_eq!(seen(&directory), before, "{peer}");
        volume.check().expect("the file system's own check");
        volume.dismantle().expect("dismantle");
    }
}

#[test]
fn writers_on_the_same_files_lose_nothing() {
    let _turn = turn();
    for peer in PEERS {
        let Some(mut volume) = volume(peer) else { return };
        let directory = interleaved(&volume, 300, DIRECTORIES).join("d0");
        let over = AtomicBool::new(false);
        let (packed, written) = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2u64)
                .map(|writer| {
                    let (over, directory) = (&over, &directory);
                    scope.spawn(move || {
                        let mut random = Random::new(writer);
                        let mut expected = BTreeMap::new();
                        while !over.load(Ordering::Relaxed) {
                            // Each writer has files of its own, so their expected contents are known.
                            let path =
                                directory.join(format!("f{:04}", random.below(150) * 2 + writer));
                            let contents = bytes(5000, &mut random);
                            let file = File::options().write(true).open(&path).expect("open");
                            file.write_all_at(&contents, 0).expect("write");
                            expected.insert(path, contents);
                        }
                        expected
                    })
                })
                .collect();
            let packed: Vec<Packed> = (0..5).map(|_| pack_directory(&directory)).collect();
            over.store(true, Ordering::Relaxed);
            let written = writers.into_iter().map(|writer| writer.join().expect("writer"));
            (packed, written.collect::<Vec<_>>())
        });
        for (path, contents) in written.into_iter().flatten() {
            assert_eq!(
                fs::read(&path).expect("read")[..5000],
                contents,
                "{peer}: {}",
                path.display()
            );
        }
        let moved: u64 = packed.iter().map(|packed| packed.moved).sum();
        let busy: usize = packed.iter().map(|packed| packed.busy.len()).sum();
        println!("{peer}: {moved} files moved under writers, {busy} busy");
        assert!(moved > 0, "{peer}: nothing was moved: {packed:?}");
        volume.check().expect("the file system's own check");
        volume.dismantle().expect("dismantle");
    }
}

#[test]
fn an_interrupted_pack_leaves_nothing_behind() {
    let _turn = turn();
    for peer in PEERS {
        let Some(mut volume) = volume(peer) else { return };
        let directory = interleaved(&volume, 300, DIRECTORIES).join("d0");
        let before = seen(&directory);
        // XFS frees the inodes of removed files in the background, and at the latest when it is unmounted.
        let free = |volume: &mut Volume| {
            volume.chill().expect("mounted again");
            rustix::fs::statvfs(volume.root()).expect("statvfs").f_ffree
        };
        let files_free = free(&mut volume);
        let known = cffs_place::volume::Volume::of(&directory).expect("known");
        for stop_after in [1, 100, 299, 350, 500] {
            let (found, _) = tree::walk(&directory, true, |_| {}).expect("walk");
            let groups = found.into_iter().map(|directory| directory.files).collect();
            let asked = std::cell::Cell::new(0);
            let stop = || {
                asked.set(asked.get() + 1);
                asked.get() > stop_after
            };
            pack(&known, groups, &Options::default(), &|| {}, &stop).expect("pack");
            assert_eq!(seen(&directory), before, "{peer}");
        }
        drop(known);
        if peer != Peer::Btrfs {
            // btrfs does not report a number of inodes.
            assert_eq!(free(&mut volume), files_free, "{peer}: a donor is left");
        }
        volume.dismantle().expect("dismantle");
    }
}
