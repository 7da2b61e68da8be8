//! Scrubbing a volume in use: it finds all losses on the device, and nothing else.

use std::io::IoSlice;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cffs::device::{BlockDevice, MemoryDevice};
use cffs::units::InodeNo;
use cffs::vfs::types::{NewKind, OpenOptions, XattrMode};
use cffs::vfs::{Caller, ScrubProgress, Volume};

use cffs_testing::setup::{made, make, open, recover, small_cache};

const ROOT: InodeNo = InodeNo::ROOT;
const FRAGMENT_BYTES: u64 = 1024;

fn volume() -> (Arc<MemoryDevice>, Arc<Volume>) {
    let device = made(64 << 20);
    let volume = open(device.clone(), small_cache());
    (device, Arc::new(volume))
}

fn write(volume: &Volume, dir: InodeNo, name: &str, len: usize) -> InodeNo {
    let ino = make(volume, dir, name, NewKind::Regular);
    let bytes: Vec<u8> = (0..len).map(|at| ((at * 31) >> 3) as u8 ^ len as u8).collect();
    volume.write(&Caller::ROOT, ino, 0, &bytes).expect("written");
    ino
}

fn scrub(volume: &Volume) -> ScrubProgress {
    volume.admin().scrub(&mut |_| ControlFlow::Continue(())).expect("scrubbed")
}

/// Changes one byte on the device, without the volume's knowledge.
fn flip(device: &MemoryDevice, offset: u64) {
    let mut byte = [0];
    device.read_at(offset, &mut byte).expect("read");
    device.write_at(offset, &[IoSlice::new(&[byte[0] ^ 0x10])]).expect("written");
}

#[test]
fn each_kind_of_loss_is_found_where_it_is() {
    let (device, volume) = volume();
    let dir = make(&volume, ROOT, "dir", NewKind::Directory);
    for index in 0..3000 {
        write(&volume, dir, &format!("small-{index}"), 100 + index % 700);
    }
    let small = write(&volume, dir, "contents", 5000);
    let pieces = make(&volume, dir, "pieces", NewKind::Regular);
    for piece in 0..40 {
        volume.write(&Caller::ROOT, pieces, piece << 20, b"a piece").expect("written");
    }
    let attributes = write(&volume, dir, "attributes", 10);
    volume
        .set_xattr(&Caller::ROOT, attributes, b"user.large", &[7; 9000], XattrMode::Any)
        .expect("set");
    let linked = write(&volume, dir, "linked", 300);
    volume.link(linked, ROOT, b"other name").expect("linked");
    volume.sync().expect("written");

    let clean = scrub(&volume);
    assert_eq!(clean.problems, Vec::<String>::new());
    assert_eq!(clean.inodes, clean.inodes_total);
    // Files are adjacent: far fewer bytes are read than a segment for each.
    assert!(clean.read_bytes < 16 << 20, "{}", clean.read_bytes);

    let block_of =
        |ino| volume.admin().explain(ino).expect("explained").container_block.expect("placed").0;
    let first_byte = |ino| {
        let explained = volume.admin().explain(ino).expect("explained");
        explained.pieces[0].run.start.0 * FRAGMENT_BYTES
    };
    let cases = [
        ("contents of a small file", first_byte(small) + 4000, format!("inode {small}: contents")),
        ("a directory's sector", block_of(small) * 4096 + 100, format!("inode {dir} sector")),
        ("the external table", block_of(linked) * 4096 + 60, String::from("inode 3 sector")),
        ("the root directory", first_byte(ROOT) + 70, String::from("inode 1 sector")),
        ("the superblock", 40, String::from("superblock at byte 0")),
        ("a group's header", 2 * 4096 + 20, String::from("cylinder group 0")),
        ("a group's bitmap", 3 * 4096 + 20, String::from("cylinder group 0")),
    ];
    for (what, offset, expected) in cases {
        flip(&device, offset);
        let found = scrub(&volume).problems;
        assert!(
            found.iter().any(|text| text.contains(&expected)) && found.len() == 1,
            "{what}: {found:?}"
        );
        flip(&device, offset);
    }
    assert_eq!(scrub(&volume).problems, Vec::<String>::new());
    volume.close().expect("closed");
}

#[test]
fn attributes_outside_the_inode_are_scrubbed() {
    // The extent tree and the attribute block: flipping any byte in the blocks of the two files is detected.
    let (device, volume) = volume();
    let before = device.snapshot();
    let pieces = make(&volume, ROOT, "pieces", NewKind::Regular);
    for piece in 0..40 {
        volume.write(&Caller::ROOT, pieces, piece << 20, b"a piece").expect("written");
    }
    let attributes = make(&volume, ROOT, "attributes", NewKind::Regular);
    volume
        .set_xattr(&Caller::ROOT, attributes, b"user.large", &[7; 9000], XattrMode::Any)
        .expect("set");
    volume.sync().expect("written");
    let after = device.snapshot();
    let magics: Vec<u64> = (0..64 << 10)
        .map(|fragment| fragment * FRAGMENT_BYTES)
        .filter(|offset| {
            let (mut old, mut new) = ([0; 4], [0; 4]);
            before.read(*offset, &mut old).expect("read");
            after.read(*offset, &mut new).expect("read");
            old != new && (&new == b"CFxt" || &new == b"CFxa")
        })
        .collect();
    assert_eq!(magics.len(), 2, "a block of the tree and one of attributes");
    for offset in magics {
        flip(&device, offset + 50);
        assert_eq!(scrub(&volume).problem_count, 1);
        flip(&device, offset + 50);
    }
    volume.close().expect("closed");
}

#[test]
fn a_volume_in_use_is_not_reported_as_damaged() {
    let (_device, volume) = volume();
    let ended = Arc::new(AtomicBool::new(false));
    let writer = {
        let (volume, ended) = (volume.clone(), ended.clone());
        std::thread::spawn(move || {
            let mut round = 0;
            while !ended.load(Ordering::Acquire) {
                let dir = make(&volume, ROOT, &format!("dir-{round}"), NewKind::Directory);
                for index in 0..200 {
                    let ino = write(&volume, dir, &format!("f{index}"), index * 41 % 9000);
                    if index % 3 == 0 {
                        volume.write(&Caller::ROOT, ino, 0, &[round as u8; 5000]).expect("written");
                    }
                    if index % 50 == 0 {
                        volume.sync().expect("synced");
                    }
                }
                for index in (0..200).step_by(2) {
                    volume
                        .unlink(&Caller::ROOT, dir, format!("f{index}").as_bytes())
                        .expect("removed");
                }
                round += 1;
            }
        })
    };
    let mut inodes = 0;
    while inodes < 2000 {
        let found = scrub(&volume);
        assert_eq!(found.problems, Vec::<String>::new());
        inodes += found.inodes;
    }
    ended.store(true, Ordering::Release);
    writer.join().expect("the writer found no error");
    volume.close().expect("closed");
}

/// Regression: tables such as the locator's are written at checkpoints, so a scrub by them found no file at
/// all, or reported damage.
#[test]
fn a_volume_that_was_not_left_clean_is_not_scrubbed_by_its_old_tables() {
    let (device, volume) = volume();
    write(&volume, ROOT, "file", 200);
    volume.sync().expect("synced");
    let device = Arc::new(MemoryDevice::from_image(device.snapshot()));
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let crashed = recover(device, options).expect("opened");
    let scrubbed = crashed.admin().scrub(&mut |_| ControlFlow::Continue(()));
    let said = scrubbed.expect_err("its tables are old").to_string();
    assert!(said.contains("cffs fsck -p"), "{said}");
    volume.close().expect("closed");
}

#[test]
fn the_caller_can_end_a_scrub() {
    let (_device, volume) = volume();
    for index in 0..50 {
        write(&volume, ROOT, &format!("f{index}"), 200);
    }
    volume.sync().expect("synced");
    let stop = |progress: &ScrubProgress| match progress.inodes {
        10 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    assert_eq!(volume.admin().scrub(&mut { stop }).expect("scrubbed").inodes, 10);
}
