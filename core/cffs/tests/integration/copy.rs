//! Copies of ranges between files of a volume: contents, holes, limits, and concurrency.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use cffs::clock::TestClock;
use cffs::device::MemoryDevice;
use cffs::error::Error;
use cffs::format::FILE_BYTES_MAX;
use cffs::fsck::{self, CheckOptions};
use cffs::units::InodeNo;
use cffs::vfs::{Caller, NewKind, OpenOptions, SeekFor, SetAttr, Volume, XattrMode};

use cffs_testing::setup::{made, make};

const ROOT: InodeNo = InodeNo::ROOT;
const MIB: u64 = 1 << 20;
/// The most bytes that one call copies, without holes.
const CALL_BYTES_MAX: u64 = 16 * MIB;
const PATIENCE: Duration = Duration::from_secs(120);

fn open(device: &Arc<MemoryDevice>, read_only: bool) -> Volume {
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    Volume::open(device.clone(), Arc::new(TestClock::default()), options).expect("opened")
}

fn file(volume: &Volume, name: &str) -> InodeNo {
    make(volume, ROOT, name, NewKind::Regular)
}

/// Bytes without equal blocks or zeros.
fn pattern(len: u64) -> Vec<u8> {
    (0..len).map(|at| ((at ^ (at >> 8) ^ (at >> 16)) * 31) as u8 | 1).collect()
}

fn read_all(volume: &Volume, ino: InodeNo) -> Vec<u8> {
    let mut bytes = vec![0; volume.attr(ino).expect("there").size as usize];
    assert_eq!(volume.read(ino, 0, &mut bytes).expect("read"), bytes.len());
    bytes
}

fn resize(volume: &Volume, ino: InodeNo, size: u64) {
    let changes = SetAttr { size: Some(size), ..SetAttr::default() };
    volume.set_attr(&Caller::ROOT, ino, &changes).expect("resized");
}

/// Copies everything, as a program does: until a call copies nothing.
fn copy_all(volume: &Volume, from: (InodeNo, u64), to: (InodeNo, u64), len: u64) -> u64 {
    let mut done = 0;
    loop {
        let (source, target) = ((from.0, from.1 + done), (to.0, to.1 + done));
        match volume.copy(&Caller::ROOT, source, target, len - done).expect("copied") {
            0 => return done,
            copied => done += copied,
        }
    }
}

fn close_and_check(volume: Volume, device: &MemoryDevice) {
    volume.close().expect("closed");
    let options = CheckOptions { contents: true, force: true, ..CheckOptions::default() };
    assert_eq!(fsck::check(device, &options, &()).expect("checked").problems, []);
}

/// Data, a hole of slightly less than 8 MiB, data that does not begin at a block, and a hole at the
/// end.
fn sparse_file(volume: &Volume) -> (InodeNo, Vec<u8>) {
    let source = file(volume, "source");
    let data = pattern(MIB + 1234);
    volume.write(&Caller::ROOT, source, 0, &data).expect("written");
    volume.write(&Caller::ROOT, source, 9 * MIB + 77, &data[..300]).expect("written");
    resize(volume, source, 12 * MIB + 5);
    (source, read_all(volume, source))
}

#[test]
fn a_sparse_file_stays_sparse_wherever_it_is_copied_to() {
    let device = made(256 * MIB);
    let volume = open(&device, false);
    let (source, bytes) = sparse_file(&volume);
    volume.sync().expect("synced");
    let taken = volume.attr(source).expect("there").allocated_bytes;
    for (index, shift) in [0, 100, 4096, 5000, 3 * MIB].into_iter().enumerate() {
        let new = file(&volume, &format!("new {index}"));
        // Full of data that must be replaced; longer than the copy or ending in the middle of it.
        let old = file(&volume, &format!("old {index}"));
        let old_bytes = pattern(if index % 2 == 0 { 20 * MIB } else { 5 * MIB + 3 });
        volume.write(&Caller::ROOT, old, 0, &old_bytes).expect("written");
        for (target, before) in [(new, Vec::new()), (old, old_bytes)] {
            assert_eq!(copy_all(&volume, (source, 0), (target, shift), u64::MAX), 12 * MIB + 5);
            let end = (shift as usize + bytes.len()).max(before.len());
            let mut expected = before;
            let kept = expected.len() as u64;
            expected.resize(end, 0);
            expected[shift as usize..][..bytes.len()].copy_from_slice(&bytes);
            assert!(read_all(&volume, target) == expected, "shifted by {shift}");
            let other_bytes = kept.min(shift) + kept.saturating_sub(shift + bytes.len() as u64);
            // Until they are placed, dirty pages count with the space reserved for them.
            volume.sync().expect("synced");
            let attr = volume.attr(target).expect("there");
            let limit = taken + other_bytes + (64 << 10);
            assert!(attr.allocated_bytes <= limit, "{shift}: {} bytes", attr.allocated_bytes);
        }
        let hole = volume.seek(new, shift, SeekFor::Hole).expect("there is one");
        assert!(hole < shift + 2 * MIB, "{hole}");
    }
    close_and_check(volume, &device);
}

#[test]
fn a_hole_of_a_tebibyte_is_copied_at_once() {
    let device = made(64 * MIB);
    let volume = open(&device, false);
    let (source, target) = (file(&volume, "source"), file(&volume, "target"));
    resize(&volume, source, 1 << 40);
    volume.write(&Caller::ROOT, source, (1 << 40) - 5, b"at the end").expect("written");
    let end = (1 << 40) + 5;
    assert_eq!(
        volume.copy(&Caller::ROOT, (source, 0), (target, 0), u64::MAX).expect("copied"),
        end
    );
    assert_eq!(volume.attr(target).expect("there").size, end);
    let mut last = [0; 10];
    volume.read(target, end - 10, &mut last).expect("read");
    assert_eq!(&last, b"at the end");
    close_and_check(volume, &device);
}

#[test]
fn a_long_copy_takes_several_calls() {
    let device = made(256 * MIB);
    let volume = open(&device, false);
    let (source, target) = (file(&volume, "source"), file(&volume, "target"));
    let data = pattern(2 * CALL_BYTES_MAX + 999);
    volume.write(&Caller::ROOT, source, 0, &data).expect("written");
    assert_eq!(
        volume.copy(&Caller::ROOT, (source, 0), (target, 0), u64::MAX).expect("copied"),
        CALL_BYTES_MAX
    );
    let rest = copy_all(&volume, (source, CALL_BYTES_MAX), (target, CALL_BYTES_MAX), u64::MAX);
    assert_eq!(rest, CALL_BYTES_MAX + 999);
    assert!(read_all(&volume, target) == data);
    close_and_check(volume, &device);
}

#[test]
fn copies_that_are_impossible_are_refused() {
    let device = made(64 * MIB);
    let volume = open(&device, false);
    let (source, target) = (file(&volume, "source"), file(&volume, "target"));
    let dir = make(&volume, ROOT, "dir", NewKind::Directory);
    volume.write(&Caller::ROOT, source, 0, &pattern(10_000)).expect("written");
    let copy = |from, to, len| volume.copy(&Caller::ROOT, from, to, len);
    assert!(matches!(copy((source, 0), (source, 999), 1000), Err(Error::Invalid(_))));
    assert!(matches!(copy((source, 999), (source, 0), 1000), Err(Error::Invalid(_))));
    assert_eq!(copy((source, 0), (source, 1000), 1000).expect("side by side"), 1000);
    assert!(matches!(copy((dir, 0), (target, 0), 1), Err(Error::IsDirectory)));
    assert!(matches!(copy((source, 0), (dir, 0), 1), Err(Error::IsDirectory)));
    assert_eq!(copy((source, 10_000), (target, 0), 5).expect("the end"), 0);
    assert_eq!(copy((source, 0), (target, 0), 0).expect("nothing"), 0);
    assert_eq!(volume.attr(target).expect("there").size, 0);
    let limit = FILE_BYTES_MAX - 10;
    assert_eq!(copy((source, 0), (target, limit), 100).expect("as far as it goes"), 10);
    assert!(matches!(copy((source, 0), (target, FILE_BYTES_MAX), 1), Err(Error::TooLarge)));
    volume.close().expect("closed");

    let volume = open(&device, true);
    let refused = volume.copy(&Caller::ROOT, (source, 0), (target, 0), 5);
    assert!(matches!(refused, Err(Error::ReadOnly)), "{refused:?}");
}

#[test]
fn a_copy_ends_where_the_space_does() {
    let device = made(24 * MIB);
    let volume = open(&device, false);
    let (source, target) = (file(&volume, "source"), file(&volume, "target"));
    let data = pattern(14 * MIB);
    assert_eq!(volume.write(&Caller::ROOT, source, 0, &data).expect("written"), data.len());
    let copied =
        volume.copy(&Caller::ROOT, (source, 0), (target, 0), u64::MAX).expect("a part fits");
    assert!(copied > MIB && copied < 14 * MIB, "{copied}");
    assert!(read_all(&volume, target) == data[..copied as usize]);
    let refused = volume.copy(&Caller::ROOT, (source, copied), (target, copied), u64::MAX);
    assert!(matches!(refused, Err(Error::NoSpace)), "{refused:?}");
    close_and_check(volume, &device);
}

#[test]
fn a_copy_moves_the_times_and_takes_the_capabilities_of_its_target() {
    let device = made(64 * MIB);
    let volume = open(&device, false);
    let (data, hole) = (file(&volume, "data"), file(&volume, "hole"));
    volume.write(&Caller::ROOT, data, 0, &pattern(10_000)).expect("written");
    resize(&volume, hole, 100_000);
    for source in [data, hole] {
        let target = file(&volume, &format!("target {source}"));
        let set =
            volume.set_xattr(&Caller::ROOT, target, b"security.capability", b"all", XattrMode::Any);
        set.expect("set");
        let before = volume.attr(target).expect("there");
        assert!(copy_all(&volume, (source, 0), (target, 0), u64::MAX) > 0);
        let after = volume.attr(target).expect("there");
        assert!(after.mtime > before.mtime && after.ctime > before.ctime, "{after:?}");
        assert_eq!(volume.xattr_names(target).expect("names"), Vec::<Vec<u8>>::new());
    }
    volume.close().expect("closed");
}

/// Each copy needs both files; one that kept the first locked while it waits for the second would
/// deadlock with the other copy, which locks them in reverse order.
#[test]
fn copies_in_opposite_directions_do_not_wait_for_each_other() {
    let device = made(64 * MIB);
    let volume = Arc::new(open(&device, false));
    let (a, b) = (file(&volume, "a"), file(&volume, "b"));
    volume.write(&Caller::ROOT, a, 0, &vec![1; MIB as usize]).expect("written");
    volume.write(&Caller::ROOT, b, 0, &vec![2; MIB as usize]).expect("written");
    let (done, ended) = channel();
    for (from, to) in [(a, b), (b, a)] {
        let (volume, done) = (volume.clone(), done.clone());
        std::thread::spawn(move || {
            for round in 0..200 {
                copy_all(&volume, (from, 0), (to, 0), MIB);
                if round % 20 == 0 {
                    volume.sync().expect("synced");
                }
            }
            done.send(()).expect("the other end waits");
        });
    }
    for _ in 0..2 {
        ended.recv_timeout(PATIENCE).expect("a copy waits for ever");
    }
    for ino in [a, b] {
        let bytes = read_all(&volume, ino);
        assert!(bytes.len() == MIB as usize && bytes.iter().all(|byte| matches!(byte, 1 | 2)));
    }
    volume.close().expect("closed");
}
