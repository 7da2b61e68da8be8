//! Checking a volume in use: no problem is found on a sound one, whatever changes are made.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cffs::check_in_use;
use cffs::device::{BlockDevice, MemoryDevice};
use cffs::format::superblock::State;
use cffs::fsck::{CheckOptions, Report, check};
use cffs::units::InodeNo;
use cffs::vfs::types::{NewKind, RenameMode};
use cffs::vfs::{Caller, Volume, read_superblock};

use cffs_testing::setup::{made, make, open, small_cache};

const ROOT: InodeNo = InodeNo::ROOT;

fn volume() -> (Arc<MemoryDevice>, Arc<Volume>) {
    let device = made(64 << 20);
    let volume = open(device.clone(), small_cache());
    (device, Arc::new(volume))
}

fn look(volume: &Volume) -> Report {
    check_in_use(volume, true, &()).expect("checked")
}

/// One round of all kinds of changes in a directory.
fn change(volume: &Volume, dir: InodeNo, round: u64) {
    // Removes the remains of an earlier round with this number.
    for (dir, end) in [(dir, ""), (dir, "-link"), (ROOT, "-renamed")] {
        for index in 0..40 {
            let _ = volume.unlink(&Caller::ROOT, dir, format!("{round}-{index}{end}").as_bytes());
        }
    }
    for index in 0..40 {
        let name = format!("{round}-{index}");
        let ino = make(volume, dir, &name, NewKind::Regular);
        let len = (index * 971 % 9000) as usize;
        volume.write(&Caller::ROOT, ino, 0, &vec![index as u8; len]).expect("written");
        let mut references = 1;
        match index % 5 {
            0 => {
                volume.link(ino, dir, format!("{name}-link").as_bytes()).expect("linked");
                references += 1;
            }
            1 => volume.unlink(&Caller::ROOT, dir, name.as_bytes()).expect("gone"),
            2 => {
                let new_name = format!("{name}-renamed");
                let mode = RenameMode::Replace;
                volume
                    .rename(&Caller::ROOT, dir, name.as_bytes(), ROOT, new_name.as_bytes(), mode)
                    .expect("moved");
            }
            _ => {}
        }
        volume.release(ino, references);
    }
}

#[test]
fn a_volume_in_use_is_sound_at_every_moment() {
    let (device, volume) = volume();
    let dir = make(&volume, ROOT, "dir", NewKind::Directory);
    let ended = Arc::new(AtomicBool::new(false));
    let worker = {
        let (volume, ended) = (volume.clone(), ended.clone());
        std::thread::spawn(move || {
            for round in 0.. {
                if ended.load(Ordering::Acquire) {
                    return;
                }
                change(&volume, dir, round % 100);
                if round % 3 == 0 {
                    volume.sync().expect("synced");
                }
            }
        })
    };
    let mut inodes = Vec::new();
    // Repeated until different states were seen.
    while inodes.len() < 15 {
        let report = look(&volume);
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
        inodes.push(report.inodes);
        inodes.dedup();
    }
    ended.store(true, Ordering::Release);
    worker.join().expect("ended");
    let quiet = look(&volume);
    assert!(quiet.problems.is_empty() && quiet.recovered.is_empty(), "{quiet:#?}");
    // It is still in use: a crash now would require recovery.
    assert_eq!(read_superblock(&*device).expect("read").state, State::InUse);
    let crashed = MemoryDevice::from_image(device.snapshot());
    let options = CheckOptions { force: true, contents: true, ..CheckOptions::default() };
    assert!(check(&crashed, &options, &()).expect("checked").problems.is_empty());
    volume.close().expect("closed");
    let report = check(&*device, &options, &()).expect("checked");
    assert!(report.problems.is_empty() && report.consistent, "{:#?}", report.problems);
}

#[test]
fn a_file_without_a_name_is_no_problem() {
    let (_device, volume) = volume();
    let ino = make(&volume, ROOT, "open", NewKind::Regular);
    volume.write(&Caller::ROOT, ino, 0, &[1; 50_000]).expect("written");
    volume.sync().expect("synced");
    volume.unlink(&Caller::ROOT, ROOT, b"open").expect("gone");
    assert!(look(&volume).problems.is_empty());
    volume.release(ino, 1);
    let report = look(&volume);
    assert!(report.problems.is_empty() && report.recovered.is_empty(), "{report:#?}");
    volume.close().expect("closed");
}

#[test]
fn damage_is_found_and_not_repaired() {
    let (device, volume) = volume();
    let ino = make(&volume, ROOT, "file", NewKind::Regular);
    volume.write(&Caller::ROOT, ino, 0, &[1; 5000]).expect("written");
    assert!(look(&volume).problems.is_empty());
    // The bitmap of the first group, changed without the volume's knowledge.
    let superblock = volume.writer().superblock.get();
    let layout = cffs::format::Layout::new(&superblock);
    let offset = layout.block_offset(layout.cg_bitmap(cffs::units::CgIndex(0))) + 2000;
    let flip = |device: &MemoryDevice| {
        let mut byte = [0];
        device.read_at(offset, &mut byte).expect("read");
        device.write_at(offset, &[IoSlice::new(&[byte[0] ^ 0x10])]).expect("written");
    };
    volume
        .writer()
        .checkpoints()
        .freeze(|_, _| {
            flip(&device);
            let options = CheckOptions { force: true, settled: true, ..CheckOptions::default() };
            let report = check(&*device, &options, &()).expect("checked");
            assert_eq!(report.problems.len(), 1, "{:#?}", report.problems);
            assert_eq!((report.exit_code(), report.write_requests), (4, 0));
            flip(&device);
        })
        .expect("held");
    volume.close().expect("closed");
}

#[test]
fn a_check_that_would_take_more_memory_than_the_cache_is_refused() {
    let (_, volume) = volume();
    for index in 0..9_000 {
        let ino = make(&volume, ROOT, &format!("file-{index}"), NewKind::Regular);
        volume.release(ino, 1);
    }
    assert!(look(&volume).problems.is_empty());
    for index in 0..3_000 {
        let ino = make(&volume, ROOT, &format!("more-{index}"), NewKind::Regular);
        volume.release(ino, 1);
    }
    let error = check_in_use(&volume, true, &()).expect_err("there are too many inodes");
    let said = error.to_string();
    assert!(said.contains("checking 12000 inodes") && said.contains("cache=2M"), "{said}");
}
