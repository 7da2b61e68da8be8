//! One byte of a directory's sector forged, and the sector sealed again: what is below the
//! directories in it survives.
//!
//! Once, a single byte in a directory's inode (its number, its generation, its size, its type, an
//! extent) made all its sectors look like another's, and the repair made them empty: 253 of 720 files
//! were lost, and no salvage brought them back.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;

use super::image::walk;
use super::volumes::{ROOT, contents, make, new_file, open, run};
use crate::device::{BlockDevice, Image, MemoryDevice};
use crate::fsck::Repair;
use crate::mkfs::MkfsOptions;
use crate::vfs::{Caller, NewKind, read_superblock};

const DIRS: u64 = 4;
const FILES: u64 = 20;
const SECTOR_BYTES: usize = 4096;
/// The header of the sector, and the entries of two directories.
const FORGED_BYTES: usize = 480;

/// Directories of files, whose inodes are in one sector; where that is.
fn sample() -> (Image, u64) {
    let device = make(&MkfsOptions::default());
    let volume = open(&device);
    for dir in 0..DIRS {
        let name = format!("dir-{dir}");
        let ino = volume
            .make(&Caller::ROOT, ROOT, name.as_bytes(), &new_file(NewKind::Directory))
            .unwrap()
            .ino;
        for file in 0..FILES {
            let name = format!("file-{file}");
            let file = volume
                .make(&Caller::ROOT, ino, name.as_bytes(), &new_file(NewKind::Regular))
                .unwrap()
                .ino;
            volume.write(&Caller::ROOT, file, 0, &contents(dir * FILES + file.0, 100)).unwrap();
        }
    }
    volume.sync().unwrap();
    let first = volume.lookup(ROOT, b"dir-0").unwrap().ino;
    let block = volume.admin().explain(first).unwrap().container_block.unwrap();
    volume.close().unwrap();
    (device.snapshot(), block.0 * 4096)
}

/// The files below all directories: their contents and how often each is there.
fn files(device: &Arc<MemoryDevice>) -> BTreeMap<Vec<u8>, u32> {
    let volume = open(device);
    let mut files = BTreeMap::new();
    for (_, (mode, contents, _)) in walk(&volume, &mut BTreeMap::new()) {
        if mode >> 12 == 8 {
            *files.entry(contents).or_default() += 1;
        }
    }
    volume.close().unwrap();
    files
}

fn forged(image: &Image, sector: u64, at: usize, change: u8) -> Arc<MemoryDevice> {
    let device = MemoryDevice::from_image(image.clone());
    let mut bytes = vec![0; SECTOR_BYTES];
    device.read_at(sector, &mut bytes).unwrap();
    bytes[at] ^= change;
    read_superblock(&device).unwrap().checksum().seal(&mut bytes, 4);
    device.write_at(sector, &[IoSlice::new(&bytes)]).unwrap();
    Arc::new(device)
}

#[test]
fn a_forged_byte_costs_no_file_below_the_directories() {
    let (image, sector) = sample();
    let whole = files(&Arc::new(MemoryDevice::from_image(image.clone())));
    let mut failed = Vec::new();
    for at in (0..4).chain(8..FORGED_BYTES) {
        for change in [0x01, 0x10, 0x80] {
            let device = forged(&image, sector, at, change);
            let report = run(&device, Repair::Yes);
            let again = run(&device, Repair::No);
            if report.exit_code() > 1 || !again.problems.is_empty() {
                failed.push(format!("byte {at} ^ {change:#x}: not repaired: {:?}", again.problems));
                continue;
            }
            let left = files(&device);
            let lost = whole.keys().filter(|contents| !left.contains_key(*contents)).count();
            if lost > 0 {
                let codes: Vec<_> = report.problems.iter().map(|p| p.code.id()).collect();
                failed.push(format!("byte {at} ^ {change:#x}: {lost} lost: {codes:?}"));
            }
        }
    }
    assert!(failed.is_empty(), "{}: {failed:#?}", failed.len());
}
