//! The space that stat(2) reports for a file changes only with callers' operations: front ends allow caching
//! attributes while the file does not change.

use std::sync::Arc;

use cffs::clock::TestClock;
use cffs::device::MemoryDevice;
use cffs::mkfs::{self, MkfsOptions};
use cffs::units::InodeNo;
use cffs::vfs::{AllocateMode, Caller, NewFile, NewKind, OpenOptions, SetAttr, Volume, XattrMode};

use cffs_testing::random::Random;

const KIB: u64 = 1 << 10;
const FILES: usize = 6;

fn change(volume: &Volume, ino: InodeNo, random: &mut Random) -> String {
    let (at, len) = (random.below(300 * KIB), 1 + random.below(40 * KIB));
    let in_range = [(at, len), (at & !4095, 4096), (0, len), (at * 50, len)];
    let (at, len) = in_range[random.below(4) as usize];
    let allocate = |mode| {
        volume.allocate(&Caller::ROOT, ino, at, len, mode).expect("allocate");
        format!("allocate {at} {len} {mode:?}")
    };
    match random.below(9) {
        0..4 => {
            volume.write(&Caller::ROOT, ino, at, &vec![7; len as usize]).expect("write");
            format!("write {at} {len}")
        }
        4 => {
            let cut = SetAttr { size: Some(at), ..SetAttr::default() };
            volume.set_attr(&Caller::ROOT, ino, &cut).expect("truncate");
            format!("truncate {at}")
        }
        5 => allocate(AllocateMode::PunchHole),
        6 => allocate(AllocateMode::ReserveKeepSize),
        7 => allocate(AllocateMode::ZeroRange { keep_size: false }),
        _ => {
            let value = vec![7; len as usize];
            volume.set_xattr(&Caller::ROOT, ino, b"user.x", &value, XattrMode::Any).expect("xattr");
            format!("xattr {len}")
        }
    }
}

#[test]
fn an_epoch_does_not_change_the_space_that_is_shown() {
    for inline in [true, false] {
        let options = MkfsOptions { inline, ..MkfsOptions::default() };
        let device = MemoryDevice::new(256 << 20);
        mkfs::make(&device, &options).expect("mkfs");
        let device = Arc::new(device);
        let open = || {
            let clock = Arc::new(TestClock::default());
            Volume::open(device.clone(), clock, OpenOptions::default()).expect("open")
        };
        let volume = open();
        let new =
            NewFile { kind: NewKind::Regular, permissions: 0o644, uid: 0, gid: 0, times: None };
        let files: Vec<InodeNo> = (0..FILES)
            .map(|i| {
                volume
                    .make(&Caller::ROOT, InodeNo::ROOT, format!("{i}").as_bytes(), &new)
                    .expect("make")
                    .ino
            })
            .collect();
        let shown = |volume: &Volume| -> Vec<u64> {
            files.iter().map(|ino| volume.attr(*ino).expect("attr").allocated_bytes).collect()
        };
        let mut random = Random(5);
        let mut calls: Vec<String> = Vec::new();
        for _ in 0..400 {
            let index = random.below(FILES as u64) as usize;
            calls.push(format!("{index}: {}", change(&volume, files[index], &mut random)));
            if random.below(5) == 0 {
                let before = shown(&volume);
                volume.sync().expect("sync");
                assert_eq!(shown(&volume), before, "{calls:#?}");
                calls.clear();
            }
        }
        let before = shown(&volume);
        volume.close().expect("close");
        assert_eq!(shown(&open()), before, "opened again");
    }
}
